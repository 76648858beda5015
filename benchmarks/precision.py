"""How often greedy text of a method leaves plain decoding's in half precision: python benchmarks/precision.py [--dtype bfloat16] [--out FILE]

Scoring several tokens in one forward rounds differently from scoring one at a time. Where the two best logits are closer than that, another
token is chosen, and from there on the texts differ, each as right as the other. For every method: the share of prompts that diverge, the
rate a token (divergences / tokens up to the first), and plain decoding's margin (best logit minus second) where it happened, beside the
distribution of all margins. In float32 the same is printed for comparison.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

import torch

import specwb
from specwb.evaluation.compare import describe, describe_device
from specwb.evaluation.prompts import interleave, load_prompts


def plain(target: specwb.Target, ids: list[int], length: int) -> tuple[list[int], list[float]]:
    """Tokens of plain decoding and the margin at each of them."""
    tokens, margins = [], []
    for step in specwb.rounds(target, [ids], "ar", max_new_tokens=length, eos=(), trace=True):
        top = step.scores.logits[0, 0].float().topk(2).values
        tokens.append(int(step.verdict.closing[0]))
        margins.append(float(top[0] - top[1]))
    return tokens, margins


def measure(dtype: str, device: str, prompts: list, length: int, methods: list[str]) -> dict:
    target = specwb.load("lab", dtype=dtype, device=device)
    ids = [q.ids(target.tokenizer) for q in prompts]
    reference = [plain(target, row, length) for row in ids]
    every = sorted(m for _, margins in reference for m in margins)
    out: dict = {
        "model": describe(target), "device": describe_device(target.device), "prompts": len(ids), "tokens": len(every),
        "margin_quantiles": {str(q): round(every[int(q * len(every))], 4) for q in (0.001, 0.01, 0.05, 0.5)}, "methods": {},
    }  # fmt: skip
    for name in methods:
        made = specwb.method(name, target)
        seen, at = 0, []
        for row, (tokens, margins) in zip(ids, reference, strict=True):
            found = specwb.decode(target, [row], made, max_new_tokens=length, eos=(), graphs=False).tokens[0]
            first = next((i for i, (a, b) in enumerate(zip(found, tokens, strict=True)) if a != b), None)
            seen += length if first is None else first + 1
            if first is not None:
                at.append(margins[first])
        out["methods"][name] = {
            "prompts_diverged": len(at), "rate_a_token": round(len(at) / seen, 6),
            "margin_where_diverged": {"median": round(median(at), 4), "largest": round(max(at), 4)} if at else None,
        }  # fmt: skip
        where = f", margin there: median {median(at):.3f}, largest {max(at):.3f}" if at else ""
        print(f"{dtype}, {name}: {len(at)} of {len(ids)} prompts diverge, {len(at) / seen:.2%} a token{where}")
    quantiles = ", ".join(f"{float(q):.1%}: {v:.3f}" for q, v in out["margin_quantiles"].items())
    print(f"{dtype}: all margins of plain decoding, quantiles {quantiles}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32 bfloat16", help="space-separated")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--methods", default="sps mcsd pld lookahead")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prompts = interleave(load_prompts("lab"))[: args.prompts]
    results = {d: measure(d, args.device, prompts, args.max_new_tokens, args.methods.split()) for d in args.dtype.split()}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"torch": torch.__version__, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
