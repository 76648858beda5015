"""Several processes: what they draft beside one process, what each of them keeps, and what the
others hear when one is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ranked
import tiny
import torch
from safetensors.torch import load_file, save_file

from specwb.models import ranks
from specwb.models.fuzzy import GroupError, grouping, listed
from specwb.models.ranks import NEEDED, RankGroups, Ranks, RanksError, join, parts


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> list[dict[str, Any]]:
    """What every rank wrote."""
    folder: Path = tmp_path_factory.mktemp("ranked")
    tiny.target("llama").model.save_pretrained(folder / "target")
    tiny.tokenizer().save_pretrained(folder / "target")
    shutil.copytree(folder / "target", folder / "incomplete")
    weights = load_file(folder / "target" / "model.safetensors")
    save_file(
        {name: w for name, w in weights.items() if "layers.1.mlp.down_proj" not in name},
        folder / "incomplete" / "model.safetensors",
        {"format": "pt"},
    )
    ranked.run(folder)
    found = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranked.SIZE)]
    for said in found:
        assert "failed" not in said, said["failed"]
    return found


# ------------------------------------------------------------------------------ several processes


@pytest.mark.slow
@pytest.mark.parametrize("case", ranked.CASES)
def test_all_ranks_draft_and_say_what_one_process_does(case, seen):
    wanted = ranked.decoded(tiny.target(), case, "simulation")
    for said in seen:
        found = said["decoded"][case]
        assert found["texts"] == wanted["texts"]
        assert found["drafts"] == wanted["drafts"]
        assert found["accepted"] == wanted["accepted"]
        for q, distribution, first in zip(
            found["q"], wanted["q"], seen[0]["decoded"][case]["q"], strict=True
        ):
            torch.testing.assert_close(q, distribution, atol=1e-5, rtol=1e-4)
            assert torch.equal(q, first), "one distribution for all ranks, to the last bit"
    assert len({n for accepted in wanted["accepted"] for n in accepted}) > 1


HELD = {"tree": [[0, 1, 5], [2], [3], [4]], "all at once": [[0, 1], [2, 3], [4, 5], []]}
"""The layers whose attentions each rank runs, and its cache has."""


@pytest.mark.slow
def test_what_every_rank_holds_and_loads(seen):
    """Of two key-value heads four ranks hold two copies."""
    wanted = tiny.forward(tiny.target().model, tiny.PROMPTS[0])
    for rank, said in enumerate(seen):
        assert said["heads"] == (2, 1)
        assert said["stored once"]
        torch.testing.assert_close(said["library"][0], wanted, atol=1e-4, rtol=1e-4)
        for case, layers in HELD.items():
            assert said["held"][case] == layers[rank]
        assert "missing keys: model.layers.1.mlp.down_proj.weight" in said["incomplete"]
        assert "parted among ranks itself" in said["parted draft"]
        assert "4 ranks are more than the n=3" in said["refused"]
        # calibrated caches equal those of a fresh exact prefill
        assert all(off < 1e-5 for case, off in said["off"].items() if case != "not calibrated")
    assert max(said["off"]["not calibrated"] for said in seen) > 1e-2


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run(seen):
    """At once: its connections are closed."""
    assert seen[0]["ended"].startswith("rank 0: another rank has ended")
    assert "\n" not in seen[0]["ended"]
    assert seen[0]["waited"] < 30
    assert "ended" not in seen[3], "it died before it could write again"


# ------------------------------------------------------------------------------------ one process


def test_ranks_without_torchrun(monkeypatch):
    for name in NEEDED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RanksError, match=r"\(RANK, WORLD_SIZE, .* not set\): torchrun") as caught:
        join("cpu")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RanksError, match=r"\(LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set\)"):
        join("cpu")
    with pytest.raises(GroupError, match="several processes"):
        RankGroups(grouping(6, 4)).check(tiny.target().backbone, 4)
    assert ranks.here() is None


@pytest.mark.parametrize(
    ("layers", "size", "owners"),
    [
        (grouping(8, 4), 2, [0, 0, 0, 1, 0, 0, 1, 0]),
        (listed(6, [range(6)]), 4, [0, 0, 1, 1, 2, 2]),
        (listed(6, [[1, 2, 3], [4, 5]]), 3, [0, 0, 1, 2, 0, 1]),
    ],
    ids=["N = 2 W", "unequal shares", "a list"],
)
def test_who_runs_what(layers, size, owners, monkeypatch):
    """The g-th attention of every group of N by rank g div ceil(N / W); layers alone by the
    first."""
    held = []
    for rank in range(size):
        monkeypatch.setattr(ranks, "_here", Ranks(rank, size, torch.device("cpu"), 1.0))
        groups = RankGroups(layers)
        assert [groups.owner[i] for i in range(len(owners))] == owners
        assert list(groups.held) == [i for i, owner in enumerate(owners) if owner == rank]
        assert list(groups.held.values()) == list(range(len(groups.held)))
        assert groups.in_order().held == groups.held, "in order, by the same ranks"
        assert all(len(group) == 1 for group in groups.in_order().layers)
        held += groups.held
    assert sorted(held) == list(range(len(owners)))


@pytest.mark.parametrize(
    ("heads", "kv", "mlp", "size", "wanted"),
    [
        (8, 2, 512, 4, 2),
        (8, 8, 512, 4, 4),
        (8, 4, 510, 4, 2),
        (6, 3, 96, 4, 1),
    ],
)
def test_over_how_many_ranks_a_model_can_be_parted(heads, kv, mlp, size, wanted):
    config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv)
    config.intermediate_size = mlp
    assert parts(config, size) == wanted


def test_what_is_and_what_is_not_a_rank_that_is_gone():
    here = Ranks(1, 2, torch.device("cpu"), 2.5)
    with pytest.raises(RanksError, match=r"another rank .*connection closed"), here.answered():
        raise RuntimeError("connection closed\nand more")
    others = RanksError("said already"), torch.OutOfMemoryError("too much"), ValueError("another")
    for other in others:
        with pytest.raises(type(other)) as caught, here.answered():
            raise other
        assert caught.value is other
