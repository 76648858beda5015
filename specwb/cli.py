"""The command line: thin, every command a few library calls. Bad input is one line on standard error and exit code 2."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

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


@app.command()
def compare(
    methods: Annotated[
        str | None, typer.Option(help="Space-separated specs such as 'sps:gamma=3 mcsd:tree=4-2-2'; default: every registered method.")
    ] = None,
    prompts: Annotated[str, typer.Option(help="A shipped prompt set or a .jsonl file in Spec-Bench's schema.")] = "lab",
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
) -> None:
    """Decode the same prompts with every method and with the transformers library, and print one table."""
    from specwb import load
    from specwb.evaluation.compare import compare as run
    from specwb.evaluation.compare import to_json
    from specwb.evaluation.prompts import load_prompts

    if json_file is not None and (json_file.is_dir() or not json_file.resolve().parent.is_dir()):
        raise ValueError(f"--json: {json_file} is a folder, or the folder it should go to does not exist")
    questions = load_prompts(prompts)
    model = load(target, device=device, dtype=dtype)
    with Progress(console=errors, transient=True) as bar:
        task = bar.add_task("comparing", total=1.0)
        frame = run(
            model, questions, methods.split() if methods else None, draft=draft, temperature=temperature, max_new_tokens=max_new_tokens,
            batch=batch, seconds=seconds or None, seed=seed, progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text),
        )  # fmt: skip
    _print(frame)
    if json_file is not None:
        json_file.write_text(json.dumps(to_json(frame), indent=1) + "\n")


def _print(frame) -> None:
    facts = frame.attrs
    out = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(header_style="bold")
    for name in ("method", "exact", "identical", "tau", "accepted/round", "tokens/s", "speedup", "(quartiles)", "draft", "score", "verify", "commit"):
        table.add_column(name, justify="left" if name in ("method", "exact") else "right")
    for row in frame.to_dict("records"):
        total = sum(row[p] for p in ("draft", "score", "verify", "commit")) if row["draft"] == row["draft"] and row["draft"] is not None else 0
        spread = f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}" if facts["runs"] >= 4 else "-"
        parts = [f"{row[p] / total:.0%}" if total else "-" for p in ("draft", "score", "verify", "commit")]
        identical = "-" if row["identical"] is None else "yes" if row["identical"] else "NO"
        table.add_row(
            row["method"], "lossless" if row["lossless"] else "LOSSY", identical, f"{row['tau']:.2f}", f"{row['accepted_per_round']:.2f}",
            f"{row['tokens_per_second']:.1f}", f"{row['speedup']:.2f}x", spread, *parts,
        )  # fmt: skip
    out.print(table)
    s = facts["settings"]
    models = "; ".join(f"{role} {name}" for role, name in facts["models"].items())
    out.print(f"{facts['device']}; {models}", highlight=False, soft_wrap=True)
    cut = f", {facts['cut_prompts']} cut to the context" if facts["cut_prompts"] else ""
    early = ", interrupted" if facts["interrupted"] else ""
    out.print(
        f"{facts['prompts']} of {facts['all_prompts']} prompts in {facts['runs']} runs{cut}{early}, "
        f"batch {s['batch']}, {s['max_new_tokens']} new tokens, temperature {s['temperature']:g}, "
        f"{s['dtype']}; speedup is over ar, median of paired runs; identical: greedy tokens equal to ar's",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


@app.command("methods")
def list_methods() -> None:
    """List the registered methods with their options, paper and exactness."""
    from specwb.methods import METHODS, spell

    table = Table(header_style="bold")
    for name in ("method", "exact", "needs", "options", "paper"):
        table.add_column(name)
    for entry in METHODS.values():
        options = ", ".join(f"{n}={spell(p.default)}" for n, p in entry.options.items() if n != "draft")
        table.add_row(entry.key, entry.exactness.value, entry.needs, options, entry.paper)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


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
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    build(out, budget, device, data_dir() / "lab" if continue_ else None, seed)
    errors.print(f"the family is in {out}; use it with --target {out}/target --draft {out}/draft", highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: known errors become one line and exit code 2."""
    import torch

    from specwb.training.fit import TrainingError

    try:
        code = app(standalone_mode=False)  # typer answers Ctrl-C by returning 130
    except KeyboardInterrupt:
        code = 130
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
