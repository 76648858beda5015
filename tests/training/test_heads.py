"""Heads are trained to what decoding accepts, can be stopped at any moment, and refuse what cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from killed import killed
from safetensors.torch import load_file
from terminal import call

import specwb
from specwb.files import DataError
from specwb.models.backbone import Stack
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config, load_eagle
from specwb.models.falcon import load_falcon
from specwb.models.kangaroo import load_kangaroo
from specwb.models.medusa import MedusaHeads, load_medusa
from specwb.training import corpus, fit, heads
from specwb.training.fit import TrainingError
from specwb.training.generate import PROMPT, generated_text
from specwb.training.heads import RECIPES, look, measure, train_for
from specwb.training.recipe import Moment

V, LAYERS = tiny.VOCABULARY, 6
WORDS = [f"w{i}" for i in range(V)]
KINDS = tuple(kind for kind in RECIPES if kind not in ("diffusion", "decision", "deep"))  # which read none of the target's states; tests of their own
CPU = torch.device("cpu")
SMALL = {"medusa": "heads=2", "eagle": "unroll=2", "eagle3": "unroll=2,vocabulary=40"}


def put(root: Path, model) -> Path:
    """``target``, and ``corpus.txt``, which it wrote."""
    model.save_pretrained(root / "target")
    tiny.tokenizer(WORDS).save_pretrained(root / "target")
    prompts = torch.randint(V, (64, 1), generator=torch.Generator().manual_seed(0)).tolist()
    texts = specwb.decode(specwb.load(root / "target"), prompts, "ar", max_new_tokens=64, temperature=0.7, eos=()).tokens
    (root / "corpus.txt").write_text(" ".join(WORDS[i] for row in texts for i in row))
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Of a random target, sharper than such are."""
    model = tiny.build("llama", seed=2, num_hidden_layers=LAYERS)
    with torch.no_grad():
        model.model.norm.weight.mul_(4)
    return put(tmp_path_factory.mktemp("random"), model)


@pytest.fixture(scope="module")
def counting(tmp_path_factory) -> Path:
    """Of a target that counts: after token x comes x + 1, most of the time. What comes later can be learnt from what was last."""
    model = tiny.build("llama", seed=2, num_hidden_layers=LAYERS)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(model.model.embed_tokens.weight.roll(1, 0))
    return put(tmp_path_factory.mktemp("counting"), model)


@pytest.fixture(scope="module")
def target(place) -> specwb.Target:
    return specwb.load(place / "target")


@pytest.fixture(scope="module")
def data(place, target) -> corpus.Corpus:
    return corpus.from_file(place / "corpus.txt", target.tokenizer)


@pytest.fixture
def train(place, tmp_path):
    def run(kind: str, out: str, steps: int = 6, rows: int = 4, length: int = 32, options: str | None = None, **more) -> Path:
        root = more.pop("root", place)
        settings = {"corpus": root / "corpus.txt", "generated": root / "generated", "device": "cpu", "seed": 3, **more}
        changes = {"steps": steps, "rows": rows, "length": length}
        options = SMALL[kind] if options is None else options
        return train_for(kind, str(root / "target"), tmp_path / out, "smoke", changes, options, **settings)

    return run


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("*.safetensors")
    return load_file(path)


