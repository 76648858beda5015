"""Drafting with a small model against plain decoding and against the transformers library: python benchmarks/everyday.py [--out FILE]

1. On the prompt set "tune" every setting of ours and of the library's assisted generation is tried; the best of each is kept (for the
   library too: it is compared at its best, not at its defaults).
2. On the prompt set "lab" the winners, the library's defaults and prompt lookup of both are measured in one interleaved run.
One setting for all domains, chosen on the tuning prompts. Speedups are medians over prompts, paired with plain decoding (the faster of this
engine's and the library's, which is printed), and the ratios at the end are ratios of these medians; also
on the prompts whose greedy text does not loop.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import specwb
from specwb.evaluation.compare import compare
from specwb.evaluation.prompts import interleave, load_prompts

SPS = [f"sps:gamma={g}" for g in (2, 3, 5, 6, 8)] + ["sps", "sps:gamma=8,confidence=0.4", "sps:gamma=8,confidence=0.6", "sps:schedule=heuristic"]
MCSD = ["mcsd", "mcsd:tree=2-1-1", "mcsd:tree=2-1-1-1-1", "mcsd:tree=2-2-1-1", "mcsd:tree=3-1-1-1", "mcsd:tree=4-2"]
ASSISTED = [f"hf_assisted:gamma={g},schedule=constant,confidence=0" for g in (2, 3, 5, 8)] + [
    "hf_assisted", "hf_assisted:gamma=5,schedule=heuristic,confidence=0", "hf_assisted:gamma=5,schedule=constant", "hf_assisted:confidence=0.6",
    "hf_assisted:gamma=10,schedule=constant,confidence=0.6",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="lab")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=48, help="how many prompts are measured on")
    parser.add_argument("--tuning", type=int, default=9, help="how many prompts the settings are chosen on")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load(args.target, device=args.device)
    shared = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}

    tune = interleave(load_prompts("tune"))[: args.tuning]
    tried = compare(target, tune, ["ar", *SPS, *MCSD, *ASSISTED], **shared).set_index("method").speedup
    best = {name: tried[[k for k in tried.index if k.partition(":")[0] == name]].idxmax() for name in ("sps", "mcsd", "hf_assisted")}
    for name, key in best.items():
        print(f"best {name} on {len(tune)} tuning prompts: {key} ({tried[key]:.2f}x)")

    methods = list(dict.fromkeys(["ar", best["sps"], best["mcsd"], "pld", best["hf_assisted"], "hf_assisted", "hf_prompt_lookup"]))
    frame = compare(target, interleave(load_prompts("lab"))[: args.prompts], methods, **shared)
    rows = frame.set_index("method")
    print(rows[["identical", "tau", "tokens_per_second", "speedup", "speedup_low", "speedup_high"]].round(2).to_string())
    print(f"speedup is over {frame.attrs['reference']['method']}")
    straight = frame.attrs["non_looping"]
    for part, figures in [*frame.attrs["by_category"].items(), *([("non-looping", straight["methods"])] if straight else [])]:
        print(f"{part}: " + ", ".join(f"{k} {v['speedup']:.2f}x (tau {v['tau']:.2f})" for k, v in figures.items()))
    ours = max((best["sps"], best["mcsd"]), key=lambda k: tried[k])  # chosen where the settings were
    ratios = {
        "drafting over plain decoding": rows.speedup[ours],
        "drafting over the library's assisted generation at its best": rows.speedup[ours] / rows.speedup[best["hf_assisted"]],
        "prompt lookup over the library's": rows.speedup["pld"] / rows.speedup["hf_prompt_lookup"],
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}x")
    if args.out:
        facts = ("device", "models", "settings", "versions", "reference", "machine", "prompts", "by_category", "non_looping")
        results = {
            **{k: frame.attrs[k] for k in facts}, "best": best,
            "tried": tried.to_dict(), "ratios": {k: round(float(v), 4) for k, v in ratios.items()},
            "rows": frame[["method", "tau", "tokens_per_second", "speedup", "speedup_low", "speedup_high"]].to_dict("records"),
        }  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
