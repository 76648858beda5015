"""The command line: every command is a few library calls.

Bad input is one line on standard error and exit code 2.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from specwb import __version__
from specwb.cli.certify import certify
from specwb.cli.check import check
from specwb.cli.compare import compare
from specwb.cli.evaluate import evaluate
from specwb.cli.generate import generate
from specwb.cli.measure import measure
from specwb.cli.methods import list_methods
from specwb.cli.reproduce import reproduce
from specwb.cli.shared import careful, errors, whole
from specwb.cli.sweep import sweep
from specwb.cli.trace import trace
from specwb.cli.train import train
from specwb.cli.tune import tune
from specwb.core.errors import SpecwbError
from specwb.core.files import first_line

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Speculative decoding workbench.",
)


def show_version(wanted: bool) -> None:
    """Print the version and exit, where it is wanted."""
    if wanted:
        typer.echo(f"specwb {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", callback=show_version, is_eager=True, help="Print it and exit.")


@app.callback()
def options(version: Annotated[bool, VERSION] = False) -> None:
    """Speculative decoding workbench."""


COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate,
    "compare": compare,
    "trace": trace,
    "methods": list_methods,
    "tune": tune,
    "certify": certify,
    "check": check,
    "evaluate": evaluate,
    "sweep": sweep,
    "train": train,
    "measure": measure,
    "reproduce": reproduce,
}
"""In the order of the help text."""
for name, command in COMMANDS.items():
    app.command(name)(careful(command))


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
        message = message_of(error)
        if message is None:
            raise
        fail(message)
    if code == 130:
        errors.print("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> NoReturn:
    """Print one line on standard error and exit with code 2."""
    # what cannot be written, such as half of a surrogate pair, is shown by its number
    line = message.encode("utf-8", "backslashreplace").decode()
    whole(errors, f"error: {line}")
    sys.exit(2)


def message_of(error: Exception) -> str | None:
    """Return the line that reports an error; None where it is none of input or of the machine."""
    if hasattr(error, "format_message"):  # click's
        return error.format_message()
    if isinstance(error, RecursionError):
        return f"something is nested too deep: {error}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (SpecwbError, ValueError, OSError)):
        return str(error)
    # torch has no class of its own for a CPU's memory
    is_full = "can't allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError"
    if isinstance(error, MemoryError) or is_full:
        return f"there is not enough memory for that: {first_line(error)}"
    return None


if __name__ == "__main__":
    main()
