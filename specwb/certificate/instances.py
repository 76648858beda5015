"""The instances of a certificate: pairs of target and draft model over a few tokens.

Only tokens of positive probability fork. So a vocabulary of 40 of which three tokens are possible
costs what one of 3 costs, and a chain of 8 of which two places are uncertain what a chain of 2
costs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from specwb.theory import exact as E


def _top(q: E.Dist, k: int) -> list[tuple[E.Tokens, Fraction]]:
    """The k most probable tokens as one draft, as engines take them: also some that q has not."""
    order = sorted(range(len(q)), key=lambda x: (-q[x], x))
    return [(tuple(order[:k]), Fraction(1))]


SCHEMES: dict[str, E.SamplingScheme] = {
    "chain": E.iid,
    "with": E.iid,
    "without": E.without_replacement,
    "top": _top,
}
"""How the drafts of verifiers are drawn."""
KINDS = ("dense", "zeros", "ties", "apart", "equal", "peaked")
OTHERS = (0.7, 1.5, 0.3, 0.5, 2.0)
"""Temperatures that verifiers of logits are tried at besides 1."""
_random = random.Random  # the class, before a child process replaces it


@dataclass(frozen=True)
class Instance:
    """A pair of models over a few tokens.

    Attributes:
        kind: how its distributions were made:

            * dense, zeros, ties, equal (p = q);
            * apart and disjoint: p and q share one token, or none;
            * peaked and sure: p has .99 or .99999 of its mass at one token;
            * sparse: three tokens are possible, with high numbers; narrow: q has two of these;
            * forced: a chain of which only the places ``places`` are uncertain;
            * wide: all tokens are possible at the place ``places``, three at the first one;
            * shifted: logits that are larger by 90.
        vocabulary: V.
        drafted: tokens of a draft: a chain's length, or the candidates at one node.
        temperature: of target and draft.
        seed: of its distributions.
        places: see ``kind``.
        single: its rows are float32, otherwise float64.
        scheme, tree: of a rule's drafts: their sampling scheme, and the parents of their nodes.
        tv: measured; None before.
        runs: of the verifier; of a rule the boxes of uniforms in which it decides one thing.
    """

    kind: str
    vocabulary: int
    drafted: int
    temperature: float = 1.0
    seed: int = 0
    places: tuple[int, ...] = ()
    single: bool = False
    scheme: str = ""
    tree: tuple[int, ...] = ()
    tv: float | None = None
    runs: int = 0

    def __str__(self) -> str:
        nodes = ".".join(map(str, self.tree[1:]))
        drafts = f"{self.scheme}, tree {nodes}" if nodes else f"{self.drafted} drafted"
        places = f" at {', '.join(map(str, self.places))}" if self.places else ""
        number = ", float32" if self.single else ""
        size = f"V = {self.vocabulary}, {drafts}, T = {self.temperature:g}{number}"
        return f"{self.kind}{places}, {size}"

    def logits(self, text: Sequence[int], draft: bool = False) -> Tensor:
        """The logits ``[V]`` of the target, or of the draft model, after a text."""
        logits = torch.tensor(_logits(self, tuple(text))[draft], dtype=torch.float64)
        return logits.float() if self.single else logits

    def p(self, text: Sequence[int], draft: bool = False) -> Tensor:
        p = (self.logits(text, draft).double() / self.temperature).softmax(-1)
        return p.float() if self.single else p

    def drafts(self, draw: str) -> Iterator[tuple[list[E.Tokens], float]]:
        """Every draft with its probability, as the paths to its nodes; without replacement it ends
        where q's support does."""
        count = self.drafted
        parents = range(-1, count) if draw == "chain" else (-1, *[0] * count)
        for paths, chance in E.trees(SCHEMES[draw], models_of(self)[1], parents):
            yield [path for path in paths if path is not None], float(chance)


@cache
def models_of(case: Instance) -> tuple[E.Model, E.Model]:
    """An instance's target and draft model, after temperature."""
    target = cache(lambda text: case.p(text).tolist())
    return target, cache(lambda text: E.norm(case.p(text, draft=True).tolist()))


@cache
def _logits(case: Instance, text: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """The target's logits and the draft's after a text."""
    size, kind = case.vocabulary, case.kind
    drawn = _random(f"{kind} {size} {case.seed} {list(text)}")
    target, other = ([drawn.gauss(0, 1) for _ in range(size)] for _ in "pq")
    place = drawn.randrange(size)
    possible = drawn.sample(range(size), size)
    if kind == "equal":
        other = target
    if kind == "shifted":
        target, other = ([x + 90 for x in row] for row in (target, other))
    if kind == "ties":
        target, other = ([float(round(x)) for x in row] for row in (target, other))
    if kind in ("peaked", "sure"):
        target[place], other[place] = (7.0, 5.0) if kind == "peaked" else (13.0, 1.0)
    for i in range(size):
        if kind == "zeros" and i != place and drawn.random() < 0.4:
            drawn.choice((target, other))[i] = -math.inf
        if kind in ("apart", "disjoint") and (kind == "disjoint" or i != place):
            (target if i % 2 else other)[i] = -math.inf
    if kind == "wide" and len(text) in case.places:
        _keep(other, possible[1:3])
    elif kind in ("sparse", "narrow", "forced", "wide"):
        is_certain = (
            len(text) > 0 if kind == "wide" else kind == "forced" and len(text) not in case.places
        )
        last = 3 if kind == "narrow" else 4
        _keep(target, possible[:1] if is_certain else possible[:3])
        _keep(other, possible[:1] if is_certain else possible[1:last])
    return target, other


def _keep(row: list[float], tokens: list[int]) -> None:
    for i in set(range(len(row))) - set(tokens):
        row[i] = -math.inf


def instances(draw: str, logits: bool = False) -> list[Instance]:
    """List the instances of a certificate; with logits dense and peaked ones are tried at
    :data:`OTHERS` too."""
    chain = draw == "chain"
    sizes = [(5, 1), (3, 2), (2, 3)] if chain else [(5, 1), (4, 2), (3, 3)]
    cases = [(kind, *size) for kind in KINDS for size in sizes[: 3 if kind in KINDS[:2] else 2]]
    cases += [(kind, 4, n) for kind, n in (("disjoint", 1), ("disjoint", 2), ("sure", 1))]
    cases += [("sparse", 40, n) for n in (1, 2)]
    cases += {
        "with": [("narrow", 40, 5)],
        "without": [("zeros", 5, 4)],
        "top": [("ties", 8, 6)],
    }.get(draw, [])
    found = [Instance(*case, seed=seed) for seed, case in enumerate(cases)]
    wide = [("wide", 56, n, (place,)) for n, place in ((1, 0), (2, 2 if chain else 1))]
    forced = ((8, (0, 4)), (8, (3, 8)), (8, (6, 7)), (5, (3, 4))) if chain else ()
    found += [
        Instance(kind, v, n, seed=n, places=places)
        for kind, v, n, places in (*wide, *(("forced", 40, *more) for more in forced))
    ]
    found += [Instance("dense", *size, seed=7, single=True) for size in sizes[:2]]
    if logits:
        found += [Instance("shifted", *size, seed=8, single=True) for size in sizes[:2]]
        found += [
            Instance(*case, temperature, seed)
            for temperature in OTHERS
            for seed, case in enumerate(cases)
            if case[0] in ("dense", "peaked")
        ]
    return found
