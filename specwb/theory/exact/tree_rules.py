"""Rules that decide about the whole tree, as distributions of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specwb.theory.exact.basics import Model, Tokens
from specwb.theory.exact.block import block_expected_accepted, block_tests, is_chain
from specwb.theory.exact.coupling import coupled_outcomes
from specwb.theory.exact.gbv import gbv_expected_accepted, gbv_tests, is_paths
from specwb.theory.exact.rounds import Outcome, Test, trees
from specwb.theory.exact.schemes import SCHEMES
from specwb.theory.exact.traversal import traversal_tests

_0, _1 = Fraction(0), Fraction(1)
Tests = Callable[[Model, Model, Sequence[int], Sequence[Tokens | None]], list[Test]]
"""``tests(target, draft, parents, paths)``: given a drafted tree, what is tested in turn until
something is accepted."""
Outcomes = Callable[[str, Model, Model, Sequence[int]], Iterable[Outcome]]
"""``outcomes(scheme, target, draft, parents)``: the outcomes of a step, over all drafts."""


@dataclass(frozen=True)
class TreeRule:
    """A rule for whole trees, and what it is lossless for."""

    name: str  # its key in TREE_RULES
    outcomes: Outcomes
    # ``IID`` on paths that part at the root is the scheme of independent paths, and a name that is
    # not in ``SCHEMES`` the rule's own way to draw
    schemes: tuple[str, ...]
    fits: Callable[[Sequence[int]], bool]  # whether it takes trees of this shape
    # (target, draft, parents) -> the expected accepted length in closed form, where one is known
    expected: Callable[[Model, Model, Sequence[int]], Fraction] | None = None


def decided(tests: Tests) -> Callable[[str, Model, Model, Sequence[int]], Iterator[Outcome]]:
    """The outcomes of a rule that tests one path after another.

    Each draft's tests are weighted with the draft's probability.
    """

    def outcomes(
        scheme: str, target: Model, draft: Model, parents: Sequence[int]
    ) -> Iterator[Outcome]:
        for paths, probability in trees(SCHEMES[scheme], draft, parents):
            untested = probability  # of this draft, nothing being accepted so far
            for path, accept, bonus in tests(target, draft, parents, paths):
                if untested and accept:
                    yield path, bonus, untested * accept
                untested *= 1 - accept

    return outcomes


def _coupled(scheme: str, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[Outcome]:
    return coupled_outcomes(target, draft, parents)


def _any_tree(parents: Sequence[int]) -> bool:
    return True


TREE_RULES: dict[str, TreeRule] = {
    rule.name: rule
    for rule in (
        TreeRule(
            "block",
            decided(block_tests),
            ("IID", "WITHOUT_REPLACEMENT"),
            is_chain,
            block_expected_accepted,
        ),
        TreeRule("traversal", decided(traversal_tests), ("WITHOUT_REPLACEMENT", "IID"), _any_tree),
        TreeRule("gbv", decided(gbv_tests), ("IID",), is_paths, gbv_expected_accepted),
        TreeRule("coupled", _coupled, ("COUPLED",), is_paths),
    )
}
