"""Several heads on one pass of the target: each becomes what it would alone."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from killed import card_of, weights
from safetensors.torch import save_file
from terminal import call

import specwb
from specwb.core.files import toml
from specwb.models import checkpoint
from specwb.models.checkpoint import HeadError
from specwb.models.kangaroo import load_kangaroo
from specwb.models.load import data_dir
from specwb.training import corpus, loop, run, together
from specwb.training.card import heads_card
from specwb.training.fit import TrainingError
from specwb.training.heads import RECIPES, measure
from specwb.training.run import Head, checked_settings, train_head, train_heads
from specwb.training.talks import fingerprint
from specwb.training.together import train_together

V = tiny.VOCABULARY
TEXT = [f"w{i}" for i in range(V)]
SIZE: dict[str, Any] = {"steps": 6, "rows": 4, "length": 32, "loss": "lk"}
HEADS: dict[str, dict[str, Any]] = {
    "medusa": {"heads": 2, "shared": 1, "vocabulary": 40},
    "eagle3": {"unroll": 2, "vocabulary": 40, "own_head": 0},
    "falcon": {"layers": 1},
    "draft": {"layers": 1, "vocabulary": 40},
}
MIXTURE = {"text": 1.0}


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load(tiny.build("llama", seed=2, num_hidden_layers=6))


@pytest.fixture(scope="module")
def data() -> corpus.Corpus:
    ids = np.random.default_rng(0).integers(0, V, 6000).astype(np.uint16)
    return corpus.Corpus({"text": ids}, {"text": ids[:1000]}, [], "some text")


def heads_in(folder: Path, kinds: Sequence[str], **changes: object) -> list[Head]:
    return [Head(kind, folder / kind, {**SIZE, **HEADS[kind], **changes}, kind) for kind in kinds]


def assert_equal(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for key, weight in first.items():
        assert torch.equal(weight, second[key]), key
    cards = [card_of(folder) for folder in (a, b)]
    for key in ("run", "progress", "held_out", "last_training_loss", "tokens", "name"):
        assert cards[0][key] == cards[1][key]


def passes_counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every pass of the target that training makes."""
    made, target_pass = [], loop.TargetPass

    def counted(*arguments):
        made.append(len(arguments[1]))
        return target_pass(*arguments)

    monkeypatch.setattr(loop, "TargetPass", counted)
    return made


@pytest.fixture(scope="module")
def alone(tmp_path_factory, target, data) -> Path:
    """The folder of heads that were trained one after another."""
    folder = tmp_path_factory.mktemp("alone")
    for head in heads_in(folder, list(HEADS)):
        train_head(head.kind, target, head.out, head.settings, data, MIXTURE, source="read")
    return folder


def test_each_is_bit_for_bit_what_it_is_alone(monkeypatch, tmp_path, target, data, alone):
    made = passes_counted(monkeypatch)
    wanted = heads_in(tmp_path, list(HEADS))
    folders = train_heads(wanted, target, data, MIXTURE, source="read")
    assert made == [4] * 6
    assert folders == [tmp_path / kind for kind in HEADS]
    for kind in HEADS:
        assert_equal(tmp_path / kind, alone / kind)


def test_parts_of_a_batch_have_a_pass_each(monkeypatch, tmp_path, target, data):
    kinds = ["medusa", "draft"]
    train_heads(heads_in(tmp_path / "a", kinds, accumulate=2), target, data, MIXTURE, source="read")
    made = passes_counted(monkeypatch)
    for head in heads_in(tmp_path / "b", kinds, accumulate=2):
        train_head(head.kind, target, head.out, head.settings, data, MIXTURE, source="read")
        assert_equal(tmp_path / "a" / head.kind, head.out)
    assert made == [2] * 24


