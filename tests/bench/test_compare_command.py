"""specwb compare as it is printed: narrow terminals, pipes, files.

The comparison itself is made once, with tiny models.
"""

from __future__ import annotations

import json

import pandas as pd
import pytest
import tiny
import torch
from terminal import call

import specwb
from specwb.cli.shared import loaded
from specwb.engine import machine
from specwb.engine.methods import METHODS
from specwb.lab.bench import compare as module
from specwb.lab.harness import run as harness

LONG = "hf_assisted:gamma=3,schedule=constant,confidence=0"


@pytest.fixture(scope="module")
def frame():
    """A comparison with a row for every method and with the longest figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "one_step", lambda target: lambda: 1.0)
        patch.setattr(machine, "load_average", lambda: 0.0)
        compared = module.compare(
            tiny.target(),
            [[1, 2, 3], [5, 6]],
            ["sps"],
            draft=tiny.draft(),
            max_new_tokens=4,
            library=False,
        )
    first, _, last = compared.to_dict("records")
    wide = {
        "tokens_per_second": 12345.6,
        "speedup": 10.23,
        "speedup_low": 10.11,
        "speedup_high": 11.25,
        "tau": 14.25,
    }
    names = [*METHODS, "hf_greedy", "hf_prompt_lookup", LONG]
    rows = [
        {**(last if name.startswith("hf_") else first), **wide, "method": name} for name in names
    ]
    full = pd.DataFrame(rows)
    same = compared.attrs["same_text"]["ar"]
    # which of the two plain decodings is faster, the machine says; a longer name takes more columns
    reference = {**compared.attrs["reference"], "method": "ar"}
    own = {"runs": 19, "same_text": dict.fromkeys(names, same), "reference": reference}
    full.attrs = dict(compared.attrs) | own
    return full


@pytest.fixture
def command(frame, monkeypatch, capsys):
    """A call of ``specwb compare`` with that result: exit code, output, errors."""
    monkeypatch.setattr(specwb, "load", lambda name, **options: tiny.target())
    monkeypatch.setattr(module, "compare", lambda *args, **kwargs: frame)
    return lambda *options, **settings: call(monkeypatch, capsys, "compare", *options, **settings)


def screen(command, monkeypatch, columns: int) -> list[str]:
    """The lines on a terminal of this width, without their bold letters."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, err = command(terminal=True)
    assert code == 0, err
    lines = out.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, lines)) <= columns
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_of_80_columns_shows_every_figure_whole(command, frame, monkeypatch, columns):
    lines = screen(command, monkeypatch, columns)
    for name in [*METHODS, "hf_prompt_lookup"]:
        rows = [line.split() for line in lines if line.split()[:1] == [name]]
        assert rows[0] == [name, "10.23x", "10.11-11.25", "14.25", "yes"]
        # the second row is its shares of time
        assert len(rows) == 1 + (not name.startswith("hf_"))
    head = " ".join(" ".join(lines[:4]).split())
    words = ("speedup", "over", frame.attrs["reference"]["method"], "(quartiles)", "fastest first")
    assert all(word in head for word in words)


def test_a_terminal_of_40_columns_keeps_names_and_whole_figures(command, frame, monkeypatch):
    """Columns that have no room are in a further table."""
    lines = screen(command, monkeypatch, 40)
    for name in [*METHODS, "hf_prompt_lookup"]:
        rows = [line.split() for line in lines if line.split()[:1] == [name]]
        assert rows[:2] == [[name, "10.23x", "10.11-11.25"], [name, "14.25", "yes"]]
        shares = [cell for row in rows[2:] for cell in row[1:]]
        assert len(shares) == 4 * (not name.startswith("hf_"))
        assert all(cell.endswith("%") for cell in shares)


