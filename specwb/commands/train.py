"""specwb train: heads on a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specwb.commands import options as opt
from specwb.commands.shared import Commands
from specwb.files import FOLDER, HEAD, HEADS, TALKS

train = Commands(
    no_args_is_help=True,
    help="Train a head on a target of yours.",
)


KINDS = {
    "diffusion": ("diffusion model", "diffuspec"),
    "decision": ("decision model", "mcsd_ti"),
    "kangaroo": ("adapter", "kangaroo"),
    "deep": ("draft model", "easyspec"),
    "draft": ("draft model", "sps"),
    "path": ("path scorer", "diffuspec"),
}
"""Heads that are called something else, and the method that takes them."""


def _add_command(kind: str) -> None:
    """Add the command that trains this kind of head."""

    def command(
        target: opt.TARGET = "lab",
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder of the result, where an interrupted run continues; default: "
                "build/heads/KIND."
            ),
            FOLDER,
        ] = None,
        budget: opt.BUDGET = "cpu",
        steps: Annotated[
            int | None,
            typer.Option(min=1, help="Number of training steps, in place of the budget's."),
        ] = None,
        rows: Annotated[
            int | None,
            typer.Option(min=1, help="Number of rows per step, in place of the budget's."),
        ] = None,
        length: Annotated[
            int | None,
            typer.Option(min=16, help="Number of tokens per row, in place of the budget's."),
        ] = None,
        options: Annotated[
            str,
            typer.Option(
                "--set",
                help="Settings as name=value with commas: the head's own, such as heads=5 "
                "(medusa), k=3 (falcon) or exit=3 (kangaroo), and loss=lk, "
                "optimiser=adamw, lr=1e-4, ..",
            ),
        ] = "",
        recipe: Annotated[
            str | None,
            typer.Option(
                help="Published recipe (eagle, eagle3, hass, falcon, kangaroo, medusa1, "
                "mcsd_ti) or a .toml file; --set overrides it."
            ),
        ] = None,
        text: Annotated[
            str,
            typer.Option(
                help="Text to train on: generated (mostly written by the target) or read (the "
                "corpus)."
            ),
        ] = "generated",
        generated: Annotated[
            Path,
            typer.Option(help="Folder for the target's own text, which all heads share."),
            FOLDER,
        ] = Path("build/generated"),
        corpus: Annotated[
            Path | None,
            typer.Option(
                help="Corpus: a .txt file, or a .jsonl file with a text or a conversation per "
                "line; default: the lab's text."
            ),
        ] = None,
        device: opt.DEVICE = "auto",
        seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the training.")] = 0,
        seeds: Annotated[
            int,
            typer.Option(
                min=1, help="Number of seeds, from --seed on; each trains one in OUT/seed-0, .."
            ),
        ] = 1,
    ) -> None:
        from specwb.training.fit import say
        from specwb.training.run import train_for

        folder = out or Path("build/heads") / kind
        changes = {"steps": steps, "rows": rows, "length": length}
        train_for(
            kind,
            target,
            folder,
            budget,
            changes,
            options,
            recipe=recipe,
            source=text,
            generated=generated,
            corpus=corpus,
            device=device,
            seed=seed,
            seeds=seeds,
        )
        if seeds > 1:
            return
        name, key = KINDS.get(kind, ("head", kind))
        option = {"deep": "draft", "draft": "draft", "path": "score"}.get(kind, "head")
        say(f"the {name} is in {folder}; use it with {key}:{option}={folder}")

    model = f"{'an' if kind[0] == 'e' else 'a'} {kind} head on"
    if kind in ("diffusion", "decision", "deep"):
        model = f"a {KINDS[kind][0]} beside"
    elif kind == "path":
        model = "a path scorer over the diffusion model of"
    elif kind == "draft":
        model = "a draft model of some layers of"
    command.__doc__ = (
        f"Train {model} a frozen target; stop and restart it at any moment. "
        "Scales with accelerate launch -m specwb."
    )
    train.command(kind)(command)


_LAB = ("medusa", "eagle", "eagle3", "falcon", "diffusion", "kangaroo", "decision", "deep")
for _kind in (*_LAB, "draft", "path"):
    _add_command(_kind)


@train.command("heads")
def train_several(
    corpus: Annotated[
        Path, typer.Option(help="Conversations of the target, such as specwb train talks writes.")
    ],
    target: opt.TARGET = "smol",
    out: Annotated[
        Path,
        typer.Option(help="Folder of all heads; an interrupted run in it continues."),
        HEADS,
    ] = Path("build/heads"),
    recipe: Annotated[
        Path | None, typer.Option(help="Recipe (.toml) that lists the heads; default: data/smol's.")
    ] = None,
    only: Annotated[
        str, typer.Option(help="Heads to train, separated by commas; default: all of the recipe.")
    ] = "",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of training steps, in place of the recipe's.")
    ] = None,
    device: opt.DEVICE = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the training.")] = 0,
) -> None:
    """Train several heads of a target, which runs once a step for all of them."""
    from specwb.training.fit import say
    from specwb.training.together import train_together

    names = [name.strip() for name in only.split(",") if name.strip()]
    train_together(target, out, corpus, recipe, names, steps, device=device, seed=seed)
    say(f"the heads are in {out}; use one with head={out}/NAME")


@train.command("talks")
def train_talks(
    target: opt.TARGET = "smol",
    out: Annotated[
        Path,
        typer.Option(help="File (.jsonl) for the conversations; an interrupted run continues."),
        TALKS,
    ] = Path("build/talks.jsonl"),
    tokens: Annotated[
        int, typer.Option(min=1, help="Total number of tokens of the answers.")
    ] = 1_500_000,
    requests: Annotated[
        str | None,
        typer.Option(
            help="Prompt set or .jsonl file, as for specwb compare, whose questions are "
            "answered; default: the model writes the requests too."
        ),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            min=1, help="Number of conversations written at once; a GPU has room for 1024 and more."
        ),
    ] = 64,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**20, help="Seed of all draws.")] = 0,
) -> None:
    """Let a chat model write conversations, requests and answers, to train its heads on."""
    from specwb.training.fit import say
    from specwb.training.talks import write

    write(target, out, tokens, given=requests, rows=rows, device=device, dtype=dtype, seed=seed)
    say(f"the conversations are in {out}; train on them with --corpus {out} --text read")


@train.command("ngram")
def train_ngram(
    target: opt.TARGET = "lab",
    out: Annotated[Path, typer.Option(help="Folder for ngram.npz and card.json."), HEAD] = Path(
        "build/ngram"
    ),
    order: Annotated[int, typer.Option(min=1, help="Number of tokens of the longest n-grams.")] = 3,
    least: Annotated[
        int,
        typer.Option(
            min=1,
            help="Least number of occurrences of an n-gram of two or more tokens; rarer ones "
            "are left out.",
        ),
    ] = 2,
    text: Annotated[
        str,
        typer.Option(
            help="Text to count: read (the corpus), generated (written by the target) or both."
        ),
    ] = "both",
    tokens: Annotated[
        int, typer.Option(min=1, help="Number of tokens that the target writes.")
    ] = 900_000,
    generated: Annotated[
        Path,
        typer.Option(help="Folder for the target's own text, which all heads share."),
        FOLDER,
    ] = Path("build/generated"),
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Corpus: a .txt file, or a .jsonl file with a text per line; default: the "
            "lab's text."
        ),
    ] = None,
    device: opt.DEVICE = "auto",
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**31,
            help="Seed; the text of a head that was trained with it is used again.",
        ),
    ] = 0,
) -> None:
    """Count n-grams of a target's tokens, for path search."""
    from specwb.training.fit import say
    from specwb.training.ngram import count_for

    folder = count_for(
        target,
        out,
        order=order,
        least=least,
        source=text,
        tokens=tokens,
        corpus=corpus,
        generated=generated,
        device=device,
        seed=seed,
    )
    say(f"the n-grams are in {folder}")
