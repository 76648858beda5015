"""Rules and drafters that are wrong on purpose, each as somebody could write it who takes care: put
with the right counterpart they decode, and say that they are lossless.

``CASES`` lists them with the method that each goes into, next to some that look wrong and are
right. Which of ``check_rule`` and ``specwb.check`` finds which is measured by
``tests/check_power.py`` and printed in docs/check.md. ``specwb.theory.wrong_rules`` has wrong rules
over fractions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import tiny
import torch

import specwb
from specwb.core.flow import Draft, Scheme, Scores, Verdict
from specwb.core.noise import ACCEPT, BONUS
from specwb.core.probability import Sampling
from specwb.drafters.level import LevelDrafter
from specwb.rules import RRS, Block, KSeq, Rejection, RRSw, Rule
from specwb.rules.kseq import scale

PROMPTS = [[1, 2, 3], [5], [7, 8, 9, 10], [11, 2, 30, 4, 5]]


@cache
def pair() -> tuple[specwb.Target, specwb.Target]:
    """A target of 64 tokens and a draft that is often wrong: tau is 1.7 to 2.9."""
    return tiny.pair(0.04)


def shortened(draft: Draft, stays: torch.Tensor) -> Draft:
    """The draft without those candidates that do not stay, ``[B,n-1]``."""
    return replace(draft, valid=draft.valid & torch.cat([draft.valid[:, :1], stays], 1))


# ------------------------------------------------------------------------------------------- rules


class ReplacementForgotten(RRS):
    """Candidates drawn without replacement are tested by the rule for independent ones."""

    name = "replacement_forgotten"
    schemes = frozenset({Scheme.WITHOUT_REPLACEMENT})


class DuplicatesDropped(RRS):
    """Of equal independent candidates one is kept, and what remains is tested as if it
    were all."""

    name = "duplicates_dropped"
    schemes = frozenset({Scheme.IID})

    def node(self, p, q, tokens, ok, u):
        same = (tokens[:, :, None] == tokens[:, None, :]) & ok[:, None, :]
        return super().node(p, q, tokens, ok & ~torch.tril(same, -1).any(2), u)


class Uncapped(Block):
    """A whole block is kept with min(1, prod p/q) (HSD)."""

    name = "uncapped"

    def along(self, draft, u, nodes, ok, qx, p, q):
        verdict = super().along(draft, u, nodes, ok, qx, p, q)
        depth = ok.shape[1]
        tokens = draft.tokens.gather(1, nodes)
        ratio = torch.ones_like(qx[:, 0])
        for d in range(depth):
            ratio = ratio * p(d).gather(1, tokens[:, d + 1 : d + 2])[:, 0].double() / qx[:, d]
        whole = ok.all(1) & (qx > 0).all(1) & (u[:, depth - 1] < ratio.clamp_max(1))
        trail = draft.tree.trail.expand(len(nodes), -1, -1)
        path = trail.gather(1, nodes[:, -1][:, None, None].expand(-1, 1, trail.shape[-1]))[:, 0]
        return Verdict(
            torch.where(whole[:, None], path, verdict.path),
            torch.where(whole, depth, verdict.accepted),
            verdict.bonus,
            torch.where(whole[:, None], p(depth), verdict.distribution),
        )


class ProductOfUniforms(Rejection):
    """The draft is kept up to the last place at which prod p/q exceeds the product of
    the uniforms (vllm-ascend)."""

    name = "product_of_uniforms"

    def verify(self, draft, scores, u, start=None):
        tree, rows = draft.tree, len(draft.tokens)
        weight = torch.ones(rows, dtype=torch.float64)
        threshold, accepted = weight.clone(), torch.zeros(rows, dtype=torch.long)
        bonus = None
        nodes = torch.arange(tree.D + 1).expand(rows, -1)
        ps = [scores.p(nodes[:, d]) for d in range(tree.D + 1)]
        for d in range(tree.D):
            x = draft.tokens[:, d + 1 : d + 2]
            q = draft.q_of(nodes[:, d])
            weight = (weight * ps[d].gather(1, x)[:, 0] / q.gather(1, x)[:, 0]).clamp_max(1)
            threshold = threshold * u[:, d]
            accepted = torch.where(draft.valid[:, d + 1] & (threshold <= weight), d + 1, accepted)
        bonus = ps[tree.D]
        for d in range(tree.D):
            residual = (ps[d] - draft.q_of(nodes[:, d])).relu()
            residual = torch.where(residual.sum(1, keepdim=True) > 0, residual, ps[d])
            bonus = torch.where((accepted == d)[:, None], residual, bonus)
        return Verdict(tree.trail[0, accepted], accepted, torch.empty(0), bonus)


class LowScale(KSeq):
    """k-SEQ with rho - 1 too small by a tenth."""

    name = "low_scale"

    def node(self, p, q, tokens, ok, u):
        k = (ok & (q.gather(1, tokens) > 0)).sum(1)
        rho = 1 + 0.9 * (scale(p.double(), q.double(), k) - 1)
        px, qx = p.gather(1, tokens), q.gather(1, tokens)
        hit = ok & (u[:, : tokens.shape[1]] * (rho[:, None] * qx) < px)
        choice = torch.where(hit.any(1), hit.int().argmax(1), -1)
        b = torch.minimum(p / rho[:, None], q)
        beta = b.sum(1)
        share = (1 - (1 - beta) ** k) / beta.clamp_min(1e-12)
        residual = (p - b * share[:, None]).clamp_min(0).to(p.dtype)
        left = ok.any(1) & (residual.sum(1) > 0)
        return choice, torch.where(left[:, None], residual, p)


class RowAbove(Rejection):
    """The test reads q from the depth above."""

    name = "row_above"

    def verify(self, draft, scores, u, start=None):
        return super().verify(
            replace(draft, q_row=(draft.q_row - 1).clamp_min(0)), scores, u, start
        )


class Nucleus(Rejection):
    """The test uses q cut to its top .9 and skips tokens outside of it. (Right.)"""

    name = "nucleus"

    def node(self, p, q, tokens, ok, u):
        falling = q.sort(1, descending=True)
        kept = falling.values.cumsum(1) - falling.values < 0.9
        cut = torch.zeros_like(q).scatter(1, falling.indices, falling.values * kept)
        cut = cut / cut.sum(1, keepdim=True).clamp_min(1e-12)
        return super().node(p, cut, tokens, ok & (cut.gather(1, tokens) > 0), u)


class Sorted(RRSw):
    """Siblings are tested in the order of q."""

    name = "sorted"

    def node(self, p, q, tokens, ok, u):
        order = q.gather(1, tokens).where(ok, torch.tensor(-1.0)).argsort(1, descending=True)
        choice, residual = super().node(p, q, tokens.gather(1, order), ok.gather(1, order), u)
        own = order.gather(1, choice.clamp_min(0)[:, None])[:, 0]
        return torch.where(choice < 0, -1, own), residual


class OneForSiblings(RRSw):
    """One uniform tests all siblings."""

    name = "one_for_siblings"

    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, u[:, :1].expand_as(u))


class OneForDepths(Rejection):
    """One uniform tests all depths."""

    name = "one_for_depths"

    def verify(self, draft, scores, u, start=None):
        return super().verify(draft, scores, u[:, :1].expand_as(u), start)


class Coarse(Rejection):
    """The test compares in bfloat16."""

    name = "coarse"

    def node(self, p, q, tokens, ok, u):
        _, residual = super().node(p, q, tokens, ok, torch.full_like(u, 1e9))
        px, qx = p.gather(1, tokens).bfloat16(), q.gather(1, tokens).bfloat16()
        hit = ok & (u.bfloat16() * qx < px)
        return torch.where(hit[:, 0], 0, -1), residual


class OwnUniforms(Rejection):
    """The rule draws its own uniforms, by torch.rand. (Right.)"""

    name = "own_uniforms"

    def node(self, p, q, tokens, ok, u):
        return super().node(p, q, tokens, ok, torch.rand_like(u))


class RawTarget(Rejection):
    """p is used without temperature and filters."""

    name = "raw_target"

    def p(self, scores, node):
        return Scores(scores.logits, Sampling(1.0)).p(node)


class AllAtDepthFive(Rejection):
    """Every candidate at depth 5 is accepted."""

    name = "all_at_depth_5"

    def verify(self, draft, scores, u, start=None):
        self.depth = 0
        return super().verify(draft, scores, u, start)

    def node(self, p, q, tokens, ok, u):
        self.depth += 1
        choice, residual = super().node(p, q, tokens, ok, u)
        return torch.where(ok[:, 0], 0, choice) if self.depth == 5 else choice, residual


class FourthUntested(RRSw):
    """The fourth sibling is accepted untested."""

    name = "fourth_untested"

    def node(self, p, q, tokens, ok, u):
        choice, residual = super().node(p, q, tokens, ok, u)
        if tokens.shape[1] > 3:
            choice = torch.where((choice < 0) & ok[:, 3], 3, choice)
        return choice, residual


class FirstIds(Rejection):
    """The residual covers only the ids below 4."""

    name = "first_ids"

    def node(self, p, q, tokens, ok, u):
        choice, residual = super().node(p, q, tokens, ok, u)
        first = residual.clone()
        first[:, 4:] = 0
        left = ok.any(1) & (first.sum(1) > 0)
        return choice, torch.where(left[:, None], first, residual)


# ---------------------------------------------------------------------------------------- drafters


class BonusUniform(LevelDrafter):
    """The uniform of the bonus token draws the candidates."""

    def propose(self, state, noise):
        # greedy steps have no noise and read none
        def u(stream):
            return noise.u(BONUS)[:, :1].expand_as(noise.u(stream))

        return super().propose(state, SimpleNamespace(make=noise.make, u=u))


class LeftOut(LevelDrafter):
    """A drawn token with q(x) < .3 is dropped."""

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        if draft.q is None:
            return draft
        qx = draft.q.gather(2, draft.tokens[:, 1:, None])[..., 0]
        return shortened(draft, (qx >= 0.3).int().cumprod(1).bool())


class CutQ(LevelDrafter):
    """Candidates are drawn from the top .8 of q; the whole q is reported."""

    def _children(self, logits, d, sampling, drafted, q):
        if sampling.greedy:
            return super()._children(logits, d, sampling, drafted, q)
        cut = Sampling(sampling.temperature, sampling.top_k, 0.8)
        drawn = super()._children(logits, d, cut, drafted, [])
        q.append(sampling.probabilities(logits))
        return drawn


class Stale(LevelDrafter):
    """From the fourth new token on, q is the first step's."""

    def open(self, state, target):
        super().open(state, target)
        self.first = None

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        if draft.q is None:
            return draft
        if self.first is None:
            self.first = draft.q.clone()
        late = state.length - state.start >= 3
        return replace(draft, q=torch.where(late[:, None, None], self.first, draft.q))


