"""Heads learn what decoding accepts, training can stop at any moment, bad input is refused."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from accelerate import PartialState
from killed import card_of, trained
from ranked import free_port
from terminal import call

import specwb
from specwb.models.backbone import Stack
from specwb.models.eagle import EagleHead, load_eagle
from specwb.models.falcon import load_falcon
from specwb.models.kangaroo import load_kangaroo
from specwb.models.medusa import load_medusa
from specwb.models.place import Place
from specwb.training import corpus, fit, reading
from specwb.training.fit import TrainingError
from specwb.training.generate import PROMPT
from specwb.training.heads import RECIPES, measure, target_outputs
from specwb.training.recipe import Moment, TargetOutputs
from specwb.training.run import Learner, train_for
from specwb.training.settings import Batch

V, LAYERS = tiny.VOCABULARY, 6
# the others read none of the target's states and have tests of their own
KINDS = tuple(kind for kind in RECIPES if kind not in ("diffusion", "decision", "deep", "path"))
CPU = torch.device("cpu")
SMALL = {"medusa": "heads=2", "eagle": "unroll=2", "eagle3": "unroll=2,vocabulary=40"}


def write_target(root: Path, model) -> Path:
    """Writes ``target``, and ``corpus.txt``, which the target wrote."""
    model.save_pretrained(root / "target")
    tiny.tokenizer().save_pretrained(root / "target")
    prompts = torch.randint(V, (64, 1), generator=torch.Generator().manual_seed(0)).tolist()
    target, settings = specwb.load(root / "target"), {"max_new_tokens": 64, "temperature": 0.7}
    texts = specwb.decode(target, prompts, "ar", eos=(), **settings).tokens
    (root / "corpus.txt").write_text(" ".join(tiny.WORDS[i] for row in texts for i in row))
    return root


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Returns the folder of a random target, made sharper than such models are."""
    model = tiny.build("llama", seed=2, num_hidden_layers=LAYERS)
    with torch.no_grad():
        model.model.norm.weight.mul_(4)
    return write_target(tmp_path_factory.mktemp("random"), model)


@pytest.fixture(scope="module")
def counting(tmp_path_factory) -> Path:
    """Returns the folder of a target that counts: after token x comes x + 1, most of the time.

    What comes later can be learnt from the last token.
    """
    model = tiny.build("llama", seed=2, num_hidden_layers=LAYERS)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(model.model.embed_tokens.weight.roll(1, 0))
    return write_target(tmp_path_factory.mktemp("counting"), model)


@pytest.fixture(scope="module")
def target(home) -> specwb.Target:
    return specwb.load(home / "target")


@pytest.fixture(scope="module")
def data(home, target) -> corpus.Corpus:
    return reading.from_file(home / "corpus.txt", target.tokenizer)


@pytest.fixture
def train(home, tmp_path):
    def run(kind, out, steps=6, rows=4, length=32, options=None, **more) -> Path:
        root = more.pop("root", home)
        settings = {
            "corpus": root / "corpus.txt",
            "generated": root / "generated",
            "device": "cpu",
            "seed": 3,
            **more,
        }
        changes = {"steps": steps, "rows": rows, "length": length}
        options = SMALL[kind] if options is None else options
        target, out = str(root / "target"), tmp_path / out
        return train_for(kind, target, out, "smoke", changes, options, **settings)

    return run


# ------------------------------------------------------------------------------- what training does


@pytest.mark.parametrize(("kind", "source"), [("eagle", "generated"), ("medusa", "read")])
def test_a_head_learns_what_is_accepted(train, counting, monkeypatch, tmp_path, kind, source):
    # its rows of a vocabulary have far to go in few steps
    monkeypatch.setattr(RECIPES["medusa"], "training", {"lr": 2e-2, "cooldown": 0.5})
    target = specwb.load(counting / "target")
    data = reading.from_file(counting / "corpus.txt", target.tokenizer)
    out = train(kind, "head", steps=60, rows=8, source=source, root=counting)
    card = card_of(out)
    losses = torch.load(tmp_path / "head.checkpoint.pt", weights_only=True)["history"]
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    load = load_medusa if kind == "medusa" else load_eagle
    head = load(out, target)
    recipe = RECIPES[kind](target, {"heads": 2, "unroll": 2})
    torch.manual_seed(3)
    windows = torch.from_numpy(data.windows("text", 8, 32)[0][:, :-1])
    before = measure(recipe, recipe.make(recipe.frequent(data, {"text": 1.0})), windows)
    after = card["held_out"]["text"]
    for depth in range(2):  # both were trained
        assert after["sampled"][depth] > before["sampled"][depth] + 0.03, (before, after)
        assert after["rank"][depth][0] > before["rank"][depth][0] + 0.3, (before, after)

    assert card["progress"][-1] == [60, [round(row[0], 3) for row in after["rank"]]]
    assert [step for step, _ in card["progress"]] == list(range(6, 61, 6))
    assert len(after["rank"]) == len(after["sampled"]) == (2 if kind == "medusa" else 6)
    assert all(len(row) == 10 for row in after["rank"])
    assert (card["name"], card["seed"], card["text"]) == (kind, 3, source)
    assert (card["steps"], card["rows"], card["length"]) == (60, 8, 32)
    assert card["tokens"] == 60 * 8 * 32
    assert card["target_sha256"] == target.sha256
    assert card["corpus"] == data.sha256
    assert card["held_out_of"] == "held-out texts, corpus.txt"
    assert card["parameters"] == sum(p.numel() for p in head.parameters())
    assert card["last_training_loss"] == pytest.approx(sum(losses[-50:]) / 50, abs=1e-4)


