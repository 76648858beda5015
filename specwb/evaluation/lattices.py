"""What one forward of a diffusion model offers behind a text, measured against what the target writes there: ranks, coverage, tokens kept.

Everything is at temperature 0 but :func:`expected`: the target's *greedy path* is what plain decoding writes, and a draft keeps as many tokens as
it has in common with it from the first on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pandas as pd
import torch

from specwb.analysis.diffusion import AdlRound, adl_trace
from specwb.drafters.diffusion import trie
from specwb.engine import Prompt, PromptError, decode, token_rows
from specwb.flow import Draft, Law
from specwb.lattice import Lattice, beam, candidates, viterbi
from specwb.models.diffusion import DiffusionModel, check_ids
from specwb.models.masked import block
from specwb.models.target import Target
from specwb.options import whole
from specwb.probability import Sampling
from specwb.proxy import Proxy, read_along
from specwb.tree import Tree


@dataclass(frozen=True, eq=False)
class Place:
    """A place of a text: the candidates of the k tokens behind it, and the target's greedy path through them.

    text: token ids before it. ids, logq ``[k,M]``: the best tokens and their log-probabilities, best first; where fewer than M may be drafted the
    rest has -inf. greedy ``[n]``: what the target writes, up to an end of text, n <= k. ranks ``[n]``: of its tokens among all that may be drafted
    there, from 0. q ``[n]``: the diffusion model's probabilities of them. ends: ids that end a text.
    """

    text: list[int]
    ids: np.ndarray
    logq: np.ndarray
    greedy: np.ndarray
    ranks: np.ndarray
    q: np.ndarray
    ends: frozenset[int]

    def lattice(self, mass: float = 0.8, top: int | None = None) -> Lattice:
        """Pruned as the drafter does it (:meth:`specwb.lattice.Lattice.prune`), to at most ``top`` candidates a place, default M.

        Raises: ValueError for a mass outside (0, 1], or a top that is not in 1..M.
        """
        most = self.ids.shape[1]
        top = most if top is None else top
        if whole("top", top) > most:
            raise ValueError(f"top can be at most {most}, as many candidates were kept, got {top}")
        return Lattice.prune(self.ids[:, :top].tolist(), self.logq[:, :top].tolist(), mass, self.ends)

    def held(self, lattice: Lattice) -> np.ndarray:
        """``[n]``: is the greedy path's token among the lattice's candidates at its place? False below the lattice's last place."""
        rows = [*lattice.ids, *[[]] * len(self.greedy)]
        return np.array([x in row for x, row in zip(self.greedy.tolist(), rows)], dtype=bool)

    def kept(self, path: Sequence[int]) -> int:
        """Tokens that a draft has in common with the greedy path from the first on."""
        return _common(path, self.greedy.tolist())

    def reach(self, lattice: Lattice) -> int:
        """The most that a path of the lattice keeps: places from the first on that hold the greedy path."""
        return int(np.cumprod(self.held(lattice)).sum())


def places(target: Target, model: DiffusionModel, texts: Sequence[Prompt], k: int = 8, top: int = 15, steps: int = 1) -> list[Place]:
    """One forward of the diffusion model behind each text, and k tokens of the target.

    Args:
        texts: strings or token ids. k: tokens. top: M, candidates kept a place. steps: of denoising.
    Raises:
        ValueError: no text, an empty one, one too long with k tokens more for either model, k, top or steps < 1, a diffusion model of fewer tokens.
    """
    rows = _checked(target, model, texts, whole("k", k))
    whole("top", top), whole("steps", steps)
    written = decode(target, rows, "ar", max_new_tokens=k).tokens
    out = []
    for text, path in zip(rows, written, strict=True):
        logits, banned = block(model, text, k, steps), _banned(model)
        ids, logq = candidates(logits[None], top, target.vocabulary, banned)[:, 0].cpu().numpy()
        x = logits.double().index_fill(-1, banned, -torch.inf)[:, : target.vocabulary].cpu().numpy()[: len(path)]
        own = np.take_along_axis(x, np.array(path)[:, None], 1)
        before = (x > own) | ((x == own) & (np.arange(x.shape[1]) < np.array(path)[:, None]))  # equal ones by id
        q = np.exp(own[:, 0] - np.logaddexp.reduce(x, 1))
        out.append(Place(text, ids.astype(np.int64), logq, np.array(path), before.sum(1), q, _ends(target, model)))
    return out


