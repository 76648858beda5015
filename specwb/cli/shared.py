"""The parts that commands share: tables on the console, checks of options, and loading."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specwb.core.files import Artifact, claim, from_json
from specwb.core.progress import errors, first_line, lines

if TYPE_CHECKING:
    from specwb.models.target import Target

NO_LOAD = ("source", "device", "dtype", "template", "tokenizer", "ranks", "token")
"""Arguments of :func:`specwb.load` that ``--load`` does not take."""
STDOUT = ("compare", "measure")
"""Commands that write a file named ``-`` to standard output."""


def load_settings(words: list[str] | None) -> dict[str, Any]:
    """Read further arguments of :func:`specwb.load` from ``--load``: KEY=VALUE, each KEY once.

    A VALUE that begins with a brace is a table in JSON, whose keys in digits are numbers of GPUs;
    true and false are such; every other one is a text. A token is no word for a command line: the
    environment has HF_TOKEN.
    """
    settings: dict[str, Any] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or key in settings or key in NO_LOAD:
            raise ValueError(
                f"--load {word}: it is KEY=VALUE, each KEY once, an argument of specwb.load that "
                "has no option of its own"
            )
        settings[key] = {"true": True, "false": False}.get(value, value)
        if value.startswith("{"):
            try:
                table = from_json(value)
            except ValueError as error:
                raise ValueError(f"--load {word}: no table in JSON: {error}") from error
            settings[key] = {int(k) if k.isdigit() else k: v for k, v in table.items()}
    return settings


def table(rows: list[dict[str, str]], words: tuple[str, ...], console: Console) -> Table:
    """Make a table of rows, column -> text, without lines.

    Columns in ``words`` are aligned left, and long texts in them are broken on a narrow console.
    Of the others the words of a long header stand one below the other.
    """
    made = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    first = next(iter(rows[0]))
    top = rows[0].keys() <= set(words)
    for name in rows[0]:
        header = escape(name)
        if name in words:
            made.add_column(header, overflow="fold", vertical="top" if top else "bottom")
        else:
            header = header.replace(" ", "\n") if len(name) > 8 else header
            made.add_column(header, justify="right", no_wrap=name != first, overflow="fold")
    for row in rows:
        made.add_row(*map(escape, row.values()))  # [csgd] is a name, no markup
    return made


def interval(low: float, high: float, digits: int) -> str:
    """Write an interval for a table; a single prompt or question has none."""
    return "-" if math.isnan(low) else f"{low:.{digits}f} .. {high:.{digits}f}"


def tell(console: Console, note: str) -> None:
    """Print a note below a table; a terminal breaks it between words, a pipe gets one line."""
    console.print(note, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def whole(console: Console, line: str) -> None:
    """Print a line that may be copied, so it is never broken."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def wide() -> Console:
    """Return standard output as a console; where it is no terminal, wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 140, emoji=False)


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["specwb", *sys.argv[1:]])


@dataclass(frozen=True)
class ArtifactOf:
    """The output of a command and its default place, where both depend on one of its arguments."""

    argument: str  # the parameter
    outputs: Mapping[str, tuple[Artifact, str]]  # by the argument's value


@dataclass(frozen=True)
class FileParameter:
    """A parameter of a command that may name files."""

    word: str  # on the command line
    is_path: bool  # and nothing else
    output: Artifact | ArtifactOf | None  # written there; None: it is read
    default: Any


def file_parameters(command: Callable[..., Any]) -> dict[str, FileParameter]:
    """Return a command's parameters that are texts or paths, by their names."""
    parameters = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, *notes = get_args(parameter.annotation) or [parameter.annotation]
        info = next((note for note in notes if hasattr(note, "param_decls")), None)
        output = next((note for note in notes if isinstance(note, Artifact | ArtifactOf)), None)
        if not {"str", "Path"} & {*re.findall(r"\w+", str(kind))}:
            continue
        # typer keeps the first of the names that stand in Option(..) as its default
        names = () if info is None else (info.default, *(info.param_decls or ()))
        options = [word for word in names if isinstance(word, str) and word.startswith("-")]
        word = max(options, key=len, default="--" + name.replace("_", "-"))
        if isinstance(info, typer.models.ArgumentInfo):
            word = name.upper()
        parameters[name] = FileParameter(word, "Path" in str(kind), output, parameter.default)
    return parameters


