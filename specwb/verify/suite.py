"""The suite: every rule over every draft law it is lossless for, every wrong rule told apart, and
published claims refuted.

Twice: over fractions, where a distance of 0 is equality (a rule enters by standing in
``exact.RULES`` or ``exact.TREE_RULES``), and the rules that decode, asked by
:func:`specwb.verify.check_rule` (a rule enters by standing in ``RULES``, or by being named).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from specwb.verify import RULES
from specwb.verify import exact as E
from specwb.verify.controls import CONTROLS, Control
from specwb.verify.distribution import rule_of
from specwb.verify.instances import all_trees, dense_pairs, level_order, models, pairs
from specwb.verify.mutants import COUNTEREXAMPLES, MUTANTS, Mutant
from specwb.verify.production import RuleCheck, check_rule
from specwb.verify.rule import Rule
from specwb.verify.tree_mutants import TREE_MUTANTS, TreeMutant, cumulative_products_law

Progress = Callable[[float, str], None]
_0 = Fraction(0)
_INSTANCES = 100
"""Pairs of laws at a node: of every kind and size for the rules, dense ones over four tokens for
the mutants."""
_MODELS = 10
"""Pairs of models that a wrong rule for whole trees is measured on."""
_TREES_OF = {
    "hsd": "block", "gbv_other_ties": "gbv", "shared_lists": "traversal", "searched_ratio": "rejection", "sorted_paths": "rrs",
    "unsure_left_out": "rejection", "peeking": "rejection", "at_once": "rrsw",
}  # fmt: skip
_PATHS = [(-1, *[0] * k, *range(1, k * (length - 1) + 1)) for k, length in ((2, 2), (3, 1), (2, 3), (3, 2))]


@dataclass
class Line:
    """What was found about one rule.

    Attributes:
        laws: names of the draft laws it was checked with.
        cases: how many laws of an output, of one token or of a round, were compared with the
            target's. worst: their largest distance.
        lengths, unequal: how many expected lengths and acceptances were compared with their closed
            form, and how many differ.
        of_optimum: its mean share of the acceptance that no lossless rule can exceed, at one node
            with two children; None for rules of whole trees.
        above: how often its acceptance was larger than that optimum.
        killed, mutants: how many of the wrong rules made from it are told apart.
        failure: what it raised, such as a round without a law for the closing token.
        production: what was found about the rule that decodes; None until it has been asked.
    """

    rule: str
    laws: tuple[str, ...]
    cases: int = 0
    worst: Fraction = _0
    lengths: int = 0
    unequal: int = 0
    of_optimum: float | None = None
    above: int = 0
    killed: int = 0
    mutants: int = 0
    failure: str = ""
    production: RuleCheck | None = None

    @property
    def right(self) -> bool:
        wrong = self.worst or self.unequal or self.above or self.failure
        decodes = self.production is not None and self.production.passed
        return self.cases > 0 and not wrong and self.killed == self.mutants and decodes

    def compare(self, found: E.Dist | dict, wanted: E.Dist | dict) -> None:
        self.cases += 1
        self.worst = max(self.worst, E.tv(found, wanted))

    def equal(self, found: Fraction, wanted: Fraction) -> None:
        self.lengths += 1
        self.unequal += found != wanted


@dataclass(frozen=True)
class Wrong:
    """A wrong rule and how far its output is from the target's law: mean and largest total
    variation over fixed random instances."""

    name: str
    rule: str
    wrong: str
    mean: float
    largest: float


@dataclass(frozen=True)
class Refuted:
    """A claim, the instance that refutes it, and what comes out there."""

    name: str
    claim: str
    instance: str
    found: str
    holds: bool


@dataclass
class Report:
    """All that was checked; with ``interrupted`` what was checked until then."""

    rules: list[Line] = field(default_factory=list)
    mutants: list[Wrong] = field(default_factory=list)
    claims: list[Refuted] = field(default_factory=list)
    lossy: list[Wrong] = field(default_factory=list)
    own: list[RuleCheck] = field(default_factory=list)
    interrupted: bool = False

    @property
    def right(self) -> bool:
        """Every rule is lossless, every wrong one is told apart, and no refuted claim holds."""
        rules = all(line.right for line in self.rules) and all(one.passed for one in self.own)
        return rules and all(m.largest > 0 for m in self.mutants) and not any(c.holds for c in self.claims)


def run(full: bool = False, progress: Progress | None = None, rules: Sequence[str | Rule | type[Rule]] | None = None) -> Report:
    """Check the rules and their mutants.

    Args:
        full: rounds over all ordered trees with up to 6 nodes besides the root, not 5. progress:
            called with the share that is done and what is next.
        rules: names, or rules of your own; default all names. With rules given, claims and lossy
            rules are left out.
    Raises:
        ValueError: an unknown name.
    """
    known = [*E.RULES, *E.TREE_RULES]
    for name in rules or ():
        if isinstance(name, str) and name not in known:
            raise ValueError(f"unknown rule {name!r}; the suite has {', '.join(known)}, and takes package.module:Rule")
    report, chosen = Report(), [name for name in known if rules is None or name in rules]
    own = [rule_of(rule) for rule in rules or () if not isinstance(rule, str)]
    trees = [level_order(tree) for nodes in range(1, 7 if full else 6) for tree in all_trees(nodes)]
    jobs: list[tuple[str, Line | None, Callable[[], None]]] = []
    for name in chosen:
        line = Line(name, E.TREE_RULES[name].laws if name in E.TREE_RULES else E.LOSSLESS[name])
        jobs += [(f"{name}: {text}", line, job) for text, job in _jobs(line, trees, report)]
    for rule in own:
        jobs.append((f"{rule.name}: as it decodes", None, partial(_own, report, rule)))
    if rules is None:
        jobs += [("claims", None, lambda: report.claims.extend(claims())), ("lossy rules", None, lambda: report.lossy.extend([typical(), longest()]))]
    try:
        for i, (text, of, job) in enumerate(jobs):
            if progress is not None:
                progress(i / len(jobs), text)
            if of is not None and (not report.rules or report.rules[-1] is not of):
                report.rules.append(of)
            try:
                job()
            except (ValueError, ArithmeticError) as error:
                if of is None:
                    raise
                of.failure = of.failure or f"{text}: {error}"
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def cells(report: Report) -> list[dict[str, str]]:
    """One row a rule."""
    return [
        {
            "rule": line.rule,
            "draft laws": ", ".join(line.laws),
            "cases": str(line.cases),
            "worst TV": _number(line.worst),
            "lengths equal": f"{line.lengths - line.unequal}/{line.lengths}" if line.lengths else "-",
            "of optimum, k = 2": "-" if line.of_optimum is None else f"{line.of_optimum:.4f}",
            "mutants killed": f"{line.killed}/{line.mutants}" if line.mutants else "-",
            "decoding": _decoded(line.production),
            "verdict": "unfinished" if report.interrupted and line is report.rules[-1] else "lossless" if line.right else "WRONG",
        }
        for line in report.rules
    ]


def _decoded(check: RuleCheck | None) -> str:
    """Of the rule that decodes: the largest distance, or the p-value where it was sampled."""
    if check is None:
        return "-"
    return f"{check.worst:.1g}" if check.pvalue is None else f"p = {check.pvalue:.2g}"


def wrong_cells(report: Report) -> list[dict[str, str]]:
    """One row a wrong rule, and the lossy ones."""
    return [
        {"wrong rule": m.name, "of": m.rule, "mean TV": f"{m.mean:.4f}", "max TV": f"{m.largest:.4f}", "what is wrong": m.wrong}
        for m in [*report.mutants, *report.lossy]
    ]


def notes(report: Report) -> list[str]:
    """The claims, and what all comes to."""
    lines = [f"{'HOLDS' if c.holds else 'refuted'}: {c.claim}. {c.instance}: {c.found}" for c in report.claims]
    cases, killed = sum(line.cases for line in report.rules), sum(line.killed for line in report.rules)
    verdict = "interrupted" if report.interrupted else "all as it should be" if report.right else "SOMETHING IS WRONG"
    lines += [f"{line.rule} failed at {line.failure}" for line in report.rules if line.failure]
    lines += [str(line.production) for line in report.rules if line.production is not None and not line.production.passed]
    lines += [str(one) for one in report.own]
    cases += sum(check.rounds for check in (*(line.production for line in report.rules), *report.own) if check is not None)
    return [*lines, f"{cases} laws compared, {killed} of {sum(line.mutants for line in report.rules)} wrong rules told apart: {verdict}"]


def _number(tv: Fraction) -> str:
    return "0" if tv == 0 else f"{float(tv):.2g}"


def _jobs(line: Line, trees: list[tuple[int, ...]], report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of one rule, a moment's work each."""
    rule, laws = E.TREE_RULES.get(line.rule), line.laws

    def mutants() -> None:
        found = [_distance(m) for m in MUTANTS if m.of == line.rule]
        found += [_tree_distance(m) for m in TREE_MUTANTS if _TREES_OF.get(m.name) == line.rule]
        found += [_products()] if line.rule == "block" else []
        found += [_control(c) for c in CONTROLS if c.of == line.rule]
        line.mutants, line.killed = len(found), sum(m.largest > 0 for m in found)
        report.mutants += found

    yield "wrong rules", mutants
    yield "as it decodes", partial(_production, line)
    if rule is None:
        for law in laws:
            yield f"one node, {law}", partial(_node, line, law)
        if "IID" in laws and line.rule != "rejection":
            line.laws = (*laws, "IID_PATHS")
            for parents in _PATHS:
                yield "independent paths", partial(_paths, line, parents)
    for parents in trees:
        if rule.fits(parents) if rule else line.rule != "rejection" or len(set(parents)) == len(parents):
            for law in laws:
                yield f"{len(parents) - 1} nodes, {law}", partial(_round, line, law, parents)