def coverage(found: Sequence[Place], tops: Sequence[int] = (1, 3, 15)) -> pd.DataFrame:
    """How often the target's token is among the M best, by how far ahead it is.

    Returns: a row for each place ahead, from 1: ``top M`` for each of ``tops``, the share of texts whose greedy token has a rank below M;
    ``rank``, its median from 1; ``probability``, the mean of what the diffusion model gives it; ``texts``, how many there are (fewer behind an end).
    Raises: ValueError for no place, or an M < 1.
    """
    _some(found)
    for top in tops:
        whole("tops", top)
    rows = []
    for i in range(max(len(place.greedy) for place in found)):
        ranks = np.array([place.ranks[i] for place in found if len(place.greedy) > i])
        shares = {f"top {top}": float((ranks < top).mean()) for top in tops}
        q = np.mean([place.q[i] for place in found if len(place.greedy) > i])
        rows.append({"place": i + 1, **shares, "rank": float(np.median(ranks)) + 1, "probability": float(q), "texts": len(ranks)})
    return pd.DataFrame(rows).set_index("place")


def lengths(
    found: Sequence[Place], proxy: Proxy, *, lam: float = 0.5, mass: float = 0.8, top: int | None = None, beams: int = 3, exact: bool = True
) -> pd.DataFrame:
    """How many tokens are kept of what each way of choosing a path takes from one lattice.

    Returns: a row for each place: tokens kept of ``row``, the first choices; ``beam``, the path of :func:`specwb.lattice.beam`; ``viterbi``, the
    one of the best score (with ``exact``; its time grows with M to the proxy's order); ``lattice``, the most that any path of it keeps; ``top``, the
    same of the lattice that was not pruned. ``candidates``: of the lattice, over all its places.
    Raises: ValueError for no place, or settings that the search does not take.
    """
    _some(found)
    rows = []
    for place in found:
        lattice = place.lattice(mass, top)
        paths = {"row": lattice.row, "beam": beam(lattice, proxy, place.text, lam, beams)[0].tokens}
        if exact:
            paths["viterbi"] = viterbi(lattice, proxy, place.text, lam).tokens
        kept = {name: place.kept(path) for name, path in paths.items()}
        most = {"lattice": place.reach(lattice), "top": place.reach(place.lattice(1.0, top))}
        rows.append({**kept, **most, "candidates": sum(map(len, lattice.ids))})
    return pd.DataFrame(rows)


@torch.inference_mode()
def expected(target: Target, text: Prompt, paths: Sequence[Sequence[int]], temperature: float = 1.0) -> list[float]:
    """Tokens that the point-mass rule keeps of each path behind a text, on average: ``E(x) = sum_j prod_{i<=j} p(x_i | text, x_<i)``.

    One forward of the target over all paths. At temperature 0 it is how many are kept.

    Raises: ValueError for no path, an empty one, tokens that the target does not have, a text too long, a bad temperature.
    Source: theorem 11.2, part 1 (theory/11_diffuspec.md).
    """
    (ids,) = token_rows(target, [text])
    if not paths or not all(map(len, paths)) or not all(0 <= x < target.vocabulary for path in paths for x in path):
        raise ValueError(f"paths are one or more of at least one token each, from 0 to {target.vocabulary - 1}; got {[list(path) for path in paths]}")
    deepest, sampling = max(map(len, paths)), Sampling(temperature)
    if len(ids) + deepest > target.context:
        raise PromptError(f"the text has {len(ids)} tokens; with {deepest} more it exceeds the context of {target.name!r} ({target.context})")
    parents, _, words = trie(paths)
    tree = Tree.parents(parents, device=target.device)
    state = target.open([ids], [deepest], tree.n, sampling, ())
    tokens = torch.tensor([[ids[-1], *words[1:]]], device=target.device)
    scores = target.score(state, Draft(tree, tokens, torch.ones_like(tokens, dtype=torch.bool), Law.POINT))
    laws = sampling.probabilities(scores.logits[0].double())
    chance = [1.0]  # of reaching each node
    for node in range(1, tree.n):
        chance.append(chance[parents[node]] * float(laws[parents[node], words[node]]))
    below = {(parent, word): i for i, (parent, word) in enumerate(zip(parents, words, strict=True))}
    out = []
    for path in paths:
        node, total = 0, 0.0
        for x in path:
            node = below[node, x]
            total += chance[node]
        out.append(total)
    return out


