"""The suite: every rule with every sampling scheme for which it is lossless, every wrong rule
detected, and published claims refuted.

It has two parts. Over fractions, a distance of 0 is equality; the rules are those of
``exact.RULES`` and ``exact.TREE_RULES``. The rules that decode, those of ``RULES`` or named ones,
are checked by :func:`specwb.verify.check_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from specwb.errors import ArgumentError
from specwb.verify import RULES
from specwb.verify import exact as E
from specwb.verify.controls import CONTROLS, Control
from specwb.verify.distribution import rule_of
from specwb.verify.instances import all_trees, dense_pairs, level_order, models, pairs
from specwb.verify.mutants import COUNTEREXAMPLES, MUTANTS, Mutant
from specwb.verify.production import RuleCheck, check_rule, distance
from specwb.verify.rule import Rule
from specwb.verify.tree_mutants import TREE_MUTANTS, TreeMutant, cumulative_products

Progress = Callable[[float, str], None]
"""Called with the fraction of the suite that is done, and with what comes next."""
_0 = Fraction(0)
_INSTANCES = 100
"""Pairs of distributions at a node: of every kind and size for the rules, dense ones over four
tokens for the mutants."""
_MODELS = 10
"""Pairs of models that a wrong rule for whole trees is measured on."""
_PATHS = [
    (-1, *[0] * k, *range(1, k * (length - 1) + 1))
    for k, length in ((2, 2), (3, 1), (2, 3), (3, 2))
]
"""Trees of k paths that part at the root."""


@dataclass
class RuleLine:
    """The suite's results for one rule."""

    rule: str
    schemes: tuple[str, ...]  # names of those it was checked with
    cases: int = 0  # distributions of one token or of a step, compared with the target's
    worst: Fraction = _0  # the largest total variation of these
    lengths: int = 0  # expected lengths and acceptances, compared with their closed form
    unequal: int = 0
    # its acceptance over the optimum of all lossless rules, on average, at one node with two
    # children; None for rules of whole trees
    of_optimum: float | None = None
    above: int = 0  # how often its acceptance was larger than that optimum
    killed: int = 0  # of the wrong rules made from it
    mutants: int = 0
    failure: str = ""  # what it raised, such as a step without a distribution of the bonus token
    production: RuleCheck | None = None  # of the rule that decodes; None before

    @property
    def right(self) -> bool:
        """Whether nothing was wrong, over fractions and as it decodes, and every mutant was
        detected."""
        wrong = self.worst or self.unequal or self.above or self.failure
        decodes = self.production is not None and self.production.passed
        return self.cases > 0 and not wrong and self.killed == self.mutants and decodes

    def compare(self, output: E.Dist | dict, target: E.Dist | dict) -> None:
        """Count an output, which must be the target's distribution."""
        self.cases += 1
        self.worst = max(self.worst, E.tv(output, target))

    def equal(self, enumerated: Fraction, closed_form: Fraction) -> None:
        """Count a number, which must be its closed form."""
        self.lengths += 1
        self.unequal += enumerated != closed_form


@dataclass(frozen=True)
class WrongRule:
    """A wrong rule and the distance of its output from the target's distribution: the mean and the
    largest total variation over fixed random instances."""

    name: str
    original: str
    wrong: str
    mean: float
    largest: float


@dataclass(frozen=True)
class Claim:
    """A false claim, the instance that refutes it, and the result there."""

    name: str
    claim: str
    instance: str
    outcome: str
    holds: bool


@dataclass
class Report:
    """All results; if ``interrupted``, those up to then. ``user_rules`` are given rules that are
    not the suite's."""

    rules: list[RuleLine] = field(default_factory=list)
    mutants: list[WrongRule] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    lossy: list[WrongRule] = field(default_factory=list)
    user_rules: list[RuleCheck] = field(default_factory=list)
    interrupted: bool = False

    @property
    def right(self) -> bool:
        """Whether all rules are lossless, all wrong ones detected, and all false claims refuted."""
        return (
            all(line.right for line in self.rules)
            and all(check.passed for check in self.user_rules)
            and all(mutant.largest > 0 for mutant in self.mutants)
            and not any(claim.holds for claim in self.claims)
        )

    @property
    def unchecked(self) -> bool:
        """Whether nothing is wrong, but some given rule could not be checked."""
        rest = replace(self, user_rules=[x for x in self.user_rules if not x.unchecked or x.wrong])
        return rest.right and len(rest.user_rules) < len(self.user_rules)


_Job = tuple[str, RuleLine | None, Callable[[], None]]
"""A piece of the suite that takes a moment: what it is, the rule it is about, and its work."""


