"""Exact certificates of verifiers: the distribution of their texts on a list of small instances.

An *instance* is a target and a draft model over a few tokens: a distribution p after every text,
and q after every drafted text, some with zeros, some with equal probabilities, some with p = q. All
drafts are enumerated, each with its probability, and the verifier's output distribution given a
draft comes from :func:`specwb.verify.forking.distribution`. Texts of fewer tokens than the draft
and one more are continued by the target. The distribution of the whole text is compared with the
target's:

    ``TV = 1/2 sum over texts x of |P(x) - p(x)|``.

TV is exact up to the rounding of the verifier's own arithmetic (``ROUNDING``), so "biased" always
comes with a text whose probability is wrong, and "lossless" is a theorem about these instances
only.

For a :class:`specwb.verify.Rule` of this project, whose uniforms are its arguments,
:func:`specwb.verify.distribution.boxes_of` recovers the decisions, as in ``specwb verify``.
"""

from __future__ import annotations

import ctypes
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from specwb.errors import ArgumentError
from specwb.inputs import real
from specwb.probability import Sampling
from specwb.tree import Tree
from specwb.verify.exact import Model, norm
from specwb.verify.forking import distribution
from specwb.verify.rule import Rule
from specwb.verify.symbols import NoCertificate

ROUNDING = 1e-5
"""A TV above this is a bias; verifiers in float32 round by some 1e-7 an operation."""
CONFIRMED = 600
"""Runs that confirm a bias where an operation prevented the instances behind it."""
SECONDS = 60.0
DRAWS = ("chain", "with", "without", "top")
KINDS = ("dense", "zeros", "ties", "apart", "equal", "peaked")
TREES = (
    (5, (-1, 0)),
    (3, (-1, 0, 1)),
    (2, (-1, 0, 1, 2)),
    (4, (-1, 0, 0)),
    (3, (-1, 0, 0, 0)),
    (2, (-1, 0, 0, 1, 2)),
    (2, (-1, 0, 0, 1, 1, 2)),
)
"""V, and the parents of a tree's nodes: the drafts that a rule is asked about."""
LOSSLESS, BIASED, NOTHING = "lossless", "biased", "no certificate"


@dataclass(frozen=True)
class Instance:
    """A pair of models over a few tokens.

    Attributes:
        kind: how its distributions were made: dense, zeros, ties, equal (p = q), apart (p and q
            share one token), peaked (p and q have nearly all of their mass at one token).
        vocabulary: V.
        drafted: tokens of a draft: a chain's length, or the candidates at one node.
        temperature: of target and draft.
        seed: of its distributions.
        scheme, tree: of a rule's drafts: their sampling scheme, and the parents of their nodes.
        tv: measured; None before.
        runs: of the verifier; of a rule the boxes of uniforms in which it decides one thing.
    """

    kind: str
    vocabulary: int
    drafted: int
    temperature: float = 1.0
    seed: int = 0
    scheme: str = ""
    tree: tuple[int, ...] = ()
    tv: float | None = None
    runs: int = 0

    def __str__(self) -> str:
        nodes = ".".join(map(str, self.tree[1:]))
        drafts = f"{self.scheme}, tree {nodes}" if nodes else f"{self.drafted} drafted"
        return f"{self.kind}, V = {self.vocabulary}, {drafts}, T = {self.temperature:g}"

    def logits(self, text: Sequence[int], draft: bool = False) -> Tensor:
        """The logits ``[V]`` in float64 of the target, or of the draft model, after a text."""
        drawn = random.Random(f"{self.kind} {self.vocabulary} {self.seed} {list(text)}")
        target, other = ([drawn.gauss(0, 1) for _ in range(self.vocabulary)] for _ in "pq")
        if self.kind == "equal":
            other = target
        if self.kind == "ties":
            target, other = ([float(round(x)) for x in row] for row in (target, other))
        if self.kind == "peaked":
            place = drawn.randrange(self.vocabulary)
            target[place], other[place] = 7.0, 5.0
        if self.kind in ("zeros", "apart"):
            shared = drawn.randrange(self.vocabulary)
            for i in range(self.vocabulary):
                if i == shared:
                    continue
                if self.kind == "apart":
                    (target if i % 2 else other)[i] = -math.inf
                elif drawn.random() < 0.4:
                    drawn.choice((target, other))[i] = -math.inf
        return torch.tensor(other if draft else target, dtype=torch.float64)

    def p(self, text: Sequence[int], draft: bool = False) -> Tensor:
        return (self.logits(text, draft) / self.temperature).softmax(-1)


