"""Blocks drafted in one pass, computed exactly on tables.

The expected number of accepted tokens for the row of most probable tokens, for a path found by a
search, and for tokens drawn position by position; and the adaptive draft length.

A block is the joint distribution of the next k tokens given the text: ``{tokens: probability}``.
Every key has length k, missing keys have probability 0, and anything else is a ValueError;
``specwb.theory.exact.target_distribution`` makes a block of a model. Fractions stay fractions,
floats stay floats. ``p(x^j)`` is the probability of the first j tokens of x. The theorems about
these functions are in theory/11_diffuspec.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from specwb.core.errors import ArgumentError
from specwb.theory import exact
from specwb.theory.exact import Dist, Tokens, conditional_distribution, iid, rejection

BlockDistribution = Mapping[Tokens, Fraction]
"""A block: the joint distribution of the next k tokens."""

_0 = Fraction(0)


def marginals(joint: BlockDistribution) -> list[list[Fraction]]:
    """The best prediction of one pass is ``m_i(x) = P(X_i = x | text)``: k distributions over the
    tokens 0 .. the largest that occurs.

    Raises:
        ValueError: ``joint`` is not a distribution: it has keys of different lengths, a negative
            probability, or a sum other than 1.
    """
    k, v = _read(joint)
    distributions = [[_0] * v for _ in range(k)]
    for tokens, probability in joint.items():
        for m, x in zip(distributions, tokens, strict=True):
            m[x] += probability
    return distributions


def argmax_row(joint: BlockDistribution) -> Tokens:
    """The draft of a pass without search: ``r_i = argmax m_i``; ties go to the lowest token."""
    return tuple(_argmax(m) for m in marginals(joint))


def greedy_path(joint: BlockDistribution) -> Tokens:
    """Plain decoding at temperature 0 writes ``g_i = argmax p(. | g_<i)``; ties go to the lowest
    token.

    At temperature 0 the accepted tokens of a draft are those that it has in common with this path,
    from the first on.
    """
    k, v = _read(joint)
    mass = _prefix_mass(joint)
    path: Tokens = ()
    for _ in range(k):
        path = (*path, _argmax([mass.get((*path, x), _0) for x in range(v)]))
    return path


def expected_accepted(joint: BlockDistribution, path: Tokens) -> Fraction:
    """The point-mass rule accepts ``E(x) = sum_j p(x^j)`` tokens of a path x on average, x having
    up to k tokens, chosen without a look at the verification's noise.

    Each term is ``p(x^j) = prod_{i<=j} p(x_i | x_<i)``.

    Source: theorem 4.4 for a chain. No lossless rule that is given the path accepts more of it.
    """
    k, _ = _read(joint)
    if len(path) > k:
        raise ArgumentError(f"the block has {k} tokens, the path {len(path)}")
    return _expected(_prefix_mass(joint), path)


def drawn_accepted(
    joint: BlockDistribution, distributions: Sequence[Dist] | None = None
) -> Fraction:
    """Token rejection accepts ``sum_j sum_{x^j} prod_{i<=j} min(p(x_i | x_<i), q_i(x_i))`` tokens
    if the token of every position is drawn independently from the draft's q_1, q_2, .., at most k
    (default the :func:`marginals`).

    Source: Leviathan et al. 2211.17192, with draft distributions that do not depend on each other.
    """
    k, _ = _read(joint)
    distributions = marginals(joint) if distributions is None else distributions
    if len(distributions) > k:
        raise ArgumentError(
            f"the block has {k} positions, there are {len(distributions)} distributions"
        )
    mass = _prefix_mass(joint)
    v = max(map(len, distributions), default=0)
    drafts = [[*q, *[_0] * (v - len(q))] for q in distributions]

    def target(prefix: Tokens) -> Dist:
        return [mass.get((*prefix, x), _0) / mass[prefix] for x in range(v)]

    def draft(prefix: Tokens) -> Dist:
        return drafts[len(prefix)]

    return exact.expected_accepted(rejection, iid, target, draft, range(-1, len(drafts)))


def best_path(joint: BlockDistribution, among: Sequence[Collection[int]] | None = None) -> Tokens:
    """The path with the largest :func:`expected_accepted`, through the candidates ``among`` of
    every position (a lattice; default all tokens).

    All paths are tried; ties go to the first in the order of tokens.
    """
    mass = _prefix_mass(joint)
    return max(_paths(joint, among), key=lambda path: _expected(mass, path))


def ratio_distribution(p: Dist, q: Dist, x: int) -> list[Fraction]:
    """LOSSY: the output's distribution where a *chosen* token x is tested with the ratio p/q.

    Nothing was drawn from q, so the test with p/q is not lossless. With
    ``a = min(1, p(x)/q(x))`` the output is x with probability a, and otherwise it is drawn from
    ``norm((p - q)+)``. Its distance from p is at most ``1 - q(x)``, and that much for p = q.

    Source: DiffuSpec (arXiv 2510.02358) claims that this is unbiased for a searched path.
    """
    if len(p) != len(q) or not q[x] > 0:
        raise ArgumentError(
            "p and q must be distributions over the same tokens with q(x) > 0, "
            f"got {len(p)} and {len(q)} tokens and q({x}) = {q[x]}"
        )
    return conditional_distribution(rejection(p, q, (x,)), (x,), len(p))


class AdlRound(NamedTuple):
    """A decoding step under adaptive draft length."""

    k: int  # positions drafted
    generated: int  # positions before the first end of text
    accepted: int  # draft tokens
    mean_generated: Fraction | float  # running averages, after this step
    mean_accepted: Fraction | float
    grows: bool  # whether the length may grow
    next: int  # k of the next step


def adl_trace(
    generated: Sequence[int | None],
    accepted: Sequence[int],
    least: int = 20,
    most: int = 30,
    delta: float = 10,
    rho: Fraction | float = Fraction(1, 2),
    share: Fraction | float = 1,
) -> list[AdlRound]:
    """Adaptive draft length (ADL), replayed step by step for given drafted and accepted lengths.

    ``a <- (1 - rho) a + rho L_gen``, ``b <- (1 - rho) b + rho L_acc``, both from 0, and ``k <-
    clip(ceil(a + delta [b >= share a]), least, most)``; the first k is ``most``.

    Args:
        generated: L_gen of every step: the positions before the first end of text in the draft's
            row of most probable tokens; None where there is none, which counts as k. Values larger
            than the k of their step are cut to it, so that a trace can be replayed with other
            constants.
        accepted: L_acc of every step, without the bonus token; cut likewise.
        least: k_min, the smallest length.
        most: k_max, the largest length.
        delta: The growth of the length.
        rho: The weight of the newest step, 0 < rho <= 1; omega in theorem 11.6.
        share: 1 is the paper's condition; with a smaller one the length grows if most of the
            generated tokens are accepted.
    Returns:
        One :class:`AdlRound` per step.
    Raises:
        ValueError: The lists have different lengths, a length is below 0, or a constant is out of
            range.
    Source: DiffuSpec (arXiv 2510.02358), adaptive draft length, equation 11. Differs from it in:
        ``share``.
    """
    if not 1 <= least <= most or delta < 0 or not 0 < rho <= 1 or share < 0:
        raise ArgumentError(
            "lengths are 1 <= least <= most, delta and share at least 0, 0 < rho <= 1; "
            f"got least={least}, most={most}, delta={delta}, share={share}, rho={rho}"
        )
    lengths = [n for n in (*generated, *accepted) if n is not None]
    if len(generated) != len(accepted) or min(lengths, default=0) < 0:
        raise ArgumentError(
            "generated and accepted must be lists of as many lengths, none below 0; "
            f"got {list(generated)} and {list(accepted)}"
        )
    k, a, b = most, rho * 0, rho * 0
    steps = []
    for l_gen, l_acc in zip(generated, accepted, strict=True):
        l_gen = k if l_gen is None else min(l_gen, k)
        l_acc = min(l_acc, k)
        a = (1 - rho) * a + rho * l_gen
        b = (1 - rho) * b + rho * l_acc
        grows = bool(b >= share * a)
        next_k = min(max(math.ceil(a + delta * grows), least), most)
        steps.append(AdlRound(k, l_gen, l_acc, a, b, grows, next_k))
        k = next_k
    return steps


# ----------------------------------------------------------------------------------------- inside


def _read(joint: BlockDistribution) -> tuple[int, int]:
    """k and the size of the vocabulary."""
    lengths = {len(tokens) for tokens in joint}
    one_length = len(lengths) == 1 and 0 not in lengths
    if not one_length or not abs(float(sum(joint.values())) - 1) < 1e-9 or min(joint.values()) < 0:
        raise ArgumentError(
            "a block is a distribution over sequences of one length; "
            f"got lengths {sorted(lengths)} and the sum {sum(joint.values())}"
        )
    return lengths.pop(), 1 + max(x for tokens in joint for x in tokens)


def _prefix_mass(joint: BlockDistribution) -> dict[Tokens, Fraction]:
    """``p(x^j)`` of every prefix that occurs, the empty one among them."""
    mass: dict[Tokens, Fraction] = {}
    for tokens, probability in joint.items():
        for j in range(len(tokens) + 1):
            mass[tokens[:j]] = mass.get(tokens[:j], _0) + probability
    return mass


def _expected(mass: Mapping[Tokens, Fraction], path: Tokens) -> Fraction:
    """``sum_j p(x^j)`` of the path x, from the mass of every prefix."""
    return sum((mass.get(path[:j], _0) for j in range(1, len(path) + 1)), _0)


def _argmax(p: Dist) -> int:
    return max(range(len(p)), key=lambda x: (p[x], -x))


def _paths(joint: BlockDistribution, among: Sequence[Collection[int]] | None) -> product[Tokens]:
    """All paths through the candidates of every position, in the order of tokens."""
    k, v = _read(joint)
    candidates = [range(v)] * k if among is None else [sorted(some) for some in among]
    if len(candidates) != k or not all(candidates):
        raise ArgumentError(
            f"the block has {k} positions, each needs a candidate; "
            f"got {[len(some) for some in candidates]} candidates"
        )
    return product(*candidates)
