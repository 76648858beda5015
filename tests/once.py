"""Studies on small models: one prompt of a cell, and the command on a few cells."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import tiny
from terminal import call

from specwb.lab.bench import measure as measuring
from specwb.lab.bench.measure import measure
from specwb.lab.studies import PLACES, grid, study_of
from specwb.models.questions import Question

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]
QUESTIONS = [
    Question(i, ("code", "prose")[i % 2], (" ".join(WORDS[3 * i + 1 : 4 * i + 5]),), "text")
    for i in range(3)
]


def words() -> Any:
    """A tokenizer of w0, w1, .."""
    return tiny.tokenizer(WORDS)


def measured_once(
    target: Any, method: Any, cell: Any, count: int, seed: int, most: int | None = None
) -> dict[str, Any]:
    """What a study records of ``count`` decoding steps after the tokens 5, 6."""
    job = grid.job_of(cell, method, [[5, 6]], count, [seed], most)
    ((_, run),) = measure(target, [job], steps=count, timed=False)
    return grid.results(run, method)


def reproduced(monkeypatch, capsys, tmp_path: Path, name: str, cells: list, *options, **changes):
    """Run ``specwb reproduce`` on some cells and the lab family, and again with nothing left to do.

    Args:
        changes: what else of the study is replaced.
    Returns:
        The document that is written, and what is printed.
    """
    few = replace(study_of(name), cells=lambda _: cells, **changes)
    monkeypatch.setattr(import_module(f"specwb.lab.studies.{PLACES[name]}"), "STUDY", few)
    path = tmp_path / "results.json"
    words = ["reproduce", name, "--out", str(path), "--seconds", "0", *map(str, options)]
    code, out, err = call(monkeypatch, capsys, *words)
    assert code == 0, err
    document = json.loads(path.read_text())
    assert set(document["cells"]) == {cell.key for cell in cells}
    assert document["command"].startswith(f"specwb reproduce {name}")
    assert all(verdict["claim"] in out for verdict in document["verdicts"])
    code, _, err = call(monkeypatch, capsys, *words, "--seed", "1")
    assert code == 2
    assert "measured with seed = 0, now it is 1" in err
    monkeypatch.setattr(measuring, "_decode", None)  # with the same arguments nothing is left to do
    assert call(monkeypatch, capsys, *words)[0] == 0
    assert json.loads(path.read_text())["cells"] == document["cells"]
    return document, out


def refused(monkeypatch, capsys, tmp_path: Path, name: str, *several: tuple) -> None:
    """Settings with which a study measures nothing."""
    monkeypatch.chdir(tmp_path)
    for options in (("--set", "rounds=1"), *several):
        code, out, err = call(monkeypatch, capsys, "reproduce", name, *map(str, options))
        assert (code, out) == (2, ""), options
        assert len(err.strip().splitlines()) <= 3
