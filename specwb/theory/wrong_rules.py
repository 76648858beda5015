"""Rules that are wrong on purpose, in one list: the tests must refute each.

Several have been published or shipped; the others are one slip away from a right rule. Each is
stated over fractions, as a rule of the kinds in ``exact``. Errors that are none over fractions (a
uniform used twice, a row of q that is another's, rounding) are in ``tests/biased.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.theory.exact import (
    SCHEMES,
    Dist,
    ExactDecision,
    ExactNodeRule,
    Model,
    Outcome,
    Paths,
    PathTest,
    Tokens,
    block_tests,
    completed,
    count_paths,
    decided,
    depths,
    iid,
    is_chain,
    kseq,
    kseq_rho,
    minus,
    norm,
    output_distribution,
    rejection,
    rrs,
    rrsw,
    target_distribution,
    traversal_tests,
    trees,
    tv,
    walked,
    walks,
    without,
    without_replacement,
)
from specwb.theory.exact.whole_trees import Outcomes

_0, _1 = Fraction(0), Fraction(1)
FORK = (-1, 0, 0, 1, 2)


@dataclass(frozen=True)
class WrongRule:
    """A wrong rule, with a sampling scheme and a tree that show it.

    Attributes:
        name: Its key in :data:`WRONG_RULES`.
        wrong: What is wrong, in one line.
        original: The name of the right rule that it is made from.
        scheme: The name of the sampling scheme of its drafts.
        parents: The parents of a tree's nodes.
        node: The rule over fractions at one node; None for whole trees.
        tree: The rule over fractions for whole trees; None for one node.
    """

    name: str
    wrong: str
    original: str
    scheme: str
    parents: tuple[int, ...]
    node: ExactNodeRule | None = None
    tree: Outcomes | None = None

    @property
    def k(self) -> int:
        """The number of candidates at the root."""
        return self.parents.count(0)

    def output(self, p: Dist, q: Dist, k: int = 0) -> list[Fraction]:
        """The distribution of the next token, of a rule at one node with ``k`` candidates, default
        :attr:`k`."""
        assert self.node is not None
        return output_distribution(self.node, SCHEMES[self.scheme], p, q, k or self.k)

    def outcomes(
        self, target: Model, draft: Model, parents: Sequence[int] | None = None
    ) -> Iterator[Outcome]:
        """The outcomes of a step over all drafts of a tree, default :attr:`parents`."""
        where = self.parents if parents is None else parents
        if self.tree is not None:
            return iter(self.tree(self.scheme, target, draft, where))
        assert self.node is not None
        return iter(walks(self.node, SCHEMES[self.scheme], target, draft, where))

    def off(self, target: Model, draft: Model, parents: Sequence[int] | None = None) -> Fraction:
        """The total variation between the texts of a step and the target's."""
        length = max(depths(self.parents if parents is None else parents)) + 1
        texts = completed(self.outcomes(target, draft, parents), target, length)
        return tv(texts, target_distribution(target, length))


WRONG_RULES: dict[str, WrongRule] = {}
"""By name; those at one node come first."""


def _wrong(
    scheme: str, where: int | tuple[int, ...], original: str, wrong: str, name: str = ""
) -> Callable[[Any], Any]:
    """Add a rule to :data:`WRONG_RULES`: one at a node with so many candidates, or one for whole
    trees, such as this."""

    def add(rule: Any) -> Any:
        key = name or rule.__name__
        if isinstance(where, int):
            one = WrongRule(key, wrong, original, scheme, (-1, *[0] * where), node=rule)
        else:
            one = WrongRule(key, wrong, original, scheme, where, tree=rule)
        WRONG_RULES[key] = one
        return rule

    return add


