"""Every figure shows as many series as it is given, told apart without colour; what a figure
computes itself is right."""

from __future__ import annotations

import inspect
import math
from fractions import Fraction as F

import numpy as np
import pytest
import tiny

from specwb.core.blocks import BlockTree
from specwb.core.tree import Tree
from specwb.theory import exact
from specwb.theory.analysis import adl_trace

pd = pytest.importorskip("pandas")
pytest.importorskip("plotly")

import plotly.graph_objects as go  # noqa: E402

from specwb.show import figures, palette  # noqa: E402
from specwb.show.figures import sweeps  # noqa: E402
from specwb.show.figures.style import label, visible  # noqa: E402

COMPARED = pd.DataFrame(
    {
        "method": ["ar", "loose", "hf_greedy"],
        "lossless": [True, False, True],
        "tau": [1.0, 3.0, 1.0],
        "tokens_per_second": [10.0, 30.0, 9.0],
        "speedup": [1.0, 3.0, 0.9],
        "speedup_low": [1.0, 2.5, 0.8],
        "speedup_high": [1.0, 4.0, 0.95],
    }
)
MEANS = pd.DataFrame(
    [
        {"eta": eta, "gamma": g, "mean": eta + g, "low": eta, "high": eta + 2 * g}
        for eta in (0, 0.9)
        for g in (2, 6)
    ]
)
BLOCKS = BlockTree(Tree.branching(2, 2, 1), 2)
P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


# name -> arguments; a second entry of a list is another case
EVERY: dict[str, tuple] = {
    "acceptance": (P, Q, [5, 3, 2]),
    "adaptive": (adl_trace([None, None, 3], [4, 1, 3], 2, 4, 1), 2, 4),
    "bars": ({"a": {"x": 1.0}, "b": {"y": 3}}, "tokens", 1),
    "block_designer": (BLOCKS, {"one": [1.0, 1.5], "two": [1.0] * 11}, "two"),
    "block_tree": (BLOCKS, "t"),
    "by_parameter": (MEANS, ["eta", "gamma"], "tau"),
    "by_setting": ({"a": {0.0: 1.0}, "b": {0.5: 2.0}}, "t", "y", "x", {"c": {0.2: 1.5}}),
    "comparison": (COMPARED,),
    "dependence": ([[0.5, 0], [0.25, 0.25]], "ab", "cd", 0.5),
    "designer": ([-1, 0], [1, 0.5], {1: 1.0, 2: 1.25}, 1.125),
    "estimates": ({"a": [1.0, 2.0], "b": [2.0]}, 1, "x"),
    "lattice": (
        *(["ab", "cd"], [P[:2], Q[:2]], [(0, "a"), (None, "e")], [[0, 1]], {"s": (1, 2, "ad")}),
        *([2, 2], None, "after: x", ("first", "second")),
    ),
    "output": (P, Q, "it"),
    "rule_rates": ({"a": 0.5}, {"iid": 0.6}, {"a": "iid"}),
    "slices": (P, Q, [1, 1.5]),
    "stopping": ([0.1, 0.5], P[:2], P[:2], P[:2], 1, {0.1: (2, 1)}, {}),
    "tree_mask": ([-1, 0, 0],),
    "tried": ({"a": (2, 1, 3)}, {"a": (1, 1, 2)}),
    "value_tree": ([-1, 0], [1, 0.5]),
}


def drawn(name: str, *arguments) -> go.Figure:
    room = next(room for room in (figures, sweeps) if name in vars(room))
    return vars(room)[name](*(arguments or EVERY[name]))


def test_every_figure_is_tried():
    assert {x.__name__ for x in vars(figures).values() if inspect.isfunction(x)} <= {
        *EVERY,
        "require",
    }


def numbers(values) -> list[float]:
    rows = [] if values is None else np.array(values, dtype=object).ravel().tolist()
    return [v for v in rows if v is not None and not isinstance(v, str)]


@pytest.mark.parametrize("name", EVERY)
def test_a_figure_has_titles_and_looks(name):
    figure = drawn(name)
    titles = [note.text for note in figure.layout.annotations] + [figure.layout.title.text]
    titles += [axis.title.text for axis in (*figure.select_xaxes(), *figure.select_yaxes())]
    assert any(titles)
    for trace in figure.data:
        values = [v for k in ("x", "y", "z") for v in numbers(getattr(trace, k, ()))]
        assert all(map(math.isfinite, values))
        assert trace.name or not trace.showlegend
    # colour never stands alone
    looks = {
        t.name: (t.marker.pattern.shape,)
        if t.type == "bar"
        else (t.mode, t.line.dash if "lines" in t.mode else None, t.marker.symbol)
        for t in figure.data
        if t.showlegend
    }
    assert len(set(looks.values())) == len(looks)
    assert len(figure.to_json()) < 20_000
    layout = figure.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == palette.CLEAR
    assert layout.template.layout.yaxis.gridcolor == palette.GRID


