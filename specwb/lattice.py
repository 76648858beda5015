"""A block of candidates and the search for one path through it: what a drafter that fills all its places at once needs after its forward.

Such a drafter gives a law for every place of its block and none for a path: two likely neighbours need not follow one another. A
:class:`Lattice` has the few likely tokens of every place; :func:`beam` looks for the path that both the drafter and a causal :class:`Proxy`
(specwb.proxy) like, with the score of a path ``x_1 .. x_m`` after the known tokens ``c``

    score(x) = sum_i  lam log q_i(x_i) + (1 - lam) log r(x_i | the last order - 1 tokens of c, x_1 .. x_{i-1}).

Paths of different lengths, since some end early, are compared by ``score / m``. :func:`viterbi` finds the best path of all, :func:`exhaustive`
lists them. All of it is plain Python over lists of a few hundred numbers: on the host, after one transfer.

Source: Li et al. 2025 (DiffuSpec, arXiv 2510.02358), sections on pruning and causal-consistency path search, equation 8.
Differs from the paper in: the proxy's term is that of one token and not of the whole path so far, which would count early tokens many times; an
end-of-text id is not forced into every place, and paths that end early do not compete by their sums, either of which favours the shortest path. By
their means they can still win over the rest of a row that grows unsure: a beam of one at lam = 1 is the row, a wider one need not be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specwb.proxy import Proxy, last

PATHS = 1_000_000  # most that exhaustive lists


def candidates(logits: Tensor, top: int, vocabulary: int, banned: Tensor) -> Tensor:
    """The best tokens of every place, on the logits' device: what is to be read by the host, in one tensor.

    Args: ``logits [B,k,V]``; ``top``: M, how many; ``vocabulary``: ids from here on are not drafted; ``banned``: ids that are not drafted either
    (the mask token), any number of them, each < V.
    Returns: ``[2,B,k,min(M, vocabulary, V)]`` float64: ids, and log-probabilities under the law over the ids that may be drafted; best first, equal
    ones by id. Where fewer than M may be drafted the rest has log-probability -inf, and :meth:`Lattice.prune` leaves it out.
    """
    x = logits if logits.dtype == torch.float64 else logits.float()
    x = x.index_fill(-1, banned, -torch.inf)[..., :vocabulary]
    value, ids = x.topk(min(top, x.shape[-1]), -1)
    ids, order = ids.sort(-1)
    value, order = value.gather(-1, order).sort(stable=True, dim=-1, descending=True)
    return torch.stack([ids.gather(-1, order).double(), value.double() - x.logsumexp(-1, keepdim=True).double()])


@dataclass(frozen=True)
class Lattice:
    """Candidates of every place, best first.

    ``ids``, ``logq``: by place, tokens and their log-probabilities; ``ends``: ids that end a path; ``k``: places of the block that was pruned, at
    least as many as there are here (0: as many).

    Raises:
        ValueError: no place, a place without a candidate, ids and log-probabilities that do not fit each other.
    """

    ids: list[list[int]]
    logq: list[list[float]]
    ends: frozenset[int] = frozenset()
    k: int = 0

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("a lattice needs at least one place")
        if [len(row) for row in self.ids] != [len(row) for row in self.logq]:
            raise ValueError("every candidate of a lattice needs one id and one log-probability")
        for i, row in enumerate(self.ids):
            if not row:
                raise ValueError(f"place {i} of the lattice has no candidate; are its logits finite?")
        object.__setattr__(self, "k", self.k or len(self.ids))

    @classmethod
    def prune(cls, ids: Sequence[Sequence[float]], logq: Sequence[Sequence[float]], mass: float = 0.8, ends: Collection[int] = ()) -> Lattice:
        """The fewest best candidates of every place whose probabilities sum to ``mass`` or more, all of them where they do not.

        Args: ``ids``, ``logq [k][M]``: one row of :func:`candidates`; ``mass`` in (0, 1], 1 keeps all; ``ends``: end-of-text ids.
        The lattice stops at the first place whose best token ends the text, and that token is its only candidate there. Elsewhere an end stays if it
        is among the fewest.

        Raises:
            ValueError: mass outside (0, 1], no place, or a place without a token that may be drafted.
        """
        if not 0 < mass <= 1:
            raise ValueError(f"mass must be in (0, 1], got {mass}")
        kept_ids, kept_logq, stop, least, exp = [], [], frozenset(ends), -math.inf, math.exp
        for row, logs in zip(ids, logq, strict=True):
            total, many = 0.0, 0
            for x in logs:
                if not x > least:  # may not be drafted (or is no number)
                    break
                many += 1
                total += exp(x)
                if total >= mass and mass < 1:  # at 1 a sum that has been rounded up must not stop it
                    break
            found = [int(x) for x in row[:many]]
            ended = many > 0 and found[0] in stop
            kept_ids.append(found[:1] if ended else found)
            kept_logq.append([float(x) for x in logs[: len(kept_ids[-1])]])
            if ended:
                break
        return cls(kept_ids, kept_logq, stop, len(ids))

    @property
    def depth(self) -> int:
        """Places that are left, the one where the text ends among them."""
        return len(self.ids)

    @property
    def row(self) -> list[int]:
        """The best token of every place, up to and with the first that ends the text."""
        out = []
        for row in self.ids:
            out.append(row[0])
            if row[0] in self.ends:
                break
        return out

    @property
    def generated(self) -> int:
        """``L_gen = min(s - 1, k)``, s the place (from 1) of the first end of text in the argmax row, infinite if there is none."""
        row = self.row
        return len(row) - 1 if row[-1] in self.ends else self.k


@dataclass(frozen=True)
class Path:
    """A way through a lattice: ``tokens``, their ``ranks`` among the candidates of their places (from 0), log-probabilities ``logq``; ``score`` as in
    the module; ``ended``: the last token ends the text."""

    tokens: tuple[int, ...]
    ranks: tuple[int, ...]
    logq: tuple[float, ...]
    score: float
    ended: bool

    @property
    def mean(self) -> float:
        """``score / m``, by which paths are compared."""
        return self.score / len(self.tokens)


Scored = tuple[float, tuple[int, ...]]  # score and ranks


def beam(lattice: Lattice, proxy: Proxy, context: Sequence[int] = (), lam: float = 0.5, width: int = 3) -> list[Path]:
    """At most ``width`` paths, best first and all different: left to right, the best ``width`` at every place are gone on with.

    A path that ends counts among them at its last place and is set aside. ``lam = 1, width = 1`` is the argmax row (:attr:`Lattice.row`); as wide as
    there are paths it is :func:`exhaustive`. Of equal scores the earlier candidate of the better path comes first. Cost: ``width`` calls of the proxy
    for a place.

    Args: ``context``: the last known tokens, of which the last ``proxy.order - 1`` matter; ``lam`` in [0, 1]; ``width >= 1``.
    Raises: ValueError for these.
    """
    _check(lam)
    if width < 1:
        raise ValueError(f"the beam's width must be >= 1, got {width}")
    many, ends = proxy.order - 1, lattice.ends
    live: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = [(0.0, last(context, many), ())]
    done: list[Scored] = []
    for ids, logq in zip(lattice.ids, lattice.logq):
        own, totals, m = [lam * x for x in logq], [], len(ids)
        for score, known, _ in live:
            totals += [score + gain for gain in _gains(ids, own, proxy, known, lam)]
        grown = []
        for at in sorted(range(len(totals)), key=totals.__getitem__, reverse=True)[:width]:  # stable: equal ones stay in order
            parent, rank = divmod(at, m)
            _, known, ranks = live[parent]
            x = ids[rank]
            if x in ends:
                done.append((totals[at], (*ranks, rank)))
            else:
                grown.append((totals[at], last((*known, x), many), (*ranks, rank)))
        live = grown
        if not live:
            break
    return _paths(lattice, done + [(score, ranks) for score, _, ranks in live])[:width]


def viterbi(lattice: Lattice, proxy: Proxy, context: Sequence[int] = (), lam: float = 0.5) -> Path:
    """The best path of all: dynamic programme over the last ``order - 1`` tokens.

    What comes after a place depends on those tokens alone, so of all paths that share them the best goes on; of the paths that end at a place the
    best is the best of its length. With M candidates a place it takes ``k M^order`` steps and ``M^(order - 1)`` states.

    Args and errors: as :func:`beam`.
    """
    _check(lam)
    many, ends = proxy.order - 1, lattice.ends
    states: dict[tuple[int, ...], Scored] = {last(context, many): (0.0, ())}
    done: list[Scored] = []
    for ids, logq in zip(lattice.ids, lattice.logq):
        own = [lam * x for x in logq]
        grown: dict[tuple[int, ...], Scored] = {}
        ended: Scored | None = None
        for known, (score, ranks) in states.items():
            for rank, (x, gain) in enumerate(zip(ids, _gains(ids, own, proxy, known, lam))):
                total = score + gain
                if x in ends:
                    if ended is None or total > ended[0]:
                        ended = total, (*ranks, rank)
                    continue
                state = last((*known, x), many)
                if state not in grown or total > grown[state][0]:
                    grown[state] = total, (*ranks, rank)
        if ended is not None:
            done.append(ended)
        states = grown
    return _paths(lattice, done + list(states.values()))[0]


def exhaustive(lattice: Lattice, proxy: Proxy, context: Sequence[int] = (), lam: float = 0.5) -> list[Path]:
    """Every path, best first.

    Args as :func:`beam`. Raises: ValueError for these, or where there may be more than a million.
    """
    _check(lam)
    if (bound := math.prod(map(len, lattice.ids))) > PATHS:
        raise ValueError(f"this lattice may have {bound} paths, too many to list; take fewer candidates or places")
    many = proxy.order - 1
    live: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = [(0.0, last(context, many), ())]
    done: list[Scored] = []
    for ids, logq in zip(lattice.ids, lattice.logq):
        own, grown = [lam * x for x in logq], []
        for score, known, ranks in live:
            for rank, (x, gain) in enumerate(zip(ids, _gains(ids, own, proxy, known, lam))):
                if x in lattice.ends:
                    done.append((score + gain, (*ranks, rank)))
                else:
                    grown.append((score + gain, last((*known, x), many), (*ranks, rank)))
        live = grown
    return _paths(lattice, done + [(score, ranks) for score, _, ranks in live])


def _gains(ids: list[int], own: list[float], proxy: Proxy, known: tuple[int, ...], lam: float) -> list[float]:
    """What each candidate adds to a path's score; ``own`` is ``lam log q``. At lam = 1 the proxy is not asked."""
    if lam == 1:
        return own
    rest = 1.0 - lam
    return [a + rest * b for a, b in zip(own, proxy.scores(known, ids))]


def _check(lam: float) -> None:
    if not 0 <= lam <= 1:
        raise ValueError(f"lambda must be in [0, 1], got {lam}")


def _paths(lattice: Lattice, found: Iterable[Scored]) -> list[Path]:
    out = []
    for score, ranks in found:
        tokens = tuple(ids[r] for ids, r in zip(lattice.ids, ranks))
        logq = tuple(row[r] for row, r in zip(lattice.logq, ranks))
        out.append(Path(tokens, ranks, logq, score, tokens[-1] in lattice.ends))
    return sorted(out, key=lambda path: -path.mean)
