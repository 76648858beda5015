"""A small draft model against plain decoding and against the transformers library.

    python benchmarks/everyday.py [--out FILE]

1. On the prompt set "tune" every setting of ours and of the library's assisted generation is tried,
   and the best of each is taken (for the library too: it is compared at its best, not at its
   defaults).
2. On the prompt set "lab" these, the library's defaults and prompt lookup of both are measured in
   one interleaved run.

One setting is chosen for all domains, on the tuning prompts. Speedups are medians over prompts,
paired with plain decoding (the faster of this engine's and the library's, which is printed), and
the ratios at the end are ratios of these medians. They are given on the prompts whose greedy text
does not loop, too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

import specwb
from specwb.bench.compare import compare
from specwb.bench.prompts import interleave, load_prompts

SPS = [
    *(f"sps:gamma={gamma}" for gamma in (2, 3, 5, 6, 8)),
    "sps",
    "sps:gamma=8,confidence=0.4",
    "sps:gamma=8,confidence=0.6",
    "sps:schedule=heuristic",
]
MCSD = [
    "mcsd",
    "mcsd:tree=2-1-1",
    "mcsd:tree=2-1-1-1-1",
    "mcsd:tree=2-2-1-1",
    "mcsd:tree=3-1-1-1",
    "mcsd:tree=4-2",
]
ASSISTED = [
    *(f"hf_assisted:gamma={gamma},schedule=constant,confidence=0" for gamma in (2, 3, 5, 8)),
    "hf_assisted",
    "hf_assisted:gamma=5,schedule=heuristic,confidence=0",
    "hf_assisted:gamma=5,schedule=constant",
    "hf_assisted:confidence=0.6",
    "hf_assisted:gamma=10,schedule=constant,confidence=0.6",
]
COLUMNS = ["tau", "tokens_per_second", "speedup", "speedup_low", "speedup_high"]
FACTS = (
    "device",
    "models",
    "settings",
    "versions",
    "reference",
    "machine",
    "prompts",
    "by_category",
    "non_looping",
)


def best_settings(speedups: pd.Series) -> dict[str, str]:
    """Returns the fastest setting of each method, from the speedups by setting."""
    best = {}
    for name in ("sps", "mcsd", "hf_assisted"):
        settings = [key for key in speedups.index if key.partition(":")[0] == name]
        best[name] = speedups[settings].idxmax()
    return best


def print_parts(frame: pd.DataFrame) -> None:
    """Prints the speedups by category, and on the prompts whose greedy text does not loop."""
    parts = dict(frame.attrs["by_category"])
    if straight := frame.attrs["non_looping"]:
        parts["non-looping"] = straight["methods"]
    for part, methods in parts.items():
        values = [f"{k} {v['speedup']:.2f}x (tau {v['tau']:.2f})" for k, v in methods.items()]
        print(f"{part}: {', '.join(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="lab")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=48, help="how many prompts are measured on")
    parser.add_argument(
        "--tuning", type=int, default=9, help="how many prompts the settings are chosen on"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load(args.target, device=args.device)
    shared = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}

    tune = interleave(load_prompts("tune"))[: args.tuning]
    tuning = compare(target, tune, ["ar", *SPS, *MCSD, *ASSISTED], **shared)
    tuned = tuning.set_index("method").speedup
    best = best_settings(tuned)
    for name, key in best.items():
        print(f"best {name} on {len(tune)} tuning prompts: {key} ({tuned[key]:.2f}x)")

    defaults = ["hf_assisted", "hf_prompt_lookup"]
    methods = ["ar", best["sps"], best["mcsd"], "pld", best["hf_assisted"], *defaults]
    prompts = interleave(load_prompts("lab"))[: args.prompts]
    frame = compare(target, prompts, list(dict.fromkeys(methods)), **shared)
    rows = frame.set_index("method")
    print(rows[["identical", *COLUMNS]].round(2).to_string())
    print(f"speedup is over {frame.attrs['reference']['method']}")
    print_parts(frame)
    ours = max((best["sps"], best["mcsd"]), key=lambda key: tuned[key])  # by the tuning prompts
    assisted, speedup = "drafting over the library's assisted generation at its best", rows.speedup
    ratios = {
        "drafting over plain decoding": speedup[ours],
        assisted: speedup[ours] / speedup[best["hf_assisted"]],
        "prompt lookup over the library's": speedup["pld"] / speedup["hf_prompt_lookup"],
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}x")
    if args.out:
        results = {
            **{key: frame.attrs[key] for key in FACTS},
            "best": best,
            "tried": tuned.to_dict(),
            "ratios": {name: round(float(value), 4) for name, value in ratios.items()},
            "rows": frame[["method", *COLUMNS]].to_dict("records"),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
