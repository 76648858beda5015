"""Every figure shows as many series as it is given, told apart without colour; what a figure
computes itself is right."""

from __future__ import annotations

import math
from fractions import Fraction as F

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.core.blocks import BlockTree
from specwb.core.flow import Draft, Step, Verdict
from specwb.core.tree import Tree
from specwb.theory import exact
from specwb.theory.analysis import adl_trace
from specwb.theory.analysis.layer_parallel import Span

pd = pytest.importorskip("pandas")
pytest.importorskip("plotly")

import plotly.graph_objects as go  # noqa: E402

from specwb.show import figures, palette  # noqa: E402
from specwb.show.figures import easyspec, kit, sweeps  # noqa: E402
from specwb.show.figures.style import label, visible  # noqa: E402
from specwb.show.figures.sweeps import by_parameter  # noqa: E402
from specwb.show.palette import looks  # noqa: E402

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
SPANS = [
    Span(0, 0.0, 1.0, "attention", 0, 0),
    Span(1, 1.0, 1.5, "mlp", 0, 0),
    Span(0, 2.0, 2.75, "mlp", 1, 1),
    Span(0, 2.75, 5.0, "verify", None, 2),
]
P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
CURVES = {"a": [1.0, 2.0, 1.5], "b": [1.0, 1.5, 1.25]}
PAIRS = {name: list(enumerate(values)) for name, values in CURVES.items()}


# a chain, of which one token is kept, and two siblings, of which the second is
TOKENS = torch.tensor([[5, 6, 7], [8, 9, 10]])
ROUND = Step(
    0,
    torch.tensor([4, 4]),
    Draft(Tree([[-1, 0, 1], [-1, 0, 0]]), TOKENS, TOKENS > 0, specwb.Scheme.POINT),
    Verdict(torch.tensor([[0, 1, 1], [0, 2, 2]]), torch.tensor([1, 1]), TOKENS[:, 0]),
    torch.tensor([True, False]),
    *[None] * 4,
)
# name -> what it is given
EVERY: dict[str, tuple] = {
    "acceptance": (P, Q, [5, 3, 2]),
    "adaptive": (adl_trace([None, None, 3], [4, 1, 3], 2, 4, 1), 2, 4),
    "bars": ({"a": {"x": 1.0}, "b": {"y": 3}}, "tokens", 1),
    "block_designer": (BLOCKS, {"one": [1.0, 1.5], "two": [1.0] * 11}, "two"),
    "block_sight": ([2, 2, 4, 4], [1, 1, 3, 3], 2),
    "block_tree": (BLOCKS, "t"),
    "by_dependence": (PAIRS, [(0, 1), (2, 0)], "t"),
    "by_layer": (CURVES, [(0,), (1, 2)], "t", "y"),
    "by_nodes": (CURVES, "t", "tau"),
    "by_parameter": (MEANS, ["eta", "gamma"], "tau"),
    "by_setting": ({"a": {0.0: 1.0}, "b": {0.5: 2.0}}, "t", "y", "x"),
    "cache_drift": (CURVES, {"c": P}),
    "cache_slots": ({"m": [[1, 0]], "n": [[1, 2]]}, ["layer 1"], [7, 8], ["x", "y"]),
    "calibration": ({"a": ([0.1, 0.9], [0, 1]), "b": ([0.5], [1])},),
    "comparison": (COMPARED,),
    "densities": ([0.9, 0.6], [0.1]),
    "dependence": ([[0.5, 0], [0.25, 0.25]], "ab", "cd", 0.5),
    "designer": ([-1, 0], [1, 0.5], {1: 1.0, 2: 1.25}, 1.125),
    "draft_tree": (ROUND,),
    "estimates": ({"a": [1.0, 2.0], "b": [2.0]}, 1, "x"),
    "glancing": ([[True, False]], 2, CURVES, (0.5, 1.0)),
    "grouped": ({"n": [(0,), (1, 2)]}, "t"),
    "head_accuracy": ([[0.7, 0.2], [0.6, 0.1]], "eagle"),
    "kept_roots": ("xyz", {"p": P, "q": Q}, "t"),
    "lattice": (
        *(["ab", "cd"], [P[:2], Q[:2]], [(0, "a"), (None, "e")], [[0, 1]], {"s": (1, 2, "ad")}),
    ),
    "mask_slices": (Tree.branching(2, 1), 1),
    "output": (P, Q, "it"),
    "price_and_tokens": ({"a": (1.5, 3.0), "b": (4.0, 2.0)},),
    "ratios": (PAIRS, {name: [(0.5, 0.7, 0.01)] for name in "ab"}, "t"),
    "round_on_devices": (SPANS, 2, "t"),
    "rule_rates": ({"a": 0.5}, {"iid": 0.6}, {"a": "iid"}),
    "slices": (P, Q, [1, 1.5]),
    "speedup": (CURVES, {2: 2.5}, 1),
    "stage_and_round": (
        *([0, 0.5, 1], CURVES, {"here": (0.5, 1.2)}, 1.6, [0, 0.2, 0.4], {"tau": P}, 6, "t"),
    ),
    "stopping": ([0.1, 0.5], P[:2], P[:2], P[:2], 1, {0.1: (2, 1)}, {}),
    "tree_mask": ([-1, 0, 0],),
    "tried": ({"a": (2, 1, 3)}, {}, "speedup"),
    "value_tree": ([-1, 0], [1, 0.5]),
}


