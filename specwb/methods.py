"""The registry: a key, what builds its drafter, and what is true of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specwb.drafters import heads
from specwb.drafters.ar import Autoregressive
from specwb.drafters.base import Drafter
from specwb.drafters.diffuspec import diffuspec
from specwb.drafters.easyspec import easyspec
from specwb.drafters.kangaroo import kangaroo
from specwb.drafters.level import LevelDrafter, drawable
from specwb.drafters.lookahead import Lookahead
from specwb.drafters.mcsd_ti import mcsd_ti
from specwb.drafters.pld import PromptLookup
from specwb.drafters.sps import SCHEDULES, ScheduledChain
from specwb.flow import Exactness, Law, LawMismatch
from specwb.graphs import Arena
from specwb.models.load import draft_model
from specwb.models.target import Target
from specwb.options import MethodError, parse_value, shape, spell, whole
from specwb.probability import Sampling
from specwb.tree import Limits, Tree
from specwb.verify import RULES, Greedy, Rule
from specwb.verify.rule import ONE_A_NODE

_USUAL = {
    Law.POINT: "point",
    Law.IID: "rrs",
    Law.WITHOUT_REPLACEMENT: "rrsw",
    Law.IID_PATHS: "rrs",
    Law.TOP_AND_SAMPLE: "top",
    Law.COUPLED: "coupled",
    Law.ROOTS: "longest",
}


@dataclass(frozen=True)
class Method:
    """A drafter with its verification rule, ready for any decoding with the target it was built for. ``key`` is its full spec."""

    key: str
    drafter: Drafter
    rule: Rule | None
    exactness: Exactness
    arenas: dict[tuple, Arena] = field(default_factory=dict, compare=False, repr=False)  # free ones, see specwb.graphs

    def rule_for(self, sampling: Sampling) -> Rule:
        """The rule under these sampling settings: the greedy walk at T = 0, otherwise the one asked for or the law's usual one.

        Raises:
            LawMismatch: the rule would not preserve the target's law with these candidates.
        """
        warm = sampling if not sampling.greedy else Sampling(1.0)
        law = self.drafter.law(warm)
        limits = self.drafter.limits
        single = limits.children <= 1 and law in ONE_A_NODE
        rule = copy.copy(self.rule) if self.rule else RULES[self.drafter.rule or ("rejection" if single else _USUAL[law])]()
        how = law, limits, self.drafter.independent
        try:
            rule.check(*how)  # at T = 0 too: a wrong pair is wrong, whether or not it shows
        except LawMismatch as error:
            fit = [name for name, kind in RULES.items() if kind.exactness is Exactness.LOSSLESS and _fits(kind(), *how)]
            raise LawMismatch(f"{error}; what fits them: {', '.join(fit) or 'no rule'}") from None
        return (rule.cold() or Greedy()) if sampling.greedy else rule


@dataclass(frozen=True)
class Entry:
    """A registered method: ``build(target, **options) -> Drafter``. ``head``: which trained head of the target's own it uses by default."""

    key: str
    build: Callable[..., Drafter]
    paper: str
    needs: str
    exactness: Exactness = Exactness.LOSSLESS
    bibtex: str = ""
    head: str = ""

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        parameters = list(inspect.signature(self.build).parameters.values())
        return {p.name: p for p in parameters[1:]}


METHODS: dict[str, Entry] = {}


def register(
    key: str,
    drafter: Callable[..., Drafter],
    *,
    paper: str = "",
    needs: str = "nothing",
    exactness: Exactness = Exactness.LOSSLESS,
    bibtex: str = "",
    head: str = "",
) -> None:
    """Make a drafter a method: decoded by key, compared, and run through the protocol tests like every other.

    ``drafter`` is a :class:`Drafter` subclass (its constructor's keywords are the options) or ``build(target, **options) -> Drafter``.

    Raises:
        MethodError: the key is taken or cannot be written on a command line.
    """
    if not key.isidentifier():
        raise MethodError(f"method key {key!r} must be a plain name (letters, digits, _)")
    if isinstance(drafter, Drafter) or not callable(drafter):
        raise MethodError(f"register the drafter's class or a function that builds it, not {drafter!r}")
    if key in METHODS:
        raise MethodError(f"method {key!r} is registered already; specwb.unregister({key!r}) first to replace it")
    build: Callable[..., Drafter] = drafter
    if isinstance(drafter, type) and issubclass(drafter, Drafter):
        build = _constructor(drafter)
        exactness = Exactness.LOSSY if drafter.exactness is Exactness.LOSSY else exactness
    METHODS[key] = Entry(key, build, paper, needs, exactness, bibtex, head)


