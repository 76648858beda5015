"""Falcon heads: EAGLE's pairs in blocks of k, so that one pass says k tokens; and their published
files.

Pairs as in :mod:`specwb.models.eagle`: pair i is token t_{i+1} with the target's hidden state f_i.
What the head makes of pair i stands for f_{i+k}, and so gives the law of t_{i+k+1}: the last k
pairs of a text give the next k laws at once. Pairs of one block see each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig

from specwb.models.checkpoint import HeadError, check_field, check_sizes, fill, opened, words_in
from specwb.models.eagle import EagleHead, Past, settle, sight
from specwb.models.eagle_config import layer_config
from specwb.models.products import product
from specwb.models.target import Target

FUSIONS = ("lstm", "pointwise", "linear")
ALIGNS = ("right", "left")
LARGEST = 4  # block


class FalconHead(EagleHead):
    """``h = layers(fusion [embedding(t_{i+1}); f_i])`` with relaxed causal attention: pair i sees
    pair j iff ``block(j) <= block(i)``, ``block(i) = floor((i + o) / k)``. Law of t_{i+k+1} = the
    target's lm_head of h_i.

    fusion, ``[.., 2H] -> [.., H]``, is one of

    - lstm: two LSTM layers along the text, as the paper says.
    - pointwise: the same two layers, from a zero state at every pair; what the released code
      computes at batch 1, where its LSTM takes the text for the batch. ``weight_hh`` is then
      multiplied by zeros: in a published file it was never trained.
    - linear: EAGLE's ``fc``. With k = 1 and one layer the head is EAGLE-1's.

    As EAGLE-1's: f is what the lm_head reads, the first layer has no input norm, the last no final
    one. Keys ``lstm.*`` (or ``fc.*``), ``layers.{i}.*`` without ``layers.0.input_layernorm``, and
    where the embedding is its own ``embed_tokens.weight``.

    Attributes:
        k: size of a block, 1..4.
        words: ``[d]`` the target ids that it drafts, None for all.
        align: where blocks end when drafting; ``right``: the last pair ends one; ``left``: they are
            counted from the beginning of the text, so that the last k pairs may lie in two.

    Source: Gao et al., "Falcon" (2024), arXiv 2412.12639, sections 3.1 and 3.4, and its code.
        Differs from them in: no dropout between the LSTM's layers; right alignment (the released
        code starts blocks where a chunk starts, so that the first position to be said may not see
        the newest pair); ``lstm`` really is recurrent.
    """

    version = 1

    def __init__(
        self,
        config: Any,
        target_hidden: int,
        k: int,
        fusion: str = "lstm",
        align: str = "right",
        bias: bool = True,
        qkv_bias: bool = False,
        words: Tensor | None = None,
    ) -> None:
        if not 1 <= k <= LARGEST:
            raise HeadError(
                f"a Falcon head has blocks of 1 to {LARGEST} tokens, this one has k={k}"
            )
        if fusion not in FUSIONS or align not in ALIGNS:
            raise HeadError(
                f"fusion must be {', '.join(FUSIONS)} and align {' or '.join(ALIGNS)}; got "
                f"{fusion!r} and {align!r}"
            )
        self.fusion = fusion
        super().__init__(config, target_hidden, bias=bias, words=words)
        self.k, self.align, self.qkv_bias = k, align, qkv_bias
        if qkv_bias:  # the library's attention_bias gives o_proj one as well
            for layer in self.layers:
                a: Any = layer.self_attn
                for name in ("q_proj", "k_proj", "v_proj"):
                    old = getattr(a, name)
                    setattr(a, name, nn.Linear(old.in_features, old.out_features))

    def make_fusion(self, bias: bool) -> None:
        if self.fusion == "linear":
            super().make_fusion(bias)
        else:
            self.lstm = nn.LSTM(2 * self.hidden, self.hidden, 2, batch_first=True)

    @property
    def state_width(self) -> int:
        """Numbers that a place hands on to the next: h and c of both LSTM layers, 0 where nothing
        is handed on."""
        return 4 * self.hidden if self.fusion == "lstm" else 0

    def mix(
        self, embedded: Tensor, above: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """``[R,n,H]`` embeddings and hidden states of n successive pairs -> ``[R,n,H]`` what enters
        the layers, ``[R,n,4H]`` states after each.

        ``state [R,4H]`` is the one after the pair before (h, c of the first layer, h, c of the
        second), None at the beginning of a text."""
        x = torch.cat([embedded, above], -1)
        if self.fusion == "linear":
            return product(x, self.fc.weight, self.fc.bias), None
        if self.fusion == "pointwise":
            return self._cells(x.flatten(0, 1)[:, None], None)[0].view_as(above), None
        return self._cells(x, x.new_zeros(len(x), self.state_width) if state is None else state)

    def along(
        self, embedded: Tensor, above: Tensor, needs_states: bool
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`mix` of texts from their beginning, all places at once: torch's LSTM has no loop
        in Python, but gives h alone. With h known, so are all gates, and ``c_t = f_t c_{t-1} + i_t
        g_t`` is linear in c. Under autocast the results have its type."""
        if self.fusion != "lstm":
            return self.mix(embedded, above)
        x, kept = torch.cat([embedded, above], -1), []
        if not needs_states:
            return self.lstm(x)[0], None
        for layer in range(2):
            w_ih, w_hh, b_ih, b_hh = self._weights(layer)
            zero = x.new_zeros(1, len(x), self.hidden)
            weights = (w_ih, w_hh, b_ih, b_hh)
            options = (True, 1, 0.0, self.training, False, True)  # biases, one layer, batch first
            out = torch.lstm(x, (zero, zero), weights, *options)[0]
            before = F.pad(out, (0, 0, 1, 0))[:, :-1]
            gates = F.linear(x, w_ih, b_ih + b_hh) + F.linear(before, w_hh)
            wide = torch.promote_types(gates.dtype, torch.float32)  # under autocast it is half
            i, f, new, _ = gates.to(wide).chunk(4, -1)
            kept += [out, linear_recurrence(f.sigmoid(), i.sigmoid() * new.tanh()).to(out.dtype)]
            x = out
        return x, torch.cat(kept, -1)

    def _weights(self, layer: int) -> list[Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self.lstm, f"{name}_l{layer}") for name in names]

    def _cells(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        kept = []
        start = (None,) * 4 if state is None else state.chunk(4, -1)
        for layer in range(2):
            w_ih, w_hh, b_ih, b_hh = self._weights(layer)
            entering = product(x, w_ih, b_ih + b_hh)
            h, c = start[2 * layer : 2 * layer + 2]
            out, cells = [], []
            for now in entering.unbind(1):
                gates = now if h is None else now + product(h, w_hh, None)
                i, f, new, o = gates.chunk(4, -1)
                inward = i.sigmoid() * new.tanh()
                c = inward if c is None else torch.addcmul(inward, f.sigmoid(), c)
                h = o.sigmoid() * c.tanh()
                out.append(h)
                cells.append(c)
            x = torch.stack(out, 1)
            kept += [x, torch.stack(cells, 1)]
        return x, torch.cat(kept, -1)

    def unroll(
        self,
        embedded: Tensor,
        features: Tensor,
        steps: int,
        first: tuple[Tensor, Tensor] | None = None,
    ) -> Iterator[Tensor]:
        """``[B,m,H]`` hidden states of m pairs in blocks from place 0, m a multiple of k, ``steps``
        times, with gradients: what a draft of so many passes would see.

        Step 0 has the target's features at every place. Step j stands j blocks below it: its hidden
        states are step j - 1's of the block before, it starts from that block's LSTM state, sees
        the step-0 blocks up to j blocks before, its own j predecessors and itself. Places i < j k
        have no such predecessors and are to be left out.

        Args:
            first: embeddings and features of step 0 where they are not these (glanced pairs).
        """
        rows, m, h = embedded.shape
        k = self.k
        cos, sin = self.rotary_emb(embedded, torch.arange(m, device=embedded.device)[None])
        past: Past = [([], []) for _ in self.blocks]
        above, ends = features, None
        for j in range(steps):
            if j:
                before = None if ends is None else F.pad(ends, (0, 0, 1, 0))[:, :-1].flatten(0, 1)
                x, states = self.mix(embedded.reshape(-1, k, h), above.reshape(-1, k, h), before)
                x = x.view(rows, m, h)
            else:
                x, states = self.along(*(first or (embedded, features)), steps > 1)
            ends = None if states is None else states.view(rows, m // k, k, -1)[:, :, -1]
            masks = [sight(j, m, embedded.device, k)] * len(self.blocks)
            x = self.through(x, x, past, cos, sin, masks)
            yield x
            above = F.pad(x, (0, 0, k, 0))[:, :-k]

    def settings(self) -> dict[str, Any]:
        bias = self.fusion != "linear" or self.fc.bias is not None
        return {
            "k_mask": self.k,
            "bias": bias,
            "qkv_bias": self.qkv_bias,
            "specwb_fusion": self.fusion,
            "specwb_align": self.align,
        }


def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """``c [R,n,..]`` with ``c_t = a_t c_{t-1} + b_t`` and nothing before the first, in log2 n
    passes: each lets every place reach twice as far back."""
    reach = 1
    while reach < a.shape[1]:
        b = torch.cat([b[:, :reach], b[:, reach:] + a[:, reach:] * b[:, :-reach]], 1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
        reach *= 2
    return b


def load_falcon(source: str | Path, target: Target) -> FalconHead:
    """Loads a Falcon head from a published folder or one of ours.

    A published file says k (``k_mask``) and nothing of how its LSTM was run: trained one text at a
    time, that is ``pointwise``. Ours say it in ``specwb_fusion`` and ``specwb_align``.

    Args:
        source: a folder, or a hub id.
        target: the model whose states it reads.
    Raises:
        HeadError: keys, shapes or settings are not those of such a head, or the card names another
            target. The message names the folder.
    """
    with opened(source, target) as stored:
        weights, config = dict(stored.weights), stored.config
        k = config.get("k_mask")
        if isinstance(k, bool) or not isinstance(k, int):
            raise HeadError("config.json has no k_mask, the size of a block; is it a Falcon head?")
        llama: LlamaConfig = layer_config(config)
        recurrent = "lstm.weight_hh_l0" in weights
        fusion = config.get("specwb_fusion") or ("pointwise" if recurrent else "linear")
        if recurrent == (fusion == "linear"):
            raise HeadError(
                f"config.json says specwb_fusion={fusion!r}, but the weights have "
                f"{'an LSTM' if recurrent else 'no LSTM'}"
            )
        attention = "layers.0.self_attn.{}_proj.bias"
        qkv_bias = attention.format("q") in weights and attention.format("o") not in weights
        check_field(config, "qkv_bias", qkv_bias)
        if not recurrent:
            check_field(config, "bias", "fc.bias" in weights)
        embedding = weights.pop("embed_tokens.weight", None)
        check_sizes(target, llama.hidden_size)
        words, align = words_in(weights, target), config.get("specwb_align") or "right"
        bias = fusion != "linear" or "fc.bias" in weights
        head = FalconHead(llama, llama.hidden_size, k, fusion, align, bias, qkv_bias, words)
        fill(head, weights, target)
        settle(head, embedding, stored, llama, target)
        return head