def draft_state(head: EagleHead, outputs: TargetOutputs, row: int, i: int, j: int) -> torch.Tensor:
    """Computes the state of pair ``i`` where the last ``j`` pairs up to it are drafted.

    It is computed from nothing, by the layers over a cache.
    """
    stack = Stack(head.config, head.blocks, head.rotary_emb)
    embedded = outputs.embedded[row : row + 1, 1 : i + 2]
    above = head.fuse(outputs.features[row : row + 1, : i + 1])
    hidden = above
    for n in range(j + 1):
        attended, x = head.enter(embedded, above)
        cache = stack.cache(1, i + 1)
        (hidden, *_) = stack.run(x, Place.text(1, i + 1), cache, attended=attended)
        if n < j:  # the next drafted pair reads the head's own state of the pair before
            k = i - j + 1 + n
            above = above.clone()
            above[:, k] = hidden[:, k - 1]
    return hidden[0, i]


def some_head(kind: str, target: specwb.Target, data: corpus.Corpus, settings: dict):
    """Returns a head with random weights, whose predictions are not flat."""
    recipe = RECIPES[kind](target, {"heads": 3, "unroll": 2, **settings})
    head = recipe.make(recipe.frequent(data, {"text": 1.0}))
    with torch.no_grad():
        for name, p in head.named_parameters():
            if "lm_head" not in name and ".1." not in name:
                p.add_(torch.randn_like(p) * 0.15)
    return recipe, head.requires_grad_(False)


# the others have tests of their own, beside the drafters
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("medusa", {"shared": 1, "vocabulary": 40}),
        ("eagle", {}),
        ("eagle3", {"vocabulary": 40}),
    ],
    ids=str,
)
def test_measure_against_a_direct_count(monkeypatch, target, data, kind, settings):
    """Counts by position and depth, each drafted path computed from nothing."""
    monkeypatch.setattr(fit, "fast_bfloat16_products", lambda device: False)
    recipe, head = some_head(kind, target, data, settings)
    windows = torch.from_numpy(data.windows("text", 2, 12)[0][:, :-1])
    outputs = target_outputs(target, windows, head.features)
    assert outputs.logits.shape == (2, 12, V)
    measurements = measure(recipe, head, windows)
    ids = torch.arange(V) if head.words is None else head.words
    assert len(ids) == settings.get("vocabulary", V)
    depth = 3 if kind == "medusa" else 6
    assert len(measurements["rank"]) == depth
    lm_head = target.backbone.lm_head

    def logits_of(row: int, i: int, j: int) -> torch.Tensor:
        """What pair i predicts, of position i + 1, where j drafted pairs are before it."""
        if kind == "medusa":
            return head(outputs.features[row, i - j], None, lm_head)[j]
        return head.logits(draft_state(head, outputs, row, i, j), head.output(lm_head))

    for j in range(depth):
        ranks, overlap, count = np.zeros(10), 0.0, 0
        for row in range(2):
            for i in range(j, 11):
                logits = logits_of(row, i, j)
                wanted = tiny.forward(target.model, windows[row, : i + 2].tolist())[-1].detach()
                order = ids[logits.argsort(descending=True)]
                ranks += np.array([int(order[r] == wanted.argmax()) for r in range(10)])
                q = torch.zeros(V).index_copy_(0, ids, logits.detach().softmax(-1))
                overlap += float(torch.minimum(q, wanted.softmax(-1)).sum())
                count += 1
        assert measurements["rank"][j] == pytest.approx(ranks / count, abs=1e-3), j
        assert measurements["sampled"][j] == pytest.approx(overlap / count, abs=1e-3), j
    assert sum(map(sum, measurements["rank"])) > 0


