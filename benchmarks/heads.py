"""Drafters at equal numbers of verified tokens: a draft model and trained heads.

    python benchmarks/heads.py [--out FILE]

It measures tau and speedup. For every budget of n nodes (the root included): a chain of n - 1
tokens from the draft model (sps), a tree from it (mcsd), and Medusa, EAGLE, EAGLE-2, EAGLE-3,
Falcon. Static trees are the best of n nodes under acceptance rates counted on the prompt set "tune"
(sampled candidates at T > 0). Everything is then measured on the prompt set "lab" in one
interleaved run, paired with plain decoding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import specwb
from specwb.analysis import best_tree
from specwb.bench.compare import compare
from specwb.bench.prompts import interleave, load_prompts
from specwb.cost.calibrate import accepted_by_rank
from specwb.cost.head_cost import WIDE as HEADS
from specwb.options import spell
from specwb.tree import Tree

WIDE = {**HEADS, "mcsd": (4, 3, 2, 1, 1)}
COLUMNS = ["identical", "tau", "tokens_per_second", "speedup", "speedup_low", "speedup_high"]


def settings(
    rates: dict[str, list[list[float]]], nodes: int, grows: bool, has_eagle3: bool
) -> list[str]:
    """Returns the specs of all methods that verify n nodes.

    Args:
        rates: acceptance rates by depth and rank, for every method with a static tree.
        nodes: n, the root included.
        grows: whether there is an EAGLE head, which EAGLE-2 drafts with.
        has_eagle3: whether there is an EAGLE-3 head.
    """
    shapes = {kind: Tree.parents(best_tree(by_rank, nodes)) for kind, by_rank in rates.items()}
    specs = [f"sps:gamma={nodes - 1}"]
    specs += [f"{kind}:tree={spell(shape)}" for kind, shape in shapes.items()]
    depth = shapes["eagle"].D if "eagle" in shapes else 2
    growing = (["eagle2"] if grows else []) + (["eagle3"] if has_eagle3 else [])
    return specs + [f"{kind}:nodes={nodes},depth={depth},top=4" for kind in growing]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="lab")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--nodes", default="3,5,9,17", help="budgets, the root included")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument(
        "--tuning", type=int, default=9, help="how many prompts acceptance rates are counted on"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load(args.target, device=args.device)
    heads = [kind for kind in ("medusa", "eagle", "falcon") if target.own_head(kind)]
    has_eagle3 = target.own_head("eagle3") is not None
    room = target.context - args.max_new_tokens
    prompts = interleave(load_prompts("lab"))[: args.prompts]
    tuning = [
        question.fit(target.tokenizer, room)[0]
        for question in interleave(load_prompts("tune"))[: args.tuning]
    ]
    document: dict = {"tables": {}}
    for text in args.temperatures.split(","):
        shared = {"max_new_tokens": args.max_new_tokens, "temperature": float(text)}
        rates = {
            kind: accepted_by_rank(target, tuning, kind, tree=WIDE[kind], **shared)
            for kind in ("mcsd", *heads)
        }
        methods = ["ar"]
        for nodes in map(int, args.nodes.split(",")):
            methods += settings(rates, nodes, "eagle" in heads, has_eagle3)
        frame = compare(target, prompts, list(dict.fromkeys(methods)), library=False, **shared)
        print(f"T = {float(text):g}, speedup over {frame.attrs['reference']['method']}")
        print(frame.set_index("method")[COLUMNS].round(2).to_string(), flush=True)
        depths = {
            key: [round(accepted / tested, 3) for accepted, tested in table if tested]
            for key, table in frame.attrs["acceptance_by_depth"].items()
        }
        document |= {key: frame.attrs[key] for key in ("device", "models", "versions", "prompts")}
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
