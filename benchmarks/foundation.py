"""The engine's own cost on the shipped family: python benchmarks/foundation.py [--out FILE]

1. plain decoding through the engine against transformers' greedy generate, on the same model, interleaved;
2. the share of a round spent outside model forwards (bookkeeping, noise, verification, commit), for greedy chains and sampled trees;
3. tokens/s of a batch of 8 rows of different lengths against batch 1, for every method.
float32, one setting for all prompts, prompts of the "lab" set; medians and quartiles over paired runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import specwb
from specwb.evaluation.compare import compare, describe_device
from specwb.evaluation.prompts import interleave, load_prompts
from specwb.models.backbone import Backbone


class Forwards:
    """Seconds inside the models' forwards, by wrapping the two methods every forward goes through."""

    def __init__(self, *backbones: Backbone) -> None:
        self.seconds = 0.0
        for backbone in backbones:
            for name in ("run", "head"):
                setattr(backbone, name, self._timed(getattr(backbone, name), backbone.device))

    def _timed(self, call, device):
        def timed(*args, **kwargs):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            began = time.perf_counter()
            out = call(*args, **kwargs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            self.seconds += time.perf_counter() - began
            return out

        return timed


def quartiles(values: list[float]) -> list[float]:
    q = statistics.quantiles(values, n=4)
    return [round(q[1], 4), round(q[0], 4), round(q[2], 4)]


def overhead(target: specwb.Target, prompts: list[list[int]]) -> dict[str, list[float]]:
    """Median and quartiles over prompts of 1 - forwards / round, prefill left out."""
    draft = specwb.load("lab-draft", device=target.device)
    forwards = Forwards(target.backbone, draft.backbone)
    settings = {
        "ar, T=0": ("ar", {}, 0.0), "sps gamma=4, T=0": ("sps", {"gamma": 4}, 0.0), "sps gamma=4, T=1": ("sps", {"gamma": 4}, 1.0),
        "mcsd 4-2-2, T=0": ("mcsd", {}, 0.0), "mcsd 4-2-2, T=1": ("mcsd", {}, 1.0),
    }  # fmt: skip
    built = {n: (specwb.method(k, target, **o, **({} if k == "ar" else {"draft": draft})), t) for n, (k, o, t) in settings.items()}
    out: dict[str, list[float]] = {name: [] for name in settings}
    for prompt in prompts:
        for name, (method, temperature) in built.items():
            loop = specwb.rounds(target, [prompt], method, max_new_tokens=64, temperature=temperature, eos=(), graphs=False)
            next(loop)
            forwards.seconds, began = 0.0, time.perf_counter()
            for _ in loop:
                pass
            out[name].append(1 - forwards.seconds / (time.perf_counter() - began))
    return {name: quartiles(values[1:]) for name, values in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=int, default=24)
    args = parser.parse_args()
    target = specwb.load("lab", device=args.device)
    questions = interleave(load_prompts("lab"))[: args.prompts]
    ids = [q.ids(target.tokenizer) for q in questions]

    frame = compare(target, questions, ["ar"], max_new_tokens=64).set_index("method")
    # a speedup is over the faster of the two
    if frame.attrs["reference"]["method"] == "ar":
        plain = [round(1 / frame.loc["hf_greedy", k], 3) for k in ("speedup", "speedup_high", "speedup_low")]
    else:
        plain = [float(frame.loc["ar", k]) for k in ("speedup", "speedup_low", "speedup_high")]
    print(f"plain decoding over transformers greedy: {plain[0]:.2f}x (quartiles {plain[1]:.2f}-{plain[2]:.2f})")

    one = compare(target, questions, max_new_tokens=64, library=False).set_index("method")["tokens_per_second"]
    eight = compare(target, questions, max_new_tokens=64, batch=8, library=False).set_index("method")["tokens_per_second"]
    batch = {name: [float(one[name]), float(eight[name]), round(float(eight[name] / one[name]), 3)] for name in one.index}
    for name, (a, b, ratio) in batch.items():
        print(f"batch 8 over batch 1, {name}: {ratio:.2f}x ({a:.0f} -> {b:.0f} tokens/s)")

    outside = overhead(target, ids)
    for name, (median, low, high) in outside.items():
        print(f"outside model forwards, {name}: {median:.1%} of a round (quartiles {low:.1%}-{high:.1%})")

    if args.out:
        device = describe_device(target.device)
        results = {"device": device, "torch": torch.__version__, "plain_over_transformers": plain, "batch_8": batch, "outside_forwards": outside}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
