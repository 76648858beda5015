"""The engine's own cost on the shipped family.

    python benchmarks/foundation.py [--out FILE]

1. Plain decoding through the engine against transformers' greedy generate, on the same model,
   interleaved.
2. The share of a decoding step that is spent outside model forwards (bookkeeping, noise,
   verification, commit), for greedy chains and sampled trees.
3. Tokens/s of a batch of 8 rows of different lengths against batch 1, for every method.

float32, one setting for all prompts, prompts of the "lab" set; medians and quartiles over paired
runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import specwb
from specwb.bench.compare import compare
from specwb.bench.conditions import describe_device
from specwb.bench.prompts import interleave, load_prompts
from specwb.models.backbone import Backbone


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


def plain_over_transformers(target: specwb.Target, questions: list) -> list[float]:
    """Returns plain decoding's speed over the library's, with its quartiles."""
    frame = compare(target, questions, ["ar"], max_new_tokens=64)
    rows, columns = frame.set_index("method"), ("speedup", "speedup_low", "speedup_high")
    # a speedup is over the faster of the two
    if frame.attrs["reference"]["method"] == "ar":
        median, low, high = (1 / rows.loc["hf_greedy", column] for column in columns)
        return [round(median, 3), round(high, 3), round(low, 3)]
    return [float(rows.loc["ar", column]) for column in columns]


def batch_of_eight(target: specwb.Target, questions: list) -> dict[str, list[float]]:
    """Returns tokens/s of batch 1 and of batch 8 and their ratio, by method."""
    shared = {"max_new_tokens": 64, "library": False}
    one = compare(target, questions, **shared).set_index("method").tokens_per_second
    eight = compare(target, questions, batch=8, **shared).set_index("method").tokens_per_second
    return {
        name: [float(one[name]), float(eight[name]), round(float(eight[name] / one[name]), 3)]
        for name in one.index
    }


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

    plain = plain_over_transformers(target, questions)
    spread = f"quartiles {plain[1]:.2f}-{plain[2]:.2f}"
    print(f"plain decoding over transformers greedy: {plain[0]:.2f}x ({spread})")

    batch = batch_of_eight(target, questions)
    for name, (one, eight, ratio) in batch.items():
        rates = f"{one:.0f} -> {eight:.0f} tokens/s"
        print(f"batch 8 over batch 1, {name}: {ratio:.2f}x ({rates})")

    outside = overhead(target, ids)
    for name, (median, low, high) in outside.items():
        spread = f"quartiles {low:.1%}-{high:.1%}"
        print(f"outside model forwards, {name}: {median:.1%} of a decoding step ({spread})")

    if args.out:
        results = {
            "device": describe_device(target.device),
            "torch": torch.__version__,
            "plain_over_transformers": plain,
            "batch_8": batch,
            "outside_forwards": outside,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
