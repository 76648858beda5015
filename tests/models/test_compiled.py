"""The compiled forward pass of the CPU: its kernels, the library's logits, and the same bits for a
token however many are scored with it."""

from __future__ import annotations

import copy
import os
import platform
import sys
import threading
from dataclasses import replace
from functools import cached_property

import families
import numpy as np
import pytest
import tiny
import torch
from llvmlite import binding
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import specwb
from specwb.models import compiled, kernels, products
from specwb.models.backbone import Backbone, Stack
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.fuzzy import FusedGroups, GroupError
from specwb.models.place import Place

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
DTYPES = (torch.float32, torch.bfloat16)
TEXT = 70
EVERY = [(name, dtype) for name in CONFIGS for dtype in DTYPES]


def model(name: str, dtype: torch.dtype, **changes):
    """Random and loud; all its norms and biases act."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 32}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 208}
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(
        CONFIGS[name](**sizes, tie_word_embeddings=False, eos_token_id=None, **changes)
    )
    for weight in made.parameters():
        weight.data = weight + torch.randn_like(weight) * 0.1 if weight.dim() == 1 else weight * 3
    return made.eval().to(dtype).requires_grad_(False)


class Run:
    """Logits of a model's tokens behind a text."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.model, self.dtype = model(name, dtype), dtype
        self.backbone = Backbone(self.model)
        assert compiled.fits(self.backbone)
        self.text = torch.randint(0, 208, (1, TEXT), generator=torch.Generator().manual_seed(1))

    def cache(self, rows: int = 1):
        return self.backbone.cache(rows, TEXT + 40)

    def __call__(self, ids, place, cache, threads: int = 1):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                return self.backbone.head(
                    self.backbone.run(self.backbone.embed(ids), place, cache)[0]
                )
        finally:
            torch.set_num_threads(before)

    def one(self, ids, position: int, cache):
        at = torch.tensor([[position]])
        return self(ids, Place(at, at, position + 1), cache)

    @cached_property
    def alone(self):
        """Logits and cache of the text token by token."""
        cache = self.cache()
        every = [self.one(self.text[:, i : i + 1], i, cache) for i in range(TEXT)]
        return torch.cat(every, 1), cache


@pytest.fixture(scope="module")
def runs():
    return {key: Run(*key) for key in EVERY}


@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key[0]} {key[1]}"[:14])
def test_logits_are_the_librarys(runs, key):
    run = runs[key]
    exact = run.model if key[1] is torch.float32 else Run(*key).model.float()
    torch.testing.assert_close(
        run.alone[0],
        exact(run.text).logits,
        atol=2e-5 if exact is run.model else 0.1,
        rtol=0,
    )


@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key[0]} {key[1]}"[:14])
def test_a_text_in_chunks_has_the_same_bits(runs, key):
    run = runs[key]
    alone, cache = run.alone
    for size, threads in ((TEXT, 3), (37, 1), (7, 3), (6, 1), (2, 3)):
        chunks, other = [], run.cache()
        for start in range(0, TEXT, size):
            stop = min(start + size, TEXT)
            place = Place.behind(torch.arange(start, stop)[None], stop, run.dtype)
            place = place if start else Place.text(1, stop)
            chunks.append(run(run.text[:, start:stop], place, other, threads))
        assert torch.equal(torch.cat(chunks, 1), alone)
        assert torch.equal(other.data, cache.data)


