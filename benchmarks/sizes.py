"""The engine on random Llamas of three sizes: python benchmarks/sizes.py [--sizes 9,100,410] [--out FILE]

For each size, float32, batch 1, a text of 64 tokens, all in one run and taking turns:

1. plain decoding by the engine over ``transformers.generate``, and over the time that reading the
   weights once takes (``torch.sum`` of as many bytes): 1 is the most that a batch of one can reach;
2. one forward over a draft of 5 and of 9 tokens over one of 1 token.

Medians of rounds that take turns, with the fastest in brackets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import transformers

import specwb
from specwb.evaluation.compare import describe_device
from specwb.models.products import packed_bytes
from specwb.probability import Sampling

SHAPES = {  # millions of parameters: layers, hidden, intermediate, heads, key/value heads
    9: (12, 256, 1024, 4, 2),
    100: (12, 768, 2048, 12, 4),
    410: (24, 1024, 4096, 16, 16),
}
VOCABULARY = 4096
PROMPT = 64


def random_llama(size: int) -> specwb.Target:
    layers, hidden, intermediate, heads, kv_heads = SHAPES[size]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    return specwb.Target(model, name=f"random {size}M")


def seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def turns(calls: dict, rounds: int) -> dict[str, list[float]]:
    for call in calls.values():
        call()
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(seconds(call))
    return found


def measure(size: int, rounds: int, tokens: int) -> dict:
    target = random_llama(size)
    prompt = torch.randint(0, VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    weights = [p for n, p in target.model.named_parameters() if p.dim() == 2 and "embed" not in n]
    count = sum(w.numel() for w in weights)

    def library():
        target.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False)

    def ours():
        specwb.decode(target, prompt[0].tolist(), "ar", max_new_tokens=tokens, eos=())

    def read():
        for w in weights:
            w.sum()

    with torch.inference_mode():
        state = target.open([prompt[0].tolist()], [64], 40, Sampling(), ())
        decoding = turns({"library": library, "ours": ours}, rounds)
        forwards = turns({str(n): forward(target, state, n) for n in (1, 5, 9)} | {"read": read}, 8 * rounds)
    middle = {k: statistics.median(v) for k, v in {**decoding, **forwards}.items()}
    least = {k: min(v) for k, v in {**decoding, **forwards}.items()}
    return {
        "parameters": count,
        "tokens_per_second": {k: round(tokens / middle[k], 1) for k in ("ours", "library")},
        "over_library": [round(of["library"] / of["ours"], 3) for of in (middle, least)],
        "over_reading": [round(of["ours"] / tokens / of["read"], 2) for of in (middle, least)],
        "forward_ms": {n: round(1e3 * middle[n], 3) for n in ("1", "5", "9", "read")},
        "five_over_one": [round(of["5"] / of["1"], 2) for of in (middle, least)],
        "nine_over_one": [round(of["9"] / of["1"], 2) for of in (middle, least)],
        "packed_megabytes": round(packed_bytes() / 2**20, 1),
    }


def forward(target: specwb.Target, state, n: int):
    """One scoring of a chain of n tokens."""
    from specwb.flow import Draft, Law

    tree = specwb.Tree.chain(n - 1)
    tokens = torch.randint(0, VOCABULARY, (1, n))
    draft = Draft(tree, tokens, torch.ones(1, n, dtype=torch.bool), Law.POINT)

    def call():
        state._masks.clear()
        target.score(state, draft)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", default="9,100,410")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    result = {"device": describe_device(torch.device("cpu")), "sizes": {}}
    print(result["device"])
    for size in map(int, args.sizes.split(",")):
        result["sizes"][size] = found = measure(size, args.rounds, args.tokens)
        print(f"{size} M: " + "  ".join(f"{k} {v}" for k, v in found.items()), flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
