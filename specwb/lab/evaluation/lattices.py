"""What one forward of a diffusion model offers behind a text, measured against the target's text.

Measured are ranks, coverage and accepted tokens. Everything is at temperature 0 but
:func:`expected_length`. The target's *greedy path* is what plain decoding writes, and of a draft as
many tokens are kept as it has in common with that path from the first on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pandas as pd
import torch

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, Scheme
from specwb.core.probability import Sampling
from specwb.core.tree import Tree
from specwb.drafters.diffusion import trie
from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, candidates, viterbi
from specwb.drafters.diffuspec_parts.proxy import Context, Proxy, read_along
from specwb.engine.decoding import decode
from specwb.models.diffusion import DiffusionModel, check_ids
from specwb.models.masked import block, block_states
from specwb.models.path import PathScorer, follows_in, greedy_walk
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.target import Target
from specwb.theory.analysis.diffusion import AdlRound, adl_trace


@dataclass(frozen=True, eq=False)
class Place:
    """A place in a text: the candidates of the k tokens behind it, and the target's greedy path."""

    text: list[int]  # token ids before the place
    ids: np.ndarray  # ``[k,M]``, the best tokens of every position, best first
    # ``[k,M]``, their log-probabilities; where fewer than M may be drafted the rest has -inf
    logq: np.ndarray
    greedy: np.ndarray  # ``[n]``, what the target writes, up to an end of text, n <= k
    ranks: np.ndarray  # ``[n]``, of the greedy tokens among all that may be drafted there, from 0
    q: np.ndarray  # ``[n]``, the diffusion model's probabilities of the greedy tokens
    states: np.ndarray  # ``[k,H]``, the diffusion model's, which path scorers read
    ends: frozenset[int]  # ids that end a text

    def lattice(self, mass: float = 0.8, top: int | None = None) -> Lattice:
        """Prune the candidates as the drafter does
        (:meth:`specwb.drafters.diffuspec_parts.lattice.Lattice.prune`)."""
        ids, logq = self.ids[:, :top].tolist(), self.logq[:, :top].tolist()
        return Lattice.prune(ids, logq, mass, self.ends)

    def in_lattice(self, lattice: Lattice) -> np.ndarray:
        """Tell for every token of the greedy path whether the lattice has it at its position.

        Returns:
            ``[n]``, False below the lattice's last position.
        """
        rows = [*lattice.ids, *[[]] * len(self.greedy)]
        return np.array([x in row for x, row in zip(self.greedy.tolist(), rows)], dtype=bool)

    def kept(self, path: Sequence[int]) -> int:
        """Count the tokens that a draft has in common with the greedy path from the first on."""
        return _common(path, self.greedy.tolist())

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

    def _scores(self, scorer: PathScorer, top: int | None) -> torch.Tensor:
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
        return int(np.cumprod(self.in_lattice(lattice)).sum())


@dataclass(frozen=True)
class _Walker:
    """The steps of walks behind a text: ``steps [k][M][M]`` of :meth:`Place.learned`."""

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
    top: int = 15,
) -> list[Place]:
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
        (logits, states), known = block_states(model, text, k), target.vocabulary
        best = candidates(logits[None], top, known, model.banned, model.words)
        ids, logq = best[:, 0].cpu().numpy()
        logits = logits.double().index_fill(-1, model.banned, -torch.inf)
        ranks, q = _ranks(model.spread(logits, known), path)
        sample.append(
            Place(
                text=text,
                ids=ids.astype(np.int64),
                logq=logq,
                greedy=np.array(path),
                ranks=ranks,
                q=q,
                states=states.to(torch.promote_types(states.dtype, torch.float32)).cpu().numpy(),
                ends=_ends(target, model),
            )
        )
    return sample