class Points(LevelDrafter):
    """Candidates are drawn from q and declared deterministic. (Right.)"""

    def scheme(self, sampling):
        return Scheme.POINT

    def propose(self, state, noise):
        return replace(super().propose(state, noise), q=None)


class NoDraft(LevelDrafter):
    """Nothing is drafted if the first test's uniform is .9 or more."""

    def propose(self, state, noise):
        draft = super().propose(state, noise)
        if state.sampling.greedy:
            return draft
        return shortened(draft, (noise.u(ACCEPT)[:, :1] < 0.9).expand(-1, draft.tree.n - 1))


# ------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A rule or a drafter, and the method that it goes into.

    Attributes:
        name: its name in the table.
        spec: the method; a drafter is made from its shape.
        rule: the rule's class, None for the usual one.
        drafter: the drafter's class, None for the spec's own.
        right: it looks wrong and is right.
    """

    name: str
    spec: str
    rule: type[Rule] | None = None
    drafter: type[LevelDrafter] | None = None
    right: bool = False

    @property
    def says(self) -> str:
        """What is wrong, in words."""
        described = self.drafter or self.rule
        about = described.__doc__ if described is not None else RIGHT[self.name]
        return " ".join((about or "").split())

    def method(self, target: specwb.Target, draft: specwb.Target) -> specwb.Method:
        """The method, built for a pair of models."""
        options = {} if self.rule is None else {"rule": self.rule}
        built = specwb.method(self.spec, target, draft=draft, **options)
        if self.drafter is None:
            return built
        drafter = self.drafter(draft, built.drafter.tree, built.drafter.draw)
        return specwb.Method(self.name, drafter, built.rule, built.exactness)


def rules(*kinds: type[Rule], spec: str = "sps:gamma=3", right: bool = False) -> list[Case]:
    return [Case(kind.name, spec, kind, None, right) for kind in kinds]


def drafters(*kinds: type[LevelDrafter], spec: str = "sps:gamma=3", right: bool = False):
    return [Case(kind.__name__, spec, None, kind, right) for kind in kinds]


SIBLINGS, INDEPENDENT = "mcsd:tree=3-2-1", "mcsd:tree=3-2-1,draw=with"
RULES = [
    *rules(ReplacementForgotten, Sorted, OneForSiblings, spec=SIBLINGS),
    *rules(DuplicatesDropped, spec="mcsd:tree=4-2-1,draw=with"),
    *rules(LowScale, spec=INDEPENDENT),
    *rules(Uncapped, ProductOfUniforms, RowAbove, OneForDepths, Coarse),
    *rules(RawTarget, FirstIds),
    *rules(AllAtDepthFive, spec="sps:gamma=6"),
    *rules(FourthUntested, spec="mcsd:tree=4-2-2"),
    *rules(Nucleus, OwnUniforms, right=True),
]
RIGHT = {
    "stops below q < .3": "A chain stops below a token with q(x) < .3. (Right.)",
    "repeated siblings": "Independent siblings, also repeated ones, declared fixed. (Right.)",
}
DRAFTERS = [
    *drafters(LeftOut, BonusUniform, CutQ, Stale, NoDraft),
    *drafters(Points, right=True),
    Case("stops below q < .3", "sps:gamma=4,confidence=0.3", right=True),
    Case("repeated siblings", "mcsd:tree=3-2,draw=with,rule=point", right=True),
]
CASES = {case.name: case for case in [*RULES, *DRAFTERS]}
