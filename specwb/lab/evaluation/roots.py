"""How far several target-drawn roots move the output of real models, against the target itself.

The method is ``mcsd_ti:roots=W,lossy=true``, which is LOSSY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.noise import DRAFT, Noise, row_seeds
from specwb.core.probability import COLDEST, Sampling
from specwb.core.tree import Tree
from specwb.drafters.level import Drafted
from specwb.drafters.mcsd_ti import SeveralRoots
from specwb.engine.decoding import decode
from specwb.lab.bench.statistics import mean_and_error
from specwb.models.load import check_pair, draft_model
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.target import Target

DRAWS = 20_000
"""Sets of roots that a distribution is averaged over."""


@dataclass(frozen=True, eq=False)
class RootDistributions:
    """What several roots do to the first token after one text.

    Below each root there is a chain of D draft tokens. All tokens but the M likeliest have one
    entry together here, the last one, and are drawn as if each of them were unlikely; so distances
    between distributions are a little too small.
    """

    tokens: np.ndarray  # ``[M]``, the target's likeliest tokens after the text
    p: np.ndarray  # ``[M+1]``, their probabilities, and that of all others together
    # ``[M+1,D+1]``, the distribution of how many tokens are accepted below each; for the others,
    # the mean distribution of the M
    lengths: np.ndarray
    seed: int = 0  # of the draws of roots

    def kept_root(self, roots: int) -> np.ndarray:
        """Compute the distribution of the root that stays, of several drawn without replacement.

        The root stays that has the most accepted tokens, of equals the first. For each of 20,000
        ordered draws of roots the probabilities that each of them stays are summed over all
        lengths:
        ``P(w stays) = sum_l P(L_w = l) prod_{v<w} P(L_v < l) prod_{v>w} P(L_v <= l)``
        (theorem 13.3). One root gives p itself.

        Returns:
            ``[M+1]``.
        Raises:
            ArgumentError: there are more roots than tokens that have any probability.
        """
        possible = (self.p[:-1] > 0).sum()
        if roots > possible and not self.p[-1]:
            raise ArgumentError(f"roots can be at most {possible}, got {roots}")
        roots_drawn = self._draw(roots)
        equal = self.lengths[roots_drawn]  # [DRAWS, roots, D+1]: P(L = l)
        at_most = equal.cumsum(-1)
        below = at_most - equal
        stays = []
        for w in range(roots):
            before, after = below[:, :w].prod(1), at_most[:, w + 1 :].prod(1)
            stays.append((equal[:, w] * before * after).sum(-1))
        change = np.stack(stays, 1)
        # The first root's distribution is p. What is left after subtracting it is all that the
        # draws contribute.
        change[:, 0] -= 1
        return self.p + np.bincount(roots_drawn.ravel(), change.ravel(), len(self.p)) / DRAWS

    def _draw(self, roots: int) -> np.ndarray:
        """Draw roots without replacement; ``[DRAWS, roots]`` indices in order of drawing.

        It is an exponential race: the token that comes first was drawn first.
        """
        rng = np.random.default_rng(self.seed)
        with np.errstate(divide="ignore"):
            arrivals = rng.exponential(size=(DRAWS, len(self.p) - 1)) / self.p[:-1]
            others = rng.exponential(size=(DRAWS, roots)).cumsum(1) / self.p[-1]
        order = np.argsort(np.concatenate([arrivals, others], 1), 1)
        return order[:, :roots].clip(max=len(self.p) - 1)

    def tv(self, roots: int) -> float:
        """Compute the total variation between :meth:`kept_root` and p."""
        return float(np.abs(self.kept_root(roots) - self.p).sum() / 2)


class _BestRoots(SeveralRoots):
    """Roots that are not drawn: the likeliest tokens."""

    def _children(
        self, logits: Tensor, d: int, sampling: Sampling, drafted: Drafted, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        if d:
            return super()._children(logits, d, sampling, drafted, q)
        q.append(self.next_distribution[:, None])
        best = self.next_distribution.topk(self.tree.widths[0], -1).indices[:, None]
        return best, torch.ones_like(best, dtype=torch.bool)


@torch.inference_mode()
def root_distributions(
    target: Target,
    draft: Target | None,
    prompt: Prompt,
    *,
    temperature: float = 1.0,
    depth: int = 5,
    candidates: int = 24,
    drafts: int = 8,
    seed: int = 0,
) -> RootDistributions:
    """Compute :class:`RootDistributions` after a text, semi-exactly.

    It takes one forward of the target over all roots and the draft tokens below them. Below each of
    the ``candidates`` likeliest tokens ``drafts`` chains of ``depth`` tokens are drawn from the
    draft model; nothing else is drawn:
    ``P(L >= j) = E_{x~q} [prod_{i<j} min(1, p(x_i) / q(x_i)) sum_y min(p, q)(y | x_1..x_{j-1})]``,
    of which the first, P(L >= 1), is exact.

    Args:
        target: the target model.
        draft: the draft model, default the target's own.
        prompt: the text.
        temperature: at least 1e-4; below it decoding is greedy.
        depth: D, the draft tokens below a root.
        candidates: M, how many roots are looked at.
        drafts: chains below each root.
        seed: of the draws.
    Raises:
        ValueError: the temperature is below 1e-4, the text does not fit the context, there are more
            candidates than tokens, or too many nodes for one tree.
    """
    sampling = Sampling(temperature)
    if sampling.greedy or candidates > target.vocabulary:
        raise ArgumentError(
            f"temperature must be >= {COLDEST:g} and candidates at most {target.vocabulary}, the "
            "vocabulary; "
            f"got {temperature:g} and {candidates}"
        )
    (ids,) = token_rows(target, [prompt])
    draft = draft_model(target, draft)
    check_pair(target, draft)
    check_room([ids], depth + 2, target.name, target.context)
    widths = (candidates, drafts, *[1] * (depth - 1))
    tree = Tree.branching(*widths, device=target.device)
    drafter = _BestRoots(draft, tree, "with")
    state = target.open([ids], [depth + 2], tree.n + 1, sampling, ())
    drafter.open(state, target)
    streams = {DRAFT: drafter.uniforms(sampling)}
    noise = Noise(row_seeds(seed, 1, target.device), streams, max_step=1)
    noise.renew(state.length)
    proposal = drafter.propose(state, noise)
    p = target.score(state, proposal).probabilities(tree)[0]
    assert proposal.q is not None
    assert proposal.q_row is not None
    q = proposal.q[0, proposal.q_row[0].clamp_min(0)]

    parent, words = tree.parent[0].clamp_min(0), proposal.tokens[0]
    ratio = p[parent, words].double() / q[parent, words].double()
    ratio = ratio.clamp_max(1).masked_fill(tree.depth[0] < 2, 1)  # roots are not tested
    reach = torch.where(tree.mask[0], ratio, 1).prod(1)
    # The token behind a node is summed over, not drawn. The nodes of the last level are there for
    # their parents' q.
    longer = reach * torch.minimum(p, q).sum(-1, dtype=torch.float64)
    at_least = [
        longer[start:stop].view(candidates, -1).mean(1) for start, stop in tree.levels[1:-1]
    ]
    ones = torch.ones_like(at_least[0])
    tail = torch.stack([ones, *at_least, 0 * ones], 1).cpu().numpy()  # P(L >= j), j = 0..D+1

    roots = words[1 : candidates + 1]
    chances = p[0].double()[roots].cpu().numpy()
    lengths = tail[:, :-1] - tail[:, 1:]
    mean_lengths = np.average(lengths, 0, chances)[None]
    return RootDistributions(
        tokens=roots.cpu().numpy(),
        p=np.append(chances, max(0.0, 1 - chances.sum())),
        lengths=np.concatenate([lengths, mean_lengths]),
        seed=seed,
    )


@dataclass(frozen=True)
class OutputShift:
    """The texts that a method with several roots writes, judged by the target."""

    roots: int
    mean_tokens_per_round: float  # tau
    # share of tokens that are not the target's first choice after their own text; with one root at
    # T = 0 it is 0
    other: float
    # mean over texts of the mean ``log p(token)`` in nats, at T = 1 where decoding was greedy
    log_p: float
    error: float  # its standard error
    # total variation between the distribution of the first token and p, mean over texts
    # (:func:`root_distributions`); None at T = 0
    tv: float | None


def output_shifts(
    target: Target,
    draft: Target | None,
    prompts: Sequence[Prompt],
    roots: Sequence[int] = (1, 2, 3, 4),
    temperature: float = 0.0,
    *,
    depth: int = 5,
    max_new_tokens: int = 32,
    seed: int = 0,
) -> Iterator[OutputShift]:
    """Measure how far several roots move the output, one entry of ``roots`` at a time.

    Every text is decoded with chains of ``depth`` draft tokens below each root, and judged by the
    target's own forward over it. The caller may stop after any entry.

    Args:
        target: the target model.
        draft: the draft model, default the target's own.
        prompts: texts or lists of token ids.
        roots: numbers of roots.
        temperature: 0 is greedy.
        depth: draft tokens below a root.
        max_new_tokens: for every prompt.
        seed: of the sampling.
    Raises:
        ValueError: there is no prompt, or a text does not fit the context.
    """
    sampling = Sampling(temperature)
    rows = token_rows(target, prompts)
    check_room(rows, max(max_new_tokens, depth + 2), target.name, target.context)
    below: dict[str, Any] = {"temperature": sampling.temperature, "depth": depth}
    first_token = [
        root_distributions(target, draft, row, seed=seed + i, **below)
        for i, row in enumerate(() if sampling.greedy else rows)
    ]
    for n in roots:
        out = decode(
            target,
            rows,
            "mcsd_ti",
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            eos=(),
            draft=draft,
            roots=n,
            lossy=True,
            stop="none",
            tree=(1,) * depth,
        )
        first_choice, log_ps = zip(
            *(
                _judgement(target, row, text, sampling)
                for row, text in zip(rows, out.tokens, strict=True)
            ),
            strict=True,
        )
        log_p, error = mean_and_error([float(x.mean()) for x in log_ps])
        yield OutputShift(
            roots=n,
            mean_tokens_per_round=out.mean_tokens_per_step,
            other=1 - float(torch.cat(first_choice).double().mean()),
            log_p=log_p,
            error=error,
            tv=float(np.mean([one.tv(n) for one in first_token])) if first_token else None,
        )


@torch.inference_mode()
def _judgement(
    target: Target, prompt: list[int], text: list[int], sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Whether each written token is the target's first choice after its text, and its ``log p``."""
    ids = torch.tensor([prompt + text], device=target.device)
    logits = target.model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    tokens = ids[0, len(prompt) :]
    p = sampling.for_confidence.probabilities(logits).double()
    return (logits.argmax(-1) == tokens).cpu(), p.gather(1, tokens[:, None])[:, 0].log().cpu()
