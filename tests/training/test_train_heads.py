"""The script that trains the heads of a recipe, one after another or side by side."""

from __future__ import annotations

import json
import sys

import pytest
import tiny

from scripts import train_heads

RECIPE = """
[batch]
rows = 2
length = 16
steps = STEPS

[heads.one]
kind = "eagle"
unroll = 1

[heads.medusa]
heads = 2
"""


@pytest.mark.slow
def test_heads_of_a_recipe_are_trained(tmp_path, monkeypatch):
    talks, target = tmp_path / "talks.jsonl", tmp_path / "target"
    tiny.target().model.save_pretrained(target)
    tiny.tokenizer().save_pretrained(target)
    lines = [{"text": " ".join(tiny.WORDS[i : i + 40])} for i in range(40)]
    talks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe, out = tmp_path / "recipe.toml", tmp_path / "heads"
    recipe.write_text(RECIPE.replace("STEPS", "100000"))
    command = ["train_heads", talks, "--target", target, "--out", out, "--recipe", recipe]
    command += ["--device", "cpu", "--seconds", 0.3]
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    made = []
    for _ in range(2):  # the second time nothing is left to do
        train_heads.main()
        made.append([(out / name / "card.json").read_bytes() for name in ("one", "medusa")])
    assert made[0] == made[1]
    cards = {name: json.loads((out / name / "card.json").read_text()) for name in ("one", "medusa")}
    assert (cards["one"]["name"], cards["medusa"]["heads"]) == ("eagle", 2)
    assert all(0 < card["steps"] < 10_000 for card in cards.values())
    assert (out / "requests.txt").read_text() == ""


def test_what_cannot_be_trained_is_refused_by_name(tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("STEPS", "3"))
    for more, said in (
        (["eagel"], "has no head 'eagel'; it has one, medusa"),
        (["--seconds", "0"], "--seconds must be above 0, got 0"),
    ):
        command = ["train_heads", "talks.jsonl", *more, "--recipe", str(recipe)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            train_heads.main()
        assert end.value.code == 2
        assert said in capsys.readouterr().err
