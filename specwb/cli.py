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
train = typer.Typer(add_completion=False, no_args_is_help=True, help="Train the models that ship with the project, or a head on a target of yours.")
app.add_typer(train, name="train")
reproduce = typer.Typer(add_completion=False, no_args_is_help=True, help="Measure what papers claim; an interrupted run goes on where it stopped.")
app.add_typer(reproduce, name="reproduce")
errors = Console(stderr=True)
DRAFTED: dict[str, Any] = {"fg": 32}  # blue; the numbers are of the 256-colour palette, near those of the figures
CLOSING: dict[str, Any] = {"fg": 166, "underline": True}  # vermilion, and underlined: colour alone says nothing to some


# options that several commands share
TARGET = Annotated[str, typer.Option(help="lab, a folder or a hub id.")]
DRAFT = Annotated[str | None, typer.Option(help="Draft model; default the target's own.")]
DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda.")]
DTYPE = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
BUDGET = Annotated[str, typer.Option(help="cpu, gpu or smoke; steps and batch are in data/lab/recipe.toml.")]
LIKE_COMPARE = Annotated[str, typer.Option(help="As for compare.")]
SEED = Annotated[int, typer.Option(min=0, max=2**62)]
RESULTS = Annotated[Path, typer.Option(help="Results; a run with the same arguments goes on from them.")]
RESTART = Annotated[bool, typer.Option("--restart", help="Replace the results that are there.")]


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.")],
    method: Annotated[str, typer.Option(help="A method with its options, such as mcsd:tree=4-2-2.")] = "sps",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    seed: SEED = 0,
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
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
    tau, lossy = stream.mean_tokens_per_round, " (LOSSY)" if made.exactness is specwb.Exactness.LOSSY else ""
    say(
        f"{made.key}{lossy}: {len(stream.ids)} tokens in {stream.rounds} rounds, tau {tau:.2f} ({tau - 1:.2f} accepted/round), "
        f"{len(stream.ids) / seconds:.1f} tokens/s from a cold start"
        if stream.rounds
        else f"{made.key}{lossy}: no tokens"
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
        typer.Option(help="Specs such as 'sps:gamma=3 mcsd hf_assisted:gamma=3' or medusa,eagle; default: every method this target can run."),
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="lab, tune, spec_bench, mt_bench, humaneval, gsm8k, a part of one (spec_bench/rag) or a .jsonl file in their formats.")
    ] = "lab",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 1,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    target: TARGET = "lab",
    draft: DRAFT = None,
    seed: SEED = 0,
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
    from specwb.options import specs

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
            model, questions, specs(methods) if methods else None, draft=draft, temperature=temperature, max_new_tokens=max_new_tokens,
            batch=batch, seconds=seconds or None, seed=seed, progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text),
        )  # fmt: skip
    out = _wide()
    out.print(_table(report.cells(frame), ("method", "exact")))
    for note in report.notes(frame.attrs):
        out.print(note, highlight=False, markup=False, soft_wrap=True)
    if json_file is not None:
        report.write(json.dumps(to_json(frame), indent=1) + "\n", json_file)
    if html_file is not None:
        report.write(report.html(frame, shlex.join(["specwb", *sys.argv[1:]])), html_file)
    if frame.attrs["interrupted"]:
        raise typer.Exit(130)


@app.command()
def tune(
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    nodes: Annotated[int, typer.Option(min=2, help="Of the largest tree, its root included.")] = 32,
    prompts: Annotated[str, typer.Option(help="As for compare; one in three calibrates, the others measure.")] = "lab",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    seconds: Annotated[float, typer.Option(min=0, help="About how long to measure, after a minute of calibration; 0 = all prompts.")] = 150.0,
    seed: SEED = 0,
    out: Annotated[Path | None, typer.Option(help="Default build/tune/TARGET-DEVICE-TTEMPERATURE.json; its calibration is used again.")] = None,
) -> None:
    """Predict the speedup of chains and trees from measured costs and acceptance, measure it, and name the best."""
    from specwb import load
    from specwb.evaluation import report
    from specwb.evaluation import tune as tuning
    from specwb.evaluation.prompts import load_prompts

    if out is not None:
        report.check_path(out, "--out")
    questions = load_prompts(prompts)
    model = load(target, device=device, dtype=dtype)
    path = out or tuning.default_path(model, temperature)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("tuning", total=1.0)
        result = tuning.tune(
            model, questions, draft=draft, temperature=temperature, nodes=nodes, max_new_tokens=max_new_tokens, seconds=seconds or None, seed=seed,
            path=path, progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text),
        )  # fmt: skip
    screen = _wide()
    screen.print(_table(tuning.cells(result), ("setting",)))
    given = {"--target": target, "--draft": draft, "--device": device, "--dtype": dtype, "--prompts": prompts, "--temperature": f"{temperature:g}"}
    usual = {"--target": "lab", "--draft": None, "--device": "auto", "--dtype": "auto", "--prompts": "lab", "--temperature": "0"}
    options = [word for name, value in given.items() if value is not None and value != usual[name] for word in (name, value)]
    for note in [*tuning.notes(result, options), f"kept in {path}"]:
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    if result["interrupted"]:
        raise typer.Exit(130)


