"""What the commands share: their consoles and tables, and options that several of them have."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from specwb.core.files import FILE, STUDY, DataError, Output, claim, from_json, home, toml
from specwb.core.progress import errors, first_line, lines

if TYPE_CHECKING:
    from specwb.core.options import Option
    from specwb.models.target import Target

OPTIONS = ("source", "device", "dtype", "template", "tokenizer", "ranks", "token")
"""Arguments of :func:`specwb.load` that ``--load`` does not take."""
FLAGS = ("generic", "local_files_only")
"""Arguments of :func:`specwb.load` that are true or false."""


def load_settings(words: list[str] | None) -> dict[str, Any]:
    """Read further arguments of :func:`specwb.load` from ``--load``: KEY=VALUE, each KEY once.

    A VALUE that begins with a brace is a table in JSON, whose keys in digits are numbers of GPUs;
    :data:`FLAGS` are true or false; every other one is a text. A token is no word for a command
    line: the environment has HF_TOKEN.
    """
    settings: dict[str, Any] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or key in settings or key in OPTIONS:
            raise ValueError(
                f"--load {word}: it is KEY=VALUE, each KEY once, an argument of specwb.load that "
                "has no option of its own"
            )
        settings[key] = value
        if key in FLAGS:
            if value not in ("true", "false"):
                raise ValueError(f"--load {word}: {key} is true or false")
            settings[key] = value == "true"
        elif value.startswith("{"):
            try:
                table = from_json(value)
            except ValueError as error:
                raise ValueError(f"--load {word}: no table in JSON: {error}") from error
            settings[key] = {int(k) if k.isdigit() else k: v for k, v in table.items()}
    return settings


NAME = 18
"""Columns of a terminal that a table's first column has, where its texts are so long."""
PROSE = 24
"""A longer text in a column of words may be broken into lines."""
LEAST = 20
"""Columns of a terminal that such texts need to be read."""
HEADER = 8
"""A header over figures of this length or more has a line for each word."""


def table(rows: list[dict[str, str]], words: tuple[str, ...], console: Console) -> Group:
    """Make a table of rows, column -> text, that is no wider than it must be.

    It has no lines, and the words of a long header over figures are one below the other. Columns in
    ``words`` are aligned left, and long texts in them are broken on a narrow console. Columns for
    which there is no room follow in a further table with the first column again; where most of them
    are long texts, the cells of a row stand one below the other instead.
    """
    headers = {
        name: [name] if name in words or len(name) < HEADER else name.split() for name in rows[0]
    }
    widths = {
        name: max(map(len, [*header, *(row[name] for row in rows)]))
        for name, header in headers.items()
    }
    first, *others = headers
    prose = [name for name in others if name in words and widths[name] > PROSE]
    needs = {name: 2 + (LEAST if name in prose else widths[name]) for name in others}
    width = console.width - min(widths[first], NAME)
    if 2 * len(prose) > len(others) and sum(needs.values()) > width:
        return Group(_stacked(rows))
    parts: list[list[str]] = [[first]]
    room = width
    for name in others:
        if needs[name] > room and len(parts[-1]) > 1:
            parts.append([first])
            room = width
        parts[-1].append(name)
        room -= needs[name]
    tables: list[Any] = []
    for part in parts:
        tables += ["", _plain()] if tables else [_plain()]
        height = max(len(headers[name]) for name in part)
        for name in part:
            header = headers[name]
            lines = "\n".join([""] * (height - len(header)) + [escape(word) for word in header])
            justify: Literal["left", "right"] = "left" if name in words else "right"
            folds = name == first or name in prose
            tables[-1].add_column(lines, justify=justify, overflow="fold", no_wrap=not folds)
        for row in rows:
            tables[-1].add_row(*(escape(row[name]) for name in part))  # [csgd] is a name, no markup
    return Group(*tables)


def _plain() -> Table:
    """A table without lines."""
    return Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)


def _stacked(rows: list[dict[str, str]]) -> Table:
    """The rows one after another, each with its cells one below the other."""
    table = _plain()
    table.show_header = False
    table.add_column(overflow="fold")
    for row in rows:
        (first, name), *others = row.items()
        table.add_row(f"[bold]{escape(name or first)}[/bold]")
        for column, text in others:
            if text:
                table.add_row(Padding(escape(f"{column}: {text}"), (0, 0, 0, 2)))
    return table


