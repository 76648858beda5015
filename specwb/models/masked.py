"""Forwards of a diffusion model over texts and masks behind them, with a cache where there can be one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specwb.mask import sight_mask
from specwb.models.diffusion import DiffusionModel


class Blocks:
    """A diffusion model beside the rows of a decoding: what it says of masked places behind each.

    A model whose text sees only what is before it has an exact cache: a forward is over the tokens that are new and the masks. Of one whose text
    sees everything, a forward is over all there is (``refresh`` = 1), or in ``refresh - 1`` of ``refresh`` rounds over what is new alone, the keys
    and values of the rest being those of an earlier round (Fast-dLLM's prefix cache): drafts change then, what is decoded does not.

    Rows of different lengths and with different numbers of masks draft what each would alone: a row's masks beyond its own are not seen.
    """

    def __init__(self, model: DiffusionModel, rows: int, capacity: int, refresh: int = 1, vocabulary: int | None = None) -> None:
        self.model, self.backbone, self.refresh = model, model.backbone, refresh
        self.cache = self.backbone.cache(rows, capacity + 1)
        self.nowhere = capacity  # the slot of what is computed and not wanted; no query sees it
        self.banned = torch.tensor([model.mask_id], device=self.backbone.device)
        self.vocabulary = vocabulary  # ids from here on are not drafted

    def say(
        self, tokens: Tensor, known: Tensor, horizon: int, fed: Tensor, fresh: int, k: Tensor, most: int, steps: int = 1, anew: bool = True
    ) -> Tensor:
        """``[B,most,V]`` logits of tokens known, known + 1, .. of every row; a row's first ``k [B]`` are meant.

        Args:
            tokens ``[B,T]``, known ``[B]``, horizon: the texts, their lengths and the longest one's.
            fed ``[B]``: places below it have keys and values that are to stay; at most ``fresh`` places of any row have none.
            steps: S denoising steps. In each the ``ceil(k / S)`` surest of the places that are still masked get their best token; a place's logits
                are those of the step in which it did.
            anew: everything is computed anew, where the model's text sees its masks.
        """
        model, device = self.model, tokens.device
        rows, m = len(tokens), model.masks(most)
        whole = anew and not model.causal
        width = horizon if whole else fresh
        fed = torch.zeros_like(fed) if whole else fed
        block = torch.full((rows, m), model.mask_id, device=device)
        place = torch.arange(most, device=device)
        masked, out = place < k[:, None], None
        for step in range(steps):
            hidden = self._run(tokens, known, horizon, fed, width, k, block)
            logits = self.backbone.head(hidden[:, width + model.first :][:, :most])
            if steps == 1:
                return logits
            value, best = logits.float().index_fill(-1, self.banned, -torch.inf)[..., : self.vocabulary].softmax(-1).max(-1)
            rank = value.masked_fill(~masked, -1).argsort(dim=-1, descending=True, stable=True).argsort(-1)
            now = masked if step + 1 == steps else masked & (rank < (k[:, None] + steps - 1).div(steps, rounding_mode="floor"))
            out = logits if out is None else torch.where(now[:, :, None], logits, out)
            masked = masked & ~now
            block = torch.where(now[:, :m], best[:, :m], block)
            if not whole:  # of the text only its last place is asked again
                fed, width = known - 1, 1
        assert out is not None
        return out

    def _run(self, tokens: Tensor, known: Tensor, horizon: int, fed: Tensor, width: int, k: Tensor, block: Tensor) -> Tensor:
        """``[B, width + m, H]``: the last ``width`` places of the text and the block behind it."""
        m, extent = block.shape[1], horizon + block.shape[1]
        place = known[:, None] + torch.arange(-width, m, device=known.device)
        positions = place.clamp_min(0)
        slots = torch.where(place >= fed[:, None], place, self.nowhere)
        ids = torch.cat([tokens.gather(1, positions[:, :width]), block], 1)
        last = (known + (k - self.model.spared).clamp_min(0) - 1)[:, None].expand(-1, width + m)
        ends = torch.cat([positions[:, :width], last[:, width:]], 1) if self.model.causal else last
        alone = len(known) == 1 and not self.model.causal and width == horizon
        mask = None if alone else sight_mask(ends, extent, self.backbone.dtype)
        return self.backbone.run(self.backbone.embed(ids), positions, slots, self.cache, extent, mask)[0]


@torch.inference_mode()
def block(model: DiffusionModel, text: Sequence[int], k: int, steps: int = 1) -> Tensor:
    """``[k,V]`` what a diffusion model says of the k tokens behind a text, without a decoding around it."""
    device = model.backbone.device
    tokens = torch.tensor([[*text, *[0] * k]], device=device)
    known = torch.tensor([len(text)], device=device)
    blocks = Blocks(model, 1, tokens.shape[1] + 1)
    return blocks.say(tokens, known, len(text), torch.zeros_like(known), len(text), torch.tensor([k], device=device), k, steps)[0]
