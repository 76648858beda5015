"""The shipped results of a paper, and the verdicts that follow from results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specwb.core.errors import ArgumentError
from specwb.core.files import OBJECT, data_dir, document
from specwb.lab.papers import FAMILIES
from specwb.lab.papers.figures import SavedResults
from specwb.lab.papers.judge import Judgement, judge
from specwb.lab.papers.paper import Paper, read_paper


def files(paper: Paper, family: str = "lab") -> list[Path]:
    """The files of a family's shipped results: of its own heads, on the usual prompts and on the
    paper's, then of trained ones, those of ``paper.evidence`` at the end."""
    folder = data_dir() / "results"
    end = "-cpu" if paper.is_paper else ""
    names = [f"{paper.name}-{family}{end}"]
    names += [f"{paper.name}-{family}-{prompts}" for prompts in paper.by_task.get("prompts", ())]
    names += [f"{name}-ablation-{family}" for name in (paper.name, *paper.evidence)]
    return [path for name in names if (path := folder / f"{name}.json").exists()]


def shipped(paper: Paper, family: str = "lab") -> list[SavedResults]:
    """Read a family's shipped results: of its own heads, then of heads trained to be compared.

    Raises:
        ArgumentError: there are none.
    """
    schema = {**OBJECT, "required": ["arguments", "cells"]}
    found = [document(path, schema) for path in files(paper, family)]
    if not found:
        has = [name for name in FAMILIES if files(paper, name)]
        others = f"; there are of {' and '.join(has)}" if has else ""
        raise ArgumentError(f"there are no shipped results of {paper.name} on {family}{others}")
    return found


def trained_results(paper: Paper, sha256: str) -> list[SavedResults]:
    """Read the shipped results of heads that were trained on the target with this checksum."""
    found = [d for family in FAMILIES if files(paper, family) for d in shipped(paper, family)]
    of_heads = [d for d in found if isinstance(d.get("heads"), dict)]
    return [d for d in of_heads if d["arguments"].get("sha256") == sha256]


def verdicts(paper: Paper, documents: Sequence[SavedResults]) -> list[Judgement]:
    """Judge every claim of a paper."""
    return [judge(claim, documents, paper.drafters, paper.published) for claim in paper.claims]


def shipped_verdicts(name: str, family: str = "lab") -> list[Judgement]:
    """Judge every claim of a paper on a family's shipped results.

    Raises:
        PaperError: there is no such paper.
        ArgumentError: there are no results.
    """
    paper = read_paper(name)
    return verdicts(paper, shipped(paper, family))
