"""What a command reads is never written: every output of every command against every input."""

from __future__ import annotations

import functools
import itertools
import os
import re
from pathlib import Path

import pytest
from terminal import refused

from specwb import cli
from specwb.bench.store import Store
from specwb.commands.shared import careful, file_parameters

READ = {"FILE", "FOLDER", "--merge", "--corpus", "--recipe"}
"""The paths that are read and not written; all others must be declared writable."""


def commands(group=cli.app, words: tuple[str, ...] = ()) -> dict:
    """Every command, as the command line has it, by the words that call it."""
    found = {
        (*words, info.name or info.callback.__name__): info for info in group.registered_commands
    }
    for info in group.registered_groups:
        found |= commands(info.typer_instance, (*words, info.name))
    return found


COMMANDS = commands()
PARAMETERS = {words: file_parameters(info.callback) for words, info in COMMANDS.items()}


def only_checked(words: tuple[str, ...], **given) -> None:
    """Calls a command with these arguments; it ends where its check does."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS[words].items()}
    function = functools.wraps(COMMANDS[words].callback.__wrapped__)(lambda **_: None)
    careful(function)(**{**defaults, **given})


def test_every_path_is_declared():
    outputs = set()
    for words, parameters in PARAMETERS.items():
        assert hasattr(COMMANDS[words].callback, "__wrapped__"), f"{words} is not careful"
        for parameter in parameters.values():
            if parameter.is_output:
                outputs.add((*words, parameter.word))
            elif parameter.is_path:
                assert parameter.word in READ, f"{words} {parameter.word}: writable, or in READ?"
    assert {("results", "STORE"), ("reproduce", "falcon", "--heads"), ("tune", "--out")} <= outputs
    assert len(outputs) >= 40


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_is_written_over_what_is_read(monkeypatch, tmp_path, words):
    """Every output with every other parameter: the same file by its name, by a link and by another
    name of it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one.jsonl"
    path.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "second")
    parameters = PARAMETERS[words]
    for (a, output), (b, other) in itertools.permutations(parameters.items(), 2):
        if not output.is_output:
            continue
        for name in ("one.jsonl", "link", *([] if other.is_output else ["second"])):
            given = {a: Path(name), b: path if other.is_path else str(path)}
            with pytest.raises(ValueError, match=r"name (another|two)") as caught:
                only_checked(words, **given)
            assert output.word in str(caught.value)
            assert other.word in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["results", "o", "--csv", "./o"],
        ["results", "o", "--plot", "o"],
        ["results", "o", "--csv", "o-wal"],
        ["compare", "--prompts", "o", "--json", "o"],
        ["evaluate", "--bench", "o", "--csv", "o"],
        ["sweep", "o", "--out", "o"],
    ],
    ids=" ".join,
)
def test_on_the_command_line_the_file_stays_and_one_line_says_why(
    monkeypatch, capsys, tmp_path, arguments
):
    monkeypatch.chdir(tmp_path)
    with Store("o"):
        pass
    before = Path("o").read_bytes()
    assert re.match(
        "error: .* (would write to it; name another file|name one file, o(-wal)?; name two)",
        refused(monkeypatch, capsys, *arguments),
    )
    assert Path("o").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ["compare", "--target", "m", "--json", "m/config.json"],
            "--json: m/config.json is a file",
        ),
        (["compare", "--methods", "medusa:head=m", "--csv", "m/card.json"], "m, which --methods"),
        (["trace", "ar", "--draft", "./m", "--html", "m/card.json"], "which --draft reads"),
    ],
)
def test_a_file_of_a_model_that_is_read(monkeypatch, capsys, tmp_path, arguments, named):
    monkeypatch.chdir(tmp_path)
    Path("m").mkdir()
    for name in ("config.json", "card.json"):
        Path("m", name).write_text("{}")
    assert named in refused(monkeypatch, capsys, *arguments)
    assert {path.read_text() for path in Path("m").iterdir()} == {"{}"}


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("compare", {"json_file": Path("/dev/null"), "prompts": "/dev/null"}),  # nothing to lose
        ("compare", {"json_file": Path("new.json"), "prompts": "mt_bench"}),
        ("compare", {"json_file": Path("lab"), "target": "./m"}),  # the default is a name, no file
        ("compare", {"json_file": Path("m/new.json"), "target": "m"}),
        ("compare", {"json_file": Path("-"), "csv_file": Path("-")}),  # is refused in its own words
        ("evaluate", {"out": Path("m"), "csv": Path("m/figures.csv")}),
    ],
)
def test_what_harms_nothing_is_allowed(monkeypatch, tmp_path, command, given):
    monkeypatch.chdir(tmp_path)
    Path("m").mkdir()
    Path("m", "config.json").write_text("{}")
    Path("lab").write_text("results of an earlier run")
    only_checked((command,), **given)
