"""The backbone is the library's model: same logits, same hidden states, whatever the order in which
tokens are fed. All of it in float32, which has products of its own on the CPU, within a margin
(``close``)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Qwen3NextConfig,
    T5Config,
    T5ForConditionalGeneration,
)

import specwb
from specwb.core.flow import Draft, Scheme
from specwb.core.probability import Sampling
from specwb.models.backbone import Backbone
from specwb.models.place import Place

# what an architecture can be configured to; others are in test_architectures.py
SHAPES = [
    {"attention_bias": True, "mlp_bias": True},
    {"num_key_value_heads": 1, "tie_word_embeddings": True},
    {"head_dim": 6, "hidden_act": "gelu"},
]
TREES = {
    "lopsided": specwb.Tree.paths([(0, 0, 0, 0), (1,), (2, 0), (0, 1)]),
    "a shape a row": specwb.Tree([[-1, 0, 1, 2, 2, 0], [-1, 0, 0, 0, 1, -1], [-1, 0, 1, 2, 3, 4]]),
}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


def tokens(m: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(
        0, tiny.VOCABULARY, (rows, m), generator=torch.Generator().manual_seed(seed)
    )


def run(backbone: Backbone, x: Tensor, start: int, cache, **more) -> tuple[Tensor, Tensor | None]:
    """Positions start .. start + m - 1 of a text whose earlier positions are in the cache."""
    rows, m = x.shape[:2]
    positions = torch.arange(start, start + m).expand(rows, m)
    place = Place.behind(positions, start + m, backbone.dtype)
    with torch.no_grad():
        return backbone.run(x, place, cache, **more)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    worst = float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())
    assert worst < tolerance, f"off by {worst:.1e} of the largest logit"


@pytest.mark.parametrize("changes", SHAPES, ids=["biases", "one head of keys", "gelu"])
def test_forward_equals_the_library_model_before_and_after_its_weights_are_fused(changes):
    model = tiny.build("llama", **changes)
    ids = tokens(23, rows=2)
    with torch.no_grad():
        before = model(ids).logits
    backbone = Backbone(model)
    with torch.no_grad():
        after = model(ids).logits
    close(after, before, 1e-6)
    masked = backbone.head(run(backbone, backbone.embed(ids), 0, backbone.cache(2, 23))[0])
    close(masked, before)
    with torch.no_grad():
        causal, _ = backbone.run(backbone.embed(ids), Place.text(2, 23), backbone.cache(2, 30))
        close(backbone.head(causal), before)


@every_tree
def test_a_tree_in_one_forward_equals_its_paths_one_by_one(tree):
    """Three rows of different lengths, one of them a single token; other architectures have one
    tree in test_architectures.py."""
    target = tiny.target("everything")
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9]]
    state = target.open(prompts, [20] * 3, tree.n + 1, Sampling(), ())
    drafted = torch.cat(
        [torch.tensor([[p[-1]] for p in prompts]), tokens(tree.n - 1, rows=3, seed=5)], 1
    )
    with torch.no_grad():
        found = target.score(
            state, Draft(tree, drafted, torch.ones_like(drafted, dtype=torch.bool), Scheme.POINT)
        ).logits
    for row, prompt in enumerate(prompts):
        parents = tree.host[row if tree.R > 1 else 0]
        for node in range(tree.n):
            if node and parents[node] < 0:
                continue  # padding
            path = tiny.path_to(parents, drafted[row].tolist(), node)
            close(found[row, node], tiny.forward(target.model, prompt + path)[-1])


# --------------------------------------------------------------------------------------- refusals


SMALL = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
T5_SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("model_class", "config", "named"),
    [
        (
            T5ForConditionalGeneration,
            T5Config(vocab_size=16, **T5_SIZES),
            "'t5' is an encoder-decoder",
        ),
        (
            AutoModelForCausalLM,
            Qwen3NextConfig(**SMALL, **HEADS, **LINEAR),
            "'qwen3_next' has layers of type 'linear_attention'",
        ),
        (
            AutoModelForCausalLM,
            BloomConfig(**{**SMALL, "num_hidden_layers": 1}, n_layer=1, n_head=2),
            "'bloom' is not supported: it has no fast path, and its own forward does not take",
        ),
    ],
    ids=["t5", "qwen3_next", "bloom"],
)
def test_what_cannot_be_right_is_refused_by_name(model_class, config, named, tmp_path):
    make = getattr(model_class, "from_config", model_class)
    built = make(config)
    with pytest.raises(specwb.UnsupportedModel, match=named):
        specwb.load(built)
    built.save_pretrained(tmp_path)
    with pytest.raises(specwb.UnsupportedModel, match=named):
        specwb.load(tmp_path, tokenizer=SimpleNamespace(eos_token_id=None, get_vocab=dict))


def test_a_model_whose_nodes_see_their_siblings_is_refused():
    """As one does that takes of a mask how far it reaches and no more: the root is right then."""
    model = tiny.build("llama", dtype=tiny.EXACT)
    plain = model.model.forward

    def filled(*args, attention_mask=None, **more):
        if attention_mask is not None and attention_mask.ndim == 4:
            unseen = torch.finfo(attention_mask.dtype).min
            reach = (attention_mask == 0).int().flip(-1).cummax(-1).values.flip(-1)
            attention_mask = attention_mask.masked_fill(reach == 1, 0).masked_fill(
                reach == 0, unseen
            )
        return plain(*args, attention_mask=attention_mask, **more)

    specwb.load(model, generic=True)
    model.model.forward = filled
    with pytest.raises(specwb.UnsupportedModel, match="its logits are off by"):
        specwb.load(model, generic=True)


class Adapted(nn.Linear):
    """What an adapter or a quantised layer is to a backbone: more than its weight."""

    def forward(self, x):
        return super().forward(x) + 0.5


@pytest.mark.parametrize("where", ["self_attn.q_proj", "mlp.down_proj", "lm_head"])
def test_a_layer_that_is_more_than_its_weights_goes_the_generic_way(where):
    """Reading their weights alone would leave out what they add."""
    model = tiny.build("llama", dtype=tiny.EXACT)
    owner = model if where == "lm_head" else model.model.layers[1]
    *path, name = where.split(".")
    for part in path:
        owner = getattr(owner, part)
    old = getattr(owner, name)
    setattr(owner, name, Adapted(old.in_features, old.out_features, bias=False).to(tiny.EXACT))
    target = specwb.load(model)
    assert target.backbone.whole
    assert "layers of type Adapted" in target.backbone.reason
    ids = tokens(11)
    hidden = run(target.backbone, target.backbone.embed(ids), 0, target.backbone.cache(1, 11))[0]
    with torch.no_grad():
        close(target.backbone.head(hidden)[0], tiny.forward(model, ids[0]), 1e-9)


def test_constants_are_not_rounded_with_the_weights():
    """A rounded frequency turns keys the more wrongly the later they stand."""
    cast = specwb.load(tiny.build("llama"), dtype="bfloat16")
    assert cast.dtype is torch.bfloat16
    frequencies = cast.model.model.rotary_emb.inv_freq
    assert frequencies.dtype is torch.float32
    assert torch.equal(frequencies, tiny.build("llama").model.rotary_emb.inv_freq)
