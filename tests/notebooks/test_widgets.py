"""Figures show the library's numbers, and explorers too."""

from __future__ import annotations

import gzip
import json
import types

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.flow import Draft, Step, Verdict

pd = pytest.importorskip("pandas")
pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

import ipywidgets  # noqa: E402
import plotly.graph_objects as go  # noqa: E402
from drawn import picture, shown  # noqa: E402
from plotly.offline import get_plotlyjs  # noqa: E402

from specwb import analysis, figures, widgets  # noqa: E402
from specwb.figures import style  # noqa: E402
from specwb.figures.style import label, visible  # noqa: E402
from specwb.widgets import (  # noqa: E402
    AcceptanceExplorer,
    RootsExplorer,
    RulesExplorer,
    SpeedExplorer,
    display,
    live,
    show,
)
from specwb.widgets.acceptance import shaped  # noqa: E402
from specwb.widgets.figure import LiveFigure, _asked  # noqa: E402

PROMPT = [1, 2, 3]


def decoded(method="mcsd", temperature=1.0, prompt=PROMPT, **options) -> specwb.Output:
    return specwb.decode(
        tiny.target(),
        prompt,
        method,
        draft=tiny.draft(),
        max_new_tokens=24,
        temperature=temperature,
        seed=3,
        trace=True,
        **options,
    )


def nodes(figure: go.Figure) -> dict[str, list[list[int]]]:
    """customdata of the node traces by name."""
    return {
        t.name.split(" ")[0].rstrip(","): [list(c) for c in t.customdata]
        for t in figure.data
        if t.name
    }


# ---------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("method", "options"), [("mcsd", {}), ("mcsd", {"draw": "with"}), ("sps", {"gamma": 5})]
)
def test_draft_tree_shows_the_round(method, options, temperature):
    for step in decoded(method, temperature, **options).steps:
        figure = figures.draft_tree(step)
        shown = nodes(figure)
        accepted = int(step.verdict.accepted[0])
        path = step.verdict.path[0, 1 : accepted + 1].tolist()
        tokens = step.draft.tokens[0].tolist()
        assert sorted(n for n, _ in shown["accepted"]) == sorted(path)
        assert shown["bonus"] == [[-1, int(step.verdict.bonus[0])]]
        assert shown["pending"] == [[0, tokens[0]]]
        valid = step.draft.valid[0].tolist()
        assert {n for n, _ in shown["drafted"]} == {
            n for n in range(1, step.draft.tree.n) if valid[n]
        } - set(path)
        assert all(
            tokens[n] == token for name in ("accepted", "drafted") for n, token in shown[name]
        )
        assert f"{accepted} accepted" in figure.layout.title.text
        assert len(figure.layout.annotations) == sum(map(len, shown.values()))
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


def test_colour_never_stands_alone():
    figure = figures.draft_tree(decoded().steps[0])
    named = [t for t in figure.data if t.name]
    assert len({t.marker.symbol for t in named}) == len(named)
    assert len({t.line.dash for t in figure.data if not t.name}) == 3
    p, q, _ = figures.decisions(specwb.explain(decoded().steps[0])).data
    assert q.marker.pattern.shape
    assert not p.marker.pattern.shape


def test_draft_tree_of_a_row_in_a_batch():
    out = specwb.decode(
        tiny.target(),
        tiny.PROMPTS,
        "mcsd",
        draft=tiny.draft(),
        max_new_tokens=[20, 1, 20],
        temperature=1.0,
        seed=[1, 2, 3],
        trace=True,
    )
    for row in (0, 2):
        assert nodes(figures.draft_tree(out.steps[0], row))["bonus"] == [
            [-1, int(out.steps[0].verdict.bonus[row])]
        ]
    with pytest.raises(ValueError, match="row 1 had finished"):
        figures.draft_tree(out.steps[1], 1)
    with pytest.raises(ValueError, match=r"row must be 0\.\.2, got 3"):
        figures.draft_tree(out.steps[0], 3)


