"""``specwb trace``: a decoding recorded, as JSON or as a page that plays it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from specwb.cli import options as opt
from specwb.cli.shared import command_line, loaded, message, whole, wide
from specwb.core.files import FILE

PROMPT = "def area(width, height):\n    "


def trace(
    methods: Annotated[
        list[str], typer.Argument(help="Methods with their options, such as mcsd:tree=4-2-2.")
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = PROMPT,
    chat: opt.CHAT = False,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", help="Page to write that plays the recordings."),
        FILE,
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", help="File to write the traces to: one trace, or a list of several."
        ),
        FILE,
    ] = None,
    max_new_tokens: opt.MAX_NEW_TOKENS = 24,
    temperature: opt.TEMPERATURE = 1.0,
    seed: opt.SEED = 0,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
) -> None:
    """Record a decoding step by step; write it as JSON or as a page that plays it.

    The page needs no Python and no network. docs/trace.md says what is in a trace.
    """
    from specwb.core.files import write_all
    from specwb.engine.methods import built_with
    from specwb.show.scope import in_words, page, record

    if html_file is None and json_file is None:
        raise ValueError("name a file to write: --html OUT.html or --json OUT.json")
    model = loaded(target, device, dtype, loading)
    # all of them, before any work is done
    chosen = [built_with(spec, model, draft) for spec in methods]
    asked = message(model, prompt) if chat else prompt
    traces = [
        record(
            model,
            asked,
            one,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
        )
        for one in chosen
    ]
    screen = wide()
    for one in traces:
        whole(screen, in_words(one))
    contents: dict[Path, str] = {}
    if json_file is not None:
        content = traces[0] if len(traces) == 1 else traces
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        contents[json_file] = f"{text}\n"
    if html_file is not None:
        contents[html_file] = page(traces, command=command_line())
    write_all(contents)
