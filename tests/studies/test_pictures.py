"""The papers' figures, drawn again: published points and ours are those of the files."""

from __future__ import annotations

import pytest
from terminal import call

from specwb.studies import PLACES, study_of
from specwb.studies.kangaroo.cells import chain
from specwb.studies.pictures import Curve, Picture, Point, draw, series
from specwb.studies.run import shipped
from specwb.studies.study import published

CELLS = [chain(eta) for eta in (0, 0.5)]
DOCUMENT = {
    "rows": [{"cell": CELLS[0].key, "tau": 2.5, "speedup": None}],
    "ablation": {"rows": [{"cell": CELLS[1].key, "tau": 1.5, "speedup": 1.1}]},
}


def test_what_is_drawn_by_hand():
    points = (Point(0, 2.3, CELLS[0]), Point(0.5, None, CELLS[1]), Point(0.9, 1.8, chain(0.9)))
    tau, speed = (Curve("p", "gamma 6", what, points) for what in ("tau", "speedup"))
    assert series(tau, DOCUMENT) == ([[0, 0.9], [2.3, 1.8]], [[0, 0.5], [2.5, 1.5]])
    assert series(speed, DOCUMENT)[1] == [[0.5], [1.1]]  # what was not measured is left out
    figure = draw(Picture("t", "eta", lambda: [tau, speed]), DOCUMENT)
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert set(drawn) == {"paper, gamma 6", "here, gamma 6"}
    assert [trace.line.dash for trace in figure.data] == ["dash", "solid"] * 2


@pytest.mark.parametrize("name", PLACES)
def test_every_figure_has_the_papers_points_and_ours(name):
    study = study_of(name)
    own, ablation = shipped(study)
    document = {**own, "ablation": ablation}
    for key, picture in study.figures.items():
        curves = list(picture.curves())
        drawn = [series(curve, document) for curve in curves]
        assert any(theirs[0] for theirs, _ in drawn), key
        assert any(ours[0] for _, ours in drawn), key
        assert len(draw(picture, document).data) == sum(
            bool(xs) for both in drawn for xs, _ in both
        )


def test_the_points_of_kangaroos_figure_are_the_papers():
    curves = {(c.panel, c.name): c for c in study_of("kangaroo").figures["eta"].curves()}
    known = published("kangaroo")["figures"]["eta"]["rows"]
    drawn = {
        (p.x, name, panel): p.paper
        for (panel, name), curve in curves.items()
        for p in curve.points
        if p.paper is not None
    }
    assert len(drawn) == 2 * len(known)
    for r in known:
        assert drawn[r["eta"], f"gamma {r['gamma']}", "CR"] == r["cr"]
        assert drawn[r["eta"], f"gamma {r['gamma']}", "speedup"] == r["speedup"]


def test_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, "reproduce", "mcsd_ti", "--figure", "width")
    assert (code, err) == (0, "")
    assert "build/reproduce/mcsd_ti-width.html, from the shipped results" in out
    page = (tmp_path / "build/reproduce/mcsd_ti-width.html").read_text()
    assert "decision model" in page
    code, out, err = call(monkeypatch, capsys, "reproduce", "kangaroo", "--figure", "nope")
    assert (code, out) == (2, "")
    assert "kangaroo has no figure 'nope'; it has: eta, depth" in err
