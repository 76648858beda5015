"""What a command reads is never written: every output of every command against every input."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from specwb.cli.main import COMMANDS
from specwb.cli.shared import ArtifactOf, careful, file_parameters
from specwb.lab.bench.store import RunStore

READ = {"FILE", "FOLDER", "--merge", "--corpus", "--recipe"}
"""The paths that are read and not written; all others must have an Artifact in their annotation."""


PARAMETERS = {name: file_parameters(command) for name, command in COMMANDS.items()}


def only_checked(command: str, /, **given) -> None:
    """Calls a command with these arguments; it ends where its check does."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS[command].items()}
    function = functools.wraps(COMMANDS[command])(lambda **_: None)
    careful(function)(**{**defaults, **given})


def test_every_path_is_declared():
    outputs = set()
    for name, parameters in PARAMETERS.items():
        for parameter in parameters.values():
            if parameter.output:
                outputs.add((name, parameter.word))
            elif parameter.is_path:
                assert parameter.word in READ, f"{name} {parameter.word}: an Artifact, or READ?"
    assert {("sweep", "--out"), ("reproduce", "--out"), ("tune", "--out")} <= outputs
    assert len(outputs) >= 12


def choices() -> Iterator[tuple[str, dict[str, str]]]:
    """Every command, and with each value of an argument on which its outputs depend."""
    for name, parameters in PARAMETERS.items():
        places = [p.output for p in parameters.values() if isinstance(p.output, ArtifactOf)]
        yield from ((name, {place.argument: x}) for place in places for x in place.outputs)
        if not places:
            yield name, {}


@pytest.mark.parametrize(("command", "choice"), [*choices()])
def test_nothing_is_written_over_what_is_read(monkeypatch, tmp_path, command, choice):
    """Every output with every other parameter: the same file by its name, by a link and by another
    name of it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one.jsonl"
    path.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "second")
    parameters = PARAMETERS[command]
    for (a, output), (b, other) in itertools.permutations(parameters.items(), 2):
        if not output.output or choice.keys() & {a, b}:
            continue
        for name in ("one.jsonl", "link", *([] if other.output else ["second"])):
            given = {a: Path(name), b: path if other.is_path else str(path)}
            with pytest.raises(ValueError, match=r"name (another|two)") as caught:
                only_checked(command, **choice | given)
            assert output.word in str(caught.value)
            assert other.word in str(caught.value)


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("compare", {"json_file": Path("/dev/null"), "prompts": "/dev/null"}),  # nothing to lose
        ("compare", {"json_file": Path("new.json"), "prompts": "mt_bench"}),
        ("compare", {"json_file": Path("lab"), "target": "./m"}),  # the default is a name, no file
        ("compare", {"json_file": Path("m/new.json"), "target": "m"}),
        (
            "compare",
            {"json_file": Path("-"), "markdown_file": Path("-")},
        ),  # is refused in its own words
        ("evaluate", {"out": Path("ev"), "csv": Path("ev/figures.csv")}),
        (
            "compare",
            {"json_file": Path("lab"), "markdown_file": Path("new.md")},
        ),  # one named by name
    ],
)
def test_what_harms_nothing_is_allowed(monkeypatch, tmp_path, command, given):
    monkeypatch.chdir(tmp_path)
    Path("m").mkdir()
    Path("m", "config.json").write_text("{}")
    Path("ev").mkdir()
    Path("lab").write_text("results of an earlier run")
    only_checked(command, **given)


TALKS = "".join(f'{{"messages": [{{"role": "user", "content": "{n}"}}]}}\n' for n in range(200))
PROMPTS = '{"question_id": 1, "category": "a", "turns": ["one"]}\n'
LOST = {
    "compare: its prompts": (
        ["compare", "--prompts", "o", "--json", "o"],
        "and --json would write to it; name another file",
    ),
    "compare: a file of the target": (
        ["compare", "--target", "m", "--json", "m/config.json"],
        "--json: m/config.json is there and not a file that may be replaced",
    ),
    "evaluate: a bench that is among its answers": (
        ["evaluate", "--bench", "ev/answers/ar.jsonl", "--out", "ev"],
        "--bench reads ev/answers/ar.jsonl, and --out would write to it",
    ),
    "talks over a user's": (
        ["train", "talks", "--out", "talks.jsonl", "--set", "requests=p.jsonl,tokens=5"],
        "--out: talks.jsonl is there and not a file of specwb train talks; move it away",
    ),
    "a head into a project": (
        ["train", "medusa", "--out", "proj"],
        "proj is there and not a trained head; move it away",
    ),
    "the ledger into a project": (
        ["reproduce", "all", "--shipped", "--out", "proj"],
        "proj/ledger.md is there and not a page of specwb reproduce all",
    ),
    "a study over notes": (
        ["reproduce", "mcsd", "--restart", "--out", "proj/notes.json"],
        "--out: proj/notes.json is there and not a file of results",
    ),
    "a sweep over prompts": (
        ["sweep", "s.toml", "--out", "p.jsonl"],
        "--out: p.jsonl is there and not a store of specwb's runs",
    ),
    "a file named -": (["trace", "ar", "--json", "-"], "--json needs the name of a file, not -"),
}


@pytest.mark.parametrize(("arguments", "words"), LOST.values(), ids=LOST)
def test_no_file_of_a_users_is_lost(refused, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    for folder in ("ev/answers", "proj", "m"):
        Path(folder).mkdir(parents=True)
    with RunStore("o"), RunStore("ev/store.sqlite", kind="evaluation"):
        pass
    for name in ("config.json", "card.json"):
        Path("m", name).write_text("{}")
    for name in ("README.md", "recipe.toml", "requests.txt", "ledger.md", "notes.json"):
        Path("proj", name).write_text(f"a user's {name}")
    Path("README.md").write_text("# My project\n")
    Path("ev/answers/ar.jsonl").write_text("{}\n")
    Path("talks.jsonl").write_text(TALKS)
    Path("p.jsonl").write_text(PROMPTS)
    Path("s.toml").write_text('prompts = "p.jsonl"\n[[methods]]\nmethod = "ar"\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert words in refused(*arguments)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