@_wrong(
    "IID",
    1,
    "rejection",
    "bonus token from p instead of (p - q)+",
)
def residual_from_p(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """What was accepted is counted twice."""
    accept, residual = rejection(p, q, tokens)
    return accept, residual and list(p)


_wrong(
    "POINT", 1, "rejection", "a deterministic argmax draft is tested with p/q", "argmax_with_ratio"
)(rejection)


@_wrong(
    "IID",
    1,
    "rejection",
    "the q of the test has another temperature than the q that was sampled",
)
def squared_q(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """The test uses ``norm(q^2)``."""
    return rejection(p, norm([b * b for b in q]), tokens)


@_wrong(
    "WITHOUT_REPLACEMENT",
    2,
    "rrsw",
    "RRSw children sorted by q instead of drawing order",
)
def sorted_by_q(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    order = sorted(range(len(tokens)), key=lambda i: (-q[tokens[i]], i))
    return _of_some(rrsw, order, p, q, tokens)


def _of_some(
    rule: ExactNodeRule, order: list[int], p: Dist, q: Dist, tokens: Tokens
) -> ExactDecision:
    """The decision of a rule that is given the children ``order`` only, about all of them."""
    accepted, residual = rule(p, q, tuple(tokens[i] for i in order))
    accept = [_0] * len(tokens)
    for i, a in zip(order, accepted, strict=True):
        accept[i] = a
    return accept, residual


@_wrong("IID", 2, "rejection", "two draws, the one of larger q is kept and tested as one draw")
def keep_larger_q(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    best = max(range(len(tokens)), key=lambda i: (q[tokens[i]], -i))
    return _of_some(rejection, [best], p, q, tokens)


_wrong(
    "WITHOUT_REPLACEMENT",
    2,
    "rrs",
    "RRS on children drawn without replacement",
    "rrs_without_replacement",
)(rrs)


@_wrong(
    "IID",
    3,
    "rrs",
    "independent drafts de-duplicated, then RRS",
)
def deduplicated(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    first = [i for i, x in enumerate(tokens) if x not in tokens[:i]]
    return _of_some(rrs, first, p, q, tokens)


@_wrong(
    "POINT",
    3,
    "point",
    "top-k siblings tested as samples, without updating the residual",
    "no_update_top",
)
@_wrong(
    "IID",
    2,
    "rrs",
    "sampled siblings tested without updating the residual",
    "no_update_sampled",
)
def no_residual_update(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Every sibling is tested against the first p, and ``(p - q)+`` is subtracted once, whatever
    was rejected before."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        passes = min(_1, p[x] / q[x]) if q[x] else _0
        accept[i] = not_accepted * passes
        not_accepted *= 1 - passes
    return accept, norm(minus(p, q)) if not_accepted else None


_wrong("POINT", 3, "rrsw", "the RRSw rule on deterministic top-k children", "rrsw_on_top")(rrsw)


@_wrong("IID", 1, "rejection", "the uniform that drew the child draws the bonus token too")
def noise_reused(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """Both by inverse CDF."""
    accept, residual = rejection(p, q, tokens)
    if residual is None:
        return accept, None
    (x,) = tokens
    # given x the uniform lies in [low, high)
    low, high = sum(q[:x], _0), sum(q[: x + 1], _0)
    bonus, start = [], _0
    for a in residual:
        overlap = max(min(start + a, high) - max(start, low), _0)
        bonus.append(overlap / (high - low))
        start += a
    return accept, bonus


@_wrong("IID", 2, "kseq", "k-SEQ with rho - 1 too small by a tenth")
def low_rho(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """What would be negative in the residual is cut off."""
    least = kseq_rho(tuple(p), tuple(q), len(tokens))
    return kseq(p, q, tokens, 1 + (least - 1) * Fraction(9, 10))


@_wrong(
    "IID",
    2,
    "race",
    "the selected child is tested against q and not the distribution of what is selected",
)
def race_against_q(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    total = sum((p[x] / q[x] for x in tokens), _0)
    if total == 0:
        return [_0] * len(tokens), rejection(p, q, tokens[:1])[1]
    accept = [p[x] / q[x] / total * min(_1, p[x] / q[x]) for x in tokens]
    return accept, None if sum(accept, _0) == 1 else norm(minus(p, q))


@_wrong(
    "TOP_AND_SAMPLE",
    2,
    "top",
    "the drawn child is tested against q and not what the fixed ones leave of it",
)
def whole_q(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    (passes,), residual = rejection(p, q, tokens[-1:])
    if residual is None:
        return [*[_0] * (len(tokens) - 1), passes], None
    accept = [*((1 - passes) * residual[x] for x in tokens[:-1]), passes]
    bonus = without(residual, tokens[:-1])
    return accept, norm(bonus) if any(bonus) else None


@_wrong("POINT", 2, "point", "a draw that is no child is thrown away and made again")
def keeps_children(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """The bonus token is the second draw from p."""
    accept = [_0 if x in tokens[:i] else p[x] for i, x in enumerate(tokens)]
    return accept, None if sum(accept, _0) == 1 else list(p)


@_wrong("IID", 2, "naive", "every child is compared with its own draw from p")
def draw_per_child(p: Dist, q: Dist, tokens: Tokens) -> ExactDecision:
    """The last of these draws is the bonus token."""
    accept, not_accepted = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        accept[i] = not_accepted * p[x]
        not_accepted *= 1 - p[x]
    return accept, None if not_accepted == 0 else norm(without(p, tokens[-1:]))


AT_ONE_NODE = tuple(WRONG_RULES.values())


def uncapped_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[PathTest]:
    """Wrong: block verification keeps a whole block with ``min(1, prod p/q)`` instead of the capped
    weight ``w_L``.

    This is "Hierarchical speculative decoding" as published: its longer blocks are the probability
    that it adds to drafts that begin well (p > q) and end badly.

    Source: 2601.05724 and its repository at commit b8575e2, ``_speculative_sampling``
    (theory/08_what_breaks.md, theorem 8.9).
    """
    tests = block_tests(target, draft, parents, paths)
    path, _, bonus = tests[0]
    ratios = (target(path[:i])[x] / draft(path[:i])[x] for i, x in enumerate(path))
    return [(path, min(_1, math.prod(ratios, start=_1)), bonus), *tests[1:]]


_wrong("IID", (-1, 0, 1), "block", "a whole block is kept with the uncapped ratio (HSD)", "hsd")(
    decided(uncapped_tests)
)


@_wrong(
    "WITHOUT_REPLACEMENT",
    FORK,
    "traversal",
    "traversal of siblings that share one list of children",
)
def shared_lists(
    scheme: str, target: Model, draft: Model, parents: Sequence[int]
) -> Iterator[Outcome]:
    """Wrong: traversal verification of a tree in which all nodes of a depth have the same drawn
    children.

    One sibling's children then reveal those of the next: when it is visited, they are not draws
    from q any more. Here the draft's distributions depend on the depth only, as those of heads that
    see no path do.
    """
    q = _one_pass(draft)
    depth = depths(parents)
    rank = [list(parents[:i]).count(parent) for i, parent in enumerate(parents)]
    widths = [
        max(list(parents).count(node) for node in range(len(parents)) if depth[node] == d)
        for d in range(max(depth))
    ]
    drawn_lists = (without_replacement(q((0,) * d), width) for d, width in enumerate(widths))
    for lists in product(*drawn_lists):
        paths: list[Tokens | None] = [()]
        for i in range(1, len(parents)):
            parent, (tokens, _) = paths[parents[i]], lists[depth[i] - 1]
            exists = parent is not None and rank[i] < len(tokens)
            paths.append((*parent, tokens[rank[i]]) if exists else None)  # type: ignore[misc]
        untested = math.prod((probability for _, probability in lists), start=_1)
        for path, accept, bonus in traversal_tests(target, q, parents, paths):
            if untested and accept:
                yield path, bonus, untested * accept
            untested *= 1 - accept


def _one_pass(draft: Model) -> Model:
    """A draft that drafts all positions at once.

    Its distribution at a position does not know what stands before it in the block.
    """
    return lambda prefix: draft((0,) * len(prefix))


def _score(draft: Model, path: Tokens) -> Fraction:
    """The score that a search ranks paths by, ``prod_i q_i(x_i) r(x_i | x_<i)``.

    One half is the one-pass distributions q_i, the other a causal proxy r.
    """
    q = _one_pass(draft)
    return math.prod((q(path[:i])[x] * draft(path[:i])[x] for i, x in enumerate(path)), start=_1)


@_wrong(
    "POINT",
    (-1, 0, 1),
    "rejection",
    "LOSSY: a searched path is tested with p/q, as if drawn (DiffuSpec at T > 0)",
)
def searched_ratio(
    scheme: str, target: Model, draft: Model, parents: Sequence[int]
) -> Iterator[Outcome]:
    """Wrong, LOSSY: a path searched in the lattice of a one-pass draft is tested with
    ``min(1, p/q_i)``, as if it had been drawn from the q_i.

    The path is a function of the text, so its distribution is a point mass.

    Source: 2510.02358 (DiffuSpec), which calls it unbiased.
    """
    if not is_chain(parents):
        raise ArgumentError(f"this is for a chain, got the tree {tuple(parents)}")
    q = _one_pass(draft)
    lattice = ([x for x, a in enumerate(q((0,) * i)) if a] for i in range(len(parents) - 1))
    best = max(product(*lattice), key=lambda path: _score(draft, path))
    yield from walked(rejection, target, q, [best], _1)


@_wrong(
    "IID",
    FORK,
    "rrs",
    "LOSSY: independent paths are sorted by a score, then RRS",
)
def sorted_paths(
    scheme: str, target: Model, draft: Model, parents: Sequence[int]
) -> Iterator[Outcome]:
    """Wrong, LOSSY: sequences drawn from a one-pass draft are sorted by a score before recursive
    rejection takes them for independent draws."""
    q, k = _one_pass(draft), count_paths(parents)
    by_position = [iid(q((0,) * i), k) for i in range((len(parents) - 1) // k)]
    for draws in product(*by_position):
        sequences = zip(*(tokens for tokens, _ in draws), strict=True)
        paths = sorted(sequences, key=lambda path: -_score(draft, path))
        probability = math.prod((chance for _, chance in draws), start=_1)
        yield from walked(rrs, target, q, paths, probability)


def left_out(out: Callable[[Fraction, Fraction], bool]) -> Outcomes:
    """Wrong: a drawn token x is left out, with all below it, where ``out(p(x), q(x))``, and the
    rest is tested as if it had been drawn.

    x is gone because of its value, so the rest has another distribution than q. Leaving out the
    tokens *after* x is allowed (theorem 12.2).

    Args:
        out: (p(x), q(x)) -> whether x is left out.
    """

    def outcomes(
        scheme: str, target: Model, draft: Model, parents: Sequence[int]
    ) -> Iterator[Outcome]:
        def stays(path: Tokens) -> bool:
            if not path:
                return True
            parent, x = path[:-1], path[-1]
            return not out(target(parent)[x], draft(parent)[x])

        def change(paths: Paths) -> Paths:
            return [path if path is not None and stays(path) else None for path in paths]

        return walks(rejection, SCHEMES[scheme], target, draft, parents, change)

    return outcomes


_wrong(
    "IID",
    (-1, 0, 1),
    "rejection",
    "a drawn token is left out as its own q is small",
    "unsure_left_out",
)(left_out(lambda p, q: q < Fraction(1, 3)))
_wrong(
    "IID",
    (-1, 0, 1),
    "rejection",
    "a drawn token is left out after a look at the target, where p < q",
    "peeking",
)(left_out(lambda p, q: p < q))


SECONDS = (_1, Fraction(7, 4), Fraction(9, 5))
"""Of a step that verifies no, one and two draft tokens, in plain steps."""


@_wrong(
    "IID",
    (-1, 0, 1),
    "rejection",
    "as many tokens are verified as this step's confidences make fastest",
)
def argmax_budget(
    scheme: str,
    target: Model,
    draft: Model,
    parents: Sequence[int],
    sure: Callable[[Tokens], Fraction] | None = None,
) -> Iterator[Outcome]:
    """Wrong: of two drafted tokens as many are verified as make the largest number of tokens per
    second expected, by the confidences of this step.

    The second confidence knows the first token, and so decides whether that one is tested. A budget
    that is fixed before, or found by stopping at the first token that does not pay, is right
    (theorem 6.9).

    Args:
        sure: By path, the probability that the next token survives; default the draft's largest.
    """
    if tuple(parents) != (-1, 0, 1):
        raise ArgumentError(f"this is for a chain of two tokens, got the tree {tuple(parents)}")
    of = sure or (lambda path: max(draft(path)))

    def change(paths: Paths) -> Paths:
        if paths[1] is None:
            return paths
        first = of(())
        tokens = (_1, 1 + first, 1 + first + first * of(paths[1]))
        speed = [n / seconds for n, seconds in zip(tokens, SECONDS, strict=True)]
        budget = speed.index(max(speed))
        return [path if i <= budget else None for i, path in enumerate(paths)]

    return walks(rejection, SCHEMES[scheme], target, draft, parents, change)


@_wrong(
    "WITHOUT_REPLACEMENT",
    FORK,
    "rrsw",
    "LOSSY: siblings tested at once, the longest path stays (improved MCSD)",
)
def at_once(
    scheme: str, target: Model, draft: Model, parents: Sequence[int], plain: bool = True
) -> Iterator[Outcome]:
    """Wrong, LOSSY: every node is tested separately with ``min(1, p/q)``, and the longest path of
    passing nodes from the root stays; ties go to the first.

    The bonus token is drawn from ``norm((p - q)+)`` where the path ends, and from p itself if
    nothing passed. The sibling that stays depends on what came below it, and p is not updated after
    a sibling failed.

    Args:
        plain: Without it the residual is used at the root too, which is then right for a chain.
    Source: the code of improved MCSD (2409.10644), transcribed, with one root.
    """

    def passing(path: Tokens | None) -> Fraction:
        """The probability that a node passes its test."""
        if path is None:
            return _0
        if not path:
            return _1
        parent, x = path[:-1], path[-1]
        return min(_1, target(parent)[x] / draft(parent)[x])

    for paths, chance in trees(SCHEMES[scheme], draft, parents):
        chances = [passing(path) for path in paths]
        for results in product((True, False), repeat=len(paths)):
            factors = (a if passed else 1 - a for a, passed in zip(chances, results, strict=True))
            probability = chance * math.prod(factors, start=_1)
            if not probability:
                continue
            reached: list[Tokens] = [()]
            for path, passed in zip(paths, results, strict=True):
                if path and passed and path[:-1] in reached:
                    reached.append(path)
            longest = max(reached, key=len)  # the first of equals
            p = target(longest)
            tested = any(path and path[:-1] == longest for path in paths)
            residual_used = tested and (longest or not plain)
            bonus = norm(minus(p, draft(longest))) if residual_used else list(p)
            yield longest, bonus, probability