def equal(a: Path, b: Path) -> bool:
    one, two = weights(a), weights(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def facts(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text())


# ---------------------------------------------------------------------------------------------------- what training does


@pytest.mark.parametrize(("kind", "source"), [("medusa", "read"), ("eagle", "generated"), ("eagle3", "read")])
def test_a_head_learns_what_is_accepted(train, counting, monkeypatch, tmp_path, kind, source):
    monkeypatch.setattr(RECIPES["medusa"], "lr_other", 2e-2)  # its rows of a vocabulary have far to go in few steps
    target = specwb.load(counting / "target")
    data = corpus.from_file(counting / "corpus.txt", target.tokenizer)
    out = train(kind, "head", steps=60, rows=8, source=source, root=counting)
    card = facts(out)
    losses = torch.load(tmp_path / "head.checkpoint.pt", weights_only=True)["history"]
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    load = load_medusa if kind == "medusa" else load_eagle
    head, recipe = load(out, target), RECIPES[kind](target, {"heads": 2, "unroll": 2, "vocabulary": 40})
    torch.manual_seed(3)
    before = measure(recipe, recipe.make(data, {"text": 1.0}), torch.from_numpy(data.windows("text", 8, 32)[:, :-1]))
    after = card["held_out"]["text"]
    for depth in range(2):  # both were trained
        assert after["sampled"][depth] > before["sampled"][depth] + 0.03, (before, after)
        assert after["rank"][depth][0] > before["rank"][depth][0] + 0.3, (before, after)

    assert card["progress"][-1] == [60, [round(row[0], 3) for row in after["rank"]]]
    assert [step for step, _ in card["progress"]] == list(range(6, 61, 6))
    assert len(after["rank"]) == len(after["sampled"]) == (2 if kind == "medusa" else 6)
    assert all(len(row) == 10 for row in after["rank"])
    assert (card["name"], card["steps"], card["rows"], card["length"], card["seed"], card["text"]) == (kind, 60, 8, 32, 3, source)
    assert card["tokens"] == 60 * 8 * 32
    assert card["target_sha256"] == target.sha256
    assert card["corpus"] == data.sha256
    assert card["parameters"] == sum(p.numel() for p in head.parameters())
    assert card["last_training_loss"] == pytest.approx(sum(losses[-50:]) / 50, abs=1e-4)

    # and it is the head that the method of its name drafts with
    prompts = [[1, 2, 3], [5]]
    made = specwb.method(kind, target, head=out)
    assert specwb.decode(target, prompts, made, max_new_tokens=12).tokens == specwb.decode(target, prompts, "ar", max_new_tokens=12).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_frozen(target, data, kind):
    recipe = RECIPES[kind](target, {"heads": 2, "unroll": 2, "vocabulary": 40})
    head = recipe.make(data, {"text": 1.0})
    heads.step_loss(recipe, head, look(target, torch.arange(32).view(2, 16), head.features), Moment(0.0, 0, 0, 2)).backward()
    assert all(p.grad is not None for p in head.parameters() if p.requires_grad)
    assert all(p.grad is None for p in target.model.parameters())


def drafted(head: EagleHead, found: heads.Found, row: int, i: int, j: int) -> torch.Tensor:
    """The state of pair ``i`` where the last ``j`` pairs before and with it are drafted: from nothing, by the layers over a cache."""
    stack = Stack(head.config, head.blocks, head.rotary_emb)
    at = torch.arange(i + 1)[None]
    embedded = found.embedded[row : row + 1, 1 : i + 2]
    above = head.fuse(found.features[row : row + 1, : i + 1])
    hidden = above
    for n in range(j + 1):
        attended, x = head.enter(embedded, above)
        hidden = stack.run(x, at, at, stack.cache(1, i + 1), i + 1, None, causal=True, attended=attended)[0]
        if n < j:  # the next drafted place reads the head's own state of the place before
            k = i - j + 1 + n
            above = above.clone()
            above[:, k] = hidden[:, k - 1]
    return hidden[0, i]


def some_head(kind: str, target: specwb.Target, data: corpus.Corpus):
    """Far from untrained: random, with a law that is not flat."""
    recipe = RECIPES[kind](target, {"heads": 3, "unroll": 2, "vocabulary": 40})
    head = recipe.make(data, {"text": 1.0})
    with torch.no_grad():
        for name, p in head.named_parameters():
            if "lm_head" not in name and ".1." not in name:
                p.add_(torch.randn_like(p) * 0.15)
    return recipe, head.requires_grad_(False)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("falcon", "kangaroo")])  # tests of their own, beside the drafters
