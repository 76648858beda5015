"""The chi-square test of short texts, and when one of several tests of a method fails.

A check makes :data:`TESTS` tests, each at the level ``ALARM = FALSE_ALARM / TESTS``, so that a
right method fails once in ``1 / FALSE_ALARM`` checks or more rarely (Bonferroni). A test whose
p-value is small and does not decide, ``AT_ONCE < p < DOUBT``, is made again with ``MORE`` times the
rows and other seeds. The two p-values are put together stage by stage (Tsiatis, Rosner and Mehta
1984): ``p = AT_ONCE + (DOUBT - AT_ONCE) p2``, which is uniform on (0, 1) wherever p1 and p2 are
uniform and independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from scipy import optimize, stats
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, Scores, State
from specwb.core.probability import Sampling
from specwb.engine.decoding import decode
from specwb.engine.loop import Rescore
from specwb.engine.methods import Method
from specwb.models.target import Target

FALSE_ALARM = 1e-4
"""The probability that a check of a right method fails, at most."""
TESTS = 3
ALARM = FALSE_ALARM / TESTS
"""The p-value below which a test fails."""
AT_ONCE = ALARM / 2
"""The p-value below which it fails without being made again."""
DOUBT = 0.01
"""The p-value below which it is made again."""
MORE = 4
"""Rows of the second run, over those of the first."""
AGAIN = (ALARM - AT_ONCE) / (DOUBT - AT_ONCE)
"""The p-value below which the second run fails."""
POWER = 0.8
"""The probability with which a deviation is found that counts as seen."""
FIRST = 3
"""Number of tokens whose joint distribution is compared."""
MIN_EXPECTED = 8
"""Number of texts that a cell of the chi-square test expects, at least."""
MAX_TEXTS = 4096
"""Number of different texts that are listed, at most."""
BATCH = 256
"""Rows of a batch, at most."""


@dataclass(frozen=True)
class StatisticalTest:
    """The outcome of a test.

    Attributes:
        first: The p-value of the first run, where this is the second; else None.
    """

    first: float | None = field(default=None, kw_only=True)

    @property
    def own(self) -> float:
        """The p-value of this run alone."""
        raise NotImplementedError

    @property
    def pvalue(self) -> float:
        """The p-value of both runs."""
        return self.own if self.first is None else AT_ONCE + (DOUBT - AT_ONCE) * self.own

    @property
    def failed(self) -> bool:
        return self.pvalue < ALARM


T = TypeVar("T", bound=StatisticalTest)


def decided(run: Callable[[int, int], T], rows: int, seed: int) -> T:
    """Make a test ``run(rows, seed)``, and again where the first p-value does not decide."""
    once = run(rows, seed)
    if not AT_ONCE < once.own < DOUBT:
        return once
    return replace(run(MORE * rows, seed + 2**31), first=once.own)


@dataclass(frozen=True)
class Joint(StatisticalTest):
    """The chi-square test of short texts.

    Attributes:
        statistic: Pearson's chi-square or the likelihood ratio's, whichever is smaller.
        freedom: Its degrees of freedom; at 0 nothing was compared.
        texts: Number of texts decoded.
        impossible: A text that the target cannot write, or "".
    """

    statistic: float
    freedom: int
    texts: int
    impossible: str = ""

    @property
    def own(self) -> float:
        if self.impossible:
            return 0.0
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0

    @property
    def sees(self) -> float:
        """The smallest total variation that is found with probability ``POWER``, at once or in the
        second run, as a mean over the prompts; 1 where nothing was compared.

        A deviation of total variation d from p has ``sum (r - p)^2 / p >= 4 d^2`` (Cauchy and
        Schwarz), so that chi-square of n texts is noncentral with at least ``4 n d^2``. The
        noncentrality that is found so often follows from the degrees of freedom.
        """
        if not self.freedom:
            return 1.0

        def below(level: float, noncentrality: float) -> float:
            critical = stats.chi2.isf(level, self.freedom)
            return float(stats.ncx2.sf(critical, self.freedom, noncentrality))

        def found(noncentrality: float) -> float:
            if self.first is not None:
                return below(AGAIN, noncentrality)
            at_once, doubted = below(AT_ONCE, noncentrality), below(DOUBT, noncentrality)
            return at_once + (doubted - at_once) * below(AGAIN, MORE * noncentrality)

        largest = 100 * float(stats.chi2.isf(AT_ONCE, self.freedom))
        needed = optimize.brentq(lambda x: found(x) - POWER, 1e-6, largest)
        return min(1.0, (needed / (4 * self.texts)) ** 0.5)


def joint(
    target: Target,
    method: Method,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    rows: int,
    seed: int,
    begin: Sequence[list[int]] | None = None,
) -> Joint:
    """Compare the joint distribution of three tokens with the target's, by chi-square.

    With a small ``top_k`` the texts of three tokens can be listed, and their probabilities are
    computed from the model's own forward. ``chi-square = sum (n - N p)^2 / (N p)`` over the cells
    of all prompts, each of which expects eight texts or more, or the likelihood ratio's
    ``2 sum n log(n / (N p))`` where that is smaller.

    Args:
        prompts: Token ids of every prompt.
        sampling: Temperature and filters.
        rows: Texts in all, over the prompts.
        begin: Tokens that the target is forced to write before the three, for every prompt.
    """
    texts = -(-rows // len(prompts))  # a prompt, rounded up
    pearson, ratio, freedom, impossible = 0.0, 0.0, 0, ""
    for i, prompt in enumerate(prompts):
        first = [] if begin is None else begin[i]
        cells = beginnings(target, prompt + first, sampling, FIRST)
        counts: Counter[tuple[int, ...]] = Counter()
        for start in range(0, texts, BATCH):
            output = decode(
                target,
                [prompt] * min(BATCH, texts - start),
                method,
                max_new_tokens=len(first) + FIRST,
                eos=(),
                seed=generator(seed, i, start + len(first)),
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                rescore=_certain(torch.tensor(first, device=target.device)) if first else None,
            )
            counts.update(_cell(row, first, cells) for row in output.tokens)
        for text in counts.keys() - cells.keys():
            words = target.tokenizer.decode(text) if target.tokenizer is not None else ""
            impossible = impossible or f"{text} {words!r} after prompt {i}"
        merged = _merged((counts[text], texts * chance) for text, chance in cells.items())
        for a, b in merged:
            pearson += (a - b) ** 2 / b
            ratio += 2 * a * math.log(a / b) if a else 0.0
        freedom += max(0, len(merged) - 1)
    # cells that expect few texts are skewed upwards, which makes Pearson's statistic alone fail
    # right methods several times as often as its p-value says
    return Joint(min(pearson, ratio), freedom, texts * len(prompts), impossible)


def generator(seed: int, prompt: int, offset: int) -> torch.Generator:
    """The source of the row seeds of a batch."""
    return torch.Generator().manual_seed(seed * 1_000_003 + prompt * 10_007 + offset)


def _certain(first: Tensor) -> Rescore:
    """Make the tokens ``first [n]`` the only ones that a text can begin with."""

    def rescore(state: State, draft: Draft, scores: Scores) -> Scores:
        depth = draft.tree.depth[:, : scores.logits.shape[1]]
        place = (state.length - state.start)[:, None] + depth
        token = first[place.clamp_max(len(first) - 1)]
        only = torch.full_like(scores.logits, float("-inf")).scatter(2, token[..., None], 0.0)
        early = (place < len(first))[..., None]
        return replace(scores, logits=torch.where(early, only, scores.logits))

    return rescore


def _cell(row: list[int], first: list[int], cells: dict[tuple[int, ...], float]) -> tuple[int, ...]:
    """The longest beginning of what follows ``first`` that is a cell; the text itself where none
    is."""
    n = len(first)
    for end in range(n + FIRST, n - 1, -1):
        if row[:n] == first and tuple(row[n:end]) in cells:
            return tuple(row[n:end])
    return tuple(row)


def beginnings(
    target: Target, prompt: list[int], sampling: Sampling, length: int
) -> dict[tuple[int, ...], float]:
    """List every text of ``length`` tokens after a prompt with its probability, by the model's own
    forward.

    At a near-tie, where top_k's last token and the first that it drops differ by rounding only, the
    beginning so far stands for all texts that go on from it.

    Raises:
        ArgumentError: There are more than ``MAX_TEXTS``.
    """
    level: dict[tuple[int, ...], float] = {(): 1.0}
    undecided: dict[tuple[int, ...], float] = {}
    for _ in range(length):
        rows = torch.tensor([[*prompt, *text] for text in level], device=target.device)
        with torch.inference_mode():
            logits = target.model(rows, use_cache=False).logits[:, -1].double()
        p = sampling.probabilities(logits)
        p = p / p.sum(-1, keepdim=True)
        next_level: dict[tuple[int, ...], float] = {}
        for (text, probability), row, distribution in zip(level.items(), logits, p, strict=True):
            if _near_tie(row, sampling.top_k, target.dtype):
                undecided[text] = probability
                continue
            for token in distribution.nonzero().flatten().tolist():
                next_level[(*text, token)] = probability * float(distribution[token])
            if len(next_level) + len(undecided) > MAX_TEXTS:
                raise ArgumentError(
                    f"there are more than {MAX_TEXTS} texts of {length} tokens to tell apart; "
                    f"give a smaller top_k (got {sampling.top_k})"
                )
        level = next_level
        if not level:
            break
    return {**undecided, **level}


def _near_tie(logits: Tensor, k: int, dtype: torch.dtype) -> bool:
    """Whether rounding decides which tokens are the k most probable."""
    if not 0 < k < len(logits):
        return False
    largest = logits.topk(k + 1).values
    rounding = 8 * torch.finfo(dtype).eps * logits.abs().max()
    return bool(largest[-2] - largest[-1] < rounding)


def _merged(cells: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """(observed, expected) counts of cells that expect ``MIN_EXPECTED`` or more.

    Small cells are merged. If all cells together expect less than that, there is none.
    """
    merged: list[tuple[int, float]] = []
    observed, expected = 0, 0.0
    for count, expectation in sorted(cells, key=lambda cell: cell[1]):
        observed, expected = observed + count, expected + expectation
        if expected >= MIN_EXPECTED:
            merged.append((observed, expected))
            observed, expected = 0, 0.0
    if expected and merged:  # what remains joins the last cell
        count, expectation = merged.pop()
        merged.append((count + observed, expectation + expected))
    return merged
