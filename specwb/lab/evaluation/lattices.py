"""What one forward of a diffusion model offers behind a text, measured against the target's text.

Measured are ranks, coverage and accepted tokens. Everything is at temperature 0 but
:func:`expected_length`. The target's *greedy path* is what plain decoding writes, and of a draft as
many tokens are kept as it has in common with that path from the first on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import and_, eq

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import chain
from specwb.core.probability import Sampling
from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, candidates
from specwb.drafters.diffuspec_parts.proxy import Context, Proxy, read_along
from specwb.engine.decoding import decode
from specwb.models.diffusion import DiffusionModel, check_ids
from specwb.models.masked import block, block_states
from specwb.models.path import PathScorer, follows_in, greedy_walk
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.target import Target
from specwb.theory.analysis.diffusion import AdlRound, adl_trace

TOP = 15
"""M, the candidates of a position."""


@dataclass(frozen=True, eq=False)
class BlockCandidates:
    """The candidates of the k tokens behind a text, and the target's greedy path."""

    text: list[int]  # token ids
    ids: np.ndarray  # ``[k,M]``, the best tokens of every position, best first
    # ``[k,M]``, their log-probabilities; where fewer than M may be drafted the rest has -inf
    logq: np.ndarray
    greedy: list[int]  # what the target writes, up to an end of text, at most k tokens
    states: np.ndarray  # ``[k,H]``, the diffusion model's, which path scorers read
    ends: frozenset[int]  # ids that end a text

    def lattice(self, mass: float = 0.8, top: int | None = None) -> Lattice:
        """Prune the candidates as the drafter does
        (:meth:`specwb.drafters.diffuspec_parts.lattice.Lattice.prune`)."""
        ids, logq = self.ids[:, :top].tolist(), self.logq[:, :top].tolist()
        return Lattice.prune(ids, logq, mass, self.ends)

    @property
    def ranks(self) -> list[int]:
        """The rank of each greedy token among its position's candidates, from 0; M where it is
        none of them."""
        rows = zip(self.ids.tolist(), self.greedy, strict=False)
        return [row.index(x) if x in row else len(row) for row, x in rows]

    def kept(self, path: Sequence[int]) -> int:
        """Count the tokens that a draft has in common with the greedy path from the first on."""
        return _first(map(eq, path, self.greedy))

    @torch.inference_mode()
    def walk(self, scorer: PathScorer, top: int | None = None) -> list[int]:
        """The tokens of a learned score's greedy walk through the ``top`` best candidates, by
        default all M, of which the scorer may take fewer."""
        ranks = greedy_walk(self._scores(scorer, top))[0].tolist()
        return [int(row[rank]) for row, rank in zip(self.ids, ranks, strict=True)]

    @torch.inference_mode()
    def learned(self, scorer: PathScorer, top: int | None = None) -> tuple[Lattice, Proxy]:
        """The candidates of :meth:`walk` as a lattice, and the learned score as the proxy of a
        search through it: the log-probability of each step of a walk that is drawn from the
        candidates alone. A beam at ``lam = 0`` finds probable walks; of width 1 it is the greedy
        walk up to an end of text."""
        scores = self._scores(scorer, top)[0]
        steps, m = scores.log_softmax(-1).tolist(), scores.shape[-1]
        may = np.isfinite(self.logq[:, :m])
        ids, logq = ([r[:m][ok].tolist() for r, ok in zip(x, may)] for x in (self.ids, self.logq))
        return Lattice(ids, logq, self.ends), _Walker(len(self.text), self.ids.tolist(), steps)

    def _scores(self, scorer: PathScorer, top: int | None) -> Tensor:
        m = min(top or self.ids.shape[1], scorer.top)
        ids, logq, states = (
            torch.from_numpy(x)[None].to(scorer.weight.device)
            for x in (self.ids[:, :m], self.logq[:, :m], self.states)
        )
        text = torch.tensor([self.text], device=ids.device)
        anchor, length = text[:, -1], torch.tensor([len(self.text)], device=ids.device)
        return scorer(anchor, ids, logq, states, follows_in(text, length, anchor, ids))

    def reach(self, lattice: Lattice) -> int:
        """Count the tokens of the greedy path that the lattice has from the first position on.

        No path of the lattice keeps more.
        """
        return _first(x in row for x, row in zip(self.greedy, lattice.ids, strict=False))


