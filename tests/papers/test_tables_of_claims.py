"""The papers' files: what they say agrees with their tables, and faults are named."""

from __future__ import annotations

from math import prod

import pytest

from specwb.core.files import data_dir
from specwb.engine.methods import read_spec
from specwb.lab.papers import NAMES, OTHERS
from specwb.lab.papers.paper import Cell, PaperError, expand, read_paper

GOOD = """
source = "A paper"
setting = "one GPU"
measure = ["T=0 {ar|pld}", "T=1 sps:gamma={2|4}"]
claims = [
  {text = "pld", place = "table 1", paper = {speedup = 1.5, tau = 2.0}, a = "{f}", b = "{ar}"},
  {text = "gamma {2|4}", place = "", what = "tau", a = "T=1 sps:gamma={2|4}", b = "{ar}"},
  {text = "sps", place = "", what = "tau", a = {mean = "T=1 sps:gamma={2|2|4}"}, b = "{ar}"},
]
[cells]
f = "T=0 pld"
ar = "T=0 ar"
"""


def written(folder, text=GOOD):
    (folder / "x.toml").write_text(text)
    read_paper.__globals__["_read"].cache_clear()
    return read_paper("x", folder)


def test_claims_and_cells_are_written_out(tmp_path):
    paper = written(tmp_path)
    assert paper.measure == ("T=0 ar", "T=0 pld", "T=1 sps:gamma=2", "T=1 sps:gamma=4")
    assert [(c.text, c.what, c.paper) for c in paper.claims] == [
        ("pld", "speedup", 1.5),
        ("pld", "tau", 2.0),
        ("gamma 2", "tau", None),
        ("gamma 4", "tau", None),
        ("sps", "tau", None),
    ]
    assert paper.claims[3].a.cells == ("T=1 sps:gamma=4",)
    assert paper.claims[4].a.cells == ("T=1 sps:gamma=2", *paper.measure[2:])  # by weight
    assert expand("{x}{a|b{1|2}}", {"a": "c"}) == ["{x}a", "{x}b1", "{x}a", "{x}b2"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('a = "{f}"', 'a = "T=0 eagle"', "'pld': 'T=0 eagle' is not in measure"),
        ("speedup = 1.5", "speed = 1.5", "there is no figure 'speed'"),
        ('text = "pld", ', "", "'text'"),
        ('place = "table 1"', 'plaice = "table 1"', "plaice"),
        ("{ar|pld}", "{ar|p l d}", "'T=0 p l d' is no cell"),
        ("a = \"T=1 sps:gamma={2|4}\"", "a = \"T=1 sps:gamma={2|4|4}\"", "3 alternatives"),
        ("source", "sauce", "sauce"),
        ("speedup = 1.5", "speedup = 0.9", "'pld': speedup = 0.9; an even claim is within 2% of 1"),
        ("tau = 2.0}", "tau = 2.0}, even = true", "an even claim is within 2% of 1"),
        ("[cells]", "[by_task]\nprompts = []\nmeasure = ['x']\n[cells]", "'x' is no cell"),
        ("claims = [", "claims = [[", "no TOML"),
    ],
)  # fmt: skip
def test_a_fault_is_named(tmp_path, old, new, words):
    assert old in GOOD
    with pytest.raises(PaperError, match=r"x\.toml") as error:
        written(tmp_path, GOOD.replace(old, new, 1))
    assert words in str(error.value)


def test_a_paper_that_is_not_there():
    with pytest.raises(PaperError, match=r"nothing\.toml"):
        read_paper("nothing")


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_every_file_can_be_read(name):
    paper = read_paper(name)
    assert (data_dir() / f"papers/{name}.toml").exists()
    assert paper.is_paper == (name in NAMES)
    facts = [(c.text, c.what) for c in paper.claims]
    assert len(set(facts)) == len(facts)
    for cell in paper.measure:
        assert Cell.read(cell).name == cell
    if paper.is_paper:
        assert any(claim.headline for claim in paper.claims)
        assert all(claim.place for claim in paper.claims)


def mean(values):
    values = list(values)
    return prod(values) ** (1 / len(values))


def rows(name, table, **where):
    every = read_paper(name).tables[table]["rows"]
    return [row for row in every if all(row.get(k) == v for k, v in where.items())]


