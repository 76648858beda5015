"""specwb train: heads, draft models, and text to train on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import ArtifactOf, refuse
from specwb.core.files import FOLDER, HEAD, TALKS

USES = {
    "medusa": "medusa:head",
    "eagle": "eagle:head",
    "eagle3": "eagle3:head",
    "falcon": "falcon:head",
    "kangaroo": "kangaroo:head",
    "diffusion": "diffuspec:head",
    "decision": "mcsd_ti:head",
    "deep": "easyspec:draft",
    "draft": "sps:draft",
}
"""Kinds of heads and draft models, and the option of a method that takes one."""
OUTPUTS = ArtifactOf(
    "kind",
    {
        **{kind: (FOLDER, f"build/heads/{kind}") for kind in USES},
        "talks": (TALKS, "build/talks.jsonl"),
        "ngram": (HEAD, "build/ngram"),
    },
)
REFUSED = {
    "talks": ("length", "budget", "steps", "text", "generated", "corpus", "recipe", "begin"),
    "ngram": ("length", "budget", "steps", "rows", "recipe", "begin"),
    **dict.fromkeys(("deep", "decision"), ("begin",)),
}
"""Options that a kind has no use for."""
LARGEST_SEED = {"talks": 2**20}


def train(
    ctx: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help=f"Head or draft model: {', '.join(USES)}; talks: a chat model's conversations to "
            "train on; ngram: n-grams of a target's tokens."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Target model: lab, smol, a folder, a hub id or a .gguf file; default: lab, for "
            "talks smol."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the result (talks: .jsonl file), where an interrupted run continues; "
            "default: in build."
        ),
        OUTPUTS,
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            help="Amount of training: cpu, gpu or smoke; data/lab/recipe.toml has their steps and "
            "batches."
        ),
    ] = "cpu",
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of training steps, in place of the budget's or recipe's."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of rows per step, in place of the budget's; talks: of conversations "
            "written at once, 64 unless asked for.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=16, help="Number of tokens per row, in place of the budget's."),
    ] = None,
    settings: Annotated[
        str,
        typer.Option(
            "--set",
            help="Settings as name=value with commas: a head's, such as heads=5 (medusa), "
            "k=3 (falcon), loss=lk or lr=1e-4; of talks: tokens, requests, kinds, dtype; of ngram: "
            "order, least, tokens.",
        ),
    ] = "",
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Published recipe (eagle, eagle3, hass, falcon, kangaroo, medusa1, mcsd_ti) or a "
            ".toml file; --set overrides it."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Text to learn from: generated (mostly written by the target), read (the "
            "corpus), or for ngram both; default: generated, for ngram both."
        ),
    ] = None,
    generated: Annotated[
        Path,
        typer.Option(help="Folder for the target's own text, which all heads share."),
        FOLDER,
    ] = Path("build/generated"),
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Corpus: a .txt file, or a .jsonl or .jsonl.xz file with a text or a "
            "conversation per line; default: the lab's text."
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            help="Trained head, or draft model of train draft, to go on with: a folder, a hub id, "
            "or the kind, for the target's own; default: a new one."
        ),
    ] = None,
    device: opt.DEVICE = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the training.")] = 0,
) -> None:
    """Train a head or draft model on a frozen target; stop and restart it at any moment.

    Scales with accelerate launch -m specwb. docs/training.md has all settings.
    """
    assert out is not None  # by ArtifactOf
    refuse(ctx, f"train {kind}", *REFUSED.get(kind, ()))
    if seed > LARGEST_SEED.get(kind, seed):
        raise ValueError(f"train {kind}: --seed is at most {LARGEST_SEED[kind]}, got {seed}")
    if kind in USES:
        from specwb.training.fit import say
        from specwb.training.run import train_for

        train_for(
            kind,
            target or "lab",
            out,
            budget,
            {"steps": steps, "rows": rows, "length": length},
            settings,
            recipe=recipe,
            source=text or "generated",
            generated=generated,
            corpus=corpus,
            device=device,
            seed=seed,
            begin=begin,
        )
        say(f"trained into {out}; use it with {USES[kind]}={out}")
        return
    from specwb.training.fit import say

    own = _settings(kind, settings)
    if kind == "talks":
        from specwb.training import talks

        talks.write(
            target or "smol",
            out,
            own.pop("tokens", 1_500_000),
            given=own.pop("requests", None),
            rows=rows or talks.ROWS,
            device=device,
            seed=seed,
            **own,
        )
        say(f"the conversations are in {out}; train on them with --corpus {out} --text read")
    else:
        from specwb.training.ngram import count_for

        folder = count_for(
            target or "lab",
            out,
            source=text or "both",
            corpus=corpus,
            generated=generated,
            device=device,
            seed=seed,
            **own,
        )
        say(f"the n-grams are in {folder}")


def _settings(kind: str, text: str) -> dict[str, Any]:
    """Read ``--set`` of a training that is not one head's."""
    from specwb.core.options import Option
    from specwb.training.settings import count, parse

    word = Option(types=(str,), kind="a text")
    known = {
        "talks": {"tokens": count(1), "requests": word, "kinds": word, "dtype": word},
        "ngram": {"order": count(1), "least": count(1), "tokens": count(1)},
    }[kind]
    given = parse(kind, text, known, {})
    return {name: replace(known[name], name=name).check(kind, x) for name, x in given.items()}
