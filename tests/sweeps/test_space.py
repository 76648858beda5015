"""Configurations: grids, shapes, and files that are refused whole."""

from __future__ import annotations

import itertools

import pytest

from specwb.core.options import MethodError
from specwb.lab.sweeps.space import DEFAULTS, SweepError, configurations, read, shapes, with_plain

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
method = "mcsd"
tree = { nodes = 5, least = 5 }
"""


def test_a_grid_has_every_combination_once_with_its_defaults():
    block = {"method": "sps", "gamma": [2, 3, 3], "temperature": [0, 1], "seed": range(2)}
    found = configurations([block])
    assert all(one["top_p"] == DEFAULTS["top_p"] for one in found)
    keys = [(one["gamma"], one["temperature"], one["seed"]) for one in found]
    assert sorted(keys) == list(itertools.product((2, 3), (0, 1), (0, 1)))
    assert len(configurations([{"method": "pld"}, {"method": "pld", "top_p": 1}])) == 1
    assert configurations([{"method": "pld", "temperature": 1e-9}])[0]["temperature"] == 0
    both = with_plain(configurations([{"method": ["ar", "pld"], "seed": [0, 1]}]))
    assert [one["method"] for one in both] == ["ar", "ar", "pld", "pld"]


def test_shapes_are_all_trees_within_a_budget():
    assert shapes(5) == ["1", "1-1", "1-1-1", "1-1-1-1", "2", "2-1", "3", "4"]
    assert shapes(5, least=5) == ["1-1-1-1", "2-1", "4"]
    assert shapes(5, depth=1) == ["1", "2", "3", "4"]
    listed = [tuple(map(int, text.split("-"))) for text in shapes(24, 12, 3)]
    falling = [ks for ks in itertools.product(range(1, 24), repeat=3) if ks[0] >= ks[1] >= ks[2]]
    sizes = {ks: 1 + ks[0] * (1 + ks[1] * (1 + ks[2])) for ks in falling}
    assert {k for k in listed if len(k) == 3} == {k for k, n in sizes.items() if 12 <= n <= 24}


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "the axes make 0 configurations"),
        ([{"method": "pld", "gamma": []}], "the axes make 0 configurations"),
        ([{"method": "pld", "seed": range(200_000)}], "the axes make 200000 configurations"),
        ([{"gamma": 3}], "needs a method"),
        ([{"method": "pld", "temperature": "hot"}], "temperature must be a number"),
        ([{"method": "pld", "seed": -1}], "seed must be an integer >= 0"),
        ([{"method": "pld", "top_p": 2.0}], "top_p"),
        ([{"method": "nope"}], "unknown method 'nope'"),
        ([{"method": "pld", "eta": 0.5}], "eta"),
        ([{"method": "mcsd", "tree": "4-x"}], "tree"),
    ],
)
def test_what_cannot_be_is_refused(blocks, message):
    with pytest.raises((SweepError, MethodError, ValueError), match=message):
        configurations(blocks)


def test_a_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(FILE)
    plan = read(path)
    assert (plan.target, plan.prompts, plan.first) == ("lab", "lab", 3)
    listed = configurations(plan.methods)
    assert len(listed) == 2 * 2 + 2 * 3
    assert {one["tree"] for one in listed if one["method"] == "mcsd"} == {"1-1-1-1", "2-1", "4"}
    assert {one["temperature"] for one in listed} == {0, 1}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("first = 3", "first = 0", "first must be >= 1, got 0"),
        ("first = 3", "last = 3", "last cannot be 3"),
        ("first = 3", "first = true", "first cannot be True"),
        ("first = 3", "first =", "is no TOML"),
        ("gamma = 4", "gama = 4", r"\[\[methods\]\] number 1: .*gama"),
        ("eta = [0, 0.5]", "eta = 7", r"\[\[methods\]\] number 1: .*eta"),
        ("nodes = 5,", "nodes = 1,", r"\[\[methods\]\] number 2: nodes must be an integer"),
        ("nodes = 5,", "width = 5,", r"\[\[methods\]\] number 2: .*width"),
        (FILE, "", r"needs at least one \[\[methods\]\]"),
    ],
)
def test_files_are_refused_with_their_name_and_block(tmp_path, before, after, message):
    path = tmp_path / "s.toml"
    path.write_text(FILE.replace(before, after))
    with pytest.raises(SweepError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
