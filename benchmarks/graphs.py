"""Rounds as CUDA graphs against eager rounds, same method, model and prompts, interleaved: python benchmarks/graphs.py [--out FILE]"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

import torch

import specwb
from specwb.evaluation.compare import describe_device
from specwb.evaluation.prompts import interleave, load_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--methods", default="ar sps mcsd pld lookahead")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load("lab", device="cuda")
    ids = [q.ids(target.tokenizer) for q in interleave(load_prompts("lab"))[: args.prompts]]
    results: dict = {"device": describe_device(target.device), "torch": torch.__version__, "rows": []}
    for name in args.methods.split():
        made = specwb.method(name, target)
        for temperature in (0.0, 1.0):
            for batch in (1, 8):
                groups = [[ids[(i + j) % len(ids)] for j in range(batch)] for i in range(args.prompts)]
                rates: dict[bool, list[float]] = {True: [], False: []}
                same = True
                for group in [groups[0], groups[0], *groups]:  # the first two make the graphs
                    outs = {
                        g: specwb.decode(target, group, made, max_new_tokens=64, temperature=temperature, eos=(), graphs=g) for g in (True, False)
                    }
                    same &= outs[True].tokens == outs[False].tokens
                    for g, out in outs.items():
                        rates[g].append(out.tokens_per_second)
                ratio = median(a / b for a, b in zip(rates[True][2:], rates[False][2:], strict=True))
                row = {"method": name, "temperature": temperature, "batch": batch, "tokens_per_second": round(median(rates[True][2:]), 1),
                       "over_eager": round(ratio, 3), "same_tokens": same}  # fmt: skip
                results["rows"].append(row)
                print(row, flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
