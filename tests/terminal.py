"""The command line, called as from a terminal."""

from __future__ import annotations

import io
import sys

from specwb import cli


def call(
    monkeypatch, capsys, *arguments: str, terminal: bool = False, stdin: str = ""
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``specwb arguments``."""
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
