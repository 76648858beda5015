"""The drawings that lessons and papers' notebooks begin with: their parts lie inside them, and
their numbers are computed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from specwb.show.course import Drawing, scenes
from specwb.show.course.architectures import DRAWINGS, architecture

SCENES = [scenes.chain_and_tree, scenes.five_drafters, scenes.two_orders, *DRAWINGS.values()]


NAMESPACE = "{http://www.w3.org/2000/svg}"


def inside(drawing: Drawing) -> ET.Element:
    """Check that no box and no line of text begins or ends outside; return the SVG."""
    root, ns = ET.fromstring(drawing.svg), NAMESPACE
    for box in root.findall(f"{ns}rect"):
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= drawing.width
        assert 0 <= y <= y + height <= drawing.height
    for word in root.findall(f"{ns}text"):
        assert float(word.get("y")) <= drawing.height, word.text
        if word.get("text-anchor") == "start":  # about 0.6 of a letter's height is its width
            reach = float(word.get("x")) + 0.58 * float(word.get("font-size")) * len(word.text)
            assert reach <= drawing.width + 8, word.text
    assert root.find(f"{ns}title").text == drawing.title
    assert root.find(f"{ns}desc").text == drawing.desc
    assert repr(drawing) == f"{drawing.title}: {drawing.desc}"
    return root


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_everything_lies_inside(scene):
    assert len(inside(scene()).findall(f"{NAMESPACE}rect")) > 5


def test_what_each_shape_accepts_is_what_is_said():
    svg = scenes.chain_and_tree().svg
    assert svg.count("✓ ") == 1 + 3 + 1  # in the chain, in the tree, in the key
    assert "a chain: 1 accepted" in svg
    assert "a tree: 3 accepted" in svg


def test_an_order_of_runs_decides_what_is_measured():
    assert "one after the other, ratio of medians: 2.08x" in scenes.two_orders().desc.lower()
    assert "in turn, median of ratios: 1.30x" in scenes.two_orders().desc
    calm = scenes.two_orders(speedup=1.5, load=1.0).desc  # nothing to disturb either
    assert calm.count("1.50x") == 2


def test_a_drawing_that_is_not_there():
    with pytest.raises(ValueError, match=r"there is a drawing of mcsd, .*; got 'other'"):
        architecture("other")
