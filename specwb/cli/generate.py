"""specwb generate: a text as it is decoded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.cli import options as opt
from specwb.cli.shared import errors, loaded, message, whole

if TYPE_CHECKING:
    from specwb.engine.streaming import Stream

# The numbers are of the 256-colour palette, near the colours of the figures.
DRAFT_STYLE: dict[str, Any] = {"fg": 36}  # green
BONUS_STYLE: dict[str, Any] = {"fg": 32, "underline": True}  # blue; some do not see the colour
LONGEST = 2**26
"""Characters of a prompt from standard input, which may have no end."""


def generate(
    prompt: Annotated[
        str, typer.Argument(help="Text to continue; - reads it from standard input.")
    ],
    method: opt.METHOD = "sps",
    max_new_tokens: opt.MAX_NEW_TOKENS = 128,
    temperature: opt.TEMPERATURE = 0.0,
    top_k: opt.TOP_K = 0,
    top_p: opt.TOP_P = 1.0,
    exact_text: opt.EXACT_TEXT = False,
    seed: opt.SEED = 0,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    chat: opt.CHAT = False,
    system: Annotated[
        str | None, typer.Option(help="System message of a chat; needs --chat.")
    ] = None,
    template: opt.TEMPLATE = None,
    stop: opt.STOP = None,
) -> None:
    """Print a text as it is decoded, accepted draft tokens in another colour than bonus tokens.

    Standard output gets the text and nothing else.
    """
    import specwb
    from specwb.core.probability import Sampling
    from specwb.core.stops import stop_texts
    from specwb.engine.methods import read_spec
    from specwb.engine.streaming import Stream
    from specwb.models.prompts import token_rows

    stops = stop_texts(stop or (), "--stop")
    if not chat and (system is not None or template is not None):
        raise ValueError("--system and --template are of a chat; give --chat")
    if system == "":
        raise ValueError("--system is empty; give a text")
    read_spec(method, None, {})
    Sampling(temperature, top_k, top_p, exact_text)
    # standard input is read before anything else may read it
    text = standard_input() if prompt == "-" else prompt
    if not text:
        raise ValueError("the prompt is empty; give a text")
    model = loaded(target, device, dtype, loading, template=template)
    chosen = specwb.method(method, model)
    if draft is not None:
        chosen = specwb.method(method, model, draft=draft)
    advice = "name one with --template, or leave --chat out"
    (ids,) = token_rows(model, message(model, text, system, advice) if chat else text)
    stream, interrupted = Stream(_printer()), False
    steps = specwb.rounds(
        model,
        ids,
        chosen,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        exact_text=exact_text,
        seed=seed,
        until=stops,
    )
    began = time.perf_counter()
    try:
        for step in steps:
            stream(step)
    except KeyboardInterrupt:
        interrupted = True
    stream.close()
    typer.echo()
    label = chosen.key
    if chosen.exactness is specwb.Exactness.LOSSY:
        label += " (LOSSY)"
    whole(errors, f"{label}: {_summary(stream, began)}")
    if interrupted:
        raise typer.Exit(130)


def _printer() -> Callable[[str, bool], None]:
    """The function that prints a piece of text, on a terminal in the colour of its origin."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return lambda piece, is_draft: typer.echo(piece, nl=False)
    drafts = typer.style("accepted draft tokens", **DRAFT_STYLE)
    bonus = typer.style("bonus tokens, from the target", **BONUS_STYLE)
    typer.echo(f"{drafts}   {bonus}", err=True)

    def show(piece: str, is_draft: bool) -> None:
        style = DRAFT_STYLE if is_draft else BONUS_STYLE
        typer.echo(typer.style(piece, **style), nl=False, color=True)

    return show


def _summary(stream: Stream, began: float) -> str:
    """Tokens, steps and their times; the first step has the prompt in it."""
    count = len(stream.ids)
    if not count:
        return "no tokens"
    tau = stream.mean_tokens_per_step
    summary = (
        f"{count} tokens in {stream.rounds} steps, tau {tau:.2f} "
        f"({tau - 1:.2f} accepted/step); first step {stream.ends[0][0] - began:.1f} s"
    )
    if stream.rounds > 1:
        summary += f", then {stream.tokens_per_second:.1f} tokens/s"
    return summary


def standard_input() -> str:
    """Read the prompt that is piped or typed."""
    if sys.stdin is None:
        raise ValueError("PROMPT is -, but standard input is closed")
    if sys.stdin.isatty():
        errors.print("the prompt, then Ctrl-D on a line of its own:", highlight=False)
    try:
        text = sys.stdin.read(LONGEST + 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8 text: {error.reason}") from error
    if len(text) > LONGEST:
        raise ValueError(
            f"standard input has more than {LONGEST} characters; no context is so long"
        )
    return text.removesuffix("\n")