def test_draft_tree_of_each_rows_own_shape():
    """A chain, of which one token is kept, and two siblings, of which the second is."""
    tree = specwb.Tree([[-1, 0, 1], [-1, 0, 0]])
    tokens = torch.tensor([[5, 6, 7], [8, 9, 10]])
    draft = Draft(tree, tokens, torch.ones(2, 3, dtype=torch.bool), specwb.Scheme.POINT)
    verdict = Verdict(torch.tensor([[0, 1, 1], [0, 2, 2]]), torch.tensor([1, 1]), tokens[:, 0])
    step = Step(0, torch.tensor([4, 4]), draft, verdict, None, None, None, None)
    for row, depth_of_the_other in ((0, 2), (1, 1)):
        named = {t.name.split(",")[0]: t for t in figures.draft_tree(step, row).data if t.name}
        assert list(named["drafted"].x) == [depth_of_the_other]
        assert list(named["bonus token ◆ (from the target)"].x) == [2]
    assert [list(c) for c in named["accepted ✓"].customdata] == [[2, 10]]


def test_draft_tree_of_plain_decoding_is_its_bonus_token():
    out = specwb.decode(tiny.target(), PROMPT, "ar", max_new_tokens=3, trace=True)
    shown = nodes(figures.draft_tree(out.steps[0]))
    assert (shown["accepted"], shown["drafted"]) == ([], [])
    assert shown["bonus"] == [[-1, out.tokens[0][0]]]
    assert figures.decisions(specwb.explain(out.steps[0])).layout.title.text == "Nothing was tested"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decisions_shows_every_test(temperature):
    for step in decoded(temperature=temperature).steps:
        told = specwb.explain(step)
        tests = [
            (level.depth, t)
            for level in told.levels
            for t in level.tests
            if t.decision != "invalid"
        ]
        p, q, mark = figures.decisions(told).data
        assert list(p.y) == [t.p for _, t in tests]
        assert list(q.y) == [t.q for _, t in tests]
        assert [list(c) for c in p.customdata] == [[d, t.token, t.decision] for d, t in tests]
        for value, (_, t) in zip(mark.y, tests, strict=True):
            if temperature and t.candidate == 0:
                assert value == t.u * t.q
                assert (value < t.p) == (t.decision == "accepted")
            else:
                assert value is None


def test_no_threshold_where_the_rule_does_not_compare_with_it():
    step = decoded("mcsd:rule=point").steps[0]
    assert set(figures.decisions(specwb.explain(step)).data[2].y) == {None}


def test_tokens_per_round_counts_all_rounds():
    out = specwb.decode(tiny.target(), tiny.PROMPTS, "sps", draft=tiny.draft(), max_new_tokens=24)
    bars, line = figures.tokens_per_round(out).data
    assert sum(bars.y) == sum(out.step_counts)
    assert sum(n * k for n, k in zip(bars.x, bars.y, strict=True)) == sum(map(len, out.tokens))
    assert set(line.x) == {out.mean_tokens_per_step}
    assert line.line.dash == "dash"


def test_comparison_shows_the_table():
    frame = pd.DataFrame(
        {
            "method": ["ar", "sps", "loose", "hf_greedy"],
            "lossless": [True, True, False, True],
            "tau": [1.0, 2.5, 3.0, 1.0],
            "tokens_per_second": [10.0, 20.0, 30.0, 9.0],
            "speedup": [1.0, 2.0, 3.0, 0.9],
            "speedup_low": [1.0, 1.5, 2.5, 0.8],
            "speedup_high": [1.0, 2.25, 4.0, 0.95],
        }
    )
    (bars,) = figures.comparison(frame).data
    assert list(bars.x) == list(frame.speedup)
    assert list(bars.y) == ["ar", "sps", "loose (LOSSY)", "hf_greedy"]
    assert list(bars.error_x.array) == pytest.approx([0, 0.25, 1.0, 0.05])
    assert list(bars.error_x.arrayminus) == pytest.approx([0, 0.5, 0.5, 0.1])
    with pytest.raises(ValueError, match="no column tau"):
        figures.comparison(frame.drop(columns="tau"))


def test_comparison_of_a_real_run():
    frame = specwb.compare(
        tiny.target(),
        tiny.PROMPTS,
        ["ar", "sps"],
        draft=tiny.draft(),
        max_new_tokens=8,
        library=False,
    )
    drawn = figures.comparison(frame)
    (bars,) = drawn.data
    assert list(bars.y) == ["ar", "sps", "hf_greedy"]
    assert (
        drawn.layout.title.text == f"Speedup over {frame.attrs['reference']['method']} (dashed: 1)"
    )
    assert list(bars.x) == list(frame.speedup)


