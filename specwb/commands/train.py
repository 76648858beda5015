"""specwb train: the shipped models, and heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specwb.commands import options as opt
from specwb.commands.shared import Commands, errors

train = Commands(
    no_args_is_help=True,
    help="Train the models that ship with the project, or a head on a target of yours.",
)


@train.command("lab")
def train_lab(
    budget: opt.BUDGET = "cpu",
    out: Annotated[
        Path,
        typer.Option(help="Family folder; an interrupted run in it goes on.", writable=True),
    ] = Path("build/lab"),
    device: opt.DEVICE = "auto",
    continue_: Annotated[
        bool, typer.Option("--continue", help="Start from the shipped weights.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31, help="Default: the recipe's.")
    ] = None,
) -> None:
    """Rebuild the lab family from text; stop and restart it at any moment."""
    from specwb.models.load import data_dir
    from specwb.training.lab import build

    build(out, budget, device, data_dir() / "lab" if continue_ else None, seed)
    errors.print(
        f"the family is in {out}; use it with --target {out}/target --draft {out}/draft",
        highlight=False,
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
                help="Head folder; an interrupted run in it goes on. Default build/heads/KIND.",
                writable=True,
            ),
        ] = None,
        budget: opt.BUDGET = "cpu",
        steps: Annotated[int | None, typer.Option(min=1, help="Instead of the budget's.")] = None,
        rows: Annotated[
            int | None, typer.Option(min=1, help="Rows a step, instead of the budget's.")
        ] = None,
        length: Annotated[
            int | None, typer.Option(min=16, help="Tokens a row, instead of the budget's.")
        ] = None,
        options: Annotated[
            str,
            typer.Option(
                "--set",
                help="Settings, name=value with commas: the head's own, such as heads=5 (medusa), "
                "k=3 (falcon) or exit=3 (kangaroo), and loss=lk, optimiser=adamw, lr=1e-4, ..",
            ),
        ] = "",
        recipe: Annotated[
            str | None,
            typer.Option(
                help="A published recipe (eagle, eagle3, hass, falcon, kangaroo, medusa1, mcsd_ti) "
                "or a .toml file; --set goes before it."
            ),
        ] = None,
        text: Annotated[
            str, typer.Option(help="generated: mostly text the target writes; read: training text.")
        ] = "generated",
        generated: Annotated[
            Path,
            typer.Option(help="Where the target's own text is kept, for all heads.", writable=True),
        ] = Path("build/generated"),
        corpus: Annotated[
            Path | None,
            typer.Option(
                help="A .txt file, or a .jsonl file with a text field or conversations a line; "
                "default the lab's text."
            ),
        ] = None,
        device: opt.DEVICE = "auto",
        seed: Annotated[int, typer.Option(min=0, max=2**31)] = 0,
        seeds: Annotated[
            int,
            typer.Option(min=1, help="Train with so many seeds from --seed on, in OUT/seed-0, .."),
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
        Path, typer.Option(help="Conversations of the target, such as train talks writes.")
    ],
    target: opt.TARGET = "smol",
    out: Annotated[
        Path,
        typer.Option(help="Folder of all heads; an interrupted run in it goes on.", writable=True),
    ] = Path("build/heads"),
    recipe: Annotated[
        Path | None, typer.Option(help="A .toml file with the heads; default data/smol's.")
    ] = None,
    only: Annotated[str, typer.Option(help="Some of them, with commas.")] = "",
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    device: opt.DEVICE = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**31)] = 0,
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
        typer.Option(help="The .jsonl file; an interrupted run to it goes on.", writable=True),
    ] = Path("build/talks.jsonl"),
    tokens: Annotated[int, typer.Option(min=1, help="Of answers, in all.")] = 1_500_000,
    requests: Annotated[
        str | None,
        typer.Option(
            help="A prompt set, or a .jsonl file as for --prompts of compare, whose questions are "
            "answered; default: the model writes requests too."
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Conversations at once; a GPU has room for 1024 and more.")
    ] = 64,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**20)] = 0,
) -> None:
    """Let a chat model write conversations, requests and answers, to train its heads on."""
    from specwb.training.fit import say
    from specwb.training.talks import write

    write(target, out, tokens, given=requests, rows=rows, device=device, dtype=dtype, seed=seed)
    say(f"they are in {out}; train on them with --corpus {out} --text read")


@train.command("ngram")
def train_ngram(
    target: opt.TARGET = "lab",
    out: Annotated[
        Path, typer.Option(help="Folder for ngram.npz and card.json.", writable=True)
    ] = Path("build/ngram"),
    order: Annotated[int, typer.Option(min=1, help="Tokens of the longest n-grams.")] = 3,
    least: Annotated[
        int,
        typer.Option(
            min=1, help="N-grams of two tokens and more that were seen fewer times are left out."
        ),
    ] = 2,
    text: Annotated[
        str, typer.Option(help="read: training text; generated: text the target writes; or both.")
    ] = "both",
    tokens: Annotated[int, typer.Option(min=1, help="How much text the target writes.")] = 900_000,
    generated: Annotated[
        Path,
        typer.Option(help="Where the target's own text is kept, for all heads.", writable=True),
    ] = Path("build/generated"),
    corpus: Annotated[
        Path | None,
        typer.Option(help="A .txt file or .jsonl with a text field; default the lab's text."),
    ] = None,
    device: opt.DEVICE = "auto",
    seed: Annotated[
        int, typer.Option(min=0, max=2**31, help="That of a trained head shares its text.")
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
