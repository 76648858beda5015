"""Configurations: grids, draws, blocks, and files that are refused whole."""

from __future__ import annotations

import pytest

from specwb.options import MethodError
from specwb.sweeps.space import SHARED, Range, Space, SweepError, read

FILE = """
target = "lab"
first = 3

[axes]
temperature = [0, 1]

[[methods]]
method = "kangaroo"
eta = [0, 0.5]
gamma = 4

[[methods]]
method = "sps"
gamma = [2, 3, 4]
"""


def test_a_grid_has_every_combination_once():
    block = {"method": "sps", "gamma": [2, 3, 3], "temperature": [0, 1], "seed": range(2)}
    found = Space([block]).configurations()
    assert len(found) == 2 * 2 * 2
    assert all(one["top_p"] == SHARED["top_p"] for one in found)
    assert {(one["gamma"], one["temperature"], one["seed"]) for one in found} == {
        (gamma, t, seed) for gamma in (2, 3) for t in (0, 1) for seed in (0, 1)
    }


def test_draws_are_different_and_repeatable():
    block = {"method": "kangaroo", "eta": Range(0.0, 1.0), "gamma": Range(2, 4)}
    first = Space([block], samples=12, seed=1).configurations()
    assert first == Space([block], samples=12, seed=1).configurations()
    assert first != Space([block], samples=12, seed=2).configurations()
    assert len(first) == 12
    assert {one["gamma"] for one in first} == {2, 3, 4}
    assert all(0 <= one["eta"] < 1 for one in first)
    few = Space([{"method": "sps", "gamma": [2, 3]}], samples=12).configurations()
    assert sorted(one["gamma"] for one in few) == [2, 3]
    log = [Range(1e-4, 1.0, log=True).draw(u) for u in (0, 0.25, 0.5)]
    assert log == pytest.approx([1e-4, 1e-3, 1e-2])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Space([{"method": "sps", "gamma": []}]), "nothing to sweep"),
        (Space([{"gamma": 2}]), "needs a method"),
        (Space([{"method": "kangaroo", "eta": Range(0.0, 1.0)}]), "eta is a range: say how many"),
        (Space([{"method": "sps", "gamma": 0}]), "gamma must be an integer >= 1, got 0"),
        (Space([{"method": "sps", "eta": 0.5}]), "sps has no option 'eta'"),
        (Space([{"method": "spz"}]), "unknown method 'spz'"),
        (Space([{"method": "sps", "rule": "no"}]), "unknown rule 'no'"),
        (Space([{"method": "sps", "temperature": -1}]), "temperature"),
        (Space([{"method": "sps", "max_new_tokens": 0}]), "max_new_tokens must be"),
        (Space([{"method": "sps"}], samples=0), "samples must be an integer >= 1"),
    ],
)
def test_what_cannot_be_is_said(space, message):
    with pytest.raises((SweepError, MethodError, ValueError), match=message):
        space.configurations()


def test_ranges_have_ends():
    with pytest.raises(SweepError, match="low < high"):
        Range(1, 1)
    with pytest.raises(SweepError, match="0 < low"):
        Range(0.0, 1.0, log=True)


def test_a_file_has_blocks(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(FILE)
    plan = read(path)
    assert (plan.target, plan.prompts, plan.first, plan.halving) == ("lab", "lab", 3, None)
    found = plan.space.configurations()
    assert len(found) == 2 * 2 + 2 * 3
    assert {one.get("eta") for one in found if one["method"] == "sps"} == {None}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("first = 3", "furst = 3", "line 3: unknown key 'furst'"),
        ("eta = [0, 0.5]", "eta = [0, 5]", "line 10: kangaroo: eta must be"),
        ("eta = [0, 0.5]", "etta = [0, 5]", "line 10: kangaroo has no option 'etta'"),
        ('method = "sps"', 'method = "spz"', "line 14: unknown method 'spz'"),
        ("gamma = [2, 3, 4]", "gamma = {low = 2}", "a range is written"),
        ("first = 3", 'halving = { of = "tau" }', "line 3: halving has by, and keep and start"),
        ("[axes]", "[axes", "is no TOML"),
        ("[[methods]]", "[[method]]", "unknown key 'method'"),
        ("eta = [0, 0.5]", "eta = { low = 0.0, high = 1.0 }", "say how many samples"),
    ],
)
def test_a_file_is_refused_whole_with_its_line(tmp_path, old, new, message):
    path = tmp_path / "s.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(SweepError, match=message):
        read(path)


def test_no_file(tmp_path):
    with pytest.raises(SweepError, match="No such file"):
        read(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(SweepError, match="at least one"):
        read(tmp_path / "empty.toml")