def tell(console: Console, note: str) -> None:
    """Print a note below a table; a terminal breaks it between words, a pipe gets one line."""
    console.print(note, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def whole(console: Console, line: str) -> None:
    """Print a line that may be copied, so it is never broken."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


PICTURES = (".html", ".png", ".svg", ".pdf")


class Commands(typer.Typer):
    """A group of commands that look at their files first, see :func:`careful`."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        add = super().command(name, **settings)
        return lambda function: add(careful(function))


@dataclass(frozen=True)
class Places:
    """What a command writes, and the default place, where both depend on one of its arguments."""

    argument: str  # the parameter
    outputs: Mapping[str, tuple[Output, str]]  # by the argument's value


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command that may name files."""

    word: str  # on the command line
    is_path: bool  # and nothing else
    output: Output | Places | None  # what is written there; None: it is read
    default: Any


def file_parameters(command: Callable[..., Any]) -> dict[str, Parameter]:
    """A command's parameters that are texts or paths, by their names."""
    found = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, *notes = get_args(parameter.annotation) or [parameter.annotation]
        info = next((note for note in notes if hasattr(note, "param_decls")), None)
        output = next((note for note in notes if isinstance(note, Output | Places)), None)
        kinds = {*get_args(kind), *(k for part in get_args(kind) for k in get_args(part)), kind}
        if not kinds & {str, Path}:
            continue
        # typer keeps the first of the names that stand in Option(..) as its default
        names = () if info is None else (info.default, *(info.param_decls or ()))
        words = [word for word in names if isinstance(word, str) and word.startswith("-")]
        word = max(words, key=len, default="--" + name.replace("_", "-"))
        if isinstance(info, typer.models.ArgumentInfo):
            word = name.upper()
        found[name] = Parameter(word, Path in kinds, output, parameter.default)
    return found


def careful(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, after a check that its numbers are finite, and :func:`specwb.core.files.claim`'s
    of its outputs against its inputs.

    Outputs are the paths whose annotation has an :class:`specwb.core.files.Output` or
    :class:`Places`. Whatever else is said on the command line and names a file is an input, and so
    is a file that a .toml file names.
    """
    parameters = file_parameters(command)
    places = {name: p.output for name, p in parameters.items() if isinstance(p.output, Places)}
    fixed = {name: p.output for name, p in parameters.items() if isinstance(p.output, Output)}

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        _check_finite(given)
        outputs: dict[str, tuple[Path, Output]] = {}
        inputs: list[tuple[str, str]] = []
        kinds = {**fixed}
        for name, place in places.items():
            choice = given[place.argument]
            if choice not in place.outputs:
                word = parameters[place.argument].word
                raise ValueError(f"{word} is one of {', '.join(place.outputs)}; got {choice!r}")
            kinds[name], default = place.outputs[choice]
            given[name] = given[name] or Path(default)
        names = {place.argument for place in places.values()}  # of what there is, and of no files
        for name, parameter in parameters.items():
            if name in names:
                continue
            values = given[name] if isinstance(given[name], list) else [given[name]]
            for value in values:
                if name in kinds:
                    output = kinds[name]
                    if output is STUDY and value.suffix in PICTURES:
                        output = FILE  # of --figure
                    if value not in (None, Path("-")):
                        outputs[parameter.word] = value, output
                # a default such as "lab" is a name, whatever else is called so
                elif isinstance(value, str | Path) and value != parameter.default:
                    inputs += [(parameter.word, one) for one in _named(str(value))]
        claim(outputs, [one for one in inputs if os.path.exists(home(one[1]))])
        try:
            with first_line("specwb: at work"):
                return command(**given)
        except SystemExit as stop:
            if stop.code:
                raise
            # ours end by typer.Exit: this would be taken for a verdict
            problem = "code that the command ran ended the process (exit code 0)"
            raise ValueError(problem) from stop

    return run


def _named(text: str) -> list[str]:
    """All that may name a file in a word of the command line, and in the .toml file that it is."""
    # a method's options name files too: medusa:head=FOLDER
    named = [text, *re.findall(r"=([^,;\s]+)", text)]
    if text.endswith(".toml"):
        with contextlib.suppress(DataError):  # the command says what is wrong with it
            named += _texts(toml(home(text))[0])
    return [name for name in named if len(name) < 4096 and "\0" not in name]


def _texts(value: Any) -> list[str]:
    """All texts in a TOML value, and what follows an equals sign in one."""
    if isinstance(value, str):
        return [value, *re.findall(r"=([^,;\s]+)", value)]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in items for text in _texts(one)]


def typed(ctx: typer.Context) -> dict[str, str]:
    """The parameters that were typed, each with its word on the command line."""
    return {
        str(parameter.name): max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(str(parameter.name))) is not None
        and source.name == "COMMANDLINE"
    }


def alone(ctx: typer.Context, option: str, *used: str) -> None:
    """Refuse what else was typed with an option that measures nothing, but for those ``used``."""
    surplus = [word for name, word in typed(ctx).items() if name not in used]
    if surplus:
        raise ValueError(f"{option} measures nothing; leave {' and '.join(surplus)} out")


def refuse(ctx: typer.Context, command: str, *names: str) -> None:
    """Refuse parameters that were typed and for which this form of a command has no use."""
    surplus = [word for name, word in typed(ctx).items() if name in names]
    if surplus:
        raise ValueError(f"{command} takes no {' and no '.join(surplus)}")


def settings_of(text: str, known: Mapping[str, Option], whose: str) -> dict[str, Any]:
    """Read ``--set``: name=value with commas, each name once.

    A part without a name belongs to the value before it, as in ``temperatures=0,0.7``.

    Args:
        known: what each name may be; the value of one that may be anything stays text.
        whose: settings these are, for the message.
    """
    from specwb.core.options import parse_value

    words: dict[str, str] = {}
    name = ""
    for part in text.split(",") if text else ():
        before, equals, value = part.partition("=")
        if equals and before in known and before not in words:
            name = before
            words[name] = value
        elif not equals and name:
            words[name] += f",{part}"
        else:
            raise ValueError(
                f"--set {part}: it is name=value with commas, each name once, of those that "
                f"{whose} takes: {', '.join(known) or 'none'}"
            )
    return {
        name: value if Any in known[name].types else known[name].check("--set", parse_value(value))
        for name, value in words.items()
    }


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
        loading: ``--load``.
        stored: the command keeps results that depend on the number of threads, and goes on from
            them. Then it is not changed, and a line says how to.
    """
    from specwb import load

    settings |= load_settings(loading)
    with lines(lambda: f"loading {target}"):
        _use_threads(device, stored)
        return load(target, device=device, dtype=dtype, **settings)


def _use_threads(device: str, stored: bool) -> None:
    import torch

    from specwb.engine import machine

    every, named = torch.get_num_threads(), {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & {*os.environ}
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if every == 1 or named or not on_cpu:
        return
    ratio = machine.slowdown()
    if ratio <= machine.CRAWL:
        return
    why = f"products take {ratio:.1f} times as long with {every}, as other programs use the CPUs"
    if stored:
        tell(errors, f"one thread would be faster: {why}; OMP_NUM_THREADS=1 specwb .. takes one")
        return
    torch.set_num_threads(1)
    tell(errors, f"computing with one thread: {why}; OMP_NUM_THREADS={every} takes {every}")


def wide() -> Console:
    """Return standard output as a console; where it is no terminal, wide enough for the tables."""
    return Console(width=None if sys.stdout.isatty() else 140, emoji=False)


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["specwb", *sys.argv[1:]])


def own_rule(name: str):
    """Import the rule that ``package.module:Rule`` names."""
    from specwb.rules.rule import Rule

    rule = imported(name, "--rule")
    if not (isinstance(rule, Rule) or (isinstance(rule, type) and issubclass(rule, Rule))):
        raise ValueError(f"--rule {name}: it must be a Rule or a NodeRule, got {rule!r}")
    return rule


def imported(name: str, option: str) -> Any:
    """Import what ``package.module:name`` names, also from the folder of the command."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # an installed command has its own folder there instead
    try:
        _import_in_child(module)
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's module does
        raise ValueError(
            f"{option} {name}: cannot import {module!r}: {type(error).__name__}: {error}"
        ) from None
    if not attribute or not hasattr(found, attribute):
        raise ValueError(f"{option} {name}: {module!r} has no {attribute!r}")
    return getattr(found, attribute)


IMPORT_SECONDS = 30
"""Time budget for the import of a user's module."""


def _import_in_child(module: str) -> None:
    """Import a module in a forked process first: one that ends the process, as ``os._exit`` does,
    would decide the exit code of a check, 0 perhaps; one that loops would keep it for ever."""
    child = os.fork()
    if not child:
        signal.alarm(IMPORT_SECONDS)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)  # the import that counts says what there is to say
        with contextlib.suppress(BaseException):
            importlib.import_module(module)
        os.kill(os.getpid(), signal.SIGKILL)  # an end that no module brings about by itself
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        raise ImportError(f"it had not ended after {IMPORT_SECONDS} s")
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise ImportError(f"it ends the process ({os.waitstatus_to_exitcode(status)})")


def _check_finite(given: Mapping[str, Any]) -> None:
    """Check that no number of a command line is infinite, or none."""
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} must be a finite number, got {value:g}")