def _constructor(drafter: type[Drafter]) -> Callable[..., Drafter]:
    """``build(target, **options)`` of a class that does not care about the target before ``open``."""

    def build(target: Target, **options) -> Drafter:
        return drafter(**options)

    own = [] if drafter.__init__ is object.__init__ else list(inspect.signature(drafter).parameters.values())
    first = inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    build.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    return build


def unregister(key: str) -> None:
    """Take a method out of the registry."""
    METHODS.pop(key, None)


def method(spec: str, target: Target, *, rule: str | Rule | type[Rule] | None = None, **options) -> Method:
    """Build a method: ``method("mcsd:tree=4-2-2,draw=with", target)`` or ``method("mcsd", target, tree=(4, 2, 2))``.

    Args:
        rule: a verification rule, its key, class or instance; default the usual one for how the drafter's candidates are drawn.
    Raises:
        MethodError: unknown method, rule or option. LawMismatch: rule and drafter do not fit. LoadError: target and draft do not fit.
    """
    entry, chosen, options = read_spec(spec, rule, options)
    key, _, text = spec.partition(":")
    known = entry.options
    drafter = entry.build(target, **options)
    if not isinstance(getattr(drafter, "limits", None), Limits):
        raise MethodError(
            f"{key}: its drafter has no tree; set `tree`, the largest it proposes, to a specwb.Tree"
            " (such as Tree.chain(3)), or `limits` where its trees differ"
        )
    lossy = Exactness.LOSSY in (entry.exactness, drafter.exactness, chosen.exactness if chosen else Exactness.LOSSLESS)
    # a draft or head given as a model is not part of the spelling; one named in the text is
    named = {
        n: v
        for n, v in {**options, "rule": chosen and chosen.name}.items()
        if v is not None and v != _default(known.get(n)) and not (n in ("draft", "head") and n not in text)
    }
    written = ",".join(f"{name}={spell(value)}" for name, value in named.items())
    made = Method(f"{key}:{written}" if written else key, drafter, chosen, Exactness.LOSSY if lossy else Exactness.LOSSLESS)
    made.rule_for(Sampling(1.0))
    return made


def read_spec(
    spec: str,
    rule: str | Rule | type[Rule] | None,
    options: dict[str, Any],
) -> tuple[Entry, Rule | None, dict[str, Any]]:
    """The registered method, its rule and its options, as far as they can be read without a target.

    Raises:
        MethodError: unknown method, rule or option, one given twice, or one that is missing.
    """
    options = dict(options)
    if not isinstance(spec, str):
        raise MethodError(f"a method is named by its key, such as 'sps'; got {spec!r} (a drafter of your own: specwb.register it first)")
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
            options[name] = value if name in ("draft", "head") else parse_value(value)
    options = {name: parse_value(value) if isinstance(value, str) and name not in ("draft", "head") else value for name, value in options.items()}
    known = entry.options
    for name in options:
        if name not in known:
            raise MethodError(f"{key} has no option {name!r}; its options: {', '.join([*known, 'rule'])}")
    chosen = _rule(rule)
    missing = [name for name, p in known.items() if p.default is inspect.Parameter.empty and name not in options]
    if missing:
        raise MethodError(f"{key}: {', '.join(map(repr, missing))} must be given")
    return entry, chosen, options


def _rule(rule: str | Rule | type[Rule] | None) -> Rule | None:
    if rule is None or isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if not isinstance(rule, str) or rule not in RULES:
        raise MethodError(f"unknown rule {rule!r}; known: {', '.join(RULES)}")
    return RULES[rule]()


def _fits(rule: Rule, law: Law, limits: Limits, independent: bool) -> bool:
    try:
        rule.check(law, limits, independent)
    except LawMismatch:
        return False
    return True


def _default(parameter: inspect.Parameter | None) -> object:
    return None if parameter is None else parameter.default


def ar(target: Target) -> Drafter:
    return Autoregressive()