def _production(line: Line) -> None:
    line.production = check_rule(RULES[line.rule])


def _own(report: Report, rule: Rule) -> None:
    report.own.append(check_rule(rule))


def _node(line: Line, law: str) -> None:
    rule, drawn = E.RULES[line.rule], E.LAWS[law]
    places = E.PLACES.get((line.rule, law))
    shares = []
    for p, q in pairs(_INSTANCES):
        for k in (1,) if line.rule == "rejection" else (1, 2, 3):
            line.compare(E.output_law(rule, drawn, p, q, k), p)
            if k <= 2:
                found, most = E.acceptance(rule, drawn, p, q, k), E.optimum(drawn, p, q, k)
                line.above += found > most
                if most and (k == 2 or line.rule == "rejection"):
                    shares.append(found / most)
                # its closing token may be a child, which places do not count
                if places is not None and line.rule != "kseq":
                    line.equal(found, E.total(places(p, q, k)))
                elif places is not None:
                    line.equal(found, E.kseq_acceptance(p, q, k))
    if line.of_optimum is None:  # of its own draft law, which comes first
        line.of_optimum = float(sum(shares, _0) / len(shares))


def _paths(line: Line, parents: tuple[int, ...]) -> None:
    length = max(E.depths(parents)) + 1
    for seed in range(2):
        target, draft = models(seed, 2)
        line.compare(E.completed(E.paths_outcomes(E.RULES[line.rule], target, draft, parents), target, length), E.target_law(target, length))


