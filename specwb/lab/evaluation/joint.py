"""The chi-square test of short texts: their joint distribution against the target's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from scipy import optimize, stats
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, Scores, State
from specwb.core.probability import Sampling
from specwb.engine.decoding import decode
from specwb.engine.loop import Rescore
from specwb.engine.methods import Method
from specwb.lab.evaluation.alarm import AGAIN, ALARM, AT_ONCE, DOUBT, MORE, Outcome
from specwb.models.target import Target

POWER = 0.8
"""The probability with which a deviation is found that counts as seen."""
FIRST = 3
"""How many tokens have their joint distribution compared."""
MIN_EXPECTED = 8
"""How many texts a cell of the chi-square test expects, at least."""
MAX_TEXTS = 4096
"""How many different texts are listed, at most."""
BATCH = 256
"""Rows of a batch."""


@dataclass(frozen=True)
class Joint(Outcome):
    """The chi-square test of short texts: its p-value, its size, and what it can see."""

    statistic: float  # chi-square, Pearson's or the likelihood ratio's, whichever is smaller
    freedom: int  # its degrees of freedom; at 0 nothing was compared
    texts: int  # how many were decoded
    impossible: str = ""  # one of them that the target cannot write, or ""

    @property
    def own(self) -> float:
        if self.impossible:
            return 0.0
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0

    @property
    def sees(self) -> float:
        """The smallest total variation that is found with probability ``POWER``.

        It is a mean over the prompts. A deviation of total variation d from p has
        ``sum (r - p)^2 / p >= 4 d^2`` (Cauchy and Schwarz), so that chi-square of n texts is
        noncentral with at least ``4 n d^2``. The noncentrality that is found so often follows from
        the degrees of freedom. At 1 nothing is seen.
        """
        if not self.freedom:
            return 1.0
        needed = optimize.brentq(
            lambda noncentrality: self._finds(noncentrality) - POWER,
            1e-6,
            100 * float(stats.chi2.isf(AT_ONCE, self.freedom)),
        )
        return min(1.0, (needed / (4 * self.texts)) ** 0.5)

    @property
    def power(self) -> float:
        """How often a test of this size finds a deviation like the measured one.

        It is computed from the noncentral chi-square at the measured noncentrality,
        ``chi-square - degrees of freedom``.
        """
        if self.impossible:
            return 1.0
        excess = self.statistic - self.freedom
        return self._finds(excess) if self.freedom and excess > 0 else ALARM

    def _finds(self, noncentrality: float) -> float:
        """How often a deviation of such a noncentrality is found: at once, or in the second run
        that follows where the first leaves a doubt (this one, where it is the second)."""

        def below(level: float, noncentrality: float) -> float:
            critical = stats.chi2.isf(level, self.freedom)
            return float(stats.ncx2.sf(critical, self.freedom, noncentrality))

        if self.first is not None:
            return below(AGAIN, noncentrality)
        at_once, doubted = below(AT_ONCE, noncentrality), below(DOUBT, noncentrality)
        return at_once + (doubted - at_once) * below(AGAIN, MORE * noncentrality)


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
        target: the target model.
        method: a built method.
        prompts: token ids of every prompt.
        sampling: temperature and filters.
        rows: texts in all, over the prompts.
        seed: of the sampling.
        begin: tokens that the method has to write before the three, for every prompt: until then
            the target's distribution, which it drafts for and verifies with as ever, is certainty
            of the next of them. Default none.
    """
    texts = -(-rows // len(prompts))  # a prompt, rounded up
    pearson, ratio, freedom, impossible = 0.0, 0.0, 0, ""
    for i, prompt in enumerate(prompts):
        first = [] if begin is None else begin[i]
        cells = beginnings(target, prompt + first, sampling, FIRST)
        counts: Counter[tuple[int, ...]] = Counter()
        for start in range(0, texts, BATCH):
            generator = torch.Generator().manual_seed(
                seed * 1_000_003 + i * 10_007 + start + len(first)
            )
            output = decode(
                target,
                [prompt] * min(BATCH, texts - start),
                method,
                max_new_tokens=len(first) + FIRST,
                eos=(),
                seed=generator,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                rescore=_certain(torch.tensor(first, device=target.device)) if first else None,
            )
            counts.update(_cell(row, first, cells) for row in output.tokens)
        for text in counts.keys() - cells.keys():
            words = target.tokenizer.decode(text) if target.tokenizer is not None else ""
            impossible = impossible or f"{text} {words!r} after prompt {i}"
        observed, expected = _merged(
            [(counts[text], texts * probability) for text, probability in cells.items()]
        )
        for a, b in zip(observed, expected, strict=True):
            pearson += (a - b) ** 2 / b
            ratio += 2 * a * math.log(a / b) if a else 0.0
        freedom += max(0, len(expected) - 1)
    # cells that expect few texts are skewed upwards, which makes Pearson's statistic alone fail
    # right methods several times as often as its p-value says
    return Joint(min(pearson, ratio), freedom, texts * len(prompts), impossible)


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
    """List every text of ``length`` tokens after a prompt with its probability.

    The probabilities are the model's own forward's. Where top_k's last token and the first that it
    drops differ by rounding only, the beginning so far stands for all texts that go on from it.
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
            if _undecided(row, sampling.top_k, target.dtype):
                undecided[text] = probability
                continue
            tokens = distribution.nonzero().flatten()
            chances = distribution[tokens].tolist()
            for token, chance in zip(tokens.tolist(), chances, strict=True):
                next_level[(*text, token)] = probability * chance
            if len(next_level) + len(undecided) > MAX_TEXTS:
                raise ArgumentError(
                    f"there are more than {MAX_TEXTS} texts of {length} tokens to tell apart; "
                    f"give a smaller top_k (got {sampling.top_k})"
                )
        level = next_level
        if not level:
            break
    return {**undecided, **level}


def _undecided(logits: torch.Tensor, k: int, dtype: torch.dtype) -> bool:
    """Whether rounding decides which tokens are the k most probable."""
    if not 0 < k < len(logits):
        return False
    largest = logits.topk(k + 1).values
    rounding = 8 * torch.finfo(dtype).eps * logits.abs().max()
    return bool(largest[-2] - largest[-1] < rounding)


def _merged(cells: Iterable[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Observed and expected counts of cells that expect ``MIN_EXPECTED`` or more.

    Small cells are merged. If all cells together expect less than that, there is none.
    """
    observed: list[int] = []
    expected: list[float] = []
    count_sum, expected_sum = 0, 0.0
    for count, expectation in sorted(cells, key=lambda cell: cell[1]):
        count_sum += count
        expected_sum += expectation
        if expected_sum >= MIN_EXPECTED:
            observed.append(count_sum)
            expected.append(expected_sum)
            count_sum, expected_sum = 0, 0.0
    if expected_sum and expected:  # what remains joins the last cell
        observed[-1] += count_sum
        expected[-1] += expected_sum
    return observed, expected