def test_every_figure_is_tried():
    assert set(figures.__all__) <= set(EVERY)


def numbers(values) -> list[float]:
    rows = [] if values is None else np.array(values, dtype=object).ravel().tolist()
    return [v for v in rows if v is not None and not isinstance(v, str)]


@pytest.mark.parametrize("name", EVERY)
def test_a_figure_has_titles_and_looks(name):
    rooms = (figures, easyspec, sweeps)
    drawn = next(vars(room)[name] for room in rooms if name in vars(room))(*EVERY[name])
    named = [t for t in drawn.data if t.name and t.visible is not False]
    titles = [note.text for note in drawn.layout.annotations] + [drawn.layout.title.text]
    titles += [axis.title.text for axis in (*drawn.select_xaxes(), *drawn.select_yaxes())]
    assert any(titles)
    for trace in drawn.data:
        values = [v for k in ("x", "y", "z") for v in numbers(getattr(trace, k, ()))]
        assert all(map(math.isfinite, values))
        assert trace.name or not trace.showlegend
    # colour never stands alone
    looks = {
        t.name: (t.marker.pattern.shape,)
        if t.type == "bar"
        else (t.mode, t.line.dash if "lines" in t.mode else None, t.marker.symbol)
        for t in named
        if t.showlegend
    }
    assert len(set(looks.values())) == len(looks)
    assert len(drawn.to_json()) < 20_000
    layout = drawn.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == palette.CLEAR
    assert layout.font.color == palette.INK
    assert layout.template.layout.yaxis.gridcolor == palette.GRID


# -------------------------------------------------------------------------------------------- kit


def test_intervals_begin_at_their_values():
    bars = kit.whiskers([2.0, 3.0], [1.75, 2.0], [2.5, 3.25])
    assert (bars["array"], bars["arrayminus"]) == ([0.5, 0.25], [0.25, 1])
    compared = figures.comparison(COMPARED).data[0].error_x
    assert list(compared.array) == pytest.approx([0, 1.0, 0.05])
    assert list(compared.arrayminus) == pytest.approx([0, 0.5, 0.1])
    one, other = by_parameter(MEANS.astype({"eta": str}), ["eta", "gamma"], "tau").data
    assert (one.name, other.name, list(one.x), list(one.y)) == (
        "eta=0.0",
        "eta=0.9",
        [2, 6],
        [2, 6],
    )
    assert (list(one.error_y.array), list(one.error_y.arrayminus)) == ([2, 6], [2, 6])


