"""specwb check: a method, or a rule of one's own, on a real target."""

from __future__ import annotations

from typing import Annotated

import typer

from specwb.cli import options as opt
from specwb.cli.shared import errors, loaded, own_rule, whole, wide
from specwb.core.progress import progress

PROMPTS = 4
"""How many prompts of the set are used."""
TOKENS = 8
"""New tokens of all tests for each of ``--rows``: three, seven of a quarter of them, 24 of an
eighth."""


def check(
    method: Annotated[
        str, typer.Argument(help="Method with its options, such as mcsd:tree=4-2-2.")
    ] = "sps",
    rule: Annotated[
        str | None,
        typer.Option(help="Verification rule: a name, or package.module:Rule for your own."),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of texts of three tokens; four times as many show deviations half as "
            "large.",
        ),
    ] = 1024,
    temperature: Annotated[float, typer.Option(help="Sampling temperature, above 0.")] = 1.0,
    top_k: Annotated[
        int,
        typer.Option(
            min=0, help="Number of tokens to sample from; 0 takes all of a tiny vocabulary."
        ),
    ] = 3,
    prompts: Annotated[
        str,
        typer.Option(
            help=f"Prompt set or .jsonl file, as for specwb compare; its {PROMPTS} shortest "
            "prompts are used."
        ),
    ] = "lab",
    seed: opt.SEED = 0,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: Annotated[
        str,
        typer.Option(help="Number type; float32 unless you want to see the effect of rounding."),
    ] = "float32",
) -> None:
    """Compare a method's texts with the target's own distribution.

    Short texts are counted and compared with their exact probabilities by chi-square; longer ones
    are looked at token by token along the draft's distribution. The power of the test is printed
    too.
    """
    from specwb import method as make_method
    from specwb.engine.work import check_work
    from specwb.lab.evaluation.check import check as checked
    from specwb.lab.evaluation.joint import BATCH
    from specwb.models.questions import load_prompts

    questions = load_prompts(prompts)
    chosen = own_rule(rule) if rule is not None and ":" in rule else rule
    model = loaded(target, device, dtype)
    options = {} if draft is None else {"draft": draft}
    built = make_method(method, model, rule=chosen, **options)
    ids = sorted((question.ids(model.tokenizer) for question in questions), key=len)[:PROMPTS]
    at_once = min(rows, BATCH)
    passes = rows / at_once * TOKENS
    whole(errors, check_work(model, f"{rows:,} texts", passes, at_once, lower="--rows"))
    with progress(f"checking {built.key}"):
        report = checked(
            model, built, ids, temperature=temperature, top_k=top_k, rows=rows, seed=seed
        )
    whole(wide(), str(report))
    if not report.passed:
        raise typer.Exit(1)
