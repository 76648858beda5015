"""What it costs to run a model the generic way, and what long texts cost.

    python benchmarks/models.py [--sizes 9,100] [--long 32768] [--out FILE]

On random Llamas (benchmarks/floor.py), float32, batch 1; whatever is compared takes turns:

1. ways: plain decoding by the fast way and by the generic one, which calls the library's own
   forward, over the library's ``generate``;
2. long: seconds and the most memory that a process holds for a long prompt, in a process of its
   own, without a draft and with a tree of draft tokens.

Times are medians of turns; behind ratios of them stands that of the fastest turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from floor import random_llama, take_turns

import specwb
from specwb.lab.bench.conditions import describe_device

MIB = 2**20


def held(what: str) -> float:
    """MiB that this process holds (``VmRSS``), or has held at most (``VmHWM``); Linux only.

    getrusage's maximum would be the parent's where that is larger.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> list[float]:
    """Of the medians, and of the fastest turns."""
    both = (statistics.median, min)
    return [round(middle(seconds[over]) / middle(seconds[under]), 3) for middle in both]


def ways(size: int, turns: int, tokens: int) -> dict:
    """Plain decoding three ways."""
    fast = random_llama(size)
    generic = specwb.load(fast.model, generic=True)
    prompt = torch.randint(0, fast.vocabulary, (1, 64), generator=torch.Generator().manual_seed(1))
    row = prompt[0].tolist()
    settings = {"attention_mask": torch.ones_like(prompt), "do_sample": False}

    def library() -> object:
        return generic.model.generate(prompt, max_new_tokens=tokens, **settings)

    def ours(target: specwb.Target) -> object:
        return specwb.decode(target, row, "ar", max_new_tokens=tokens, eos=())

    calls = {"library": library, "fast": lambda: ours(fast), "generic": lambda: ours(generic)}
    seconds = take_turns(calls, turns)
    return {
        "ms_a_token": {
            name: round(1e3 * statistics.median(values) / tokens, 3)
            for name, values in seconds.items()
        },
        "generic_over_library": ratio(seconds, "generic", "library"),
        "generic_over_fast": ratio(seconds, "generic", "fast"),
        "library_over_fast": ratio(seconds, "library", "fast"),
    }


def long_text(size: int, length: int, spec: str) -> dict:
    """Decodes behind a long prompt in this process, and says what that took."""
    target = random_llama(size, context=length + 256)
    more = {"draft": random_llama(size, context=length + 256)} if spec != "ar" else {}
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, target.vocabulary, (length,), generator=generator).tolist()
    specwb.decode(target, prompt[:64], spec, max_new_tokens=8, eos=(), **more)
    before, began = held("VmRSS"), time.perf_counter()
    steps = specwb.rounds(target, [prompt], spec, max_new_tokens=64, eos=(), **more)
    next(steps)
    first = time.perf_counter()
    count = sum(1 for _ in steps)
    done = time.perf_counter()
    config = target.model.config
    heads, width = config.num_key_value_heads, config.head_dim
    keys = 2 * 4 * length * config.num_hidden_layers * heads * width * (2 if more else 1)
    return {
        "seconds_to_first_step": round(first - began, 1),
        "ms_a_step_behind_it": round(1e3 * (done - first) / count, 1),
        "mib_before": round(before),
        "mib_more_at_most": round(held("VmHWM") - before),
        "mib_of_keys_and_values": round(keys / MIB),
    }


def in_a_process(size: int, length: int, spec: str) -> dict:
    """``long_text`` in a process of its own: the most that a process held never falls."""
    words = ["--inside", spec, "--sizes", str(size), "--long", str(length)]
    done = subprocess.run(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", default="9,100", help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=7, help="how many turns")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--long", type=int, default=32768, help="tokens of the long prompt")
    parser.add_argument("--inside", metavar="SPEC", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    if args.inside:
        print(json.dumps(long_text(sizes[0], args.long, args.inside)))
        return
    result: dict = {"device": describe_device(torch.device("cpu"))}
    print(result["device"])
    with torch.inference_mode():
        for size in sizes:
            result[f"ways, {size} M"] = ways(size, args.rounds, args.tokens)
    for spec in ("ar", "mcsd:tree=4-2-2"):
        result[f"{args.long} tokens, {sizes[0]} M, {spec}"] = in_a_process(
            sizes[0], args.long, spec
        )
    for name, figures in result.items():
        if isinstance(figures, dict):
            print(f"{name}: " + "  ".join(f"{key} {value}" for key, value in figures.items()))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
