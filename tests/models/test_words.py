"""Heads that draft some of the target's tokens: their words in files, and their output layers."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from layouts import KINDS, H, V, refused
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import specwb
from specwb.models.checkpoint import HeadError, words_in
from specwb.models.eagle import Eagle3Head, EagleHead, eagle_config
from specwb.models.falcon import FalconHead
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.medusa import MedusaHeads
from specwb.models.products import int8_rows, quantized
from specwb.models.words import rows_of

WORDS = torch.tensor([1, 4, 5, 9, 17, 30, 31, 62])
every_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, target: specwb.Target, words: Tensor | None) -> Any:
    """A head with random weights as a file can hold them, with these words."""
    torch.manual_seed(0)
    config, layers = eagle_config(target), len(target.backbone.layers)
    if kind == "medusa":
        head: Any = MedusaHeads(H, V, 2, shared=True, words=words)
    elif kind == "eagle":
        head = EagleHead(config, H, words=words)
    elif kind == "eagle3":
        size = V if words is None else len(words)
        head = Eagle3Head(config, H, (0, 1, layers), size, V, own_head=False)
        if words is not None:
            head.speak(words)
    elif kind == "falcon":
        head = FalconHead(eagle_config(target, 2), H, 2, words=words)
    else:
        head = KangarooAdapter(config, 1, words=words)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_((torch.randn_like(weight) * 0.3).half())
    return head


def logits(head: Any, target: specwb.Target) -> Tensor:
    """What it says to the same random states."""
    x = torch.randn(1, 5, H * len(head.features), generator=torch.Generator().manual_seed(1))
    lm_head = target.backbone.lm_head
    with torch.no_grad():
        if isinstance(head, MedusaHeads):
            return head(x, None, lm_head)
        if isinstance(head, KangarooAdapter):
            return head.logits(head(x), head.output(lm_head))
        return head.logits(next(head.unroll(x[..., :H], x, 1)), head.output(lm_head))


@every_kind
def test_what_is_saved_says_the_same(tmp_path, kind):
    target = tiny.target()
    head = made(kind, target, WORDS)
    head.save(tmp_path / "h")
    again = KINDS[kind][0](tmp_path / "h", target)
    assert torch.equal(again.words, WORDS)
    assert torch.equal(logits(again, target), logits(head, target))
    assert not any("lm_head" in key for key in again.state_dict())


@every_kind
def test_words_are_columns_of_what_is_said_without(kind):
    target = tiny.target()
    some, every = made(kind, target, WORDS), made(kind, target, None)
    every.load_state_dict({k: w for k, w in some.state_dict().items() if k in every.state_dict()})
    torch.testing.assert_close(logits(some, target), logits(every, target)[..., WORDS])


@pytest.mark.parametrize("words", [[1, 2, 2], [-1, 2], [1, V], [[1, 2]], [1.0, 2.0]])
def test_bad_words_are_refused(words):
    with pytest.raises(HeadError, match="words must be"):
        words_in({"words": torch.as_tensor(words)}, tiny.target())


@pytest.mark.parametrize("kind", ["medusa", "eagle", "falcon", "kangaroo"])
def test_every_loader_looks_at_the_words(tmp_path, kind):
    made(kind, tiny.target(), WORDS).save(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    save_file({**load_file(file), "words": WORDS.flip(0).contiguous()}, file, {"format": "pt"})
    assert "ascending" in refused(KINDS[kind][0], tmp_path, tiny.target())


def test_words_are_of_the_targets_output_layer(tmp_path):
    """With a layer of their own heads draft all tokens, or have EAGLE-3's maps."""
    target = tiny.target()
    own_head = KangarooAdapter(eagle_config(target), 1, own_head=True)
    for head, kind in ((MedusaHeads(H, V, 2), "medusa"), (own_head, "kangaroo")):
        head.save(tmp_path / kind)
        (file,) = (tmp_path / kind).glob("*.safetensors")
        save_file({**load_file(file), "words": WORDS}, file, {"format": "pt"})
        assert "own" in refused(KINDS[kind][0], tmp_path / kind, target)


# ------------------------------------------------------------------------------ the rows of a layer


def test_rows_are_made_once_and_anew_where_the_layer_changes():
    layer, x = nn.Linear(H, V), torch.randn(3, H)
    rows = rows_of(layer, WORDS)
    torch.testing.assert_close(rows(x), layer(x)[:, WORDS])
    assert not any(p.requires_grad for p in rows.parameters())
    assert rows_of(layer, WORDS.clone()) is rows
    others = rows_of(layer, WORDS[1:])
    # as many, but other ones
    torch.testing.assert_close(rows_of(layer, WORDS + 1)(x), layer(x)[:, WORDS + 1])
    assert others is not rows
    assert rows_of(layer, WORDS) is rows
    assert rows_of(layer, None) is layer
    for weight in layer.parameters():
        with torch.no_grad():
            weight.mul_(2)
        anew = rows_of(layer, WORDS)
        assert anew is not rows
        torch.testing.assert_close(anew(x), layer(x)[:, WORDS])
        rows = anew
    assert rows_of(nn.Linear(H, V), WORDS) is not rows


def test_rows_in_int8_are_apart_from_the_exact_ones():
    layer = nn.Linear(H, V)
    rows, exact = rows_of(layer, WORDS, in_int8=True), rows_of(layer, WORDS)
    integers, scale = quantized(layer.weight[WORDS])
    assert torch.equal(rows.weight, integers * scale)
    assert torch.equal(int8_rows(rows.weight)[:, :-4], integers)
    assert torch.equal(exact.weight, layer.weight[WORDS])
    assert int8_rows(exact.weight) is None
    heads = MedusaHeads(H, V, 2, shared=True, words=WORDS)
    assert heads.output(0, layer) is exact
    heads.card = {"store": "int8"}
    assert heads.output(0, layer) is rows
