"""What can be set of a training: the recipes that come along, files of one's own, and mistakes."""

from __future__ import annotations

import math

import pytest
import tiny

from specwb.core.options import MethodError
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES
from specwb.training.optim import Plan
from specwb.training.run import checked_settings
from specwb.training.settings import TRAINING, parse, published, read_recipe, split

SIZES = {"steps": 100, "rows": 2, "length": 48}


@pytest.mark.parametrize("name", published())
def test_a_published_recipe_can_be_followed(name):
    recipe = read_recipe(name, None)
    own = RECIPES[recipe.kind].options
    assert read_recipe(name, recipe.kind, own) == recipe
    assert recipe.source
    settings = split(recipe.kind, {**SIZES, **recipe.settings}, own)
    assert settings.plan.optimiser == "adamw"
    assert {**settings.flat, **recipe.settings} == settings.flat


def test_a_recipe_of_the_users(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('kind = "eagle"\n[settings]\nunroll = 2\nlr = 1e-4\n')
    recipe = read_recipe(str(path), "eagle", RECIPES["eagle"].options)
    assert (recipe.name, recipe.settings) == ("mine", {"unroll": 2, "lr": 1e-4})
    for content, message in (
        ('kind = "eagle"\n[settings]\nlambda = 2\n', "eagle has no setting 'lambda'"),
        ('kind = "eagle"\nlr = 2\n[settings]\n', "unknown key 'lr'"),
        ('kind = "medusa"\n[settings]\n', "trains medusa, not eagle"),
        ('kind = "eagle"\n', "must have kind"),
        ("kind = eagle", "is no TOML"),
    ):
        path.write_text(content)
        with pytest.raises(TrainingError, match=message):
            read_recipe(str(path), "eagle", RECIPES["eagle"].options)
    with pytest.raises(TrainingError, match=r"unknown recipe 'eagel'; known: eagle, "):
        read_recipe("eagel", "eagle")
    with pytest.raises(TrainingError, match="No such file"):
        read_recipe(str(tmp_path / "none.toml"), "eagle")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimiser=sgd", "optimiser must be muon or adamw, got 'sgd'"),
        ("lr=2", r"lr must be a number in \[0, 1\], got 2"),
        ("schedule=step", "schedule must be one of hold, linear, cosine, constant"),
        ("save_seconds=1", "eagle has no setting 'save_seconds'"),
    ],
)
def test_a_setting_that_cannot_be(text, message):
    own = RECIPES["eagle"].options

    def read() -> None:
        split("eagle", {**SIZES, **parse("eagle", text, own)}, own)

    with pytest.raises((TrainingError, MethodError), match=message):
        read()


def test_warm_up_is_short_in_short_runs():
    target = tiny.target()
    warmups = [
        checked_settings("eagle", {**SIZES, "steps": n}, target).plan.warmup for n in (5, 100, 900)
    ]
    assert warmups == [1, 10, 50]
    assert checked_settings("eagle", {**SIZES, "warmup": 7}, target).plan.warmup == 7
    assert set(TRAINING) >= {"steps", "rows", "length", "loss", "lr", "accumulate"}


def test_schedules():
    half = {"steps": 100, "warmup": 0, "end": 0.1}
    shapes = {name: Plan(**half, schedule=name, cooldown=0.5) for name in SCHEDULES}
    for name, (middle, late) in SCHEDULES.items():
        assert shapes[name].scale(0) == pytest.approx(1.0)
        assert shapes[name].scale(50) == pytest.approx(middle), name
        assert shapes[name].scale(75) == pytest.approx(late), name
    rising = Plan(100, warmup=10, schedule="constant")
    assert [rising.scale(i) for i in (0, 4, 9, 99)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    # after the warm-up a linear schedule falls over what is left
    assert Plan(100, warmup=20, schedule="linear", end=0.0).scale(60) == pytest.approx(0.5)


SCHEDULES = {
    "hold": (1.0, 0.55),
    "linear": (0.55, 0.325),
    "cosine": (0.55, 0.1 + 0.9 * (1 - math.cos(math.pi / 4)) / 2),
    "constant": (1.0, 1.0),
}
