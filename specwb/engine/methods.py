"""The registry of methods: the entries of their files, and what builds a method from its spec."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from specwb.core.flow import Exactness, RuleMismatch, Scheme
from specwb.core.options import REQUIRED, MethodError, parse_value, spell
from specwb.core.probability import Sampling
from specwb.core.tree import Limits
from specwb.drafters import (
    ar,
    diffuspec,
    eagle,
    eagle2,
    eagle3,
    easyspec,
    falcon,
    falcon_dynamic,
    kangaroo,
    lookahead,
    mcsd,
    mcsd_ti,
    medusa,
    pld,
    recycling,
    sps,
    suffix,
)
from specwb.drafters.admission import Admission
from specwb.drafters.base import Drafter, Entry
from specwb.drafters.copying import Copying
from specwb.engine.graphs import Arena
from specwb.models.checkpoint import HeadError
from specwb.models.target import Target, check_target
from specwb.rules import RULES, Greedy, Rule
from specwb.rules.rule import ONE_A_NODE

_USUAL = {
    Scheme.POINT: "point",
    Scheme.IID: "rrs",
    Scheme.WITHOUT_REPLACEMENT: "rrsw",
    Scheme.IID_PATHS: "rrs",
    Scheme.TOP_AND_SAMPLE: "top",
    Scheme.ROOTS: "longest",
}


@dataclass(frozen=True)
class Method:
    """A drafter with its verification rule, ready for any decoding with the target that it was
    built for.

    Attributes:
        key: its full spec.
        drafter: what proposes.
        rule: the rule that was asked for, None for the usual one.
        exactness: whether it keeps the target's distribution.
        arenas: memory that is free for the next decoding, see :mod:`specwb.engine.graphs`.
        options: those that it was built with.
    """

    key: str
    # their default reprs are addresses, and the key says what they are
    drafter: Drafter = field(repr=False)
    rule: Rule | None = field(repr=False)
    exactness: Exactness
    arenas: dict[tuple, Arena] = field(default_factory=dict, compare=False, repr=False)
    options: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def rule_for(self, sampling: Sampling) -> Rule:
        """The rule under these sampling settings: the greedy walk at T = 0 and with ``exact_text``,
        otherwise the rule that was asked for, or the usual one of how the candidates are drawn.

        Raises:
            RuleMismatch: the rule would not keep the target's distribution with these candidates,
                or a rule or a lossy method with ``exact_text``.
        """
        if sampling.exact_text and (self.exactness is Exactness.LOSSY or self.rule):
            why = "is LOSSY" if self.rule is None else f"names the rule {self.rule.name!r}"
            raise RuleMismatch(
                f"{self.key} {why}; with exact_text tokens are kept where they are plain decoding's"
                " and by no other rule: leave it out"
            )
        sampled = sampling if not sampling.greedy else Sampling(1.0)
        scheme = self.drafter.scheme(sampled)
        limits = self.drafter.limits
        single = limits.children <= 1 and scheme in ONE_A_NODE
        usual = self.drafter.rule or ("rejection" if single else _USUAL[scheme])
        rule = copy.copy(self.rule) if self.rule else RULES[usual]()
        how = scheme, limits, self.drafter.independent
        try:
            rule.check(*how)  # at T = 0 too: a wrong pair is wrong, whether or not it shows
        except RuleMismatch as error:
            fit = [
                name
                for name, kind in RULES.items()
                if kind.exactness is Exactness.LOSSLESS and _fits(kind(), *how)
            ]
            raise RuleMismatch(f"{error}; what fits them: {', '.join(fit) or 'no rule'}") from None
        return (rule.greedy_rule() or Greedy()) if sampling.greedy else rule


# in the order in which they are listed
METHODS: dict[str, Entry] = {
    module.ENTRY.key: module.ENTRY
    for module in (
        ar,
        sps,
        mcsd,
        pld,
        suffix,
        recycling,
        lookahead,
        medusa,
        eagle,
        eagle2,
        eagle3,
        falcon,
        falcon_dynamic,
        diffuspec,
        kangaroo,
        mcsd_ti,
        easyspec,
    )
}


def register(
    key: str,
    drafter: Callable[..., Drafter],
    *,
    options: type | None = None,
    paper: str = "",
    needs: str = "nothing",
    exactness: Exactness = Exactness.LOSSLESS,
    bibtex: str = "",
    head: str = "",
) -> None:
    """Makes a drafter a method: it is decoded by its key, compared, and run through the protocol
    tests like every other.

    Args:
        key: its name in specs.
        drafter: a :class:`Drafter` subclass, whose constructor's keywords are the options, or a
            function ``build(target, **options) -> Drafter``.
        options: a frozen dataclass of the options, which are then described and checked as
            :class:`specwb.core.options.Option` says; ``drafter`` is then a function
            ``build(target, options) -> Drafter``.
        paper: its source.
        needs: what it needs beside the target.
        exactness: whether it keeps the target's distribution.
        bibtex: its citation.
        head: which trained head of the target's own it uses where none is named.

    Raises:
        MethodError: the key is taken or cannot be written on a command line.
    """
    if not isinstance(key, str) or not key.isidentifier():
        raise MethodError(f"method key {key!r} must be a plain name (letters, digits, _)")
    if isinstance(drafter, Drafter) or not callable(drafter):
        wants = "register the drafter's class or a function that builds it"
        raise MethodError(f"{wants}, not {drafter!r}")
    if options is not None and not is_dataclass(options):
        raise MethodError(f"options of {key} must be a dataclass, got {options!r}")
    if key in METHODS:
        way_out = f"specwb.unregister({key!r}) first to replace it"
        raise MethodError(f"method {key!r} is registered already; {way_out}")
    build: Callable[..., Drafter] = drafter
    if isinstance(drafter, type) and issubclass(drafter, Drafter):
        build = _constructor(drafter)
        exactness = Exactness.LOSSY if drafter.exactness is Exactness.LOSSY else exactness
    METHODS[key] = Entry(key, build, options, paper, needs, exactness, bibtex, head)


def _constructor(drafter: type[Drafter]) -> Callable[..., Drafter]:
    """``build(target, **options)`` of a class that needs no target before ``open``."""

    def build(target: Target, **options) -> Drafter:
        return drafter(**options)

    build.__doc__ = drafter.__doc__
    bare = drafter.__init__ is object.__init__
    parameters = [] if bare else list(inspect.signature(drafter).parameters.values())
    first = inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    build.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    return build


def unregister(key: str) -> None:
    """Takes a method out of the registry."""
    if isinstance(key, str):
        METHODS.pop(key, None)


def method(
    spec: str, target: Target, *, rule: str | Rule | type[Rule] | None = None, **options
) -> Method:
    """Builds a method: ``method("mcsd:tree=4-2-2,draw=with", target)`` or
    ``method("mcsd", target, tree=(4, 2, 2))``.

    Args:
        spec: the method's key, with or without options.
        target: the model whose distribution is kept.
        rule: a verification rule, its key, class or instance; default the usual one for how the
            drafter's candidates are drawn.
        options: those that are not in ``spec``.

    Raises:
        MethodError: unknown method, rule or option, or options that cannot be used.
        RuleMismatch: rule and drafter do not fit.
        LoadError: target and draft do not fit.
    """
    entry, chosen, options = read_spec(spec, rule, options)
    check_target(target)
    drafter = entry.drafter(target, options)
    # a keyword of somebody's own drafter that has the same name is not this option
    least, verify = (options.get(name) if entry.settings else None for name in ("copy", "verify"))
    if least:
        drafter = Copying(drafter, least)
    if verify:
        drafter = Admission(drafter)
    if not isinstance(getattr(drafter, "limits", None), Limits):
        what = "set `tree`, the largest it proposes, to a specwb.Tree (such as Tree.chain(3))"
        raise MethodError(
            f"{entry.key}: its drafter has no tree; {what}, or `limits` where its trees differ"
        )
    rules = () if chosen is None else (chosen.exactness,)
    lossy = Exactness.LOSSY in (entry.exactness, drafter.exactness, *rules)
    exactness = Exactness.LOSSY if lossy else Exactness.LOSSLESS
    key = _spelled(entry, spec, options, chosen)
    built = Method(key, drafter, chosen, exactness, options=options)
    usual = built.rule_for(Sampling(1.0))
    if (least or verify) and (usual.fixed_number or usual.fixed_shape):
        without = " and ".join(f"{name}=" for name in ("copy", "verify") if options.get(name))
        raise RuleMismatch(
            f"{key}: rule {usual.name!r} needs drafts of a fixed shape, without {without}"
        )
    return built


def built_with(spec: str, target: Target, draft: Target | str | None = None) -> Method:
    """Builds a method; ``draft`` is the draft model of one that takes any and names none."""
    entry = METHODS.get(spec.partition(":")[0]) if isinstance(spec, str) else None
    takes = entry is not None and "draft" in entry.options and "draft=" not in spec
    options: dict[str, Any] = {"draft": draft} if takes and draft is not None else {}
    return method(spec, target, **options)


def that_run(
    specs: Sequence[str], target: Target, draft: Target | str | None = None, usual: bool = False
) -> tuple[dict[str, Method], dict[str, str]]:
    """Builds those methods that this target can run: not, say, a tree deeper than its heads.
    Returns spec -> the method, and spec -> why it was left out.

    ``draft`` is the draft model of methods that take one and name none. With ``usual`` nobody named
    the methods: then one whose draft model is trained for it (``deep``) takes that one, whatever
    the others take.
    """
    built: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    for spec in specs:
        entry, _, _ = read_spec(spec, None, {})
        own_draft = None if usual and entry.head == "deep" else draft
        try:
            built[spec] = built_with(spec, target, own_draft)
        except (MethodError, HeadError, RuleMismatch) as error:
            left_out[spec] = str(error).removeprefix(f"{entry.key}: ")
    return built, left_out


def _spelled(entry: Entry, spec: str, options: dict[str, Any], rule: Rule | None) -> str:
    """The full spec of a method: its key and all options that are not the defaults.

    A draft or head that is given as a model has no spelling; one that is named in ``spec`` has.
    """
    text = spec.partition(":")[2]
    changed = {
        name: value
        for name, value in options.items()
        if value is not None
        and value != entry.options[name].default
        and not (name in ("draft", "head") and name not in text)
    }
    if rule is not None:
        changed["rule"] = rule.name
    written = ",".join(f"{name}={spell(value)}" for name, value in changed.items())
    return f"{entry.key}:{written}" if written else entry.key


def read_spec(
    spec: str,
    rule: str | Rule | type[Rule] | None,
    options: dict[str, Any],
) -> tuple[Entry, Rule | None, dict[str, Any]]:
    """The registered method, its rule and its options as given, as far as they can be read without
    a target."""
    options = dict(options)
    if not isinstance(spec, str):
        own = "a drafter of your own: specwb.register it first"
        raise MethodError(f"a method is named by its key, such as 'sps'; got {spec!r} ({own})")
    key, _, text = spec.partition(":")
    if key not in METHODS:
        raise MethodError(f"unknown method {key!r}; known: {', '.join(METHODS)}")
    entry = METHODS[key]
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise MethodError(f"{key}: option {item!r} must be written name=value")
        if name in options or (name == "rule" and rule is not None):
            raise MethodError(f"{key}: option {name!r} is given twice")
        if name == "rule":
            rule = value
        else:
            options[name] = value
    if "preset" in options and "preset" not in entry.options:
        preset = options.pop("preset")
        if preset not in entry.presets:
            there = ", ".join(entry.presets) or "none"
            raise MethodError(f"{key} has no preset {preset!r}; its presets: {there}")
        options = {**entry.presets[preset].options, **options}
        usual = options.pop("rule", None)
        rule = usual if rule is None else rule
    for name, value in options.items():
        if isinstance(value, str) and name not in ("draft", "head"):
            options[name] = parse_value(value)
    known = entry.options
    for name in options:
        if name not in known:
            names = ", ".join([*known, "rule", *(["preset"] if entry.presets else [])])
            raise MethodError(f"{key} has no option {name!r}; its options: {names}")
    chosen = _rule(rule)
    missing = [n for n, option in known.items() if option.default is REQUIRED and n not in options]
    if missing:
        raise MethodError(f"{key}: {', '.join(map(repr, missing))} must be given")
    entry.check(options)
    return entry, chosen, options


def _rule(rule: str | Rule | type[Rule] | None) -> Rule | None:
    """The rule that is named by its key, class or instance."""
    if rule is None or isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if not isinstance(rule, str) or rule not in RULES:
        raise MethodError(f"unknown rule {rule!r}; known: {', '.join(RULES)}")
    return RULES[rule]()


def _fits(rule: Rule, scheme: Scheme, limits: Limits, independent: bool) -> bool:
    """Whether the rule is lossless for candidates that are drawn so."""
    try:
        rule.check(scheme, limits, independent)
    except RuleMismatch:
        return False
    return True


def citation(*keys: str) -> str:
    """BibTeX of the named methods, all that have one by default."""
    chosen = keys or tuple(METHODS)
    for key in chosen:
        if not isinstance(key, str) or key not in METHODS:
            raise MethodError(f"unknown method {key!r}; known: {', '.join(METHODS)}")
    return "\n".join(METHODS[k].bibtex for k in chosen if METHODS[k].bibtex)
