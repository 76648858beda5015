"""The lab family's build on small artificial text: complete, resumable, deterministic."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import specwb
from scripts.build_lab import build as lab
from scripts.build_lab.__main__ import main
from scripts.build_lab.page import DOMAINS, model_card
from scripts.build_lab.tokenizer import SPECIALS, TEMPLATE, train_tokenizer
from specwb.core import texts
from specwb.core.files import weights_hash
from specwb.training import corpus, lab_text, reading, run
from specwb.training.fit import TrainingError
from specwb.training.settings import lab_recipe

SENTENCE = "the cat sat on a mat while seven grey birds sang of rain and the old clock struck"
WORDS = SENTENCE.split()


def prose(seed: int, words: int = 4000) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, words)) + "\n\n"


def public_files() -> dict[str, bytes]:
    """Returns small contents for every public file that the corpus reads."""
    problems = []
    for i in range(800):
        answer = f"{i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i}"
        problems.append(json.dumps({"question": f"What is {i} + {i}?", "answer": answer}))
    contents = {
        "gsm8k_train": "\n".join(problems).encode(),
        "tinyshakespeare": prose(1).encode(),
    }
    for i, name in enumerate(lab_text._BOOKS):
        start, end = ("*** START OF THIS BOOK ***", "*** END OF THIS BOOK ***")
        parts = ("Header", start, prose(10 + i), end, "Licence")
        contents[name] = "\r\n".join(parts).encode()
    for name in ("inaugural", "state_union"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for i in range(8):
                seed = 100 + i + 50 * len(name)
                archive.writestr(f"{name}/{1800 + i}.txt", prose(seed, 800))
        contents[name] = buffer.getvalue()
    return contents


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Returns a folder with small public files in it, and makes the recipe as small."""
    for name, content in public_files().items():
        remote = texts.FILES[name]
        path = tmp_path / "data" / remote.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "gsm8k_train":  # gzipped files are read too
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
        else:
            path.write_bytes(content)
        sha256, nowhere = hashlib.sha256(content).hexdigest(), "http://127.0.0.1:9/none"
        fake = texts.Remote(remote.path, nowhere, sha256, remote.licence)
        monkeypatch.setitem(texts.FILES, name, fake)
    monkeypatch.setenv("SPECWB_DATA", str(tmp_path / "data"))
    code = []
    for i in range(100):
        text = f"def f{i}(x):\n    return x + {i}\n" * 20
        code.append(corpus.Document("code", "small", "PSF", text, i % 7 == 0))
    monkeypatch.setattr(lab_text, "_code", lambda packages: code)
    plan = lab_recipe()
    plan["tokenizer"]["vocabulary"] = 320
    plan["target"] |= {"layers": 6, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 48}
    plan["draft"] |= {"hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 48}
    plan["heads"]["deep"] |= {"layers": 4, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 24}
    size = {"rows": 4, "length": 64}
    budget = {kind: {"steps": 2, **size, "generated": 5000} for kind in plan["heads"]}
    budget["target"] = {"steps": 12, **size}
    own_text = {"own": 2, "renew": 2, "n": 4, "hold": 0.5, "weight": 1.0}
    own_text |= {"times": 2, "lr": 1e-3}
    budget["cure"] = {"steps": 5, **size, **own_text}
    budget["draft"] = {"steps": 12, **size, "distil": 6, "generated": 5000}
    plan["budget"]["smoke"] = budget
    for place in (lab, reading, run):
        monkeypatch.setattr(place, "lab_recipe", lambda path=None: plan)
    return tmp_path


def card_of(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text())


@pytest.mark.slow
@pytest.mark.rare
def test_build_is_complete_deterministic_and_resumable(home, monkeypatch):
    first = lab.build(home / "one", "smoke", "cpu")
    check_models(first)
    second = build_interrupted(home / "two", monkeypatch)
    for name in ("target", "draft", "medusa", "eagle", "eagle3", "falcon", "diffusion"):
        assert weights_hash(first / name) == weights_hash(second / name)
    assert card_of(first / "diffusion")["start"] == "draft"
    ngrams = [(folder / "ngram" / "ngram.npz").read_bytes() for folder in (first, second)]
    assert ngrams[0] == ngrams[1]

    # another seed in the same folder is refused before anything is touched
    before = {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}
    with pytest.raises(TrainingError, match="another recipe, seed or text"):
        lab.build(first, "smoke", "cpu", seed=5)
    assert before == {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}

    # training on from a family keeps its tokenizer and starts from its weights
    third = lab.build(home / "three", "smoke", "cpu", start_from=first)
    tokenizers = third / "tokenizer" / "tokenizer.json", first / "target" / "tokenizer.json"
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    assert card_of(third / "target")["started_from"] == "shipped weights"
    assert weights_hash(third / "target") != weights_hash(first / "target")


def check_models(family: Path) -> None:
    """The cards name the weights, and every model drafts."""
    readme, card = (family / "README.md").read_text(), card_of(family / "target")
    assert card["sha256"] == weights_hash(family / "target")
    assert card["sha256"][:12] in readme
    assert set(card["before_cure"]["loops"]) == set(card["loops"]) == set(DOMAINS)
    assert 0 <= card["prompt_loops"] <= 1
    assert "| after |" in readme
    assert "T = 0.7" in readme
    assert card_of(family / "eagle")["step_seconds"] > 0
    assert "| falcon |" in readme.split("at one budget of tokens")[1]
    assert "| sherlock_holmes | prose | public domain (USA) | held out |" in readme
    assert card_of(family / "draft")["target_sha256"] == card["sha256"]

    # its heads lie beside it, where the methods of their names find them
    target = specwb.load(family / "target")
    plain = specwb.decode(target, "the cat", max_new_tokens=12)
    for kind in ("medusa", "eagle", "eagle3", "falcon"):
        assert card_of(family / kind)["target_sha256"] == card["sha256"]
        assert specwb.decode(target, "the cat", kind, max_new_tokens=12).tokens == plain.tokens


def test_a_project_of_the_users_is_not_built_over(tmp_path, capsys):
    path = tmp_path / "project" / "README.md"
    path.parent.mkdir(parents=True)
    path.write_text('{"mine": 1}')
    with pytest.raises(SystemExit) as end:
        main(["--budget", "smoke", "--out", str(tmp_path / "project")])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is there and not a file of scripts.build_lab" in line
    assert path.read_text() == '{"mine": 1}'


def build_interrupted(out: Path, monkeypatch) -> Path:
    """Builds a family, stopped in the middle of the target and of its cure, and started again.

    The cure is stopped between two texts that the target writes.
    """
    train, interrupts = lab.train, {"target": 7, "cure of loops": 3}

    def interrupted_train(training):
        name, loss = training.name, training.loss

        def stop(step, part):
            if interrupts.get(name) == step:
                del interrupts[name]
                raise KeyboardInterrupt
            return loss(step, part)

        training.loss = stop
        return train(training)

    monkeypatch.setattr(lab, "train", interrupted_train)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            lab.build(out, "smoke", "cpu")
    lab.build(out, "smoke", "cpu")
    assert not interrupts
    return out


@pytest.mark.slow
def test_corpus_holds_out_whole_documents_and_batches_are_pure(home):
    docs = lab_text.documents({})
    held_out = {d.text for d in docs if d.held_out}
    assert held_out
    assert not held_out & {d.text for d in docs if not d.held_out}
    sources = {d.source for d in docs if d.held_out and d.domain == "prose"}
    assert sources == {"sherlock_holmes", "inaugural", "state_union"}
    assert not any("<<" in d.text for d in docs if d.domain == "math")
    train_tokenizer(docs, 300, home / "tok")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(home / "tok")
    assert tokenizer.convert_ids_to_tokens(range(8)) == SPECIALS
    text = "def f(x):\n    return 12é"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|user|>hi<|assistant|>"
    assert tokenizer.chat_template == TEMPLATE
    data = corpus.encode(docs, tokenizer)
    mixture = {"code": 0.5, "math": 0.25, "prose": 0.25}
    one, again, other = (data.batch(3, step, 4, 16, mixture)[0] for step in (5, 5, 6))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert data.windows("math", 3, 20)[0].shape == (3, 21)


@pytest.mark.slow
def test_shipped_family_matches_its_card():
    root = lab.LAB
    total = 0
    target = card_of(root / "target")["sha256"]
    for name in ("target", "draft", *lab_recipe()["heads"]):
        card = card_of(root / name)
        assert name == "target" or card["target_sha256"] == target
        assert weights_hash(root / name) == card["sha256"]
        for path in (root / name).glob("*.safetensors"):
            assert path.stat().st_size < 15e6
            total += path.stat().st_size
    assert total < 48e6
    assert model_card(root) == (root / "README.md").read_text()
