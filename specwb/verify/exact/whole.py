"""Rules that decide about the whole tree, as laws of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specwb.verify.exact.basics import Model, Tokens
from specwb.verify.exact.block import block_expected_accepted, block_tests, is_chain
from specwb.verify.exact.coupling import coupled_outcomes
from specwb.verify.exact.gbv import gbv_expected_accepted, gbv_tests, is_paths
from specwb.verify.exact.laws import LAWS
from specwb.verify.exact.rounds import Outcome, Test, completed, depths, trees
from specwb.verify.exact.traversal import traversal_tests

_0, _1 = Fraction(0), Fraction(1)
Tests = Callable[[Model, Model, Sequence[int], Sequence[Tokens | None]], list[Test]]
"""``tests(target, draft, parents, paths)``: given a drafted tree, what is tested in turn until something is accepted."""


@dataclass(frozen=True)
class TreeRule:
    """A rule for whole trees, and what it is lossless for.

    Attributes:
        outcomes: ``(law, target, draft, parents)`` -> the outcomes of a round, over all drafts.
        laws: names of the draft laws it takes; ``IID`` on paths that part at the root is the law of independent paths. A name that is not in
            ``LAWS`` is the rule's own way to draw.
        fits: whether it takes trees of this shape.
        expected: ``(target, draft, parents)`` -> the closed form of the expected accepted length, or None where none is known.
    """

    name: str
    outcomes: Callable[[str, Model, Model, Sequence[int]], Iterable[Outcome]]
    laws: tuple[str, ...]
    fits: Callable[[Sequence[int]], bool]
    expected: Callable[[Model, Model, Sequence[int]], Fraction] | None = None


def decided(tests: Tests) -> Callable[[str, Model, Model, Sequence[int]], Iterator[Outcome]]:
    """The outcomes of a rule that tests one path after another: each draft's tests, weighted with the draft's probability."""

    def outcomes(law: str, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
        for paths, left in trees(LAWS[law], draft, parents):
            for path, accept, closing in tests(target, draft, parents, paths):
                if left and accept:
                    yield path, closing, left * accept
                left *= 1 - accept

    return outcomes


def tree_round_law(rule: TreeRule, law: str, target: Model, draft: Model, parents: Sequence[int]) -> dict[Tokens, Fraction]:
    """The joint law of the D + 1 tokens a round over a tree starts; the round is lossless iff it equals ``target_law``.

    Args:
        rule: one of ``TREE_RULES``. law: one of its ``laws``. target, draft: prefix -> law of the next token. parents: the tree.
    """
    return completed(rule.outcomes(law, target, draft, parents), target, max(depths(parents)) + 1)


def tree_expected_accepted(rule: TreeRule, law: str, target: Model, draft: Model, parents: Sequence[int]) -> Fraction:
    """The expected number of drafted tokens a round accepts, by enumeration.

    Args:
        as of ``tree_round_law``.
    """
    return sum((len(path) * prob for path, _, prob in rule.outcomes(law, target, draft, parents)), _0)


TREE_RULES: dict[str, TreeRule] = {
    rule.name: rule
    for rule in (
        TreeRule("block", decided(block_tests), ("IID", "WITHOUT_REPLACEMENT"), is_chain, block_expected_accepted),
        TreeRule("traversal", decided(traversal_tests), ("WITHOUT_REPLACEMENT", "IID"), lambda parents: True),
        TreeRule("gbv", decided(gbv_tests), ("IID",), is_paths, gbv_expected_accepted),
        TreeRule("coupled", lambda law, target, draft, parents: coupled_outcomes(target, draft, parents), ("COUPLED",), is_paths),
    )
}
