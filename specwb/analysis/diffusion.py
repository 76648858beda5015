"""Drafts that are said in one pass, exactly, on tables: what the row of first choices keeps, what a path keeps, what drawing keeps, and how a
draft's length adapts.

A block is the joint law of the next k tokens given the text: ``{tokens: probability}``, every key of length k, what is missing has probability 0;
``specwb.verify.exact.target_law`` makes one of a model. Fractions stay fractions, floats stay floats. ``p(x^j)`` is the probability of the first j
tokens of x. What is proved of these functions is in theory/11_diffuspec.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

Tokens = tuple[int, ...]
Joint = Mapping[Tokens, Fraction]
Law = Sequence[Fraction]

_0, _1 = Fraction(0), Fraction(1)


def marginals(joint: Joint) -> list[list[Fraction]]:
    """What one pass can say at best: ``m_i(x) = P(X_i = x | text)``, a law for every place.

    Args:
        joint: a block.
    Returns: k laws over the tokens 0 .. the largest that occurs.
    Raises:
        ValueError: no law: keys of different lengths, a negative probability, or a sum that is not 1.
    """
    k, v = _read(joint)
    laws = [[_0] * v for _ in range(k)]
    for tokens, chance in joint.items():
        for law, x in zip(laws, tokens, strict=True):
            law[x] += chance
    return laws


def argmax_row(joint: Joint) -> Tokens:
    """The draft of a pass without search: ``r_i = argmax m_i``, of equals the lowest. Errors as :func:`marginals`."""
    return tuple(_argmax(law) for law in marginals(joint))


def greedy_path(joint: Joint) -> Tokens:
    """What plain decoding at temperature 0 writes: ``g_i = argmax p(. | g_<i)``, of equals the lowest. Errors as :func:`marginals`.

    At temperature 0 a draft keeps as many tokens as it has in common with this from the first on.
    """
    k, v = _read(joint)
    mass = _beginnings(joint)
    path: Tokens = ()
    for _ in range(k):
        path = (*path, _argmax([mass.get((*path, x), _0) for x in range(v)]))
    return path


def expected_accepted(joint: Joint, path: Tokens) -> Fraction:
    """How many tokens of a path the point-mass rule keeps, on average: ``E(x) = sum_j p(x^j) = sum_j prod_{i<=j} p(x_i | x_<i)``.

    Args:
        joint: a block of k tokens. path: up to k tokens, chosen without a look at the verification's noise.
    Raises:
        ValueError: no law, or a path that is longer than the block.
    Source: theorem 4.4 for a chain. No lossless rule that is given the path keeps more of it.
    """
    k, _ = _read(joint)
    if len(path) > k:
        raise ValueError(f"the block has {k} tokens, the path {len(path)}")
    mass = _beginnings(joint)
    return sum((mass.get(path[:j], _0) for j in range(1, len(path) + 1)), _0)


def drawn_accepted(joint: Joint, laws: Sequence[Law] | None = None) -> Fraction:
    """How many tokens the ratio rule keeps where every place is drawn by itself: ``sum_j sum_{x^j} prod_{i<=j} min(p(x_i | x_<i), q_i(x_i))``.

    Args:
        joint: a block of k tokens. laws: q_1 .., at most k of them; default the :func:`marginals`.
    Raises:
        ValueError: no law, or more places than the block has.
    Source: Leviathan et al. 2211.17192, with draft laws that do not see one another.
    """
    k, _ = _read(joint)
    laws = marginals(joint) if laws is None else laws
    if len(laws) > k:
        raise ValueError(f"the block has {k} places, there are {len(laws)} laws")
    mass, total = _beginnings(joint), _0
    reached: dict[Tokens, Fraction] = {(): _1}
    for law in laws:
        reached = {
            after: chance * min(mass[after] / mass[path], q)
            for path, chance in reached.items()
            for x, q in enumerate(law)
            if q and mass.get(after := (*path, x), _0)
        }
        total += sum(reached.values(), _0)
    return total


def best_path(joint: Joint, among: Sequence[Collection[int]] | None = None) -> Tokens:
    """The path of which the point-mass rule keeps most: the largest :func:`expected_accepted`, of equals the first in the order of tokens.

    Args:
        joint: a block. among: the candidates of every place (a lattice); default all tokens. All paths are tried.
    Raises:
        ValueError: no law, or candidates for another number of places.
    """
    mass = _beginnings(joint)
    return max(_paths(joint, among), key=lambda path: sum((mass.get(path[:j], _0) for j in range(1, len(path) + 1)), _0))


def most_probable(joint: Joint, among: Sequence[Collection[int]] | None = None) -> Tokens:
    """The path of the largest probability ``p(x)``, which need not be the :func:`best_path`. Arguments and errors as there."""
    return max(_paths(joint, among), key=lambda path: joint.get(path, _0))


def ratio_law(p: Law, q: Law, x: int) -> list[Fraction]:
    """LOSSY: what comes out where a token x that was *chosen*, and not drawn, is tested with the ratio p/q.

    ``out(x) = a = min(1, p(x)/q(x))`` and, elsewhere, ``out = (1 - a) norm((p - q)+)``. Its distance from p is at most ``1 - q(x)``, and that much
    for p = q.

    Args:
        p, q: target's law, and the draft's that x was chosen by. x: the token; q(x) > 0.
    Raises:
        ValueError: laws of different lengths, or q(x) = 0.
    Source: DiffuSpec (arXiv 2510.02358) claims that this is unbiased for a searched path.
    """
    if len(p) != len(q) or not q[x] > 0:
        raise ValueError(f"p and q are laws over the same tokens with q(x) > 0, got {len(p)} and {len(q)} tokens and q({x}) = {q[x]}")
    accept = min(_1, p[x] / q[x])
    left = [max(a - b, _0) for a, b in zip(p, q, strict=True)]
    scale = (1 - accept) / sum(left, _0) if accept < 1 else _0
    return [scale * a + (accept if y == x else _0) for y, a in enumerate(left)]


class AdlRound(NamedTuple):
    """A round under adaptive draft length: ``k`` places drafted, ``generated`` before the first end of text, ``accepted``; the two averages after it,
    whether the length may grow, and the ``next`` round's k."""

    k: int
    generated: int
    accepted: int
    mean_generated: Fraction | float
    mean_accepted: Fraction | float
    grows: bool
    next: int


