"""How often a method's greedy text differs from plain decoding's in half precision.

    python benchmarks/precision.py [--dtype bfloat16] [--out FILE]

Scoring several tokens in one forward rounds differently from scoring one at a time. Where the two
best logits are closer than that, another token is chosen, and from there on the texts differ, each
as right as the other. For every method it measures the share of prompts that diverge, the rate per
token (divergences / tokens up to the first), and plain decoding's margin (best logit minus second)
where it happened, beside the distribution of all margins. In float32 the same is printed for
comparison.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

import torch

import specwb
from specwb.bench.conditions import describe, describe_device
from specwb.bench.prompts import interleave, load_prompts

QUANTILES = (0.001, 0.01, 0.05, 0.5)

# a text's tokens, and the margin at each of them
Text = tuple[list[int], list[float]]


def plain(target: specwb.Target, ids: list[int], length: int) -> Text:
    """Decodes plainly and returns the tokens with their margins."""
    tokens, margins = [], []
    steps = specwb.rounds(target, [ids], "ar", max_new_tokens=length, eos=(), trace=True)
    for step in steps:
        best, second = step.scores.logits[0, 0].float().topk(2).values
        tokens.append(int(step.verdict.bonus[0]))
        margins.append(float(best - second))
    return tokens, margins


def divergences(
    target: specwb.Target,
    method: specwb.Method,
    ids: list[list[int]],
    reference: list[Text],
    length: int,
) -> tuple[list[float], int]:
    """Returns the margins where texts diverge, and the number of tokens up to there."""
    tokens_seen, margins_there = 0, []
    for row, (tokens, margins) in zip(ids, reference, strict=True):
        settings = {"max_new_tokens": length, "eos": (), "graphs": False}
        text = specwb.decode(target, [row], method, **settings).tokens[0]
        pairs = enumerate(zip(text, tokens, strict=True))
        first = next((i for i, (a, b) in pairs if a != b), None)
        tokens_seen += length if first is None else first + 1
        if first is not None:
            margins_there.append(margins[first])
    return margins_there, tokens_seen


def measure(dtype: str, device: str, prompts: list, length: int, methods: list[str]) -> dict:
    """Measures all methods in one precision."""
    target = specwb.load("lab", dtype=dtype, device=device)
    ids = [question.ids(target.tokenizer) for question in prompts]
    reference = [plain(target, row, length) for row in ids]
    every = sorted(margin for _, margins in reference for margin in margins)
    quantiles = {str(q): round(every[int(q * len(every))], 4) for q in QUANTILES}
    results: dict = {
        "model": describe(target),
        "device": describe_device(target.device),
        "prompts": len(ids),
        "tokens": len(every),
        "margin_quantiles": quantiles,
        "methods": {},
    }
    for name in methods:
        method = specwb.method(name, target)
        margins, tokens = divergences(target, method, ids, reference, length)
        summary, where = None, ""
        if margins:
            summary = {"median": round(median(margins), 4), "largest": round(max(margins), 4)}
            values = f"median {median(margins):.3f}, largest {max(margins):.3f}"
            where = f", margin there: {values}"
        results["methods"][name] = {
            "prompts_diverged": len(margins),
            "rate_a_token": round(len(margins) / tokens, 6),
            "margin_where_diverged": summary,
        }
        rate = f"{len(margins) / tokens:.2%} a token"
        print(f"{dtype}, {name}: {len(margins)} of {len(ids)} prompts diverge, {rate}{where}")
    values = ", ".join(f"{float(q):.1%}: {margin:.3f}" for q, margin in quantiles.items())
    print(f"{dtype}: all margins of plain decoding, quantiles {values}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="float32 bfloat16", help="space-separated")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--methods", default="sps mcsd pld lookahead")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prompts = interleave(load_prompts("lab"))[: args.prompts]
    methods, length = args.methods.split(), args.max_new_tokens
    results = {
        dtype: measure(dtype, args.device, prompts, length, methods) for dtype in args.dtype.split()
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"torch": torch.__version__, **results}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