def test_labels_show_white_space_and_never_markup():
    assert visible(" a\n<b>") == "␣a⏎&lt;b&gt;"
    assert label(None, 17) == "17"
    assert label(tiny.tokenizer(["<i>", "x"]), 0) == "&lt;i&gt;"


def test_no_room_is_kept_for_a_legend_that_is_not_there():
    one, two = {"x": ([0, 1], [1, 2])}, {"x": ([0, 1], [1, 2]), "y": ([0, 1], [2, 1])}
    tops = [style.lines(points, "t", "y", "x").layout.margin.t for points in (one, two)]
    assert tops == [60, 100]


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
        assert contrast(style.INK, page) > 4
        seen = (style.TARGET, style.ACCEPTED, style.REJECTED, style.RESIDUAL, style.OTHER)
        for colour in (*seen, style.EDGE):
            assert contrast(colour, page) > 2.5
        assert all(contrast(colour, page) > 2 for colour, _, _ in style.PALETTE)


def test_no_figure_brings_a_background():
    layout = figures.tokens_per_round(decoded()).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == style.CLEAR
    assert layout.font.color == style.INK
    assert layout.template.layout.yaxis.gridcolor == style.GRID


# --------------------------------------------------------------------------- figures that change


def test_a_figure_is_what_the_page_gets():
    first, second = go.Figure(go.Scatter(y=[1, 2])), go.Figure(go.Bar(y=np.array([2.0, 1.0])))
    first.add_hline(1, annotation_text="one")
    live = LiveFigure(first)
    assert live.figure is first
    assert json.loads(live.source.value) == {**picture(first), "config": style.CONFIG}
    live.figure = second  # of the one before nothing is left
    assert live.figure is second
    assert json.loads(live.source.value) == {**picture(second), "config": style.CONFIG}
    assert live.get_state()["source"] == f"IPY_MODEL_{live.source.model_id}"


def test_figures_do_not_bring_their_library():
    """Until a page asks for it, once; then it comes packed, whole."""
    state = LiveFigure(go.Figure(go.Scatter(y=[1, 2]))).get_state()
    assert len(json.dumps(state)) < 10_000
    sent = []
    source = types.SimpleNamespace(send=lambda content, buffers: sent.append((content, buffers)))
    _asked(source, {"kind": "another"}, [])
    assert sent == []
    _asked(source, {"kind": "plotly"}, [])
    ((content, (packed,)),) = sent
    assert content == {"kind": "plotly"}
    assert gzip.decompress(packed).decode() == get_plotlyjs()


def test_explorers_are_as_wide_as_their_cell():
    for name in set(widgets.__all__) - {"show", "Microscope"}:  # which looks at its width itself
        assert issubclass(getattr(widgets, name), live.Panel), name
    for one in (SpeedExplorer(), RulesExplorer()):
        assert one.layout.width == "100%"
        drawn = [child for child in one.children if isinstance(child, LiveFigure)]
        assert drawn
        assert all(child.layout.width == "100%" for child in drawn)
        assert all(child.figure.layout.width is None for child in drawn)


def test_a_look_at_other_settings_leaves_the_explorer_where_it_was():
    one = SpeedExplorer(alpha=0.6, c=0.2, gamma=2)
    first, drawn = one.summary, shown(one)
    with one.at(alpha=0.8, gamma=5) as moved:
        assert moved is one
        assert one.summary.startswith("alpha 0.80, c 0.20, v(5)")
        assert shown(one) != drawn
    assert (one.summary, shown(one)) == (first, drawn)
    with pytest.raises(RuntimeError, match="stop"), one.at(c=0.5):
        raise RuntimeError("stop")
    assert one.summary == first
    with pytest.raises(AttributeError), one.at(beta=1):
        pass
    several = RootsExplorer()
    first = several.summary
    with several.at(roots=3, rates=[0.5] * 4):
        assert "rates 0.50 0.50 0.50 0.50" in several.summary
    assert several.summary == first
    with pytest.raises(ValueError, match="shorter"), several.at(rates=[0.5]):
        pass


# ------------------------------------------------------------------------------------------- show


def published(monkeypatch, thing, summary) -> dict:
    sent = []
    monkeypatch.setattr(widgets.display, "display", lambda data, raw: sent.append((data, raw)))
    show(thing, summary)
    ((data, raw),) = sent
    assert raw
    return data


