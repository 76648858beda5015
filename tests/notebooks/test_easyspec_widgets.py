"""The views of layers side by side show cosines, timelines and the cost model as the library has
them."""

from __future__ import annotations

import pytest
import tiny
from drawn import numbers, shown
from explorers import TIMES, deep, windows

import specwb
from specwb.analysis import layer_parallel as parallel
from specwb.evaluation.fuzzy import KINDS, similarity
from specwb.figures import easyspec as figures
from specwb.models.fuzzy import GroupError, grouping
from specwb.widgets.easyspec import DevicesExplorer, FuzzyExplorer, StageExplorer


def test_cosines_are_the_librarys():
    view = FuzzyExplorer(deep(), windows(), n=3)
    assert "groups 0 1-2 3 4, R = 4 of 5" in view.summary
    for n, first, last, whole in (
        (2, True, True, False),
        (4, False, False, False),
        (3, True, False, True),
        (1, True, True, False),
    ):
        view.n.value, view.first.value, view.last.value, view.whole.value = n, first, last, whole
        groups = grouping(5, n, first, last)
        direct = similarity(deep(), windows(), groups, whole)
        assert (view.groups, view.found) == (groups, direct)
        drawn = shown(view)
        assert [trace["name"] for trace in drawn["data"]] == list(KINDS)
        for trace, values in zip(drawn["data"], direct.values(), strict=True):
            assert trace["y"] == pytest.approx(values, abs=1e-4)
            assert trace["x"] == [0, 1, 2, 3, 4]
        bands = [(band["x0"], band["x1"]) for band in drawn["layout"].get("shapes", [])]
        assert bands == [(g[0] - 0.4, g[-1] + 0.4) for g in groups if len(g) > 1]
        assert numbers(view)[-len(KINDS) :] == [f"{min(direct[kind]):.3f}" for kind in KINDS]
        assert ("MLPs" in view.summary) == whole
    assert min(min(values) for values in view.found.values()) == pytest.approx(
        1
    )  # n = 1 is the model
    assert view.n.max == 4
    with pytest.raises(GroupError, match="stand alone"):
        FuzzyExplorer(specwb.load(tiny.build("llama", num_hidden_layers=2)), windows())


def busy(drawn: dict, kind: str) -> float:
    return sum(next(trace["x"] for trace in drawn["data"] if trace["name"] == kind))


def test_a_round_on_devices_takes_what_the_closed_form_says():
    view = DevicesExplorer(TIMES, 8)
    for n, width, devices, exchange, calibrate in (
        (4, 1, 4, 0.0, True),
        (3, 4, 2, 0.05, True),
        (4, 1, 1, 0.5, True),
        (1, 1, 8, 0.0, True),
        (6, 4, 3, 0.1, False),
    ):
        view.n.value, view.width.value, view.devices.value = n, width, devices
        view.exchange.value, view.calibrate.value = exchange, calibrate
        at, groups, alone = TIMES[width], grouping(8, n), [(i,) for i in range(8)]
        a, m, head = at["attention"], at["mlp"], at["head"]
        fuzzy, exact = (
            parallel.step_time(g, a, m, exchange, devices, head) for g in (groups, alone)
        )
        assert view.drafting == pytest.approx(4 * fuzzy + (exact if calibrate else fuzzy))
        assert view.plain == pytest.approx(5 * (8 * (a + m) + head))
        # a shorter exchange than the limit is a gain, a longer one is not
        assert (view.drafting < view.plain - 1e-9) == (
            (exchange if devices > 1 else 0) < view.limit - 1e-12
        )
        drawn = shown(view)
        assert [trace["name"] for trace in drawn["data"]] == list(figures.KINDS)
        assert busy(drawn, "attention") == pytest.approx(
            5 * 8 * a
        )  # each once a step, wherever it runs
        assert busy(drawn, "mlp") == pytest.approx(5 * 8 * m * devices)
        assert busy(drawn, "verify") == pytest.approx(at["verify"] * devices)
        collectives = 4 * len(groups) + (8 if calibrate else len(groups))
        assert busy(drawn, "exchange") == pytest.approx(
            collectives * exchange * devices if devices > 1 else 0
        )
        assert [note["text"] for note in drawn["layout"]["annotations"]] == [
            *(f"step {i}" for i in range(1, 6)),
            f"verify, {at['verify']:.1f} ms",
        ]
        speedup = view.plain / view.drafting
        times = [f"{x:.2f}" for x in (view.drafting, view.plain, speedup)]
        assert numbers(view)[:7] == [*map(str, (n, width, devices)), f"{exchange:g}", *times]
        assert (
            ("no exchange is short enough" in view.summary)
            == (view.limit == 0)
            == (n == 1 or devices == 1)
        )


