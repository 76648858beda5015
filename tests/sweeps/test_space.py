"""Configurations: grids, draws, blocks, and files that are refused whole."""

from __future__ import annotations

import itertools

import pytest

from specwb.core.options import MethodError
from specwb.lab.sweeps.space import (
    SHARED,
    Range,
    Space,
    SweepError,
    blocks,
    checked,
    read,
    shapes,
    written,
)

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


def test_shapes_are_all_trees_within_a_budget():
    assert shapes(5) == ["1", "1-1", "1-1-1", "1-1-1-1", "2", "2-1", "3", "4"]
    assert shapes(5, least=5) == ["1-1-1-1", "2-1", "4"]
    assert shapes(5, depth=1) == ["1", "2", "3", "4"]
    found = [tuple(map(int, text.split("-"))) for text in shapes(24, 12, 3)]
    falling = [ks for ks in itertools.product(range(1, 24), repeat=3) if ks[0] >= ks[1] >= ks[2]]
    sizes = {ks: 1 + ks[0] * (1 + ks[1] * (1 + ks[2])) for ks in falling}
    assert {ks for ks in found if len(ks) == 3} == {ks for ks, n in sizes.items() if 12 <= n <= 24}
    with pytest.raises(SweepError, match=r"nodes must be an integer in 2\.\.1024, got 1"):
        shapes(1)
    with pytest.raises(SweepError, match="least must be an integer"):
        shapes(4, least=5)


def test_configurations_are_written_as_blocks_and_read_again(tmp_path):
    grids = [
        {"method": ["kangaroo"], "temperature": [0.0], "eta": [0, 0.5], "gamma": [4, 6]},
        {"method": ["kangaroo"], "temperature": [0.5, 1.0], "eta": [0.6], "gamma": [6]},
        {"method": ["kangaroo"], "temperature": [0.0], "tree": [True], "top": [2, 4]},
        {"method": ["mcsd"], "temperature": [1.0], "tree": ["2-2", "4"], "draw": ["with"]},
    ]
    rows = [dict(zip(g, values)) for g in grids for values in itertools.product(*g.values())]
    found = blocks(rows)
    assert len(found) == len(grids)
    path = tmp_path / "s.toml"
    path.write_text(written(found))
    again = read(path).space.configurations()
    assert len(again) == len(rows)
    assert all(checked(row) in again for row in rows)
    path.write_text('[[methods]]\nmethod = "mcsd"\ntree = { nodes = 5, least = 5 }\n')
    trees = {one["tree"] for one in read(path).space.configurations()}
    assert trees == {"1-1-1-1", "2-1", "4"}
    path.write_text('[[methods]]\nmethod = "mcsd"\ntree = { nodes = 1 }\n')
    with pytest.raises(SweepError, match=r"line 3: tree: nodes must be .* got 1"):
        read(path)


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


def test_temperatures_that_are_greedy_are_one_configuration():
    colds = {"method": "sps", "temperature": [0, 1e-9, 1e-5, 1e-4]}
    assert [one["temperature"] for one in Space([colds]).configurations()] == [0, 1e-4]


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
        (Space([{"method": "sps"}], samples=0), "samples must be an integer in 1..100000, got 0"),
    ],
)
def test_what_cannot_be_is_said(space, message):
    with pytest.raises((SweepError, MethodError, ValueError), match=message):
        space.configurations()


def test_more_configurations_than_anybody_measures_are_counted_and_not_made():
    axis = list(range(1, 101))
    block = {"method": "kangaroo", "gamma": axis, "seed": axis, "max_new_tokens": axis}
    with pytest.raises(
        SweepError, match="the axes make 1000000 configurations, a sweep has 100000"
    ):
        Space([block]).configurations()
    many = {**block, "top_k": range(10**6)}
    assert len(Space([many], samples=5).configurations()) == 5
    with pytest.raises(
        SweepError, match=r"samples must be an integer in 1\.\.100000, got 1000000000"
    ):
        Space([block], samples=10**9).configurations()
    with pytest.raises(SweepError, match="seed must be an integer >= 0, got -1"):
        Space([block], samples=2, seed=-1).configurations()


def test_more_samples_than_there_are_configurations_are_all_of_them():
    block = {"method": "kangaroo", "gamma": Range(2, 4), "seed": [0, 1]}
    found = Space([block], samples=99_999).configurations()
    assert sorted((one["gamma"], one["seed"]) for one in found) == [
        (gamma, seed) for gamma in (2, 3, 4) for seed in (0, 1)
    ]


def test_a_file_is_checked_by_axis_and_not_by_combination(tmp_path):
    """Of three axes of a hundred values each, 300 configurations are looked at before the draw."""
    axis = list(range(1, 101))
    lines = ["samples = 3", "[[methods]]", 'method = "kangaroo"']
    lines += [f"{name} = {axis}" for name in ("gamma", "seed", "max_new_tokens")]
    path = tmp_path / "s.toml"
    path.write_text("\n".join(lines))
    assert len(read(path).space.configurations()) == 3
    path.write_text("\n".join([*lines, f"top_k = {[*axis, -1]}"]))
    with pytest.raises(SweepError, match="line 7: top_k must be an integer >= 0, got -1"):
        read(path)
    path.write_text("\n".join(lines[1:]))
    with pytest.raises(SweepError, match=r"s\.toml: the axes make 1000000 configurations"):
        read(path)


def test_ranges_have_ends():
    with pytest.raises(SweepError, match="low < high"):
        Range(1, 1)
    with pytest.raises(SweepError, match="0 < low"):
        Range(0.0, 1.0, log=True)


def test_a_file_has_blocks(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(FILE)
    plan = read(path)
    assert (plan.target, plan.prompts, plan.first) == ("lab", "lab", 3)
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
        ("[axes]", "[axes", "is no TOML"),
        ("first = 3", f"first = {'9' * 6000}", r"s\.toml is no TOML: Exceeds the limit"),
        ("first = 3", f"x = {'[' * 50_000}", r"s\.toml is no TOML: brackets are nested too deep"),
        ("first = 3", f"x = {'[' * 9000}{']' * 9000}", r"s\.toml is no TOML: brackets are nested"),
        ("first = 3", "seed = -1", "line 3: seed must be >= 0, got -1"),
        (
            "gamma = [2, 3, 4]",
            'gamma = { low = 2, high = 4, log = "yes" }',
            "line 14: log must be true or false, got 'yes'",
        ),
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
