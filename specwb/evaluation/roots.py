"""How far several target-drawn roots move the output of real models (``mcsd_ti:roots=W,lossy=true``, LOSSY), measured against the target itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.drafters.mcsd_ti import SeveralRoots
from specwb.engine import Prompt, PromptError, decode, token_rows
from specwb.evaluation.statistics import mean_and_error
from specwb.methods import method as make_method
from specwb.models.load import check_pair, draft_model
from specwb.models.target import Target
from specwb.noise import DRAFT, Noise, row_seeds
from specwb.options import whole
from specwb.probability import Sampling
from specwb.tree import Tree

DRAWS = 20_000  # sets of roots that a law is averaged over


@dataclass(frozen=True, eq=False)
class RootLaws:
    """What several roots do to the first token after one text, with chains of D drafted tokens below each.

    tokens ``[M]``: the target's likeliest tokens there. p ``[M+1]``: their probabilities, and that of all others together, which have one place here
    and are drawn as if each of them were unlikely; so distances between laws are a little too small. lengths ``[M+1,D+1]``: the law of how many
    tokens are accepted below each; of the others, the mean law of the M.
    """

    tokens: np.ndarray
    p: np.ndarray
    lengths: np.ndarray
    seed: int = 0

    @cached_property
    def mean_length(self) -> np.ndarray:
        """``[M+1]``: accepted tokens below each root, on average."""
        return self.lengths @ np.arange(self.lengths.shape[1])

    def kept(self, roots: int) -> np.ndarray:
        """``[M+1]``: the law of the root that stays of so many drawn without replacement: the one with the most accepted tokens, of equals the first.

        For each of 20,000 ordered draws of roots the chances that each of them stays are summed over all lengths:
        ``P(w stays) = sum_l P(L_w = l) prod_{v<w} P(L_v < l) prod_{v>w} P(L_v <= l)`` (theorem 13.3). One root gives p itself.

        Raises:
            ValueError: more roots than tokens that have any probability.
        """
        most = (self.p[:-1] > 0).sum()
        if whole("roots", roots) > most and not self.p[-1]:
            raise ValueError(f"roots can be at most {most}, so many tokens have any probability; got {roots}")
        made = np.random.default_rng(self.seed)
        with np.errstate(divide="ignore"):  # a race: who comes first was drawn first
            come = made.exponential(size=(DRAWS, len(self.p) - 1)) / self.p[:-1]
            others = made.exponential(size=(DRAWS, roots)).cumsum(1) / self.p[-1]
        drawn = np.argsort(np.concatenate([come, others], 1), 1)[:, :roots].clip(max=len(self.p) - 1)
        law = self.lengths[drawn]
        upto = law.cumsum(-1)
        stays = []
        for w in range(roots):
            stays.append((law[:, w] * (upto - law)[:, :w].prod(1) * upto[:, w + 1 :].prod(1)).sum(-1))
        change = np.stack(stays, 1)
        change[:, 0] -= 1  # against the first root, whose law is p: what is left is all that the draws say
        return self.p + np.bincount(drawn.ravel(), change.ravel(), len(self.p)) / DRAWS

    def tv(self, roots: int) -> float:
        """Total variation between :meth:`kept` and p."""
        return float(np.abs(self.kept(roots) - self.p).sum() / 2)


class _Best(SeveralRoots):
    """Roots that are not drawn: the likeliest."""

    def _children(
        self, logits: Tensor, d: int, sampling: Sampling, u: Tensor | None, used: int, race: Tensor | None, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        if d:
            return super()._children(logits, d, sampling, u, used, race, q)
        q.append(self.ahead[:, None])
        best = self.ahead.topk(self.tree.widths[0], -1).indices[:, None]
        return best, torch.ones_like(best, dtype=torch.bool)


@torch.inference_mode()
def root_laws(
    target: Target, draft: Target | None, prompt: Prompt, *, temperature: float = 1.0, depth: int = 5, candidates: int = 24, drafts: int = 8,
    seed: int = 0,
) -> RootLaws:  # fmt: skip
    """Semi-exact :class:`RootLaws` after a text, from one forward of the target over all roots and what was drafted below them.

    Below each of the ``candidates`` likeliest tokens ``drafts`` chains of ``depth`` tokens are drawn from the draft, nothing else is:
    ``P(L >= j) = E_{x~q} [prod_{i<j} min(1, p(x_i) / q(x_i)) sum_y min(p, q)(y | x_1..x_{j-1})]``, of which the first, P(L >= 1), is exact.

    Args:
        draft: default the target's own.
    Raises:
        ValueError: temperature not > 0, numbers < 1, a text beyond the context, more candidates than tokens, too many nodes for one tree.
    """
    sampling = Sampling(temperature)
    if sampling.greedy:
        raise ValueError("temperature must be > 0: at 0 the first token is the target's choice or it is not")
    (ids,) = token_rows(target, [prompt])
    small = draft_model(target, draft)
    check_pair(target, small)
    if whole("candidates", candidates) > target.vocabulary:
        raise ValueError(f"candidates can be at most {target.vocabulary}, the vocabulary; got {candidates}")
    _fits(target, [ids], whole("depth", depth) + 2)
    tree = Tree.branching(candidates, whole("drafts", drafts), *[1] * (depth - 1), device=target.device)
    drafter = _Best(small, tree, "with")
    state = target.open([ids], [depth + 2], tree.n + 1, sampling, ())
    drafter.open(state, target)
    noise = Noise(row_seeds(seed, 1, target.device), {DRAFT: drafter.uniforms(sampling)}, max_step=1)
    noise.renew(state.known)
    proposed = drafter.propose(state, noise)
    p = target.score(state, proposed).laws(tree)[0]
    assert proposed.q is not None
    assert proposed.q_row is not None
    q = proposed.q[0, proposed.q_row[0].clamp_min(0)]
    above, words = tree.parent[0].clamp_min(0), proposed.tokens[0]
    ratio = (p[above, words].double() / q[above, words].double()).clamp_max(1).masked_fill(tree.depth[0] < 2, 1)  # roots are not tested
    further = torch.where(tree.mask[0], ratio, 1).prod(1) * torch.minimum(p, q).sum(-1, dtype=torch.float64)
    # the token behind a node is summed over, not drawn: the nodes of the last level are there for their parents' q
    beyond = [further[start:stop].view(candidates, -1).mean(1) for start, stop in tree.levels[1:-1]]
    ends = torch.ones_like(beyond[0])
    tail = torch.stack([ends, *beyond, 0 * ends], 1).cpu().numpy()
    chance = p[0].double()[words[1 : candidates + 1]].cpu().numpy()
    law = tail[:, :-1] - tail[:, 1:]
    lengths = np.concatenate([law, np.average(law, 0, chance)[None]])
    return RootLaws(words[1 : candidates + 1].cpu().numpy(), np.append(chance, max(0.0, 1 - chance.sum())), lengths, seed)


@dataclass(frozen=True)
class Drawn:
    """First tokens of ``rows`` decodings with seeds of their own: ``tv`` of their shares from p, and the ``floor``, the mean tv of as many draws from
    p itself."""

    rows: int
    tv: float
    floor: float


def drawn(
    target: Target, draft: Target | None, prompt: Prompt, roots: int, *, temperature: float = 1.0, depth: int = 5, rows: int = 512, seed: int = 0
) -> Drawn:  # fmt: skip
    """The same by the method itself, sampled: the first token of many decodings of one text against p. It needs many rows: see ``floor``.

    Raises:
        ValueError: temperature not > 0, numbers < 1, a text beyond the context.
    """
    sampling = Sampling(temperature)
    if sampling.greedy:
        raise ValueError("temperature must be > 0: at 0 all rows say the same")
    (ids,) = token_rows(target, [prompt])
    made = make_method("mcsd_ti", target, **_options(draft, roots, depth))
    out = decode(target, [ids] * whole("rows", rows), made, temperature=temperature, max_new_tokens=1, seed=seed, eos=())
    counts = np.bincount([text[0] for text in out.tokens], minlength=target.vocabulary)
    with torch.inference_mode():
        law = sampling.probabilities(target.model(torch.tensor([ids], device=target.device)).logits[0, -1]).double().cpu().numpy()
    law = law / law.sum()
    fair = np.random.default_rng(seed).multinomial(rows, law, size=100)
    return Drawn(rows, float(np.abs(counts / rows - law).sum() / 2), float(np.abs(fair / rows - law).sum(1).mean() / 2))


@dataclass(frozen=True)
class Moved:
    """What ``roots`` roots wrote.

    tokens: in all. mean_tokens_per_round: tau. other: share of tokens that are not the target's first choice after their own text; with one root at
    T = 0 it is 0. log_p: mean over texts of the mean ``log p(token)`` in nats, at T = 1 where decoding was greedy; error: its standard error.
    tv: total variation between the law of the first token and p, mean over texts (:func:`root_laws`); None at T = 0.
    """

    roots: int
    temperature: float
    tokens: int
    mean_tokens_per_round: float
    other: float
    log_p: float
    error: float
    tv: float | None


def moved(
    target: Target, draft: Target | None, prompts: Sequence[Prompt], roots: Sequence[int] = (1, 2, 3, 4), temperature: float = 0.0, *,
    depth: int = 5, max_new_tokens: int = 32, candidates: int = 24, drafts: int = 8, seed: int = 0,
) -> Iterator[Moved]:  # fmt: skip
    """How far so many roots move the output, one entry of ``roots`` at a time (stop when you like): every text is decoded with chains of ``depth``
    drafted tokens below each root, and judged by the target's own forward over it.

    Args:
        draft: default the target's own. candidates, drafts: of :func:`root_laws`, at T > 0.
    Raises:
        ValueError: no prompt, no number of roots, numbers < 1, a text beyond the context; before anything is decoded.
    """
    sampling = Sampling(temperature)
    rows = token_rows(target, prompts)
    _fits(target, rows, max(whole("max_new_tokens", max_new_tokens), whole("depth", depth) + 2))
    if not roots:
        raise ValueError("roots must name at least one number of roots")
    made = {n: make_method("mcsd_ti", target, **_options(draft, n, depth)) for n in roots}
    laws: list[RootLaws] = []

    def each() -> Iterator[Moved]:
        if not sampling.greedy:
            settings: dict[str, Any] = {"temperature": temperature, "depth": depth, "candidates": candidates, "drafts": drafts}
            laws.extend(root_laws(target, draft, row, **settings, seed=seed + i) for i, row in enumerate(rows))
        for n, method in made.items():
            out = decode(target, rows, method, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed, eos=())
            best, logp = zip(*(_judged(target, row, text, sampling) for row, text in zip(rows, out.tokens, strict=True)), strict=True)
            log_p, error = mean_and_error([float(x.mean()) for x in logp])
            tv = float(np.mean([law.tv(n) for law in laws])) if laws else None
            other = 1 - float(torch.cat(best).double().mean())
            yield Moved(n, float(temperature), sum(map(len, out.tokens)), out.mean_tokens_per_round, other, log_p, error, tv)

    return each()


def _options(draft: Target | None, roots: int, depth: int) -> dict[str, Any]:
    return {"draft": draft, "roots": roots, "lossy": True, "stop": "none", "tree": (1,) * whole("depth", depth)}


def _fits(target: Target, rows: Sequence[Sequence[int]], more: int) -> None:
    for i, row in enumerate(rows):
        if len(row) + more > target.context:
            raise PromptError(f"prompt {i} has {len(row)} tokens; with {more} more it exceeds the context of {target.name!r} ({target.context})")


@torch.inference_mode()
def _judged(target: Target, prompt: list[int], text: list[int], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Of every token written: is it the target's first choice after the text before it, and its ``log p``."""
    whole_text = torch.tensor([prompt + text], device=target.device)
    logits = target.model(whole_text, use_cache=False).logits[0, len(prompt) - 1 : -1]
    tokens = whole_text[0, len(prompt) :]
    p = sampling.for_confidence.probabilities(logits).double()
    return (logits.argmax(-1) == tokens).cpu(), p.gather(1, tokens[:, None])[:, 0].log().cpu()