def over(name, table, a, b, *columns):
    """The geometric mean of the ratios of two methods, over targets that have both."""
    by = {(r["target"], r["method"]): r for r in rows(name, table)}
    pairs = [(by[t, a], by[t, b]) for t, m in by if m == a and (t, b) in by]
    flat = [(x[c], y[c]) for x, y in pairs for c in columns]
    flat = [(x.values(), y.values()) if isinstance(x, dict) else ([x], [y]) for x, y in flat]
    return mean(x / y for xs, ys in flat for x, y in zip(xs, ys, strict=True))


FALCON = ("MT-Bench", "HumanEval", "GSM8K")


def of(name, table, column, first, second):
    """The ratio of a column's means of the rows with two conditions."""
    a, b = (rows(name, table, **where) for where in (first, second))
    return sum(row[column] for row in a) / len(a) / (sum(row[column] for row in b) / len(b))


MEAN = "mean of Vicuna 7B and 13B"


NUMBERS = [
    (
        "mcsd_ti",
        "LOSSY: the paper's best tree below each of 2 roots, 4-3-1-1, over its worst, 1-1-1-1",
        "speedup",
        of("mcsd_ti", "shapes", "rate", {"tree": "4-3-1-1"}, {"tree": "1-1-1-1"}),
    ),
    (
        "falcon",
        "Falcon over Eagle, published trees of 165 and 25 nodes, mean of the four targets",
        "speedup",
        over("falcon", "1", "Falcon", "Eagle", *FALCON),
    ),
    (
        "falcon",
        f"Falcon over Medusa, published trees of 165 and 64 nodes, {MEAN}",
        "accepted",
        over("falcon", "3", "Falcon", "Medusa", *FALCON),
    ),
    ("falcon", "training with CSGD over without, with the tree", "accepted", 3.34 / 2.78),
    ("falcon", "the tree over a chain as deep, trained without CSGD", "accepted", 2.78 / 1.64),
    *(
        ("kangaroo", text, what, over("kangaroo", "main", a, b, column))
        for text, a, b in (
            ("Kangaroo's tree over its chain", "Kangaroo", "Kangaroo, chain"),
            ("Kangaroo's chain over Medusa's", "Kangaroo, chain", "Medusa, chain"),
            ("Kangaroo's tree over SpS (drafts of 4 here)", "Kangaroo", "SpS"),
        )
        for what, column in (("tau", "cr"), ("speedup", "speedup"))
    ),
    (
        "kangaroo",
        "drafts of 4 over drafts of 8, no threshold",
        "speedup",
        of("kangaroo", "eta", "speedup", {"eta": 0, "gamma": 4}, {"eta": 0, "gamma": 8}),
    ),
    (
        "diffuspec",
        "path search (CPS) over the most probable tokens, fixed draft length",
        "tau",
        of("diffuspec", "2", "mat", {"parts": "CPS"}, {"parts": "neither"}),
    ),
    ("diffuspec", "DiffuSpec over PLD", "tau", 6.99 / 2.11),
    (
        "diffuspec",
        "1 denoising step over 2 to 5, their mean",
        "tau",
        4 * 6.99 / (6.9 + 6.92 + 7.04 + 6.86),
    ),
    (
        "easyspec",
        "drafting layer by layer over N = 4 layers' attention at once, width 1",
        "draft",
        1.62,
    ),
]


@pytest.mark.parametrize(("name", "text", "what", "number"), NUMBERS)
def test_claims_have_the_numbers_of_their_tables(name, text, what, number):
    (claim,) = (c for c in read_paper(name).claims if (c.text, c.what) == (text, what))
    assert claim.paper == pytest.approx(number, abs=6e-5)


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_every_cell_is_of_a_method_with_options_that_it_has(name):
    paper = read_paper(name)
    for cell in map(Cell.read, (*paper.measure, *(paper.trained.measure if paper.trained else ()))):
        entry, _, options = read_spec(cell.spec, None, {})
        assert set(options) - {"preset"} <= set(entry.options), cell
        entry.check({key: value for key, value in options.items() if key != "preset"})


def test_kangaroos_adapter_has_the_stated_part_of_medusas_parameters():
    """The abstract's 88.7 % fewer, which is no ratio of cells."""
    millions = {r["variant"]: r["parameters"] for r in rows("kangaroo", "adapter")}
    assert round(100 * (1 - millions["attention"] / millions["medusa"]), 1) == 88.7
    width = 4096
    assert round((4 * width**2 + 2 * width) / 1e6) == millions["attention"]