def test_numbers_are_short_and_pairs_whole():
    assert kit.short([1.23456, 0.0123456, 1e-16, None, "a", 7, F(1, 3)]) == [
        *(1.2346, 0.01235, 1e-16, None, "a", 7, 0.3333)
    ]
    with pytest.raises(specwb.ArgumentError, match="got 1 for 2"):
        kit.Panel().bars("a", [1, 2], [1], palette.FIRST)


def test_room_for_a_legend():
    one, two = ({name: {0.0: 1.0} for name in names} for names in ("a", "ab"))
    long = {name * 30: {0.0: 1.0} for name in "abcd"}
    tops = [figures.by_setting(c, "t", "y", "x").layout.margin.t for c in (one, two, long)]
    assert tops[0] < tops[1] < tops[2]


def contrast(colour: str, page: str) -> float:
    """The WCAG's, 1 to 21."""

    def light(hexes: str) -> float:
        parts = [int(hexes[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    a, b = sorted((light(colour), light(page)))
    return (b + 0.05) / (a + 0.05)


def test_colours_are_seen_on_a_light_and_on_a_dark_page():
    for page in ("#FFFFFF", "#111111"):  # JupyterLab's
        assert contrast(palette.INK, page) > 4
        seen = {name: c for name, c in palette.VOCABULARY.items() if name != "draft"}
        for colour in (*seen.values(), palette.EDGE):
            assert contrast(colour, page) > 2.5
        assert all(contrast(colour, page) > 2 for colour, _, _ in palette.PALETTE)


def test_labels_show_white_space_and_never_markup():
    assert visible(" a\n<b>") == "␣a⏎&lt;b&gt;"
    assert label(None, 17) == "17"
    assert label(tiny.tokenizer(["<i>", "x"]), 0) == "&lt;i&gt;"


# ---------------------------------------------------------------------------------------- methods


def test_speedups_stand_at_their_gamma():
    one, _, ring, points = figures.speedup(CURVES, {2: 2.5}, gamma=1).data
    assert (list(one.x), list(one.y)) == ([0, 1, 2], CURVES["a"])
    assert (list(ring.x), list(ring.y)) == ([1], [2])
    assert (list(points.x), list(points.y)) == ([2], [2.5])


def test_a_heat_map_has_the_settings_that_were_measured_on_its_axes():
    drawn = by_parameter(MEANS, ["eta", "gamma"], "tau")
    assert (drawn.layout.xaxis.type, drawn.layout.yaxis.type) == ("category", "category")
    (cells,) = drawn.data
    assert (list(cells.x), list(cells.y)) == (["0", "0.9"], ["2", "6"])
    assert [list(row) for row in cells.z] == [[2, 2.9], [6, 6.9]]
    assert [[list(ends) for ends in row] for row in cells.customdata][1] == [[0, 12], [0.9, 12.9]]


def test_estimates_span_the_middle():
    drawn = figures.estimates({"a": np.arange(101) / 100, "b": [2.0]}, 0.5, "speedup")
    cloud, span, middle = drawn.data[:3]
    assert list(span.x) == pytest.approx([0.05, 0.95])
    assert list(middle.x) == pytest.approx([0.5])
    assert middle.text == ("0.05 to 0.95",)
    assert len(cloud.x) == 101
    assert drawn.layout.shapes[0].x0 == drawn.layout.shapes[0].x1 == 0.5


def test_rays_are_equal_speedups():
    drawn = figures.price_and_tokens({"fast": (1.5, 3.0), "slow": (4.0, 2.0)})
    for ray, word in zip(drawn.layout.shapes, drawn.layout.annotations, strict=True):
        assert word.text == f"{ray.y1 / ray.x1:g}x"
        assert ray.x0 == ray.y0 == 0
    (main,) = (ray for ray in drawn.layout.shapes if ray.line.dash == "dash")
    assert main.x1 == main.y1


def test_bars_say_their_values():
    drawn = figures.bars({"a": {"x": 1.0, "y": 2.345}, "b": {"y": 3, "z": 4}}, "tokens", line=1)
    assert [tuple(t.text) for t in drawn.data] == [("1.00", "2.35", ""), ("", "3.00", "4.00")]
    assert [list(t.y) for t in drawn.data] == [[1.0, 2.345, None], [None, 3, 4]]
    drawn = figures.bars({"a": {"mean_accept_length_per_request": 1.0}}, "tokens")
    assert drawn.layout.xaxis.ticktext == ("mean accept<br>length per<br>request",)


# ------------------------------------------------------------------------------------------ rules


def test_acceptance_figure_adds_up():
    accepted, residual, rejected, p, q, output, drawn = figures.acceptance(P, Q, [5, 3, 2]).data
    assert (list(p.y), list(q.y)) == (kit.short(P), kit.short(Q))
    assert [a + b for a, b in zip(accepted.y, residual.y)] == pytest.approx(P)
    assert [a + b for a, b in zip(accepted.y, rejected.y)] == pytest.approx(Q)
    assert list(output.y) == pytest.approx(P)
    assert list(drawn.y) == [0.5, 0.3, 0.2]
    assert set(figures.acceptance(P, Q).data[6].y) == {None}
    with pytest.raises(ValueError, match="same tokens"):
        figures.acceptance(P, [1.0])


def test_rules_stand_by_scheme_under_their_names():
    rates, optima = {"a": 0.5, "b": 0.4, "c": 0.3}, {"x": 0.9, "y": 0.6}
    bars, lines = figures.rule_rates(rates, optima, {"a": "x", "b": "y", "c": "x"}).data
    assert (list(bars.x[0]), list(bars.x[1])) == (["x", "x", "y"], ["a", "c", "b"])
    assert (list(bars.y), list(bars.text)) == ([0.5, 0.3, 0.4], ["0.500", "0.300", "0.400"])
    assert list(lines.y) == [0.9, 0.9, 0.6]
    long = ["naive on two favourites", "top_and_sample", "shared noise (lower bound)"]
    bars, _ = figures.rule_rates(dict.fromkeys(long, 0.5), {"x": 1}, dict.fromkeys(long, "x")).data
    assert all(len(line) <= 13 for rule in bars.x[1] for line in rule.split("<br>"))
    p, q = [F(1, 2), F(1, 2)], [F(1, 4), F(3, 4)]
    assert "equal to p" in figures.output(p, p, "it").layout.title.text
    assert "TV(output, p) = 0.2500" in figures.output(p, q, "it").layout.title.text


def test_values_are_put_into_the_bin_they_lie_in():
    one, other, share, _, base = figures.densities([0.95, 0.9, 0.55, 1.0], [0.05, 0.52], 10).data
    assert (one.y[9], one.y[5], other.y[0], other.y[5]) == (7.5, 2.5, 5, 5)
    assert (list(share.x), list(share.y)) == ([0.05, 0.55, 0.95], [0, 0.5, 1])
    assert share.error_y.array[1] == pytest.approx(math.sqrt(0.25 / 2), rel=1e-3)
    assert base.y[0] == pytest.approx(4 / 6, abs=1e-4)
    _, line = figures.calibration({"a": ([0.05, 0.09, 0.95], [0, 1, 1])}).data
    assert (list(line.x), list(line.y), list(line.customdata)) == ([0.07, 0.95], [0.5, 1], [2, 1])
    for call in (
        lambda: figures.densities([1.5], [0.1]),
        lambda: figures.calibration({"a": ([-0.05], [1])}),
    ):
        with pytest.raises(specwb.ArgumentError, match=r"in \[0, 1\]"):
            call()


# ------------------------------------------------------------------------------------------ trees


def nodes(figure: go.Figure) -> dict[str, list[list[int]]]:
    """customdata of the node traces by name."""
    return {
        t.name.split(" ")[0].rstrip(","): [list(c) for c in t.customdata]
        for t in figure.data
        if t.name
    }


@pytest.mark.parametrize(
    ("method", "temperature"), [("mcsd", 0.0), ("mcsd:draw=with", 1.0), ("sps:gamma=5", 1.0)]
)
def test_draft_tree_shows_the_round(method, temperature):
    how = {"temperature": temperature, "seed": 3, "trace": True, "max_new_tokens": 24}
    for step in specwb.decode(tiny.target(), [1, 2, 3], method, draft=tiny.draft(), **how).steps:
        figure = figures.draft_tree(step)
        shown = nodes(figure)
        accepted = int(step.verdict.accepted[0])
        path = step.verdict.path[0, 1 : accepted + 1].tolist()
        tokens = step.draft.tokens[0].tolist()
        assert sorted(n for n, _ in shown["accepted"]) == sorted(path)
        assert shown["bonus"] == [[-1, int(step.verdict.bonus[0])]]
        assert shown["pending"] == [[0, tokens[0]]]
        valid = step.draft.valid[0].tolist()
        drafted = {n for n in range(1, step.draft.tree.n) if valid[n]}
        assert {n for n, _ in shown["drafted"]} == drafted - set(path)
        assert all(tokens[n] == t for name in ("accepted", "drafted") for n, t in shown[name])
        assert f"{accepted} accepted" in figure.layout.title.text
        # every node stands at its depth, and none on another
        depth = [*step.draft.tree.depth[0].tolist(), accepted + 1]
        drawn = [
            (x, y, n)
            for t in figure.data
            if t.name
            for x, y, (n, _) in zip(t.x, t.y, t.customdata, strict=True)
        ]
        assert all(x == depth[n] for x, _, n in drawn)
        assert len({(x, y) for x, y, _ in drawn}) == len(drawn)


def test_draft_tree_of_a_row_in_a_batch():
    many = {"max_new_tokens": [20, 1, 20], "temperature": 1.0, "seed": [1, 2, 3], "trace": True}
    out = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd", draft=tiny.draft(), **many)
    for row in (0, 2):
        bonus = [[-1, int(out.steps[0].verdict.bonus[row])]]
        assert nodes(figures.draft_tree(out.steps[0], row))["bonus"] == bonus
    with pytest.raises(ValueError, match="row 1 had finished"):
        figures.draft_tree(out.steps[1], 1)
    with pytest.raises(ValueError, match=r"row must be 0\.\.2, got 3"):
        figures.draft_tree(out.steps[0], 3)


def test_draft_tree_of_each_rows_own_shape():
    for row, depth_of_the_other in ((0, 2), (1, 1)):
        named = {t.name.split(",")[0]: t for t in figures.draft_tree(ROUND, row).data if t.name}
        assert list(named["drafted"].x) == [depth_of_the_other]
        assert list(named["bonus token ◆ (from the target)"].x) == [2]
    assert [list(c) for c in named["accepted ✓"].customdata] == [[2, 10]]


@pytest.mark.parametrize("ks", [(), (1, 1, 1), (4, 2, 2), (6, 4)], ids=str)
def test_the_mask_is_the_trees(ks):
    tree = Tree.branching(*ks) if ks else Tree.chain(0)
    (heat,) = figures.tree_mask(tree.host[0]).data
    assert list(heat.x) == list(range(-1, tree.n))
    for i in range(tree.n):
        assert heat.z[i][0] == -1, "the committed text is seen by all"
        for j in range(tree.n):
            assert heat.z[i][j + 1] == (int(tree.depth[0, j]) if tree.mask[0, i, j] else None)
    assert heat.texttemplate == ("%{text}" if tree.n <= 16 else None)


def test_a_tree_with_its_values():
    parents, values = Tree.branching(2, 2).host[0], [1, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625]
    drawn = figures.value_tree(parents, values, list("abcdefg"))
    edges, points = drawn.data
    assert list(points.x) == [0, 1, 1, 2, 2, 2, 2]
    assert points.text[6] == "g <b>0.06</b>"
    sizes = points.marker.size
    assert sizes[0] > sizes[1] > sizes[2] == sizes[3]
    starts = [edges.x[i : i + 2] for i in range(0, len(edges.x), 3)]
    assert starts == [(0, 1)] * 2 + [(1, 2)] * 4
    assert "their values sum to 1.31" in drawn.layout.title.text
    assert figures.value_tree(Tree.branching(6, 6).host[0], [0.1] * 43).data[1].mode == "markers"
    with pytest.raises(ValueError, match="a tree of 7 nodes needs as many"):
        figures.value_tree(parents, values[:6])
    with pytest.raises(ValueError, match="node 0 must be the root"):
        figures.value_tree([0, 0], [1, 1])


def test_curves_begin_at_one_node():
    drawn = figures.designer([-1, 0], [1, 0.5], {3: 1.5, 1: 1.0, 2: 1.25}, 1.125)
    best, here = drawn.data[-2:]
    assert (list(best.x), list(best.y)) == ([1, 2, 3], [1.0, 1.25, 1.5])
    assert (list(here.x), list(here.y)) == ([2], [1.125])
    (line,) = figures.by_nodes({"a": [1, 2, None]}, "t", "tau").data
    assert (list(line.x), list(line.y)) == ([1, 2, 3], [1, 2, None])


def test_blocks_by_their_passes():
    speeds = {"1 pass": [1.0, 1.5], "2 passes": [1 + n / 8 for n in range(11)]}
    drawn = figures.block_designer(BLOCKS, speeds, "2 passes")
    (bars,) = (t for t in drawn.data if t.type == "bar")
    assert (list(bars.x), list(bars.y)) == ([1, 2, 3], [2, 4, 4])
    first, second, third = bars.marker.color  # two levels of the first pass, one of the second
    assert first == second != third
    one, _, here = drawn.data[-3:]
    assert (list(one.x), list(one.y)) == ([1, 2], [1.0, 1.5])
    assert (list(here.x), list(here.y)) == ([11], [2.25])
    by_name = {t.name: t for t in figures.block_tree(BLOCKS, "t").data}
    assert [len(by_name[f"pass {b}"].x) for b in (1, 2, 3)] == [6, 4, 0]
    assert len(by_name["a block begins below"].x) == 5
    with pytest.raises(ValueError, match="this tree has 9"):
        figures.block_tree(BlockTree(Tree.chain(9), 1), "")
    cells = figures.glancing([[True, False], [False, False]], 2, CURVES, (0.5, 0.5)).data[0]
    assert list(map(list, cells.text)) == [["glances", "sees"], ["", ""]]
    line, dots = figures.ratios({"a": [(0, 1.0), (1, 0.5)]}, {"a": [(0.5, 0.7, 0.01)]}, "t").data
    assert (list(line.y), list(dots.y), list(dots.error_y.array)) == ([1.0, 0.5], [0.7], [0.02])


def test_p_cut_at_lines():
    """Slice j of a column is between the lines; all of them together are p."""
    p, q = [F(1, 2), F(3, 10), F(1, 5), F(0)], [F(1, 10), F(1, 5), F(3, 10), F(2, 5)]
    drawn = figures.slices(p, q, exact.rrs_levels(p, q, 2))
    one, two, bonus, lines = drawn.data
    assert list(one.y) == [0.1, 0.2, 0.2, 0]
    assert list(two.y) == [0.05, 0.1, 0, 0]
    assert list(bonus.y) == [0.35, 0, 0, 0]
    assert list(lines.y) == [0.1, 0.2, 0.3, 0.4, 0.15, 0.3, 0.45, 0.6]
    assert drawn.layout.title.text == "p, cut at q, 3/2 q"


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


def test_a_lattice_and_the_lengths_drafted():
    words, chances = [["a", "b", "c"], ["d", "e", "f"]], [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]]
    target, costs = [(0, "a"), (None, "g")], {"x": (1, 2, "ae"), "y": (2, 2, "bd")}
    given = words, chances, target, [[0, 1], [1, 0]], costs
    drawn = figures.lattice(*given, stay=[2, 3], kept=1)
    cells, best, others, inside, outside, of_target, kept, lost, drafter, reader = drawn.data
    assert [[z for z in row if z is not None] for row in cells.z] == [[0.6, 0.5], [0.3, 0.4], [0.1]]
    assert [list(line.y) for line in (best, others)] == [[1, 2, None], [2, 1, None]]
    assert (sorted(inside.text), list(outside.text)) == (["a", "b", "d", "e", "f"], ["c"])
    assert [list(words.text) for words in (of_target, kept, lost)] == [["a", "g"], ["✓ a"], ["✗ e"]]
    assert (list(drafter.x), list(reader.x), list(reader.text)) == ([1, 2], [2, 2], ["ae", "bd"])
    frames = [(shape.x0 + shape.x1) / 2 for shape in drawn.layout.shapes]
    assert frames == pytest.approx([1, 1, 2])  # of the target's first token, and of the path
    searching = figures.lattice(*given).data
    assert (list(searching[6].text), list(searching[7].text)) == (["a", "e"], [])
    rounds = adl_trace([None, None, 3], [4, 1, 3], 2, 4, 1)
    bars, k, generated, a, b, grows = figures.adaptive(rounds, 2, 4).data
    assert (list(bars.y), list(k.y), list(generated.y)) == ([4, 1, 3], [4, 3, 3], [4, 3, 3])
    assert (list(a.y), list(b.y)) == ([2, 2.5, 2.75], [2, 1.5, 2.25])
    assert (list(grows.x), list(grows.y)) == ([1], [2])


def test_spans_and_groups_of_layers():
    drawn = easyspec.round_on_devices(SPANS, 2, "t")
    assert {t.name: (list(t.y), list(t.base), list(t.x)) for t in drawn.data if t.x} == {
        "attention": (["device 0"], [0], [1]),
        "mlp": (["device 1", "device 0"], [1, 2], [0.5, 0.75]),
        "verify": (["device 0"], [2.75], [2.25]),
    }
    assert [line.x0 for line in drawn.layout.shapes] == [2, 2.75]
    many, alone = easyspec.grouped({"n": [(0,), (1, 2)], "own": [(0, 1, 2)]}, "t").data
    assert (list(many.y), list(many.text)) == (["n", "own"], ["1 2", "0 1 2"])
    assert (list(alone.y), list(alone.text)) == (["n"], ["0"])
    drift = easyspec.cache_drift({"on": [0.0, 1e-16]}, {"keys": [0, 0.3]})
    on, keys = drift.data
    assert (list(on.x), list(on.y), list(keys.x)) == ([1, 2], [0, 1e-16], [0, 1])
    assert drift.layout.yaxis.rangemode == "tozero"  # whatever the smallest is


def test_slots_of_a_cache():
    cells, *_ = figures.cache_slots({"a": [[1, 0], [0, 2]]}, ["layer 1", "adapter"], [7, 8]).data
    assert cells.customdata[1][1] == "of another text, which is not kept"


def test_what_was_tried_stands_with_the_last_on_top():
    taus, speeds = {"a": (2.0, 1.5, 3.0), "b": (2.5, 2.0, 2.75)}, {"a": (1.25, 1.0, 1.5)}
    drawn = figures.tried(taus, speeds, "speedup")
    last, first, nothing, speed = drawn.data
    assert (list(last.y), list(last.x), list(first.y)) == (["b"], [2.5], ["a"])
    assert (last.error_x.arrayminus, last.error_x.array) == ((0.5,), (0.25,))
    assert (list(nothing.x), list(speed.x)) == ([None], [1.25])
    assert drawn.layout.yaxis.categoryarray == ("b", "a")


def test_a_method_has_one_look_in_every_figure():
    alone, among = looks(["eagle"]), looks(["pld", "x", "medusa", "eagle", "eagle:nodes=4", "y"])
    assert alone["eagle"] == among["eagle"]
    assert among["eagle:nodes=4"][0] == among["eagle"][0]
    assert list(among) == ["pld", "x", "medusa", "eagle", "eagle:nodes=4", "y"]
    assert len(set(among.values())) == 6
    many = looks(map(str, range(64)))
    assert len(set(many.values())) == 64
    assert many["0"] == palette.PALETTE[0]
    every = looks(specwb.METHODS)
    assert {name: looks([name])[name] for name in every} == every