def interrupt(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Ctrl-C in the loss that is computed at this call."""
    calls, step_loss = [], loop.step_loss

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return step_loss(*arguments)

    monkeypatch.setattr(loop, "step_loss", interrupted)


@pytest.mark.parametrize("call", [6, 7])
def test_a_head_that_was_stopped_a_step_behind_catches_up(
    monkeypatch, tmp_path, target, data, alone, call
):
    kinds = ["eagle3", "falcon"]
    with monkeypatch.context() as patch:
        interrupt(patch, call)
        with pytest.raises(KeyboardInterrupt):
            train_heads(heads_in(tmp_path, kinds), target, data, MIXTURE, source="read")
    done = [
        torch.load(tmp_path / f"{kind}.checkpoint.pt", weights_only=True)["step"] for kind in kinds
    ]
    assert done == [call // 2, (call - 1) // 2]
    assert not any((tmp_path / kind).exists() for kind in kinds)
    made = passes_counted(monkeypatch)
    train_heads(heads_in(tmp_path, kinds), target, data, MIXTURE, source="read")
    assert len(made) == 6 - done[1]
    for kind in kinds:
        assert_equal(tmp_path / kind, alone / kind)


@pytest.mark.parametrize("change", [{"rows": 8}, {"length": 40}, {"accumulate": 2}])
def test_heads_that_read_different_batches_are_refused(tmp_path, target, data, change):
    both = [*heads_in(tmp_path, ["medusa"]), *heads_in(tmp_path, ["draft"], **change)]
    with pytest.raises(TrainingError, match="trained together have the same rows, length"):
        train_heads(both, target, data, MIXTURE, source="read")
    assert list(tmp_path.iterdir()) == []


def test_heads_may_have_other_steps_though_they_then_read_other_text(tmp_path, target, data):
    """The target writes more of it for the longer run, here two blocks of it and one."""
    steps, size = {"medusa": 4, "draft": 20}, {"rows": 32, "length": 33}
    both, single = (
        [
            head
            for kind, n in steps.items()
            for head in heads_in(tmp_path / name, [kind], steps=n, **size)
        ]
        for name in ("both", "single")
    )
    more: dict[str, Any] = {"generated": tmp_path / "generated"}
    train_heads(both, target, data, MIXTURE, **more)
    assert len(list((tmp_path / "generated").rglob("*.npy"))) == 2
    for one, other in zip(both, single, strict=True):
        train_head(other.kind, target, other.out, other.settings, data, MIXTURE, **more)
        assert_equal(one.out, other.out)


# --------------------------------------------------------------------------------- recipes in files

RECIPE = """
[batch]
rows = 4
length = 32
steps = 3
lr = 0.002

[heads.medusa]
heads = 2

[heads.small]
kind = "draft"
layers = 1
vocabulary = 40
lr = 0.004
"""


@pytest.fixture
def home(tmp_path, target) -> Path:
    """A folder with a target, a text, and a recipe."""
    target.model.save_pretrained(tmp_path / "target")
    tiny.tokenizer(TEXT).save_pretrained(tmp_path / "target")
    words = np.random.default_rng(0).choice(TEXT, 4000)
    (tmp_path / "corpus.txt").write_text(" ".join(words))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def arguments(home: Path, *more: str) -> list[str]:
    named = {
        "target": home / "target",
        "corpus": home / "corpus.txt",
        "recipe": home / "recipe.toml",
        "out": home / "heads",
        "device": "cpu",
    }
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return ["train", "heads", *words, *more]


def test_the_command_trains_the_heads_of_a_file(monkeypatch, capsys, home):
    code, out, err = call(monkeypatch, capsys, *arguments(home))
    assert code == 0, err
    assert not out
    cards = {name: card_of(home / "heads" / name) for name in ("medusa", "small")}
    assert [card["name"] for card in cards.values()] == ["medusa", "small"]
    assert [card["steps"] for card in cards.values()] == [3, 3]
    assert (cards["medusa"]["heads"], cards["small"]["vocabulary"]) == (2, 40)
    assert [card["lr"] for card in cards.values()] == [0.002, 0.004]  # its own is before all heads'
    assert {card["text"] for card in cards.values()} == {"read"}
    readme = (home / "heads" / "README.md").read_text()
    for name, card in cards.items():
        (row,) = [line for line in readme.splitlines() if line.startswith(f"| {name} |")]
        assert f"{card['held_out']['text']['rank'][0][0]:.2f}" in row
        assert card["sha256"][:12] in row
    assert (home / "heads" / "recipe.toml").read_text() == (home / "recipe.toml").read_text()


def test_the_command_trains_some_of_them(monkeypatch, capsys, home):
    code, _, err = call(
        monkeypatch, capsys, *arguments(home, "--set", "only= small,small ", "--steps", "2")
    )
    assert code == 0, err
    assert sorted(path.name for path in (home / "heads").iterdir() if path.is_dir()) == ["small"]
    card = card_of(home / "heads" / "small")
    assert (card["steps"], card["layers"], card["exit"]) == (2, 1, 0)


def test_requests_of_earlier_texts_are_kept(monkeypatch, home):
    """Heads that were trained on another text still lie there."""
    monkeypatch.setattr(together, "train_heads", lambda *_, **__: [])
    nothing = corpus.Corpus({}, {}, [], "")
    monkeypatch.setattr(together, "training_text", lambda *_: (nothing, MIXTURE))
    named, path = specwb.load(home / "target"), home / "talks.jsonl"
    for request in ("One?", "Two?"):
        talk = [{"role": "user", "content": request}, {"role": "assistant", "content": "Three."}]
        path.write_text(json.dumps({"messages": talk}))
        train_together(named, home / "heads", path, home / "recipe.toml")
    seen = (home / "heads" / "requests.txt").read_text().split()
    assert seen == sorted(map(fingerprint, ["One?", "Two?"]))


BATCH = "[batch]\nrows = 4\nlength = 32\nsteps = 3\n"


@pytest.mark.parametrize(
    ("recipe", "only", "message"),
    [
        ("[heads.medusa]", [], "must have a table"),
        (BATCH, [], "must have a table"),
        (BATCH + "[heads]", [], "must have a table"),
        ("batch = 3\n[heads.medusa]", [], "must have a table"),
        ("heads = 3\n" + BATCH, [], "must have a table"),
        (BATCH + "[heads]\nmedusa = 3", [], "heads.medusa must be a table"),
        (BATCH + "[heads.mine]", [], "mine is of kind 'mine'; known are medusa, "),
        (BATCH + "[heads.mine]\nkind = ['draft']", [], "mine is of kind "),
        (BATCH + "[heads.medusa]", ["eagle"], "no head 'eagle'; it has medusa"),
        (BATCH + "[heads.medusa]\nunroll = 2", [], "medusa has no setting 'unroll'"),
        ("[batch]\nrows = 4\nlength = 32\n[heads.medusa]", [], "steps must be given"),
        (BATCH + "[heads.medusa]\nloss = 'lk'\nheads = 40", [], "too short, medusa needs"),
        (BATCH + "[heads.medusa]\n[heads.draft]\nrows = 8", [], "the same rows, length"),
        ("[batch", [], "recipe.toml"),
        ("stroe = 'int8'\n" + BATCH + "[heads.medusa]", [], "unknown key 'stroe'"),
        ("store = 'int4'\n" + BATCH + "[heads.medusa]", [], "must be fp16 or int8"),
        (BATCH + "[heads.'../evil']\nkind = 'medusa'", [], "called by letters"),
    ],
)
def test_bad_recipes_are_one_line(home, target, recipe, only, message):
    (home / "recipe.toml").write_text(recipe)
    named = specwb.load(home / "target")
    with pytest.raises(TrainingError) as caught:
        train_together(named, home / "heads", home / "corpus.txt", home / "recipe.toml", only)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (home / "heads").exists()


def test_a_recipe_that_is_not_there_is_said(home):
    with pytest.raises(TrainingError, match=r"none\.toml"):
        train_together("lab", home / "heads", home / "corpus.txt", home / "none.toml")


def test_the_shipped_recipe_can_be_trained(target):
    content = toml(data_dir() / "smol" / "recipe.toml", TrainingError)[0]
    batches = set()
    for name, own in content["heads"].items():
        kind = own.pop("kind", name)
        assert kind in RECIPES
        checked = checked_settings(kind, {**content["batch"], **own}, target, "read")
        batches.add(checked.batch)
    assert len(batches) == 1


def test_matrices_in_int8_are_what_was_measured(tmp_path, target, data, monkeypatch):
    monkeypatch.setattr(checkpoint, "SMALL", 256)
    wanted = heads_in(tmp_path, ["eagle3", "draft"], steps=2)
    train_heads(wanted, target, data, MIXTURE, source="read", store="int8")
    for kind in ("eagle3", "draft"):
        folder = tmp_path / kind
        stored, card = weights(folder), card_of(folder)
        matrices = [key for key, weight in stored.items() if weight.dtype == torch.int8]
        assert len(matrices) >= 7
        assert all(stored[key].abs().amax() == 127 for key in matrices)
        assert card["store"] == "int8"
        assert len(card["before_rounding"]) == len(card["held_out"]["text"]["rank"])
        with checkpoint.opened(folder, target) as found:
            read = found.weights
        assert read.keys() == {key for key in stored if not key.endswith(checkpoint.SCALE)}
        for key in matrices:
            expected = stored[key].float() * stored[key + checkpoint.SCALE]
            assert torch.equal(read[key], expected)
    head = load_kangaroo(tmp_path / "draft", target)
    recipe = RECIPES["draft"](target, checked_settings("draft", wanted[1].settings, target).head)
    windows = torch.from_numpy(data.windows("text", 8, SIZE["length"])[:, :-1])
    assert measure(recipe, head, windows) == card["held_out"]["text"]


def test_what_a_card_says_of_before_the_rounding(tmp_path, target, data, monkeypatch):
    """Of the whole target, which is hardly trained, and rounded to nothing."""

    def to_nothing(head):
        for weight in head.parameters():
            weight.data.zero_()

    monkeypatch.setattr(run, "round_to_int8", to_nothing)
    whole = {"steps": 2, "layers": 6, "lr": 1e-6, "lr_matrix": 1e-6}
    (wanted,) = heads_in(tmp_path, ["draft"], **whole)
    train_heads([wanted], target, data, MIXTURE, source="read", store="int8")
    card = card_of(wanted.out)
    assert card["before_rounding"] == card["progress"][-1][1]
    assert card["before_rounding"][0] > card["held_out"]["text"]["rank"][0][0] + 0.1


def test_rounding_to_int8_keeps_small_and_zero_rows():
    layer = torch.nn.Linear(128, 160)
    with torch.no_grad():
        layer.weight[0] = 0
        layer.weight[1] *= 1e-6
    before = layer.weight.detach().clone()
    checkpoint.round_to_int8(layer)
    assert not layer.weight[0].any()
    step = before.abs().amax(1, keepdim=True) / 127
    assert ((layer.weight - before).abs() <= 0.51 * step).all()
    once = layer.weight.detach().clone()
    checkpoint.round_to_int8(layer)
    torch.testing.assert_close(layer.weight.detach(), once, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"weight" + checkpoint.SCALE: torch.ones(3, 1)}, "belongs to no integers"),
        ({"weight": torch.ones(3, 4, dtype=torch.int8)}, "has no scale"),
    ],
)
def test_integers_and_scales_come_together(tmp_path, target, stored, message):
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match=message), checkpoint.opened(tmp_path, target):
        pass


def test_a_head_that_is_stored_otherwise_is_not_this_one(tmp_path, target, data):
    wanted = heads_in(tmp_path, ["draft"], steps=2)
    train_heads(wanted, target, data, MIXTURE, source="read")
    with pytest.raises(TrainingError, match="holds what another run made"):
        train_heads(wanted, target, data, MIXTURE, source="read", store="int8")


@pytest.mark.parametrize("heads", [1, 2])
def test_one_head_keeps_the_pass_of_one_part_only(target, heads):
    passes = loop.Passes(target)
    passes.heads = heads
    made = [weakref.ref(passes.over(0, part, torch.full((1, 8), part))) for part in range(3)]
    gc.collect()
    assert [ref() is not None for ref in made] == [heads == 2, heads == 2, True]


def test_what_an_interrupt_came_before_is_measured_on_resume(tmp_path, target, data, monkeypatch):
    whole = heads_in(tmp_path / "whole", ["draft"])
    train_heads(whole, target, data, MIXTURE, source="read")
    measured = loop.Learner.acceptance

    def interrupted(self):
        monkeypatch.setattr(loop.Learner, "acceptance", measured)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Learner, "acceptance", interrupted)
    broken = heads_in(tmp_path / "broken", ["draft"])
    with pytest.raises(KeyboardInterrupt):
        train_heads(broken, target, data, MIXTURE, source="read")
    train_heads(broken, target, data, MIXTURE, source="read")
    assert_equal(tmp_path / "whole" / "draft", tmp_path / "broken" / "draft")


def test_the_numbers_of_a_card(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "model.safetensors").write_bytes(bytes(2_500_000))
    held_out = {"rank": [[0.5, 0.125], [0.25, 0.0]], "sampled": [0.75, 0.625]}
    card = {"parameters": 1234, "steps": 3, "tokens": 384, "sha256": "0123456789abcdef"}
    card |= {"held_out": {"text": held_out}}
    (tmp_path / "small" / "card.json").write_text(json.dumps(card))
    sources = [
        {"source": "talks", "held_out": False, "documents": 3, "tokens": 70, "counted": 40},
        {"source": "talks", "held_out": True, "documents": 1, "tokens": 20},
    ]
    rows = heads_card(tmp_path, ["small"], "lab", sources).splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows if row.startswith(("| small", "| talks"))]
    numbers = ["1,234", "2.5 MB fp16", "3", "384", "0.50 0.25", "0.75 0.62", "0123456789ab"]
    assert cells[0] == ["small", *numbers]
    assert [row[-3:] for row in cells[1:]] == [["3", "70", "40"], ["1", "20", "20"]]
