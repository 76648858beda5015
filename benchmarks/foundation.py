"""The share of a decoding step spent outside model forwards, on the shipped family.

    python benchmarks/foundation.py [--out FILE]

That is bookkeeping, noise, verification and commit, for greedy chains and sampled trees in float32:
medians and quartiles over prompts of the set "lab".
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import specwb
from specwb.lab.bench.conditions import describe_device
from specwb.models.backbone import Backbone
from specwb.models.questions import interleave, load_prompts


class Forwards:
    """Counts the seconds inside models' forwards.

    It wraps the two methods that every forward goes through.
    """

    def __init__(self, *backbones: Backbone) -> None:
        self.seconds = 0.0
        for backbone in backbones:
            for name in ("run", "head"):
                setattr(backbone, name, self._timed(getattr(backbone, name), backbone.device))

    def _timed(self, call, device):
        def synchronize():
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        def timed(*args, **kwargs):
            synchronize()
            began = time.perf_counter()
            out = call(*args, **kwargs)
            synchronize()
            self.seconds += time.perf_counter() - began
            return out

        return timed


def quartiles(values: list[float]) -> list[float]:
    """Returns the median, the lower and the upper quartile."""
    lower, median, upper = statistics.quantiles(values, n=4)
    return [round(median, 4), round(lower, 4), round(upper, 4)]


# name: method, its options, temperature
SETTINGS: dict[str, tuple[str, dict, float]] = {
    "ar, T=0": ("ar", {}, 0.0),
    "sps gamma=4, T=0": ("sps", {"gamma": 4}, 0.0),
    "sps gamma=4, T=1": ("sps", {"gamma": 4}, 1.0),
    "mcsd 4-2-2, T=0": ("mcsd", {}, 0.0),
    "mcsd 4-2-2, T=1": ("mcsd", {}, 1.0),
}


def overhead(target: specwb.Target, prompts: list[list[int]]) -> dict[str, list[float]]:
    """Returns median and quartiles over prompts of 1 - forwards / step, prefill left out."""
    draft = specwb.load("lab-draft", device=target.device)
    forwards = Forwards(target.backbone, draft.backbone)
    methods = {}
    for name, (key, options, _) in SETTINGS.items():
        with_draft = {} if key == "ar" else {"draft": draft}
        methods[name] = specwb.method(key, target, **options, **with_draft)
    shares: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for prompt in prompts:
        for name, method in methods.items():
            settings = {"max_new_tokens": 64, "temperature": SETTINGS[name][2]}
            steps = specwb.rounds(target, [prompt], method, eos=(), graphs=False, **settings)
            next(steps)
            forwards.seconds, began = 0.0, time.perf_counter()
            for _ in steps:
                pass
            shares[name].append(1 - forwards.seconds / (time.perf_counter() - began))
    return {name: quartiles(values[1:]) for name, values in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=24)
    args = parser.parse_args()
    target = specwb.load("lab", device=args.device)
    questions = interleave(load_prompts("lab"))[: args.prompts]
    ids = [question.ids(target.tokenizer) for question in questions]

    outside = overhead(target, ids)
    for name, (median, low, high) in outside.items():
        spread = f"quartiles {low:.1%}-{high:.1%}"
        print(f"outside model forwards, {name}: {median:.1%} of a decoding step ({spread})")

    if args.out:
        results = {
            "device": describe_device(target.device),
            "torch": torch.__version__,
            "outside_forwards": outside,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
