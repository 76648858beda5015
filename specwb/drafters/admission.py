"""How much of a draft is verified (``verify=auto``): the nodes, of all rows together, that are
worth the time which they cost on this machine.

A step takes from the past a number of levels to draft and a price of time, from the draft its
confidences, and leaves what it has learnt::

    levels    the number whose worth, less its time at the price, was the largest in past steps;
              0 is plain decoding
    survival  of a node: the product along its path of sigmoid(a + b logit(confidence)), two numbers
              for every depth, fitted to what past steps accepted; of a copied token it is
              sigmoid(a + b log n), with two numbers of their own, n tokens before it matching
    admitted  nodes in falling order of survival, up to the first that survives less often than
              price * (seconds of one token more in the target's forward pass)
    price     tokens per second, as past steps wrote them

The measured seconds of a forward pass are replaced by the largest convex function below them: the
price of a further node never falls, so the nodes before the first that is not worth its time are
the best set for this price (theorem 6.8), and the step is lossless although the confidences are its
own (theorem 6.9). Now and then a step is a probe: it drafts all levels and verifies a number of
nodes that is fixed beforehand, so that what was not worth its time once can be so again.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, pairwise
from statistics import median

import numpy as np
import torch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, State, Verdict, taken
from specwb.core.flow import chain as chain_of
from specwb.core.noise import DRAFT, Noise
from specwb.core.options import MethodError
from specwb.core.probability import Sampling
from specwb.core.tree import GrownTree, Limits, Tree
from specwb.drafters.base import Drafter, InFront, chain
from specwb.drafters.copying import MOST, Copying
from specwb.drafters.level import Levels
from specwb.models.ranks import here
from specwb.models.target import Target

WIDTHS = (1, 2, 4, 8, 16)
"""Tokens of a row whose verification is timed."""
REPEATS = 2
LATE = 9
"""Steps whose median time beside the target's pass counts."""
SCHEMES = (Scheme.POINT, Scheme.IID, Scheme.WITHOUT_REPLACEMENT)
"""The sampling schemes whose drafts it admits in part."""
PROBES = 0.01
"""Share of the time that probes may cost in the long run."""
MEMORY = 0.95
"""Weight of a past step against the one after it."""


@dataclass(frozen=True)
class Costs:
    """Seconds on one machine, by which nodes are admitted.

    Attributes:
        target: of a forward pass of the target, by its number of tokens in all rows together.
        draft: of a draft, by its number of levels.
    """

    target: Mapping[int, float]
    draft: Mapping[int, float]


def convex(seconds: Mapping[int, float], most: int) -> np.ndarray:
    """``[most + 1]``, by number of tokens: the largest convex function below the measured seconds,
    from the first measured number on, without falling parts; beyond the last its slope goes on."""
    hull: list[tuple[int, float]] = []
    for point in sorted(seconds.items()):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    tokens = np.arange(most + 1)
    slopes = np.array([max(0.0, _slope(a, b)) for a, b in pairwise(hull)] or [0])
    widths = np.array([width for width, _ in hull])
    part = (np.searchsorted(widths, tokens[:-1], "right") - 1).clip(0, len(slopes) - 1)
    steps = np.where(tokens[:-1] < widths[0], 0.0, slopes[part])
    return hull[0][1] + np.concatenate([[0.0], steps.cumsum()])


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def admitted(survival: np.ndarray, price: np.ndarray) -> np.ndarray:
    """The indices of what is admitted of ``survival [m]``: in falling order, ties in order of
    index, up to the first that is not above its ``price [>= m]``, which does not fall with the
    number of those before it."""
    order = np.argsort(-survival, kind="stable")
    is_worth = survival[order] > price[: len(order)]
    return order[: len(order) if is_worth.all() else is_worth.argmin()]