@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key[0]} {key[1]}"[:14])
def test_a_node_of_a_tree_has_the_bits_of_its_path(runs, key):
    """Random trees behind texts of random lengths, in two rows at once."""
    run, rng = runs[key], np.random.default_rng(2)
    whole = run.alone[1]
    for _ in range(4):
        lengths, n = rng.integers(1, TEXT, 2), int(rng.integers(2, 30))
        parents = [-1, *(int(rng.integers(max(0, i - 6), i)) for i in range(1, n))]
        paths = []
        for i in range(n):
            paths.append([*(paths[parents[i]] if i else []), i])
        extent = int(lengths.max()) + n
        mask = torch.full((2, n, extent), torch.finfo(run.dtype).min, dtype=run.dtype)
        for row, length in enumerate(lengths):
            mask[row, :, :length] = 0
            for i, path in enumerate(paths):
                mask[row, i, [length + j for j in path]] = 0
        bases = torch.as_tensor(lengths)[:, None]
        depths = torch.tensor([len(path) - 1 for path in paths])
        ids = torch.as_tensor(rng.integers(0, 208, (2, n)))
        cache = run.cache(2)
        cache.data.copy_(whole.data.expand_as(cache.data))
        place = Place(bases + depths, bases + torch.arange(n), extent, mask)
        logits = run(ids, place, cache, threads=2)
        path = max(paths, key=len)
        some = torch.tensor([*path[: 1 + len(path) // 2], *(n + i for i in path)])
        cache.data.copy_(whole.data.expand_as(cache.data))
        part = run(ids, replace(place, computed=some), cache, threads=2)
        assert torch.equal(part.flatten(0, 1)[some], logits.flatten(0, 1)[some])
        for row, length in enumerate(lengths.tolist()):
            cache = run.cache()
            cache.data.copy_(whole.data)
            for depth, node in enumerate(path):
                alone = run.one(ids[row : row + 1, node : node + 1], length + depth, cache)
                assert torch.equal(alone[0, 0], logits[row, node])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ["sps:gamma=3", "mcsd:tree=2-2-1"])
def test_greedy_texts_are_plain_decodings_in_every_number_type(dtype, options):
    target, draft = (specwb.load(model("llama", dtype)) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    for weight in draft.model.parameters():  # a little different
        weight.add_(torch.randn(weight.shape, generator=generator).to(dtype) * 0.02)
    prompts = [[1, 2, 3], [9, 8, 7, 6, 5, 9, 8]]
    method = specwb.method(options, target, draft=draft)
    plain = specwb.decode(target, prompts, "ar", max_new_tokens=60)
    assert specwb.decode(target, prompts, method, max_new_tokens=60).tokens == plain.tokens


def test_verification_from_drafted_states_has_the_bits_of_plain_decoding():
    """In bfloat16, where other sums would be seen first; of the shipped family."""
    target, prompts = specwb.load("lab", dtype=torch.bfloat16), [[5, 6, 7, 8], [100, 200, 1, 2, 3]]
    plain = specwb.decode(target, prompts, "ar", max_new_tokens=24, eos=())
    out = specwb.decode(target, prompts, "kangaroo", max_new_tokens=24, eos=())
    assert out.tokens == plain.tokens
    assert out.mean_tokens_per_step > 1.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 13])
def test_products_compared_with_float64(dtype, tokens):
    generator = torch.Generator().manual_seed(tokens)
    weight = torch.randn(112, 224, generator=generator).to(dtype)
    x = torch.randn(tokens, 224, generator=generator)
    with torch.inference_mode():
        out = products.product(x, weight)
        each = torch.cat([products.product(row[None], weight) for row in x])
    assert torch.equal(out, each)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, atol=2e-5, rtol=1e-5)


def rounded(weight):
    """Rounds a weight to int8 in place, and gives it that form."""
    weight.int8 = products.Int8.of(*products.quantized(weight))
    return weight.copy_(weight.int8.numbers)


@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 13])
def test_products_in_int8_compared_with_float64(tokens):
    generator = torch.Generator().manual_seed(tokens)
    weight = rounded(torch.randn(112, 224, generator=generator))
    x = torch.randn(tokens, 224, generator=generator)
    for is_read in (True, False):
        with torch.inference_mode():
            out = products.product(x, weight)
            each = torch.cat([products.product(row[None], weight) for row in x])
        assert (products.int8_rows(weight) is not None) == is_read
        assert torch.equal(out, each)
        exact = x.double() @ weight.double().T
        torch.testing.assert_close(out.double(), exact, atol=2e-5, rtol=1e-5)
        if is_read:  # the integers, and not the weight
            weight.int8.rows[0, 0] += 1
            with torch.inference_mode():
                assert not torch.equal(products.product(x, weight)[:, 0], out[:, 0])
        weight.mul_(-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_in_int8_has_the_states_of_its_weights(dtype):
    """Until one of them is edited, fused or not; then all are read as they lie."""
    target = specwb.load(model("llama", torch.float32))
    x = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0))

    def run(head, like):
        stack = Stack.of(head)
        with torch.inference_mode():
            out = stack.run(x.to(stack.dtype), Place.text(1, 6), stack.cache(1, 6))[0].float()
        assert stack.compiled.like.dtype == like
        return out

    for edited in ("layers.0.self_attn.k_proj", "layers.1.mlp.down_proj"):
        head = EagleHead(eagle_config(target, layers=2), 64)
        head = tiny.loud(lambda head=head: head, 1).requires_grad_(False)
        for weight in head.layers.parameters():
            if weight.ndim == 2:
                rounded(weight)
        exact = run(copy.deepcopy(head), np.float32)
        head.to(dtype)
        in_int8 = run(head, np.int8)
        plain = run(copy.deepcopy(head), compiled.DTYPES[dtype])
        # bfloat16 rounds the plain weights, not their int8 forms
        assert error(in_int8, exact) <= max(1e-5, error(plain, exact))
        head.get_parameter(f"{edited}.weight").mul_(1.5)
        after = run(head, compiled.DTYPES[dtype])
        assert torch.equal(after, run(copy.deepcopy(head), compiled.DTYPES[dtype]))
        assert error(after, plain) > 0.01