def run(
    full: bool = False,
    progress: Progress | None = None,
    rules: Sequence[str | Rule | type[Rule]] | None = None,
) -> Report:
    """Check the rules and their mutants.

    Args:
        full: Steps over all ordered trees with up to 6 nodes besides the root, not 5.
        progress: Called with the completed fraction and a description of the next part.
        rules: Names, or rules of your own; default all names. With rules given, claims and lossy
            rules are left out.
    Raises:
        ValueError: An unknown name.
    """
    names = [*E.RULES, *E.TREE_RULES]
    for name in rules or ():
        if isinstance(name, str) and name not in names:
            raise ArgumentError(
                f"unknown rule {name!r}; "
                f"the suite has {', '.join(names)}, and takes package.module:Rule"
            )
    report = Report()
    jobs = _jobs(report, [name for name in names if rules is None or name in rules], full)
    for rule in (rule_of(rule) for rule in rules or () if not isinstance(rule, str)):

        def check(rule: Rule = rule) -> None:
            report.user_rules.append(check_rule(rule))

        jobs.append((f"{rule.name}: as it decodes", None, check))
    if rules is None:
        jobs.append(("claims", None, lambda: report.claims.extend(claims())))
        jobs.append(("lossy rules", None, lambda: report.lossy.extend([typical(), longest()])))
    try:
        for i, (text, line, work) in enumerate(jobs):
            if progress is not None:
                progress(i / len(jobs), text)
            if line is None:
                work()
                continue
            if line not in report.rules:
                report.rules.append(line)
            try:
                work()
            except (ValueError, ArithmeticError) as error:  # the suite goes on
                line.failure = line.failure or f"{text}: {error}"
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def cells(report: Report) -> list[dict[str, str]]:
    """One row per rule."""
    return [
        {
            "rule": line.rule,
            "sampling schemes": ", ".join(line.schemes),
            "cases": str(line.cases),
            "worst TV": _number(line.worst),
            "lengths equal": _fraction(line.lengths - line.unequal, line.lengths),
            "of optimum, k = 2": "-" if line.of_optimum is None else f"{line.of_optimum:.4f}",
            "mutants killed": _fraction(line.killed, line.mutants),
            "decoding": _decoding(line.production),
            "verdict": _verdict(line, report),
        }
        for line in report.rules
    ]


def _verdict(line: RuleLine, report: Report) -> str:
    if report.interrupted and line is report.rules[-1]:
        return "unfinished"
    return "lossless" if line.right else "WRONG"


def _decoding(check: RuleCheck | None) -> str:
    """Of the rule that decodes: what its TV is or is below, or the p-value where it was sampled."""
    if check is None:
        return "-"
    if check.pvalue is not None:
        return f"p = {check.pvalue:.2g}"
    return f"{check.worst:.1g}" if check.wrong else f"< {check.bound:.2g}"


def _fraction(count: int, total: int) -> str:
    return f"{count}/{total}" if total else "-"


def _number(tv: Fraction) -> str:
    return "0" if tv == 0 else f"{float(tv):.2g}"


def wrong_cells(report: Report) -> list[dict[str, str]]:
    """One row per wrong rule, then the lossy ones."""
    return [
        {
            "wrong rule": rule.name,
            "of": rule.original,
            "mean TV": f"{rule.mean:.4f}",
            "max TV": f"{rule.largest:.4f}",
            "what is wrong": rule.wrong,
        }
        for rule in [*report.mutants, *report.lossy]
    ]


def notes(report: Report) -> list[str]:
    """The claims, the failures, and a summary."""
    lines = []
    for claim in report.claims:
        holds = "HOLDS" if claim.holds else "refuted"
        lines.append(f"{holds}: {claim.claim}. {claim.instance}: {claim.outcome}")
    lines += [f"{line.rule} failed at {line.failure}" for line in report.rules if line.failure]
    checks = [line.production for line in report.rules if line.production is not None]
    lines += [str(check) for check in checks if not check.passed]
    lines += [str(check) for check in report.user_rules]
    cases = sum(line.cases for line in report.rules)
    cases += sum(check.rounds for check in (*checks, *report.user_rules))
    killed = sum(line.killed for line in report.rules)
    mutants = sum(line.mutants for line in report.rules)
    verdict = "all as it should be" if report.right else "SOMETHING IS WRONG"
    if not report.right and report.unchecked:
        verdict = "NOT EVERYTHING COULD BE CHECKED"
    if report.interrupted:
        verdict = "interrupted"
    lines.append(
        f"{cases} distributions compared, {killed} of {mutants} wrong rules told apart: {verdict}"
    )
    return lines


# ---------------------------------------------------------------------------- the checks of a rule


