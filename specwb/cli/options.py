"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

TARGET = Annotated[
    str, typer.Option(help="Target model: lab, smol, a folder, a hub id or a .gguf file.")
]
DRAFT = Annotated[
    str | None, typer.Option(help="Draft model, named like the target; default: the target's own.")
]
METHOD = Annotated[str, typer.Option(help="Method with its options, such as mcsd:tree=4-2-2.")]
TEMPERATURE = Annotated[
    float, typer.Option(help="Sampling temperature; 0, or less than 1e-4, is greedy.")
]
TOP_K = Annotated[
    int,
    typer.Option(
        min=0, max=2**31, help="Number of most probable tokens to sample from; 0 takes all."
    ),
]
TOP_P = Annotated[
    float,
    typer.Option(help="Total probability of the most probable tokens to sample from; 1 takes all."),
]
EXACT_TEXT = Annotated[
    bool,
    typer.Option(
        "--exact-text",
        help="At a temperature above 0, let every method write plain decoding's text.",
    ),
]
STOP = Annotated[list[str] | None, typer.Option(help="Text that ends an answer; may be repeated.")]
DEVICE = Annotated[str, typer.Option(help="Device of the models: auto, cpu or cuda.")]
DTYPE = Annotated[
    str, typer.Option(help="Number type of the models: auto, float32, bfloat16 or float16.")
]
LOAD = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        help="Argument of specwb.load for the target, such as device_map=auto or "
        "revision=main; may be repeated.",
    ),
]
CHAT = Annotated[
    bool,
    typer.Option("--chat", help="Apply the chat template: the prompt is a user's message."),
]
TEMPLATE = Annotated[
    str | None,
    typer.Option(help="Chat template in place of the tokenizer's: vicuna or llama-2."),
]
LIKE_COMPARE = Annotated[
    str, typer.Option(help="Prompt set or .jsonl file, as for specwb compare.")
]
SEED = Annotated[int, typer.Option(min=0, max=2**62, help="Seed of all draws.")]
MAX_NEW_TOKENS = Annotated[int, typer.Option(min=1, help="Largest number of new tokens.")]