def test_show_publishes_picture_and_line(monkeypatch):
    out = decoded()
    figure = figures.tokens_per_round(out)
    data = published(monkeypatch, figure, "tau = 2")
    assert data["text/plain"] == "tau = 2"
    assert json.loads(json.dumps(data["application/vnd.plotly.v1+json"]))["data"][0]["y"] == list(
        figure.data[0].y
    )
    for widget in (ipywidgets.IntSlider(), LiveFigure(figure)):
        data = published(monkeypatch, widget, "a slider")
        assert data["text/plain"] == "a slider"
        assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id


def test_what_a_png_is_drawn_from_goes_along_where_it_is_asked_for(monkeypatch):
    one = SpeedExplorer(v=lambda gamma: 1.0)
    assert display.STILL not in published(monkeypatch, one, "a line")
    monkeypatch.setenv("SPECWB_STILLS", "1")
    data = published(monkeypatch, one, "a line")
    controls, line, drawn = json.loads(json.dumps(data[display.STILL]))
    settings = [["alpha", "0.70"], ["c", "0.10"], ["gamma", "4"], ["scoring costs", "as measured"]]
    assert controls == {"controls": settings}
    assert line == {"html": one.children[1].value}
    assert drawn == {"figure": shown(one)}
    figure = figures.tokens_per_round(decoded())
    (part,) = published(monkeypatch, figure, "a figure")[display.STILL]
    assert part == {"figure": json.loads(figure.to_json())}


def test_settings_are_written_as_the_controls_show_them():
    written = [
        (ipywidgets.Checkbox(True, description="a"), "yes"),
        (ipywidgets.Dropdown(options=[("one", 1), ("two", 2)], value=2, description="a"), "two"),
        (ipywidgets.SelectionSlider(options=[1, 4], value=4, description="a"), "4"),
        (ipywidgets.IntSlider(7, description="a"), "7"),
        (ipywidgets.FloatSlider(0.5, readout_format=".3f", description="a"), "0.500"),
    ]
    for control, words in written:
        assert display.still(control) == [{"controls": [["a", words]]}]
    assert display.still(ipywidgets.VBox([ipywidgets.HTML()])) == []


def test_show_refuses_what_it_cannot_show():
    with pytest.raises(specwb.ArgumentError, match="figure or an ipywidgets widget, got int"):
        show(3, "three")
    for line in ("", "  ", "two\nlines", None):
        with pytest.raises(ValueError, match="one line of text"):
            show(ipywidgets.IntSlider(), line)


def test_outputs_stay_small():
    step = decoded().steps[0]
    for figure in (
        figures.draft_tree(step),
        figures.decisions(specwb.explain(step)),
        figures.tokens_per_round(decoded()),
    ):
        assert len(figure.to_json()) < 20_000


# -------------------------------------------------------------------- acceptance and speed, drawn


def test_acceptance_figure_adds_up():
    p, q, counts = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [5, 3, 2]
    figure = figures.acceptance(p, q, counts)
    accepted, residual, rejected, output, drawn = figure.data
    assert [a + b for a, b in zip(accepted.y, residual.y)] == pytest.approx(p)
    assert [a + b for a, b in zip(accepted.y, rejected.y)] == pytest.approx(q)
    assert list(output.y) == pytest.approx(p)
    assert list(drawn.y) == [0.5, 0.3, 0.2]
    assert figure.layout.barmode == "stack"
    assert "accepted 0.700" in figure.layout.title.text
    # colour never stands alone
    assert len({bar.marker.pattern.shape or "" for bar in (accepted, residual, rejected)}) == 3
    assert output.marker.symbol != drawn.marker.symbol
    assert set(figures.acceptance(p, q).data[4].y) == {None}
    for bad in ({"counts": [1]}, {"labels": ["a"]}):
        with pytest.raises(ValueError, match="p has 3 tokens"):
            figures.acceptance(p, q, **bad)
    with pytest.raises(ValueError, match="same tokens"):
        figures.acceptance(p, [1.0])