def _ranks(logits: torch.Tensor, path: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The ranks of a path's tokens, of equal ones by id, and their probabilities."""
    x = logits[: len(path)].cpu().numpy()
    tokens = np.array(path)[:, None]
    own = np.take_along_axis(x, tokens, 1)
    before = (x > own) | ((x == own) & (np.arange(x.shape[1]) < tokens))
    return before.sum(1), np.exp(own[:, 0] - np.logaddexp.reduce(x, 1))


def coverage(sample: Sequence[Place], tops: Sequence[int] = (1, 3, 15)) -> pd.DataFrame:
    """Measure how often the target's token is among the M best, by how far ahead it is.

    Returns:
        One row for each position ahead, from 1, with

        - top M, for each of ``tops``: the share of texts whose greedy token has a rank below M.
        - rank: the median rank, from 1.
        - probability: the mean of what the diffusion model gives the greedy token.
        - texts: how many there are (fewer behind an end of text).
    """
    rows = []
    for i in range(max(len(place.greedy) for place in sample)):
        long_enough = [place for place in sample if len(place.greedy) > i]
        ranks = np.array([place.ranks[i] for place in long_enough])
        shares = {f"top {top}": float((ranks < top).mean()) for top in tops}
        rows.append(
            {
                "place": i + 1,
                **shares,
                "rank": float(np.median(ranks)) + 1,
                "probability": float(np.mean([place.q[i] for place in long_enough])),
                "texts": len(ranks),
            }
        )
    return pd.DataFrame(rows).set_index("place")


def lengths(
    sample: Sequence[Place],
    proxy: Proxy,
    *,
    lam: float = 0.5,
    mass: float = 0.8,
    top: int | None = None,
    beams: int = 3,
    exact: bool = True,
    scorer: PathScorer | None = None,
) -> pd.DataFrame:
    """Count the tokens that are kept of the path that each way of choosing takes from one lattice.

    Args:
        sample: what :func:`places` returned.
        proxy: of the search.
        lam: of the search.
        mass: of the lattice.
        top: of the lattice.
        beams: of the search.
        exact: also find the path of the best score. Its time grows with M to the proxy's order.
        scorer: a learned score.
    Returns:
        One row for each place, with tokens kept of

        - row: the first choices.
        - beam: the path of :func:`specwb.drafters.diffuspec_parts.lattice.beam`.
        - viterbi: the path of the best score, with ``exact``.
        - walk: the greedy walk of the learned score, through the lattice unpruned.
        - lattice: the most that any path of the lattice keeps.
        - top: the same of the lattice that was not pruned.

        and ``candidates``, of the lattice over all its positions.
    """
    rows = []
    for place in sample:
        lattice = place.lattice(mass, top)
        paths = {"row": lattice.row, "beam": beam(lattice, proxy, place.text, lam, beams)[0].tokens}
        if exact:
            paths["viterbi"] = viterbi(lattice, proxy, place.text, lam).tokens
        if scorer is not None:
            paths["walk"] = place.walk(scorer, top)
        rows.append(
            {
                **{name: place.kept(path) for name, path in paths.items()},
                "lattice": place.reach(lattice),
                "top": place.reach(place.lattice(1.0, top)),
                "candidates": sum(map(len, lattice.ids)),
            }
        )
    return pd.DataFrame(rows)


@torch.inference_mode()
def expected_length(
    target: Target, text: Prompt, paths: Sequence[Sequence[int]], temperature: float = 1.0
) -> list[float]:
    """Compute how many tokens of each path the point-mass rule accepts behind a text, on average.

    ``E(x) = sum_j prod_{i<=j} p(x_i | text, x_<i)``, from one forward of the target over all paths.
    At temperature 0 it is how many are accepted.

    Args:
        target: the target model.
        text: the text before.
        paths: tokens of each path.
        temperature: of the target.
    Raises:
        ValueError: the text is too long, or the temperature is < 0.

    Source: theorem 11.2, part 1 (theory/11_diffuspec.md).
    """
    (ids,) = token_rows(target, [text])
    depth, sampling = max(map(len, paths)), Sampling(temperature)
    check_room([ids], depth, target.name, target.context)
    parents, _, words = trie(paths)
    tree = Tree.parents(parents, device=target.device)
    state = target.open([ids], [depth], tree.n, sampling, ())
    tokens = torch.tensor([[ids[-1], *words[1:]]], device=target.device)
    draft = Draft(tree, tokens, torch.ones_like(tokens, dtype=torch.bool), Scheme.POINT)
    p = sampling.probabilities(target.score(state, draft).logits[0].double())
    reach = [1.0]  # the probability that the target's text goes through the node
    for node in range(1, tree.n):
        reach.append(reach[parents[node]] * float(p[parents[node], words[node]]))
    children = {
        (parent, word): node for node, (parent, word) in enumerate(zip(parents, words, strict=True))
    }
    expectations = []
    for path in paths:
        node, total = 0, 0.0
        for x in path:
            node = children[node, x]
            total += reach[node]
        expectations.append(total)
    return expectations


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
        lam: of the search.
        mass: of the lattice.
        top: of the lattice.
        beams: of the search.
    Attributes:
        prompt: token ids before the first step.
        text: token ids that the target writes.
        most: the longest draft that the context has room for.
    Raises:
        ValueError: as :func:`places`, with ``tokens`` for k; or settings that the search does not
            take.
    """

    def __init__(
        self,
        target: Target,
        model: DiffusionModel,
        prompt: Prompt,
        tokens: int,
        proxy: Callable[[], Proxy],
        *,
        lam: float = 0.5,
        mass: float = 0.8,
        top: int = 15,
        beams: int = 3,
    ) -> None:
        (self.prompt,) = _checked_texts(target, model, [prompt], tokens)
        self.target, self.model, self.proxy = target, model, proxy
        self.lam, self.mass, self.top, self.beams = lam, mass, top, beams
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
            self._lengths[place, k] = self._draft(place, k)
        return self._lengths[place, k]

    def _draft(self, place: int, k: int) -> tuple[int, int]:
        """``L_gen`` and ``L_acc`` of a step."""
        prefix, rest = [*self.prompt, *self.text[:place]], self.text[place:]
        model = self.model
        logits = block(model, prefix, k)[None]
        best = candidates(logits, self.top, self.target.vocabulary, model.banned, model.words)
        ids, logq = best[:, 0].tolist()
        lattice = Lattice.prune(ids, logq, self.mass, _ends(self.target, self.model))
        proxy = self.proxy()
        read_along(proxy, prefix)
        path = beam(lattice, proxy, prefix, self.lam, self.beams)[0].tokens
        # the text's last token is the bonus token of its step
        accepted = min(_common(path, rest), len(rest) - 1)
        return lattice.generated, accepted

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


def _common(path: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens from the first on in which two paths agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other)))
