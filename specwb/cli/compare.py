"""specwb compare: all methods on the same prompts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from specwb.cli import options as opt
from specwb.cli.shared import command_line, errors, loaded, table, tell, wide
from specwb.core.files import FILE
from specwb.core.progress import progress

WORDS = ("method", "same text")
"""Columns of words."""


def compare(
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with their options, such as 'sps:gamma=3 mcsd hf_assisted:gamma=3' "
            "or medusa,eagle; default: every method that this target can run."
        ),
    ] = None,
    prompts: Annotated[
        str,
        typer.Option(
            help="Prompts: lab, chat, edit, tune, spec_bench, mt_bench, humaneval, gsm8k, a "
            "part of one (spec_bench/rag) or a .jsonl file in one of their formats."
        ),
    ] = "lab",
    temperature: opt.TEMPERATURE = 0.0,
    top_k: opt.TOP_K = 0,
    top_p: opt.TOP_P = 1.0,
    exact_text: opt.EXACT_TEXT = False,
    max_new_tokens: opt.MAX_NEW_TOKENS = 64,
    batch: Annotated[
        int, typer.Option(min=1, help="Number of prompts that are decoded together.")
    ] = 1,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    seed: opt.SEED = 0,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time to measure, approximately; 0 measures all prompts.")
    ] = 120.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File for all results and texts; - is standard output."),
        FILE,
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", help="File for the table as Markdown; - is standard output."),
        FILE,
    ] = None,
) -> None:
    """Decode the same prompts with every method and with the transformers library; print a table.

    Speedups are over the faster plain decoding, specwb's own or the library's. Where a file goes
    to standard output, the table goes to standard error.
    """
    from specwb.core.files import write_all
    from specwb.core.options import specs
    from specwb.lab.bench import report
    from specwb.lab.bench.compare import compare as run
    from specwb.lab.bench.compare import to_json
    from specwb.models.questions import load_prompts

    stdout = Path("-")
    if json_file == stdout == markdown_file:
        raise ValueError("--json and --markdown: one of them goes to standard output; name a file")
    chosen = None if methods is None else specs(methods)
    if chosen == []:
        raise ValueError("--methods is empty; leave it out for every method")
    questions = load_prompts(prompts)
    random.Random(seed).shuffle(questions)  # kinds of prompts come in another order by each seed
    model = loaded(target, device, dtype, loading)
    out = errors if stdout in (json_file, markdown_file) else wide()
    live = Live(console=out, auto_refresh=False, transient=True)
    with live if out.is_terminal else progress("comparing") as view:
        frame = run(
            model,
            questions,
            chosen,
            draft=draft,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            exact_text=exact_text,
            max_new_tokens=max_new_tokens,
            batch=batch,
            seconds=seconds or None,
            seed=seed,
            progress=partial(draw, view)
            if isinstance(view, Live)
            else lambda done, text, _: view(done, text),
        )
    for library, caption in report.CAPTIONS.items():
        if rows := report.cells(frame, library):
            tell(out, caption)
            out.print(table(rows, WORDS, out))
            out.print()
    for note in report.notes(frame.attrs):
        tell(out, note)
    tell(out, "next: specwb tune, specwb trace; docs/cli.md#compare explains the columns")
    texts: dict[Path | None, str] = {
        json_file: json.dumps(to_json(frame, command_line()), indent=1) + "\n",
        markdown_file: report.markdown(frame),
    }
    write_all({path: text for path, text in texts.items() if path not in (None, stdout)})
    if stdout in texts:  # the last: its reader may have gone
        typer.echo(texts[stdout], nl=False)
    if frame.attrs["interrupted"]:
        raise typer.Exit(130)


def draw(view: Live, done: float, text: str, frame: Callable[[], Any] | None) -> None:
    """Draw how far a comparison is, with its table so far, in the place of the last drawing."""
    from specwb.lab.bench.report import cells

    parts: list[Any] = [table(cells(frame()), WORDS, view.console), ""] if frame else []
    view.update(Group(*parts, f"{done:.0%}: {text}"), refresh=True)
