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
    for nodes, chance in trees(iid, draft, parents):
        yield from walked(rule, target, draft, [path for path in nodes[-list(parents).count(0) :] if path is not None], chance)


def walked(rule: NodeRule, target: Model, draft: Model, paths: Sequence[Tokens], chance: Fraction) -> Iterator[Outcome]:
    """The outcomes of one draft of probability ``chance``: the candidates of a node are the next tokens of all paths through it, in their order.

    Args:
        rule, target, draft: as of :func:`paths_outcomes`. paths: of equal length, in the order in which they are tested.
    """
    todo: list[tuple[Sequence[Tokens], Tokens, Fraction]] = [(paths, (), chance)]
    while todo:
        through, path, prob = todo.pop()
        at = len(path)
        if at == len(through[0]):
            yield path, target(path), prob
            continue
        tokens = tuple(full[at] for full in through)
        accept, residual = rule(target(path), draft(path), tokens)
        if none := 1 - sum(accept, _0):
            yield path, residual, prob * none
        for x in set(tokens):
            if taken := sum((a for a, y in zip(accept, tokens, strict=True) if y == x), _0):
                todo.append(([full for full, y in zip(through, tokens, strict=True) if y == x], (*path, x), prob * taken))
