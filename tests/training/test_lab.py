"""The family's build, on small made text: whole, resumable, deterministic, with its card."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zipfile

import numpy as np
import pytest
import torch

import specwb
from specwb import files
from specwb.files import weights_hash
from specwb.training import corpus, lab
from specwb.training.fit import TrainingError
from specwb.training.generate import generated_text

pytestmark = pytest.mark.slow

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "seven", "grey", "birds", "sang", "of", "rain", "and", "the", "old", "clock", "struck"]


def prose(seed: int, words: int = 4000) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, words)) + "\n\n"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A data folder with every public file the corpus reads, small, and a recipe to match."""
    rows = [json.dumps({"question": f"What is {i} + {i}?", "answer": f"{i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i}"}) for i in range(800)]
    content: dict[str, bytes] = {"gsm8k_train": "\n".join(rows).encode(), "tinyshakespeare": prose(1).encode()}
    for i, name in enumerate(corpus._BOOKS):
        content[name] = f"Header\r\n*** START OF THIS BOOK ***\r\n{prose(10 + i)}\r\n*** END OF THIS BOOK ***\r\nLicence".encode()
    for name in ("inaugural", "state_union"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for i in range(8):
                archive.writestr(f"{name}/{1800 + i}.txt", prose(100 + i + 50 * len(name), 800))
        content[name] = buffer.getvalue()
    for name, data in content.items():
        remote = files.FILES[name]
        path = tmp_path / "data" / remote.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "gsm8k_train":  # gzipped files are found too
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
        else:
            path.write_bytes(data)
        fake = files.Remote(remote.path, "http://127.0.0.1:9/none", hashlib.sha256(data).hexdigest(), remote.licence)
        monkeypatch.setitem(files.FILES, name, fake)
    monkeypatch.setenv("SPECWB_DATA", str(tmp_path / "data"))
    code = [corpus.Document("code", "made", "PSF", f"def f{i}(x):\n    return x + {i}\n" * 20, i % 7 == 0) for i in range(100)]
    monkeypatch.setattr(corpus, "_code", lambda packages: code)
    plan = lab.recipe()
    plan["tokenizer"]["vocabulary"] = 320
    plan["target"] |= {"layers": 6, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 48}
    plan["draft"] |= {"hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 48}
    plan["heads"]["deep"] |= {"layers": 4, "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 24}
    plan["budget"]["smoke"] = {
        "target": {"steps": 12, "rows": 4, "length": 64}, "draft": {"steps": 12, "rows": 4, "length": 64, "distil": 6, "generated": 5000},
        **{kind: {"steps": 2, "rows": 4, "length": 64, "generated": 5000} for kind in plan["heads"]},
    }  # fmt: skip
    monkeypatch.setattr(lab, "recipe", lambda path=None: plan)
    return tmp_path


def test_build_is_whole_deterministic_and_resumable(made, monkeypatch):
    one = lab.build(made / "one", "smoke", "cpu")
    card = (one / "README.md").read_text()
    facts = json.loads((one / "target" / "card.json").read_text())
    assert facts["sha256"] == weights_hash(one / "target")
    assert facts["sha256"][:12] in card
    assert "| sherlock_holmes | prose | public domain (USA) | held out |" in card
    assert json.loads((one / "draft" / "card.json").read_text())["target_sha256"] == facts["sha256"]

    target = specwb.load(one / "target")
    plain = specwb.decode(target, "the cat", max_new_tokens=12)
    fast = specwb.decode(target, "the cat", "sps", draft=str(one / "draft"), max_new_tokens=12)
    assert plain.tokens == fast.tokens
    # its heads lie beside it, where the methods of their names find them
    for kind in ("medusa", "eagle", "eagle3", "falcon"):
        assert json.loads((one / kind / "card.json").read_text())["target_sha256"] == facts["sha256"]
        assert specwb.decode(target, "the cat", kind, max_new_tokens=12).tokens == plain.tokens

    # stopped in the middle of the target, then run again: the same files
    true_fit, calls = lab.fit, []

    def interrupted(name, model, loss, *rest):
        def stop(step):
            if not calls and step == 7:
                calls.append(step)
                raise KeyboardInterrupt
            return loss(step)

        return true_fit(name, model, stop, *rest)

    monkeypatch.setattr(lab, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.build(made / "two", "smoke", "cpu")
    two = lab.build(made / "two", "smoke", "cpu")
    assert calls
    for name in ("target", "draft", "medusa", "eagle", "eagle3", "falcon", "diffusion"):
        assert weights_hash(one / name) == weights_hash(two / name)
    assert json.loads((one / "diffusion" / "card.json").read_text())["start"] == "draft"
    assert (one / "ngram" / "ngram.npz").read_bytes() == (two / "ngram" / "ngram.npz").read_bytes()

    # half of the distillation's text is the target's own, and the heads share it: training text continued, the same after an interrupt
    (folder,) = (one / "generated").iterdir()
    blocks = sorted(folder.iterdir())
    assert [np.load(b).shape for b in blocks] == [(64, 65)] * 2
    (blocks[1]).unlink()
    first, kept = np.load(blocks[0]), blocks[0].stat().st_mtime_ns
    data = corpus.encode(corpus.documents({}), target.tokenizer)
    again = generated_text(target, data, one / "generated", tokens=5000, length=64, mixture=lab.recipe()["corpus"]["mixture"], seed=1)
    assert blocks[0].stat().st_mtime_ns == kept
    assert len(again) == 128
    assert np.array_equal(again[:64], first)
    prompts = data.batch(1_000_001, 0, 64, 23, lab.recipe()["corpus"]["mixture"])
    assert np.array_equal(first[:, :24], prompts)

    # another seed in the same folder is refused before anything is touched
    before = {p: p.read_bytes() for p in one.rglob("*") if p.is_file()}
    with pytest.raises(TrainingError, match="another recipe, seed or text"):
        lab.build(one, "smoke", "cpu", seed=5)
    assert before == {p: p.read_bytes() for p in one.rglob("*") if p.is_file()}

    # training on from a family keeps its tokenizer and starts from its weights
    three = lab.build(made / "three", "smoke", "cpu", start_from=one)
    assert (three / "tokenizer" / "tokenizer.json").read_bytes() == (one / "target" / "tokenizer.json").read_bytes()
    assert json.loads((three / "target" / "card.json").read_text())["started_from"] == "shipped weights"
    assert weights_hash(three / "target") != facts["sha256"]


def test_corpus_holds_out_whole_documents_and_batches_are_pure(made):
    docs = corpus.documents({})
    held = {d.text for d in docs if d.held_out}
    assert held
    assert not held & {d.text for d in docs if not d.held_out}
    assert {d.source for d in docs if d.held_out and d.domain == "prose"} == {"sherlock_holmes", "inaugural", "state_union"}
    assert not any("<<" in d.text for d in docs if d.domain == "math")
    corpus.train_tokenizer(docs, 300, made / "tok")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made / "tok")
    assert tokenizer.convert_ids_to_tokens(range(8)) == corpus.SPECIALS
    assert tokenizer.decode(tokenizer("def f(x):\n    return 12é")["input_ids"]) == "def f(x):\n    return 12é"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert chat == "<|user|>hi<|assistant|>"
    data = corpus.encode(docs, tokenizer)
    mixture = {"code": 0.5, "math": 0.25, "prose": 0.25}
    assert np.array_equal(data.batch(3, 5, 4, 16, mixture), data.batch(3, 5, 4, 16, mixture))
    assert not np.array_equal(data.batch(3, 5, 4, 16, mixture), data.batch(3, 6, 4, 16, mixture))
    assert data.windows("math", 3, 20).shape == (3, 21)


def test_wrong_checksum_missing_file_and_bad_budget_are_one_clear_error(made, monkeypatch):
    (made / "data" / files.FILES["tinyshakespeare"].path).write_text("something else")
    with pytest.raises(files.DataError, match="sha256"):
        files.read("tinyshakespeare")
    (made / "data" / files.FILES["emma"].path).unlink()
    with pytest.raises(files.DataError, match=r"gutenberg_books/158\.txt"):
        files.read("emma")
    with pytest.raises(files.DataError, match="unknown data file"):
        files.read("nonsense")
    with pytest.raises(TrainingError, match="unknown budget 'huge'"):
        lab.build(made / "x", "huge")
    if not torch.cuda.is_available():
        with pytest.raises(specwb.LoadError, match="CUDA"):
            lab.build(made / "x", "smoke", "cuda")


def test_shipped_family_matches_its_card():
    root = lab.LAB
    total = 0
    target = json.loads((root / "target" / "card.json").read_text())["sha256"]
    for name in ("target", "draft", *lab.recipe()["heads"]):
        facts = json.loads((root / name / "card.json").read_text())
        assert name == "target" or facts["target_sha256"] == target
        assert weights_hash(root / name) == facts["sha256"]
        for path in (root / name).glob("*.safetensors"):
            assert path.stat().st_size < 15e6
            total += path.stat().st_size
    assert total < 48e6
    assert lab.model_card(root) == (root / "README.md").read_text()