def test_piped_output_is_plain_and_no_wider_than_needed(command, frame):
    code, out, _ = command()
    assert code == 0
    assert not set(out) & set("│┃━─\x1b")
    table = out.splitlines()[1 : 4 + len(frame)]
    assert max(len(line.rstrip()) for line in table) <= len(LONG) + 60
    assert any(line.startswith(LONG + " ") for line in table)
    lines = out.splitlines()
    assert any(line.startswith("speedup is over ") for line in lines)
    # captions, a conclusion, and what to do next
    assert lines[0] == "Speed of each method, fastest first, on 19 prompts"
    assert any(line.startswith("Share of the time of decoding steps: ") for line in lines)
    assert "Nothing but plain decoding was measured." in lines or any(
        line.startswith(("Fastest here", "No method is faster", "The largest speedup"))
        for line in lines
    )
    assert lines[-1].startswith("next: ")
    assert "docs/cli.md#compare" in lines[-1]
    assert "packed" not in out
    assert "load average" not in out


def test_files(command, frame, tmp_path):
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "markdown")}
    code, out, err = command(
        *(word for name, path in paths.items() for word in (f"--{name}", str(path)))
    )
    assert (code, err) == (0, "")
    assert out
    document = json.loads(paths["json"].read_text())
    assert document["command"].startswith("specwb compare --json ")
    assert [row["method"] for row in document["rows"]] == list(frame["method"])
    assert {"schema_version", "commit", "began", "threads", "sha256", "outputs"} <= set(document)
    assert paths["markdown"].read_text().startswith("| method |")


@pytest.mark.parametrize(("option", "start"), [("--json", "{"), ("--markdown", "| method |")])
def test_a_dash_is_standard_output_and_nothing_else_is_there(command, option, start):
    code, out, err = command(option, "-")
    assert code == 0
    assert out.startswith(start)
    assert "fastest first" in err
    if option == "--json":
        assert json.loads(out)["command"] == "specwb compare --json -"


def test_only_one_file_can_be_standard_output(command):
    code, out, err = command("--json", "-", "--markdown", "-")
    assert (code, out) == (2, "")
    assert (
        err.strip()
        == "error: --json and --markdown: only one of them can go to standard output; name a file"
    )


@pytest.fixture
def threads(monkeypatch):
    """What torch is told; it computes with 4 threads, and nobody named a number."""
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(machine, "slowdown", lambda: 1.0)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return numbers


def test_one_thread_is_taken_where_all_of_them_crawl(command, threads, monkeypatch):
    monkeypatch.setattr(machine, "slowdown", lambda: 13.0)
    code, _, err = command("--device", "cpu")
    assert (code, threads) == (0, [1])
    assert err == (
        "computing with one thread: products take 13.0 times as long with 4, as other programs "
        "use the CPUs; OMP_NUM_THREADS=4 takes 4\n"
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert command("--device", "cpu")[2] == ""
    assert threads == [1]


def test_what_keeps_results_by_threads_is_advised_and_not_changed(threads, monkeypatch, capsys):
    monkeypatch.setattr(specwb, "load", lambda name, **options: options)
    monkeypatch.setattr(machine, "slowdown", lambda: 13.0)
    assert loaded("lab", "cpu", "auto", stored=True) == {"device": "cpu", "dtype": "auto"}
    assert threads == []
    err = " ".join(capsys.readouterr().err.split())
    assert err.startswith("one thread would be faster: products take 13.0 times as long with 4")
    monkeypatch.setattr(machine, "slowdown", lambda: machine.CRAWL)
    loaded("lab", "cpu", "auto", stored=True)
    assert capsys.readouterr().err == ""


def test_filters_reach_the_comparison(frame, command, monkeypatch):
    settings = {}
    monkeypatch.setattr(module, "compare", lambda *args, **kwargs: settings.update(kwargs) or frame)
    assert command("--temperature", "0.5", "--top-k", "7", "--top-p", "0.9")[0] == 0
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (0.5, 7, 0.9)


def test_evaluates_default_methods_are_those_that_run(monkeypatch, capsys, tmp_path):
    """Without a head and a draft model only prompt lookup is left; what is named must run."""
    given, loaded_target = [], tiny.target()

    def evaluate(target, questions, methods, *rest, **settings):
        given.append([method.key for method in methods])
        raise ValueError("seen enough")

    monkeypatch.setattr(specwb, "load", lambda name, **options: loaded_target)
    monkeypatch.setattr(harness, "evaluate", evaluate)
    arguments = "evaluate", "--first", "1", "--out", str(tmp_path)
    assert call(monkeypatch, capsys, *arguments)[2].endswith("\nerror: seen enough\n")
    assert given == [["pld"]]
