"""How far the engine is from reading the weights once: on random Llamas, or a model of yours.

    python benchmarks/floor.py [--sizes 9 100 135 410] [--dtypes float32 bfloat16]
        [--target FOLDER] [--out FILE]

135 has the shape of SmolLM2-135M. For each size and number type, batch 1, a text of 64 tokens, all
in one run and taking turns:

1. plain decoding by the engine over ``transformers.generate`` in the same number type, and the
   read floor over it: the time in which ``torch.sum`` reads as many bytes of float32 as the weights
   have, over that of a token. 1 would be a token in the time of reading the weights once. A token
   is what 40 tokens take beyond 8, so that neither has the prompt in it;
2. one forward over a draft of 2, 5, 9 and 17 tokens over one of 1 token;
3. the same forwards by torch's operators in the place of the compiled pass, over ours. A step of
   ``torch.compile`` is not measured: its code is for one number of tokens and one context length.

It prints medians of turns and, behind each ratio, that of the fastest turns. A model whose share of
the floor is above 1, or one of whose forwards takes 1.3 times as long as a whole token, was
disturbed: it is measured again, up to three times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import transformers

import specwb
from specwb.core.flow import State, chain
from specwb.core.probability import Sampling
from specwb.lab.bench.conditions import describe_device
from specwb.models import products

# millions of parameters: layers, hidden, intermediate, heads, key/value heads, vocabulary
SHAPES = {
    9: (12, 256, 1024, 4, 2, 4096),
    100: (12, 768, 2048, 12, 4, 4096),
    135: (30, 576, 1536, 9, 3, 49152),
    410: (24, 1024, 4096, 16, 16, 4096),
}
PROMPT, SHORT, LONG = 64, 8, 40
CHAINS = (1, 2, 5, 9, 17)


def random_llama(size: int, context: int = 1024, dtype: str = "float32") -> specwb.Target:
    layers, hidden, intermediate, heads, kv_heads, vocabulary = SHAPES[size]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=size == 135,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    return specwb.Target(model.to(getattr(torch, dtype)), name=f"random {size}M")


def take_turns(calls: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Returns the seconds of every call; the calls take turns."""
    for call in calls.values():
        call()
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def scoring(target: specwb.Target, state: State, n: int) -> Callable[[], object]:
    """Returns a call that scores a chain of n tokens."""
    draft = chain(torch.randint(0, target.vocabulary, (1, n)))

    def call():
        state._masks.clear()
        target.score(state, draft)

    return call


def by_torch(call: Callable[[], object]) -> Callable[[], object]:
    """Returns a call without the compiled pass."""

    def run():
        with mock.patch.object(products, "compiled_pass", return_value=None):
            call()

    return run


def measure(target: specwb.Target, turns: int) -> dict:
    """Measures one model."""
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, target.vocabulary, (1, PROMPT), generator=generator)
    row = prompt[0].tolist()
    weights = {p.data_ptr(): p for p in target.model.parameters() if p.dim() == 2}
    if target.model.lm_head.weight is not target.model.get_input_embeddings().weight:
        del weights[target.model.get_input_embeddings().weight.data_ptr()]
    size = sum(weight.nbytes for weight in weights.values())
    # in pieces that no cache holds from one turn to the next
    memory = [torch.ones(min(size, 2**26) // 4) for _ in range(max(1, size // 2**26))]
    scale = size / sum(piece.nbytes for piece in memory)

    def library(tokens: int) -> Callable[[], object]:
        ones = torch.ones_like(prompt)
        settings = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens}
        return lambda: target.model.generate(prompt, attention_mask=ones, **settings)

    def ours(tokens: int) -> Callable[[], object]:
        return lambda: specwb.decode(target, row, "ar", max_new_tokens=tokens, eos=())

    calls = {
        f"{name} {tokens}": call(tokens)
        for name, call in (("library", library), ("ours", ours))
        for tokens in (SHORT, LONG)
    }
    with torch.inference_mode():
        state = target.open([row], [64], 40, Sampling(), ())
        taken = take_turns(calls, turns)
        forwards = {str(n): scoring(target, state, n) for n in CHAINS}
        read = {"read": lambda: [piece.sum() for piece in memory]}
        taken |= take_turns(forwards | read, 8 * turns)
        torchs = {f"torch {n}": by_torch(call) for n, call in forwards.items()}
        taken |= take_turns(torchs, 2 * turns)
    for name in ("library", "ours"):
        pairs = zip(taken[f"{name} {LONG}"], taken[f"{name} {SHORT}"], strict=True)
        taken[name] = [(long - short) / (LONG - SHORT) for long, short in pairs]
    taken["read"] = [seconds * scale for seconds in taken["read"]]
    both = [{name: f(v) for name, v in taken.items()} for f in (statistics.median, min)]
    return {
        "megabytes": round(size / 1e6, 1),
        "gigabytes_per_second": round(size / both[0]["read"] / 1e9, 1),
        "tokens_per_second": {n: round(1 / both[0][n], 1) for n in ("ours", "library")},
        "over_library": [round(t["library"] / t["ours"], 2) for t in both],
        "of_read_floor": [round(t["read"] / t["ours"], 2) for t in both],
        "forward_ms": {n: round(1e3 * both[0][n], 2) for n in (*map(str, CHAINS), "read")},
        "over_one": {n: [round(t[str(n)] / t["1"], 2) for t in both] for n in CHAINS[1:]},
        "torch_over_ours": {
            n: [round(t[f"torch {n}"] / t[str(n)], 2) for t in both] for n in CHAINS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    known = ("float32", "bfloat16", "float16")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--dtypes", nargs="+", default=known[:2], choices=known)
    parser.add_argument("--target", help="a name or folder, in the place of the sizes")
    parser.add_argument("--rounds", type=int, default=7, help="how many turns")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.rounds < 1 or (args.threads is not None and args.threads < 1):
        parser.error("--rounds and --threads must be >= 1")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    result: dict = {"device": describe_device(torch.device("cpu")), "models": {}}
    print(result["device"])
    names = [args.target] if args.target else args.sizes
    for name, dtype in itertools.product(names, args.dtypes):
        target = specwb.load(name, dtype=dtype) if args.target else random_llama(name, dtype=dtype)
        for _ in range(3):
            figures = measure(target, args.rounds)
            token = 1e3 / figures["tokens_per_second"]["ours"]
            if max(figures["of_read_floor"]) <= 1 and figures["forward_ms"]["1"] < 1.3 * token:
                break
            print(f"{target.name}, {dtype}: disturbed, measured again", flush=True)
        label = f"{target.name}, {dtype}"
        result["models"][label] = figures
        values = "  ".join(f"{name} {value}" for name, value in figures.items())
        print(f"{label}: {values}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
