"""Wrong verifiers of whole blocks and trees: each published or shipped, or one slip away from a
right one, and each refuted by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from specwb.verify.exact import (
    LAWS,
    Model,
    Outcome,
    Paths,
    Test,
    Tokens,
    block_tests,
    decided,
    depths,
    iid,
    is_chain,
    is_paths,
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


@dataclass(frozen=True)
class TreeMutant:
    """A wrong verifier: the outcomes of its rounds, ``(law, target, draft, parents)``, the law and
    a tree to use it with, and what is wrong."""

    name: str
    outcomes: Outcomes
    law: str
    parents: tuple[int, ...]
    wrong: str


def uncapped_tests(target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]) -> list[Test]:
    """Wrong: block verification that keeps a whole block with ``min(1, prod p/q)`` and not with the
    capped weight ``w_L``.

    "Hierarchical speculative decoding" as published is this: its longer blocks are the probability
    it adds to drafts that begin badly and end well. Source: 2601.05724 and its repository; run at
    its commit b8575e2, ``_speculative_sampling`` was reported to do the same
    (theory/08_what_breaks.md, theorem 8.9).
    """
    tests = block_tests(target, draft, parents, paths)
    path, _, closing = tests[0]
    ratio = math.prod((target(path[:i])[x] / draft(path[:i])[x] for i, x in enumerate(path)), start=_1)
    return [(path, min(_1, ratio), closing), *tests[1:]]


def other_ties_tests(target: Model, draft: Model, parents: Sequence[int], paths: Sequence[Tokens | None]) -> list[Test]:
    """Wrong: greedy multi-path block verification that selects the largest path with ties in p/q
    broken the other way than in ``q_skew``."""
    if not is_paths(parents):
        raise ValueError(f"this is for paths that part at the root, got the tree {tuple(parents)}")
    k = list(parents).count(0)

    def rank(path: Tokens) -> list[tuple[Fraction, int]]:
        return [(target(path[:i])[x] / draft(path[:i])[x], -x) for i, x in enumerate(path)]

    return tests_along(target, skewed(target, draft, k), max((path for path in paths[-k:] if path is not None), key=rank))


def shared_lists(law: str, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
    """Wrong: traversal verification of a tree in which all nodes of a depth have the same drawn
    children.

    What one sibling's children are then says what the next one's are: by the time it is visited
    they are not draws from q any more. The draft's laws depend on the depth only here, as those of
    heads that see no path do.
    """

    def flat(prefix: Tokens) -> Sequence[Fraction]:
        return draft((0,) * len(prefix))

    at = depths(parents)
    rank = [list(parents[:i]).count(parent) for i, parent in enumerate(parents)]
    widths = [max(list(parents).count(node) for node in range(len(parents)) if at[node] == d) for d in range(max(at))]
    for lists in product(*(without_replacement(flat((0,) * d), k) for d, k in enumerate(widths))):
        paths: list[Tokens | None] = [()]
        for i in range(1, len(parents)):
            above, tokens = paths[parents[i]], lists[at[i] - 1][0]
            paths.append(None if above is None or rank[i] >= len(tokens) else (*above, tokens[rank[i]]))
        left = math.prod((chance for _, chance in lists), start=_1)
        for path, accept, closing in traversal_tests(target, flat, parents, paths):
            if left and accept:
                yield path, closing, left * accept
            left *= 1 - accept


def _one_pass(draft: Model) -> Model:
    """A draft that says all places at once: the law of a place does not know what stands before it
    in the block."""
    return lambda prefix: draft((0,) * len(prefix))


def _score(draft: Model, path: Tokens) -> Fraction:
    """What a search ranks paths by, half of it the one-pass laws and half a causal proxy, as a
    product: ``prod_i q_i(x_i) r(x_i | x_<i)``."""
    q = _one_pass(draft)
    return math.prod((q(path[:i])[x] * draft(path[:i])[x] for i, x in enumerate(path)), start=_1)


def searched_ratio(law: str, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
    """Wrong, LOSSY: a path searched in the lattice of a one-pass draft is tested with
    ``min(1, p/q_i)``, as if it had been drawn from the q_i.

    The path is a function of the text, so its law is a point mass. Source: 2510.02358 (DiffuSpec),
    which calls it unbiased.
    """
    if not is_chain(parents):
        raise ValueError(f"this is for a chain, got the tree {tuple(parents)}")
    q = _one_pass(draft)
    lattice = ([x for x, a in enumerate(q((0,) * i)) if a] for i in range(len(parents) - 1))
    best = max(product(*lattice), key=lambda path: _score(draft, path))
    yield from walked(rejection, target, q, [best], _1)


def sorted_paths(law: str, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
    """Wrong, LOSSY: sequences drawn from a one-pass draft are sorted by a score before recursive
    rejection takes them for independent draws."""
    if not is_paths(parents):
        raise ValueError(f"this is for paths that part at the root, got the tree {tuple(parents)}")
    q, k = _one_pass(draft), list(parents).count(0)
    places = [iid(q((0,) * i), k) for i in range((len(parents) - 1) // k)]
    for drawn in product(*places):
        paths = sorted(zip(*(tokens for tokens, _ in drawn), strict=True), key=lambda path: -_score(draft, path))
        yield from walked(rrs, target, q, paths, math.prod((chance for _, chance in drawn), start=_1))


def left_out(out: Callable[[Fraction, Fraction], bool]) -> Outcomes:
    """Wrong: a token x that was drawn is left out, with all below it, where ``out(p(x), q(x))``;
    what is left is tested as what was drawn.

    It is gone because of what it is, so what is left has another law than q. To leave out what
    comes *after* x is right (theorem 12.2).
    """

    def outcomes(law: str, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
        def stays(path: Tokens) -> bool:
            return not path or not out(target(path[:-1])[path[-1]], draft(path[:-1])[path[-1]])

        def change(paths: Paths) -> Paths:
            return [path if path is not None and stays(path) else None for path in paths]

        return walks(rejection, LAWS[law], target, draft, parents, change)

    return outcomes


def at_once(law: str, target: Model, draft: Model, parents: Sequence[int], plain: bool = True) -> Iterator[Outcome]:
    """Wrong, LOSSY: every node is tested by itself with ``min(1, p/q)``, and of the paths that pass
    from the root on the longest stays, of equals the first; the closing token is drawn from
    ``norm((p - q)+)`` where the path ends, and from p itself where nothing passed.

    Which sibling stays depends on what came below it, and p is not updated after a sibling failed.
    Source: the code of improved MCSD (2409.10644), transcribed, with one root. Args: plain: False
    has the residual at the root too, which is then right for a chain.
    """
    for paths, chance in trees(LAWS[law], draft, parents):
        passes = [_1 if not path else min(_1, target(path[:-1])[path[-1]] / draft(path[:-1])[path[-1]]) if path is not None else _0 for path in paths]
        for passed in product((True, False), repeat=len(paths)):
            left = chance * math.prod((a if yes else 1 - a for a, yes in zip(passes, passed, strict=True)), start=_1)
            if not left:
                continue
            reached: list[Tokens] = [()]
            for path, yes in zip(paths, passed, strict=True):
                if path and yes and path[:-1] in reached:
                    reached.append(path)
            last = max(reached, key=len)  # the first of equals
            p, rest = target(last), minus(target(last), draft(last))
            tested = any(path and path[:-1] == last for path in paths)
            yield last, norm(rest) if tested and (last or not plain) else list(p), left


TREE_MUTANTS: tuple[TreeMutant, ...] = (
    TreeMutant("hsd", decided(uncapped_tests), "IID", (-1, 0, 1), "a whole block is kept with the uncapped ratio (HSD)"),
    TreeMutant("gbv_other_ties", decided(other_ties_tests), "IID", (-1, 0, 0), "paths are selected and ranked with ties broken differently"),
    TreeMutant("shared_lists", shared_lists, "WITHOUT_REPLACEMENT", (-1, 0, 0, 1, 2), "traversal of siblings that share one list of children"),
    TreeMutant("searched_ratio", searched_ratio, "POINT", (-1, 0, 1), "LOSSY: a searched path is tested with p/q, as if drawn (DiffuSpec at T > 0)"),
    TreeMutant("sorted_paths", sorted_paths, "IID", (-1, 0, 0, 1, 2), "LOSSY: independent paths are sorted by a score, then RRS"),
    TreeMutant("unsure_left_out", left_out(lambda p, q: q < Fraction(1, 3)), "IID", (-1, 0, 1), "a drawn token is left out as its own q is small"),
    TreeMutant("peeking", left_out(lambda p, q: p < q), "IID", (-1, 0, 1), "a drawn token is left out after a look at the target, where p < q"),
    TreeMutant("at_once", at_once, "WITHOUT_REPLACEMENT", (-1, 0, 0, 1, 2), "LOSSY: siblings tested at once, the longest path stays (improved MCSD)"),
)


def cumulative_products_law(target: Model, draft: Model) -> dict[Tokens, float]:
    """Wrong: a block of two tokens is kept up to the last i with
    ``prod_{j<=i} u_j < prod_{j<=i} min(1, p_j/q_j)``, and closed with ``(p - q)+``.

    The law of three tokens, in floats, since logarithms come in: with a and b the two products,
    ``P(u_1 u_2 < b) = b (1 - log b)`` and ``P(u_1 < a, u_1 u_2 >= b) = a - b - b log(a/b)``.
    Differs from block verification in all of it: the products of uniforms are not uniform, the
    closing law does not know w. Source: vllm-ascend's
    ``rejection_random_sample_block_verify_pytorch``.
    """
    law: dict[Tokens, float] = {}

    def add(path: Tokens, chance: float) -> None:
        if len(path) == 3:
            law[path] = law.get(path, 0.0) + chance
        else:
            for y, a in enumerate(target(path)):
                if a:
                    add((*path, y), chance * float(a))

    def close(path: Tokens, chance: float) -> None:
        p, left = target(path), minus(target(path), draft(path))
        for y, a in enumerate(norm(left) if any(left) else p):
            if a:
                add((*path, y), chance * float(a))

    for x, first in enumerate(draft(())):
        for y, second in enumerate(draft((x,))):
            if first and second:
                drawn = float(first * second)
                a = float(min(_1, target(())[x] / first))
                b = a * float(min(_1, target((x,))[y] / second))
                both = b * (1 - math.log(b)) if b else 0.0
                one = a - b - (b * math.log(a / b) if b else 0.0)
                add((x, y), drawn * both)
                close((x,), drawn * one)
                close((), drawn * (1 - both - one))
    return law