class Survival:
    """The probability that a node is accepted once its parent is: ``sigmoid(a + b x)``, x the logit
    of the draft's confidence, with two numbers for every level: a depth, or 0 for copied tokens.

    They begin as a = b = 1, since drafters are right more often than they are sure. Every decoding
    step maximises a quadratic below the log-likelihood of what it tested (curvature 1/4 per node,
    Boehning's bound), less the information of past steps, so it cannot overshoot however large the
    batch. b stays >= 0, so that elder siblings stay ahead.
    """

    prior, memory, widest = 2.0, 0.99, 6.0

    def __init__(self, depth: int) -> None:
        self.numbers = np.ones((depth + 1, 2))
        self.information = np.tile(self.prior * np.eye(2), (depth + 1, 1, 1))

    def logit(self, confidence: np.ndarray) -> np.ndarray:
        """What is fitted to, bounded."""
        with np.errstate(divide="ignore"):
            return (np.log(confidence) - np.log1p(-confidence)).clip(-self.widest, self.widest)

    def below_parent(self, x: np.ndarray, level: np.ndarray) -> np.ndarray:
        """The probabilities for logits ``x`` of ``level``."""
        a, b = np.moveaxis(self.numbers[level], -1, 0)
        return 1 / (1 + np.exp(-(a + b * x).clip(-30, 30)))

    def learn(self, x: np.ndarray, level: np.ndarray, accepted: np.ndarray) -> None:
        """Takes a step to what was tested: one entry for each child of a node on the accepted
        path."""
        for d in np.unique(level):
            at = level == d
            inputs = np.stack([np.ones(at.sum()), x[at]])
            wrong = accepted[at] - self.below_parent(x[at], level[at])
            old = self.memory * self.information[d] + (1 - self.memory) * self.prior * np.eye(2)
            b, force = self.numbers[d, 1], inputs @ wrong
            bound = old + inputs @ inputs.T / 4
            step = np.linalg.solve(bound, force)
            if b + step[1] < 0:  # the best step to b = 0
                step = np.array([(force[0] + bound[0, 1] * b) / bound[0, 0], -b])
            self.numbers[d] += step
            p = self.below_parent(x[at], level[at])
            self.information[d] = old + (inputs * p * (1 - p)) @ inputs.T


class Learnt:
    """The estimates that past steps leave to later ones.

    Attributes:
        survival: of nodes, by level.
        worth: by number of levels, the expected tokens of a row less the price of verifying them,
            beyond those of copied tokens, a running mean.
        drafts: the number of drafts in that mean, at most 16.
        written: tokens written, of late (:data:`MEMORY`).
        plain: tokens that plain decoding writes in the same time.
        saved: seconds saved up for the next probe.
        times: by number of levels, seconds that late steps took beside the target's pass; the first
            is that of a draft alone, measured beforehand.
    """

    def __init__(self, drafting: Mapping[int, float]) -> None:
        self.survival = Survival(max(drafting))
        self.worth = dict.fromkeys(drafting, 0.0)
        self.drafts = dict.fromkeys(drafting, 0)
        self.times = {n: deque([s], LATE) for n, s in {0: 0.0, **drafting}.items()}
        self.written, self.plain = 0.0, 0.0
        self.saved = math.inf

    def beside(self, levels: int) -> float:
        """Seconds of a step that drafts so many levels, without the target's pass."""
        return median(self.times[levels])


