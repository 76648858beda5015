"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TARGET = Annotated[str, typer.Option(help="lab, smol, a folder, a hub id or a .gguf file.")]
DRAFT = Annotated[str | None, typer.Option(help="Draft model; default the target's own.")]
METHOD = Annotated[str, typer.Option(help="A method with its options, such as mcsd:tree=4-2-2.")]
TEMPERATURE = Annotated[float, typer.Option(help="0, or less than 1e-4, is greedy.")]
TOP_K = Annotated[int, typer.Option(min=0, help="0 is off.")]
TOP_P = Annotated[float, typer.Option(help="1 is off.")]
STOP = Annotated[
    list[str] | None, typer.Option(help="A text that ends an answer; may be repeated.")
]
DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda.")]
DTYPE = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
LOAD = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        help="How the target is loaded: an argument of specwb.load, such as device_map=auto or "
        "quantization_config=4bit; may be repeated.",
    ),
]
TEMPLATE = Annotated[
    str | None,
    typer.Option(help="Chat template instead of the tokenizer's: vicuna or llama-2."),
]
BUDGET = Annotated[
    str, typer.Option(help="cpu, gpu or smoke; steps and batch are in data/lab/recipe.toml.")
]
LIKE_COMPARE = Annotated[str, typer.Option(help="As for compare.")]
SEED = Annotated[int, typer.Option(min=0, max=2**62)]
THREADS = Annotated[
    int | None, typer.Option(min=1, help="CPU threads to compute with; default what torch takes.")
]
RESULTS = Annotated[
    Path,
    typer.Option(help="Results; a run with the same arguments goes on from them.", writable=True),
]
RESTART = Annotated[bool, typer.Option("--restart", help="Replace the results that are there.")]
