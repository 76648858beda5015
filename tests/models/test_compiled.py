"""The compiled forward pass of the CPU: its kernels, the library's logits, and the same bits for a
token however many are scored with it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from numba import njit
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

import specwb
from specwb.models import compiled, kernels, products
from specwb.models.backbone import Backbone
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

    def alone(self, cache):
        """The text token by token."""
        return torch.cat([self.one(self.text[:, i : i + 1], i, cache) for i in range(TEXT)], 1)


@pytest.fixture(scope="module")
def runs():
    return {key: Run(*key) for key in EVERY}


@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key[0]} {key[1]}"[:14])
def test_logits_are_the_librarys(runs, key):
    run = runs[key]
    exact = run.model if key[1] is torch.float32 else Run(*key).model.float()
    torch.testing.assert_close(
        run.alone(run.cache()),
        exact(run.text).logits,
        atol=2e-5 if exact is run.model else 0.1,
        rtol=0,
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("key", EVERY, ids=lambda key: f"{key[0]} {key[1]}"[:14])
def test_a_text_in_chunks_has_the_same_bits(runs, key, threads):
    run = runs[key]
    cache = run.cache()
    alone = run.alone(cache)
    for size in (TEXT, 37, 7, 6, 3, 2):
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
    whole = run.cache()
    run.alone(whole)
    for _ in range(6):
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
        for row, length in enumerate(lengths.tolist()):
            cache = run.cache()
            cache.data.copy_(whole.data)
            for depth, node in enumerate(path):
                alone = run.one(ids[row : row + 1, node : node + 1], length + depth, cache)
                assert torch.equal(alone[0, 0], logits[row, node])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ["sps:gamma=3", "mcsd:tree=2-2-1", "pld"])
def test_greedy_texts_are_plain_decodings_in_every_number_type(dtype, options):
    target, draft = (specwb.load(model("llama", dtype)) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    for weight in draft.model.parameters():  # a little different
        weight.add_(torch.randn(weight.shape, generator=generator).to(dtype) * 0.02)
    prompts = [[1, 2, 3], [9, 8, 7, 6, 5, 9, 8]]
    method = specwb.method(options, target, **({} if options == "pld" else {"draft": draft}))
    plain = specwb.decode(target, prompts, "ar", max_new_tokens=60)
    assert specwb.decode(target, prompts, method, max_new_tokens=60).tokens == plain.tokens


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def lab(request):
    target = specwb.load("lab", dtype=request.param)
    prompts = [[5, 6, 7, 8], [100, 200, 300, 44, 1, 2]]
    return target, prompts, specwb.decode(target, prompts, "ar", max_new_tokens=24, eos=())


@pytest.mark.parametrize("key", [key for key in specwb.METHODS if key != "ar"])
def test_every_methods_greedy_text_is_plain_decodings(lab, key):
    """Of the shipped family, whose heads draft something here."""
    target, prompts, plain = lab
    out = specwb.decode(target, prompts, key, max_new_tokens=24, eos=())
    assert out.tokens == plain.tokens
    assert out.mean_tokens_per_step > 1.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 13, 20])
def test_products_compared_with_float64(dtype, tokens):
    generator = torch.Generator().manual_seed(tokens)
    weight = torch.randn(112, 224, generator=generator).to(dtype)
    x = torch.randn(tokens, 224, generator=generator)
    with torch.inference_mode():
        out = products.product(x, weight)
        each = torch.cat([products.product(row[None], weight) for row in x])
    assert torch.equal(out, each)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, atol=2e-5, rtol=1e-5)


def test_kernels_compared_with_float64():
    @njit
    def call(like, q, keys, s, total, p, out, gate, up, silu):
        kernels.scores(like, 64, q, keys, 64, 21, s)
        total[1] = kernels.squares(q, 64)
        kernels.weigh(like, 64, p, keys, 64, 21, out)
        total[0] = kernels.soften(s, 32)
        kernels.gated(gate, up, silu)

    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    q, keys, p, gate, up = draw(64), draw(21, 64), draw(21), draw(16) * 9, draw(16)
    s, out, silu = np.full(32, -np.inf, np.float32), np.zeros(64, np.float32), np.empty_like(up)
    total = np.empty(2, np.float32)
    at = [x.ctypes.data for x in (q, keys, s)], [x.ctypes.data for x in (p, out, gate, up, silu)]
    call(q[:0], *at[0], total, *at[1])
    exact = keys.astype(float) @ q
    shares = np.exp(exact - exact.max())
    np.testing.assert_allclose(s[:21], shares, atol=1e-6)
    np.testing.assert_allclose(total, [shares.sum(), (q.astype(float) ** 2).sum()], rtol=1e-6)
    np.testing.assert_allclose(out, p.astype(float) @ keys, atol=1e-5)
    np.testing.assert_allclose(silu, gate / (1 + np.exp(-gate.astype(float))) * up, atol=1e-5)


def test_weights_edited_between_decodings_are_seen():
    target = specwb.load(model("qwen2", torch.float32))
    for edit in ("model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.k_proj.bias"):
        for name in (edit, "model.layers.2.mlp.down_proj.weight", "lm_head.weight"):
            before = logits(target)
            target.model.get_parameter(name).mul_(1.5)
            after = logits(target)
            assert not torch.equal(before, after)
            torch.testing.assert_close(
                after, target.model(torch.tensor([[5, 6]])).logits, atol=2e-5, rtol=0
            )


def logits(target):
    backbone = target.backbone
    with torch.inference_mode():
        hidden, _ = backbone.run(
            backbone.embed(torch.tensor([[5, 6]])), Place.text(1, 2), backbone.cache(1, 2)
        )
        return backbone.head(hidden)


def test_several_callers_and_a_fork(runs):
    """Four threads that decode at once, then a process forked from this one."""
    run = runs["llama", torch.float32]
    place, found = Place.text(1, TEXT), []
    wanted = run(run.text, place, run.cache(), threads=2)

    def call():
        for _ in range(20):
            found.append(torch.equal(run(run.text, place, run.cache(), threads=2), wanted))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == [True] * 80
    child = os.fork()
    if not child:
        same = torch.equal(run(run.text, place, run.cache(), threads=2), wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "gelu"}, {"head_dim": 24}, {"intermediate_size": 72}, {"mlp_bias": True}],
)
def test_layers_that_stay_with_torch(changes):
    made = model("llama", torch.float32)
    sizes = {**made.config.to_dict(), **changes}
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(LlamaConfig(**sizes)).eval()
    backbone = Backbone(made)
    assert not compiled.fits(backbone)
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        hidden, _ = backbone.run(backbone.embed(ids), Place.text(1, 3), backbone.cache(1, 3))
        torch.testing.assert_close(backbone.head(hidden), made(ids).logits, atol=1e-5, rtol=0)


SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import specwb
torch.manual_seed(0)
target = specwb.load(LlamaForCausalLM(LlamaConfig(**{sizes})))
print(specwb.decode(target, [[1, 2, 3]], "ar", max_new_tokens=8).tokens)
"""


@pytest.mark.parametrize(
    "broken", ["off", "no numba", pytest.param("no folder", marks=pytest.mark.slow)]
)
def test_without_the_compiled_pass(broken, tmp_path):
    """Texts are decoded by torch's operators, with one line where it was not asked for."""
    environment = {**os.environ, "SPECWB_CACHE": str(tmp_path)}
    if broken == "off":
        environment["SPECWB_COMPILED"] = "0"
    elif broken == "no numba":
        (tmp_path / "numba.py").write_text("raise ImportError('no numba here')")
        environment["PYTHONPATH"] = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    else:
        environment["SPECWB_CACHE"] = "/proc/none"
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 208}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": None}
    script = SCRIPT.format(sizes=sizes)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=root
    )
    assert done.returncode == 0, done.stderr
    assert len(ast.literal_eval(done.stdout)[0]) == 8
    lines = [line for line in done.stderr.splitlines() if "compil" in line]
    wanted_line = {"off": None, "no numba": "no numba here", "no folder": "not writable"}[broken]
    assert len(lines) == (wanted_line is not None)
    assert wanted_line is None or wanted_line in lines[0]
