"""The recipe of the lab's diffusion drafter: masked blocks after a causal text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specwb.models.borrowed import check_lender, is_borrowed
from specwb.models.diffusion import DiffusionModel, build, shared
from specwb.models.eagle import eagle_config, with_sdpa
from specwb.models.layers import gain
from specwb.models.load import load
from specwb.models.target import Target
from specwb.training.fit import TrainingError
from specwb.training.recipe import Moment, Predictions, Recipe, TargetOutputs
from specwb.training.settings import count, number, word

STARTS = ("draft", "none", "target")
LEAST = 0.1
"""The smallest share of a block that is masked: a masked position weighs one over the share."""


class DiffusionRecipe(Recipe):
    """A masked-diffusion model that also reads the text before its blocks.

    A text of L tokens is seen twice in one forward. Once as it is, each position seeing what is
    before it. And once cut into blocks of k - 1 positions, masked, each seeing the text before its
    block and its whole block. The block that stands at positions s..s+k-2 predicts tokens
    s+1..s+k-1, and the text's own position s - 1 predicts token s: what
    :class:`specwb.models.diffusion.DiffusionModel` calls the shift.

    Objective: of every block a share t of its positions is masked, and each masked one weighs 1/t.
    ``full`` of the blocks are masked completely (t = 1), which is what one pass of drafting sees;
    of the others t is uniform in [.1, 1]. The text itself learns the next token. Where nothing to
    the right of a token is shown, the target's distribution at its position is learnt: on texts
    that the target wrote, its mean given what is shown is the wanted marginal, with less noise than
    the one token that the text has. Where something is shown that distribution is not the right one
    (it knows nothing of what comes behind), and the text's token is learnt.

    A block does not go past an end of text: from the first end on, all its tokens are that end, so
    that a draft learns to stop.

    k is drawn anew every step, log-uniform in 2..``block``, and so is where blocks begin; a
    position j tokens into its block weighs ``decay**j``; all blocks together weigh .8 beside the
    text's 1, as a head's second level does.

    Settings: layers, start (draft: the first layers, embedding and norms of the target's draft
    model, further layers beginning as doing nothing; none: at random; target: the target's first
    layers, its last one and its norm, between its embedding and its output layer, which it shares),
    hidden, heads, kv_heads, ffn (of a fresh one), block, full, decay, vocabulary (with
    start=target: how many words it drafts, the training text's most frequent tokens; 0 is all).

    With start=target no token of the tokenizer is the mask: its vector is one more behind the
    target's embeddings, and begins as their mean. A text's token that is none of the words is not
    learnt.

    Source: Sahoo et al., "Simple and Effective Masked Diffusion Language Models" (2024); Arriola et
    al. 2503.09573 (text and blocks in one forward); Ye et al. 2508.15487 (Dream: shift, start from
    an autoregressive model). Differs from them in: the target's distribution is learnt where it is
    right; t >= .1; far positions weigh less.
    """

    name = "diffusion"
    options = {  # noqa: RUF012
        "layers": count(2),
        "start": word(*STARTS),
        "hidden": count(192),
        "heads": count(3),
        "kv_heads": count(1),
        "ffn": count(512),
        "block": count(32, 2),
        "full": number(0.5, "[0, 1]"),
        "decay": number(0.9, "(0, 1]"),
        "vocabulary": count(0),
    }
    depth_option = "block"
    measured_levels = 8
    training = {**Recipe.training, "lr": 2e-3}  # noqa: RUF012

    def setup(self) -> None:
        s, target = self.settings, self.target
        self.check_heads()
        if s["start"] == "target":
            self._check_target()
        elif s["vocabulary"]:
            raise TrainingError("diffusion: vocabulary is of models that begin with start=target")
        elif getattr(target.tokenizer, "mask_token_id", None) is None:
            raise TrainingError(
                f"the tokenizer of {target.name!r} has no mask token; "
                "give it one (tokenizer.mask_token) among the ids it has, or use start=target"
            )
        self.draft = self._draft()

    def _check_target(self) -> None:
        """Raises TrainingError where a model cannot begin as the target's own layers."""
        target, layers = self.target, self.settings["layers"]
        backbone = target.backbone
        check_lender(target, "diffusion: a model with start=target", TrainingError)
        with torch.device("meta"):
            parts = LlamaDecoderLayer(with_sdpa(eagle_config(target)), 0).state_dict()
        if parts.keys() != backbone.inner.layers[0].state_dict().keys():
            name = f"the layers of {target.name!r} have other parts than Llama's"
            raise TrainingError(f"diffusion: {name}; use another start than target")
        if layers > len(backbone.layers):
            wanted = f"at most the target's {len(backbone.layers)} with start=target"
            raise TrainingError(f"diffusion: layers must be {wanted}, got {layers}")

    def min_tokens(self) -> int:
        # blocks begin at one of the positions 1..k
        return 2 * max(self.measured_levels, self.settings["block"]) - 1

    def initial_weights(self) -> str:
        return "" if self.draft is None else self.draft.fingerprint

    def make(self, words: Tensor | None) -> DiffusionModel:
        s, target = self.settings, self.target
        if s["start"] == "target":
            return self._from_target(words)
        draft = None if self.draft is None else self.draft.model
        shape = {
            "hidden_size": s["hidden"],
            "intermediate_size": s["ffn"],
            "num_attention_heads": s["heads"],
            "num_key_value_heads": s["kv_heads"],
        }
        architecture = {**shape, "tie_word_embeddings": True}
        if draft is not None:
            more = (
                "head_dim",
                "rms_norm_eps",
                "rope_parameters",
                "attention_bias",
                "mlp_bias",
                "tie_word_embeddings",
            )
            architecture = {key: getattr(draft.config, key) for key in (*shape, *more)}
        config = LlamaConfig(
            vocab_size=target.vocabulary,
            num_hidden_layers=s["layers"],
            max_position_embeddings=target.context,
            eos_token_id=target.tokenizer.eos_token_id,
            pad_token_id=target.tokenizer.pad_token_id,
            bos_token_id=None,
            **architecture,
        )
        mask_id = target.tokenizer.mask_token_id
        model = build(config, mask_id=mask_id, ends=tuple(target.eos), context=target.context)
        if draft is not None:
            self._start_from(model, draft)
        return model

    def _draft(self) -> Target | None:
        if self.settings["start"] != "draft" or self.target.draft is None:
            return None
        if is_borrowed(self.target.draft):
            borrows = f"{self.target.draft!r} has no embedding of its own"
            raise TrainingError(f"diffusion: {borrows}; use start=target or none")
        draft = load(self.target.draft, dtype=self.target.dtype, device="cpu")
        is_llama = draft.model.config.model_type == "llama"
        if not is_llama or draft.vocabulary != self.target.vocabulary:
            problem = f"{self.target.draft!r} is no Llama with the target's tokens"
            raise TrainingError(f"{problem}; use start=none")
        return draft

    @torch.no_grad()
    def _start_from(self, model: DiffusionModel, draft: Any) -> None:
        """Copies the draft model's weights; layers that it does not have begin as doing nothing."""
        inner, source = model.net.model, draft.model
        inner.embed_tokens.weight.copy_(source.embed_tokens.weight)
        model.net.lm_head.weight.copy_(draft.lm_head.weight)
        # the mask begins as the mean of all tokens, not as the draft's untrained row for it
        inner.embed_tokens.weight[model.mask_id] = source.embed_tokens.weight.mean(0)
        inner.norm.weight.copy_(source.norm.weight)
        for i, layer in enumerate(inner.layers):
            if i < len(source.layers):
                layer.load_state_dict(source.layers[i].state_dict())
            else:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()

    @torch.no_grad()
    def _from_target(self, words: Tensor | None) -> DiffusionModel:
        target, layers = self.target, self.settings["layers"]
        config, ends = eagle_config(target, layers), tuple(target.eos)
        model = shared(config, target, words, ends=ends, context=target.context)
        inner, source = model.net.model, target.backbone.inner
        chosen = [*source.layers[: layers - 1], source.layers[-1]]
        for layer, original in zip(inner.layers, chosen, strict=True):
            layer.load_state_dict(original.state_dict())
        inner.norm.weight.copy_(gain(source.norm))
        mean = target.backbone.embed.weight.mean(0, dtype=torch.float32)
        inner.embed_tokens.mask_embedding.copy_(mean)
        return model

    def stride(self, head: DiffusionModel) -> int:
        return self.measured_levels

    def levels(
        self,
        head: DiffusionModel,
        outputs: TargetOutputs,
        depth: int | None = None,
        offset: int = 0,
    ) -> Iterator[Predictions]:
        """Yields the predictions of fully masked blocks by position, as drafting makes them."""
        k = depth or self.measured_levels
        rows, length = outputs.ids.shape
        first = 1 + offset
        blocks = (length - first) // k
        masked = torch.ones(rows, blocks, k - 1, dtype=torch.bool, device=outputs.ids.device)
        text_states, block_states = self.states(head, outputs, first, k, masked)
        text_states = text_states[:, offset : offset + blocks * k : k]
        yield Predictions(text_states, head.net.lm_head, offset, stride=k)
        for j in range(1, k):
            yield Predictions(block_states[:, :, j - 1], head.net.lm_head, offset + j, stride=k)

    def training_levels(
        self, head: DiffusionModel, outputs: TargetOutputs, moment: Moment
    ) -> Iterator[Predictions]:
        s, ids = self.settings, outputs.ids
        device, (rows, length) = ids.device, ids.shape
        k = int(2 * (s["block"] / 2) ** moment.number(0) + 0.5)
        first = 1 + int(moment.number(1) * k)
        blocks = (length - first) // k
        share = LEAST + (1 - LEAST) * moment.uniforms(blocks, 2, device)
        is_full = moment.uniforms(blocks, 3, device) < s["full"]
        share = torch.where(is_full, 1.0, share)[:, :, None]
        draws = moment.uniforms(blocks * (k - 1), 4, device).view(rows, blocks, k - 1)
        masked = draws < share
        text_states, block_states = self.states(head, outputs, first, k, masked)
        # every second position of the text is enough: the model begins as one of text
        odd = moment.step % 2
        yield Predictions(text_states[:, odd::2], head.net.lm_head, odd, stride=2)
        tokens = ids[:, first : first + blocks * k].view(rows, blocks, k)
        labels, weights = _labels(tokens, masked, head.ends), self._weights(masked, share)
        words = self.words(head)
        if words is not None:
            weights = weights * ((labels < 0) | torch.isin(labels, words))
        yield Predictions(
            block_states.flatten(1, 2),
            head.net.lm_head,
            0,
            weights=weights.flatten(1),
            index=_block_positions(first, blocks, k, device).flatten(),
            labels=labels.flatten(1),
        )

    def _weights(self, masked: Tensor, share: Tensor) -> Tensor:
        """``[B, blocks, k - 1]``, how much each slot of a block counts; slot i predicts the token
        that stands at slot i + 1, the last slot the token behind the block. ``share [B, blocks,
        1]`` is t."""
        slots = masked.shape[2]
        predicts_masked = torch.cat([masked[:, :, 1:], torch.ones_like(masked[:, :, :1])], 2)
        weights = predicts_masked / share
        weights[:, :, -1] = 1.0
        depth = torch.arange(1, slots + 1, device=masked.device)
        return weights * self.settings["decay"] ** depth

    @staticmethod
    def states(
        head: DiffusionModel, outputs: TargetOutputs, first: int, k: int, masked: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The states ``[B, L, H]`` of texts ``outputs.ids [B, L]`` and ``[B, blocks, k - 1, H]`` of
        their blocks, in one forward. Blocks begin at ``first`` and then every k positions; ``masked
        [B, blocks, k - 1]``: which of their positions are masked."""
        ids = outputs.ids
        rows, length = ids.shape
        blocks, device = masked.shape[1], ids.device
        tokens = ids[:, first : first + blocks * k].view(rows, blocks, k)
        tokens, _ = fill_after_end(tokens, head.ends)
        inputs = torch.where(masked, head.mask_id, tokens[:, :, : k - 1]).flatten(1)
        in_text = torch.arange(length, device=device)
        in_blocks = _block_positions(first, blocks, k, device).flatten()
        positions = torch.cat([in_text, in_blocks])
        # the number of the block that a query or key is in, -1 for the text
        numbers = torch.arange(blocks, device=device).repeat_interleave(k - 1)
        block = torch.cat([torch.full((length,), -1, device=device), numbers])
        # the text sees itself up to its own position, a block sees it up to where the block begins
        last_seen = torch.where(block < 0, positions, first + block * k - 1)
        sees_text = (block < 0) & (positions <= last_seen[:, None])
        sees_block = (block >= 0) & (block == block[:, None])
        states = head(
            torch.cat([ids, inputs], 1),
            positions.expand(rows, -1),
            sees_text | sees_block,
        )
        return states[:, :length], states[:, length:].view(rows, blocks, k - 1, -1)

    def save(self, head: DiffusionModel, folder: Any, card: dict[str, Any]) -> None:
        start = self.settings["start"]
        if start == "draft" and self.draft is None:
            start = "none"
        head.save(folder, {**card, "start": start})


def _block_positions(first: int, blocks: int, k: int, device: torch.device) -> Tensor:
    """Returns ``[blocks, k - 1]``, the positions of the blocks' slots."""
    begins = first + torch.arange(blocks, device=device)[:, None] * k
    return begins + torch.arange(k - 1, device=device)


def _labels(tokens: Tensor, masked: Tensor, ends: tuple[int, ...]) -> Tensor:
    """``[B, blocks, k - 1]``, the token that each slot learns, of ``tokens [B, blocks, k]``, or -1
    where it learns the target's distribution: nothing is shown to the right of the token, and the
    block has not ended before it."""
    answers, is_after_end = fill_after_end(tokens, ends)
    shown_from_here = (~masked).flip(2).cummax(2).values.flip(2)
    nothing = torch.zeros_like(shown_from_here[:, :, :1])
    shown_to_the_right = torch.cat([shown_from_here[:, :, 1:], nothing], 2)
    uses_token = shown_to_the_right | is_after_end[:, :, 1:]
    return torch.where(uses_token, answers[:, :, 1:], -1)


def fill_after_end(tokens: Tensor, ends: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """``tokens [B, blocks, k]`` with every token behind a block's first end replaced by that end,
    and which of them were behind one."""
    if not ends:
        return tokens, torch.zeros_like(tokens, dtype=torch.bool)
    k = tokens.shape[-1]
    is_end = torch.isin(tokens, torch.tensor(ends, device=tokens.device))
    first_end = torch.where(is_end.any(-1), is_end.int().argmax(-1), k)[..., None]
    is_after_end = torch.arange(k, device=tokens.device) > first_end
    end = tokens.gather(-1, first_end.clamp_max(k - 1))
    return torch.where(is_after_end, end, tokens), is_after_end