class Replay:
    """The rounds that DiffuSpec takes to write one text of the target at temperature 0, for any draft length at any of its places.

    What is drafted depends on the place and on the number of masks alone, so each pair of them is computed once, when it is first asked for. With
    the constants of :func:`specwb.analysis.adl_trace` it goes through the rounds that a decoding with them goes through.

    Args:
        prompt: what the text begins with. tokens: how many the target writes. proxy: makes the search's, which is told the text if it reads along.
        lam, mass, top, beams: of the search.
    Attributes:
        prompt, text: token ids, before the first round and what is written.
    Raises:
        ValueError: as :func:`places`, for ``tokens`` in the place of k; settings that the search does not take.
    """

    def __init__(
        self, target: Target, model: DiffusionModel, prompt: Prompt, tokens: int, proxy: Callable[[], Proxy], *,
        lam: float = 0.5, mass: float = 0.8, top: int = 15, beams: int = 3,
    ) -> None:  # fmt: skip
        (self.prompt,) = _checked(target, model, [prompt], whole("tokens", tokens))
        if not 0 <= lam <= 1 or not 0 < mass <= 1 or min(whole("top", top), whole("beams", beams)) < 1:
            raise ValueError(f"lam is in [0, 1], mass in (0, 1]; got lam={lam}, mass={mass}")
        self.target, self.model, self.proxy = target, model, proxy
        self.lam, self.mass, self.top, self.beams = lam, mass, top, beams
        (self.text,) = decode(target, [self.prompt], "ar", max_new_tokens=tokens).tokens
        self.most = min(target.context, model.context + model.spared) - len(self.prompt) - tokens
        self._made: dict[tuple[int, int], tuple[int, int]] = {}

    def at(self, place: int, k: int) -> tuple[int, int]:
        """``L_gen`` and ``L_acc`` of a round that drafts k tokens behind the first ``place`` tokens of :attr:`text`.

        Raises: ValueError for a place outside the text, k < 1, or one for which the context has no room.
        """
        if not 0 <= place < len(self.text):
            raise ValueError(f"place must be 0..{len(self.text) - 1}, got {place}")
        if whole("k", k) > self.most:
            raise ValueError(f"k can be at most {self.most}, the context has no more room; got {k}")
        if (place, k) not in self._made:
            known, rest = [*self.prompt, *self.text[:place]], self.text[place:]
            best = candidates(block(self.model, known, k)[None], self.top, self.target.vocabulary, _banned(self.model))
            ids, logq = best[:, 0].tolist()
            lattice = Lattice.prune(ids, logq, self.mass, _ends(self.target, self.model))
            proxy = self.proxy()
            read_along(proxy, known)
            path = beam(lattice, proxy, known, self.lam, self.beams)[0].tokens
            self._made[place, k] = lattice.generated, min(_common(path, rest), len(rest) - 1)  # the text's last token closes its round
        return self._made[place, k]

    def rounds(self, least: int = 20, most: int = 30, delta: int = 10, rho: float = 0.5, share: float = 1.0) -> list[AdlRound]:
        """Round by round under adaptive draft length; arguments and errors as :func:`specwb.analysis.adl_trace`. ``least = most``: a fixed k."""
        generated: list[int | None] = []
        accepted: list[int] = []
        out = adl_trace(generated, accepted, least, most, delta, rho, share)  # are they constants?
        place, k = 0, most
        while place < len(self.text):
            made, kept = self.at(place, k)
            generated, accepted, place = [*generated, made], [*accepted, kept], place + kept + 1
            out = adl_trace(generated, accepted, least, most, delta, rho, share)
            k = out[-1].next
        return out


def _checked(target: Target, model: DiffusionModel, texts: Sequence[Prompt], k: int) -> list[list[int]]:
    rows = token_rows(target, texts)
    check_ids("the model", model, target)
    for i, row in enumerate(rows):
        for name, room in ((target.name, target.context), ("the diffusion model", model.context + model.spared)):
            if len(row) + k > room:
                raise PromptError(f"text {i} has {len(row)} tokens; with {k} more it exceeds the context of {name!r} ({room})")
    return rows


def _banned(model: DiffusionModel) -> torch.Tensor:
    return torch.tensor([model.mask_id], device=model.backbone.device)


def _ends(target: Target, model: DiffusionModel) -> frozenset[int]:
    return frozenset({*model.ends, *target.eos})


def _common(path: Sequence[int], other: Sequence[int]) -> int:
    """Tokens from the first on in which they agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other)))


def _some(found: Sequence[Place]) -> None:
    if not found:
        raise ValueError("there is no place to look at")