def _round(line: Line, law: str, parents: tuple[int, ...]) -> None:
    """Difficult models and dense ones; three tokens where the tree is small."""
    rule, length = E.TREE_RULES.get(line.rule), max(E.depths(parents)) + 1
    places = E.PLACES.get((line.rule, law))
    for seed, kind in enumerate(("any", "dense")):
        for v in (2, 3) if len(parents) <= 4 else (2,):
            target, draft = models(seed, v, kind)
            wanted = E.target_law(target, length)
            if rule is not None:
                line.compare(E.tree_round_law(rule, law, target, draft, parents), wanted)
                if rule.expected is not None:
                    line.equal(E.tree_expected_accepted(rule, law, target, draft, parents), rule.expected(target, draft, parents))
            else:
                line.compare(E.round_law(E.RULES[line.rule], E.LAWS[law], target, draft, parents), wanted)
                if places is not None:
                    accepted = E.expected_accepted(E.RULES[line.rule], E.LAWS[law], target, draft, parents)
                    line.equal(accepted, E.expected_from_places(places, target, draft, parents))


def _summary(name: str, rule: str, wrong: str, found: Iterable[Fraction]) -> Wrong:
    distances = list(found)
    return Wrong(name, rule, wrong, float(sum(distances, _0) / len(distances)), float(max(distances)))