def adl_trace(
    generated: Sequence[int | None],
    accepted: Sequence[int],
    least: int = 20,
    most: int = 30,
    delta: float = 10,
    rho: Fraction | float = Fraction(1, 2),
    share: Fraction | float = 1,
) -> list[AdlRound]:
    """Adaptive draft length (ADL), replayed round by round on what was drafted and accepted.

    ``a <- (1 - rho) a + rho L_gen``, ``b <- (1 - rho) b + rho L_acc``, both from 0, and
    ``k <- clip(ceil(a + delta [b >= share a]), least, most)``; the first k is ``most``.

    Args:
        generated: L_gen of every round, the places before the first end of text in the draft's argmax row; None where there is none, which counts
            as k. What is larger than the k of its round is cut to it, so that a trace can be replayed with other constants.
        accepted: L_acc of every round, the closing token not counted; cut likewise.
        least, most, delta, rho: k_min, k_max, the growth and the weight of the newest round, 0 < rho <= 1.
        share: 1 is the paper's condition; a smaller one grows where most of what is generated is accepted.
    Raises:
        ValueError: lists of different lengths, a length below 0, or constants out of range.
    Source: DiffuSpec (arXiv 2510.02358), adaptive draft length, equation 11. Differs from it in: ``share``.
    """
    if not 1 <= least <= most or delta < 0 or not 0 < rho <= 1 or share < 0:
        raise ValueError(
            "lengths are 1 <= least <= most, delta and share at least 0, 0 < rho <= 1; "
            f"got least={least}, most={most}, delta={delta}, share={share}, rho={rho}"
        )
    if len(generated) != len(accepted) or min((n for n in (*generated, *accepted) if n is not None), default=0) < 0:
        raise ValueError(f"two lists of as many lengths, none below 0; got {list(generated)} and {list(accepted)}")
    k, a, b = most, rho * 0, rho * 0
    rounds = []
    for made, kept in zip(generated, accepted, strict=True):
        made, kept = k if made is None else min(made, k), min(kept, k)
        a, b = (1 - rho) * a + rho * made, (1 - rho) * b + rho * kept
        grows = bool(b >= share * a)
        after = min(max(math.ceil(a + delta * grows), least), most)
        rounds.append(AdlRound(k, made, kept, a, b, grows, after))
        k = after
    return rounds


# ------------------------------------------------------------------------------------------------------------------------ inside


def _read(joint: Joint) -> tuple[int, int]:
    """k and the size of the vocabulary."""
    sizes = {len(tokens) for tokens in joint}
    if len(sizes) != 1 or 0 in sizes or not abs(float(sum(joint.values())) - 1) < 1e-9 or min(joint.values()) < 0:
        raise ValueError(f"a block is a law over sequences of one length; got lengths {sorted(sizes)} and the sum {sum(joint.values())}")
    return sizes.pop(), 1 + max(x for tokens in joint for x in tokens)


def _beginnings(joint: Joint) -> dict[Tokens, Fraction]:
    """``p(x^j)`` of every beginning that occurs, the empty one among them."""
    mass: dict[Tokens, Fraction] = {}
    for tokens, chance in joint.items():
        for j in range(len(tokens) + 1):
            mass[tokens[:j]] = mass.get(tokens[:j], _0) + chance
    return mass


def _argmax(law: Sequence[Fraction]) -> int:
    return max(range(len(law)), key=lambda x: (law[x], -x))


def _paths(joint: Joint, among: Sequence[Collection[int]] | None) -> product[Tokens]:
    k, v = _read(joint)
    places = [range(v)] * k if among is None else [sorted(place) for place in among]
    if len(places) != k or not all(places):
        raise ValueError(f"the block has {k} places, each needs a candidate; got {[len(place) for place in places]} candidates")
    return product(*places)
