"""Settings with which nothing is trained: one line, exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from terminal import call

WORDS = tiny.WORDS
SIZES = "hidden=16,heads=2,kv_heads=1,layers=6,ffn=24"  # of a deep draft model
# by kind: what stands behind --set, and what the line says
WRONG: dict[str, list[tuple[str, str]]] = {
    "eagle": [
        (
            "heads=3",
            "eagle has no setting 'heads'; its settings: layers, ffn, unroll, regression, ",
        ),
        ("unroll", "written name=value; got 'unroll'"),
        ("unroll=32", "rows of 32 tokens are too short, eagle needs 33"),
    ],
    "eagle3": [
        ("regression=1", "eagle3: regression compares normed states; set normed=1"),
    ],
    "medusa": [
        ("heads=40", "rows of 32 tokens are too short, medusa needs 41"),
        ("vocabulary=8", "medusa: vocabulary is of shared heads; set shared=1"),
        (",,,", "medusa: settings are written name=value; got ''"),
        ("shared=1,vocabulary=999", "medusa: vocabulary=999 is more than the 64 tokens of"),
    ],
    "falcon": [
        ("k=5", "falcon: k must be an integer in 1..4, got 5"),
        ("k=4,unroll=8", "rows of 32 tokens are too short, falcon needs 41"),
    ],
    "diffusion": [
        ("block=1", "diffusion: block must be an integer >= 2, got 1"),
        ("block=32", "rows of 32 tokens are too short, diffusion needs 64"),
        ("decay=0", "diffusion: decay must be a number in (0, 1], got 0"),
        ("vocabulary=9", "diffusion: vocabulary is of models that begin with start=target"),
        ("start=target,layers=7", "layers must be at most the target's 6 with start=target, got 7"),
        ("hidden=30,heads=4", "diffusion: hidden=30 must be a multiple of twice heads=4"),
        ("heads=3,kv_heads=2", "and heads of kv_heads=2"),
    ],
    "kangaroo": [
        ("exit=6", "exit must be a layer with one behind it, 0..5 here, got 6"),
        ("own_head=1,vocabulary=8", "kangaroo: vocabulary is of adapters without own_head"),
        ("exit=1,adapter=mlp,layers=2", "adapter=mlp has one layer, got layers=2"),
    ],
    "decision": [
        ("hidden=3", "decision has no setting 'hidden'"),
        ("loss=lk", "decision has a loss of its own, loss=lk is not"),
    ],
    "deep": [
        (f"{SIZES},hidden=18", "hidden=18 must be a multiple of twice heads=2, and heads of"),
        (f"{SIZES},heads=4,kv_heads=3", "twice heads=4, and heads of kv_heads=3"),
        (f"{SIZES},hidden=64", "deep: hidden=64 is wider than the target's embeddings (32)"),
    ],
}
ROWS = [(kind, *row) for kind, rows in WRONG.items() for row in rows]


def write(root: Path, mask: str | None) -> Path:
    """Writes a target of six layers, and a text."""
    tiny.build("llama", seed=2, num_hidden_layers=6).save_pretrained(root / "target")
    tokenizer = tiny.tokenizer(WORDS)
    tokenizer.mask_token = mask
    tokenizer.save_pretrained(root / "target")
    (root / "corpus.txt").write_text(" ".join(WORDS * 60))
    return root


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("home"), WORDS[tiny.MASK])


def refused(monkeypatch, capsys, home: Path, out: Path, kind: str, setting: str) -> str:
    """Trains with a setting; returns the line that says why not."""
    named = {
        **{"target": home / "target", "corpus": home / "corpus.txt", "generated": out / "text"},
        **{"out": out / "head", "budget": "smoke", "device": "cpu", "set": setting},
        **{"steps": 2, "rows": 4, "length": 32},
    }
    words = [part for name, value in named.items() for part in (f"--{name}", str(value))]
    code, printed, err = call(monkeypatch, capsys, "train", kind, *words)
    (line,) = [line for line in err.strip().splitlines() if line != "reading the training text"]
    assert (code, printed) == (2, ""), err
    assert not list(out.iterdir())
    return line


@pytest.mark.parametrize(("kind", "setting", "message"), ROWS)
def test_a_setting_that_cannot_be(monkeypatch, capsys, home, tmp_path, kind, setting, message):
    assert message in refused(monkeypatch, capsys, home, tmp_path, kind, setting)


def test_a_diffusion_model_needs_a_mask(monkeypatch, capsys, tmp_path):
    home, out = write(tmp_path / "home", None), tmp_path / "out"
    out.mkdir()
    capsys.readouterr()
    line = refused(monkeypatch, capsys, home, out, "diffusion", "block=8")
    assert "has no mask token; give it one (tokenizer.mask_token) among the ids it has, or" in line
