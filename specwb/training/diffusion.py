"""The recipe of the lab's diffusion drafter: masked blocks behind a text that only looks back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from specwb.models.diffusion import DiffusionModel, build
from specwb.models.load import load
from specwb.models.target import Target
from specwb.training import corpus as text
from specwb.training.fit import TrainingError
from specwb.training.recipe import Found, Level, Moment, Recipe

STARTS = ("draft", "none")
LEAST = 0.1
"""The smallest share of a block that is masked: a place weighs one over it."""


class DiffusionRecipe(Recipe):
    """A text of L tokens is seen twice in one forward: as it is, each place seeing what is before it, and cut into blocks of k - 1 places, masked,
    each seeing the text before its block and its whole block. The block that stands at places s..s+k-2 says tokens s+1..s+k-1, the text's own
    place s - 1 says token s: what :class:`specwb.models.diffusion.DiffusionModel` calls the shift.

    Masked-diffusion objective: of every block a share t of its places is hidden, each hidden one weighs 1/t; ``full`` of the blocks are hidden
    whole (t = 1), which is what one pass of drafting sees, of the others t is uniform in [.1, 1]. The text itself learns the next token.
    Where nothing to the right of a token is shown the target's law at its place is learnt: on texts the target wrote its mean given what is
    shown is the wanted marginal, with less noise than the one token the text has. Where something is shown that law is not the right
    one (it knows nothing of what comes behind), and the text's token is learnt.

    A block does not go past an end of text: from the first on, all its tokens are that one, so that a draft learns to stop.

    k is drawn anew every step, log-uniform in 2..``block``, and so is where blocks begin; a place j tokens into its block weighs ``decay**j``;
    all blocks together weigh .8 beside the text's 1, as a head's second level does.

    Settings: layers, start (draft: the first layers, embedding and norms of the target's draft model, further layers beginning as doing
    nothing; none: from chance), hidden, heads, kv_heads, ffn (of a fresh one), block, full, decay.

    Source: Sahoo et al., "Simple and Effective Masked Diffusion Language Models" (2024); Arriola et al. 2503.09573 (text and blocks in one
    forward); Ye et al. 2508.15487 (Dream: shift, start from an autoregressive model). Differs from them in: the target's law is learnt where it is
    right; t >= .1; far places weigh less.
    """

    name = "diffusion"
    options = {  # noqa: RUF012
        "layers": 2, "start": STARTS, "hidden": 192, "heads": 3, "kv_heads": 1, "ffn": 512, "block": 32, "full": 0.5, "decay": 0.9,
    }  # fmt: skip
    depth = "block"
    measured = 8
    lr_matrix, lr_other = 3.5e-3, 2e-3

    def __init__(self, target: Target, settings: dict[str, Any]) -> None:
        super().__init__(target, {**self.usual(), **settings})
        s = self.settings
        if not 0 <= s["full"] <= 1 or not 0 < s["decay"] <= 1 or s["block"] < 2:
            raise TrainingError(f"diffusion: full is in [0, 1], decay in (0, 1], block at least 2; got {s['full']}, {s['decay']}, {s['block']}")
        if s["hidden"] % (2 * s["heads"]) or s["heads"] % s["kv_heads"]:
            raise TrainingError(
                f"diffusion: hidden={s['hidden']} must be a multiple of twice heads={s['heads']}, and heads of kv_heads={s['kv_heads']}"
            )
        if getattr(target.tokenizer, "mask_token_id", None) is None:
            raise TrainingError(f"the tokenizer of {target.name!r} has no mask token; give it one (tokenizer.mask_token) among the ids it has")
        self.draft = self._draft()

    def least(self) -> int:
        # blocks begin at place 1..k
        return 2 * max(self.measured, self.settings["block"]) - 1

    def begun_from(self) -> str:
        return "" if self.draft is None else self.draft.fingerprint

    def make(self, data: text.Corpus, mixture: dict[str, float]) -> DiffusionModel:
        s, target = self.settings, self.target
        mask = target.tokenizer.mask_token_id
        draft = None if self.draft is None else self.draft.model
        shape = {"hidden_size": s["hidden"], "intermediate_size": s["ffn"], "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"]}
        c = draft.config if draft is not None else None
        kept = (*shape, "head_dim", "rms_norm_eps", "rope_parameters", "attention_bias", "mlp_bias", "tie_word_embeddings")
        own = {key: getattr(c, key) for key in kept} if c is not None else {**shape, "tie_word_embeddings": True}
        config = LlamaConfig(
            vocab_size=target.vocabulary, num_hidden_layers=s["layers"], max_position_embeddings=target.context,
            eos_token_id=target.tokenizer.eos_token_id, pad_token_id=target.tokenizer.pad_token_id, bos_token_id=None, **own,
        )  # fmt: skip
        model = build(config, mask_id=mask, ends=tuple(target.eos), context=target.context)
        if draft is not None:
            self._start_from(model, draft)
        return model

    def _draft(self) -> Target | None:
        """The target's draft model, None where there is none to start from."""
        if self.settings["start"] == "none" or self.target.draft is None:
            return None
        draft = load(self.target.draft, dtype=self.target.dtype, device="cpu")
        if draft.model.config.model_type != "llama" or draft.vocabulary != self.target.vocabulary:
            raise TrainingError(f"{self.target.draft!r} is no Llama with the target's tokens; use start=none")
        return draft

    @torch.no_grad()
    def _start_from(self, model: DiffusionModel, draft: Any) -> None:
        inner, old = model.net.model, draft.model
        inner.embed_tokens.weight.copy_(old.embed_tokens.weight)
        model.net.lm_head.weight.copy_(draft.lm_head.weight)
        # the mask begins as the mean of all tokens, not as the untrained row that the draft has for it
        inner.embed_tokens.weight[model.mask_id] = old.embed_tokens.weight.mean(0)
        inner.norm.weight.copy_(old.norm.weight)
        for i, layer in enumerate(inner.layers):
            if i < len(old.layers):
                layer.load_state_dict(old.layers[i].state_dict())
            else:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()

    def with_adam(self, head: DiffusionModel) -> set[str]:
        return {name for name, _ in head.named_parameters() if "embed" in name or "lm_head" in name}

    def levels(self, head: DiffusionModel, found: Found, depth: int | None = None) -> Iterator[Level]:
        """Of whole blocks, by place: what one pass of drafting says."""
        k = depth or self.measured
        rows, length = found.ids.shape
        blocks = (length - 1) // k
        hidden = torch.ones(rows, blocks, k - 1, dtype=torch.bool, device=found.ids.device)
        plain, masked = self.states(head, found.ids, 1, k, hidden)
        yield Level(head.logits(plain[:, : blocks * k : k]), 0, stride=k)
        for j in range(1, k):
            yield Level(head.logits(masked[:, :, j - 1]), j, stride=k)

    def training(self, head: DiffusionModel, found: Found, moment: Moment) -> Iterator[Level]:
        s, ids = self.settings, found.ids
        device, (rows, length) = ids.device, ids.shape
        k = int(2 * (s["block"] / 2) ** moment.number(0) + 0.5)
        first = 1 + int(moment.number(1) * k)
        blocks = (length - first) // k
        share = LEAST + (1 - LEAST) * moment.uniforms(blocks, 2, device)
        share = torch.where(moment.uniforms(blocks, 3, device) < s["full"], 1.0, share)[:, :, None]
        hidden = moment.uniforms(blocks * (k - 1), 4, device).view(rows, blocks, k - 1) < share
        plain, masked = self.states(head, ids, first, k, hidden)
        odd = moment.step % 2  # every second place of the text is enough: it begins as a model of text
        yield Level(head.logits(plain[:, odd::2]), odd, stride=2)
        # slot i of a block says the token that stands at slot i + 1, the last one the token behind the block
        asked = torch.cat([hidden[:, :, 1:], torch.ones_like(hidden[:, :, :1])], 2)
        weight = asked / share
        weight[:, :, -1] = 1.0
        weight = weight * s["decay"] ** torch.arange(1, k, device=device)
        answers, after = ended(ids[:, first : first + blocks * k].view(rows, blocks, k), head.ends)
        shown = (~hidden).flip(2).cummax(2).values.flip(2)
        shown = torch.cat([shown[:, :, 1:], torch.zeros_like(shown[:, :, :1])], 2)  # something stands to the right of the token
        tokens = torch.where(shown | after[:, :, 1:], answers[:, :, 1:], -1)
        index = (first + torch.arange(blocks, device=device)[:, None] * k + torch.arange(k - 1, device=device)).flatten()
        yield Level(head.logits(masked.flatten(1, 2)), 0, counted=weight.flatten(1), index=index, tokens=tokens.flatten(1))

    def states(self, head: DiffusionModel, ids: Tensor, first: int, k: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B,L,H]`` of the text and ``[B,blocks,k-1,H]`` of its blocks, which begin at place ``first`` and every k further, ``hidden
        [B,blocks,k-1]`` of their places masked."""
        rows, length = ids.shape
        blocks, device = hidden.shape[1], ids.device
        place = first + torch.arange(blocks, device=device)[:, None] * k + torch.arange(k - 1, device=device)
        own, _ = ended(ids[:, first : first + blocks * k].view(rows, blocks, k), head.ends)
        noised = torch.where(hidden, head.mask_id, own[:, :, : k - 1]).flatten(1)
        positions = torch.cat([torch.arange(length, device=device), place.flatten()])
        block = torch.cat([torch.full((length,), -1, device=device), torch.arange(blocks, device=device).repeat_interleave(k - 1)])
        # what is before: of the text, up to its own place; of a block, up to where it begins
        before = torch.where(block < 0, positions, first + block * k - 1)
        text_seen = (block < 0) & (positions <= before[:, None])
        sight = text_seen | ((block >= 0) & (block == block[:, None]))
        out = head(torch.cat([ids, noised], 1), positions.expand(rows, -1), sight)
        return out[:, :length], out[:, length:].view(rows, blocks, k - 1, -1)

    def save(self, head: DiffusionModel, folder: Any, card: dict[str, Any]) -> None:
        head.save(folder, {**card, "start": "none" if self.draft is None else "draft"})


def ended(tokens: Tensor, ends: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``[B,blocks,k]`` with every token behind a block's first end made that end, and which those are."""
    if not ends:
        return tokens, torch.zeros_like(tokens, dtype=torch.bool)
    end = torch.isin(tokens, torch.tensor(ends, device=tokens.device))
    at = torch.where(end.any(-1), end.int().argmax(-1), tokens.shape[-1])[..., None]
    after = torch.arange(tokens.shape[-1], device=tokens.device) > at
    last = tokens.gather(-1, at.clamp_max(tokens.shape[-1] - 1))
    return torch.where(after, last, tokens), after