def error(x, exact):
    return float((x - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("name", "way"), [("qwen2", "compiled"), ("qwen3", "compiled"), ("qwen3", "torch")]
)
def test_weights_edited_between_decodings_are_seen(name, way, monkeypatch):
    target = specwb.load(model(name, torch.float32))
    if way == "torch":
        monkeypatch.setattr(products, "compiled_pass", lambda: None)
    edits = ["layers.1.input_layernorm.weight", "layers.2.mlp.down_proj.weight"]
    edits += ["layers.2.post_attention_layernorm.weight", "norm.weight"]
    own = {"qwen2": ["k_proj.bias"], "qwen3": ["q_norm.weight", "k_norm.weight"]}[name]
    edits += [f"layers.0.self_attn.{part}" for part in own]
    for edit in ("lm_head.weight", *(f"model.{edit}" for edit in edits)):
        before = logits(target)
        target.model.get_parameter(edit).mul_(1.5)
        assert not torch.equal(before, logits(target))
        torch.testing.assert_close(logits(target), librarys(target), atol=2e-5, rtol=0)


IDS = torch.tensor([[5, 6, 7, 8, 9, 5, 6]])


def logits(target):
    """Of a text in two parts, the second with a mask."""
    backbone, n, first = target.backbone, IDS.shape[1], 3
    cache, parts = backbone.cache(1, n), []
    with torch.inference_mode():
        for start, stop in ((0, first), (first, n)):
            place = Place.behind(torch.arange(start, stop)[None], stop, backbone.dtype)
            place = place if start else Place.text(1, stop)
            parts.append(backbone.run(backbone.embed(IDS[:, start:stop]), place, cache)[0])
        return backbone.head(torch.cat(parts, 1))


def librarys(target):
    with torch.no_grad():
        return target.model(IDS).logits


def test_several_callers_and_a_fork(runs):
    """Four threads that decode at once, then a process forked from this one."""
    run = runs["llama", torch.float32]
    place, found = Place.text(1, TEXT), []
    wanted = run(run.text, place, run.cache(), threads=2)

    def call():
        for _ in range(5):
            found.append(torch.equal(run(run.text, place, run.cache(), threads=2), wanted))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == [True] * 20
    child = os.fork()
    if not child:
        same = torch.equal(run(run.text, place, run.cache(), threads=2), wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_weight_replaced_during_a_decoding_is_seen_from_the_next_on():
    """Until then the pass reads the memory of the old one, which it keeps."""
    run = Run("llama", torch.float32)
    cache, place = run.cache(), Place.text(1, TEXT)
    before = run(run.text, place, cache)
    projection = run.model.model.layers[1].self_attn.o_proj
    new, shape = projection.weight * 2, projection.weight.shape
    projection.weight = nn.Parameter(new, requires_grad=False)
    others = [torch.full(shape, torch.nan) for _ in range(64)]  # where it lay, if it was freed
    assert torch.equal(run(run.text, place, cache), before)
    after = run(run.text, place, run.cache())
    torch.testing.assert_close(after, run.model(run.text).logits, atol=2e-5, rtol=0)
    assert not torch.equal(after, before)
    del others


def test_a_cache_that_another_thread_opens_does_not_change_the_way():
    backbone = Backbone(model("llama", torch.float32))

    class Interrupted(list):
        def __getitem__(self, i):
            if backbone.compiled:
                backbone.compiled = None  # as the other thread's cache does
            return super().__getitem__(i)

    backbone.layers = Interrupted(backbone.layers)
    with torch.inference_mode():
        x, cache = backbone.embed(IDS), backbone.cache(1, 8)
        assert isinstance(backbone.compiled_layers(x, cache, 0, None), compiled.Layers)


def test_only_the_compiled_pass_has_threads_in_a_step():
    before, seen = torch.get_num_threads(), []
    target = specwb.Target(model("llama", torch.float32))

    def team(threads, *args):
        seen.append((threads, torch.get_num_threads(), products.one_thread.threads))
        compiled.Team()(1, *args)

    torch.set_num_threads(3)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "LEAST", 0)
            steps = specwb.rounds(target, [1, 2, 3], "ar", max_new_tokens=4)
            next(steps)
            patch.setattr(compiled, "team", team)
            for _ in steps:
                assert torch.get_num_threads() == 3
        assert set(seen) == {(3, 1, 3)}
        with products.one_thread:
            other = threading.Thread(target=lambda: seen.append(products.one_thread.threads))
            other.start()
            other.join()
        assert seen[-1] == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def imported_anew(monkeypatch):
    """The modules of the compiled pass are imported again when they are next used."""
    for module in (compiled, kernels):
        monkeypatch.delitem(sys.modules, module.__name__)
        monkeypatch.setattr(specwb.models, module.__name__.rpartition(".")[2], module)
    products.compiled_pass.cache_clear()
    yield
    products.compiled_pass.cache_clear()


# ------------------------------------------------------------------------ which layers are compiled


"""Families that torch runs for another reason than their norms and activations."""


COMPILED = {"llama", "qwen2", "qwen3", "seed_oss", "phi3-longrope", "llama-dynamic"}


def sized(name: str) -> nn.Module:
    """A family in float32 at sizes that the pass takes, so that only its architecture decides."""
    changes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    rope = families.FAST[name].get("rope_parameters", {})
    if "short_factor" in rope:
        longer = {key: value * 2 for key, value in rope.items() if isinstance(value, list)}
        changes["rope_parameters"] = {**rope, **longer}
    return families.build(name, dtype=torch.float32, **changes)


@pytest.mark.parametrize("name", families.FAST)
def test_an_architecture_fits_or_stays_with_torch(name, monkeypatch):
    """The compiled pass has torch's logits up to rounding in float32, or torch runs."""
    target = specwb.load(sized(name))
    passes, call = [], compiled.Layers.__call__
    monkeypatch.setattr(
        compiled.Layers, "__call__", lambda *args: passes.append(args) or call(*args)
    )
    here = logits(target)
    assert len(passes) == (2 if name in COMPILED else 0)
    monkeypatch.setattr(products, "compiled_pass", lambda: None)
    wanted = logits(target)
    close = 4e-7 * 16 * float(wanted.abs().max())
    torch.testing.assert_close(here, wanted, atol=close, rtol=0)
    torch.testing.assert_close(wanted, librarys(target), atol=close, rtol=0)


class Norm(nn.Module):
    """A norm with a weight and an ``eps``, which is neither Llama's nor Gemma's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), 1e-6

    def forward(self, x):
        return x / x.abs().mean(-1, keepdim=True) * self.weight


def rms_norm(width: int, eps: float) -> nn.Module:
    made = LlamaRMSNorm(width, eps)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    return made


def narrowed(layer: nn.Module) -> None:
    """Its MLP has fewer neurons than the others'."""
    for name in ("gate_proj", "up_proj"):
        part = getattr(layer.mlp, name)
        part.weight = nn.Parameter(part.weight[:64].clone())
    layer.mlp.down_proj.weight = nn.Parameter(layer.mlp.down_proj.weight[:, :64].clone())


def biased(part: nn.Module) -> None:
    part.bias = nn.Parameter(torch.rand(len(part.weight)))


# each makes one layer of a model unlike the others
EDITS = {
    "input LayerNorm": lambda x: setattr(x, "input_layernorm", nn.LayerNorm(64)),
    "a norm of its own": lambda x: setattr(x, "post_attention_layernorm", Norm(64)),
    "no input norm": lambda x: setattr(x, "input_layernorm", nn.Identity()),
    "post-attention epsilon": lambda x: setattr(x, "post_attention_layernorm", rms_norm(64, 0.5)),
    "a weight in bfloat16": lambda x: x.self_attn.o_proj.bfloat16(),
    "a narrower MLP": narrowed,
    "a bias of q": lambda x: biased(x.self_attn.q_proj),
    "a bias of down": lambda x: biased(x.mlp.down_proj),
    "another activation": lambda x: setattr(x.mlp, "act_fn", nn.GELU()),
    "another scale": lambda x: setattr(x.self_attn, "scaling", 0.5),
}
QWEN3 = {
    "heads' epsilon": lambda x: [
        setattr(x.self_attn, norm, rms_norm(32, 0.5)) for norm in ("q_norm", "k_norm")
    ],
    "a norm of heads of its own": lambda x: setattr(x.self_attn, "q_norm", Norm(32)),
}


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("edit", [*EDITS, *QWEN3])
def test_a_layer_unlike_the_others_stays_with_torch(edit, place):
    """Or runs compiled where that is right; the logits are the library's."""
    made = model("qwen3", torch.float32)
    (EDITS | QWEN3)[edit](made.model.layers[place])
    with torch.no_grad():  # which the library does not compute in two number types
        wanted = copy.deepcopy(made).float()(IDS).logits
    target = specwb.load(made)
    fits = not target.backbone.whole and compiled.fits(target.backbone)
    assert fits == (edit == "no input norm" and place == 0)
    assert target.backbone.whole == (edit in QWEN3 and edit != "heads' epsilon")
    torch.testing.assert_close(logits(target), wanted, atol=5e-5, rtol=0)


def test_layers_with_other_numbers_are_not_fused():
    made = model("qwen3", torch.float32)
    target = specwb.load(made)
    groups = FusedGroups(((0,), (1, 2)))
    groups.check(target.backbone, 3)
    EDITS["another scale"](made.model.layers[2])
    with pytest.raises(GroupError, match="use execution=simulation"):
        groups.check(Backbone(made), 3)


def test_the_first_layer_of_eagle_is_compiled(monkeypatch):
    """It has no norm before its attention, which reads the residual stream."""
    target = specwb.load(model("llama", torch.float32))
    head = tiny.loud(lambda: EagleHead(eagle_config(target, layers=2), 64), 1).requires_grad_(False)
    stack, place = Stack.of(head), Place.text(1, 6)
    assert compiled.fits(stack)
    x = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0))

    def run(attended):
        with torch.inference_mode():
            return stack.run(x, place, stack.cache(1, 6), attended=attended)[0]

    both = run(x), run(None)
    assert torch.equal(*both)
    assert not torch.equal(run(2 * x), both[0])
    monkeypatch.setattr(products, "compiled_pass", lambda: None)
    torch.testing.assert_close(both[0], run(None), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_sees_nothing_spoils_no_other(dtype):
    """Its state is finite; the other tokens have the bits that they have without it."""
    run = Run("llama", dtype)
    place = Place.behind(torch.arange(3, 7)[None], 7, dtype)
    mask = place.mask.clone()
    mask[:, 2] = torch.finfo(dtype).min

    def states(mask, layers):
        cache = run.cache()
        run(run.text[:, :3], Place.text(1, 3), cache)
        cache.data[:, :, 3:] = torch.nan  # nothing of it is read before it is written
        with torch.inference_mode():
            x = run.backbone.embed(run.text[:, 3:7])
            at = Place(place.positions, place.slots, 7, mask)
            return run.backbone.run(x, at, cache, last=layers)[0]

    assert torch.equal(states(mask, 1)[:, :2], states(place.mask, 1)[:, :2])
    assert states(mask, None).isfinite().all()


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("off", None),
        ("no numba", "no compiled forward pass (import of numba halted"),
        ("no fma", "no compiled forward pass (this processor has no instruction for fma)"),
    ],
)
def test_without_the_compiled_pass(case, line, monkeypatch, caplog, imported_anew):
    """Texts are decoded by torch's operators, with one line where it was not asked for."""
    if case == "off":
        monkeypatch.setenv("SPECWB_COMPILED", "0")
    elif case == "no numba":
        monkeypatch.setitem(sys.modules, "numba", None)
    else:
        monkeypatch.setattr(binding, "get_host_cpu_features", dict)
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    target = specwb.load(model("llama", torch.float32))
    out = specwb.decode(target, [[1, 2, 3]], "ar", max_new_tokens=8)
    assert products.compiled_pass() is None
    assert len(out.tokens[0]) == 8
    assert len(caplog.messages) == (line is not None)
    assert line is None or line in caplog.text