def test_measure_against_a_direct_count(monkeypatch, target, data, kind):
    """Place by place, depth by depth, each drafted path from nothing."""
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)
    recipe, head = some_head(kind, target, data)
    windows = torch.from_numpy(data.windows("text", 2, 12)[:, :-1])
    found = look(target, windows, head.features)
    assert found.logits.shape == (2, 12, V)
    said = measure(recipe, head, windows)
    ids = torch.arange(V) if head.features == (-1,) or head.ids is None else head.ids
    depth = 3 if kind == "medusa" else 6
    assert len(said["rank"]) == depth
    lm_head = target.backbone.lm_head
    for j in range(depth):
        ranks, overlap, places = np.zeros(10), 0.0, 0
        for row in range(2):
            for i in range(j, 11):  # what pair i says stands for place i + 1; it has j drafted ones before it
                logits = head(found.features[row, i - j])[j] if kind == "medusa" else head.logits(drafted(head, found, row, i, j), lm_head)
                wanted = tiny.forward(target.model, windows[row, : i + 2].tolist())[-1].detach()
                order = ids[logits.argsort(descending=True)]
                ranks += np.array([int(order[r] == wanted.argmax()) for r in range(10)])
                q = torch.zeros(V).index_copy_(0, ids, logits.detach().softmax(-1))
                overlap += float(torch.minimum(q, wanted.softmax(-1)).sum())
                places += 1
        assert said["rank"][j] == pytest.approx(ranks / places, abs=1e-3), j
        assert said["sampled"][j] == pytest.approx(overlap / places, abs=1e-3), j
    assert sum(map(sum, said["rank"])) > 0


def test_an_eagle_3_head_speaks_the_texts_most_frequent_tokens(target, data):
    recipe = RECIPES["eagle3"](target, {"unroll": 2, "vocabulary": 10})
    rare = np.arange(V, dtype=np.uint16).repeat(3)
    often = np.array([50, 7, 33, 61, 20, 8, 41, 2, 19, 60], dtype=np.uint16).repeat(40)
    two = corpus.Corpus({"a": rare, "b": np.concatenate([rare, often])}, {}, [], "")
    head = recipe.make(two, {"a": 0.5, "b": 0.5})
    assert head.ids.tolist() == [2, 7, 8, 19, 20, 33, 41, 50, 60, 61]
    assert torch.equal(head.t2d.nonzero().flatten(), head.ids)
    assert torch.equal(head.lm_head.weight, target.backbone.lm_head.weight[head.ids])
    assert torch.equal(head.norm.weight, target.backbone.norm.weight)
    assert RECIPES["eagle3"](target, {"unroll": 2, "vocabulary": 9999}).make(data, {"text": 1.0}).ids is None


def test_medusa_heads_begin_as_the_targets_own(target, data):
    recipe = RECIPES["medusa"](target, {"heads": 2})
    head = recipe.make(data, {"text": 1.0})
    x = torch.randn(3, 32)
    assert torch.equal(head(x)[:, 1], target.backbone.lm_head(x))


def test_matrices_of_a_vocabulary_are_not_for_muon(target):
    """Whatever the sizes are: an MLP of a large model has more rows than a quarter of its vocabulary."""
    c = eagle_config(target)
    assert RECIPES["medusa"](target, {}).with_adam(MedusaHeads(32, V, 2, 2)) == {"0.2.weight", "1.2.weight"}
    assert RECIPES["eagle"](target, {}).with_adam(EagleHead(c, 32)) == set()
    assert RECIPES["eagle3"](target, {}).with_adam(Eagle3Head(c, 32, (1, 2, 3), 40, V)) == {"lm_head.weight"}


