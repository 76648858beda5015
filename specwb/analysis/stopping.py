"""When to stop drafting: what it does to the law, to tokens a round and to speed. Fractions stay fractions.

What is proved of these functions is in theory/12_kangaroo.md. :func:`stopped`,
:func:`best_stopping` and :func:`next_kept` take rounds to be independent and alike, whatever the
rule does in them. Rounds of one text are not, as a kept token moves the place where the next one
begins: theorem 12.4.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from specwb.verify.exact import Dist, minus, norm

History = tuple[Any, ...]
"""How sure the drafter was of the tokens drafted so far: for each the probability that it is kept, given that all before it are."""
Sure = Callable[[History], Sequence[tuple[Any, Any]]]
"""What the next one may be and with which probabilities, after a history: ``[(value, probability), ..]``."""
Price = float | Fraction | Callable[[int], Any]
"""Time of drafting and scoring one more token over a plain step's: a number, or a function of the token's place, from 1 on."""


def left_out_law(p: Dist, q: Dist, out: Collection[int]) -> list[Fraction]:
    """What comes out where a token of ``out`` that was drawn from q is left out untested, p closing in its place:
    ``1[y not in out] min(p, q)(y) + q(out) p(y) + (1 - share) (p - q)+(y)``, ``share = sum_{x in out} (q - p)+ / sum (q - p)+``.

    It is off by ``sum_{x in out} q(x) (p - K_x)``, ``K_x`` what comes out if x is tested; of no token left out, or all, it is p.

    Args:
        p, q: target and draft law. out: the tokens that are left out where they are drawn.
    Raises:
        ValueError: a token that is not in the vocabulary.
    Source: theorem 12.2. Tested tokens: by rejection (Leviathan et al. 2023).
    """
    gone = set(out)
    if not gone <= set(range(len(p))):
        raise ValueError(f"tokens are 0..{len(p) - 1}, got {sorted(gone)}")
    rest, over = minus(p, q), minus(q, p)
    mass = sum((q[x] for x in gone), Fraction(0))
    closes = norm(rest) if any(rest) else [0 * a for a in p]
    rejected = sum((a for x, a in enumerate(over) if x not in gone), Fraction(0))
    return [(0 if y in gone else min(p[y], q[y])) + mass * p[y] + rejected * closes[y] for y in range(len(p))]


def compression(kept: Sequence[int]) -> tuple[Fraction, list[Fraction]]:
    """Compression rate and CTAR of rounds: ``CR = mean(1 + kept)``, ``CTAR(w) = share of rounds with kept >= w``, w = 1, 2, ..; CR = 1 + sum CTAR(w).

    Args:
        kept: drafted tokens kept in each round.
    Raises:
        ValueError: no round, or a number below 0.
    Source: Liu et al. 2024 (Kangaroo), 3.1. CR is tau.
    """
    if not kept or min(kept) < 0:
        raise ValueError(f"rounds that keep 0 or more tokens, at least one round; got {list(kept)}")
    n = len(kept)
    return 1 + Fraction(sum(kept), n), [Fraction(sum(k >= w for k in kept), n) for w in range(1, max(kept) + 1)]


def round_time(drafted: Any, r: Any, a: Any, v: Any = 1) -> Any:
    """Time of a round over a plain step's: ``1 + D (r + a) + (1 - r) (v - 1)``.

    D + 1 tokens go through the first layers one by one, D through adapter and head, and all at once through the layers behind the exit.

    Args:
        drafted: D, or its mean where v is 1. r: one token through the first layers, a: adapter and head once, both over a plain step.
        v: time of D + 1 tokens behind the exit over one token's; 1 where reading the weights takes all the time.
    """
    return 1 + drafted * (r + a) + (1 - r) * (v - 1)


def implied_price(cr: Any, drafted: Any, speedup: Any) -> Any:
    """What a drafted token took, from a measured speedup: ``c = (CR / speedup - 1) / E[D]``, which is r + a where scoring many tokens is as cheap as
    scoring one.

    Args:
        cr: compression rate. drafted: mean number of drafted tokens a round, > 0. speedup: measured.
    """
    return (cr / speedup - 1) / drafted


class Stopped(NamedTuple):
    """cr: tokens a round. drafted: tokens drafted a round. speedup: over plain decoding. wasted: drafted and not kept."""

    cr: Any
    drafted: Any
    speedup: Any

    @property
    def wasted(self) -> Any:
        return self.drafted - (self.cr - 1)


def stopped(sure: Sure, gamma: int, onward: Callable[[History], bool], price: Price) -> Stopped:
    """What a stopping rule comes to: ``CR = 1 + E[sum_{k <= D} c_1 .. c_k]``, ``speedup = CR / (1 + E[sum_{k <= D} price_k])``, by enumeration.

    The speedup is that of many rounds which are all independent draws from ``sure``.

    Args:
        sure: how sure the drafter is of each next token, which is taken to be true (calibrated). gamma: at most so many tokens.
        onward: is one more drafted after this history? It is asked with the empty one too. price: of a drafted token.
    Raises:
        ValueError: gamma < 0, a price below 0, or ``sure`` is no law.
    """
    kept = drafted = time = 0 * Fraction(1)
    for history, chance in _histories(sure, gamma, onward):
        if history:
            kept, drafted, time = kept + chance * math.prod(history), drafted + chance, time + chance * _price(price, len(history))
    return Stopped(1 + kept, drafted, (1 + kept) / (1 + time))


class Best(NamedTuple):
    """The best rule: what it comes to, and the histories after which it goes on."""

    result: Stopped
    onward: frozenset[History]


def best_stopping(sure: Sure, gamma: int, price: Price) -> Best:
    """The stopping rule with the largest speedup, among all that know the history of their round,
    where every round is an independent draw from ``sure`` (theorem 12.4.3).

    With ``F(s) = max over rules of E[tokens] - s E[time]``, convex and falling in s, the largest speedup S* is its root; a rule that attains F(s) by
    backward induction, and s put to that rule's own ratio, again and again, comes to it (Dinkelbach) in finitely many steps. Of equals it stops.

    Args, errors: as of :func:`stopped`.
    """
    speed = stopped(sure, gamma, lambda _: False, price).speedup  # plain decoding: 1
    while True:
        chosen: set[History] = set()

        def worth(history: History, reached: Any, speed: Any = speed, chosen: set[History] = chosen) -> Any:
            """Tokens minus ``speed`` times time, of what is drafted after ``history``, all of which is kept with probability ``reached``."""
            if len(history) == gamma:
                return 0
            gain = -speed * _price(price, len(history) + 1)
            for c, chance in _law(sure, history):
                gain = gain + chance * (reached * c + worth((*history, c), reached * c))
            if gain > 0:
                chosen.add(history)
            return max(gain, 0)

        worth((), Fraction(1))
        found = stopped(sure, gamma, chosen.__contains__, price)
        if not found.speedup > speed:
            reachable = frozenset(h for h in chosen if all(h[:i] in chosen for i in range(len(h))))
            return Best(found, reachable)
        speed = found.speedup


def next_kept(sure: Sure, history: History) -> Any:
    """The probability that all tokens so far and the next one are kept, before it is drafted: ``c_1 .. c_k E[c_{k+1} | c_1..c_k]``.

    Where rounds are independent and alike, whatever the rule, one more token is worth drafting if
    this is above ``price * speedup``, the speedup being the best one (theorem 12.4.4).
    """
    return math.prod(history, start=Fraction(1)) * sum(c * chance for c, chance in _law(sure, history))


def independent(values: Sequence[tuple[Any, Any]]) -> Sure:
    """Tokens of which the drafter is sure to degrees that are drawn independently from one law ``[(value, probability), ..]``."""
    return lambda history: values


def _histories(sure: Sure, gamma: int, onward: Callable[[History], bool]) -> Iterator[tuple[History, Any]]:
    if gamma < 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    todo: list[tuple[History, Any]] = [((), Fraction(1))]
    while todo:
        history, chance = todo.pop()
        yield history, chance
        if len(history) < gamma and onward(history):
            todo += [((*history, c), chance * b) for c, b in _law(sure, history) if b]


def _law(sure: Sure, history: History) -> Sequence[tuple[Any, Any]]:
    law = sure(history)
    if not all(0 <= c <= 1 and b >= 0 for c, b in law) or abs(float(sum(b for _, b in law)) - 1) > 1e-9:
        raise ValueError(f"after {history}: values in [0, 1] whose probabilities sum to 1, got {list(law)}")
    return law


def _price(price: Price, place: int) -> Any:
    value = price(place) if callable(price) else price
    if value < 0:
        raise ValueError(f"a drafted token cannot take less than no time, got {value}")
    return value
