"""What `specwb train ngram` counts, writes and refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tiny

import specwb
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.drafters.diffuspec_parts.proxy import log_likelihood
from specwb.training import reading
from specwb.training.generate import PROMPT, generated_text
from specwb.training.ngram import LENGTH, count_for

V = tiny.VOCABULARY
TOKENS = 64 * LENGTH  # one block
HERE = "--target target --corpus corpus.txt --text read --device cpu".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Returns the folder of a small target and a text."""
    root = tmp_path_factory.mktemp("ngram")
    tiny.build("llama", seed=2, num_hidden_layers=1).save_pretrained(root / "target")
    tiny.tokenizer().save_pretrained(root / "target")
    rng = np.random.default_rng(0)
    (root / "corpus.txt").write_text(
        " ".join(tiny.WORDS[i] for i in np.minimum(rng.geometric(0.15, 12_000), V) - 1)
    )
    return root


@pytest.fixture
def count(home, tmp_path):
    def run(out: str = "ngram", **settings) -> Path:
        paths = {"corpus": home / "corpus.txt", "generated": home / "generated"}
        settings = {**paths, "device": "cpu", "seed": 3, "tokens": TOKENS, **settings}
        return count_for(home / "target", tmp_path / out, **settings)

    return run


@pytest.mark.parametrize("source", ["read", "both"])
def test_what_is_counted(home, count, source):
    out = count(source=source, order=2, least=2)
    target = specwb.load(home / "target", device="cpu")
    data = reading.from_file(home / "corpus.txt", target.tokenizer)
    streams = [data.train["text"]]
    held_out = dict(data.held_out)
    if source != "read":
        settings = {"tokens": TOKENS, "length": LENGTH, "mixture": {"text": 1.0}, "seed": 3}
        rows = generated_text(target, data, home / "generated", **settings)
        assert rows.shape == (64, LENGTH + 1)
        # the first twentieth is held out, and the beginnings were read
        streams += list(rows[4:, PROMPT:])
        held_out["own"] = rows[:4, PROMPT:].reshape(-1)
    wanted = NGram.count(streams, V, 2, 2)
    ngram, card = NGram.load(out / "ngram.npz"), json.loads((out / "card.json").read_text())
    assert ngram.sizes == wanted.sizes == card["sizes"]
    for h in [(), *((x,) for x in range(V))]:
        assert ngram.scores(h, range(V)) == wanted.scores(h, range(V))
    tokens_written = 0 if source == "read" else 60 * (LENGTH + 1 - PROMPT)
    assert card["tokens"] == {"read": len(data.train["text"]), "generated": tokens_written}
    assert card["held_out"].keys() == held_out.keys()
    for domain, text in held_out.items():
        nats = -log_likelihood(ngram, text)
        assert card["held_out"][domain] == {"backoff": pytest.approx(nats, abs=1e-4)}
    assert (card["order"], card["least"], card["vocabulary"]) == (2, 2, V)
    assert (card["seed"], card["text"]) == (3, source)
    assert (card["corpus"], card["target_sha256"]) == (data.sha256, target.sha256)
    assert card["sha256"] == hashlib.sha256((out / "ngram.npz").read_bytes()).hexdigest()
    assert card["bytes"] == (out / "ngram.npz").stat().st_size
    assert {p.name for p in out.iterdir()} == {"ngram.npz", "card.json"}


def test_the_command(call, home, monkeypatch, tmp_path):
    monkeypatch.chdir(home)
    given = [*HERE, "--out", str(tmp_path / "out"), "--set", "least=1"]
    code, _, err = call("train", "ngram", *given)
    assert code == 0
    assert "held-out nats per token, text " in err
    made = NGram.load(tmp_path / "out" / "ngram.npz")
    assert (made.order, made.least, made.vocabulary) == (3, 1, V)