def test_the_target_is_not_trained_and_the_seed_matters(train, place):
    before = (place / "target" / "model.safetensors").read_bytes()
    one, same, other = (train("eagle", name, seed=seed, source="read") for name, seed in (("one", 3), ("same", 3), ("other", 4)))
    assert equal(one, same)
    assert not equal(one, other)
    assert (place / "target" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_in_half_precision(tmp_path, place, data, kind):
    """Heads are trained in float32 beside it."""
    other = specwb.load(place / "target", dtype="bfloat16")
    size = {"steps": 2, "rows": 4, "length": 32}
    own = {"medusa": {"heads": 2}, "eagle3": {"unroll": 2, "ffn": 64, "vocabulary": 40}, "kangaroo": {"exit": 2}}
    settings = own.get(kind, {"unroll": 2, "ffn": 64})
    out = heads.train_head(kind, other, tmp_path / "h", settings, size, data, {"text": 1.0}, source="read")
    load = {"medusa": load_medusa, "falcon": load_falcon, "kangaroo": load_kangaroo}.get(kind, load_eagle)
    assert {p.dtype for p in load(out, other).parameters()} == {torch.bfloat16}
    assert torch.load(tmp_path / "h.checkpoint.pt", weights_only=True)["model"].popitem()[1].dtype in (torch.float32, torch.bool)


# ------------------------------------------------------------------------------------------------------- stopped and resumed


def test_interrupted_training_resumes_bit_for_bit(train, monkeypatch, tmp_path):
    whole = train("eagle3", "whole", steps=8)
    true, seen = heads.look, []

    def stop(*given):
        seen.append(1)
        if len(seen) == 9:
            raise KeyboardInterrupt
        return true(*given)

    with monkeypatch.context() as patch:
        patch.setattr(heads, "look", stop)
        with pytest.raises(KeyboardInterrupt):
            train("eagle3", "part", steps=8)
    assert 0 < torch.load(tmp_path / "part.checkpoint.pt", weights_only=True)["step"] < 8
    assert not (tmp_path / "part").exists()
    part = train("eagle3", "part", steps=8)
    assert equal(whole, part)
    same = ("loss", "progress", "held_out", "run", "last_training_loss", "sha256")
    assert {k: facts(whole).get(k) for k in same} == {k: facts(part).get(k) for k in same}


def test_killed_training_resumes_bit_for_bit(train, monkeypatch, tmp_path):
    """SIGKILL in the middle of a step, after a checkpoint."""
    whole = train("eagle", "whole", steps=12)
    step = killed(monkeypatch, tmp_path / "part.checkpoint.pt", lambda: train("eagle", "part", steps=12))
    assert not (tmp_path / "part").exists()
    assert 0 < step < 12
    assert equal(whole, train("eagle", "part", steps=12))


def test_a_finished_head_is_left_alone_and_another_one_refused(train, tmp_path):
    out = train("medusa", "h", steps=2)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    assert train("medusa", "h", steps=2) == out
    for other in ({"seed": 9}, {"steps": 3}, {"options": "heads=3"}, {"source": "read"}):
        with pytest.raises(TrainingError, match="holds something else, or what another run made"):
            train("medusa", "h", **{"steps": 2, **other})
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}


