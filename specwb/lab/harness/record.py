"""What a method did on a question, turn by turn and step by step, and every figure made of it.

The field has several figures of one name: whether the bonus token counts, whether a mean is over
steps or over requests, whether acceptance at a position is of all drafts or of those that reached
it. :data:`CONVENTIONS` has each by a name of its own, with its formula and who uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from specwb.core.errors import ArgumentError


@dataclass(frozen=True)
class Turn:
    """One answer of a method: a request, in the words of servers."""

    question_id: int
    category: str
    subtask: str  # the column of the benchmark's table that it counts for
    turn: int  # 0 for the first
    text: str  # the answer, without special tokens and without what follows a stop string
    tokens: tuple[int, ...]  # new token ids, the end of text included
    seconds: float  # of the decoding, the prompt's processing included
    accepted: tuple[int, ...]  # by step, the draft tokens kept
    # by step, the depths at which candidates were put to the test; None: not known
    tested: tuple[int, ...] | None
    # by step, the drafted tokens: a chain's length, a tree's nodes without its root; None: not
    # known
    drafted: tuple[int, ...] | None
    prompt_tokens: int = 0  # of the conversation so far
    cut: bool = False  # whether the prompt was shortened to fit
    # whether the machine was slow beside it, also when it was measured again
    disturbed: bool = False


Turns = Sequence[Turn]


@dataclass(frozen=True)
class Convention:
    """A figure: its formula in words, who uses it, and how it is computed."""

    formula: str
    used_by: str
    compute: Callable[[Turns], float]


def known(turns: Turns) -> bool:
    """Whether it is known what was drafted and tested in all steps."""
    return all(turn.drafted is not None and turn.tested is not None for turn in turns)


def _mean(values: Iterable[float]) -> float:
    """The mean, NaN of nothing."""
    every = list(values)
    return fmean(every) if every else float("nan")


def _per_step(turns: Turns) -> float:
    return _mean(a for turn in turns for a in turn.accepted)


def _per_request(turns: Turns) -> float:
    return _mean(fmean(turn.accepted) for turn in turns if turn.accepted)


def _over(turns: Turns, what: str) -> float:
    """Accepted tokens over the drafts or drafted tokens; NaN where they are not known, or 0."""
    counts = counters(turns) if known(turns) else None
    return counts.accepted / getattr(counts, what) if counts and counts.drafts else float("nan")


CONVENTIONS = {
    "mean_accept_length": Convention(
        "sum of (accepted + 1) / steps, over all steps",
        "Spec-Bench (#Mean accepted tokens), EAGLE's tau, SGLang",
        lambda turns: 1 + _per_step(turns),
    ),
    "mean_accept_length_per_request": Convention(
        "mean over requests of each one's (accepted + 1) / steps",
        "specdec_bench (Average_AL)",
        lambda turns: 1 + _per_request(turns),
    ),
    "accepted_drafts_per_step": Convention(
        "sum of accepted / steps, over all steps: the bonus token does not count",
        "Kangaroo's compression rate, less one",
        _per_step,
    ),
    "accepted_drafts_per_request": Convention(
        "mean over requests of each one's accepted / steps",
        "DiffuSpec's MAT, per example",
        _per_request,
    ),
    "mean_acceptance_length": Convention(
        "1 + accepted / drafts, where steps in which nothing was drafted are no drafts",
        "vLLM, llama.cpp",
        lambda turns: 1 + _over(turns, "drafts"),
    ),
    "draft_acceptance_rate": Convention(
        "accepted / draft tokens; for trees these are all of its branches', so that rates of "
        "different shapes cannot be compared",
        "vLLM",
        lambda turns: _over(turns, "drafted"),
    ),
}
"""The figures in use, by name."""


@dataclass(frozen=True)
class Counters:
    """What servers count."""

    drafts: int  # steps in which something was drafted
    drafted: int  # tokens drafted in them
    accepted: int  # draft tokens kept
    by_position: tuple[int, ...]  # ``[i]``, the drafts of which i + 1 tokens or more were kept


def counters(turns: Turns) -> Counters:
    """Counts drafts, drafted and accepted tokens."""
    if not known(turns):
        raise ArgumentError("these answers do not say what was drafted")
    steps = [
        (accepted, drafted)
        for turn in turns
        for accepted, drafted in zip(turn.accepted, turn.drafted or (), strict=True)
        if drafted
    ]
    deepest = max((t for turn in turns for t in turn.tested or ()), default=0)
    return Counters(
        len(steps),
        sum(drafted for _, drafted in steps),
        sum(accepted for accepted, _ in steps),
        tuple(sum(accepted > i for accepted, _ in steps) for i in range(deepest)),
    )


def speeds(turns: Turns, counts: Sequence[int] | None = None) -> dict[int, float]:
    """Returns tokens a second by question, over all its turns."""
    if counts is None:
        counts = [len(turn.tokens) for turn in turns]
    tokens: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for turn, count in zip(turns, counts, strict=True):
        tokens[turn.question_id] = tokens.get(turn.question_id, 0) + count
        seconds[turn.question_id] = seconds.get(turn.question_id, 0.0) + turn.seconds
    return {question: tokens[question] / seconds[question] for question in tokens}


def marginal(turns: Turns) -> list[float]:
    """Computes the acceptance by position as servers do, ``P(accepted > i)`` over all drafts."""
    counts = counters(turns)
    return [n / counts.drafts for n in counts.by_position]


def conditional(turns: Turns) -> list[float]:
    """Computes the acceptance at each position, given that it was put to the test.

    A row's last step counts only what it accepted: the end of text or the limit may have cut it.
    """
    accepted = [a for turn in turns for a in turn.accepted]
    if not known(turns):
        raise ArgumentError("these answers do not say what was tested")
    tested = [t for turn in turns for t in turn.tested or ()]
    return [
        sum(a >= d for a in accepted) / sum(t >= d for t in tested)
        for d in range(1, max(tested, default=0) + 1)
    ]