def instances(draw: str, temperatures: Sequence[float] = (1.0,)) -> list[Instance]:
    """List the instances of a certificate: V to 5, drafts to 3 tokens."""
    sizes = [(5, 1), (3, 2), (2, 3)] if draw == "chain" else [(5, 1), (4, 2), (4, 3)]
    cases = [(kind, *size) for kind in KINDS for size in sizes]
    return [
        Instance(kind, v, k, temperature, seed)
        for temperature in temperatures
        for seed, (kind, v, k) in enumerate(cases)
    ]


@dataclass(frozen=True, repr=False)
class Certificate:
    """The verdict on a verifier.

    Attributes:
        verdict: "lossless" (on these instances), "biased" or "no certificate".
        tv: the largest total variation of any instance; NaN without a certificate.
        instances: the computed ones.
        worst: for a biased verifier: the instance, the text, its probability and the right one.
        reason: why there is no certificate.
        seconds: the time taken.
    """

    verdict: str
    tv: float
    instances: tuple[Instance, ...]
    worst: tuple[Instance, tuple[int, ...], float, float] | None
    reason: str
    seconds: float

    def __bool__(self) -> bool:
        return self.verdict == LOSSLESS

    def __repr__(self) -> str:
        if self.verdict == NOTHING:
            return f"no certificate: {self.reason}"
        if self.worst is None:
            count, runs = len(self.instances), sum(one.runs for one in self.instances)
            return f"lossless in these {count} instances (TV < {ROUNDING:g}, {runs:,} runs)"
        where, text, got, wanted = self.worst
        return (
            f"biased: TV {self.tv:.3g}; the text {list(text)} comes out with probability "
            f"{got:.4f}, the target's is {wanted:.4f} ({where})"
        )


Verifier = Callable[..., Any]
Measured = tuple[Instance, dict[tuple[int, ...], float], int]
"""An instance, the distribution of the verifier's texts, and its runs."""


