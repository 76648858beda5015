"""What a target keeps of the files beside it."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path

import pytest
import tiny

import specwb


@pytest.fixture
def target() -> specwb.Target:
    return copy.copy(tiny.target())


class Reader:
    """Reads a text and counts how often."""

    def __init__(self, file: Path) -> None:
        self.file, self.times = file, 0

    def __call__(self) -> list[str]:
        self.times += 1
        return [self.file.read_text()]


def write(file: Path, text: str, second: int) -> None:
    file.write_text(text)
    os.utime(file, (second, second))


@pytest.mark.parametrize("folder", [True, False], ids=["a folder", "a file"])
def test_files_are_read_once_and_again_when_they_are_written_anew(target, tmp_path, folder):
    file = tmp_path / "weights"
    place, read = tmp_path if folder else file, Reader(file)
    write(file, "first", 1)
    first = target.loaded("head", place, read)
    assert (first, read.times) == (["first"], 1)
    assert target.loaded("head", str(place), read) is first
    write(file, "second", 2)
    second = target.loaded("head", place, read)
    assert (second, read.times) == (["second"], 2)
    assert target.loaded("head", place, read) is second


def test_one_place_may_have_several_kinds_and_a_hub_id_has_no_files(target, tmp_path):
    read = Reader(tmp_path / "weights")
    write(read.file, "both", 1)
    one, other = (target.loaded(("falcon", ("k", k)), tmp_path, read) for k in (2, 3))
    assert one is not other
    assert read.times == 2
    assert target.loaded("draft", "owner/name", read) is target.loaded("draft", "owner/name", read)
    assert read.times == 3


def test_what_cannot_be_read_is_not_remembered(target, tmp_path):
    read = Reader(tmp_path / "weights")
    with pytest.raises(FileNotFoundError):
        target.loaded("head", tmp_path, read)
    write(read.file, "now", 1)
    old = target.loaded("head", tmp_path, read)
    read.file.unlink()
    with pytest.raises(FileNotFoundError):
        target.loaded("head", tmp_path, read)
    write(read.file, "again", 3)
    assert target.loaded("head", tmp_path, read) == ["again"] != old


def test_copies_and_pickled_targets_read_for_themselves(tmp_path):
    target, read = specwb.load(tiny.build("llama")), Reader(tmp_path / "weights")
    write(read.file, "text", 1)
    first = target.loaded("head", tmp_path, read)
    others = (copy.copy(target), copy.deepcopy(target), pickle.loads(pickle.dumps(target)))
    for times, other in enumerate(others, 2):
        again = other.loaded("head", tmp_path, read)
        assert again == first
        assert again is not first
        assert read.times == times
    assert target.loaded("head", tmp_path, read) is first


def test_a_draft_that_is_trained_anew_is_read_again(tmp_path):
    """One copy for all methods until then."""
    words = [f"w{i}" for i in range(tiny.VOCABULARY)]
    target = specwb.load(tiny.build("llama"), tokenizer=tiny.tokenizer(words))
    folder = tmp_path / "draft"
    for seed in (1, 2):
        tiny.build("llama", seed=seed).save_pretrained(folder)
        target.tokenizer.save_pretrained(folder)
        for path in folder.iterdir():
            os.utime(path, (seed, seed))
        drafts = [
            specwb.method(key, target, draft=where).drafter.draft
            for key, where in (("sps", str(folder)), ("mcsd", str(folder)), ("sps", folder))
        ]
        assert drafts[0] is drafts[1] is drafts[2]
        weight = drafts[0].model.lm_head.weight
        assert weight.equal(tiny.build("llama", seed=seed).lm_head.weight)
