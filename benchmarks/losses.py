"""Which loss makes drafts that are accepted? The same head trained by each, with several seeds.

    python benchmarks/losses.py --kind eagle --steps 400 --seeds 3 --out FILE

Every head is trained for so many steps of the lab's budget on the same text, and then drafts a
chain of ``--gamma`` tokens for the prompt set "lab". Measured are the accepted tokens a step, at
T = 0 and T = 1. The difference to the loss ``kl`` is paired by seed and prompt; its 95 % interval
is a bootstrap over prompts, of means over seeds. Trained heads are kept in ``--heads``, so that the
same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import specwb
from specwb.bench.prompts import interleave, load_prompts
from specwb.training.losses import LOSSES
from specwb.training.run import train_for

RESAMPLES = 2000


def accepted(
    target: specwb.Target, spec: str, prompts: list[list[int]], temperature: float, tokens: int
) -> list[float]:
    """Returns the accepted tokens a step for every prompt, each with a seed of its own."""
    settings = {"max_new_tokens": tokens, "temperature": temperature, "eos": ()}
    seeds = list(range(len(prompts)))
    output = specwb.decode(target, prompts, spec, seed=seeds, **settings)
    return [float(np.mean(lengths)) for lengths in output.accepted_lengths]


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of a mean over prompts ``[prompts]``, by bootstrap."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.quantile(differences[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="lab")
    parser.add_argument("--kind", default="eagle")
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", default="", help="further settings of every training")
    parser.add_argument("--heads", type=Path, default=Path("build/losses"))
    parser.add_argument("--generated", type=Path, default=Path("build/generated"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target = specwb.load(args.target, device=args.device)
    room = target.context - args.max_new_tokens
    questions = interleave(load_prompts("lab"))[: args.prompts]
    prompts = [question.fit(target.tokenizer, room)[0] for question in questions]
    chain = "-".join("1" * args.gamma)
    names = args.losses.split(",")
    lengths: dict[str, dict[str, list[list[float]]]] = {}
    # seeds of the weights and of the order of the text; the text that the target wrote is one
    seeds = range(args.seed, args.seed + args.seeds)
    for loss in names:
        folder = args.heads / args.kind / f"{loss}-{args.steps}"
        train_for(
            args.kind,
            args.target,
            folder,
            changes={"steps": args.steps},
            options=",".join(filter(None, [f"loss={loss}", args.set])),
            generated=args.generated,
            device=args.device,
            seed=args.seed,
            seeds=args.seeds,
        )
        for seed in seeds:
            head = folder if args.seeds == 1 else folder / f"seed-{seed}"
            spec = f"{args.kind}:head={head},tree={chain}"
            for temperature in (0.0, 1.0):
                values = accepted(target, spec, prompts, temperature, args.max_new_tokens)
                by_loss = lengths.setdefault(f"{temperature:g}", {})
                by_loss.setdefault(loss, []).append(values)
    rows = []
    for temperature, by_loss in lengths.items():
        print(f"T = {temperature}, accepted tokens a step of {args.gamma} drafted")
        base = np.array(by_loss[names[0]])
        for loss, values in by_loss.items():
            own = np.array(values)
            low, high = interval((own - base).mean(0))
            by_seed = own.mean(1)
            row = {
                "temperature": temperature,
                "loss": loss,
                "accepted": float(own.mean()),
                "by_seed": by_seed.round(4).tolist(),
                "difference": float((own - base).mean()),
                "low": low,
                "high": high,
            }
            rows.append(row)
            seeds = ", ".join(f"{value:.3f}" for value in by_seed)
            print(
                f"  {loss:6s} {row['accepted']:.3f} (seeds {seeds}), over {names[0]} "
                f"{row['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
            )
    if args.out:
        facts = {key: value for key, value in vars(args).items() if key not in ("heads", "out")}
        document = {"arguments": facts, "target_sha256": target.sha256, "rows": rows}
        args.out.write_text(json.dumps(document, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
