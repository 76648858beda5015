"""Forwards of a diffusion model over texts and masks behind them, with a cache where there can be
one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specwb.core.mask import sight_mask
from specwb.models.diffusion import DiffusionModel
from specwb.models.layers import rms
from specwb.models.place import Place


class Blocks:
    """A diffusion model beside the rows of a decoding: it says what follows each text, at masked
    places behind it.

    A model whose text sees only what is before it has an exact cache: a forward is over the tokens
    that are new and the masks. Of a model whose text sees everything, a forward is over all there
    is.

    Rows of different lengths and with different numbers of masks draft what each would alone: a
    row's masks beyond its own number are seen by nobody. Each row has ``capacity`` places, masks
    included; ids from ``vocabulary`` on are not drafted."""

    def __init__(
        self,
        model: DiffusionModel,
        rows: int,
        capacity: int,
        vocabulary: int | None = None,
    ) -> None:
        self.model, self.backbone = model, model.backbone
        self.cache = self.backbone.cache(rows, capacity + 1)
        # the slot of what is computed and not wanted; no query sees it
        self.nowhere = capacity
        self.banned = model.banned
        self.vocabulary = vocabulary

    def say(
        self,
        tokens: Tensor,
        length: Tensor,
        horizon: int,
        fed: Tensor,
        fresh: int,
        k: Tensor,
        most: int,
        steps: int = 1,
        padded: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The logits of the tokens that follow every text, ``[B,most,V]``, or of the model's words,
        and the states ``[B,most,H]`` of the last denoising step, before the final norm; a row's
        first k are meant.

        Args:
            tokens, length: the texts, ``[B,T]``, and their sequence lengths, ``[B]``.
            horizon: the longest one's, or, if ``padded``, more: shapes depend on it alone then.
            fed: places below it have keys and values that are to stay, ``[B]``; at most ``fresh``
                places of any row have none.
            k: how many tokens each row asks for, ``[B]``; ``most`` is the largest.
            steps: S denoising steps. In each the ``ceil(k / S)`` surest of the places that are
                still masked get their best token; a place's logits are those of the step in which
                it got one.
        """
        model, device = self.model, tokens.device
        rows, m = len(tokens), model.masks(most)
        everything = not model.causal
        width = horizon if everything else fresh
        fed = torch.zeros_like(fed) if everything else fed
        block = torch.full((rows, m), model.mask_id, device=device)
        masked = torch.arange(most, device=device) < k[:, None]
        # a row's own masks end here; what is behind them is seen by nobody
        last = length + (k - model.spared).clamp_min(0) - 1
        extent = horizon + m
        out: Tensor | None = None
        for step in range(steps):
            # the last places of the text, and the block behind it
            place = length[:, None] + torch.arange(-width, m, device=device)
            positions = place.clamp_min(0)
            slots = torch.where(place >= fed[:, None], place, self.nowhere)
            ends = last[:, None].expand(-1, width + m)
            if model.causal:
                ends = torch.cat([positions[:, :width], ends[:, width:]], 1)
            unmasked = rows == 1 and not padded and not model.causal and width == horizon
            mask = None if unmasked else sight_mask(ends, extent, self.backbone.dtype)
            ids = torch.cat([tokens.gather(1, positions[:, :width]), block], 1)
            where = Place(positions, slots, extent, mask)
            hidden = self.backbone.run(self.backbone.embed(ids), where, self.cache)[0]
            states = hidden[:, width + model.first :][:, :most]
            logits = self.backbone.head(states)
            if steps == 1:
                return logits, states
            sayable = logits.float().index_fill(-1, self.banned, -torch.inf)
            value, best = sayable[..., : self.vocabulary].softmax(-1).max(-1)
            surest = value.masked_fill(~masked, -1).argsort(dim=-1, descending=True, stable=True)
            count = (k[:, None] + steps - 1).div(steps, rounding_mode="floor")
            now = masked if step + 1 == steps else masked & (surest.argsort(-1) < count)
            out = logits if out is None else torch.where(now[:, :, None], logits, out)
            masked = masked & ~now
            block = torch.where(now[:, :m], model.tokens(best[:, :m]), block)
            if not everything:  # of the text only its last place is asked again
                fed, width = length - 1, 1
        assert out is not None
        return out, states


def block(
    model: DiffusionModel,
    text: Sequence[int],
    k: int,
    steps: int = 1,
) -> Tensor:
    """The logits of the k tokens behind a text, ``[k,V]`` or of the model's words, without a
    decoding around it."""
    return block_states(model, text, k, steps)[0]


@torch.inference_mode()
def block_states(
    model: DiffusionModel,
    text: Sequence[int],
    k: int,
    steps: int = 1,
) -> tuple[Tensor, Tensor]:
    """:func:`block`, and the states ``[k,H]`` behind the final norm that the logits are of."""
    device = model.backbone.device
    tokens = torch.tensor([[*text, *[0] * k]], device=device)
    length = torch.tensor([len(text)], device=device)
    blocks = Blocks(model, 1, tokens.shape[1] + 1)
    fed, count = torch.zeros_like(length), torch.tensor([k], device=device)
    logits, states = blocks.say(tokens, length, len(text), fed, len(text), count, k, steps)
    return logits[0], rms(states, model.backbone.norm)[0]