def _table(rows: list[dict[str, str]], words: tuple[str, ...]) -> Table:
    """Columns named in ``words`` are text, the others numbers."""
    table = Table(header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    return table


def _wide() -> Console:
    """Standard output; where it is no terminal, wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 140)


@app.command()
def verify(
    exact: Annotated[bool, typer.Option("--exact", help="Every rule and every wrong one over fractions: seconds, no model needed.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Rounds over all ordered trees of up to 6 nodes besides the root, not 5; minutes.")] = False,
    rule: Annotated[list[str] | None, typer.Option(help="Only this rule; may be given several times.")] = None,
) -> None:
    """Check that every verification rule keeps the target's law, exactly, and that every wrong rule is found out."""
    from specwb.verify import suite

    if not (exact or full):
        raise ValueError("say what to verify: --exact, or --full for larger trees too")
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("verifying", total=1.0)
        report = suite.run(full, lambda done, text: bar.update(task, completed=done, description=text), rule)
    screen = _wide()
    for rows, words in ((suite.cells(report), ("rule", "draft laws", "verdict")), (suite.wrong_cells(report), ("wrong rule", "of", "what is wrong"))):
        if rows:
            screen.print(_table(rows, words))
    for note in suite.notes(report):
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    if report.interrupted:
        raise typer.Exit(130)
    if not report.right:
        raise typer.Exit(1)


@app.command("methods")
def list_methods() -> None:
    """List the registered methods with their options, paper and exactness."""
    from specwb.drafters.level import DRAWS
    from specwb.flow import Exactness
    from specwb.methods import METHODS, spell
    from specwb.verify import RULES

    table = Table(header_style="bold")
    for name in ("method", "exact", "needs", "options", "paper"):
        table.add_column(name, overflow="fold", no_wrap=name == "method")
    for entry in METHODS.values():
        options = ", ".join(n if p.default is None else f"{n}={spell(p.default)}" for n, p in entry.options.items() if n not in ("draft", "head"))
        table.add_row(entry.key, entry.exactness.value, entry.needs, options, entry.paper)
    screen = _wide()
    screen.print(table)
    names = ", ".join(name + (" (LOSSY)" if rule.exactness is Exactness.LOSSY else "") for name, rule in RULES.items())
    screen.print(
        f"every method takes rule=, one of {names}; mcsd and eagle take draw=, one of {', '.join(DRAWS)}; methods with heads take head=",
        highlight=False,
    )


@train.command("lab")
def train_lab(
    budget: BUDGET = "cpu",
    out: Annotated[Path, typer.Option(help="Family folder; an interrupted run in it goes on.")] = Path("build/lab"),
    device: DEVICE = "auto",
    continue_: Annotated[bool, typer.Option("--continue", help="Start from the shipped weights.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Default: the recipe's.")] = None,
) -> None:
    """Rebuild the lab family from text; stop and restart it at any moment."""
    from specwb.models.load import data_dir
    from specwb.training.lab import build

    # a polite kill saves, like Ctrl-C; after a hard one the last checkpoint (at most a minute old) is resumed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    build(out, budget, device, data_dir() / "lab" if continue_ else None, seed)
    errors.print(f"the family is in {out}; use it with --target {out}/target --draft {out}/draft", highlight=False)


def _train_head(kind: str) -> None:
    def command(
        target: TARGET = "lab",
        out: Annotated[Path | None, typer.Option(help="Head folder; an interrupted run in it goes on. Default build/heads/KIND.")] = None,
        budget: BUDGET = "cpu",
        steps: Annotated[int | None, typer.Option(min=1, help="Instead of the budget's.")] = None,
        rows: Annotated[int | None, typer.Option(min=1, help="Rows a step, instead of the budget's.")] = None,
        length: Annotated[int | None, typer.Option(min=16, help="Tokens a row, instead of the budget's.")] = None,
        options: Annotated[str, typer.Option("--set", help="The head's own: heads=5 (medusa), unroll=5,regression=0.1 (eagle).")] = "",
        text: Annotated[str, typer.Option(help="generated: mostly text the target writes; read: training text.")] = "generated",
        generated: Annotated[Path, typer.Option(help="Where the target's own text is kept, for all heads.")] = Path("build/generated"),
        corpus: Annotated[Path | None, typer.Option(help="A .txt file or .jsonl with a text field; default the lab's text.")] = None,
        device: DEVICE = "auto",
        seed: Annotated[int, typer.Option(min=0, max=2**31)] = 0,
    ) -> None:
        from specwb.training.fit import say
        from specwb.training.heads import train_for

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        place = out or Path("build/heads") / kind
        changes = {"steps": steps, "rows": rows, "length": length}
        train_for(kind, target, place, budget, changes, options, source=text, generated=generated, corpus=corpus, device=device, seed=seed)
        say(f"the head is in {place}; use it with {kind}:head={place}")

    article = "an" if kind[0] == "e" else "a"
    command.__doc__ = f"Train {article} {kind} head on a frozen target; stop and restart it at any moment. Scales with accelerate launch -m specwb."
    train.command(kind)(command)


for _kind in ("medusa", "eagle", "eagle3"):
    _train_head(_kind)


@reproduce.command("mcsd")
def reproduce_mcsd(
    out: RESULTS = Path("build/reproduce/mcsd.json"),
    seconds: Annotated[float, typer.Option(min=0, help="About how long to measure in all, but two prompts a cell at least.")] = 300.0,
    temperatures: Annotated[str, typer.Option(help="Comma-separated; the two layouts are compared at 1.")] = "0,0.3,0.7,1",
    rounds: Annotated[int, typer.Option(min=2, help="A prompt and cell.")] = 10,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Multi-candidate decoding: trees, draws and temperatures on one pair, with verdicts on what is claimed of them."""
    from specwb.reproduce import mcsd
    from specwb.reproduce.store import Store, identity

    ts = _numbers(temperatures, "--temperatures")
    cells = mcsd.grid(ts)
    questions, model, helper = _pair(prompts, target, draft, device, dtype)
    store = Store(out, identity("mcsd", model, helper, prompts=prompts, temperatures=ts, rounds=rounds, seed=seed), restart)
    run = partial(mcsd.run, model, questions, store, cells, draft=helper, rounds_each=rounds, seconds=seconds, seed=seed)
    _reproduced(store, run, partial(mcsd.report, store, cells), mcsd)


@reproduce.command("acceptance")
def reproduce_acceptance(
    out: RESULTS = Path("build/reproduce/acceptance.json"),
    positions: Annotated[int, typer.Option(min=1, help="A prompt and temperature.")] = 4,
    temperatures: Annotated[str, typer.Option(help="Comma-separated, > 0.")] = "0.3,0.7,1",
    tokens: Annotated[int, typer.Option(min=1, help="Length of the texts that positions are taken from.")] = 48,
    prompts: LIKE_COMPARE = "lab",
    target: TARGET = "lab",
    draft: DRAFT = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    seed: SEED = 0,
    restart: RESTART = False,
) -> None:
    """Acceptance of every rule beside the optimum, from both models' exact laws along the target's own texts: which rule wins where."""
    from specwb.reproduce import acceptance
    from specwb.reproduce.store import Store, identity

    ts = _numbers(temperatures, "--temperatures")
    questions, model, helper = _pair(prompts, target, draft, device, dtype)
    own = {"prompts": prompts, "temperatures": ts, "ks": list(acceptance.KS), "tokens": tokens, "positions": positions, "seed": seed}
    store = Store(out, identity("acceptance", model, helper, **own), restart)
    run = partial(acceptance.run, model, questions, store, draft=helper, temperatures=ts, tokens=tokens, positions=positions, seed=seed)
    _reproduced(store, run, partial(acceptance.report, store), acceptance)


def _pair(prompts: str, target: str, draft: str | None, device: str, dtype: str) -> tuple[Any, Any, Any]:
    """Questions, target and draft."""
    from specwb import load
    from specwb.evaluation.prompts import load_prompts
    from specwb.methods import draft_model

    questions = load_prompts(prompts)
    model = load(target, device=device, dtype=dtype)
    return questions, model, draft_model(model, draft)


def _reproduced(store: Any, run: Any, report: Any, system: Any) -> None:
    """Run with a bar, keep what was found whatever happens, print it."""
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("reproducing", total=1.0)
        interrupted = run(progress=lambda done, text: bar.update(task, completed=min(done, 1.0), description=text))
    if not store.cells:
        raise typer.Exit(130)
    store.document["command"] = shlex.join(["specwb", *sys.argv[1:]])
    document = report()
    store.save(final=True)
    screen = _wide()
    for title, rows in system.tables(document):
        screen.print(title, highlight=False, markup=False)
        screen.print(_table(rows, ("tree", "text", "best")))
    for note in [*system.notes(document), f"kept in {store.path}"]:
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(130)


def _numbers(text: str, option: str) -> list[float]:
    """``"0,0.7,1"`` -> numbers, each once. Raises ValueError where one is none or no temperature."""
    from specwb.probability import Sampling

    try:
        return list(dict.fromkeys(Sampling(float(part)).temperature for part in text.split(",")))
    except ValueError as error:
        raise ValueError(f"{option} must be temperatures such as 0,0.7,1, got {text!r}: {error}") from error


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