@dataclass(frozen=True)
class _Walker:
    """The steps of walks behind a text: ``steps [k][M][M]`` of :meth:`BlockCandidates.learned`."""

    start: int  # tokens of the text, so that the length of a context tells the place
    ids: list[list[int]]
    steps: list[list[list[float]]]

    @property
    def order(self) -> int:
        return self.start + len(self.ids)

    def scores(self, context: Context, candidates: Sequence[int]) -> list[float]:
        i = len(context) - self.start
        row = self.steps[i][self.ids[i - 1].index(context[-1]) if i else 0]
        return [row[self.ids[i].index(x)] for x in candidates]


def places(
    target: Target,
    model: DiffusionModel,
    texts: Sequence[Prompt],
    k: int = 8,
    top: int = TOP,
) -> list[BlockCandidates]:
    """Run one forward of the diffusion model behind each text, and k tokens of the target.

    Args:
        target: the target model.
        model: the diffusion model.
        texts: strings or token ids.
        k: number of tokens.
        top: M, the candidates that are recorded for a position.
    """
    rows = _checked_texts(target, model, texts, k)
    paths = decode(target, rows, "ar", max_new_tokens=k).tokens
    sample = []
    for text, path in zip(rows, paths, strict=True):
        logits, states = block_states(model, text, k)
        ids, logq = _best(target, model, logits, top).cpu().numpy()
        wide = states.to(torch.promote_types(states.dtype, torch.float32)).cpu().numpy()
        ends = _ends(target, model)
        sample.append(BlockCandidates(text, ids.astype(np.int64), logq, path, wide, ends))
    return sample


def coverage(sample: Sequence[BlockCandidates], tops: Sequence[int] = (1, 3, 15)) -> pd.DataFrame:
    """Measure how often the target's token is among the M best, by how far ahead it is.

    Returns:
        One row for each position ahead, from 1, with the columns ``top M``, for each of ``tops``:
        the share of texts whose greedy token has a rank below M.
    """
    ranks = pd.DataFrame(dict(enumerate(one.ranks)) for one in sample)  # NaN behind an end of text
    shares = {f"top {top}": (ranks < top).sum() / ranks.count() for top in tops}
    return pd.DataFrame(shares).rename(lambda i: i + 1).rename_axis("place")


def lengths(
    sample: Sequence[BlockCandidates],
    proxy: Proxy,
    *,
    top: int | None = None,
    scorer: PathScorer | None = None,
) -> pd.DataFrame:
    """Count the tokens that are kept of the path that each way of choosing takes from one lattice.

    Args:
        sample: what :func:`places` returned.
        proxy: of the search.
        top: of the lattice.
        scorer: a learned score.
    Returns:
        One row for each text, with tokens kept of

        - row: the first choices.
        - beam: the path of :func:`specwb.drafters.diffuspec_parts.lattice.beam`.
        - walk: the greedy walk of the learned score, through the lattice unpruned.
        - lattice: the most that any path of the lattice keeps.
        - top: the same of the lattice that was not pruned.
    """
    rows = []
    for one in sample:
        lattice = one.lattice(top=top)
        paths = {"row": lattice.row, "beam": beam(lattice, proxy, one.text)[0].tokens}
        if scorer is not None:
            paths["walk"] = one.walk(scorer, top)
        kept = {name: one.kept(path) for name, path in paths.items()}
        most = {"lattice": one.reach(lattice), "top": one.reach(one.lattice(1.0, top))}
        rows.append(kept | most)
    return pd.DataFrame(rows)


@torch.inference_mode()
def expected_length(
    target: Target, text: Prompt, path: Sequence[int], temperature: float = 1.0
) -> float:
    """Compute how many tokens of a path the point-mass rule accepts behind a text, on average.

    ``E(x) = sum_j prod_{i<=j} p(x_i | text, x_<i)``, from one forward of the target over the path.
    At temperature 0 it is how many are accepted.

    Args:
        target: the target model.
        text: the text before.
        path: tokens.
        temperature: of the target.
    Raises:
        ValueError: the text is too long, or the temperature is < 0.

    Source: theorem 11.2, part 1 (theory/11_diffuspec.md).
    """
    (ids,) = token_rows(target, [text])
    sampling, n = Sampling(temperature), len(path)
    check_room([ids], n, target.name, target.context)
    state = target.open([ids], [n], n, sampling, ())
    tokens = torch.tensor([[ids[-1], *path]], device=target.device)
    p = sampling.probabilities(target.score(state, chain(tokens[:, :-1])).logits[0].double())
    return float(p.gather(1, tokens[0, 1:, None]).cumprod(0).sum())


