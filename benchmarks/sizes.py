"""The engine on random Llamas of three sizes.

    python benchmarks/sizes.py [--sizes 9,100,410] [--out FILE]

For each size, float32, batch 1, a text of 64 tokens, all in one run and taking turns:

1. plain decoding by the engine over ``transformers.generate``, and over the time that reading the
   weights once takes (``torch.sum`` of as many bytes): 1 is the most that a batch of one can reach;
2. one forward over a draft of 5 and of 9 tokens over one of 1 token.

It prints medians of turns and, behind each, the ratio of the fastest turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

import specwb
from specwb.evaluation.conditions import describe_device
from specwb.flow import Draft, Scheme, State
from specwb.models.products import packed_bytes
from specwb.probability import Sampling

SHAPES = {  # millions of parameters: layers, hidden, intermediate, heads, key/value heads
    9: (12, 256, 1024, 4, 2),
    100: (12, 768, 2048, 12, 4),
    410: (24, 1024, 4096, 16, 16),
}
VOCABULARY = 4096
PROMPT = 64


def random_llama(size: int, context: int = 1024) -> specwb.Target:
    layers, hidden, intermediate, heads, kv_heads = SHAPES[size]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    return specwb.Target(model, name=f"random {size}M")


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
    tree = specwb.Tree.chain(n - 1)
    tokens = torch.randint(0, VOCABULARY, (1, n))
    draft = Draft(tree, tokens, torch.ones(1, n, dtype=torch.bool), Scheme.POINT)

    def call():
        state._masks.clear()
        target.score(state, draft)

    return call


def measure(size: int, turns: int, tokens: int) -> dict:
    """Measures one size."""
    target = random_llama(size)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, VOCABULARY, (1, PROMPT), generator=generator)
    row = prompt[0].tolist()
    weights = [
        weight
        for name, weight in target.model.named_parameters()
        if weight.dim() == 2 and "embed" not in name
    ]

    def library():
        target.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=False,
        )

    def ours():
        specwb.decode(target, row, "ar", max_new_tokens=tokens, eos=())

    def read():
        for weight in weights:
            weight.sum()

    with torch.inference_mode():
        state = target.open([row], [64], 40, Sampling(), ())
        seconds = take_turns({"library": library, "ours": ours}, turns)
        forwards = {str(n): scoring(target, state, n) for n in (1, 5, 9)}
        seconds |= take_turns({**forwards, "read": read}, 8 * turns)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    fastest = {name: min(values) for name, values in seconds.items()}
    both = (median, fastest)
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "tokens_per_second": {
            name: round(tokens / median[name], 1) for name in ("ours", "library")
        },
        "over_library": [round(t["library"] / t["ours"], 3) for t in both],
        "over_reading": [round(t["ours"] / tokens / t["read"], 2) for t in both],
        "forward_ms": {name: round(1e3 * median[name], 3) for name in ("1", "5", "9", "read")},
        "five_over_one": [round(t["5"] / t["1"], 2) for t in both],
        "nine_over_one": [round(t["9"] / t["1"], 2) for t in both],
        "packed_megabytes": round(packed_bytes() / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", default="9,100,410")
    parser.add_argument("--rounds", type=int, default=7, help="how many turns")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    result: dict = {"device": describe_device(torch.device("cpu")), "sizes": {}}
    print(result["device"])
    for size in map(int, args.sizes.split(",")):
        figures = measure(size, args.rounds, args.tokens)
        result["sizes"][size] = figures
        values = "  ".join(f"{name} {value}" for name, value in figures.items())
        print(f"{size} M: {values}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