def _distance(mutant: Mutant) -> Wrong:
    found = (E.tv(E.output_law(mutant.node, mutant.law, p, q, mutant.k), p) for p, q in dense_pairs(_INSTANCES))
    return _summary(mutant.name, mutant.of, mutant.wrong, found)


def _control(control: Control) -> Wrong:
    """A wrong rule that decodes, over the rounds of :func:`check_rule`."""
    found = check_rule(control.rule)
    return Wrong(f"{control.name} (decoding)", control.of, control.wrong, found.mean, found.worst)


def _tree_distance(mutant: TreeMutant) -> Wrong:
    length, found = max(E.depths(mutant.parents)) + 1, []
    for seed in range(_MODELS):
        target, draft = models(seed, 3, "tied" if mutant.name == "gbv_other_ties" else "dense")
        law = E.completed(mutant.outcomes(mutant.law, target, draft, mutant.parents), target, length)
        found.append(E.tv(law, E.target_law(target, length)))
    return _summary(mutant.name, _TREES_OF[mutant.name], mutant.wrong, found)


def _products() -> Wrong:
    found = []
    for seed in range(_MODELS):
        target, draft = models(seed, 3, "dense")
        law, wanted = cumulative_products_law(target, draft), E.target_law(target, 3)
        # the one law in floats: what is below their rounding is 0
        found.append(Fraction(round(sum(abs(law.get(x, 0.0) - float(wanted.get(x, 0))) for x in {*law, *wanted}) / 2, 9)))
    return _summary("products_of_uniforms", "block", "products of uniforms are compared with products of min(1, p/q)", found)


def typical() -> Wrong:
    """Typical acceptance of the two most probable tokens, as it is: lossy by design."""
    found = (E.tv(E.output_law(E.typical, E.top, p, q, 2), p) for p, q in dense_pairs(_INSTANCES))
    return _summary("typical", "typical", "LOSSY by design: a child above a threshold is taken for certain", found)


def longest() -> Wrong:
    """The longest of two roots, each with a chain of two tokens below it, as it is: lossy by
    design."""
    found = []
    for seed in range(_MODELS):
        target, draft = models(seed, 3, "dense")
        found.append(E.tv(E.roots_law(target, draft, (-1, 0, 1), 2, 3), E.target_law(target, 3)))
    return _summary("longest", "longest", "LOSSY by design: of two roots the one that is gone on from best stays", found)


def claims() -> list[Refuted]:
    """Claims that enumeration refutes, each on a small instance."""
    found = []
    for c in COUNTEREXAMPLES:
        law = c.law()
        found.append(Refuted(c.name, c.claim, f"p = {_text(c.p)}, q = {_text(c.q)}, k = {c.k}", f"output {_text(law)}", law == list(c.p)))
    p, q = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    where = f"p = {_text(p)}, q = {_text(q)} everywhere, gamma = 2"

    def target(prefix: E.Tokens) -> E.Dist:
        return p

    def draft(prefix: E.Tokens) -> E.Dist:
        return q

    token, block = E.chain_expected_accepted(target, draft, 2), E.block_expected_accepted(target, draft, (-1, 0, 1))
    text = "token and block verification coincide for gamma <= 2"
    found.append(Refuted("two rules at gamma = 2", text, where, f"accepted {token} and {block}", token == block))
    (hsd,) = (m for m in TREE_MUTANTS if m.name == "hsd")
    outcomes = list(hsd.outcomes(hsd.law, target, draft, hsd.parents))
    off = E.tv(E.completed(outcomes, target, 3), E.target_law(target, 3))
    accepted = sum((len(path) * prob for path, _, prob in outcomes), _0)
    text = "hierarchical speculative decoding is lossless, and longer than block verification"
    found.append(Refuted("uncapped whole blocks", text, where, f"TV {off}, accepted {accepted} where {block} is the most", off == 0))
    return found


def _text(law: Iterable[Fraction]) -> str:
    return f"({', '.join(map(str, law))})"
