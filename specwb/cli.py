"""The command line: thin, every command a few library calls. Bad input is one line on standard error and exit code 2."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, help="Speculative decoding workbench."
)
train = typer.Typer(add_completion=False, no_args_is_help=True, help="Train the models that ship with the project.")
app.add_typer(train, name="train")
errors = Console(stderr=True)
DRAFTED: dict[str, Any] = {"fg": 32}  # blue; the numbers are of the 256-colour palette, near those of the figures
CLOSING: dict[str, Any] = {"fg": 166, "underline": True}  # vermilion, and underlined: colour alone says nothing to some


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.")],
    method: Annotated[str, typer.Option(help="A method with its options, such as mcsd:tree=4-2-2.")] = "sps",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**62)] = 0,
    target: Annotated[str, typer.Option(help="lab, a folder or a hub id.")] = "lab",
    draft: Annotated[str | None, typer.Option(help="Draft model; default the target's own.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's turn: apply the chat template.")] = False,
    baseline: Annotated[bool, typer.Option("--baseline", help="Then measure against plain decoding.")] = False,
) -> None:
    """Stream a text as it is decoded, drafted tokens apart from closing tokens; standard output gets the text and nothing else."""
    import specwb
    from specwb.engine import token_rows
    from specwb.evaluation.prompts import Question
    from specwb.streaming import Stream

    model = specwb.load(target, device=device, dtype=dtype)
    made = specwb.method(method, model, **({} if draft is None else {"draft": draft}))
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    if chat and not getattr(model.tokenizer, "chat_template", None):
        raise ValueError(f"--chat: {model.name!r} has no chat template; leave --chat out")
    (ids,) = token_rows(model, [Question(0, "", (text,)).ids(model.tokenizer)] if chat else [text])
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    ends = [""]

    def show(piece: str, drafted: bool) -> None:
        ends[0] = piece
        typer.echo(typer.style(piece, **(DRAFTED if drafted else CLOSING)) if colour else piece, nl=False, color=colour)

    if colour:
        legend = typer.style("accepted drafted tokens", **DRAFTED), typer.style("closing tokens, from the target", **CLOSING)
        typer.echo(f"{legend[0]}   {legend[1]}", err=True)
    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    stream, stopped = Stream(model.tokenizer, ids, show), False
    began = time.perf_counter()
    try:
        specwb.decode(model, ids, made, max_new_tokens=max_new_tokens, on_tokens=stream, **settings)
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - began
    stream.close()
    if not ends[0].endswith("\n"):
        typer.echo()
    say = partial(errors.print, highlight=False, markup=False, soft_wrap=True)
    tau = stream.mean_tokens_per_round
    say(
        f"{made.key}: {len(stream.ids)} tokens in {stream.rounds} rounds, tau {tau:.2f} ({tau - 1:.2f} accepted/round), "
        f"{len(stream.ids) / seconds:.1f} tokens/s from a cold start"
        if stream.rounds
        else f"{made.key}: no tokens"
    )
    if stopped:
        raise typer.Exit(130)
    if baseline:
        # once more without printing, both warm and measured alike; seeds are the same, so the text is too
        specwb.decode(model, ids, "ar", max_new_tokens=min(8, max_new_tokens), **settings)
        plain, ours = (specwb.decode(model, ids, m, max_new_tokens=max_new_tokens, **settings) for m in ("ar", made))
        same = f"; greedy text {'identical' if plain.tokens == ours.tokens else 'NOT identical'}" if temperature == 0 else ""
        say(
            f"warm, one run each: {ours.tokens_per_second:.1f} tokens/s, plain decoding {plain.tokens_per_second:.1f}: "
            f"speedup {ours.tokens_per_second / plain.tokens_per_second:.2f}x{same}"
        )


@app.command()
def compare(
    methods: Annotated[
        str | None,
        typer.Option(help="Space-separated specs such as 'sps:gamma=3 mcsd hf_assisted:gamma=3'; default: every registered method."),
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="lab, tune, spec_bench, mt_bench, humaneval, gsm8k, a part of one (spec_bench/rag) or a .jsonl file in their formats.")
    ] = "lab",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    target: Annotated[str, typer.Option(help="lab, a folder or a hub id.")] = "lab",
    draft: Annotated[str | None, typer.Option(help="Draft model; default the target's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62)] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="About how long to measure; 0 = all prompts.")] = 150.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results here.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Also write a report with figures here.")] = None,
) -> None:
    """Decode the same prompts with every method and with the transformers library, and print one table."""
    from specwb import load
    from specwb.evaluation import report
    from specwb.evaluation.compare import compare as run
    from specwb.evaluation.compare import to_json
    from specwb.evaluation.prompts import load_prompts

    for path, option in ((json_file, "--json"), (html_file, "--html")):
        if path is not None:
            report.check_path(path, option)
    if html_file is not None:
        report.check_plotly()
    questions = load_prompts(prompts)
    model = load(target, device=device, dtype=dtype)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("comparing", total=1.0)
        frame = run(
            model, questions, methods.split() if methods else None, draft=draft, temperature=temperature, max_new_tokens=max_new_tokens,
            batch=batch, seconds=seconds or None, seed=seed, progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text),
        )  # fmt: skip
    rows = report.cells(frame)
    table = Table(header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("method", "exact") else "right", overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    out = _wide()
    out.print(table)
    for note in report.notes(frame.attrs):
        out.print(note, highlight=False, markup=False, soft_wrap=True)
    if json_file is not None:
        report.write(json.dumps(to_json(frame), indent=1) + "\n", json_file)
    if html_file is not None:
        report.write(report.html(frame, shlex.join(["specwb", *sys.argv[1:]])), html_file)
    if frame.attrs["interrupted"]:
        raise typer.Exit(130)


def _wide() -> Console:
    """Standard output; where it is no terminal, wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 140)


