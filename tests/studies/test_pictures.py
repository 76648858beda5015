"""The papers' figures, drawn again: published points and ours are those of the files."""

from __future__ import annotations

import json

import pytest
from plotly.graph_objects import Figure
from terminal import call, refused

from specwb.lab.studies import PLACES, study_of
from specwb.lab.studies.curves import Curve, Picture, Point, in_domain, over, series
from specwb.lab.studies.grid import Cell
from specwb.lab.studies.kangaroo.cells import chain
from specwb.lab.studies.run import shipped
from specwb.lab.studies.study import published
from specwb.show.figures.kit import read_off
from specwb.show.ledger import entries
from specwb.show.pictures import draw, picture_of

CELLS = [chain(eta) for eta in (0, 0.5)]
DOCUMENT = {
    "rows": [{"cell": CELLS[0].key, "tau": 2.5, "tau_error": 0.5, "prompts": 2, "speedup": None}],
    "ablation": {"rows": [{"cell": CELLS[1].key, "tau": 1.5, "speedup": 1.1}]},
    "cells": {
        CELLS[0].key: {"accepted": [[1, 1], [2, 2]]},
        CELLS[1].key: {"accepted": [[0, 1], [0, 1], [9, 9]]},  # a prompt that the other lacks
    },
    "domains": ["code", "math", "math"],
}
T1 = 12.7062
"""Of Student's distribution of one degree of freedom, the 97.5 % quantile."""


def test_what_is_drawn_by_hand():
    points = (Point(0, 2.3, CELLS[0]), Point(0.5, None, CELLS[1]), Point(0.9, 1.8, chain(0.9)))
    tau, speed = (Curve("p", "gamma 6", what, points) for what in ("tau", "speedup"))
    theirs, ours = series(tau, DOCUMENT)
    assert theirs == ([0, 0.9], [2.3, 1.8], [None, None], [None, None])
    assert (ours.x, ours.y) == ([0, 0.5], [2.5, 1.5])
    assert ours.low == [pytest.approx(2.5 - T1 / 2, abs=1e-4), None]
    assert ours.ends()[1] == [pytest.approx(2.5 + T1 / 2, abs=1e-4), 1.5]
    # what was not measured is left out
    assert series(speed, DOCUMENT)[1] == ([0.5], [1.1], [None], [None])
    picture = Picture("t", "eta", lambda document: [tau, speed], "read off a plot, ±0.01")
    figure = draw(picture, DOCUMENT)
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert set(drawn) == {"paper, gamma 6", "here, gamma 6"}
    assert [trace.line.dash for trace in figure.data] == ["dash", "solid"] * 2
    assert [trace.error_y.array for trace in figure.data[::2]] == [None, None]  # the paper's
    assert list(figure.data[1].error_y.array) == pytest.approx([T1 / 2, 0], abs=1e-3)
    assert "read off a plot, ±0.01" in figure.layout.title.subtitle.text
    png = picture_of(picture, DOCUMENT)
    assert png[:4] == b"\x89PNG"
    assert picture_of(picture, DOCUMENT) == png  # the same results are the same picture
    assert b"<svg" in picture_of(picture, DOCUMENT, "svg")


def test_values_that_are_no_cells_figure():
    def drawn(ours):
        return series(Curve("p", "n", "", (Point(1, None, ours=ours),)), DOCUMENT)[1]

    # of two prompts that both have: 2, 3 over 1.5, 1.5, whose ratio varies as 4/3 and 2 do
    x, y, low, high = drawn(over(*CELLS, "tau"))
    assert (x, y) == ([1], [pytest.approx(2.5 / 1.5)])
    assert low == [pytest.approx((2.5 - T1 / 2) / 1.5, abs=1e-4)]
    assert high == [pytest.approx((2.5 + T1 / 2) / 1.5, abs=1e-4)]
    assert drawn(over(CELLS[0], Cell("sps"), "tau")) == ([], [], [], [])
    assert drawn(in_domain(CELLS[1], "tau", "math")).y == [pytest.approx((1.5 + 10) / 2)]
    assert drawn(in_domain(CELLS[1], "tau", "code")) == ([1], [1.5], [None], [None])
    assert drawn(in_domain(CELLS[1], "tau")).y == [pytest.approx(13 / 3)]
    assert drawn(in_domain(CELLS[1], "tau", "prose")).y == []


def test_bars_of_paper_and_here_stand_side_by_side():
    points = (Point("one", 2.0, CELLS[0]), Point("two", 1.0, CELLS[1]))
    picture = Picture("t", "", lambda _: [Curve("p", "n", "tau", points)], "sure", bars=True)
    paper, here = draw(picture, DOCUMENT).data
    assert (list(paper.y), list(here.y)) == ([2.0, 1.0], [2.5, 1.5])
    assert (paper.marker.pattern.shape, here.marker.pattern.shape) == ("/", "")
    assert picture_of(picture, DOCUMENT)[:4] == b"\x89PNG"


UNKNOWN = {"kangaroo": {"density"}, "mcsd": {"candidates", "trees"}}
"""Figures of which no published value is known."""