class Admission(InFront):
    """Lets the drafter behind draft as many levels as have paid, and verifies the nodes that are
    worth their time; where none are, it decodes plainly. A copying drafter may stand between: it
    looks for copies in every step, and the levels are those of the drafter behind it.

    Lossless at every temperature: whether a node is verified depends on past steps and on what is
    drawn before it, above it or in other rows, never on its own token. Which nodes are verified
    depends on the other rows and on measured seconds, so a row's *sampled* text differs from run to
    run; its distribution does not, nor does greedy text or that of ``exact_text``.

    The seconds of passes and drafts are measured before the first decoding with so many rows, with
    its text (:attr:`costs`, which all decodings of a method share); what steps take beside the
    target's pass is measured further, in every step. Decodings share what they learn, too, where
    nothing is drawn: at T = 0 and with exact text. A sampled decoding learns by itself: what an
    earlier one with the same seed learnt depends on the uniforms that this one is about to use,
    and its budget must not. On the CPU's compiled pass a step costs what its nodes cost; elsewhere
    rows are filled up to the longest. Steps are never recorded as CUDA graphs, since their shapes
    follow the budget.

    Sources: the ranking is that of vLLM's adaptive verification (2026), the estimate its logistic
    one without a confidence head. Differs from it in: the budget is found along the ranking, by a
    price of time; depths are chosen, and plain decoding, by the same price.
    """

    planted = False  # whether steps take the seconds of :attr:`costs`, whatever a clock shows

    def __init__(self, behind: Drafter) -> None:
        scheme = behind.scheme(Sampling(1.0))
        if scheme not in SCHEMES:
            raise MethodError(f"verify=auto is not for drafts that are {scheme.value}")
        if scheme is not Scheme.POINT and not behind.independent:
            raise MethodError(
                "verify=auto needs children drawn for each node by itself; take draw=greedy"
            )
        super().__init__(behind)
        head = self.head
        length = head.length if isinstance(head, Levels) else None
        if scheme is not Scheme.POINT and length and length.confidence and head.limits.children > 1:
            # a level that other branches let be drafted would tell of their tokens (theorem 6.9.4)
            raise MethodError(
                "verify=auto takes no sampled tree whose drafting stops by a confidence; take a "
                "chain, or set the confidence to 0"
            )
        if not head.limits.depth:
            raise MethodError("verify=auto has nothing to choose from in a draft of nothing")
        limits, depth = behind.limits, head.limits.depth
        self.limits = Limits(limits.nodes, limits.depth, limits.children)
        self.host_reads, self.captured, self.staged = behind.host_reads + 2, False, False
        self.cuts = isinstance(head, Levels) and head.cuts
        self.options = range(1 if self.cuts else depth, depth + 1)
        self.costs: dict[int, Costs] = {}  # by number of rows
        self.shared: dict[tuple[int, Sampling], Learnt] = {}

    @property
    def head(self) -> Drafter:
        """What drafts where nothing is copied."""
        return self.behind.behind if isinstance(self.behind, Copying) else self.behind

    def open(self, state: State, target: Target) -> None:
        if here() is not None:
            raise MethodError("verify=auto measures times, on which several processes do not agree")
        if state.rows not in self.costs:
            self.costs[state.rows] = self._measured(state, target)
        super().open(state, target)
        self.behind.confident = self.head.confident = True
        costs = self.costs[state.rows]
        self.seconds = convex(costs.target, state.rows * self.limits.nodes)
        self.learnt = Learnt({n: costs.draft[n] for n in self.options})
        if state.sampling.greedy:
            self.learnt = self.shared.setdefault((state.rows, state.sampling), self.learnt)
        self.rows = state.rows
        self.live = np.ones(state.rows, bool)  # rows that had not finished before the last step

    def _measured(self, state: State, target: Target) -> Costs:
        rows, device, depth = state.rows, state.length.device, self.options[-1]
        behind = copy.copy(self.head)
        behind.open(state, target)
        seeds = torch.zeros(rows, dtype=torch.long, device=device)
        noise = Noise(seeds, {DRAFT: behind.uniforms(state.sampling)}, depth + 1)
        noise.renew(state.length)

        def score(each: int, first: int | None = None) -> Tensor:
            draft = chain_of(torch.zeros(rows, each, dtype=torch.long, device=device))
            draft.computed = None if first is None else torch.arange(first, device=device)
            return target.score(state, draft, self.features).logits

        def propose(levels: int) -> Tensor:
            if isinstance(behind, Levels):
                behind.most = levels if self.cuts else None
                behind.fed = None  # the text does not grow between two drafts
            return behind.propose(state, noise).tokens

        def seconds(work: Callable[[], Tensor]) -> float:
            began = time.perf_counter()
            work().flatten()[0].item()  # waits for the device
            took = time.perf_counter() - began
            state.forget_masks()
            return took

        widths = sorted({min(n, self.limits.nodes) for n in WIDTHS})
        passes: dict[int, list[float]] = {tokens: [] for tokens in (1, *(rows * n for n in widths))}
        drafts: dict[int, list[float]] = {n: [] for n in {self.options[0], depth}}
        # a draft behind every pass, as in decoding: each finds in the processor's caches what the
        # other has left there
        with target.kernels(rows * self.limits.nodes):
            for _ in range(1 + REPEATS):
                for n, levels in zip(widths, cycle(drafts), strict=False):
                    passes[rows * n].append(seconds(partial(score, n)))
                    drafts[levels].append(seconds(partial(propose, levels)))
                if rows > 1:
                    passes[1].append(seconds(partial(score, 1, 1)))
        least = [{n: min(times[1:]) for n, times in each.items()} for each in (passes, drafts)]
        known = sorted(least[1])
        every = np.interp(self.options, known, [least[1][n] for n in known]).tolist()
        return Costs(least[0], dict(zip(self.options, every, strict=True)))

    @property
    def price(self) -> float:
        """Tokens per second: what plain decoding writes, or past steps wrote, if that is more."""
        past = self.learnt
        gain = max(1.0, past.written / past.plain) if past.plain else 1.0
        return gain * self.rows / (past.beside(0) + self.seconds[self.rows])

    def _levels(self) -> int:
        """How many levels this step drafts. A probe drafts all of them, when the share
        :data:`PROBES` of the time since the last one has paid for it."""
        deepest, price, past = self.options[-1], self.price, self.learnt
        seconds = {n: past.beside(n) for n in past.times}

        def worth(n: int) -> float:
            return self.rows * past.worth[n] - price * (seconds[n] - seconds[0]) if n else 0.0

        # a first probe drafts nothing in a row that copies
        best = max(past.times, key=worth) if past.drafts[deepest] else deepest
        most, plain = len(self.seconds) - 1 - self.rows, self.seconds[self.rows]
        within = int((self.seconds[self.rows :] <= 2 * plain).sum()) - 1
        nodes = min(most, max(within, self.rows))
        cost = seconds[deepest] - seconds[0] + self.seconds[self.rows + nodes] - plain
        past.saved += PROBES * (plain + seconds[best])
        self.probe = nodes if past.saved >= max(cost, plain) else 0
        if self.probe:
            past.saved = 0.0
        return deepest if self.probe else best

    def propose(self, state: State, noise: Noise) -> Draft:
        self.began = time.perf_counter()
        self.levels = self._levels()
        self.full: Draft | None = None
        self.count = 0
        copying = self.behind if isinstance(self.behind, Copying) else None
        if not (self.levels or copying):
            root = state.pending
            valid = torch.ones_like(root, dtype=torch.bool)
            draft = Draft(chain(0, root.device), root, valid, self.scheme(state.sampling))
            if not self.live.all():
                draft.computed = torch.from_numpy(np.flatnonzero(self.live)).to(root.device)
            return draft
        self.late = self.missed > 0
        self.behind.window = self.longer(min(self.missed, state.horizon))
        if isinstance(self.head, Levels) and self.cuts:
            self.head.most = self.levels
        if copying:
            self.late, copying.idle = copying.missed > MOST, not self.levels
        self.full = self.behind.propose(state, noise)
        if copying and not copying.drafts:
            self.levels = 0  # a row alone copies
        return self._admitted(state, self.full, copying.copies if copying else None)

    def _took(self) -> float:
        """Seconds since the step began to draft."""
        if self.planted:
            draft = self.costs[len(self.live)].draft
            return draft.get(self.levels, 0.0) + self.seconds[self.rows + self.count]
        return time.perf_counter() - self.began

    def _read(self, numbers: Tensor) -> np.ndarray:
        """A host read."""
        return np.array(numbers.tolist())

    def _admitted(self, state: State, full: Draft, copies: Tensor | None) -> Draft:
        """The part of a draft that is verified; ``copies [B,1]`` are the rows that copy."""
        rows, tree = state.rows, full.tree
        assert full.confidence is not None
        live = full.valid & ~state.done[:, None]
        level = tree.depth.clamp_max(self.options[-1])
        level = level if copies is None else level.masked_fill(copies, 0)
        of_nodes = full.confidence, live, tree.parent, tree.depth, level
        columns = [x.double().expand(rows, -1) for x in of_nodes]
        table = self._read(torch.stack(columns))
        self.parent, self.depth, self.level = table[2:].astype(int)
        self.parent = self.parent.clip(0)
        self.x = self.learnt.survival.logit(table[0])
        likely = table[1] * self.learnt.survival.below_parent(self.x, self.level)
        survival = table[1] * (self.depth == 0)
        for d in range(1, tree.D + 1):
            above = np.take_along_axis(survival, self.parent, 1)
            survival = np.where(self.depth == d, likely * above, survival)
        self.rows = int(table[1][:, 0].sum())
        drafted = np.where(self.depth > 0, survival, 0)
        chosen = self._weigh(drafted)
        self.into = np.zeros(drafted.shape, bool)
        self.into.flat[chosen] = True
        self.count = len(chosen)
        full.valid[:, 1:] &= torch.from_numpy(self.into[:, 1:]).to(full.valid.device)
        return self._cut(state, full, table[1][:, 0] > 0)

    def _weigh(self, survival: np.ndarray) -> np.ndarray:
        """The flat indices of the admitted nodes; takes into account what each number of levels
        would have been worth."""
        price = self.price * np.diff(self.seconds)[self.rows :]
        price = np.append(price, np.full(survival.size, np.inf))  # of done rows' nodes
        chosen, past, copied = np.empty(0, int), self.learnt, 0.0
        for n in (0, *self.options):
            if n > self.levels:
                break
            part = np.where(self.level <= n, survival, 0).ravel()
            chosen = admitted(part, price)
            worth = (part[chosen].sum() - price[: len(chosen)].sum()) / max(1, self.rows)
            if n == 0:
                copied = worth  # whatever is drafted
                continue
            past.drafts[n] = min(past.drafts[n] + 1, 16)
            past.worth[n] += (worth - copied - past.worth[n]) / past.drafts[n]
        if not self.probe:
            return chosen
        return admitted(
            survival.ravel(), np.where(np.arange(survival.size) < self.probe, 0, np.inf)
        )

    def _cut(self, state: State, full: Draft, live: np.ndarray) -> Draft:
        """The draft of the admitted nodes, in their order, and what else rows are filled with."""
        rows, device, tree = state.rows, full.tokens.device, full.tree
        n = 1 + int(self.into.sum(1).max())
        keep = self.into.copy()
        keep[:, 0] = True
        nodes = np.argsort(~keep, axis=1, kind="stable")[:, :n]
        there = np.take_along_axis(keep, nodes, 1)
        self.nodes = nodes
        chosen = torch.from_numpy(nodes).to(device)
        valid = torch.from_numpy(there).to(device)
        cut: Tree = chain(n - 1, device)
        if not tree.is_chain:
            place = np.zeros(keep.shape, int)
            np.put_along_axis(place, nodes, np.arange(n)[None], 1)
            parent = np.take_along_axis(place, np.take_along_axis(self.parent, nodes, 1), 1)
            parent = np.where(there & (nodes > 0), parent, -1)
            depth = np.where(there, np.take_along_axis(self.depth, nodes, 1), 0)
            shape = torch.from_numpy(np.stack([parent, depth])).to(device)
            cut = GrownTree(shape[0], shape[1], min(tree.D, n - 1), self.limits.children)
        draft = Draft(cut, full.tokens.gather(1, chosen), valid, full.scheme)
        if full.q is not None and full.q_row is not None and n > 1:
            draft.q, draft.q_row = full.q, full.q_row.expand(rows, -1).gather(1, chosen)
        if full.hidden is not None:
            draft.hidden, draft.start_layer = taken(full.hidden, chosen), full.start_layer
            if not tree.is_chain:
                state.cache.keep(state.length - 1, chosen, full.start_layer)
        computed = np.flatnonzero(there & live[:, None])
        if len(computed) < there.size:
            draft.computed = torch.from_numpy(computed).to(device)
        return draft

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        known = self._read(torch.cat([verdict.accepted[:, None], verdict.path], 1))
        accepted, path = np.split(known, [1], 1)
        accepted = accepted[:, 0]
        rows, past = int((accepted >= 0).sum()), self.learnt
        scoring, plain = self.seconds[[self.rows + self.count, self.rows]]
        if not (self.levels and self.late):  # what it makes up for it has not in other steps
            past.times[self.levels].append(self._took() - scoring)
        past.written = MEMORY * past.written + (accepted + 1).sum()
        step = (past.beside(self.levels) + scoring) / (past.beside(0) + plain)
        past.plain = MEMORY * past.plain + rows * step
        self.rows, self.live = max(1, rows), accepted >= 0
        if self.full is None:
            self.missed += 1
            return
        self.missed = 0
        nodes = torch.from_numpy(self.nodes).to(verdict.path.device).gather(1, verdict.path)
        self.behind.observe(state, self.full, replace(verdict, path=nodes), scores)
        on_path = np.zeros(self.into.shape, bool)
        np.put_along_axis(on_path, np.take_along_axis(self.nodes, path, 1), True, 1)
        tested = self.into & np.take_along_axis(on_path, self.parent, 1)
        tested &= (accepted >= 0)[:, None]
        self.learnt.survival.learn(self.x[tested], self.level[tested], on_path[tested])
