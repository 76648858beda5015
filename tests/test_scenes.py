"""The drawings that lessons 4, 5 and 7 begin with: whole SVGs whose parts lie inside them, and
whose numbers are computed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from specwb.course import scenes

SCENES = [scenes.chain_and_tree, scenes.five_drafters, scenes.two_orders]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_everything_lies_inside(scene):
    drawing = scene()
    root = ET.fromstring(drawing.svg)
    ns = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{ns}rect")
    assert len(boxes) > 10
    for box in boxes:
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + width <= drawing.width
        assert y + height <= drawing.height
    for word in root.findall(f"{ns}text"):
        if word.get("text-anchor") == "start":  # about 0.6 of a letter's height is its width
            reach = float(word.get("x")) + 0.58 * float(word.get("font-size")) * len(word.text)
            assert reach <= drawing.width, word.text
    assert repr(drawing) == f"{drawing.title}: {drawing.desc}"


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
