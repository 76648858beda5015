"""The proofs in theory/coq compile, assume nothing but the real numbers, and are listed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "theory" / "coq"
ROWS = re.findall(r"\| (\w+)\.v: (\w+) \|$", (HERE / "README.md").read_text("utf-8"), re.MULTILINE)
FILES = (
    "Sums",
    "SingleDraft",
    "Recursive",
    "Steps",
    "Without",
    "Optimum",
    "Block",
    "Traversal",
    "Counterexamples",
    "ExactText",
)
AXIOMS = {
    "ClassicalDedekindReals.sig_not_dec",
    "ClassicalDedekindReals.sig_forall_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
}


def test_every_listed_theorem_is_stated_in_its_file():
    assert len(ROWS) >= 14
    assert {path.stem for path in HERE.glob("*.v")} == set(FILES)
    for file, name in ROWS:
        statement = rf"^(Theorem|Lemma) {name}\b"
        assert re.search(statement, (HERE / f"{file}.v").read_text("utf-8"), re.MULTILINE), name


def test_nothing_is_admitted():
    for path in HERE.glob("*.v"):
        text = path.read_text("utf-8")
        assert not re.search(r"\b(Admitted|admit|Axioms?|Parameters?|Conjecture)\b", text), path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed")
def test_the_proofs_compile_and_assume_only_the_reals(tmp_path):
    for path in HERE.glob("*.v"):
        shutil.copy(path, tmp_path)
    asked = ", ".join(f"@{file}.{name}" for file, name in ROWS)
    (tmp_path / "Asked.v").write_text(
        "".join(f"Require {file}.\n" for file in FILES)
        + f"Definition all := ({asked}).\nPrint Assumptions all.\n"
    )
    for file in (*FILES, "Asked"):
        done = subprocess.run(
            ["coqc", f"{file}.v"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    told = re.findall(r"^(?!Axioms:)(\S+)\s*:", done.stdout, re.MULTILINE)
    assert "Axioms:" in done.stdout
    assert set(told) <= AXIOMS