def test_nothing_of_the_users_is_overwritten(train, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for out in ("mine", "file"):
        with pytest.raises(TrainingError, match="holds something else"):
            train("medusa", out, steps=2)
    with pytest.raises(TrainingError, match=r"cannot write to .*file"):
        train("medusa", "file/under", steps=2)
    assert (tmp_path / "mine" / "notes.txt").read_text() == (tmp_path / "file").read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mine"]


# ------------------------------------------------------------------------------------------------------- several processes


def moments(checkpoint: Path) -> torch.Tensor:
    """Running means of the gradients, of all weights: linear in the gradients, as the weights are not."""
    state = torch.load(checkpoint, weights_only=True)["optimisers"]
    return torch.cat([own[key].flatten() for part in state for own in part["state"].values() for key in ("momentum", "exp_avg") if key in own])


@pytest.mark.slow
def test_two_processes_train_what_one_does(train, place, tmp_path):
    """Up to the rounding of bfloat16. EAGLE-3's loss leaves places out, so that a mean of means is not a mean by itself.

    ``--multi_gpu`` starts the processes, with or without GPUs; with ``--cpu`` accelerate starts one alone.
    """
    settings = "unroll=2,vocabulary=20"
    train("eagle3", "one", steps=3, options=settings)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "-m", "specwb"]  # fmt: skip
    arguments = ["train", "eagle3", "--target", place / "target", "--out", tmp_path / "two", "--budget", "smoke", "--steps", "3", "--rows", "4",
                 "--length", "32", "--set", settings, "--corpus", place / "corpus.txt", "--generated", place / "generated",
                 "--device", "cpu", "--seed", "3"]  # fmt: skip
    root = Path(specwb.__file__).parents[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*launch, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=root, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("reading the training text") == 1  # the first process speaks
    one, two = (torch.load(tmp_path / f"{name}.checkpoint.pt", weights_only=True)["history"] for name in ("one", "two"))
    assert one != two  # each saw a part of the batch
    a, b = moments(tmp_path / "one.checkpoint.pt"), moments(tmp_path / "two.checkpoint.pt")
    away = float((a - b).norm() / a.norm())
    assert away < 0.012
    assert facts(tmp_path / "two")["held_out"]["text"]["sampled"] == pytest.approx(facts(tmp_path / "one")["held_out"]["text"]["sampled"], abs=5e-3)


def processes(n: int, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_processes=n, process_index=index, is_main_process=index == 0, device=torch.device("cpu"), wait_for_everyone=lambda: None
    )


def test_rows_that_cannot_be_divided(train, monkeypatch, tmp_path):
    monkeypatch.setattr(fit, "_processes", lambda: processes(3))
    with pytest.raises(TrainingError, match="batches of 4 rows cannot be divided among 3 processes"):
        train("eagle", "h", generated=tmp_path / "generated")
    assert not list(tmp_path.iterdir())  # before any work


def test_processes_share_a_batch(monkeypatch):
    rows = np.arange(24).reshape(6, 4)
    parts = []
    for index in range(3):
        monkeypatch.setattr(fit, "_processes", lambda index=index: processes(3, index))
        parts.append(fit.share(rows))
    assert sorted(np.concatenate(parts)[:, 0].tolist()) == rows[:, 0].tolist()
    assert {len(p) for p in parts} == {2}


# --------------------------------------------------------------------------------------------------------------------- text


def test_written_text_is_that_of_its_corpus(tmp_path, target, data):
    """Blocks are kept by what they are made of, and only what is asked for is made."""
    settings = {"length": 32, "mixture": {"text": 1.0}, "seed": 5}
    first = generated_text(target, data, tmp_path, tokens=2000, **settings)
    assert first.shape == (64, 33)
    assert np.array_equal(first[:, :PROMPT], data.batch(1_000_005, 0, 64, PROMPT - 1, {"text": 1.0}))
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npy")}
    more = generated_text(target, data, tmp_path, tokens=3000, **settings)
    assert np.array_equal(more[:64], first)
    assert len(more) == 128
    assert all(p.stat().st_mtime_ns == t for p, t in times.items())
    other = corpus.Corpus({"text": data.train["text"][::-1].copy()}, data.held_out, [], "another")
    assert not np.array_equal(generated_text(target, other, tmp_path, tokens=2000, **settings), first)


def test_no_more_text_is_written_than_is_read(train, tmp_path):
    """The budget's 8000 tokens would be four blocks of these."""
    train("eagle", "h", steps=2, generated=tmp_path / "g")
    assert len(list((tmp_path / "g").rglob("*.npy"))) == 1


def test_a_corpus_of_ones_own(tmp_path, target):
    lines = [{"text": " ".join(WORDS[i : i + 30])} for i in range(30)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    read = corpus.from_file(tmp_path / "c.jsonl", target.tokenizer)
    assert len(read.train["text"]) == 29 * 30  # this tokenizer has no end of text
    assert read.held_out["text"].tolist() == list(range(29, 59))
    (tmp_path / "c.txt").write_text(" ".join(WORDS * 40))  # no scrap at the end is what is held out
    plain = corpus.from_file(tmp_path / "c.txt", target.tokenizer)
    assert len(plain.held_out["text"]) > 1000
    for content, named in (("", "too little text"), ('{"words": "a"}\n{"text": "b"}', "every line must be JSON with a text field")):
        (tmp_path / "c.jsonl").write_text(content)
        with pytest.raises(DataError, match=named):
            corpus.from_file(tmp_path / "c.jsonl", target.tokenizer)
    (tmp_path / "c.txt").write_text("")
    with pytest.raises(DataError, match="too little text"):
        corpus.from_file(tmp_path / "c.txt", target.tokenizer)


# ---------------------------------------------------------------------------------------------------------- the command line


def command(place: Path, out: Path, kind: str = "eagle", **changes: object) -> list[str]:
    given = {"target": place / "target", "out": out, "budget": "smoke", "steps": 2, "rows": 4, "length": 32, "corpus": place / "corpus.txt",
             "generated": place / "generated", "device": "cpu", **changes}  # fmt: skip
    return ["train", kind, *(part for name, value in given.items() for part in (f"--{name}", str(value)))]


def test_the_command_trains(monkeypatch, capsys, place, tmp_path):
    code, out, err = call(monkeypatch, capsys, *command(place, tmp_path / "h", set="unroll=2,regression=0.5", text="read"))
    assert code == 0, err
    assert not out
    assert f"use it with eagle:head={tmp_path / 'h'}" in err
    assert "acceptance" in err
    card = facts(tmp_path / "h")
    assert (card["unroll"], card["regression"], card["text"], card["budget"]) == (2, 0.5, "read", "smoke")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"budget": "huge"}, "unknown budget 'huge'; the recipe has cpu, gpu, ablation, smoke"),
        ({"set": "heads=3"}, "eagle: settings are layers, ffn, unroll, regression, written name=value; got 'heads=3'"),
        ({"set": "unroll"}, "written name=value; got 'unroll'"),
        ({"set": "unroll=0"}, "eagle: unroll must be an integer >= 1, got 0"),
        ({"set": "unroll=two"}, "eagle: unroll must be an integer >= 1, got 'two'"),
        ({"set": "unroll=32"}, "rows of 32 tokens are too short, eagle needs 33"),
        ({"set": "layers=1.5"}, "eagle: layers must be an integer >= 1, got 1.5"),
        ({"set": "regression=-1"}, "eagle: regression must be a number >= 0, got -1"),
        ({"set": "regression=nan"}, "eagle: regression must be a number >= 0, got nan"),
        ({"kind": "eagle3", "set": "vocabulary=0"}, "eagle3: vocabulary must be an integer >= 1, got 0"),
        ({"kind": "eagle3", "set": "regression=1"}, "eagle3: settings are unroll, ffn, vocabulary"),
        ({"kind": "medusa", "set": "heads=40"}, "rows of 32 tokens are too short, medusa needs 41"),
        ({"kind": "medusa", "set": "heads=true"}, "medusa: heads must be an integer >= 1, got True"),
        ({"text": "both"}, "text must be generated or read, got 'both'"),
        ({"corpus": "/does/not/exist.txt"}, "corpus /does/not/exist.txt is no file"),
        ({"length": 600}, "rows of 600 tokens are longer than the context of"),
        ({"corpus": "short.txt"}, "tokens, fewer than one row of 32; give more text or a smaller length"),
        ({"corpus": "file"}, "corpus file has too little text"),
        ({"length": 20}, "rows of 20 tokens are too short, eagle needs 25"),
        ({"length": 3}, "--length"),
        ({"steps": 0}, "--steps"),
        ({"rows": 0}, "--rows"),
        ({"seed": -1}, "--seed"),
        ({"target": "/does/not/exist"}, "/does/not/exist"),
        ({"out": "file"}, "file holds something else"),
        ({"out": "file/head"}, "cannot write to file"),
        ({"device": "abacus"}, "device must be"),
        ({"generated": "file/x"}, "cannot write file/x"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_2(monkeypatch, capsys, place, tmp_path, changes, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "short.txt").write_text(" ".join(WORDS[:60]))
    code, out, err = call(monkeypatch, capsys, *command(place, **{"out": tmp_path / "h", **changes}))
    lines = [line for line in err.strip().splitlines() if line != "reading the training text"]
    assert code == 2, err
    assert named in err
    assert len(lines) == 1, err
    assert not out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "short.txt"]
    assert (tmp_path / "file").is_file()


def test_an_eagle_3_head_needs_six_layers(monkeypatch, capsys, tmp_path, place):
    model = tiny.build("llama", seed=2)
    model.save_pretrained(tmp_path / "target")
    tiny.tokenizer(WORDS).save_pretrained(tmp_path / "target")
    capsys.readouterr()
    code, _, err = call(monkeypatch, capsys, *command(place, tmp_path / "h", "eagle3", target=tmp_path / "target"))
    assert code == 2
    assert "at least 6 layers, this one has 3" in err
