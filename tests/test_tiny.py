"""The tiny models' heads: the same on every machine up to rounding, kept on disk, made again where
they are damaged."""

from __future__ import annotations

import pytest
import tiny
import torch


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setattr(tiny, "KEPT", tmp_path / "kept")
    return tmp_path / "kept"


def medusa(**options) -> dict:
    return tiny.trained("medusa", tiny.target(), **{"steps": 3, **options}).state_dict()


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_head_is_trained_once(kept, monkeypatch):
    first = medusa()
    (place,) = kept.iterdir()
    assert not same(first, medusa(steps=2)), "another training has a place of its own"
    assert len(list(kept.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "_train", None)
        assert same(first, medusa())
    place.write_bytes(place.read_bytes()[:-40])
    assert same(first, medusa())
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "_train", None)
        assert same(first, medusa()), "what was damaged was not put right"
    assert {path.suffix for path in kept.iterdir()} == {".pt"}


def test_other_sources_make_other_heads(kept, monkeypatch):
    medusa()
    monkeypatch.setattr(tiny, "_sources", lambda: b"changed")
    medusa()
    assert len(list(kept.iterdir())) == 2


def test_a_number_type_changes_how_a_head_computes_and_not_its_numbers():
    one, exact = tiny.head("eagle"), tiny.head("eagle", dtype=tiny.EXACT)
    assert {p.dtype for p in exact.parameters()} == {torch.float64}
    assert exact.rotary_emb.inv_freq.dtype == torch.float32
    assert same(
        one.state_dict(),
        {name: w.to(one.state_dict()[name].dtype) for name, w in exact.state_dict().items()},
    )
