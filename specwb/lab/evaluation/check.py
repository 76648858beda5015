"""Does a method keep the target's distribution?

This is a check on the real target, for drafters and rules under development.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.flow import Scheme
from specwb.core.probability import COLDEST, Sampling
from specwb.drafters.admission import Admission, Costs
from specwb.engine.decoding import decode
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.lab.evaluation.joint import BATCH, FALSE_ALARM, FIRST, TESTS, Joint, decided, joint
from specwb.lab.evaluation.martingale import Martingale, martingale
from specwb.models.prompts import Prompt, token_rows
from specwb.models.target import Target

LATER = 4
"""How many tokens are written before the second test of three tokens."""
LENGTH = 24
"""Tokens of a longer text."""


@dataclass(frozen=True)
class Check:
    """The result of :func:`check`.

    Attributes:
        method: the method's key.
        greedy: whether greedy text equals plain decoding's, all prompts in one batch.
        batch: whether a row alone gives the text that it gives in the batch, at the temperature and
            top_k of the chi-square test; None with ``verify=auto``, where it need not. Rounding can
            make a right method miss it: where two computations of a distribution differ by 1e-7 at
            each of k boundaries of its cumulated probabilities, a uniform falls between them with
            probability k 1e-7.
        joint: the test of the first three tokens' joint distribution.
        later: the same of three tokens after four others.
        martingale: the test of longer texts.
        mean_tokens_per_step: of greedy decoding.
    """

    method: str
    greedy: bool
    batch: bool | None
    joint: Joint
    later: Joint
    martingale: Martingale
    mean_tokens_per_step: float

    @property
    def pvalue(self) -> float:
        """The smallest of the three p-values, times three (Bonferroni).

        For a right method it is below 1e-4 once in 10,000 checks or more rarely.
        """
        tests = (self.joint, self.later, self.martingale)
        return min(1.0, TESTS * min(test.pvalue for test in tests))

    @property
    def passed(self) -> bool:
        return self._unfailing and self.joint.freedom > 0

    @property
    def _unfailing(self) -> bool:
        """Whether nothing that was tested has failed."""
        return self.greedy and self.batch is not False and self.pvalue > FALSE_ALARM

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        if not self.joint.freedom and self._unfailing:
            verdict = "not decided"
        drift = self.martingale
        along = f", along {drift.worst}" if drift.failed else ""
        lines = [
            f"{self.method}: {verdict}",
            f"  greedy text is plain decoding's: {_answer(self.greedy)} "
            f"(tau {self.mean_tokens_per_step:.2f})",
            f"  a row alone is the row in the batch: {_answer(self.batch)}",
            f"  the first {FIRST} tokens have the target's distribution: {_result(self.joint)}",
            f"  {FIRST} tokens after {LATER} others have the target's distribution: "
            f"{_result(self.later)}",
            f"  single tokens of longer texts have it: {_answer(not drift.failed)} "
            f"(p-value {drift.pvalue:.2g}, {drift.tokens} tokens{along})",
        ]
        return "\n".join(lines)


def _at_a_price(method: Method, rows: int) -> Method:
    """The method; with ``verify=auto`` one for up to ``rows`` rows in which a node costs nothing if
    it is the first, a token if it is the last of all, so that drafts are verified in part."""
    if not isinstance(method.drafter, Admission):
        return method
    drafter, free = copy.copy(method.drafter), dict.fromkeys(method.drafter.options, 0.0)
    nodes, shares = drafter.limits.nodes - 1, [i / 8 for i in range(9)]
    drafter.costs = {
        n: Costs({n + round(n * nodes * x): n * (1 + nodes * x**2 / 2) for x in shares}, free)
        for n in range(1, rows + 1)
    }
    drafter.shared, drafter.planted = {}, True
    return replace(method, drafter=drafter)


def _answer(yes: bool | None) -> str:
    return "not asked of verify=auto" if yes is None else "yes" if yes else "NO"


def _result(test: Joint) -> str:
    """The answer of a chi-square test."""
    if test.impossible:
        return f"NO, the target cannot write {test.impossible}"
    if not test.texts:
        return "not tested, since several roots are drawn before the target is changed"
    if not test.freedom:
        return f"not decided, {test.texts} texts are too few; give more rows"
    return (
        f"{_answer(not test.failed)} (p-value {test.pvalue:.2g}, {test.texts} texts; "
        f"a total variation of {test.sees:.2g} is seen 8 times in 10)"
    )


def check(
    target: Target,
    method: str | Method,
    prompts: Sequence[Prompt],
    *,
    temperature: float = 1.0,
    top_k: int = 3,
    max_new_tokens: int = 8,
    rows: int = 1024,
    seed: int = 0,
    **options,
) -> Check:
    """Decode with a method and compare with what the target alone would write.

    Greedy text must be the same, and sampled text must have the same distribution. Three tests ask
    for the latter; which of them finds which fault, and how often, is in docs/check.md.

    The first is a chi-square test of the first three tokens. With ``top_k`` three tokens can follow
    each other token, which makes 27 texts of three tokens per prompt. Their probabilities are
    computed from the model's own forward (13 prefixes, three batches), ``rows`` texts are decoded,
    and the two are compared; cells that expect fewer than eight texts are merged. The test sees
    whatever moves the joint distribution of these tokens, for whatever reason. The report says how
    small a total variation it finds with probability .8 (:attr:`Joint.sees`). That falls with the
    square root of ``rows``: four times as many see a deviation half as large.

    The second is the same test, with a quarter of the rows, of the three tokens after the first
    four, which are the greedy text's: the target is made certain of them, so that steps begin and
    end among them as they happen to, and drafter and rule have a past.

    The third looks at longer texts and the whole vocabulary, at all depths, on an eighth as many
    rows of 24 tokens: a martingale test along the draft's distribution, see
    :func:`specwb.lab.evaluation.martingale.martingale`.

    Each has a third of the 1e-4 that a right method may fail with. One that comes close is made
    again with four times the rows (:mod:`specwb.lab.evaluation.joint`).

    Texts are not told apart beyond a beginning where rounding decides: where the last token that
    top_k keeps is within rounding of the first that it drops. In half precision rounding itself
    moves the distribution, so load the target in float32. A row alone is compared with the row in a
    batch under ``top_k`` too: of k tokens a draw rounding changes one about k 1e-7 times, of a
    whole vocabulary of thousands often enough to meet it.

    With ``verify=auto`` the price of a node does not follow this machine's seconds, by which all or
    none might be verified: it rises from nothing to one token with the number of nodes. A row alone
    is not compared, since what is verified of it depends on the other rows.

    Args:
        target: the target model.
        method: a spec or a :class:`Method`. A rule of your own is given as ``rule=MyRule`` (class
            or instance).
        prompts: several texts or lists of token ids, better of different lengths.
        temperature: of the sampled parts, at least 1e-4 (below it decoding is greedy) and high
            enough that drafts are rejected.
        top_k: of the chi-square tests; 0 takes the whole vocabulary, for tiny ones.
        max_new_tokens: of the texts that are compared for equality.
        rows: texts of three tokens, distributed among the prompts.
        seed: of the sampling.
        options: the method's own.
    Raises:
        ValueError: temperature < 1e-4, rows < 1, there are more than 4,096 texts to tell apart,
            or whatever :func:`specwb.decode` refuses.
    """
    if Sampling(temperature).greedy:
        raise ArgumentError(
            f"temperature is of the sampled part and must be >= {COLDEST:g}, got {temperature}; "
            "the greedy part is always run"
        )
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError(f"rows must be >= 1, got {rows!r}")
    if isinstance(prompts, str):
        raise ArgumentError("prompts must be a list of prompts, got one text")
    ids = token_rows(target, prompts)
    chosen = method if isinstance(method, Method) else make_method(method, target, **options)
    chosen = _at_a_price(chosen, max(BATCH, len(ids)))
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos": ()}
    plain = decode(target, ids, "ar", **settings)
    greedy = decode(target, ids, chosen, **settings)

    settings["temperature"] = temperature
    seeds = [seed + i for i in range(len(ids))]
    batch = None
    if not isinstance(chosen.drafter, Admission):
        in_batch = decode(target, ids, chosen, seed=seeds, top_k=top_k, **settings)
        alone = [
            decode(target, [row], chosen, seed=[row_seed], top_k=top_k, **settings).tokens[0]
            for row, row_seed in zip(ids, seeds, strict=True)
        ]
        batch = in_batch.tokens == alone

    sampling, whole = Sampling(temperature, top_k), Sampling(temperature)
    first = decided(partial(joint, target, chosen, ids, sampling), rows, seed)
    later = Joint(0.0, 0, 0)
    if chosen.drafter.scheme(sampling) is not Scheme.ROOTS:  # which are drawn before any rescoring
        begin = [text[:LATER] for text in plain.tokens]
        run = partial(joint, target, chosen, ids, sampling, begin=begin)
        later = decided(run, -(-rows // 4), seed)
    length = min(LENGTH, target.context - max(map(len, ids)))
    longer = partial(martingale, target, chosen, ids, whole, length)
    return Check(
        method=chosen.key,
        greedy=greedy.tokens == plain.tokens,
        batch=batch,
        joint=first,
        later=later,
        martingale=decided(longer, -(-rows // 8), seed),
        mean_tokens_per_step=greedy.mean_tokens_per_step,
    )
