"""When to stop drafting: the effects on the output, on tokens per decoding step and on speed.

Fractions stay fractions. The theorems about these functions are in theory/12_kangaroo.md.

:func:`stopped`, :func:`best_stopping` and :func:`next_kept` assume that steps are independent and
identically distributed, whatever the rule. Steps of one text are not, as an accepted token moves
the position where the next one begins: theorem 12.4.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from specwb.core.errors import ArgumentError
from specwb.theory.exact import (
    Dist,
    ExactDecision,
    Tokens,
    iid,
    output_distribution,
    rejection,
)

History = tuple[Any, ...]
"""The drafter's confidence in the tokens drafted so far: for each the probability that it is
accepted, given that all before it are."""
Sure = Callable[[History], Sequence[tuple[Any, Any]]]
"""What the next such probability may be after a history, and how likely each value is:
``[(value, probability), ..]``."""
Price = float | Fraction | Callable[[int], Any]
"""Time of drafting and scoring one more token over a plain step's: a number, or a function of the
draft token's position, from 1 on."""


def left_out_distribution(p: Dist, q: Dist, out: Collection[int]) -> list[Fraction]:
    """The output's distribution if a drawn token of ``out`` is left out untested.

    The token was drawn from q, and the bonus token is then drawn from p in its place. The output
    has the distribution

        1[y not in out] min(p, q)(y) + q(out) p(y) + (1 - s) (p - q)+(y),
        s = sum_{x in out} (q - p)+(x) / sum (q - p)+.

    This is off by ``sum_{x in out} q(x) (p - o_x)``, o_x being the distribution of the output if x
    is tested. It is p if no token is left out, or all are.

    Args:
        out: The tokens that are left out when they are drawn.
    Raises:
        ValueError: A token that is not in the vocabulary.
    Source: theorem 12.2. Tested tokens: by rejection (Leviathan et al. 2023).
    """
    skipped = set(out)
    if not skipped <= set(range(len(p))):
        raise ArgumentError(f"tokens are 0..{len(p) - 1}, got {sorted(skipped)}")

    def rule(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
        return rejection(p, q, tokens) if tokens[0] not in skipped else ([Fraction(0)], list(p))

    return output_distribution(rule, iid, p, q, 1)


def compression(kept: Sequence[int]) -> tuple[Fraction, list[Fraction]]:
    """Compression rate ``CR = mean(1 + kept)`` and ``CTAR(w)``, which add up: CR = 1 + sum CTAR(w).

    CTAR(w) is the fraction of steps that accept at least w draft tokens, w = 1, 2, .. to the
    largest number accepted; ``kept`` is how many draft tokens each step accepted.

    Source: Liu et al. 2024 (Kangaroo), 3.1. CR is tau.
    """
    if not kept or min(kept) < 0:
        raise ArgumentError(
            f"kept must be 0 or more accepted tokens for at least one step; got {list(kept)}"
        )
    n = len(kept)
    cr = 1 + Fraction(sum(kept), n)
    ctar = [Fraction(sum(k >= w for k in kept), n) for w in range(1, max(kept) + 1)]
    return cr, ctar


def round_time(drafted: Any, r: Any, a: Any, v: Any = 1) -> Any:
    """A step takes ``1 + D (r + a) + (1 - r) (v - 1)`` times a plain step.

    D + 1 tokens go through the first layers one by one (r: time of one over a plain step), D
    through adapter and head (a), and all at once through the layers behind the exit (v: time of D +
    1 tokens over one token's; 1 where reading the weights takes all the time). D may be a mean
    where v is 1.
    """
    return 1 + drafted * (r + a) + (1 - r) * (v - 1)


def implied_price(cr: Any, drafted: Any, speedup: Any) -> Any:
    """A measured speedup implies that a draft token took ``c = (CR / speedup - 1) / E[D]``, CR
    being the compression rate and E[D] > 0 the mean number of draft tokens per step.

    This is r + a of :func:`round_time` where scoring many tokens is as cheap as scoring one.
    """
    return (cr / speedup - 1) / drafted


class Stopped(NamedTuple):
    """The result of a stopping rule."""

    cr: Any  # tokens per step
    drafted: Any  # draft tokens per step
    speedup: Any  # over plain decoding

    @property
    def wasted(self) -> Any:
        """Draft tokens per step that are not accepted."""
        return self.drafted - (self.cr - 1)


def stopped(sure: Sure, gamma: int, onward: Callable[[History], bool], price: Price) -> Stopped:
    """A stopping rule with draft length D has ``CR = 1 + E[sum_{i <= D} pi_1 .. pi_i]``.

    Its speedup is ``CR / (1 + E[sum_{i <= D} delta_i])``, that of many steps which are all
    independent draws from ``sure``. Both are computed by enumeration.

    Args:
        sure: pi_i, how sure the drafter is of each next token, which is taken to be true
            (calibrated).
        gamma: The largest number of draft tokens.
        onward: Whether one more token is drafted after a history. It is called with the
            empty history too.
        price: delta_i, the time of a draft token.
    Raises:
        ValueError: gamma < 0, a price below 0, or ``sure`` gives no distribution.
    """
    accepted = drafted = time = 0 * Fraction(1)
    for history, probability in _histories(sure, gamma, onward):
        if history:
            accepted = accepted + probability * math.prod(history)
            drafted = drafted + probability
            time = time + probability * _price(price, len(history))
    return Stopped(1 + accepted, drafted, (1 + accepted) / (1 + time))


class Best(NamedTuple):
    """The best stopping rule."""

    result: Stopped
    onward: frozenset[History]  # after which it drafts one more token


def best_stopping(sure: Sure, gamma: int, price: Price) -> Best:
    """The stopping rule with the largest speedup, of all that know the history of their step.

    Every step is an independent draw from ``sure`` (theorem 12.4.3). With ``F(s) = max over rules
    of E[tokens] - s E[time]``, convex and falling in s, the largest speedup sigma* is the root of
    F. Backward induction gives a rule that attains F(s); s is then set to that rule's own speedup,
    repeatedly, which reaches sigma* in finitely many steps (Dinkelbach). If going on and stopping
    are equally good, the rule stops.
    """
    speed = stopped(sure, gamma, lambda _: False, price).speedup  # plain decoding: 1
    while True:
        onward = _best_at(speed, sure, gamma, price)
        result = stopped(sure, gamma, onward.__contains__, price)
        if not result.speedup > speed:
            # only histories that the rule itself comes to
            return Best(
                result,
                frozenset(h for h in onward if all(h[:i] in onward for i in range(len(h)))),
            )
        speed = result.speedup


def _best_at(speed: Any, sure: Sure, gamma: int, price: Price) -> set[History]:
    """The histories after which a rule that attains F(speed) goes on, by backward induction."""
    onward: set[History] = set()

    def worth(history: History, reached: Any) -> Any:
        """Tokens minus ``speed`` times time, of what is drafted after ``history``, all of which is
        accepted with probability ``reached``."""
        if len(history) == gamma:
            return 0
        gain = -speed * _price(price, len(history) + 1)
        for c, probability in _next_values(sure, history):
            gain = gain + probability * (reached * c + worth((*history, c), reached * c))
        if gain > 0:
            onward.add(history)
        return max(gain, 0)

    worth((), Fraction(1))
    return onward


def next_kept(sure: Sure, history: History) -> Any:
    """Before the next token is drafted, it and all so far are accepted with probability
    ``b_i = pi_1 .. pi_{i-1} E[pi_i | pi_1..pi_{i-1}]``.

    Where steps are independent and alike, whatever the rule, one more token is worth drafting if
    this is above ``price * speedup``, the speedup being the best one (theorem 12.4.4).

    Args:
        history: pi_1, .., pi_{i-1}.
    """
    so_far = math.prod(history, start=Fraction(1))
    return so_far * sum(c * probability for c, probability in _next_values(sure, history))


def independent(values: Sequence[tuple[Any, Any]]) -> Sure:
    """A drafter whose confidence in each token is drawn independently from one distribution,
    ``[(value, probability), ..]``."""
    return lambda history: values


def _histories(
    sure: Sure, gamma: int, onward: Callable[[History], bool]
) -> Iterator[tuple[History, Any]]:
    """Every history that the rule comes to, with its probability."""
    if gamma < 0:
        raise ArgumentError(f"gamma must be at least 0, got {gamma}")
    todo: list[tuple[History, Any]] = [((), Fraction(1))]
    while todo:
        history, probability = todo.pop()
        yield history, probability
        if len(history) < gamma and onward(history):
            todo += [((*history, c), probability * b) for c, b in _next_values(sure, history) if b]


def _next_values(sure: Sure, history: History) -> Sequence[tuple[Any, Any]]:
    """``sure(history)``, checked."""
    values = sure(history)
    total = float(sum(b for _, b in values))
    if not all(0 <= c <= 1 and b >= 0 for c, b in values) or abs(total - 1) > 1e-9:
        raise ArgumentError(
            f"after {history}: values in [0, 1] whose probabilities sum to 1, got {list(values)}"
        )
    return values


def _price(price: Price, position: int) -> Any:
    value = price(position) if callable(price) else price
    if value < 0:
        raise ArgumentError(f"a draft token cannot take less than no time, got {value}")
    return value
