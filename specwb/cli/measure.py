"""specwb measure: why a head accepts what it accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import command_line, errors, loaded, table, tell, whole, wide
from specwb.core.files import FILE

FIGURES = ("right", "overlap", "covered", "chain", "card_right", "card_overlap")


def measure(
    head: Annotated[
        str,
        typer.Argument(
            help="Head or draft model: a folder, a hub id, or a kind that the target has "
            "(eagle, eagle3, medusa, falcon, kangaroo, draft, deep, diffusion)."
        ),
    ],
    target: opt.TARGET = "lab",
    prompts: opt.LIKE_COMPARE = "lab",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of prompts, a mix of all parts of the set.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Number of tokens of an answer, at most.")
    ] = 64,
    temperature: opt.TEMPERATURE = 0.0,
    device: opt.DEVICE = "auto",
    dtype: Annotated[
        str,
        typer.Option(help="Number type; float32 unless you want to see the effect of rounding."),
    ] = "float32",
    seed: opt.SEED = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File for all figures; - is standard output."),
        FILE,
    ] = None,
) -> None:
    """Tell why a head accepts what it accepts: its guesses in the target's answers to prompts.

    By depth, by the target's certainty and by kind of token, next to the head's card.
    docs/training.md explains how to read it.
    """
    from specwb.core.files import write
    from specwb.engine.work import check_work
    from specwb.models.questions import fitted, interleave, load_prompts
    from specwb.training import why

    questions = interleave(load_prompts(prompts))[:limit]
    model = loaded(target, device, dtype)
    measured = why.load_measured(head, model)
    texts = [ids for _, ids, _ in fitted(model, questions, tokens + why.BEHIND)]
    passes, rows = -(-len(texts) // why.ROWS) * tokens, min(len(texts), why.ROWS)
    what = f"{len(texts):,} answers of {tokens:,} tokens"
    whole(errors, check_work(model, what, passes, rows, lower="--limit or --tokens"))
    answers = why.write_answers(model, texts, tokens, temperature, seed)
    result = why.measure_answers(model, measured, answers, temperature)
    groups = (("", "depths"), ("top probability ", "certainty"), ("", "tokens"))
    lines = [_line(prefix, row) for prefix, key in groups for row in result[key] if row["places"]]
    out = errors if json_file == Path("-") else wide()
    out.print(table(lines, ("place",), out))
    law = "greedy" if not temperature else f"at temperature {temperature:g}"
    words = model.vocabulary if measured.words is None else len(measured.words)
    chain = sum(row["chain"] for row in result["depths"])
    name = head if head == measured.kind else f"{head} ({measured.kind})"
    for note in (
        f"{name}; {len(answers)} answers of {model.name} to {prompts}, {law}, at most {tokens} "
        f"tokens; overlap: sum min(p, q) at temperature {temperature or 1:g}",
        f"covered: the head can say the target's most probable token; it has {words:,} of "
        f"{model.vocabulary:,} tokens",
        f"chain: this depth and all before it are right; {chain:.2f} tokens in the mean from a "
        "place of an answer",
        f"card: {measured.card.get('held_out_of', why.OLD_CARD)}",
    ):
        tell(out, note)
    said = {"command": command_line(), "kind": measured.kind, "words": words, **result}
    content = json.dumps(said, indent=1) + "\n"
    if json_file == Path("-"):
        typer.echo(content, nl=False)
    elif json_file is not None:
        write(content, json_file)


def _line(prefix: str, row: dict[str, Any]) -> dict[str, str]:
    figures = {k.replace("_", " "): f"{row[k]:.3f}" if k in row else "-" for k in FIGURES}
    return {"place": f"{prefix}{row['name']}", "places": f"{row['places']:,}", **figures}