def certify(
    verifier: Verifier | str | Rule | type[Rule],
    draw: str = "chain",
    *,
    logits: bool = False,
    temperatures: Sequence[float] | None = None,
    cases: Sequence[Instance] | None = None,
    seconds: float = SECONDS,
) -> Certificate:
    """Compute whether a verifier keeps the target's distribution, exactly, on small instances.

    ::

        def mine(p, q, drafts):
            for i, x in enumerate(drafts):
                if torch.rand(()) * q[i, x] >= p[i, x]:
                    rest = (p[i] - q[i]).clamp(min=0)
                    return [*drafts[:i], torch.multinomial(rest / rest.sum(), 1)]
            return [*drafts, torch.multinomial(p[-1], 1)]

        specwb.certify(mine)    # lossless in these 18 instances (TV < 1e-05, 437 runs)

    In a test suite it is one line: ``assert specwb.certify(mine)``.

    Args:
        verifier: ``verifier(p, q, drafts)`` returns the tokens that are written, the accepted ones
            and one more: a list, tuple or tensor. It gets copies, in float64, and draws its
            randomness from torch, ``random`` or numpy as it likes.

            Of a chain of g tokens: ``p [g+1,V]``, ``q [g,V]``, ``drafts [g]``. Of g candidates at
            one node: ``p [g+1,V]`` (row 0 at the node, row i + 1 after candidate i), ``q [V]``,
            ``drafts [g]``.

            Or a rule of this project: its name in ``specwb.RULES`` ("rrsw"), a :class:`Rule` or its
            class. It names its sampling schemes itself and takes none of the options but
            ``seconds``; its drafts are chains and trees (``TREES``).
        draw: how drafts are drawn: a "chain" from q; or candidates of one node "with" replacement
            (i.i.d.) or "without", or q's "top" tokens.
        logits: it gets logits in the place of p and q, and ``temperature=``.
        temperatures: that its instances have, default 1, with ``logits`` .7, 1.5 and .3 too.
        cases: other instances.
        seconds: how long it may take in all.
    Raises:
        ArgumentError: an argument that cannot be.
    """
    is_rule = isinstance(verifier, str | Rule) or (
        isinstance(verifier, type) and issubclass(verifier, Rule)
    )
    if is_rule and (draw != "chain" or logits or temperatures or cases is not None):
        raise ArgumentError("a rule names its sampling schemes itself: give no draw, logits, cases")
    if not (is_rule or callable(verifier)):
        raise ArgumentError(f"verifier must be a function (p, q, drafts), got {verifier!r}")
    if real("seconds", seconds) <= 0:
        raise ArgumentError(f"seconds must be above 0, got {seconds!r}")
    if draw not in DRAWS:
        raise ArgumentError(f"draw must be {', '.join(DRAWS[:-1])} or {DRAWS[-1]}, got {draw!r}")
    if temperatures is None:
        temperatures = (1.0, 0.7, 1.5, 0.3) if logits else (1.0,)
    measured: Iterator[Measured]
    if is_rule:
        measured = _of_rule(verifier)
    else:
        every = instances(draw, temperatures) if cases is None else cases
        follow = cast(Verifier, verifier)
        measured = ((case, *_texts(follow, case, draw, logits)) for case in every)
    began, done = time.monotonic(), []
    tv, worst, reason, clock = 0.0, None, "", _Clock(seconds)
    confirm: Callable[[int], None] | None = None
    try:
        with clock:
            try:
                for case, texts, runs in measured:
                    wanted = _of_target(case, len(next(iter(texts))))
                    apart = {x: texts.get(x, 0.0) - wanted.get(x, 0.0) for x in {*texts, *wanted}}
                    own = sum(map(abs, apart.values())) / 2
                    done.append(replace(case, tv=own, runs=runs))
                    if own > max(tv, ROUNDING) and not is_rule:
                        confirm = partial(_check_again, follow, case, draw, logits, texts)
                        confirm(2)
                    if own > tv:
                        text = max(apart, key=lambda x: abs(apart[x]))
                        tv, worst = own, (case, text, texts.get(text, 0.0), wanted.get(text, 0.0))
            except NoCertificate as error:
                if not error.hidden and tv > ROUNDING and confirm is not None:
                    # few instances had the chance to show hidden randomness
                    confirm(1 + CONFIRMED // max(case.runs for case in done))
                raise
    except NoCertificate as error:
        reason = str(error)
        if error.hidden:
            tv = 0.0
    except KeyboardInterrupt:
        if not clock.is_up:
            raise
        reason = f"it ran longer than {seconds:g} s"
    taken = time.monotonic() - began
    # a bias that was found stays one, whatever operation prevented the instances behind it
    verdict = BIASED if tv > ROUNDING else NOTHING if reason or not done else LOSSLESS
    shown = tv if verdict != NOTHING else math.nan
    return Certificate(
        verdict, shown, tuple(done), worst if verdict == BIASED else None, reason, taken
    )


def _check_again(
    verifier: Verifier,
    case: Instance,
    draw: str,
    logits: bool,
    texts: dict[tuple[int, ...], float],
    times: int,
) -> None:
    """Refuse a verifier that seems biased and writes its texts with other probabilities when it is
    followed so many times more: hidden randomness may look like a bias."""
    for _ in range(times):
        try:
            again, _ = _texts(verifier, case, draw, logits)
        except NoCertificate as error:  # which it did not meet before
            raise NoCertificate(str(error), hidden=True) from error
        if any(abs(again.get(x, 0.0) - texts.get(x, 0.0)) > ROUNDING for x in {*again, *texts}):
            why = "followed again, its texts have other probabilities: some randomness was not seen"
            raise NoCertificate(why, hidden=True)


def _drafts(case: Instance, draw: str) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every draft with its probability; without replacement it ends where q's support does."""
    waiting: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while waiting:
        draft, chance = waiting.pop()
        q = case.p(draft if draw == "chain" else (), draft=True)
        if draw == "without":
            q[list(draft)] = 0.0
        total = float(q.sum())
        if len(draft) == case.drafted or not total:
            yield draft, chance
            continue
        if draw == "top":
            q[list(draft)] = -1.0
            waiting.append(((*draft, int(q.argmax())), 1.0))
            continue
        waiting += [((*draft, x), chance * c / total) for x, c in enumerate(q.tolist()) if c]


def _texts(
    verifier: Verifier, case: Instance, draw: str, logits: bool
) -> tuple[dict[tuple[int, ...], float], int]:
    """The distribution of a verifier's texts, of the draft's depth and one token."""
    depth = case.drafted if draw == "chain" else 1
    row = case.logits if logits else case.p
    more = {"temperature": case.temperature} if logits else {}
    texts: dict[tuple[int, ...], float] = {}
    runs = 0
    for draft, chance in _drafts(case, draw):
        before = [draft[:i] for i in range(depth + 1)] if draw == "chain" else [()]
        after = [] if draw == "chain" else [(x,) for x in draft]
        p = torch.stack([row(text) for text in (*before, *after)])
        q = torch.stack([row(text, True) for text in before[:depth]])
        q = q if draw == "chain" else q[0]

        def once(p: Tensor = p, q: Tensor = q, draft: tuple[int, ...] = draft) -> tuple[int, ...]:
            written = verifier(p.clone(), q.clone(), torch.tensor(draft), **more)
            return _tokens(written, case.vocabulary, depth + 1)

        results, count = distribution(once)
        runs += count
        for tokens, share in results.items():
            for text, rest in _continued(case, tokens, depth + 1):
                texts[text] = texts.get(text, 0.0) + chance * share * rest
    return texts, runs


def _of_rule(given: Any) -> Iterator[Measured]:
    """The same of a rule: every draft of small trees, all instances of a tree as one batch."""
    from specwb.verify import distribution as recovered
    from specwb.verify.production import compare, takes

    rule = recovered.rule_of(given)
    batches = [
        (scheme, size, temperature, kinds)
        for scheme in recovered.DRAFTS
        for size in TREES
        if takes(rule, scheme, size[1])
        for temperature, kinds in ((1.0, KINDS), (0.7, KINDS[:1]))
        if temperature == 1 or len(size[1]) <= 3
    ]
    if not batches:
        why = [
            f"{x.name}: {recovered.UNLISTED[x]}" for x in rule.schemes if x in recovered.UNLISTED
        ]
        raise NoCertificate("; ".join(why) or "the rule takes none of the small trees")
    for scheme, (vocabulary, parents), temperature, kinds in batches:
        cases = [
            Instance(kind, vocabulary, len(parents) - 1, temperature, i, scheme.name, parents)
            for i, kind in enumerate(kinds)
        ]
        pairs = [(_model(case, False), _model(case, True)) for case in cases]
        drafts = recovered.all_drafts(scheme, Tree.parents(list(parents)), pairs)
        logits = drafts.scores.logits * temperature
        scores = replace(drafts.scores, logits=logits, sampling=Sampling(temperature))
        try:
            boxes = recovered.boxes_of(rule, drafts.draft, scores)
            of_case = torch.tensor(drafts.case)[boxes.row]
            compared = compare(rule, replace(drafts, scores=scores), pairs, boxes, ROUNDING)
            for i, (case, (found, _, _)) in enumerate(zip(cases, compared, strict=True)):
                yield case, found, int((of_case == i).sum())
        except recovered.Unfollowed as error:
            hidden = isinstance(error, recovered.Inconstant)
            raise NoCertificate(str(error), hidden) from error
        except (ArgumentError, NoCertificate):
            raise
        except Exception as error:  # a rule of somebody's own may raise anything
            raise NoCertificate(f"it raised {type(error).__name__}: {error}") from error


def _model(case: Instance, draft: bool) -> Model:
    @cache
    def model(prefix: tuple[int, ...]) -> list[Fraction]:
        return norm([Fraction(x) for x in case.p(prefix, draft).tolist()])

    return model


def _tokens(written: Any, vocabulary: int, most: int) -> tuple[int, ...]:
    """The tokens that a verifier has returned; NoCertificate if they are none."""
    values = written.flatten().tolist() if isinstance(written, Tensor) else written
    try:
        numbers = [x.item() if hasattr(x, "item") else x for x in values]
    except TypeError:
        numbers = [None]
    if not all(type(x) in (int, float) and x == int(x) for x in numbers):
        raise NoCertificate(f"it returned {written!r:.80}, which are no tokens")
    tokens = tuple(map(int, numbers))
    if not 1 <= len(tokens) <= most or not all(0 <= x < vocabulary for x in tokens):
        raise NoCertificate(
            f"it returned {list(tokens)}: 1 to {most} tokens below {vocabulary} are needed"
        )
    return tokens


def _continued(
    case: Instance, tokens: tuple[int, ...], length: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """The texts of some length that begin with tokens, with their chance under the target."""
    if len(tokens) == length:
        yield tokens, 1.0
        return
    for x, chance in enumerate(case.p(tokens).tolist()):
        if chance:
            for text, rest in _continued(case, (*tokens, x), length):
                yield text, chance * rest


def _of_target(case: Instance, length: int) -> dict[tuple[int, ...], float]:
    return dict(_continued(case, (), length))


class _Clock:
    """Interrupts this thread after some seconds, also in an endless loop.

    It raises ``KeyboardInterrupt``, which no ``except Exception`` of a verifier catches.
    """

    def __init__(self, seconds: float) -> None:
        self.thread, self.lock = threading.get_ident(), threading.Lock()
        self.is_up = self.is_over = False
        self.timer = threading.Timer(seconds, self._interrupt)
        self.timer.daemon = True

    def _interrupt(self) -> None:
        with self.lock:
            if not self.is_over:
                self.is_up = True
                raised = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), raised)

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.is_over = True
        self.timer.cancel()
