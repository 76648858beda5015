"""DiffuSpec: a diffusion language model drafts all places at once, a search finds a path through
them, and the draft length adapts to the text."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from specwb.core.flow import Draft, Scheme, Scores, State, Verdict
from specwb.core.noise import DRAFT, Noise
from specwb.core.probability import Sampling, inverse_cdf
from specwb.core.tree import GrownTree, Tree
from specwb.drafters.base import Drafter, chain
from specwb.drafters.diffuspec_parts.lattice import Lattice, LatticePath, beam, candidates
from specwb.drafters.diffuspec_parts.proxy import Proxy, last, read_along
from specwb.drafters.length import Length
from specwb.models.diffusion import DiffusionModel
from specwb.models.layers import rms
from specwb.models.masked import Blocks
from specwb.models.path import PathScorer, follows_in, greedy_walk, sampled_walk
from specwb.models.target import Target, prefill

DRAWS = ("search", "sample")


class DiffusionDrafter(Drafter):
    """Drafts ``k`` tokens with one forward pass of a diffusion model, and then a search or a draw.

    ``draw="search"``: the ``top`` best tokens of every place are pruned to the fewest with total
    probability ``mass``, and a beam of width ``beams`` searches for the path with the best score by
    model and proxy (:mod:`specwb.drafters.diffuspec_parts.lattice`). The candidates are a function
    of the text, so the path is verified as point masses at every temperature; with ``as_tree`` all
    the beam's paths are verified as one tree. lam = 1 and beams = 1 give the argmax row.

    ``draw="sample"``: one token per place, drawn independently from the model's distribution there.
    Given the text, the prediction for a place does not depend on the tokens drawn at others, so
    that distribution is the q of the ratio rule; ``paths`` such sequences are K independent paths.
    At T = 0 this is the argmax row.

    With a ``scorer`` (:mod:`specwb.models.path`) the path is a walk by its scores through the
    ``top`` best tokens of every place: with "search" the greedy walk, a point mass; with "sample"
    ``paths`` walks drawn from all tokens, each token from a known distribution given the one
    before. At T = 0 a drawn walk is the greedy one. All of this stays on the device.

    The length of every row follows a :class:`~specwb.drafters.length.Length`.

    If the context is too short for prefix and masks, k shrinks, down to plain steps. Each forward
    pass needs one transfer of the lattice to the host, and one of sizes. A recorded step has no
    sizes to read: it predicts the full number of places, and a search has two stages, before and
    after the work on the host.

    Source: Li et al. 2025, arXiv 2510.02358 (algorithm 1); K sequences after SpecDiff-2
    (2511.00606). Differs from the paper in: at
    T > 0 its ratio test of a searched path is not lossless (theorem 11.5), here the path is a point
    mass; see also :mod:`specwb.drafters.diffuspec_parts.lattice` and
    :class:`~specwb.drafters.length.Adaptive`.
    """

    def __init__(
        self,
        model: DiffusionModel,
        length: Length,
        proxy: Callable[[], Proxy],
        ends: Collection[int] = (),
        *,
        steps: int = 1,
        top: int = 15,
        mass: float = 0.8,
        beams: int = 3,
        lam: float = 0.5,
        draw: str = "search",
        paths: int = 1,
        as_tree: bool = False,
        scorer: PathScorer | None = None,
    ) -> None:
        self.model, self.length, self.proxy, self.ends = model, length, proxy, frozenset(ends)
        self.steps, self.top, self.mass, self.beams, self.lam = steps, top, mass, beams, lam
        self.draw, self.paths, self.as_tree = draw, paths, as_tree
        self.scorer = scorer
        most = length.most
        wide = beams if as_tree and draw == "search" else paths
        self.tree = sequences(wide, most)
        self.host_reads = 2  # how many places a forward asks about, and the lattice
        # of the beam's paths the host finds the shape of a trie
        self.captured = self.staged = draw == "sample" or not as_tree
        # of the last step: row, lattice, text before it, paths found
        self.searched: list[tuple[int, Lattice, tuple[int, ...], list[LatticePath]]] = []

    def scheme(self, sampling: Sampling) -> Scheme:
        if sampling.greedy or self.draw == "search":
            return Scheme.POINT
        return Scheme.IID_PATHS if self.paths > 1 else Scheme.IID

    def uniforms(self, sampling: Sampling) -> int:
        return 0 if self.scheme(sampling) is Scheme.POINT else self.length.most * self.paths

    def open(self, state: State, target: Target) -> None:
        device = state.tokens.device
        self.vocabulary = target.vocabulary
        self.blocks = Blocks(self.model, state.rows, state.capacity, target.vocabulary)
        self.backbone, self.cache = self.blocks.backbone, self.blocks.cache
        if self.model.causal:
            prefill(self.backbone, state, self.cache)
        self.fed = state.length - 1 if self.model.causal else torch.zeros_like(state.length)
        self.length = copy.copy(self.length)
        self.length.open(state.rows, device)
        self.drafted = torch.zeros_like(state.length)  # by the last step, up to an end of text
        self.stops = torch.tensor(sorted(self.ends), dtype=torch.long, device=device)
        # a row's path, padded, its length, and how much was drafted up to an end of text: on the
        # host, and where steps look for it
        size = state.rows, self.length.most + 2
        self.handed = torch.zeros(size, dtype=torch.long, pin_memory=device.type == "cuda")
        self.found = torch.zeros(size, dtype=torch.long, device=device)
        rows, lengths = state.tokens[:, : state.horizon].tolist(), state.length.tolist()
        self.texts = [row[:n] for row, n in zip(rows, lengths, strict=True)]
        self.proxies = [self.proxy() for _ in lengths]
        self.read_to = [0] * len(lengths)  # what a proxy that reads along has read

    def tensors(self) -> dict[str, Tensor]:
        own = {"fed": self.fed, "drafted": self.drafted, "stops": self.stops}
        own |= {"handed": self.handed, "found": self.found, "banned": self.blocks.banned}
        return {**own, "cache": self.cache.data, **self.length.tensors()}

    def adopt(self, fresh: Drafter) -> None:
        assert isinstance(fresh, DiffusionDrafter)
        self.texts, self.proxies, self.read_to = fresh.texts, fresh.proxies, fresh.read_to

    def propose(self, state: State, noise: Noise) -> Draft:
        if self.scorer is None and self.scheme(state.sampling) is Scheme.POINT:
            return self._search(state)
        return self._sample(state, noise)

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        self.length.observe(self.drafted, verdict.accepted.clamp_min(0))

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        """The text before the step: a step's tokens are processed as text in the next step; until
        then masks occupy their slots."""
        return before

    def _asked(self, state: State) -> Tensor:
        """``[B]``: how many tokens each row asks for, fewer where the context ends, none where it
        is done."""
        room = self.model.context - state.length
        fits = torch.where(room >= 0, room + self.model.spared, 0)
        return torch.minimum(self.length.tokens, fits).masked_fill(state.done, 0)

    def _sizes(self, state: State) -> tuple[Tensor | None, int, int]:
        """How many tokens each row asks for, the most that one does, and how many places of a text
        the model has not seen. A recorded step asks within its stage, takes the most that there can
        be, and reads nothing."""
        if state.static:
            return None, self.length.most, self.length.most + 1
        asked = self._asked(state)
        most, fresh = torch.stack([asked.max(), (state.length - self.fed).max()]).tolist()
        return asked, most, max(fresh, 1)

    def _forward(self, state: State, asked: Tensor, most: int, fresh: int) -> tuple[Tensor, Tensor]:
        """The model's logits ``[B,most,V]`` (or of its words) for the places behind the text, and
        the states ``[B,most,H]`` before the final norm that they are read from. A row asks for
        ``asked [B]`` places; up to ``fresh`` places before these are new to the model."""
        text = state.tokens, state.length, state.horizon, self.fed, fresh
        logits, states = self.blocks.say(*text, asked, most, self.steps, padded=state.static)
        self.fed.copy_(state.length)
        return state.perturbed(logits, 0, most, self.model.words), states

    def _numbers(self, state: State, asked: Tensor | None, most: int, fresh: int) -> Tensor:
        """All that the search needs, in one tensor for one transfer, ``[B,n]`` in float64: what
        each row asks for, the length of its text, its last ``fresh`` tokens, ids and
        log-probabilities of the candidates at ``most`` places."""
        asked = self._asked(state) if asked is None else asked
        logits, _ = self._forward(state, asked, most, fresh)
        banned, words = self.blocks.banned, self.model.words
        best = candidates(logits, self.top, self.vocabulary, banned, words)
        place = state.length[:, None] + torch.arange(-fresh, 0, device=asked.device)
        text = state.tokens.gather(1, place.clamp_min(0))
        sizes = torch.stack([asked, state.length], 1)
        return torch.cat([sizes.double(), text.double(), best.transpose(0, 1).flatten(1)], 1)

    def _search(self, state: State) -> Draft:
        """The paths that the beam finds, of as many tokens as each row asks for."""
        self.searched = []
        beams: list[list[LatticePath]] = [[] for _ in range(state.rows)]
        generated = [0] * state.rows
        asked, most, fresh = self._sizes(state)
        if most > 0:
            say = partial(self._numbers, state, asked, most, fresh)
            for row, (wish, length, *rest) in enumerate(self._read(state.stage("say", say))):
                n, read = int(wish), rest[fresh:]
                self._follow(row, int(length), rest[:fresh])
                if not n:
                    continue
                wide = len(read) // (2 * most)
                ids, logq = (
                    [read[at + i * wide : at + (i + 1) * wide] for i in range(n)]
                    for at in (0, most * wide)
                )
                lattice, proxy = Lattice.prune(ids, logq, self.mass, self.ends), self._proxy(row)
                text = last(self.texts[row], proxy.order - 1)
                beams[row] = beam(lattice, proxy, text, self.lam, self.beams)
                self.searched.append((row, lattice, text, beams[row]))
                generated[row] = lattice.generated
        if self.as_tree:
            return self._tree(state, beams, generated)
        return self._chain(state, [row[0].tokens if row else () for row in beams], generated)

    def _read(self, numbers: Tensor) -> list[list[float]]:
        """Numbers on the host, first in a row what it asks for; the dry run replaces them all."""
        return numbers.tolist()

    def _follow(self, row: int, length: int, read: Sequence[float]) -> None:
        """Adds to a row's text on the host what it has grown by; ``read`` are its last tokens."""
        if new := length - len(self.texts[row]):
            self.texts[row].extend(int(x) for x in read[len(read) - new :])

    def _proxy(self, row: int) -> Proxy:
        """The row's proxy, which has read the text up to here."""
        proxy = self.proxies[row]
        read_along(proxy, self.texts[row][self.read_to[row] :])
        self.read_to[row] = len(self.texts[row])
        return proxy

    def _chain(
        self, state: State, paths: Sequence[Sequence[int]], generated: Sequence[int]
    ) -> Draft:
        """Every row's path as a chain, padded with nodes that are never accepted."""
        n, most = max(map(len, paths)), self.length.most
        if state.static and n:  # a graph for every length is more than it saves
            n = most
        padded = [
            [*path, *[0] * (most - len(path)), len(path), count]
            for path, count in zip(paths, generated, strict=True)
        ]
        self.handed.copy_(torch.tensor(padded))
        self.found.copy_(self.handed, non_blocking=True)
        tree = chain(n, self.found.device)  # made before a stage is recorded, which makes none

        def draft() -> Draft:
            tokens, length, count = self.found.split([most, 1, 1], 1)
            self.drafted.copy_(count[:, 0])
            valid = torch.arange(n, device=tokens.device) < length
            return self.candidates(state, tokens[:, :n], valid, tree)

        return state.stage(("draft", n), draft)

    def _tree(
        self, state: State, beams: list[list[LatticePath]], generated: Sequence[int]
    ) -> Draft:
        """Every row's paths as one trie, padded with nodes that are never accepted."""
        tries = [trie([path.tokens for path in row]) for row in beams]
        n = max(len(parents) for parents, _, _ in tries)
        if n == 1:
            return self._chain(state, [()] * state.rows, generated)
        device = state.tokens.device
        self.drafted.copy_(torch.tensor(generated))
        # what pads a row hangs below its root
        above = [[*parents, *[0] * (n - len(parents))] for parents, _, _ in tries]
        levels = [[*depths, *[1] * (n - len(depths))] for _, depths, _ in tries]
        words = [[*tokens, *[0] * (n - len(tokens))] for _, _, tokens in tries]
        length = torch.tensor([len(parents) for parents, _, _ in tries], device=device)
        valid = torch.arange(1, n, device=device) < length[:, None]
        deepest = max(map(max, levels))
        wide = max(max(Counter(parents).values()) for parents in above)
        parent, depth = (torch.tensor(x, device=device) for x in (above, levels))
        tokens = torch.tensor(words, device=device)[:, 1:]
        return self.candidates(state, tokens, valid, GrownTree(parent, depth, deepest, wide))

    def _sample(self, state: State, noise: Noise) -> Draft:
        """``paths`` sequences of as many tokens as each row asks for, from one forward and on the
        device: independent draws, drawn walks, or (one) the greedy walk."""
        asked, most, fresh = self._sizes(state)
        if most <= 0:
            return self._chain(state, [()] * state.rows, [0] * state.rows)
        point = self.scheme(state.sampling) is Scheme.POINT
        tree = sequences(1 if point else self.paths, most, state.tokens.device)
        draw = partial(self._drawn, state, noise, asked, most, fresh, tree)
        return state.stage("sample", draw)

    def _drawn(
        self,
        state: State,
        noise: Noise,
        asked: Tensor | None,
        most: int,
        fresh: int,
        tree: Tree,
    ) -> Draft:
        asked = self._asked(state) if asked is None else asked
        logits, states = self._forward(state, asked, most, fresh)
        scheme, q, row = self.scheme(state.sampling), None, tree.depth
        if scheme is Scheme.POINT:
            ids, scores = self._scored(state, logits, states)
            tokens = ids.gather(2, greedy_walk(scores)[:, :, None])  # [B,k,K]
            self._count(tokens[..., 0], asked)
        else:
            said = self.model.spread(
                logits.index_fill(-1, self.blocks.banned, -torch.inf), self.vocabulary
            )
            u = noise.u(DRAFT)[:, : most * self.paths].view(state.rows, most, self.paths)
            if self.scorer is None:
                self._count(said.argmax(-1), asked)
                q = state.sampling.probabilities(said)
                tokens = torch.stack([inverse_cdf(q, u[..., j]) for j in range(self.paths)], -1)
            else:
                tokens, q = self._walks(state, said, *self._scored(state, logits, states), u)
                self._count(tokens[..., 0], asked)
                row = torch.arange(tree.n, device=tokens.device)
        within = torch.arange(most, device=tokens.device) < asked[:, None]
        valid = within[:, :, None].expand_as(tokens).flatten(1)
        draft = self.candidates(state, tokens.flatten(1), valid, tree)  # by level, path by path
        if q is None:
            return draft
        q_row = torch.where(tree.depth < most, row, -1)
        return Draft(tree, draft.tokens, draft.valid, scheme, q, q_row)

    def _walks(
        self, state: State, said: Tensor, ids: Tensor, scores: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``paths`` drawn walks ``[B,k,K]``, and what they were drawn from ``[B,1+(k-1)K,V]``: the
        root's distribution, and one for every node with a place below it."""
        exact = said if said.dtype == torch.float64 else said.float()
        given = scores, ids, exact.log_softmax(-1), state.sampling
        walks = [sampled_walk(*given, u[..., j]) for j in range(self.paths)]
        q = torch.stack([q for _, q in walks], 2)  # [B,k,K,V]
        q = torch.cat([q[:, 0, :1], q[:, 1:].flatten(1, 2)], 1)
        return torch.stack([tokens for tokens, _ in walks], -1), q

    def _count(self, path: Tensor, asked: Tensor) -> None:
        """Notes how much of a path ``[B,k]`` is drafted, up to an end of text."""
        stop = (path[:, :, None] == self.stops).any(-1)
        first = torch.where(stop.any(-1), stop.int().argmax(-1), path.shape[1])
        self.drafted.copy_(torch.minimum(first, asked))

    def _scored(self, state: State, logits: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates' ids ``[B,most,M]``, and the scores ``[B,most,M,M]`` of each behind each
        candidate of the place before."""
        assert self.scorer is not None
        banned, words = self.blocks.banned, self.model.words
        best = candidates(logits, self.top, self.vocabulary, banned, words)
        ids, logq = best[0].long(), best[1]
        anchor = state.pending[:, 0]
        follows = follows_in(state.tokens[:, : state.horizon], state.length, anchor, ids)
        scores = self.scorer(anchor, ids, logq, rms(states, self.backbone.norm), follows)
        return ids, scores


@lru_cache(maxsize=256)
def sequences(count: int, length: int, device: torch.device | str = "cpu") -> Tree:
    """``count`` chains that share only the root, built once."""
    return Tree.branching(count, *[1] * (length - 1), device=device)


def trie(paths: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Parents, depths and tokens of the trie of some paths, its root first (token 0).

    Siblings are in the order of the paths.
    """
    parents, depths, words = [-1], [0], [0]
    node: dict[tuple[int, ...], int] = {(): 0}
    for path in paths:
        for i in range(1, len(path) + 1):
            at = tuple(path[:i])
            if at not in node:
                node[at] = len(parents)
                parents.append(node[at[:-1]])
                depths.append(i)
                words.append(at[-1])
    return parents, depths, words