def careful(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with checks before it: its numbers are finite, and its outputs pass
    :func:`specwb.core.files.claim` against its inputs.

    Outputs are the paths whose annotation has an :class:`specwb.core.files.Artifact` or
    :class:`ArtifactOf`. Every other value that names a file is an input.
    """
    parameters = file_parameters(command)

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        outputs: dict[str, tuple[Path, Artifact]] = {}
        inputs: list[tuple[str, str]] = []
        named = {p.output.argument for p in parameters.values() if isinstance(p.output, ArtifactOf)}
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} must be a finite number, got {value:g}")
            parameter = parameters.get(name)
            if parameter is None or name in named:
                continue
            output = parameter.output
            if isinstance(output, ArtifactOf):
                choice = given[output.argument]
                if choice not in output.outputs:
                    word = parameters[output.argument].word
                    known = ", ".join(output.outputs)
                    raise ValueError(f"{word} is one of {known}; got {choice!r}")
                output, default = output.outputs[choice]
                value = given[name] = value or Path(default)
            if output is None:
                inputs += [(parameter.word, text) for text in _files(value, parameter.default)]
            elif value == Path("-"):
                if command.__name__ not in STDOUT:
                    raise ValueError(f"{parameter.word} needs the name of a file, not -")
            elif value is not None:
                outputs[parameter.word] = value, output
        claim(outputs, inputs)
        try:
            with first_line("specwb: at work"):
                return command(**given)
        except SystemExit as stop:
            if stop.code:  # rich's, of a reader that has gone
                raise
            # ours end by typer.Exit: this would be taken for a verdict
            raise ValueError("code that the command ran ended the process") from stop

    return run


def _files(value: Any, default: Any) -> Iterator[str]:
    """The files and folders that a value names; a method's options name some too
    (``medusa:head=FOLDER``). A default such as "lab" is a name, whatever else is called so."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str | Path) and one != default:
            texts = [str(one), *re.findall(r"=([^,;\s]+)", str(one))]
            yield from (t for t in texts if os.path.exists(os.path.expanduser(t)))


def _typed(ctx: typer.Context) -> dict[str, str]:
    """The parameters that were typed, each with its word on the command line."""
    return {
        str(parameter.name): max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(str(parameter.name))) is not None
        and source.name == "COMMANDLINE"
    }


def alone(ctx: typer.Context, option: str, *used: str) -> None:
    """Refuse what else was typed with an option that measures nothing, but for those ``used``."""
    surplus = [word for name, word in _typed(ctx).items() if name not in used]
    if surplus:
        raise ValueError(f"{option} measures nothing; leave {' and '.join(surplus)} out")


def refuse(ctx: typer.Context, command: str, *names: str) -> None:
    """Refuse parameters that were typed and for which this form of a command has no use."""
    surplus = [word for name, word in _typed(ctx).items() if name in names]
    if surplus:
        raise ValueError(f"{command} takes no {' and no '.join(surplus)}")


def loaded(
    target: str | Path,
    device: str,
    dtype: str,
    loading: list[str] | None = None,
    *,
    stored: bool = False,
    **settings: Any,
) -> Target:
    """Load the model of a command, with threads that suit the machine as it is now: torch's own
    number, or one where the CPUs are so busy that one is faster.

    Args:
        target: name, folder or file.
        device: auto, cpu or cuda.
        dtype: number type.
        loading: ``--load``.
        stored: the command keeps results that depend on the number of threads, and goes on from
            them. Then it is not changed, and a line says how to.
        settings: further arguments of :func:`specwb.load`.
    """
    from specwb import load

    settings |= load_settings(loading)
    with lines(lambda: f"loading {target}"):
        _use_threads(device, stored)
        return load(target, device=device, dtype=dtype, **settings)


def message(
    model: Target, text: str, system: str | None = None, advice: str = "leave --chat out"
) -> list[dict[str, str]]:
    """A prompt as the message of a user, behind a system message where there is one.

    Raises:
        ValueError: the model has no chat template; ``advice`` says what to do.
    """
    if not getattr(model.tokenizer, "chat_template", None):
        raise ValueError(f"--chat: {model.name!r} has no chat template; {advice}")
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _use_threads(device: str, stored: bool) -> None:
    import torch

    from specwb.engine import machine

    threads = torch.get_num_threads()
    is_named = "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if threads == 1 or is_named or not on_cpu:
        return
    ratio = machine.slowdown()
    if ratio <= machine.CRAWL:
        return
    why = f"products take {ratio:.1f} times as long with {threads}, as other programs use the CPUs"
    if stored:
        tell(errors, f"one thread would be faster: {why}; OMP_NUM_THREADS=1 specwb .. takes one")
        return
    torch.set_num_threads(1)
    tell(errors, f"computing with one thread: {why}; OMP_NUM_THREADS={threads} takes {threads}")


def from_working_folder() -> None:
    """Let modules be imported from the folder that the command is called in."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # an installed command has its own folder there instead


def own_rule(name: str) -> Any:
    """Import the rule that ``package.module:Rule`` names, also from the folder of the command."""
    from specwb.rules.rule import Rule

    module, _, attribute = name.partition(":")
    from_working_folder()
    try:
        rule = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a user's module does
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"--rule {name}: cannot import it: {problem}") from None
    if not (isinstance(rule, Rule) or (isinstance(rule, type) and issubclass(rule, Rule))):
        raise ValueError(f"--rule {name}: it must be a Rule or a NodeRule, got {rule!r}")
    return rule