def series(figure: go.Figure, *fields: str) -> list[list]:
    """The named fields of all traces that have them, as lists."""
    rows = [[getattr(trace, name, None) for name in fields] for trace in figure.data]
    plain = [[None if v is None else np.array(v, object).tolist() for v in row] for row in rows]
    return [row[0] if len(fields) == 1 else row for row in plain if row[0] is not None]


THIRD = [F(1, 2), F(3, 10), F(1, 5), F(0)], [F(1, 10), F(1, 5), F(3, 10), F(2, 5)]
# figure, arguments, fields, the first traces' values of them
VALUES: list[tuple[str, tuple, tuple[str, ...], list]] = [
    ("by_setting", EVERY["by_setting"], ("y",), [[1.0], [2.0], [1.5]]),
    ("bars", EVERY["bars"], ("y",), [[1.0, None], [None, 3]]),
    (
        *("by_parameter", EVERY["by_parameter"], ("x", "y", "z")),
        [[["0", "0.9"], ["2", "6"], [[2, 2.9], [6, 6.9]]]],
    ),
    # accepted, residual, rejected, p, q, output, drawn
    (
        *("acceptance", EVERY["acceptance"], ("y",)),
        [[0.2, 0.3, 0.2], [0.3, 0, 0], [0, 0, 0.3], P, Q, P, [0.5, 0.3, 0.2]],
    ),
    # slices of p between 0, q and 1.5 q, the bonus token's part, the lines
    (
        *("slices", (*THIRD, exact.rrs_levels(*THIRD, 2)), ("y",)),
        [[0.1, 0.2, 0.2, 0], [0.05, 0.1, 0, 0], [0.35, 0, 0, 0]],
    ),
    (
        *(
            "rule_rates",
            ({"a": 0.5, "b": 0.4, "c": 0.3}, {"x": 0.9, "y": 0.6}, {"a": "x", "b": "y", "c": "x"}),
            ("y",),
        ),
        [[0.5, 0.3, 0.4], [0.9, 0.9, 0.6]],
    ),
    (
        *("designer", ([-1, 0], [1, 0.5], {3: 1.5, 1: 1.0, 2: 1.25}, 1.125), ("x", "y")),
        [
            *([[0, 1, None], [0, 0, None]], [[0, 1], [0, 0]]),
            *([[1, 2, 3], [1.0, 1.25, 1.5]], [[2], [1.125]]),
        ],
    ),
    (
        *("adaptive", EVERY["adaptive"], ("y",)),
        [[4, 1, 3], [4, 3, 3], [4, 3, 3], [2, 2.5, 2.75], [2, 1.5, 2.25], [2]],
    ),
]


@pytest.mark.parametrize(
    ("name", "arguments", "fields", "values"), VALUES, ids=lambda v: str(v)[:9]
)
def test_a_figure_shows_its_numbers(name, arguments, fields, values):
    shown = series(drawn(name, *arguments), *fields)
    for row, wanted in zip(shown, values, strict=False):
        assert (
            np.array(row, object).tolist() == pytest.approx(wanted)
            if fields == ("y",)
            else (row == wanted)
        )


REFUSED = [
    ("value_tree", ([-1, 0, 0], [1, 0.5]), "a tree of 3 nodes needs as many"),
    ("value_tree", ([0, 0], [1, 1]), "node 0 must be the root"),
    ("acceptance", (P, [1.0], [1]), "same tokens"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), REFUSED)
def test_what_cannot_be_drawn_is_refused(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        drawn(name, *arguments)


@pytest.mark.parametrize("ks", [(), (1, 1, 1), (4, 2, 2), (6, 4)], ids=str)
def test_the_mask_is_the_trees(ks):
    tree = Tree.branching(*ks) if ks else Tree.chain(0)
    (heat,) = figures.tree_mask(tree.host[0]).data
    depth = tree.depth[0].tolist()
    for i, row in enumerate(tree.mask[0].tolist()):
        assert list(heat.z[i]) == [depth[j] if row[j] else None for j in range(tree.n)]


def test_information_and_acceptance_are_areas():
    """Of two tables with the same margins; the second is their product."""
    for joint, lacking, kept in (
        ([[0.5, 0], [0, 0.5]], math.log(2), 0.5),
        ([[0.25, 0.25], [0.25, 0.25]], 0, 1),
    ):
        table, product, never, shown, stays, lost = figures.dependence(joint, "ab", "cd", 0.25).data
        assert [list(row) for row in table.z] == joint
        assert [list(row) for row in product.z] == [[0.25] * 2] * 2
        area = [sum(w * y for w, y in zip(bar.width, bar.y)) for bar in (never, shown, stays, lost)]
        assert area == pytest.approx([0.75 * lacking, 0.25 * lacking, kept, 1 - kept], abs=1e-4)


# ---------------------------------------------------------------------------------- palette, style


def test_labels_show_white_space_and_never_markup():
    assert visible(" a\n<b>") == "␣a⏎&lt;b&gt;"
    assert label(None, 17) == "17"
    assert label(tiny.tokenizer(["<i>", "x"]), 0) == "&lt;i&gt;"
