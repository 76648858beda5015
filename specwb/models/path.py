"""Learned scores of neighbouring candidates in a diffusion drafter's lattice, and walks through it.

A diffusion model predicts each place of a block by itself (theorem 11.1). A *path scorer* adds what
the places do not know of each other: to candidate b of place i, behind candidate a of place i - 1,

    S_i(a, b) = w_i log q_i(b) + u(b) + < A_{i-1}(a), B_i(b) > + v_i f(a, b)

with vectors of ``rank`` numbers for both candidates, and f(a, b) the share of a's occurrences in
the text so far that b follows. Place 0 is the anchor, the text's last token. A and B are
projections of the tokens' embeddings; A is multiplied by a function of the diffusion model's state
at place i, so that the text decides which dimensions of a transition count (the bilinear selector
of DFlash 2).

A *walk* goes from place to place by the scores of the candidates behind the one chosen before. The
greedy walk takes the best. The sampled walk draws from all tokens: with the scores as logits for
the candidates, and the diffusion model's own log-probabilities for all others. Behind a token that
was no candidate all logits are the model's own. After temperature and filters this is the q of the
drawn token, so the ordinary rules are exact for it (theorem 11.8).

Source: DFlash 2's selector is known from a description in a public thread (llama.cpp #27342).
Chosen here: f, which does what the search's n-grams of the text do; tokens outside the candidates,
which its walk never draws; embeddings are the target's, frozen and divided by their root mean
square; the gate is ``1 + H h``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specwb.core.flow import taken
from specwb.core.probability import Sampling, inverse_cdf
from specwb.models.checkpoint import HeadError, check_origin, fill, opened, write
from specwb.models.target import Target

KIND = "pair"  # as config.json, folders and the option score= name it
SIZES = ("hidden", "places", "top", "rank")
FLOOR = -20.0  # log q of a candidate that may not be drafted, as a scorer reads it


class PathScorer(nn.Module):
    """The scores of all neighbouring candidates of a lattice; the module has the formula.

    The embeddings are ``target``'s, and no part of the module. ``hidden``: size of the diffusion
    model's states; ``places``: k, the longest block; ``top``: M, the most candidates of a place.
    """

    table: Any

    def __init__(
        self,
        target: Target,
        hidden: int,
        places: int,
        top: int,
        rank: int = 64,
    ) -> None:
        super().__init__()
        self.hidden, self.places, self.top, self.rank = hidden, places, top, rank
        self.card: dict[str, Any] = {}
        table = target.backbone.embed
        object.__setattr__(self, "table", table)  # not trained, moved or stored
        self.scale = 1 / float(table.weight.detach().float().square().mean().sqrt())
        size = table.weight.shape[1]
        self.weight = nn.Parameter(torch.ones(places))
        self.copies = nn.Parameter(torch.zeros(places))
        self.gate = nn.Linear(hidden, rank, bias=False)
        self.before, self.after = nn.Linear(size, rank, bias=False), nn.Linear(size, rank)
        self.own = nn.Linear(size, 1, bias=False)

    def forward(
        self, anchor: Tensor, ids: Tensor, logq: Tensor, states: Tensor, follows: Tensor
    ) -> Tensor:
        """The scores ``[B, k, M, M]`` of candidate b (last) behind candidate a of the place before.

        Args:
            anchor: ``[B]``, the tokens before the block. Behind them all a are the same.
            ids: ``[B, k, M]``, the candidates.
            logq: ``[B, k, M]``, their log-probabilities; -inf may not be drafted, nor walked to.
            states: ``[B, k, H]``, the diffusion model's, which its output layer reads.
            follows: ``[B, k, M, M]``, :func:`follows_in` of the text.
        """
        dtype = self.weight.dtype
        rows, k, m = ids.shape
        known = logq.clamp_min(FLOOR).to(dtype)
        states = states.to(dtype)
        # the anchor stands in every column of place 0
        tokens = torch.cat([anchor[:, None, None].expand(rows, 1, m), ids], 1)
        x = self.table(tokens).detach().to(dtype) * self.scale
        gate = 1 + self.gate(nn.functional.rms_norm(states, states.shape[-1:]))
        a, b = self.before(x[:, :-1]) * gate[:, :, None], self.after(x[:, 1:])
        unary = self.weight[:k, None] * known + self.own(x[:, 1:])[..., 0]
        scores = a @ b.transpose(-1, -2) + unary[:, :, None]
        scores = scores + self.copies[:k, None, None] * follows.to(dtype)
        return scores.masked_fill((logq == -torch.inf)[:, :, None], -torch.inf)

    def save(self, folder: Path, card: dict[str, Any] | None = None) -> None:
        """Writes ``config.json``, fp16 ``model.safetensors`` and ``card.json``."""
        config = {"kind": KIND, **{name: getattr(self, name) for name in SIZES}}
        write(folder, {"specwb_path": config}, self.state_dict(), "model", card)


def load_path(source: str | Path, target: Target, diffusion: Any = None) -> PathScorer:
    """Loads a path scorer from the folder that :meth:`PathScorer.save` wrote; ``diffusion``: the
    model whose lattices it is to score, None for any."""
    with opened(source, target) as stored:
        config = stored.config.get("specwb_path")
        if not isinstance(config, dict) or config.get("kind") != KIND:
            raise HeadError(f"this is no path scorer; its config.json has no specwb_path of {KIND}")
        for name in SIZES:
            if type(config.get(name)) is not int or config[name] < 1:
                raise HeadError(f"{name} in config.json must be a whole number above 0")
        if diffusion is not None:
            check_origin(stored.card, "diffusion", "this one", diffusion.card.get("sha256"))
            hidden = diffusion.net.config.hidden_size
            if config["hidden"] != hidden:
                its = f"states of {config['hidden']} numbers, the diffusion model's have {hidden}"
                raise HeadError(f"reads {its}")
        scorer = PathScorer(target, **{name: config[name] for name in SIZES})
        fill(scorer, stored.weights, target)
        scorer.card = stored.card
        # as exact as the target where that is more exact than float32, never less
        dtype = torch.promote_types(target.dtype, torch.float32)
        return scorer.to(target.device, dtype).requires_grad_(False).eval()


def follows_in(text: Tensor, length: Tensor, anchor: Tensor, ids: Tensor) -> Tensor:
    """``[B, k, M, M]``: of the occurrences of candidate a of the place before in a text, the share
    that candidate b follows; 0 where there are none. Of ``text [B, T]`` the first ``length [B]``
    tokens count; ``anchor, ids`` as of :class:`PathScorer`."""
    before = torch.cat([anchor[:, None, None].expand(-1, 1, ids.shape[2]), ids[:, :-1]], 1)
    counts = torch.arange(1, text.shape[1], device=text.device) < length[:, None]
    is_a = (before[..., None] == text[:, None, None, :-1]) & counts[:, None, None]
    is_b = ids[..., None] == text[:, None, None, 1:]
    both = is_a.float() @ is_b.float().transpose(-1, -2)
    return both / is_a.sum(-1, keepdim=True).clamp_min(1)


def greedy_walk(scores: Tensor) -> Tensor:
    """The ranks ``[B, k]`` of the walk that always takes the best candidate, of equals the first,
    by the scores ``[B, k, M, M]`` of :class:`PathScorer`."""
    ranks: list[Tensor] = []
    row = scores[:, 0, 0]
    for i in range(scores.shape[1]):
        if i:
            row = _behind(scores[:, i], ranks[-1])
        ranks.append(row.argmax(-1))
    return torch.stack(ranks, 1)


def sampled_walk(
    scores: Tensor, ids: Tensor, logq: Tensor, sampling: Sampling, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Draws a walk, and returns its tokens ``[B, k]`` and the distributions from which they were
    drawn, each given the tokens before, ``[B, k, V]``.

    ``ids [B, k, M]`` are the candidates, ``logq [B, k, V]`` the diffusion model's log-probabilities
    of all tokens, ``u [B, k]`` uniforms."""
    tokens: list[Tensor] = []
    drawn_from = []
    for i in range(scores.shape[1]):
        row, own = scores[:, i, 0], logq[:, i]
        if i:
            is_before = ids[:, i - 1] == tokens[-1][:, None]
            row = _behind(scores[:, i], is_before.int().argmax(-1))
            row = torch.where(is_before.any(-1, keepdim=True), row, own.gather(1, ids[:, i]))
        q = sampling.probabilities(own.scatter(1, ids[:, i], row.to(own.dtype)))
        drawn_from.append(q)
        tokens.append(inverse_cdf(q, u[:, i]))
    return torch.stack(tokens, 1), torch.stack(drawn_from, 1)


def _behind(scores: Tensor, ranks: Tensor) -> Tensor:
    """The rows ``[B, M]`` of a place's scores ``[B, M, M]`` behind the ranks ``[B]`` before it."""
    return taken(scores, ranks[:, None])[:, 0]