def test_a_card_counts_what_an_assistant_says(tmp_path, target, data, monkeypatch):
    """The shares of positions whose next token is the assistant's, told by the token itself."""
    monkeypatch.setattr(fit, "fast_bfloat16_products", lambda device: False)
    held_out, silent = data.held_out["text"][:400], dict.fromkeys(["text"], data.train["text"] >= 0)
    said = held_out < V // 3
    talks = replace(data, held_out={"text": held_out}, counted=silent)
    talks.held_out_counted = {"text": said}
    card = card_of(trained("medusa", tmp_path / "h", {"heads": 2}, target, talks, steps=2))
    assert card["held_out_of"] == "held-out answers of conversations, corpus.txt"
    head, windows = load_medusa(tmp_path / "h", target), talks.windows("text", 8, 32)[0]
    outputs = target_outputs(target, torch.from_numpy(windows[:, :-1]), head.features)
    for depth, ranks in enumerate(card["held_out"]["text"]["rank"]):
        hits = [
            int(head(outputs.features[row, i - 1 - depth])[depth].argmax())
            == int(outputs.logits[row, i].argmax())
            for row in range(8)
            for i in range(1 + depth, 32)
            if windows[row, i + 1] < V // 3
        ]
        assert 20 < len(hits) < 8 * 31
        assert ranks[0] == pytest.approx(sum(hits) / len(hits), abs=0.02)  # stored in fp16

    talks.held_out_counted = {"text": said & False}
    with pytest.raises(TrainingError, match="no answer stands at the places of the held-out text"):
        trained("medusa", tmp_path / "i", {"heads": 2}, target, talks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_in_half_precision(tmp_path, home, data, kind):
    """Heads are trained in float32 beside it."""
    half, out = specwb.load(home / "target", dtype="bfloat16"), tmp_path / "h"
    by_kind = {
        "medusa": {"heads": 2},
        "eagle3": {"unroll": 2, "ffn": 64, "vocabulary": 40},
        "kangaroo": {"exit": 2},
        "draft": {"layers": 2},
    }
    trained(kind, out, by_kind.get(kind, {"unroll": 2, "ffn": 64}), half, data, steps=2)
    loaders = {"medusa": load_medusa, "falcon": load_falcon}
    loaders |= dict.fromkeys(("kangaroo", "draft"), load_kangaroo)
    loaded = loaders.get(kind, load_eagle)(out, half)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    state = torch.load(tmp_path / "h.checkpoint.pt", weights_only=True)["model"]
    assert {p.dtype for p in state.values() if p.is_floating_point()} == {torch.float32}


# -------------------------------------------------------------------------------- several processes


def moments(checkpoint: Path) -> torch.Tensor:
    """Returns the running means of all weights' gradients.

    They are linear in the gradients, as the weights are not.
    """
    optimisers = torch.load(checkpoint, weights_only=True)["optimisers"]
    states = [state for optimiser in optimisers for state in optimiser["state"].values()]
    keys = ("momentum", "exp_avg")
    return torch.cat([state[key].flatten() for state in states for key in keys if key in state])


@pytest.mark.slow
def test_two_processes_train_what_one_does(train, home, tmp_path, monkeypatch, capsys):
    """They do up to the rounding of bfloat16, in the environment that ``accelerate launch`` makes.

    EAGLE-3's loss leaves positions out, so that a mean of means is not a mean by itself. Its loss
    here is not ``lk``, whose weight is a mean over what each process computes.
    """
    settings = "unroll=1,vocabulary=20,loss=kl"
    train("eagle3", "one", steps=2, options=settings)
    paths = {
        "target": home / "target",
        "out": tmp_path / "two",
        "corpus": home / "corpus.txt",
        "generated": home / "generated",
    }
    more = f"--budget smoke --steps 2 --rows 4 --length 32 --set {settings} --device cpu --seed 3"
    arguments = ["train", "eagle3", *more.split()]
    arguments += [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    capsys.readouterr()
    children = []
    for rank in ("0", "1"):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            signal.alarm(300)
            os.environ |= {**environment, "RANK": rank, "LOCAL_RANK": rank}
            torch.cuda.is_available = lambda: False
            PartialState._reset_state()  # that of the one process
            code, _, said = call(monkeypatch, capsys, *arguments)
            (tmp_path / rank).write_text(said)
        finally:
            os._exit(code)
    codes = [os.waitpid(child, 0)[1] for child in children]
    first, second = ((tmp_path / rank).read_text() for rank in ("0", "1"))
    assert codes == [0, 0], first + second
    assert first.count("step 2/2") == 1  # the first process speaks
    assert not second
    one, two = (
        torch.load(tmp_path / f"{name}.checkpoint.pt", weights_only=True)["history"]
        for name in ("one", "two")
    )
    assert one != two  # each saw a part of the batch
    a, b = moments(tmp_path / "one.checkpoint.pt"), moments(tmp_path / "two.checkpoint.pt")
    away = float((a - b).norm() / a.norm())
    assert away < 0.012


# --------------------------------------------------------------------------------------------- text


def test_three_of_four_rows_are_the_targets_own(data):
    """Where only an assistant's tokens count, all that the target wrote do, and no prompt."""
    batch = SimpleNamespace(batch=Batch(8, 32))
    known = {
        "settings": batch,
        "mixture": {"text": 1.0},
        "seed": 0,
        "own_text": np.full((5, 33), V),
    }
    ids, counted = Learner.rows(SimpleNamespace(data=data, **known), 0)
    assert (ids == V).all(1).tolist() == [True] * 6 + [False] * 2
    assert not (ids[6:] == V).any()
    assert counted is None
    silent = replace(data, counted={"text": np.zeros(len(data.train["text"]), bool)})
    _, counted = Learner.rows(SimpleNamespace(data=silent, **known), 0)
    assert counted.sum(1).tolist() == [33 - PROMPT] * 6 + [0] * 2
    assert not counted[:, :PROMPT].any()


# ------------------------------------------------------------------ losses, parts, seeds, recipes


def test_a_batch_in_parts_is_the_batch(train, tmp_path):
    losses = []
    for parts in (1, 4):
        train("eagle", f"h{parts}", options=f"unroll=2,loss=kl,accumulate={parts}", source="read")
        checkpoint = torch.load(tmp_path / f"h{parts}.checkpoint.pt", weights_only=True)
        losses.append(checkpoint["history"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    with pytest.raises(TrainingError, match="4 rows cannot be divided into 3 parts"):
        train("eagle", "h3", options="unroll=2,accumulate=3")


def test_a_row_has_its_own_noise_whichever_part_of_a_batch_it_is_in():
    whole = Moment(0.0, 3, 7, 8).uniforms(5, 2, CPU)
    for part in range(2):
        assert torch.equal(Moment(0.0, 3, 7, 8, part, 2).uniforms(5, 2, CPU), whole[part::2])


# --------------------------------------------------------------------------------- the command line


def command(home: Path, out: Path, kind: str = "eagle", **changes: object) -> list[str]:
    options = {
        "target": home / "target",
        "out": out,
        "budget": "smoke",
        "steps": 2,
        "rows": 4,
        "length": 32,
        "corpus": home / "corpus.txt",
        "generated": home / "generated",
        "device": "cpu",
        **changes,
    }
    return [
        "train",
        kind,
        *(part for name, value in options.items() for part in (f"--{name}", str(value))),
    ]


def test_the_command_trains(monkeypatch, capsys, home, tmp_path):
    code, out, err = call(
        monkeypatch,
        capsys,
        *command(home, tmp_path / "h", set="unroll=2,regression=0.5", text="read"),
    )
    assert code == 0, err
    assert not out
    assert f"use it with eagle:head={tmp_path / 'h'}" in err
    assert "acceptance" in err
    card = card_of(tmp_path / "h")
    assert (card["unroll"], card["regression"], card["text"], card["budget"]) == (
        2,
        0.5,
        "read",
        "smoke",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "huge"}, "unknown budget 'huge'; the recipe has cpu, gpu, ablation, smoke"),
        ({"corpus": "/does/not/exist.txt"}, "corpus /does/not/exist.txt is no file"),
        (
            {"corpus": "short.txt"},
            "tokens, fewer than one row of 32; give more text or a smaller length",
        ),
        ({"steps": 0}, "--steps"),
        ({"out": "file"}, "--out: file is a file, give the name of a folder"),
        ({"generated": "file/x"}, "--generated: file/x cannot be written, Not a directory"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_2(monkeypatch, capsys, home, tmp_path, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "short.txt").write_text(" ".join(tiny.WORDS[:60]))
    code, out, err = call(monkeypatch, capsys, *command(home, **{"out": tmp_path / "h", **changes}))
    before = ("reading the training text", "forward passes of")  # what is about to be done
    lines = [line for line in err.splitlines() if not any(words in line for words in before)]
    assert code == 2, err
    assert message in err
    assert len(lines) == 1, err
    assert not out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "short.txt"]
    assert (tmp_path / "file").is_file()