def sps(target: Target, *, draft=None, gamma: int = 4, schedule: str = "constant", confidence: float = 0.0) -> Drafter:
    """Speculative sampling: a chain of ``gamma`` tokens from a small draft model.

    ``schedule=heuristic`` lets gamma follow the acceptance; drafting stops below a token whose draft probability is under ``confidence``.
    """
    if schedule not in SCHEDULES:
        raise MethodError(f"sps: schedule must be {' or '.join(SCHEDULES)}, got {schedule!r}")
    if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0 <= confidence < 1:
        raise MethodError(f"sps: confidence must be in [0, 1), got {confidence!r}")
    gamma, model = whole("sps: gamma", gamma), draft_model(target, draft)
    if schedule == "constant" and not confidence:
        return LevelDrafter(model, Tree.chain(gamma))
    return ScheduledChain(model, gamma, schedule, confidence, most=max(20, gamma))


def mcsd(target: Target, *, draft=None, tree=(4, 2, 2), draw: str = "without") -> Drafter:
    """Multi-candidate speculative decoding: ``tree`` children a node by level, or a :class:`Tree` in level order.

    Any tree is written as the parents of its nodes 1, 2, ..: ``tree=0.0.1.1.2`` has two nodes below the root, two below node 1 and one below
    node 2.

    ``draw``: how a node's children come from q: ``without`` or ``with`` replacement, ``top`` (the most probable ones and one draw from the
    rest), ``coupled`` (independent paths, such as tree=4-1-1, whose noise the verification shares), or ``greedy`` (the most probable ones,
    whatever the temperature).
    """
    tree = drawable("mcsd", shape("mcsd", tree), draw, target.vocabulary)
    return LevelDrafter(draft_model(target, draft), tree, draw)


def pld(target: Target, *, gamma: int = 10, ngram: int = 3) -> Drafter:
    """Prompt lookup: up to ``gamma`` tokens that followed the last ``ngram`` (or fewer) tokens earlier in the text."""
    return PromptLookup(whole("pld: gamma", gamma), whole("pld: ngram", ngram))


def lookahead(target: Target, *, window: int = 7, level: int = 5, guesses: int = 7, prompt: bool = False) -> Drafter:
    """Lookahead decoding: n-grams of ``level`` tokens from ``window`` columns, at most ``guesses`` verified a round.

    ``prompt``: the pool also takes the n-grams of the prompt and of the text written so far.
    """
    if not isinstance(prompt, bool):
        raise MethodError(f"lookahead: prompt must be true or false, got {prompt!r}")
    sizes = whole("lookahead: window", window), whole("lookahead: level", level, 3), whole("lookahead: guesses", guesses)
    return Lookahead(*sizes, prompt)


_CAI = """@inproceedings{cai2024medusa,
  title={Medusa: Simple {LLM} Inference Acceleration Framework with Multiple Decoding Heads},
  author={Cai, Tianle and Li, Yuhong and Geng, Zhengyang and Peng, Hongwu and Lee, Jason D. and Chen, Deming and Dao, Tri},
  booktitle={ICML}, year={2024}}"""
_LI1 = """@inproceedings{li2024eagle,
  title={{EAGLE}: Speculative Sampling Requires Rethinking Feature Uncertainty},
  author={Li, Yuhui and Wei, Fangyun and Zhang, Chao and Zhang, Hongyang}, booktitle={ICML}, year={2024}}"""
_LI2 = """@inproceedings{li2024eagle2,
  title={{EAGLE-2}: Faster Inference of Language Models with Dynamic Draft Trees},
  author={Li, Yuhui and Wei, Fangyun and Zhang, Chao and Zhang, Hongyang}, booktitle={EMNLP}, year={2024}}"""
_LI3 = """@article{li2025eagle3,
  title={{EAGLE-3}: Scaling up Inference Acceleration of Large Language Models via Training-Time Test},
  author={Li, Yuhui and Wei, Fangyun and Zhang, Chao and Zhang, Hongyang}, journal={arXiv:2503.01840}, year={2025}}"""
_LEVIATHAN = """@inproceedings{leviathan2023fast,
  title={Fast Inference from Transformers via Speculative Decoding},
  author={Leviathan, Yaniv and Kalman, Matan and Matias, Yossi}, booktitle={ICML}, year={2023}}"""
_YANG = """@article{yang2024multi,
  title={Multi-Candidate Speculative Decoding},
  author={Yang, Sen and Huang, Shujian and Dai, Xinyu and Chen, Jiajun}, journal={arXiv:2401.06706}, year={2024}}"""
_SAXENA = """@misc{saxena2023prompt,
  title={Prompt Lookup Decoding}, author={Saxena, Apoorv}, year={2023}, url={https://github.com/apoorvumang/prompt-lookup-decoding}}"""