@app.command("methods")
def list_methods() -> None:
    """List the registered methods with their options, paper and exactness."""
    from specwb.methods import METHODS, spell

    table = Table(header_style="bold")
    for name in ("method", "exact", "needs", "options", "paper"):
        table.add_column(name, overflow="fold", no_wrap=name == "method")
    for entry in METHODS.values():
        options = ", ".join(f"{n}={spell(p.default)}" for n, p in entry.options.items() if n != "draft")
        table.add_row(entry.key, entry.exactness.value, entry.needs, options, entry.paper)
    _wide().print(table)


@train.command("lab")
def train_lab(
    budget: Annotated[str, typer.Option(help="cpu, gpu or smoke; steps and batch are in data/lab/recipe.toml.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Family folder; an interrupted run in it goes on.")] = Path("build/lab"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    continue_: Annotated[bool, typer.Option("--continue", help="Start from the shipped weights.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Default: the recipe's.")] = None,
) -> None:
    """Rebuild the lab family from text; stop and restart it at any moment."""
    from specwb.models.load import data_dir
    from specwb.training.lab import build

    # a polite kill saves, like Ctrl-C; after a hard one the last checkpoint (at most a minute old) is resumed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    build(out, budget, device, data_dir() / "lab" if continue_ else None, seed)
    errors.print(f"the family is in {out}; use it with --target {out}/target --draft {out}/draft", highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: known errors become one line and exit code 2."""
    import torch

    from specwb.training.fit import TrainingError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry; our one line says what failed
    try:
        code = app(standalone_mode=False)  # typer answers Ctrl-C by returning 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader has seen enough; Python would complain once more when it closes standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, TrainingError, OSError, torch.OutOfMemoryError) as error:
        errors.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")):
            message = error.format_message() if hasattr(error, "format_message") else str(error)
            errors.print(f"error: {message}", highlight=False, markup=False, soft_wrap=True)
            sys.exit(2)
        raise
    if code == 130:
        errors.print("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
