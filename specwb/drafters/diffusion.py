"""DiffuSpec: a diffusion language model drafts all places at once, a search makes a path of them,
and the draft length follows the text."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from specwb.drafters.base import Drafter, chain
from specwb.drafters.length import Length
from specwb.flow import Draft, Scheme, State
from specwb.lattice import Lattice, Path, beam, candidates
from specwb.models.diffusion import DiffusionModel
from specwb.models.masked import Blocks
from specwb.models.target import Target, prefill
from specwb.noise import DRAFT, Noise
from specwb.probability import Sampling, inverse_cdf
from specwb.proxy import Proxy, last, read_along
from specwb.tree import GrownTree, Tree

DRAWS = ("search", "sample")


class DiffusionDrafter(Drafter):
    """``k`` tokens from one forward of a diffusion model, whatever k is, and then a search through
    them or a draw.

    ``draw="search"``: of every place the ``top`` best tokens are pruned to the fewest that hold
    ``mass``, and a beam of width ``beams`` looks for the path that model and proxy like
    (:mod:`specwb.lattice`). The candidates are a function of the text: point masses, by whose rule
    the path is verified, at every temperature; with ``as_tree`` all the beam's paths are, as one
    tree. lam = 1 and beams = 1 give the argmax row.

    ``draw="sample"``: one token a place, drawn from the model's distribution there, independently.
    Given the text, what one forward predicts for a place does not depend on the tokens drawn at
    others, so that distribution is the q of the ratio rule; ``paths`` such sequences are K
    independent paths. At T = 0 it is the argmax row.

    The length of every row follows a :class:`~specwb.drafters.length.Length`. With ``chunk``, so
    many tokens come from a forward: a row goes on behind them while the length allows and it is
    sure of each (``confidence``); the draft tokens are then text to the next forward.

    A context that is too short for prefix and masks shrinks k, and ends in plain steps. There is
    one transfer to the host a forward, of the lattice, and one of lengths.

    Args:
        model: the diffusion model.
        length: how many tokens a row drafts.
        proxy: makes a row's proxy.
        ends: tokens that end a text.
        steps: steps of denoising.
        top: candidates of a place before they are pruned.
        mass: probability that the remaining candidates of a place hold.
        beams: width of the search.
        lam: the drafter's weight against the proxy's.
        draw: search or sample.
        paths: sequences that are drawn, with ``draw="sample"``.
        as_tree: all the beam's paths are verified, as one tree.
        chunk: so many tokens a forward; 0: all of them.
        refresh: of a model that sees both ways, whole forwards only every so many steps.

    Attributes:
        spent: seconds that all decodings of this description searched (``search``) and drafted in
            all (``draft``).

    Source: Li et al. 2025, arXiv 2510.02358 (algorithm 1); the confidence-driven chunks after
    FailFast (2512.20573), K sequences after SpecDiff-2 (2511.00606). Differs from the paper in: at
    T > 0 its ratio test of a searched path is not lossless (theory 11), here it is a point mass;
    see also :mod:`specwb.lattice` and :class:`~specwb.drafters.length.Adaptive`.
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
        chunk: int = 0,
        refresh: int = 1,
    ) -> None:
        self.model, self.length, self.proxy, self.ends = model, length, proxy, frozenset(ends)
        self.steps, self.top, self.mass, self.beams, self.lam = steps, top, mass, beams, lam
        self.draw, self.paths, self.as_tree = draw, paths, as_tree
        self.chunk, self.refresh = chunk, refresh
        most = length.most
        wide = beams if as_tree and draw == "search" else paths
        self.tree = sequences(wide, most)
        # lengths of the texts and of the drafts (which live on the host, and are converted like the
        # others), and every lattice; sure of it or not
        self.host_reads = 2 + (2 * -(-most // chunk) if chunk else 1)
        self.spent = {"search": 0.0, "draft": 0.0}
        # of the last step: row, lattice, text before it, paths found
        self.searched: list[tuple[int, Lattice, tuple[int, ...], list[Path]]] = []

    def scheme(self, sampling: Sampling) -> Scheme:
        if sampling.greedy or self.draw == "search":
            return Scheme.POINT
        return Scheme.IID_PATHS if self.paths > 1 else Scheme.IID

    def uniforms(self, sampling: Sampling) -> int:
        return 0 if self.scheme(sampling) is Scheme.POINT else self.length.most * self.paths

    def open(self, state: State, target: Target) -> None:
        self.vocabulary = target.vocabulary
        self.blocks = Blocks(
            self.model, state.rows, state.capacity, self.refresh, target.vocabulary
        )
        self.backbone, self.cache = self.blocks.backbone, self.blocks.cache
        if self.model.causal:
            prefill(self.backbone, state, self.cache)
        self.fed = state.length - 1 if self.model.causal else torch.zeros_like(state.length)
        self.length = copy.copy(self.length)
        self.length.open(state.rows, "cpu")
        lengths = state.length.tolist()
        rows = state.tokens[:, : state.horizon].tolist()
        self.texts = [row[:n] for row, n in zip(rows, lengths, strict=True)]
        self.proxies = [self.proxy() for _ in lengths]
        self.read_to = [0] * len(lengths)  # what a proxy that reads along has read
        self.index, self.lengths = 0, lengths
        self.drafted: list[int] | None = None  # by the last step, of every row
        self.stops = torch.tensor(sorted(self.ends), dtype=torch.long, device=state.tokens.device)

    def propose(self, state: State, noise: Noise) -> Draft:
        began = time.perf_counter()
        lengths, done = [state.horizon], [0]
        if state.rows > 1:
            lengths, done = torch.stack([state.length, state.done.long()]).tolist()
        if self.drafted is not None:
            accepted = [
                max(n - before - 1, 0) for n, before in zip(lengths, self.lengths, strict=True)
            ]
            self.length.observe(torch.tensor(self.drafted), torch.tensor(accepted))
        room = [self.model.context - n for n in lengths]
        fits = [r + self.model.spared if r >= 0 else 0 for r in room]
        wished = zip(self.length.tokens.tolist(), fits, done, strict=True)
        k = [0 if over else min(wish, most) for wish, most, over in wished]
        self.lengths = lengths
        if self.scheme(state.sampling) is Scheme.POINT:
            draft = self._search(state, k)
        else:
            draft = self._sample(state, noise, k)
        self.index += 1
        self.spent["draft"] += time.perf_counter() - began
        return draft

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        """A step's tokens are met as text in the next; until then its masks lie in their slots."""
        return before

    def _forward(
        self, state: State, tokens: Tensor, drafted: int, k: list[int], most: int
    ) -> Tensor:
        """What the model predicts behind the text.

        Args:
            state: of the decoding.
            tokens: ``[B,capacity]`` the texts, and behind them ``drafted`` draft tokens.
            drafted: how many of them there are.
            k: how many places each row asks for.
            most: the largest of these.

        Returns:
            ``[B,most,V]`` logits.
        """
        if drafted:
            fresh, fed = self.chunk, state.length + (drafted - self.chunk)
        else:
            new = [n - len(text) for n, text in zip(self.lengths, self.texts, strict=True)]
            fresh, fed = max(*new, 1), self.fed
        anew = self.index % self.refresh == 0
        count = torch.tensor(k, device=tokens.device)
        place = (state.length + drafted, max(self.lengths) + drafted)
        logits = self.blocks.say(tokens, *place, fed, fresh, count, most, self.steps, anew)
        if not drafted:
            self.fed = state.length.clone()
        return logits

    def _read(self, state: State, numbers: Tensor) -> list[list[float]]:
        """``numbers [B,n]`` on the host, and in the same transfer the tokens that are new to it."""
        new = max(n - len(text) for n, text in zip(self.lengths, self.texts, strict=True))
        if new <= 0:
            return numbers.tolist()
        place = state.length[:, None] + torch.arange(-new, 0, device=state.length.device)
        tokens = state.tokens.gather(1, place.clamp_min(0)).to(numbers.dtype)
        read = torch.cat([numbers, tokens], 1).tolist()
        for text, n, row in zip(self.texts, self.lengths, read, strict=True):
            if n > len(text):
                text.extend(int(x) for x in row[len(row) - (n - len(text)) :])
        return [row[: numbers.shape[1]] for row in read]

    def _search(self, state: State, k: list[int]) -> Draft:
        """The paths that the beam finds, of up to ``k`` tokens in each row."""
        rows, tokens, drafted = state.rows, state.tokens, 0
        self.searched = []
        beams: list[list[Path]] = [[] for _ in k]
        paths: list[tuple[int, ...]] = [() for _ in k]
        generated, left = [0] * rows, list(k)
        while (most := min(self.chunk, max(left)) if self.chunk else max(left)) > 0:
            now = [min(n, most) for n in left]
            logits = self._forward(state, tokens, drafted, now, most)
            best = candidates(logits, self.top, self.vocabulary, self.blocks.banned)
            numbers = self._read(state, best.transpose(0, 1).flatten(1))
            began, wide = time.perf_counter(), best.shape[-1]
            sure = torch.ones(rows)
            for row, n in enumerate(now):
                if not n:
                    continue
                flat = numbers[row]
                ids, logq = (
                    [flat[at + i * wide : at + (i + 1) * wide] for i in range(n)]
                    for at in (0, most * wide)
                )
                lattice, proxy = Lattice.prune(ids, logq, self.mass, self.ends), self._proxy(row)
                text = (*last(self.texts[row], proxy.order - 1), *paths[row])
                beams[row] = beam(lattice, proxy, text, self.lam, self.beams)
                self.searched.append((row, lattice, text, beams[row]))
                path = beams[row][0]
                paths[row] += path.tokens
                generated[row] += lattice.generated
                sure[row] = min(path.logq)
                left[row] = 0 if path.ends_text else left[row] - n
            self.spent["search"] += time.perf_counter() - began
            drafted += most
            if not self.chunk:
                break
            go = self.length.onward(drafted, sure.exp()).tolist()
            left = [n if on else 0 for n, on in zip(left, go, strict=True)]
            if max(left) > 0:
                padded = [[*path, *[0] * drafted][:drafted] for path in paths]
                place = state.length[:, None] + torch.arange(drafted, device=tokens.device)
                tokens = tokens.scatter(1, place, torch.tensor(padded, device=tokens.device))
        self.drafted = generated
        return self._tree(state, beams) if self.as_tree else self._chain(state, paths)

    def _proxy(self, row: int) -> Proxy:
        """The row's proxy, which has read the text up to here."""
        proxy = self.proxies[row]
        read_along(proxy, self.texts[row][self.read_to[row] :])
        self.read_to[row] = len(self.texts[row])
        return proxy

    def _chain(self, state: State, paths: Sequence[Sequence[int]]) -> Draft:
        """Every row's path as a chain, padded with nodes that are never accepted."""
        n, device = max(map(len, paths)), state.tokens.device
        padded = [[*path, *[0] * (n - len(path))] for path in paths]
        tokens = torch.tensor(padded, dtype=torch.long, device=device).view(len(paths), n)
        length = torch.tensor([len(path) for path in paths], device=device)
        valid = torch.arange(n, device=device) < length[:, None]
        return self.candidates(state, tokens, valid, chain(n, device))

    def _tree(self, state: State, beams: list[list[Path]]) -> Draft:
        """Every row's paths as one trie, padded with nodes that are never accepted."""
        tries = [trie([path.tokens for path in row]) for row in beams]
        n = max(len(parents) for parents, _, _ in tries)
        if n == 1:
            return self._chain(state, [()] * state.rows)
        device = state.tokens.device
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

    def _sample(self, state: State, noise: Noise, k: list[int]) -> Draft:
        """``paths`` sequences of up to ``k`` tokens in each row, drawn from one forward."""
        most = max(k)
        if most <= 0:
            self.drafted = [0] * state.rows
            return self._chain(state, [()] * state.rows)
        logits = self._forward(state, state.tokens, 0, k, most)
        logits = logits.index_fill(-1, self.blocks.banned, -torch.inf)[..., : self.vocabulary]
        logits = F.pad(logits, (0, self.vocabulary - logits.shape[-1]), value=-torch.inf)
        stop = torch.isin(logits.argmax(-1), self.stops)
        first = torch.where(stop.any(-1), stop.int().argmax(-1), most)
        ends = self._read(state, first[:, None].double())
        self.drafted = [min(int(row[0]), n) for row, n in zip(ends, k, strict=True)]
        q = state.sampling.probabilities(logits)
        u = noise.u(DRAFT)[:, : most * self.paths].view(state.rows, most, self.paths)
        # [B,k,K]: by level, path by path
        tokens = torch.stack([inverse_cdf(q, u[..., j]) for j in range(self.paths)], -1)
        count = torch.tensor(k, device=q.device)
        within = torch.arange(most, device=q.device) < count[:, None]
        valid = within[:, :, None].expand(-1, -1, self.paths).flatten(1)
        tree = sequences(self.paths, most, q.device)
        draft = self.candidates(state, tokens.flatten(1), valid, tree)
        q_row = torch.where(tree.depth < most, tree.depth, -1)
        return Draft(tree, draft.tokens, draft.valid, self.scheme(state.sampling), q, q_row)


@lru_cache(maxsize=256)
def sequences(count: int, length: int, device: torch.device | str = "cpu") -> Tree:
    """So many chains that part at the root, made once."""
    return Tree.branching(count, *[1] * (length - 1), device=device)


def trie(paths: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Parents, depths and tokens of the trie of some paths, its root first (token 0).

    Of siblings the one of the earlier path comes first.
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