_FU = """@inproceedings{fu2024break,
  title={Break the Sequential Dependency of {LLM} Inference Using Lookahead Decoding},
  author={Fu, Yichao and Bailis, Peter and Stoica, Ion and Zhang, Hao}, booktitle={ICML}, year={2024}}"""
_GAO = """@inproceedings{gao2025falcon,
  title={Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and Custom-Designed
    Decoding Tree},
  author={Gao, Xiangxiang and Xie, Weisheng and Xiang, Yiwei and Ji, Feng}, booktitle={AAAI}, year={2025}}"""
_LI_DIFFU = """@article{li2025diffuspec,
  title={{DiffuSpec}: Unlocking Diffusion Language Models for Speculative Decoding},
  author={Li, Guanghao and Fu, Zhihui and Fang, Min and Zhao, Qibin and Tang, Ming and Yuan, Chun and Wang, Jun},
  journal={arXiv:2510.02358}, year={2025}}"""
_LIU = """@inproceedings{liu2024kangaroo,
  title={Kangaroo: Lossless Self-Speculative Decoding for Accelerating {LLM}s via Double Early Exiting},
  author={Liu, Fangcheng and Tang, Yehui and Liu, Zhenhua and Ni, Yunsheng and Tang, Duyu and Han, Kai and Wang, Yunhe},
  booktitle={NeurIPS}, year={2024}}"""
_LU = """@inproceedings{lu2024improving,
  title={Improving Multi-candidate Speculative Decoding},
  author={Lu, Xiaofan and Zeng, Yixiao and Ma, Feiyang and Yu, Zixu and Levorato, Marco},
  booktitle={NeurIPS Efficient Natural Language and Speech Processing Workshop}, year={2024}}"""

_WU = """@inproceedings{wu2025easyspec,
  title={{EasySpec}: Layer-Parallel Speculative Decoding for Efficient Multi-{GPU} Utilization},
  author={Wu, Yize and Gao, Ke and Li, Ling and Wu, Yanjun}, booktitle={NeurIPS}, year={2025}}"""

register("ar", ar, paper="plain decoding, the reference")
register("sps", sps, paper="Leviathan et al. 2023; Chen et al. 2023", needs="a draft model", bibtex=_LEVIATHAN)
register("mcsd", mcsd, paper="Yang et al. 2024, arXiv 2401.06706", needs="a draft model", bibtex=_YANG)
register("pld", pld, paper="Saxena 2023", bibtex=_SAXENA)
register("lookahead", lookahead, paper="Fu et al. 2024, arXiv 2402.02057", bibtex=_FU)


def citation(*keys: str) -> str:
    """BibTeX of the named methods, all that have one by default."""
    chosen = keys or tuple(METHODS)
    for key in chosen:
        if key not in METHODS:
            raise MethodError(f"unknown method {key!r}; known: {', '.join(METHODS)}")
    return "\n".join(METHODS[k].bibtex for k in chosen if METHODS[k].bibtex)


register("medusa", heads.medusa, paper="Cai et al. 2024, arXiv 2401.10774", needs="trained heads", bibtex=_CAI, head="medusa")
register("eagle", heads.eagle, paper="Li et al. 2024, arXiv 2401.15077", needs="a trained head", bibtex=_LI1, head="eagle")
register("eagle2", heads.eagle2, paper="Li et al. 2024, arXiv 2406.16858", needs="a trained head", bibtex=_LI2, head="eagle")
register("eagle3", heads.eagle3, paper="Li et al. 2025, arXiv 2503.01840", needs="a trained head", bibtex=_LI3, head="eagle3")
register("falcon", heads.falcon, paper="Gao et al. 2024, arXiv 2412.12639", needs="a trained head", bibtex=_GAO, head="falcon")
register("falcon_dynamic", heads.falcon_dynamic, paper="Gao et al. 2024, arXiv 2412.12639", needs="a trained head", head="falcon")
register("diffuspec", diffuspec, paper="Li et al. 2025, arXiv 2510.02358", needs="a diffusion model", bibtex=_LI_DIFFU, head="diffusion")
register("kangaroo", kangaroo, paper="Liu et al. 2024, arXiv 2404.18911", needs="a trained adapter", bibtex=_LIU, head="kangaroo")
register("mcsd_ti", mcsd_ti, paper="Lu et al. 2024, arXiv 2409.10644", needs="a draft model and a decision model", bibtex=_LU, head="decision")
register("easyspec", easyspec, paper="Wu et al. 2025, arXiv 2502.02493", needs="a deep draft model", bibtex=_WU, head="deep")