class Replay:
    """The decoding steps that DiffuSpec takes to write one text of the target at temperature 0.

    They can be asked for any draft length at any position of the text. What is drafted depends on
    the position and on the number of masks only, so each pair of them is computed once, when it is
    first asked for. With the constants of :func:`specwb.theory.analysis.adl_trace` the replay goes
    through the same steps as a decoding with them.

    Args:
        target: the target model.
        model: the diffusion model.
        prompt: the beginning of the text.
        tokens: how many the target writes.
        proxy: makes the search's proxy. One that reads along is given the text.
    Attributes:
        prompt: token ids before the first step.
        text: token ids that the target writes.
        most: the longest draft that the context has room for.
    Raises:
        ValueError: as :func:`places`, with ``tokens`` for k.
    """

    def __init__(
        self,
        target: Target,
        model: DiffusionModel,
        prompt: Prompt,
        tokens: int,
        proxy: Callable[[], Proxy],
    ) -> None:
        (self.prompt,) = _checked_texts(target, model, [prompt], tokens)
        self.target, self.model, self.proxy = target, model, proxy
        (self.text,) = decode(target, [self.prompt], "ar", max_new_tokens=tokens).tokens
        self.most = min(target.context, model.context + model.spared) - len(self.prompt) - tokens
        self._lengths: dict[tuple[int, int], tuple[int, int]] = {}

    def at(self, place: int, k: int) -> tuple[int, int]:
        """Draft k tokens behind the first ``place`` tokens of :attr:`text`.

        Returns:
            ``L_gen`` and ``L_acc`` of that step.
        """
        if k > self.most:
            raise ArgumentError(
                f"k can be at most {self.most}, the context has no more room; got {k}"
            )
        if (place, k) not in self._lengths:
            prefix, rest = [*self.prompt, *self.text[:place]], self.text[place:]
            logits = block(self.model, prefix, k)
            ids, logq = _best(self.target, self.model, logits, TOP).tolist()
            lattice = Lattice.prune(ids, logq, ends=_ends(self.target, self.model))
            proxy = self.proxy()
            read_along(proxy, prefix)
            path = beam(lattice, proxy, prefix)[0].tokens
            # the text's last token is the bonus token of its step
            accepted = min(_first(map(eq, path, rest)), len(rest) - 1)
            self._lengths[place, k] = lattice.generated, accepted
        return self._lengths[place, k]

    def rounds(
        self, least: int = 20, most: int = 30, delta: int = 10, rho: float = 0.5, share: float = 1.0
    ) -> list[AdlRound]:
        """List the decoding steps under adaptive draft length.

        Arguments and errors are those of :func:`specwb.theory.analysis.adl_trace`; ``least = most``
        is a fixed k.
        """
        generated: list[int | None] = []
        accepted: list[int] = []
        steps = adl_trace(generated, accepted, least, most, delta, rho, share)  # checks them
        place, k = 0, most
        while place < len(self.text):
            drafted, kept = self.at(place, k)
            generated.append(drafted)
            accepted.append(kept)
            place += kept + 1
            steps = adl_trace(generated, accepted, least, most, delta, rho, share)
            k = steps[-1].next
        return steps


def _checked_texts(
    target: Target, model: DiffusionModel, texts: Sequence[Prompt], k: int
) -> list[list[int]]:
    """The texts' token ids, after a check that both models have room for k tokens more."""
    rows = token_rows(target, texts)
    check_ids("the model", model, target)
    rooms = {target.name: target.context, "the diffusion model": model.context + model.spared}
    for name, room in rooms.items():
        check_room(rows, k, name, room)
    return rows


def _ends(target: Target, model: DiffusionModel) -> frozenset[int]:
    return frozenset({*model.ends, *target.eos})


def _best(target: Target, model: DiffusionModel, logits: Tensor, top: int) -> Tensor:
    """``[2,k,M]``: the best ids of every position of ``logits [k,V]`` and their
    log-probabilities."""
    known = target.vocabulary
    return candidates(logits[None], top, known, model.banned, model.words)[:, 0]


def _first(flags: Iterable[bool]) -> int:
    """Count the true flags before the first false one."""
    return sum(accumulate(flags, and_))