def test_speedup_figure():
    figure = figures.speedup({"one": [1, 2, 3], "two": [1, 1.5]}, {2: 2.5}, gamma=1)
    one, two, ring, points = figure.data
    assert (list(one.x), list(one.y)) == ([0, 1, 2], [1, 2, 3])
    assert (list(ring.x), list(ring.y)) == ([1], [2])
    assert (list(points.x), list(points.y)) == ([2], [2.5])
    assert one.line.dash != two.line.dash
    assert len({t.marker.symbol for t in figure.data}) == 4
    assert not figures.speedup({"one": [1]}).data[-1].x
    with pytest.raises(ValueError, match="between one and 3 curves"):
        figures.speedup({})
    with pytest.raises(ValueError, match=r"gamma must be 0\.\.2"):
        figures.speedup({"one": [1, 2, 3]}, gamma=3)


@pytest.mark.parametrize(
    ("control", "value"),
    [
        ("temperature", 0.2),
        ("temperature", 5.0),
        ("shift", -5.0),
        ("shift", 0.0),
        ("sharpness", 0.2),
        ("sharpness", 5.0),
    ],
)
def test_acceptance_explorer_shows_the_librarys_numbers(control, value):
    explorer = AcceptanceExplorer(draws=500, seed=3)
    settings = {"temperature": 1.0, "shift": 1.0, "sharpness": 1.0, control: value}
    before = shown(explorer)
    getattr(explorer, control).value = value
    p, q = shaped(**settings)
    counts, accepted = analysis.simulate(p, q, 500, 3)
    assert shown(explorer) == picture(figures.acceptance(p, q, counts.tolist())) != before
    assert (
        f"acceptance 1 - TV = {analysis.acceptance_rate(p, q):.3f}; {accepted / 500:.3f} of 500 "
        "draws accepted" in explorer.summary
    )
    assert f"of the output off p by at most {abs(counts / 500 - p).max():.3f}" in explorer.summary
    assert explorer.summary in explorer.children[1].value


def test_shaped_distributions():
    p, q = shaped(1.0, 0.0, 1.0)
    assert p.tolist() == q.tolist()
    assert p.sum() == pytest.approx(1)
    assert p.argmax() == 6
    assert shaped(1.0, 3.0, 1.0)[1].argmax() == 9
    for temperature in (0.5, 2.0):  # it is the draft's too
        p, q = shaped(temperature, 0.0, 1.0)
        assert p.tolist() == q.tolist()
    p, q = shaped(1.0, 0.0, 1.0)
    assert shaped(1.0, 0.0, 4.0)[1].max() > p.max() > shaped(2.0, 0.0, 1.0)[0].max()
    for temperature, sharpness in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="temperature and sharpness must be > 0"):
            shaped(temperature, 1.0, sharpness)


def test_speed_explorer_shows_the_librarys_numbers():
    measured = {1: 1.1, 4: 1.3}

    def v(gamma: int) -> float:
        return 1 + 0.1 * gamma

    explorer = SpeedExplorer(alpha=0.6, c=0.2, gamma=2, most=8, v=v, measured=measured)
    explorer.alpha.value, explorer.c.value, explorer.gamma.value = 0.8, 0.05, 6
    for scoring, cost in (
        (explorer.scoring.options[0], v),
        (explorer.scoring.options[1], lambda g: 1),
    ):
        explorer.scoring.value = scoring
        curve = [analysis.speedup(0.8, g, 0.05, cost(g)) for g in range(9)]
        assert shown(explorer) == picture(figures.speedup({"predicted": curve}, measured, 6))
        best = analysis.best_gamma(0.8, 0.05, cost, 8)
        assert explorer.summary == (
            f"alpha 0.80, c 0.05, v(6) = {cost(6):.2f}: gamma 6 adds "
            f"{analysis.expected_tokens(0.8, 6):.2f} tokens a round, "
            f"speedup {curve[6]:.2f}x; best is gamma {best} with {curve[best]:.2f}x"
        )
        assert explorer.summary in explorer.children[1].value
    alone = SpeedExplorer(alpha=0.6559, c=0.1286)
    assert (alone.alpha.value, alone.c.value) == (0.66, 0.13)
    assert len(alone.scoring.options) == 1
    assert "v(4) = 1.00" in alone.summary
    for control in (alone.alpha, alone.c, alone.gamma, alone.scoring):
        assert control.description
    alone.alpha.value, alone.c.value = 0.0, 1.0
    assert "best is gamma 0 with 1.00x" in alone.summary