def _jobs(report: Report, names: Sequence[str], full: bool) -> list[_Job]:
    """The checks of these rules."""
    largest = 6 if full else 5
    trees = [level_order(tree) for nodes in range(1, largest + 1) for tree in all_trees(nodes)]
    jobs: list[_Job] = []
    for name in names:
        tree_rule = E.TREE_RULES.get(name)
        line = RuleLine(name, tree_rule.schemes if tree_rule else E.LOSSLESS[name])
        checks = _checks(line, trees, report)
        jobs += [(f"{name}: {text}", line, work) for text, work in checks]
    return jobs


def _checks(
    line: RuleLine, trees: list[tuple[int, ...]], report: Report
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of one rule, each with what it is."""
    tree_rule, schemes = E.TREE_RULES.get(line.rule), line.schemes
    one_child_only = line.rule == "rejection"

    def fits(parents: tuple[int, ...]) -> bool:
        if tree_rule is not None:
            return tree_rule.fits(parents)
        return not one_child_only or len(set(parents)) == len(parents)

    yield "wrong rules", partial(_mutants, line, report)
    yield "as it decodes", lambda: setattr(line, "production", check_rule(RULES[line.rule]))
    for scheme in schemes if tree_rule is None else ():
        yield f"one node, {scheme}", partial(_node, line, scheme)
    if tree_rule is None and "IID" in schemes and not one_child_only:
        line.schemes = (*schemes, "IID_PATHS")
        for parents in _PATHS:
            yield "independent paths", partial(_round, line, "IID_PATHS", parents)
    for parents in filter(fits, trees):
        for scheme in schemes:
            text = f"{len(parents) - 1} nodes, {scheme}"
            yield text, partial(_round, line, scheme, parents)


def _mutants(line: RuleLine, report: Report) -> None:
    """Tell the wrong rules apart that are made from this one."""
    rules = [_distance(m) for m in MUTANTS if m.original == line.rule]
    rules += [_tree_distance(m) for m in TREE_MUTANTS if m.original == line.rule]
    rules += [_products()] if line.rule == "block" else []
    rules += [_control(c) for c in CONTROLS if c.original == line.rule]
    line.mutants, line.killed = len(rules), sum(rule.largest > 0 for rule in rules)
    report.mutants += rules


def _node(line: RuleLine, name: str) -> None:
    """One node: the output is p, acceptance is at most the optimum and is its closed form."""
    rule, scheme = E.RULES[line.rule], E.SCHEMES[name]
    table = E.CHILD_TABLES.get((line.rule, name))
    one_child_only = line.rule == "rejection"
    fractions = []
    for p, q in pairs(_INSTANCES):
        for k in (1,) if one_child_only else (1, 2, 3):
            line.compare(E.output_distribution(rule, scheme, p, q, k), p)
            if k > 2:
                continue
            accepted, optimum = E.acceptance(rule, scheme, p, q, k), E.optimum(scheme, p, q, k)
            line.above += accepted > optimum
            if optimum and (k == 2 or one_child_only):
                fractions.append(accepted / optimum)
            if table is not None and line.rule == "kseq":
                # its bonus token may be a child, which tables do not count
                line.equal(accepted, E.kseq_acceptance(p, q, k))
            elif table is not None:
                line.equal(accepted, E.table_total(table(p, q, k)))
    if line.of_optimum is None:  # of its own sampling scheme, which comes first
        line.of_optimum = float(sum(fractions, _0) / len(fractions))


def _round(line: RuleLine, scheme: str, parents: tuple[int, ...]) -> None:
    """Rounds over a tree, with difficult models and dense ones; three tokens where it is small."""
    tree_rule, table = E.TREE_RULES.get(line.rule), E.CHILD_TABLES.get((line.rule, scheme))
    expected = tree_rule.expected if tree_rule else table and partial(E.expected_from_table, table)
    for seed, kind in enumerate(("any", "dense")):
        for v in (2, 3) if len(parents) <= 4 else (2,):
            target, draft = models(seed, v, kind)
            outcomes = list(_outcomes(line.rule, scheme, target, draft, parents))
            line.compare(*_output(outcomes, target, parents))
            if expected is not None:
                line.equal(E.mean_accepted(outcomes), expected(target, draft, parents))


def _outcomes(
    rule: str, scheme: str, target: E.Model, draft: E.Model, parents: tuple[int, ...]
) -> Iterable[E.Outcome]:
    """The outcomes of a step of any rule of the suite."""
    if rule in E.TREE_RULES:
        return E.TREE_RULES[rule].outcomes(scheme, target, draft, parents)
    if scheme == "IID_PATHS":
        return E.paths_outcomes(E.RULES[rule], target, draft, parents)
    return E.walks(E.RULES[rule], E.SCHEMES[scheme], target, draft, parents)


def _output(
    outcomes: Iterable[E.Outcome], target: E.Model, parents: Sequence[int]
) -> tuple[dict[E.Tokens, Fraction], dict[E.Tokens, Fraction]]:
    """The tokens that a step writes, and the target's distribution of as many tokens."""
    length = max(E.depths(parents)) + 1
    return E.completed(outcomes, target, length), E.target_distribution(target, length)


# -------------------------------------------------------------------------------- wrong rules


def _summary(name: str, original: str, wrong: str, distances: Iterable[Fraction]) -> WrongRule:
    distances = list(distances)
    mean = float(sum(distances, _0) / len(distances))
    return WrongRule(name, original, wrong, mean, float(max(distances)))


def _distance(mutant: Mutant) -> WrongRule:
    """A wrong node rule."""
    distances = (
        E.tv(E.output_distribution(mutant.node, mutant.scheme, p, q, mutant.k), p)
        for p, q in dense_pairs(_INSTANCES)
    )
    return _summary(mutant.name, mutant.original, mutant.wrong, distances)


def _control(control: Control) -> WrongRule:
    """A wrong rule that decodes, over the steps of :func:`check_rule`."""
    check = check_rule(control.rule)
    name = f"{control.name} (decoding)"
    return WrongRule(name, control.original, control.wrong, check.mean, check.worst)


def _tree_distance(mutant: TreeMutant) -> WrongRule:
    """A wrong rule for whole trees."""

    def distance(seed: int) -> Fraction:
        target, draft = models(seed, 3, mutant.models)
        outcomes = mutant.outcomes(mutant.scheme, target, draft, mutant.parents)
        return E.tv(*_output(outcomes, target, mutant.parents))

    return _summary(mutant.name, mutant.original, mutant.wrong, map(distance, range(_MODELS)))


def _products() -> WrongRule:
    """The one wrong rule whose output is in floats: what is below their rounding is 0."""

    def off(seed: int) -> Fraction:
        target, draft = models(seed, 3, "dense")
        output = cumulative_products(target, draft)
        return Fraction(round(distance(output, E.target_distribution(target, 3)), 9))

    wrong = "products of uniforms are compared with products of min(1, p/q)"
    return _summary("products_of_uniforms", "block", wrong, map(off, range(_MODELS)))


def typical() -> WrongRule:
    """Typical acceptance of the two most probable tokens, which is lossy by design."""
    wrong = "LOSSY by design: a child above a threshold is taken for certain"
    return _distance(Mutant("typical", E.typical, E.top, 2, wrong, "typical"))


def longest() -> WrongRule:
    """The longest of two roots, each with a chain of two tokens below it, which is lossy by
    design."""

    def distance(seed: int) -> Fraction:
        target, draft = models(seed, 3, "dense")
        output = E.roots_distribution(target, draft, (-1, 0, 1), 2, 3)
        return E.tv(output, E.target_distribution(target, 3))

    wrong = "LOSSY by design: of two roots the one with the longest accepted path is kept"
    return _summary("longest", "longest", wrong, map(distance, range(_MODELS)))


# ------------------------------------------------------------------------------------- claims


def claims() -> list[Claim]:
    """Claims that enumeration refutes, each on a small instance."""
    refuted = []
    for c in COUNTEREXAMPLES:
        output = c.output()
        instance = f"p = {_text(c.p)}, q = {_text(c.q)}, k = {c.k}"
        holds = output == list(c.p)
        refuted.append(Claim(c.name, c.claim, instance, f"output {_text(output)}", holds))
    return [*refuted, *_claims_about_blocks()]


def _claims_about_blocks() -> list[Claim]:
    p, q = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    instance = f"p = {_text(p)}, q = {_text(q)} everywhere, gamma = 2"

    models_of = (lambda prefix: p), (lambda prefix: q)
    token = E.chain_expected_accepted(*models_of, 2)
    block = E.block_expected_accepted(*models_of, (-1, 0, 1))
    coincide = Claim(
        "two rules at gamma = 2",
        "token and block verification coincide for gamma <= 2",
        instance,
        f"accepted {token} and {block}",
        token == block,
    )
    (hsd,) = (m for m in TREE_MUTANTS if m.name == "hsd")
    outcomes = list(hsd.outcomes(hsd.scheme, *models_of, hsd.parents))
    tv = E.tv(*_output(outcomes, models_of[0], hsd.parents))
    accepted = E.mean_accepted(outcomes)
    uncapped = Claim(
        "uncapped whole blocks",
        "hierarchical speculative decoding is lossless, and longer than block verification",
        instance,
        f"TV {tv}, accepted {accepted} where {block} is the most",
        tv == 0,
    )
    return [coincide, uncapped]


def _text(p: Iterable[Fraction]) -> str:
    return f"({', '.join(map(str, p))})"