@pytest.fixture(scope="module", params=PLACES)
def results(request):
    """A study, and its shipped results."""
    study = study_of(request.param)
    return study, study.report(*shipped(study))


@pytest.fixture(scope="module")
def drawn(results):
    """Its figures as they are drawn."""
    study, document = results
    return {key: draw(picture, document) for key, picture in study.figures.items()}


def test_a_curve_that_is_drawn_otherwise_changes_the_line_of_text(drawn):
    """nbval compares this line in every notebook that shows the figure."""
    for key, figure in drawn.items():
        line = read_off(figure)
        assert "\n" not in line
        for index, trace in enumerate(figure.data):
            other = Figure(figure)
            other.data[index].y = [1.05 * y for y in trace.y]
            assert read_off(other) != line, (key, trace.name)


# what is measured once, or is a mean over layers, has no interval over prompts
ALONE = {("mcsd_ti", "judged"), ("easyspec", "cosines")}


def test_what_is_measured_here_has_its_interval(results, drawn):
    study, document = results
    for key, picture in study.figures.items():
        for curve in picture.curves(document):
            ours = series(curve, document)[1]
            known = [end is not None for end in (*ours.low, *ours.high)]
            assert all(known) == ((study.name, key) not in ALONE) or not known, (key, curve.name)
            pairs = zip(*ours.ends(), ours.y, strict=True)
            assert all(low <= y <= high for low, high, y in pairs), (key, curve.name)
        whiskers = [t.error_y.array for t in drawn[key].data if t.name.startswith("here")]
        assert all(w is not None for w in whiskers) == ((study.name, key) not in ALONE), key
        assert not any(t.error_y.array for t in drawn[key].data if t.name.startswith("paper"))


def test_every_figure_has_the_papers_points_and_ours(results, drawn):
    study, document = results
    name = study.name
    assert study.figures
    for key, picture in study.figures.items():
        curves = list(picture.curves(document))
        points = [series(curve, document) for curve in curves]
        assert any(theirs.x for theirs, _ in points) == (key not in UNKNOWN.get(name, ())), key
        assert any(ours.x for _, ours in points), key
        assert len(drawn[key].data) == sum(bool(one.x) for both in points for one in both)
        names = {(curve.panel, curve.name) for curve in curves}
        assert len(names) == len(curves), f"two curves of one name: {key}"
        assert picture.sure in picture.note


def test_every_drawn_value_of_a_paper_is_in_its_file(results):
    """Or it is one over another, or the mean of some, which are counted here."""
    study, document = results
    derived = {"mcsd_ti": 200, "falcon": 16, "diffuspec": 10, "kangaroo": 10, "easyspec": 18}
    known = {round(entry.value, 6) for entry in entries(study.name) if entry.value is not None}
    constants = published(study.name).get("constants", {}).values()
    known |= {x for x in constants if isinstance(x, float)}
    other = [
        p.paper
        for picture in study.figures.values()
        for curve in picture.curves(document)
        for p in curve.points
        if p.paper is not None and round(p.paper, 6) not in known
    ]
    assert len(other) <= derived.get(study.name, 1), len(other)


@pytest.mark.slow
def test_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, "reproduce", "mcsd_ti", "--figure", "width")
    assert (code, err) == (0, "")
    assert "build/reproduce/mcsd_ti-width.html, from the shipped results of lab" in out
    page = (tmp_path / "build/reproduce/mcsd_ti-width.html").read_text()
    assert "decision model" in page
    assert (tmp_path / "build/reproduce/mcsd_ti-width.png").exists()
    one = ("reproduce", "mcsd_ti", "--figure", "width", "--out", "w.svg")
    code, out, err = call(monkeypatch, capsys, *one)
    assert (code, out.strip()) == (0, "w.svg, from the shipped results of lab")
    assert "<svg" in (tmp_path / "w.svg").read_text()
    # results that are named are what is drawn
    own, _ = shipped(study_of("mcsd_ti"))
    (tmp_path / "mine.json").write_text(json.dumps(own))
    one = ("reproduce", "mcsd_ti", "--figure", "width", "--out", "mine.json")
    code, out, err = call(monkeypatch, capsys, *one)
    assert (code, out.split()[:3]) == (0, ["mine-width.html,", "from", "mine.json"])
    (tmp_path / "broken.json").write_text("{")
    for paper, figure, file, wrong in (
        ("mcsd_ti", "width", "broken.json", "broken.json is there and not a file of results"),
        ("kangaroo", "eta", "mine.json", "mine.json holds no results of kangaroo"),
    ):
        one = ("reproduce", paper, "--figure", figure, "--out", file)
        assert wrong in refused(monkeypatch, capsys, *one)
    err = refused(monkeypatch, capsys, "reproduce", "kangaroo", "--figure", "nope")
    assert "kangaroo has no figure 'nope'; it has: eta, depth" in err
    for bad in (("width", "w.gif"), ("all", "w.png")):
        one = ("reproduce", "mcsd_ti", "--figure", bad[0], "--out", bad[1])
        assert "--out with --figure must be" in refused(monkeypatch, capsys, *one)
