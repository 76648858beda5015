"""The script that trains the heads of a recipe, one after another or side by side."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

RECIPE = """
[batch]
rows = 2
length = 16
steps = 3

[heads.one]
kind = "eagle"
unroll = 1

[heads.medusa]
heads = 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [None, 0.5])
def test_heads_of_a_recipe_are_trained(tmp_path, seconds):
    talks = tmp_path / "talks.jsonl"
    lines = [
        {"text": f"Words of number {i}, and a few more of them behind it. " * 4} for i in range(40)
    ]
    talks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe, out = tmp_path / "recipe.toml", tmp_path / "heads"
    recipe.write_text(RECIPE)
    command = [sys.executable, "-m", "scripts.train_heads", talks, "--target", "lab", "--out", out]
    command += ["--recipe", recipe, "--device", "cpu"]
    if seconds:
        command += ["--seconds", str(seconds)]
    subprocess.run([str(word) for word in command], check=True)
    cards = {name: json.loads((out / name / "card.json").read_text()) for name in ("one", "medusa")}
    assert (cards["one"]["name"], cards["medusa"]["heads"]) == ("eagle", 2)
    for card in cards.values():
        if seconds is None:
            assert card["steps"] == 3
        else:
            assert 0 < card["steps"] * card["step_seconds"] < 20 * seconds
    assert (out / "requests.txt").read_text() == ""
