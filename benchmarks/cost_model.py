"""Does the cost model predict? python benchmarks/cost_model.py [--temperature T] [--prompts N] [--device D] [--out FILE]

1. Calibration on the prompt set "tune": forwards of both models over n tokens, a chain of 8, a tree 4-4-4 (specwb.evaluation.cost).
2. Prediction of the speedup of chains of 1 to 8 and of trees.
3. Measurement on the prompt set "lab", all settings interleaved in one run (specwb.compare), and the error of every prediction.
Speedup here is the ratio of tokens/s over the whole run, which is what the model predicts; compare's own column is a median over prompts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch

import specwb
from specwb.evaluation.compare import compare, describe, describe_device
from specwb.evaluation.cost import calibrate
from specwb.evaluation.prompts import interleave, load_prompts

TREES = [(2, 1), (2, 2), (3, 1, 1), (2, 2, 2), (4, 2), (4, 2, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="lab")
    parser.add_argument("--draft", default="lab-draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--prompts", type=int, default=48, help="how many prompts are measured on")
    parser.add_argument("--calibration", type=int, default=18, help="how many prompts are calibrated on")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=24, help="rounds every forward time is a median of")
    parser.add_argument("--out", type=Path, help="default benchmarks/results/cost-model-<device>.json")
    args = parser.parse_args()

    target, draft = (specwb.load(name, device=args.device) for name in (args.target, args.draft))
    tune = [q.ids(target.tokenizer) for q in interleave(load_prompts("tune"))[: args.calibration]]
    shared = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    model = calibrate(target, draft, tune, rounds=args.rounds, **shared)
    print(f"c = {model.c:.3f}; v(gamma) = " + ", ".join(f"{g}: {model.v(g):.2f}" for g in (1, 2, 4, 8, 16, 28)))
    print("acceptance of a chain by depth: " + " ".join(f"{r[0]:.2f}" for r in model.chain))

    settings = {f"sps:gamma={g}": specwb.Tree.chain(g) for g in range(1, 9)}
    settings |= {f"mcsd:tree={'-'.join(map(str, ks))}": specwb.Tree.branching(*ks) for ks in TREES}
    predicted = {name: model.speedup(tree, args.max_new_tokens) for name, tree in settings.items()}  # before anything is measured
    tau = {name: sum(model.reach(tree)) for name, tree in settings.items()}

    questions = interleave(load_prompts("lab"))[: args.prompts]
    # built here and not from their spelling, so that gamma=4, the default, keeps its name
    built = {name: specwb.method(name, target, draft=draft) for name in settings}
    frame = compare(target, questions, ["ar", *built.values()], library=False, **shared).set_index("method")
    plain = frame.tokens_per_second["ar"]
    rows = []
    for name, method in built.items():
        measured = float(frame.tokens_per_second[method.key] / plain)
        rows.append({
            "method": name, "predicted": round(predicted[name], 4), "measured": round(measured, 4), "error": round(predicted[name] / measured - 1, 4),
            "tau_predicted": round(tau[name], 4), "tau_measured": float(frame.tau[method.key]),
        })  # fmt: skip
    error = median(abs(r["error"]) for r in rows)

    print(f"{'method':<18}{'predicted':>10}{'measured':>10}{'error':>8}{'tau':>8}{'measured':>10}")
    for r in rows:
        print(
            f"{r['method']:<18}{r['predicted']:>9.2f}x{r['measured']:>9.2f}x{r['error']:>+8.1%}{r['tau_predicted']:>8.2f}{r['tau_measured']:>10.2f}"
        )
    print(f"median error {error:.1%} over {len(rows)} settings")

    out = args.out or Path(__file__).parent / "results" / f"cost-model-{target.device.type}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    models = {"target": describe(target), "draft": describe(draft)}
    used = {**shared, "calibration": len(tune), "prompts": len(questions), "dtype": str(target.dtype).removeprefix("torch.")}
    results = {
        "device": describe_device(target.device), "torch": torch.__version__, "models": models, "settings": used,
        "median_error": round(error, 4), "rows": rows, "calibrated": asdict(model),
    }  # fmt: skip
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
