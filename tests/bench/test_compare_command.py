"""specwb compare as it is printed: terminals, pipes, files. The comparison is made once."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
from terminal import call

import specwb
from specwb.cli.shared import loaded
from specwb.engine import machine
from specwb.lab.bench import compare as module

METHODS = ["sps", "mcsd:tree=2-1", "hf_assisted:gamma=3,schedule=constant,confidence=0"]


@pytest.fixture(scope="module")
def frame():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "one_step", lambda target: lambda: 1.0)
        patch.setattr(machine, "load_average", lambda: 0.0)
        prompts = [[1, 2, 3], [5, 6], [7], [8]]
        settings = {"draft": tiny.draft(), "max_new_tokens": 4, "library": False}
        return module.compare(tiny.target(), prompts, METHODS, **settings)


@pytest.fixture
def command(frame, monkeypatch, capsys):
    """A call of ``specwb compare`` with that result: exit code, output, errors."""
    monkeypatch.setattr(specwb, "load", lambda name, **options: tiny.target())
    monkeypatch.setattr(module, "compare", lambda *args, **kwargs: frame)
    return lambda *options, **settings: call(monkeypatch, capsys, "compare", *options, **settings)


def test_the_seed_shuffles_the_prompts(frame, command, monkeypatch):
    orders: list[list[int]] = []

    def compare(target, questions, *_, **__):
        orders.append([question.question_id for question in questions])
        return frame

    monkeypatch.setattr(module, "compare", compare)
    for seed in ("1", "1", "2"):
        assert command("--prompts", "chat", "--seed", seed)[0] == 0
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_piped_output_is_plain(command):
    code, out, _ = command()
    assert code == 0
    assert not set(out) & set("│┃━─\x1b")
    lines = out.splitlines()
    assert lines[0] == "Speed of each method, fastest first"
    assert any(line.startswith(METHODS[-1] + " ") for line in lines)
    assert any(line.startswith("speedup is over ") for line in lines)
    assert "The transformers library, over its own plain decoding" in lines
    assert lines[-1].startswith("next: ")


def test_files_and_standard_output(command, frame, tmp_path):
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "markdown")}
    words = (word for name, path in paths.items() for word in (f"--{name}", str(path)))
    assert command(*words)[0] == 0
    document = json.loads(paths["json"].read_text())
    assert document["command"].startswith("specwb compare --json ")
    assert [row["method"] for row in document["rows"]] == list(frame["method"])
    assert paths["markdown"].read_text().startswith("Speed of each method")
    for option, start in (("--json", "{"), ("--markdown", "Speed of each method")):
        code, out, err = command(option, "-")
        assert (code, out.startswith(start)) == (0, True)
        assert "fastest first" in err
    code, out, err = command("--json", "-", "--markdown", "-")
    assert (code, out) == (2, "")
    assert "one of them goes to standard output; name a file" in err


def test_filters_reach_the_comparison(frame, command, monkeypatch):
    settings = {}
    monkeypatch.setattr(module, "compare", lambda *args, **kwargs: settings.update(kwargs) or frame)
    assert command("--temperature", "0.5", "--top-k", "7", "--top-p", "0.9")[0] == 0
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (0.5, 7, 0.9)
    assert settings["exact_text"] is False
    assert command("--temperature", "1", "--exact-text")[0] == 0
    assert settings["exact_text"] is True


def test_a_busy_machine_is_given_one_thread_where_no_results_depend_on_it(monkeypatch, capsys):
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(machine, "slowdown", lambda: 13.0)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(specwb, "load", lambda name, **options: options)
    assert loaded("lab", "cpu", "auto", stored=True) == {"device": "cpu", "dtype": "auto"}
    assert "one thread would be faster: products take 13.0" in capsys.readouterr().err
    assert numbers == []
    loaded("lab", "cpu", "auto")
    assert "OMP_NUM_THREADS=4 takes 4" in capsys.readouterr().err
    assert numbers == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    loaded("lab", "cpu", "auto")
    assert (capsys.readouterr().err, numbers) == ("", [1])
