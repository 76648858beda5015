"""Wrong verifiers of whole blocks and trees, each refuted by enumeration.

Each was published or shipped, or is one slip away from a correct one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from specwb.errors import ArgumentError
from specwb.verify.exact import (
    SCHEMES,
    Model,
    Outcome,
    Paths,
    Test,
    Tokens,
    block_tests,
    count_paths,
    decided,
    depths,
    iid,
    is_chain,
    minus,
    norm,
    rejection,
    rrs,
    skewed,
    tests_along,
    traversal_tests,
    trees,
    walked,
    walks,
    without_replacement,
)

_0, _1 = Fraction(0), Fraction(1)
Outcomes = Callable[[str, Model, Model, Sequence[int]], Iterator[Outcome]]
"""``outcomes(scheme, target, draft, parents)``: the outcomes of a step, over all drafts."""


@dataclass(frozen=True)
class TreeMutant:
    """A wrong verifier of trees, with a way of drawing and a tree to use it with."""

    name: str
    outcomes: Outcomes
    scheme: str
    parents: tuple[int, ...]
    wrong: str  # in one line
    original: str  # the name of the right rule that it is made from
    models: str = "dense"  # the kind that shows it, as specwb.verify.instances.models names it


def uncapped_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[Test]:
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


def other_ties_tests(
    target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]
) -> list[Test]:
    """Wrong: greedy multi-path block verification selects the largest path with ties in p/q broken
    the other way than in ``q_skew``."""
    k = count_paths(parents)

    def rank(path: Tokens) -> list[tuple[Fraction, int]]:
        return [(target(path[:i])[x] / draft(path[:i])[x], -x) for i, x in enumerate(path)]

    selected = max((path for path in paths[-k:] if path is not None), key=rank)
    return tests_along(target, skewed(target, draft, k), selected)


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


TREE_MUTANTS: tuple[TreeMutant, ...] = (
    TreeMutant(
        "hsd",
        decided(uncapped_tests),
        "IID",
        (-1, 0, 1),
        "a whole block is kept with the uncapped ratio (HSD)",
        "block",
    ),
    TreeMutant(
        "gbv_other_ties",
        decided(other_ties_tests),
        "IID",
        (-1, 0, 0),
        "paths are selected and ranked with ties broken differently",
        "gbv",
        models="tied",
    ),
    TreeMutant(
        "shared_lists",
        shared_lists,
        "WITHOUT_REPLACEMENT",
        (-1, 0, 0, 1, 2),
        "traversal of siblings that share one list of children",
        "traversal",
    ),
    TreeMutant(
        "searched_ratio",
        searched_ratio,
        "POINT",
        (-1, 0, 1),
        "LOSSY: a searched path is tested with p/q, as if drawn (DiffuSpec at T > 0)",
        "rejection",
    ),
    TreeMutant(
        "sorted_paths",
        sorted_paths,
        "IID",
        (-1, 0, 0, 1, 2),
        "LOSSY: independent paths are sorted by a score, then RRS",
        "rrs",
    ),
    TreeMutant(
        "unsure_left_out",
        left_out(lambda p, q: q < Fraction(1, 3)),
        "IID",
        (-1, 0, 1),
        "a drawn token is left out as its own q is small",
        "rejection",
    ),
    TreeMutant(
        "peeking",
        left_out(lambda p, q: p < q),
        "IID",
        (-1, 0, 1),
        "a drawn token is left out after a look at the target, where p < q",
        "rejection",
    ),
    TreeMutant(
        "at_once",
        at_once,
        "WITHOUT_REPLACEMENT",
        (-1, 0, 0, 1, 2),
        "LOSSY: siblings tested at once, the longest path stays (improved MCSD)",
        "rrsw",
    ),
)


def cumulative_products(target: Model, draft: Model) -> dict[Tokens, float]:
    """Wrong: a block of two tokens is kept up to the last i with
    ``prod_{j<=i} u_j < prod_{j<=i} min(1, p_j/q_j)``, and the bonus token drawn from ``(p - q)+``.

    With a and b the two products, ``P(u_1 u_2 < b) = b (1 - log b)`` and
    ``P(u_1 < a, u_1 u_2 >= b) = a - b - b log(a/b)``. It differs from block verification in all of
    it: the products of uniforms are not uniform, the residual does not know w. The distribution of
    three tokens is in floats, since logarithms come in.

    Source: vllm-ascend's ``rejection_random_sample_block_verify_pytorch``.
    """
    texts: dict[Tokens, float] = {}

    def add(path: Tokens, chance: float) -> None:
        """Continue the path with the target up to three tokens."""
        if len(path) == 3:
            texts[path] = texts.get(path, 0.0) + chance
        else:
            for y, a in enumerate(target(path)):
                if a:
                    add((*path, y), chance * float(a))

    def add_bonus(path: Tokens, chance: float) -> None:
        p, residual = target(path), minus(target(path), draft(path))
        for y, a in enumerate(norm(residual) if any(residual) else p):
            if a:
                add((*path, y), chance * float(a))

    for x, q_x in enumerate(draft(())):
        for y, q_y in enumerate(draft((x,))):
            if q_x and q_y:
                chance = float(q_x * q_y)
                a = float(min(_1, target(())[x] / q_x))
                b = a * float(min(_1, target((x,))[y] / q_y))
                both = b * (1 - math.log(b)) if b else 0.0
                one = a - b - (b * math.log(a / b) if b else 0.0)
                add((x, y), chance * both)
                add_bonus((x,), chance * one)
                add_bonus((), chance * (1 - both - one))
    return texts
