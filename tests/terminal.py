"""Call the command line as a terminal or a pipe would."""

from __future__ import annotations

import io
import sys

from specwb.cli import main as cli


def call(
    monkeypatch, capsys, *arguments: str, terminal: bool = False, stdin: str = ""
) -> tuple[int, str, str]:
    """Run ``specwb arguments``.

    Args:
        monkeypatch: pytest's, which undoes what is set here.
        capsys: pytest's, which captures the output.
        arguments: of the command line, without the program's name.
        terminal: whether standard output claims to be a terminal.
        stdin: the text on standard input.
    Returns:
        The exit code, standard output and standard error.
    """
    monkeypatch.setattr(sys, "argv", ["specwb", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    if terminal:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    out, err = capsys.readouterr()
    return code, out, err


def refused(monkeypatch, capsys, *arguments: str, **settings) -> str:
    """The one line on standard error that refuses ``specwb arguments``. The exit code is 2, and
    nothing is on standard output. Arguments as of :func:`call`."""
    code, out, err = call(monkeypatch, capsys, *arguments, **settings)
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
    return err
