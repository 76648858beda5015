"""A lattice of candidate tokens, and the search for one path through it.

A drafter that fills all positions of a block at once gives a distribution for every position and
none for a path: two likely neighbours need not follow one another. A :class:`Lattice` has the few
likely tokens of every position. :func:`beam` searches for the path that both the drafter and a
causal :class:`~specwb.drafters.diffuspec_parts.proxy.Proxy` give a high score. The score of a path
``x_1 .. x_m`` after the text ``c`` is

    score(x) = sum_i  lam log q_i(x_i) + (1 - lam) log r(x_i | the last order - 1 tokens before x_i)

where the tokens before ``x_i`` are ``c, x_1 .. x_{i-1}``.

Some paths end the text early, so paths differ in length; they are compared by ``score / m``.
:func:`viterbi` finds the best path of all, :func:`exhaustive` lists them. All of it is plain Python
over lists of a few hundred numbers: it runs on the host, after one transfer.

Source: Li et al. 2025 (DiffuSpec, arXiv 2510.02358), sections on pruning and causal-consistency
path search, equation 8.
Differs from the paper in: the proxy's term is that of one token and not of the whole path so far,
which would count early tokens many times; an end-of-text id is not forced into every position, and
paths that end early do not compete by their sums, either of which favours the shortest path. By
their means they can still win over the rest of a row that grows unsure: a beam of one at lam = 1 is
the row of best tokens, a wider one need not be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.drafters.diffuspec_parts.proxy import Context, Proxy, last

PATHS = 1_000_000  # how many paths exhaustive lists at most


def candidates(
    logits: Tensor, top: int, vocabulary: int, banned: Tensor, words: Tensor | None = None
) -> Tensor:
    """The best ``top`` tokens of every position of ``logits [B, k, V]`` (or of ``words [d]``,
    ascending), in one tensor that the host can read at once: ``[2, B, k, min(top, vocabulary, V)]``
    in float64, the ids and their log-probabilities under the distribution over the ids that may be
    drafted.

    The best come first, and of equal ones the lower id. Ids from ``vocabulary`` on and those
    ``banned`` (the mask token) are not drafted. Where fewer than ``top`` ids may be drafted the
    rest has log-probability -inf, and :meth:`Lattice.prune` leaves it out.
    """
    x = logits if logits.dtype == torch.float64 else logits.float()
    x = x.index_fill(-1, banned, -torch.inf)[..., :vocabulary]
    value, ids = x.topk(min(top, x.shape[-1]), -1)
    ids, order = ids.sort(-1)
    value, order = value.gather(-1, order).sort(stable=True, dim=-1, descending=True)
    logq = value.double() - x.logsumexp(-1, keepdim=True).double()
    ids = ids.gather(-1, order)
    ids = ids if words is None else words[ids]
    return torch.stack([ids.double(), logq])


@dataclass(frozen=True)
class Lattice:
    """The candidates of every position of a block, best first: ``ids`` and ``logq`` by position,
    the ``ends`` that end the text, and ``k``, how many positions the block had before pruning (0:
    as many as there are here)."""

    ids: list[list[int]]
    logq: list[list[float]]
    ends: frozenset[int] = frozenset()
    k: int = 0

    def __post_init__(self) -> None:
        if not self.ids:
            raise ArgumentError("a lattice needs at least one position")
        if [len(row) for row in self.ids] != [len(row) for row in self.logq]:
            raise ArgumentError("every candidate of a lattice needs one id and one log-probability")
        for i, row in enumerate(self.ids):
            if not row:
                cause = "are its logits finite?"
                raise ArgumentError(f"position {i} of the lattice has no candidate; {cause}")
        object.__setattr__(self, "k", self.k or len(self.ids))

    @classmethod
    def prune(
        cls,
        ids: Sequence[Sequence[float]],
        logq: Sequence[Sequence[float]],
        mass: float = 0.8,
        ends: Collection[int] = (),
    ) -> Lattice:
        """Keeps, at every position, the fewest best candidates whose probabilities sum to ``mass``,
        in (0, 1]; 1 keeps all. ``ids`` and ``logq`` are ``[k][M]``, one row of :func:`candidates`.

        Where all of them sum to less, all stay. The lattice stops at the first position whose best
        token ends the text, and that token is its only candidate there. At other positions an end
        stays if it is among the fewest.
        """
        if not 0 < mass <= 1:
            raise ArgumentError(f"mass must be in (0, 1], got {mass}")
        end_ids = frozenset(ends)
        pruned_ids, pruned_logq = [], []
        for row, logs in zip(ids, logq, strict=True):
            best = [int(x) for x in row[: _fewest(logs, mass)]]
            stops = bool(best) and best[0] in end_ids
            pruned_ids.append(best[:1] if stops else best)
            pruned_logq.append([float(x) for x in logs[: len(pruned_ids[-1])]])
            if stops:
                break
        return cls(pruned_ids, pruned_logq, end_ids, len(ids))

    @property
    def depth(self) -> int:
        """The number of positions that are left; one where the text ends is among them."""
        return len(self.ids)

    @property
    def row(self) -> list[int]:
        """The best token of every position, up to and with the first that ends the text."""
        tokens = []
        for row in self.ids:
            tokens.append(row[0])
            if row[0] in self.ends:
                break
        return tokens

    @property
    def generated(self) -> int:
        """``L_gen = min(s - 1, k)``, the length of the argmax row without its end of text.

        Here s is the position (from 1) of the first end of text in the argmax row, infinite if
        there is none.
        """
        row = self.row
        return len(row) - 1 if row[-1] in self.ends else self.k


def _fewest(logq: Sequence[float], mass: float) -> int:
    """How many of the best log-probabilities it takes to reach ``mass``."""
    total, count = 0.0, 0
    for x in logq:
        if not x > -math.inf:  # may not be drafted (or is not a number)
            break
        count += 1
        total += math.exp(x)
        if total >= mass and mass < 1:  # at 1 a sum that has been rounded up must not stop it
            break
    return count


@dataclass(frozen=True)
class LatticePath:
    """A path through a lattice: its tokens, their ranks among the candidates of their positions
    from 0, their log-probabilities, its score as the module defines it, and whether its last token
    ends the text."""

    tokens: tuple[int, ...]
    ranks: tuple[int, ...]
    logq: tuple[float, ...]
    score: float
    ends_text: bool

    @property
    def mean(self) -> float:
        """``score / m``, by which paths are compared."""
        return self.score / len(self.tokens)


CandidateRanks = tuple[int, ...]
Scored = tuple[float, CandidateRanks]
Prefix = tuple[float, Context, CandidateRanks]  # score, last order - 1 tokens, ranks


def beam(
    lattice: Lattice,
    proxy: Proxy,
    context: Sequence[int] = (),
    lam: float = 0.5,
    width: int = 3,
) -> list[LatticePath]:
    """Searches from left to right and extends the best ``width`` prefixes at every position;
    returns at most ``width`` paths, best first and all different.

    A path that ends the text counts among them at its last position and is set aside. ``lam = 1,
    width = 1`` gives the argmax row (:attr:`Lattice.row`); a beam as wide as there are paths lists
    all of them. Of equal scores the earlier candidate of the better prefix comes
    first. Cost: ``width`` calls of the proxy for a position. Of the text before the block,
    ``context``, the last ``proxy.order - 1`` tokens matter.
    """
    _check(lam)
    if width < 1:
        raise ArgumentError(f"the beam's width must be >= 1, got {width}")
    reach = proxy.order - 1
    prefixes: list[Prefix] = [(0.0, last(context, reach), ())]
    finished: list[Scored] = []
    for ids, logq in zip(lattice.ids, lattice.logq):
        draft_scores = [lam * x for x in logq]
        totals: list[float] = []
        for score, before, _ in prefixes:
            gains = _gains(ids, draft_scores, proxy, before, lam)
            totals += [score + gain for gain in gains]
        # the sort is stable: equal ones stay in order
        best = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)[:width]
        extended: list[Prefix] = []
        for index in best:
            parent, rank = divmod(index, len(ids))
            _, before, ranks = prefixes[parent]
            token = ids[rank]
            if token in lattice.ends:
                finished.append((totals[index], (*ranks, rank)))
            else:
                extended.append((totals[index], last((*before, token), reach), (*ranks, rank)))
        prefixes = extended
        if not prefixes:
            break
    complete = [(score, ranks) for score, _, ranks in prefixes]
    return _paths(lattice, finished + complete)[:width]


def viterbi(
    lattice: Lattice, proxy: Proxy, context: Sequence[int] = (), lam: float = 0.5
) -> LatticePath:
    """Finds the best path of all by dynamic programming over the last ``order - 1`` tokens.

    What comes after a position depends on those tokens alone. So of all prefixes that share them
    only the best is extended, and of the paths that end the text at a position only the best is
    kept. With M candidates per position it takes ``k M^order`` steps and ``M^(order - 1)`` states.
    """
    _check(lam)
    reach = proxy.order - 1
    states: dict[Context, Scored] = {last(context, reach): (0.0, ())}
    finished: list[Scored] = []
    for ids, logq in zip(lattice.ids, lattice.logq):
        draft_scores = [lam * x for x in logq]
        extended: dict[Context, Scored] = {}
        best_end: Scored | None = None
        for before, (score, ranks) in states.items():
            gains = _gains(ids, draft_scores, proxy, before, lam)
            for rank, (token, gain) in enumerate(zip(ids, gains)):
                total = score + gain
                if token in lattice.ends:
                    if best_end is None or total > best_end[0]:
                        best_end = total, (*ranks, rank)
                    continue
                state = last((*before, token), reach)
                if state not in extended or total > extended[state][0]:
                    extended[state] = total, (*ranks, rank)
        if best_end is not None:
            finished.append(best_end)
        states = extended
    return _paths(lattice, finished + list(states.values()))[0]


def exhaustive(
    lattice: Lattice, proxy: Proxy, context: Sequence[int] = (), lam: float = 0.5
) -> list[LatticePath]:
    """Lists every path, best first; at most a million: :func:`beam` without a bound."""
    bound = math.prod(map(len, lattice.ids))
    if bound > PATHS:
        advice = "too many to list; take fewer candidates or positions"
        raise ArgumentError(f"this lattice may have {bound} paths, {advice}")
    return beam(lattice, proxy, context, lam, bound)


def _gains(
    ids: list[int], draft_scores: list[float], proxy: Proxy, before: Context, lam: float
) -> list[float]:
    """What each candidate adds to a path's score; ``draft_scores`` are the candidates' ``lam log
    q``. At lam = 1 the proxy is not asked."""
    if lam == 1:
        return draft_scores
    weight = 1.0 - lam
    proxy_scores = proxy.scores(before, ids)
    return [a + weight * b for a, b in zip(draft_scores, proxy_scores)]


def _check(lam: float) -> None:
    if not 0 <= lam <= 1:
        raise ArgumentError(f"lambda must be in [0, 1], got {lam}")


def _paths(lattice: Lattice, scored: Iterable[Scored]) -> list[LatticePath]:
    """The paths of these scores and ranks, best first."""
    paths = []
    for score, ranks in scored:
        tokens = tuple(ids[r] for ids, r in zip(lattice.ids, ranks))
        logq = tuple(row[r] for row, r in zip(lattice.logq, ranks))
        paths.append(LatticePath(tokens, ranks, logq, score, tokens[-1] in lattice.ends))
    return sorted(paths, key=lambda path: -path.mean)
