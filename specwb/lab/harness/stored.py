"""Shipped measurements as answers, so that every figure of the harness can be made of them."""

from __future__ import annotations

from itertools import accumulate

from specwb.core.errors import ArgumentError
from specwb.core.files import OBJECT, document
from specwb.lab.harness.record import Turn
from specwb.models.load import data_dir


def shipped_turns(paper: str, cell: str, tokens: int = 10**9) -> list[Turn]:
    """Read a cell of a shipped study as one answer a prompt.

    Args:
        paper: a study's name, such as ``diffuspec``.
        cell: a cell in which single paths were drafted, such as ``T=0 sps``.
        tokens: leave out the steps of an answer that begin after so many tokens.
    Returns:
        answers without text; their seconds are those of the steps that were recorded.
    """
    path = data_dir() / "results" / f"{paper}-lab-cpu.json"
    if not path.exists():
        raise ArgumentError(f"no shipped study {paper!r}")
    stored = document(path, {**OBJECT, "required": ["cells", "domains", "shapes"]})
    if cell not in stored["cells"]:
        raise ArgumentError(f"{paper} has no cell {cell!r}; there are {', '.join(stored['cells'])}")
    found, domains = stored["cells"][cell], stored["domains"]
    if not stored["shapes"][cell]["chain"] or "drafted" not in found:
        raise ArgumentError(f"{cell!r} drafts trees, or does not say how much it drafted")
    turns = []
    # a study that was given less time has not measured every prompt
    measured = zip(domains, found["accepted"], found["drafted"], strict=False)
    for i, (domain, accepted, drafted) in enumerate(measured):
        before = accumulate((a + 1 for a in accepted), initial=0)
        steps = sum(n < tokens for n in list(before)[:-1])
        accepted, drafted = accepted[:steps], drafted[:steps]
        tested = [min(a + 1, n) for a, n in zip(accepted, drafted, strict=True)]
        seconds = found["mean"][i] * len(accepted) / 1e3
        new = tuple([0] * (sum(accepted) + len(accepted)))
        lists = (tuple(accepted), tuple(tested), tuple(drafted))
        turns.append(Turn(i, domain, domain, 0, "", new, seconds, *lists))
    return turns
