"""Decoding steps as CUDA graphs against eager ones.

    python benchmarks/graphs.py [--out FILE]

Both use the same method, model and prompts, and take turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

import torch

import specwb
from specwb.lab.bench.conditions import describe_device
from specwb.models.questions import interleave, load_prompts


def measure(
    target: specwb.Target,
    method: specwb.Method,
    groups: list[list[list[int]]],
    temperature: float,
) -> dict:
    """Decodes every group of prompts with graphs and without."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    same = True
    settings = {"max_new_tokens": 64, "temperature": temperature}
    for group in [groups[0], groups[0], *groups]:  # the first two make the graphs
        with_graphs, eager = (
            specwb.decode(target, group, method, eos=(), graphs=graphs, **settings)
            for graphs in (True, False)
        )
        same &= with_graphs.tokens == eager.tokens
        rates[True].append(with_graphs.tokens_per_second)
        rates[False].append(eager.tokens_per_second)
    fast, slow = rates[True][2:], rates[False][2:]
    ratio = median(a / b for a, b in zip(fast, slow, strict=True))
    return {
        "tokens_per_second": round(median(fast), 1),
        "over_eager": round(ratio, 3),
        "same_tokens": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--methods", default="ar sps mcsd pld lookahead")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load("lab", device="cuda")
    questions = interleave(load_prompts("lab"))[: args.prompts]
    ids = [question.ids(target.tokenizer) for question in questions]
    device = describe_device(target.device)
    results: dict = {"device": device, "torch": torch.__version__, "rows": []}
    for name in args.methods.split():
        method = specwb.method(name, target)
        for temperature in (0.0, 1.0):
            for batch in (1, 8):
                groups = [
                    [ids[(i + j) % len(ids)] for j in range(batch)] for i in range(args.prompts)
                ]
                row = {"method": name, "temperature": temperature, "batch": batch}
                row |= measure(target, method, groups, temperature)
                results["rows"].append(row)
                print(row, flush=True)
                if args.out:
                    args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
