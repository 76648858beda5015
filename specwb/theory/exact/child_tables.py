"""Which child is accepted, and which token it is: their joint distribution in closed form.

From it follows the expected length of any tree, without listing drafts. Every function
``*_table(p, q, k)`` here returns ``table[i][y] = P(child i is accepted and is the token y)``, for
the sampling scheme that its rule is lossless for:

Args:
    p: The target's distribution.
    q: The draft's distribution.
    k: The number of children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from specwb.theory.exact.basics import Dist, Model, Tokens, minus, norm, overlap, without
from specwb.theory.exact.nodes import kseq_rho
from specwb.theory.exact.schemes import top

_0, _1 = Fraction(0), Fraction(1)
ChildTable = list[list[Fraction]]
"""``table[i][y]``: the probability that child i is accepted and is the token y."""


def rrs_table(p: Dist, q: Dist, k: int) -> ChildTable:
    """Independent children under recursive rejection: ``prod_{j<i} (1 - beta_j) min(p_i, q)``.

    ``p_{j+1} = norm((p_j - q)+)`` and ``beta_j = sum min(p_j, q)``; k = 1 is token rejection.
    """
    table, not_accepted = [], _1
    for _ in range(k):
        table.append([not_accepted * min(a, b) for a, b in zip(p, q, strict=True)])
        not_accepted *= 1 - overlap(p, q)
        p = norm(minus(p, q)) if not_accepted else p
    return table


def rrsw_table(p: Dist, q: Dist, k: int) -> ChildTable:
    """Children without replacement under recursive rejection.

    The first child has ``min(p, q)``. The others have, for every first child x that is rejected,
    weighted with ``(q - p)+(x)``, the same of what is left of p and q.
    """
    table = [[_0] * len(p) for _ in range(k)]
    if not k or not any(q):
        return table
    table[0] = [min(a, b) for a, b in zip(p, q, strict=True)]
    for x, rejected in enumerate(minus(q, p)):
        if not rejected:
            continue
        rest = without(q, (x,))
        later = rrsw_table(norm(minus(p, q)), norm(rest) if any(rest) else rest, k - 1)
        for i, row in enumerate(later, 1):
            table[i] = [a + rejected * b for a, b in zip(table[i], row, strict=True)]
    return table


def kseq_table(p: Dist, q: Dist, k: int) -> ChildTable:
    """Independent children under k-SEQ: ``(1 - beta)^i b``, ``b = min(p / rho, q)``,
    ``beta = sum b``."""
    rho = kseq_rho(tuple(p), tuple(q), k)
    b = [min(x / rho, y) for x, y in zip(p, q, strict=True)]
    beta = sum(b, _0)
    return [[(1 - beta) ** i * x for x in b] for i in range(k)]


def naive_table(p: Dist, q: Dist, k: int) -> ChildTable:
    """Independent children under the point-mass rule: ``p (1 - q)^i q``.

    Child i is the first that is the token drawn from p.
    """
    return [[a * (1 - b) ** i * b for a, b in zip(p, q, strict=True)] for i in range(k)]


def point_table(p: Dist, q: Dist, k: int) -> ChildTable:
    """The k most probable tokens of q under the point-mass rule: each with its probability
    under p."""
    ((tokens, _),) = top(q, k)
    return [[a if tokens[i : i + 1] == (y,) else _0 for y, a in enumerate(p)] for i in range(k)]


def top_and_sample_table(p: Dist, q: Dist, k: int) -> ChildTable:
    """Top and sample: the k - 1 most probable tokens A with their probabilities under p, and last
    ``min(p, q')``, ``q' = norm(q outside A)``."""
    ((fixed, _),) = top(q, k - 1)
    rest = without(q, fixed)
    last = [_0] * len(p)
    if any(rest):
        last = [min(a, b) for a, b in zip(p, norm(rest), strict=True)]
    return [*point_table(p, q, k - 1), last]


CHILD_TABLES: dict[tuple[str, str], Callable[[Dist, Dist, int], ChildTable]] = {
    ("rejection", "IID"): rrs_table,
    ("rejection", "WITHOUT_REPLACEMENT"): rrs_table,
    ("rrs", "IID"): rrs_table,
    ("rrsw", "WITHOUT_REPLACEMENT"): rrsw_table,
    ("kseq", "IID"): kseq_table,
    ("top", "TOP_AND_SAMPLE"): top_and_sample_table,
    ("point", "POINT"): point_table,
    ("naive", "POINT"): point_table,
    ("point", "IID"): naive_table,
    ("naive", "IID"): naive_table,
}
"""The closed form of a rule and sampling scheme, where there is one."""


def table_total(table: ChildTable) -> Fraction:
    """The probability that a child is accepted, ``sum of table[i][y]``."""
    return sum((a for row in table for a in row), _0)


def expected_from_table(
    table: Callable[[Dist, Dist, int], ChildTable],
    target: Model,
    draft: Model,
    parents: Sequence[int],
) -> Fraction:
    """A decoding step accepts ``L((), root)`` draft tokens on average, where
    ``L(path, node) = sum_i sum_y table[i][y] (1 + L(path y, child i))``."""
    children = [[i for i, parent in enumerate(parents) if parent == n] for n in range(len(parents))]

    def below(path: Tokens, node: int) -> Fraction:
        """L(path, node)."""
        if not children[node]:
            return _0
        rows = table(target(path), draft(path), len(children[node]))
        length = _0
        for child, row in zip(children[node], rows, strict=True):
            for y, a in enumerate(row):
                if a:
                    length += a * (1 + below((*path, y), child))
        return length

    return below((), 0)
