"""Node rules on independent paths: at a node that several paths share, the next tokens of all of them are candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from specwb.verify.exact.basics import Model, NodeRule, Tokens
from specwb.verify.exact.gbv import is_paths
from specwb.verify.exact.laws import iid
from specwb.verify.exact.rounds import Outcome, trees

_0 = Fraction(0)


def paths_outcomes(rule: NodeRule, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
    """The outcomes of a round over K paths drawn independently: a rule for independent siblings stays lossless where it goes on with
    all paths that begin with what has been accepted. Their number differs from draft to draft; given it, their next tokens are
    independent draws.

    Args:
        rule: node rule. target, draft: prefix -> law of the next token. parents: K chains of equal length that part at the root.
    Raises:
        ValueError: a tree of another shape.
    """
    if not is_paths(parents):
        raise ValueError(f"not a tree of equally long paths: {tuple(parents)}")
    below = {parent: i for i, parent in enumerate(parents) if parent > 0}
    for paths, chance in trees(iid, draft, parents):
        todo: list[tuple[list[int], Tokens, Fraction]] = [([i for i, parent in enumerate(parents) if parent == 0], (), chance)]
        while todo:
            kids, path, prob = todo.pop()
            if not kids:
                yield path, target(path), prob
                continue
            tokens = tuple(full[-1] for i in kids if (full := paths[i]))
            accept, residual = rule(target(path), draft(path), tokens)
            if none := 1 - sum(accept, _0):
                yield path, residual, prob * none
            for x in set(tokens):
                if taken := sum((a for a, y in zip(accept, tokens, strict=True) if y == x), _0):
                    agree = [below[i] for i, y in zip(kids, tokens, strict=True) if y == x and i in below]
                    todo.append((agree, (*path, x), prob * taken))
