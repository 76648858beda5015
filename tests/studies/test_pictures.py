"""The papers' figures, drawn again: published points and ours are those of the files."""

from __future__ import annotations

import json

import pytest
from terminal import call

from specwb.studies import PLACES, study_of
from specwb.studies.curves import Curve, Picture, Point, over, series
from specwb.studies.kangaroo.cells import chain
from specwb.studies.ledger import entries
from specwb.studies.pictures import draw, picture_of
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
    picture = Picture("t", "eta", lambda document: [tau, speed], "read off a plot, ±0.01")
    figure = draw(picture, DOCUMENT)
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert set(drawn) == {"paper, gamma 6", "here, gamma 6"}
    assert [trace.line.dash for trace in figure.data] == ["dash", "solid"] * 2
    assert "read off a plot, ±0.01" in figure.layout.title.subtitle.text
    png = picture_of(picture, DOCUMENT)
    assert png[:4] == b"\x89PNG"
    assert picture_of(picture, DOCUMENT) == png  # the same results are the same picture
    assert b"<svg" in picture_of(picture, DOCUMENT, "svg")


def test_values_that_are_no_cells_figure():
    ratio = Point(1, None, ours=over(CELLS[0].key, CELLS[1].key, "tau"))
    assert series(Curve("p", "n", "", (ratio,)), DOCUMENT)[1] == [[1], [2.5 / 1.5]]
    lacking = Point(1, None, ours=over(CELLS[0].key, "T=0 sps", "tau"))
    assert series(Curve("p", "n", "", (lacking,)), DOCUMENT)[1] == [[], []]


def test_bars_of_paper_and_here_stand_side_by_side():
    points = (Point("one", 2.0, CELLS[0]), Point("two", 1.0, CELLS[1]))
    picture = Picture("t", "", lambda _: [Curve("p", "n", "tau", points)], "sure", bars=True)
    paper, here = draw(picture, DOCUMENT).data
    assert (list(paper.y), list(here.y)) == ([2.0, 1.0], [2.5, 1.5])
    assert (paper.marker.pattern.shape, here.marker.pattern.shape) == ("/", "")
    assert picture_of(picture, DOCUMENT)[:4] == b"\x89PNG"


UNKNOWN = {"kangaroo": {"density"}, "mcsd": {"candidates", "trees"}}
"""Figures of which no published value is known."""


@pytest.mark.parametrize("name", PLACES)
def test_every_figure_has_the_papers_points_and_ours(name):
    study = study_of(name)
    document = study.report(*shipped(study))
    assert study.figures
    for key, picture in study.figures.items():
        curves = list(picture.curves(document))
        drawn = [series(curve, document) for curve in curves]
        assert any(theirs[0] for theirs, _ in drawn) == (key not in UNKNOWN.get(name, ())), key
        assert any(ours[0] for _, ours in drawn), key
        assert len(draw(picture, document).data) == sum(
            bool(xs) for both in drawn for xs, _ in both
        )
        names = {(curve.panel, curve.name) for curve in curves}
        assert len(names) == len(curves), f"two curves of one name: {key}"
        assert picture.sure in picture.note


def test_every_drawn_value_of_a_paper_is_in_its_file():
    """Or it is one over another, or the mean of some, which are counted here."""
    derived = {"mcsd_ti": 200, "falcon": 60, "diffuspec": 10, "kangaroo": 10}
    for name in PLACES:
        study = study_of(name)
        document = study.report(*shipped(study))
        known = {round(entry.value, 6) for entry in entries(name) if entry.value is not None}
        known |= {x for x in published(name).get("constants", {}).values() if isinstance(x, float)}
        other = [
            p.paper
            for picture in study.figures.values()
            for curve in picture.curves(document)
            for p in curve.points
            if p.paper is not None and round(p.paper, 6) not in known
        ]
        assert len(other) <= derived.get(name, 1), (name, len(other))


def test_the_points_of_kangaroos_figure_are_the_papers():
    curves = {(c.panel, c.name): c for c in study_of("kangaroo").figures["eta"].curves({})}
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
    assert (tmp_path / "build/reproduce/mcsd_ti-width.png").exists()
    one = ("reproduce", "mcsd_ti", "--figure", "width", "--out", "w.svg")
    code, out, err = call(monkeypatch, capsys, *one)
    assert (code, out.strip()) == (0, "w.svg, from the shipped results")
    assert "<svg" in (tmp_path / "w.svg").read_text()
    # results that are named are what is drawn
    own, _ = shipped(study_of("mcsd_ti"))
    (tmp_path / "mine.json").write_text(json.dumps(own))
    one = ("reproduce", "mcsd_ti", "--figure", "width", "--out", "mine.json")
    code, out, err = call(monkeypatch, capsys, *one)
    assert (code, out.split()[:3]) == (0, ["mine-width.html,", "from", "mine.json"])
    (tmp_path / "broken.json").write_text("{")
    for paper, figure, file in (
        ("mcsd_ti", "width", "broken.json"),
        ("kangaroo", "eta", "mine.json"),
    ):
        one = ("reproduce", paper, "--figure", figure, "--out", file)
        code, out, err = call(monkeypatch, capsys, *one)
        assert (code, out) == (2, "")
        assert f"--out: {file} holds no results of {paper}" in err
    code, out, err = call(monkeypatch, capsys, "reproduce", "kangaroo", "--figure", "nope")
    assert (code, out) == (2, "")
    assert "kangaroo has no figure 'nope'; it has: eta, depth" in err
    for bad in (("width", "w.gif"), ("all", "w.png")):
        one = ("reproduce", "mcsd_ti", "--figure", bad[0], "--out", bad[1])
        code, _, err = call(monkeypatch, capsys, *one)
        assert code == 2
        assert "--out with --figure must be" in err
