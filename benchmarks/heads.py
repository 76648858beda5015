"""Drafters at equal numbers of verified tokens: tau and speedup of a draft model and of trained heads. python benchmarks/heads.py [--out FILE]

For every budget of n nodes (the root included): a chain of n - 1 tokens from the draft model (sps), a tree from it (mcsd), and Medusa, EAGLE,
EAGLE-2, EAGLE-3, Falcon. Static trees are the best of n nodes under acceptance rates counted on the prompt set "tune" (sampled candidates at T > 0);
everything is then measured on the prompt set "lab" in one interleaved run, paired with plain decoding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import specwb
from specwb.analysis import best_tree
from specwb.evaluation.compare import compare
from specwb.evaluation.cost import accepted_by_rank
from specwb.evaluation.head_cost import WIDE as HEADS
from specwb.evaluation.prompts import interleave, load_prompts
from specwb.options import spell
from specwb.tree import Tree

WIDE = {**HEADS, "mcsd": (4, 3, 2, 1, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="lab")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--nodes", default="3,5,9,17", help="budgets, the root included")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tuning", type=int, default=9, help="how many prompts acceptance rates are counted on")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load(args.target, device=args.device)
    kinds = ["mcsd", *(kind for kind in ("medusa", "eagle", "falcon") if target.own_head(kind))]
    third = target.own_head("eagle3") is not None
    document: dict = {"tables": {}}
    for text in args.temperatures.split(","):
        shared = {"max_new_tokens": args.max_new_tokens, "temperature": float(text)}
        tune = [q.fit(target.tokenizer, target.context - args.max_new_tokens)[0] for q in interleave(load_prompts("tune"))[: args.tuning]]
        rates = {kind: accepted_by_rank(target, tune, kind, tree=WIDE[kind], **shared) for kind in kinds}
        methods = ["ar"]
        for n in map(int, args.nodes.split(",")):
            methods.append(f"sps:gamma={n - 1}")
            shapes = {kind: Tree.parents(best_tree(rates[kind], n)) for kind in kinds}
            methods += [f"{kind}:tree={spell(shape)}" for kind, shape in shapes.items()]
            depth = shapes["eagle"].D if "eagle" in shapes else 2
            for kind in (*(("eagle2",) if "eagle" in kinds else ()), *(("eagle3",) if third else ())):
                methods.append(f"{kind}:nodes={n},depth={depth},top=4")
        frame = compare(target, interleave(load_prompts("lab"))[: args.prompts], list(dict.fromkeys(methods)), library=False, **shared)
        rows = frame.set_index("method")
        print(f"T = {float(text):g}, speedup over {frame.attrs['reference']['method']}")
        print(rows[["identical", "tau", "tokens_per_second", "speedup", "speedup_low", "speedup_high"]].round(2).to_string(), flush=True)
        depths = {key: [round(a / t, 3) for a, t in table if t] for key, table in frame.attrs["acceptance_by_depth"].items()}
        document |= {k: frame.attrs[k] for k in ("device", "models", "versions", "prompts")}
        document["tables"][text] = {
            "rates": rates,
            "reference": frame.attrs["reference"],
            "acceptance_by_depth": depths,
            "rows": frame.drop(columns=["identical"]).to_dict("records"),
        }
        if args.out:
            args.out.write_text(json.dumps(document, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()
