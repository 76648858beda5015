"""The command line: every command is a few library calls.

Bad input is one line on standard error and exit code 2.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from specwb import __version__
from specwb.commands import options as opt
from specwb.commands.certify import certify
from specwb.commands.check import check
from specwb.commands.evaluate import evaluate
from specwb.commands.methods import list_methods
from specwb.commands.reproduce import reproduce
from specwb.commands.shared import (
    Commands,
    command_line,
    errors,
    loaded,
    table,
    tell,
    whole,
    wide,
)
from specwb.commands.sweep import results, sweep
from specwb.commands.trace import trace
from specwb.commands.train import train
from specwb.commands.tune import tune
from specwb.commands.verify import verify
from specwb.errors import SpecwbError
from specwb.files import FILE, first_line
from specwb.progress import progress

app = Commands(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Speculative decoding workbench.",
)
# The numbers are of the 256-colour palette, near the colours of the figures.
DRAFT_STYLE: dict[str, Any] = {"fg": 36}  # green
BONUS_STYLE: dict[str, Any] = {"fg": 32, "underline": True}  # blue; some do not see the colour
LONGEST = 2**26
"""Characters of a prompt from standard input, which may have no end."""


def show_version(wanted: bool) -> None:
    """Print the version and exit, where it is wanted."""
    if wanted:
        typer.echo(f"specwb {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", callback=show_version, is_eager=True, help="Print it and exit.")


@app.callback()
def options(version: Annotated[bool, VERSION] = False) -> None:
    """Speculative decoding workbench."""


def generate(
    prompt: Annotated[
        str, typer.Argument(help="Text to continue; - reads it from standard input.")
    ],
    method: opt.METHOD = "sps",
    max_new_tokens: opt.MAX_NEW_TOKENS = 128,
    temperature: opt.TEMPERATURE = 0.0,
    top_k: opt.TOP_K = 0,
    top_p: opt.TOP_P = 1.0,
    seed: opt.SEED = 0,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Apply the chat template: the prompt is a user's message."),
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="System message of a chat; needs --chat.")
    ] = None,
    template: opt.TEMPLATE = None,
    stop: opt.STOP = None,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline", help="Also measure the speedup over plain decoding, after the text."
        ),
    ] = False,
) -> None:
    """Print a text as it is decoded, accepted draft tokens in another colour than bonus tokens.

    Standard output gets the text and nothing else.
    """
    import specwb
    from specwb.methods import read_spec
    from specwb.models.prompts import token_rows
    from specwb.probability import Sampling
    from specwb.stops import stop_texts
    from specwb.streaming import Stream

    stops = stop_texts(stop or (), "--stop")
    chatty = {"--system": system, "--template": template}
    given = [option for option, value in chatty.items() if value is not None]
    if given and not chat:
        verb = "is" if len(given) == 1 else "are"
        raise ValueError(f"{' and '.join(given)} {verb} of a chat; give --chat")
    if system == "":
        raise ValueError("--system is empty; give a text")
    read_spec(method, None, {})
    Sampling(temperature, top_k, top_p)
    # standard input is read before anything else may read it
    text = standard_input() if prompt == "-" else prompt
    if not text:
        raise ValueError("the prompt is empty; give a text")
    model = loaded(target, device, dtype, loading, template=template)
    chosen = specwb.method(method, model, **({} if draft is None else {"draft": draft}))
    if chat and not getattr(model.tokenizer, "chat_template", None):
        raise ValueError(
            f"--chat: {model.name!r} has no chat template; name one with --template, or leave "
            "--chat out"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    (ids,) = token_rows(model, messages if chat else text)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    last_piece = ""

    def show(piece: str, is_draft: bool) -> None:
        nonlocal last_piece
        last_piece = piece
        style = DRAFT_STYLE if is_draft else BONUS_STYLE
        typer.echo(typer.style(piece, **style) if colour else piece, nl=False, color=colour)

    if colour:
        drafts = typer.style("accepted draft tokens", **DRAFT_STYLE)
        bonus = typer.style("bonus tokens, from the target", **BONUS_STYLE)
        typer.echo(f"{drafts}   {bonus}", err=True)
    settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    settings["seed"] = seed
    stream, interrupted = Stream(show), False
    began = time.perf_counter()
    try:
        for step in specwb.rounds(
            model, ids, chosen, max_new_tokens=max_new_tokens, until=stops, **settings
        ):
            stream(step)
    except KeyboardInterrupt:
        interrupted = True
    stream.close()
    if not last_piece.endswith("\n"):
        typer.echo()
    lossy = " (LOSSY)" if chosen.exactness is specwb.Exactness.LOSSY else ""
    summary = "no tokens"
    if count := len(stream.ids):
        tau = stream.mean_tokens_per_step
        summary = (
            f"{count} tokens in {stream.rounds} steps, tau {tau:.2f} "
            f"({tau - 1:.2f} accepted/step); first step {stream.ends[0][0] - began:.1f} s"
        )
        if stream.rounds > 1:
            summary += f", then {stream.tokens_per_second:.1f} tokens/s"
    whole(errors, f"{chosen.key}{lossy}: {summary}")
    if interrupted:
        raise typer.Exit(130)
    if baseline:
        measured = _speedup(model, ids, chosen, max_new_tokens, {"until": stops, **settings})
        whole(errors, measured)


def _speedup(
    model: Any, ids: list[int], method: Any, max_new_tokens: int, settings: dict[str, Any]
) -> str:
    """Measure the method and plain decoding, once each and without printing; say what came out.

    Both are measured alike, after a warm-up. Seeds are those of the text printed before, so the
    text is too.
    """
    import specwb
    from specwb.bench.measure import Job, measure
    from specwb.bench.ties import same_texts

    sampling = specwb.Sampling(*(settings[name] for name in ("temperature", "top_k", "top_p")))
    jobs = [
        Job(one.key, one, [ids], max_new_tokens, sampling, settings["seed"])
        for one in (specwb.method("ar", model), method)
    ]
    plain, output = (run for _, run in measure(model, jobs, until=settings["until"], clock=False))
    speed, plain_speed = output.tokens_per_second, plain.tokens_per_second
    same = ""
    if sampling.greedy:
        found = same_texts(model, [[ids]], [plain.tokens], {"own": [output.tokens]})["own"]
        same = f"; greedy text {'NOT ' if found.ties + found.others else ''}identical"
        if found.ties:
            same += f", from a tie up to rounding ({found.margin:.2g}) on"
    return (
        f"after a warm-up, one run each: {speed:.1f} tokens/s, plain decoding {plain_speed:.1f}: "
        f"speedup {speed / plain_speed:.2f}x over ar, specwb's own{same}"
    )


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


def compare(
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with their options, such as 'sps:gamma=3 mcsd hf_assisted:gamma=3' "
            "or medusa,eagle; default: every method that this target can run."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Preset of settings, such as published, for the methods that have it (specwb "
            "methods NAME lists them); other methods keep their settings."
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
    max_new_tokens: opt.MAX_NEW_TOKENS = 64,
    batch: Annotated[
        int, typer.Option(min=1, help="Number of prompts that are decoded together.")
    ] = 1,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    also_plain: Annotated[
        list[str] | None,
        typer.Option(
            help="Number type in which plain decoding is measured too, as a reference for "
            "speedups; the weights are loaded once more. May be repeated."
        ),
    ] = None,
    loading: opt.LOAD = None,
    target: opt.TARGET = "lab",
    draft: opt.DRAFT = None,
    seed: opt.SEED = 0,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time to measure, approximately; 0 measures all prompts.")
    ] = 120.0,
    threads: opt.THREADS = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File for all results and texts; - is standard output."),
        FILE,
    ] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", help="File for the table as CSV; - is standard output."),
        FILE,
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", help="File for the table as Markdown; - is standard output."),
        FILE,
    ] = None,
) -> None:
    """Decode the same prompts with every method and with the transformers library; print a table.

    Speedups are over the fastest plain decoding, specwb's own or the library's. Where a file goes
    to standard output, the table goes to standard error.
    """
    from specwb.bench import report
    from specwb.bench.compare import compare as run
    from specwb.bench.compare import to_json, usual
    from specwb.bench.prompts import load_prompts
    from specwb.files import write_all
    from specwb.methods import METHODS, Method, that_run, with_preset
    from specwb.options import specs

    files = {
        "--json": json_file,
        "--csv": csv_file,
        "--markdown": markdown_file,
    }
    piped = [option for option, path in files.items() if path == Path("-")]
    if len(piped) > 1:
        raise ValueError(
            f"{' and '.join(piped)}: only one of them can go to standard output; name a file"
        )
    chosen = None if methods is None else specs(methods)
    if chosen == []:
        raise ValueError("--methods is empty; leave it out for every method")
    questions = load_prompts(prompts)
    model = loaded(target, device, dtype, loading, threads=threads)
    others = [loaded(target, device, x, loading, threads=threads) for x in also_plain or ()]
    left_out: dict[str, str] = {}
    to_run: list[str | Method] | None = None if chosen is None else [*chosen]
    if preset is not None:
        named = chosen or usual(model)
        preset_specs = with_preset(named, preset)
        as_before = [name for name in preset_specs if name in named]
        if as_before:
            tell(errors, f"without a preset {preset!r}, as they are: {', '.join(as_before)}")
        library = [spec for spec in preset_specs if spec.startswith("hf_")]
        own = [spec for spec in preset_specs if spec not in library]
        those, left_out = that_run(own, model, draft, usual=chosen is None)
        if not those and not library:
            raise ValueError("; ".join(report.left_out(left_out)))
        to_run = [*those.values(), *library]
    with progress("comparing") as moved:
        frame = run(
            model,
            questions,
            to_run,
            draft=draft,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            batch=batch,
            seconds=seconds or None,
            seed=seed,
            others=others,
            progress=moved,
        )
    frame.attrs["left_out"] = left_out | frame.attrs["left_out"]
    out = errors if piped else wide()
    speeds, columns, times = report.captions(frame.attrs)
    tell(out, speeds)
    out.print(table(report.cells(frame), ("method", "same text"), out))
    tell(out, columns)
    if shares := report.times(frame):
        tell(out, f"\n{times}")
        out.print(table(shares, ("method",), out))
    out.print()
    for note in report.notes(frame.attrs):
        tell(out, note)
    names = [name for name in report.ranked(frame)["method"] if name != "ar"]
    shown = next((name for name in names if name.partition(":")[0] in METHODS), "pld")
    tell(
        out,
        f"next: specwb tune looks for better settings, specwb trace {shown} --html steps.html "
        "plays the decoding steps; docs/cli.md#compare explains the columns",
    )
    command = command_line()
    forms = {
        "--json": lambda: json.dumps(to_json(frame, command), indent=1) + "\n",
        "--csv": lambda: report.csv(frame),
        "--markdown": lambda: report.markdown(frame),
    }
    wanted = [(option, path) for option, path in files.items() if path and option not in piped]
    write_all({path: forms[option]() for option, path in wanted})
    for option in piped:  # the last: its reader may have gone
        typer.echo(forms[option](), nl=False)
    if frame.attrs["interrupted"]:
        raise typer.Exit(130)


# in the order of the help text
app.command()(generate)
app.command()(compare)
app.command()(trace)
app.command("methods")(list_methods)
app.command()(tune)
app.command()(verify)
app.command()(certify)
app.command()(check)
app.command()(evaluate)
app.command()(sweep)
app.command()(results)
app.command()(train)
app.command()(reproduce)


def main() -> None:
    """Run the command line; known errors become one line and exit code 2."""
    if sys.stderr is None:  # closed, as by 2>&-
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        fail("standard output is closed")
    # SIGTERM ends a command as Ctrl-C does, which keeps what there is
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # the hub's client reports every retry; one line of ours says what failed
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        code = app(standalone_mode=False)  # typer answers Ctrl-C by returning 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more at closing standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")):
            fail(error.format_message() if hasattr(error, "format_message") else str(error))
        if isinstance(error, RecursionError):
            fail(f"something is nested too deep: {error}")
        if not isinstance(error, (SpecwbError, ValueError, OSError)):
            if not out_of_memory(error):
                raise
            fail(f"there is not enough memory for that: {first_line(error)}")
        if isinstance(error, OSError) and error.filename and error.strerror:
            fail(f"{error.filename}: {error.strerror}")
        fail(str(error))
    if code == 130:
        errors.print("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> NoReturn:
    """Print one line on standard error and exit with code 2."""
    # what cannot be written, such as half of a surrogate pair, is shown by its number
    line = message.encode("utf-8", "backslashreplace").decode()
    whole(errors, f"error: {line}")
    sys.exit(2)


def out_of_memory(error: Exception) -> bool:
    """Return whether the machine or a device ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    import torch  # not before: it takes seconds, and a wrong option needs none of it

    # torch has no class of its own for a CPU's memory
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return on_cpu or isinstance(error, torch.OutOfMemoryError)


if __name__ == "__main__":
    main()