def test_the_busy_share_is_of_all_devices():
    """8 layers, groups 0 1-3 4-6 7, on 4 devices: an exact step takes 8 x 0.75 + 0.125 ms and four
    fuzzy ones 4 x 0.5 + 8 x 0.25 + 0.125 ms each, 22.625 together. 40 attentions run once, 40 MLPs
    and 5 heads on every device: 20 + 40 + 2.5 of 4 x 22.625 ms."""
    view = DevicesExplorer(TIMES, 8, n=4, devices=4)
    assert view.drafting == pytest.approx(22.625)
    assert numbers(view)[7] == "69"
    view.devices.value = 1
    assert numbers(view)[7] == "100"


def test_the_cost_model_and_the_papers_numbers():
    view = StageExplorer({"here": (0.6, 1.3)})
    share = view.implied
    assert share == pytest.approx(parallel.implied_share(1.62, 5, 10, 32))
    view.share.value = share
    assert view.stage == pytest.approx(1.62, abs=0.01)  # of a slider in hundredths
    chosen, here = shown(view)["data"][2:4]
    assert (here["x"], here["y"], chosen["x"], chosen["y"]) == (
        [0.6],
        [1.3],
        [round(share, 2)],
        [round(view.stage, 4)],
    )
    for layers, n, depth, share, wanted, calibrate in (
        (24, 3, 4, 0.25, 3.0, True),
        (8, 7, 8, 0.9, 2.5, False),
        (40, 1, 5, 0.5, 4.17, True),
    ):
        view.layers.value, view.n.value, view.depth.value = layers, n, depth
        view.share.value, view.wanted.value, view.calibrate.value = share, wanted, calibrate
        rounds = len(grouping(layers, n))
        assert view.ratio == parallel.fuzzy_ratio(share, rounds, layers)
        assert view.stage == parallel.stage_speedup(view.ratio, depth, calibrate)
        # at the dearest price everything that is drafted is needed
        assert parallel.needed_tokens(wanted, depth, view.dearest / view.stage) == pytest.approx(
            depth + 1
        )
        data = shown(view)["data"]
        at = list(data[0]["x"]).index(share) if share in data[0]["x"] else None
        for trace, way in zip(data[:2], (True, False), strict=True):
            for i in {0, 50, at} - {None}:
                direct = parallel.stage_speedup(
                    parallel.fuzzy_ratio(trace["x"][i], rounds, layers), depth, way
                )
                assert trace["y"][i] == pytest.approx(direct, abs=1e-4)
        plain, grouped = data[-2:]
        assert plain["y"][10] == pytest.approx(wanted * (depth * 0.1 + 1), abs=1e-3)
        assert grouped["y"][10] == pytest.approx(wanted * (depth * 0.1 / view.stage + 1), abs=1e-3)
        figures_said = [f"{x:.2f}" for x in (share, view.ratio, view.stage)]
        assert numbers(view)[:7] == [*map(str, (layers, n, rounds, depth)), *figures_said]
    assert view.implied is None  # n = 1
    view.wanted.value = 7.5
    assert view.dearest == 0
    with pytest.raises(ValueError, match="three points"):
        StageExplorer({str(i): (0.1, 1.0) for i in range(4)})
    with pytest.raises(ValueError, match="nothing to choose width from"):
        DevicesExplorer({}, 8)
