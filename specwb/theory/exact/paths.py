"""Node rules on independent paths.

At a node that several paths share, the next tokens of all of them are candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from specwb.theory.exact.basics import Model, NodeRule, Tokens
from specwb.theory.exact.gbv import count_paths
from specwb.theory.exact.rounds import Outcome, trees
from specwb.theory.exact.schemes import iid

_0 = Fraction(0)


def paths_outcomes(
    rule: NodeRule, target: Model, draft: Model, parents: Sequence[int]
) -> Iterator[Outcome]:
    """The outcomes of a step over K paths drawn independently.

    A rule for independent siblings stays lossless where it goes on with all paths that begin with
    what has been accepted. Their number differs from draft to draft; given it, their next tokens
    are independent draws.
    """
    k = count_paths(parents)
    for nodes, probability in trees(iid, draft, parents):
        paths = [path for path in nodes[-k:] if path is not None]
        yield from walked(rule, target, draft, paths, probability)


def walked(
    rule: NodeRule, target: Model, draft: Model, paths: Sequence[Tokens], chance: Fraction
) -> Iterator[Outcome]:
    """The outcomes of one draft of independent paths of equal length, whose probability is
    ``chance``.

    The candidates of a node are the next tokens of all paths through it, in their order.
    """
    todo: list[tuple[Sequence[Tokens], Tokens, Fraction]] = [(paths, (), chance)]
    while todo:
        through, path, probability = todo.pop()
        depth = len(path)
        if depth == len(through[0]):
            yield path, target(path), probability
            continue
        tokens = tuple(full[depth] for full in through)
        accept, residual = rule(target(path), draft(path), tokens)
        if none := 1 - sum(accept, _0):
            yield path, residual, probability * none
        for x in set(tokens):
            # equal candidates lead to one node, which all paths with this token go through
            if chosen := sum((a for a, y in zip(accept, tokens, strict=True) if y == x), _0):
                onward = [full for full in through if full[depth] == x]
                todo.append((onward, (*path, x), probability * chosen))
