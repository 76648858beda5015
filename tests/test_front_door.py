"""README and the pages below docs/: their programs run, and what they list is what there is."""

from __future__ import annotations

import importlib.util
import re
from functools import partial
from pathlib import Path

import pytest
import test_protocol as protocol
import torch
from typer.main import get_command

import specwb
from scripts.methods import README, pages
from specwb.cli.main import app
from specwb.cli.methods import option_rows
from specwb.cli.reproduce import STUDIES
from specwb.cli.train import OUTPUTS
from specwb.engine.methods import METHODS
from specwb.models import smol
from specwb.models.gguf import cached
from specwb.rules import RULES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HAS_SMOL = cached(smol.SHA256) is not None


def programs(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def keys(page: Path) -> list[str]:
    """What stands in the first column of a page's tables, in back quotes."""
    rows = re.findall(r"^\| (`.*?) \|", page.read_text(), re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`(\w+)`", row)]


def run(page: Path, monkeypatch) -> None:
    """Run a page's programs with the lab's model; what is compared is short."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(specwb, "compare", partial(specwb.compare, max_new_tokens=8, library=False))
    before, names = dict(METHODS), {}
    try:
        for program in programs(page):
            exec(compile(program.replace('"smol"', '"lab"'), page.name, "exec"), names)
    finally:
        METHODS.clear()
        METHODS.update(before)


@pytest.mark.slow
def test_the_program_in_readme_runs(monkeypatch, capsys):
    """Its first half also with the model that it names, whose text the page shows."""
    run(ROOT / "README.md", monkeypatch)
    out = capsys.readouterr().out
    assert "rule rejection" in out
    assert "hf_greedy" in out
    if HAS_SMOL:
        (program,) = programs(ROOT / "README.md")
        exec(compile(program.partition("\n\nstep")[0], "README.md", "exec"), {})
        page = (ROOT / "README.md").read_text()
        shown = re.search(r"^    (Photo.*?\n    .*?)\n    ([\d.]+)$", page, re.M | re.S)
        assert capsys.readouterr().out == f"{' '.join(shown[1].split())}\n{shown[2]}\n"


@pytest.mark.slow
def test_the_programs_of_the_python_page_run(monkeypatch, capsys):
    run(DOCS / "python.md", monkeypatch)
    out = capsys.readouterr().out
    assert "lossless in these" in out
    assert "repeat" in out


def test_the_pages_of_the_methods_are_the_registrys():
    for path, text in pages().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python scripts/methods.py"
        for key, entry in METHODS.items():
            assert f"`{key}`" in text or f"## {key}\n" in text
            options = set(re.findall(r"^- `(\w+)[`=]", text, re.MULTILINE))
            told = {"draft", "head", "copy", "verify", *options}
            assert path == README or set(entry.options) <= told


def test_every_rule_is_in_its_table_once():
    assert sorted(keys(DOCS / "rules.md")) == sorted(RULES)


class Repeated(specwb.Drafter):
    """Draft the continuation of the longest suffix of a row that occurred before, as suffix
    decoding does (Oliaro et al. 2024)."""

    host_reads = 2

    def __init__(self, gamma: int = 3) -> None:
        self.tree = specwb.Tree.chain(gamma)

    def propose(self, state, noise):
        rows = zip(state.tokens.tolist(), state.length.tolist(), strict=True)
        tokens = [self._continuation(row[:length]) for row, length in rows]
        return self.candidates(state, torch.tensor(tokens))

    def _continuation(self, text: list[int]) -> list[int]:
        for size in range(len(text) - 1, 0, -1):
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == text[-size:]:
                    found = text[start + size : start + size + self.tree.D]
                    return found + [0] * (self.tree.D - len(found))
        return [0] * self.tree.D


def test_a_method_of_ones_own_passes_the_protocol(monkeypatch):
    """A registered class is decoded, described and tested like every other."""
    monkeypatch.setattr(protocol, "FROM_THE_TEXT", {"repeated"})
    specwb.register("repeated", Repeated, paper="Oliaro et al. 2024")
    try:
        assert option_rows(METHODS["repeated"])[0][:2] == ("gamma", "3")
        with pytest.raises(specwb.MethodError, match="repeated has no option 'width'"):
            specwb.method("repeated:width=2", protocol.EVERYTHING.target)
        case = "repeated", {}
        protocol.test_greedy_is_plain_decoding(*case)
        protocol.test_a_row_alone_is_the_row_in_a_batch(*case)
        protocol.test_a_draft_of_the_truth_is_accepted_to_every_length(*case, monkeypatch)
        protocol.test_caches_equal_recomputation_after_every_round(*case, monkeypatch)
        protocol.test_host_reads_a_round_are_as_declared(*case, "T0", monkeypatch)
    finally:
        specwb.unregister("repeated")


def test_the_rows_in_readme_are_those_of_the_results():
    """Readme shows some rows as they are printed; all of them stand in docs/results.md."""
    results = (DOCS / "results.md").read_text()
    measured = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in results.splitlines()
        if line.startswith("| ")
    ]
    shown = re.search(r"^method .*?\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    rows = [line.split() for line in shown[1].splitlines()]
    assert len(rows) > 5
    assert all(any(row == cells[: len(row)] for cells in measured) for row in rows)


def test_every_command_and_make_target_is_explained():
    page = (DOCS / "cli.md").read_text()
    command = get_command(app)
    assert all(f"specwb {name}" in page for name in command.commands)
    assert all(f"`{name}`" in page for name in ("specwb reproduce all", *STUDIES))
    train = (DOCS / "training.md").read_text()
    assert all(f"train {kind}" in train for kind in OUTPUTS.outputs)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    explained = {"clean", "test-slow", *re.findall(r"`make ([a-z-]+)`", page)}
    assert set(targets) <= explained


def test_variables_of_the_environment_exist():
    named = set(re.findall(r"SPECWB_[A-Z_]+", (DOCS / "cli.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "specwb").rglob("*.py"))
    assert named == set(re.findall(r"\"(SPECWB_[A-Z_]+)\"", sources))


def test_the_picture_is_what_its_program_draws():
    spec = importlib.util.spec_from_file_location("picture", DOCS / "picture.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert program.picture() == (DOCS / "step.svg").read_text(encoding="utf-8")
