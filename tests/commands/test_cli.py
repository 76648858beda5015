"""The command line: results are on standard output.

Bad input is one line on standard error and exit code 2, before any work.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
import tiny
import typer

import specwb
from specwb import METHODS
from specwb.cli.main import app
from specwb.models.load import data_dir

WITHOUT_TORCH = """
import sys
from specwb.cli.main import main
for arguments in {calls}:
    sys.argv = ["specwb", *arguments]
    try:
        main()
    except SystemExit as stop:
        slow = ("torch", "transformers", "pandas", "scipy", "numpy")
        print("exit code", stop.code, [name for name in slow if name in sys.modules])
"""
WITHOUT_WORK = [
    (["--help"], 0, "generate .*compare .*methods .*tune .*certify .*train "),
    (["--version"], 0, f"specwb {specwb.__version__}"),
    (["generate", "--nonsense"], 2, ""),
    (["compare", "--help"], 0, "--methods"),
    (["reproduce", "--help"], 0, "--shipped"),
]


def test_help_lists_and_wrong_options_take_no_torch():
    script = WITHOUT_TORCH.format(calls=[arguments for arguments, *_ in WITHOUT_WORK])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    ends = re.findall(r"^exit code (\d) \[(.*)\]$", run.stdout, re.MULTILINE)
    outputs = re.split(r"^exit code .*$", run.stdout, flags=re.MULTILINE)
    assert ends == [(str(code), "") for _, code, _ in WITHOUT_WORK]
    for (arguments, _, pattern), output in zip(WITHOUT_WORK, outputs):
        assert re.search(pattern, output, re.DOTALL), arguments


def test_the_help_of_every_option_can_be_read_alone():
    """It names a thing, or what the option does, and does not go on from the option's name."""
    helps = {}

    def collect(path, command):
        for parameter in command.params:
            helps[f"{path} {parameter.name}"] = getattr(parameter, "help", None) or ""
        for name, inner in getattr(command, "commands", {}).items():
            collect(f"{path} {name}", inner)

    collect("specwb", typer.main.get_command(app))
    assert len(helps) > 100
    continued = r"(Of|That|How|As|Where|Only|The same|Default|Instead)\b"
    wrong = {
        name: text
        for name, text in helps.items()
        if len(text.split()) < 3 or not text[0].isupper() or re.match(continued, text)
    }
    # those of completion are the library's
    assert {name: text for name, text in wrong.items() if "completion" not in name} == {}


def test_completion_knows_the_commands(call, monkeypatch):
    # under python -m pytest the program would be called so
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
    monkeypatch.setenv("_SPECWB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "specwb gen")
    monkeypatch.setenv("COMP_CWORD", "1")
    code, out, _ = call()
    assert (code, out.split()) == (0, ["generate"])


def test_standard_output_that_is_closed():
    command = f"{sys.executable} -m specwb methods >&-"
    run = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (run.returncode, run.stderr) == (2, "error: standard output is closed\n")


@pytest.mark.parametrize("columns", [80, 140])
def test_methods_is_readable_at_any_width(call, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _, out, _ = call("methods")
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert max(map(len, plain.splitlines())) <= columns
    assert "…" not in plain  # nothing is cut off
    rows = plain.partition("every method takes")[0].splitlines()
    first = [line.split()[0] for line in rows if line[:1].strip()]
    assert set(METHODS) <= set(first)


def test_methods_says_all_about_one(call):
    spec = "mcsd:draw=with,rule=rrs,tree=3-2"
    code, out, _ = call("methods", spec)
    assert code == 0
    assert "needs: a draft model; exactness: lossless; source: Yang et al. 2024" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line[:1].strip()}
    assert set(METHODS["mcsd"].options) | {"rule"} <= set(rows)
    assert (rows["tree"][1], rows["draw"][1]) == ("4-2-2", "without")
    assert f"{spec} sets: draw=with,tree=3-2,rule=rrs" in out
    assert out.rstrip().endswith("year={2024}}")
    assert " sets: " not in call("methods", "eagle")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods", ["ar sps mcsd falcon kangaroo hf_greedy", pytest.param("", marks=pytest.mark.rare)]
)
def test_compare_on_the_shipped_family(call, tmp_path, methods):
    """Some of the methods, and all, which is the default."""
    path = tmp_path / "out.json"
    # one prompt of every category, and no limit of time that a slow machine would keep
    questions = (data_dir() / "prompts/lab.jsonl").read_text("utf-8").splitlines(True)[:3]
    few = tmp_path / "few.jsonl"
    few.write_text("".join(questions), "utf-8")
    options = ["--seconds", "0", "--max-new-tokens", "12", "--prompts", str(few)]
    options += ["--json", str(path)]
    options += ["--methods", methods] if methods else []
    code, out, err = call("compare", *options)
    assert code == 0, err
    assert {p.name for p in tmp_path.iterdir()} == {"few.jsonl", "out.json"}
    assert "speedup" in out
    document = json.loads(path.read_text())
    assert document["command"].startswith("specwb compare --seconds 0")
    rows = {row["method"]: row for row in document["rows"]}
    assert all(row["identical"] for row in rows.values())
    assert rows["ar"]["tau"] == 1
    assert rows["sps"]["tau"] > 1.3
    assert {one["category"] for one in document["outputs"]} == {"code", "math", "prose"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--methods", "nope"], "unknown method 'nope'"),
        (["methods", "nope"], "unknown method 'nope'; known: ar, sps"),
        (["compare", "--methods", "mcsd:tree=4-0"], "branching needs integers >= 1"),
        (["compare", "--methods", " , "], "--methods is empty; leave it out for every method"),
        (["compare", "--temperature", "1", "--top-p", "2"], "top_p must be in (0, 1]"),
        (["compare", "--top-k", "-1"], "--top-k"),
        (["compare", "--batch", "0"], "--batch"),
        (["compare", "--target", "/does/not/exist"], "/does/not/exist"),
        (["compare", "--json", "/does/not/exist/out.json"], "does not exist"),
        (["trace", "ar", "--html", "."], "--html: . is a folder"),
        (["trace", "mcsd"], "name a file to write: --html OUT.html or --json OUT.json"),
        (["trace", "ar", "nonsense", "--html", "page.html"], "unknown method 'nonsense'"),
        (["compare", "--methods", "hf_nope"], "unknown library row 'hf_nope'; known: hf_greedy"),
        (["train", "eagle", "--budget", "huge"], "unknown budget 'huge'"),
        (["train", "nope"], "KIND is one of medusa, eagle, eagle3, "),
        (["train", "talks", "--steps", "5", "--length", "20"], "takes no --steps and no --length"),
        (["train", "talks", "--seed", "1048577"], "--seed is at most 1048576, got 1048577"),
        (["methods", "eagle:preset=nope"], "eagle has no preset 'nope'; its presets: published"),
        (["compare", "--json", "a", "--markdown", "./a"], "--json and --markdown name one file"),
        (["trace", "ar", "--html", "a", "--json", "a"], "--html and --json name one file, a; name"),
        (["evaluate", "--methods", ""], "--methods is empty; name one method at least"),
        (["reproduce", "all", "--shipped", "--rounds", "3"], "--shipped measures nothing; leave"),
        (["reproduce", "all", "--shipped", "--out", __file__], "is a file, give the name of a"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(refused, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_reader_that_goes_away_is_no_error(option):
    """One is printed by rich, the other not."""
    command = [sys.executable, "-m", "specwb.cli.main", option]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert run.stderr.read() in (b"", b"specwb: at work\n")  # on a slow machine
    assert run.returncode == 1


def test_an_interruption_is_reported_and_exits_130(call, monkeypatch):
    """SIGTERM's, which Python would die of."""
    from specwb.lab.bench import measure as module

    before = signal.getsignal(signal.SIGTERM)

    def stop(*_):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module, "_decode", stop)
    try:
        code, _, err = call("compare")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 130
    assert "interrupted" in err


def test_traces_are_written(call, monkeypatch, tmp_path):
    words = [f"w{i}" for i in range(tiny.VOCABULARY)]
    model = specwb.Target(tiny.build("llama", seed=2), tiny.tokenizer(words))
    monkeypatch.setattr(specwb, "load", lambda *_, **__: model)
    page, one, two = (tmp_path / name for name in ("page.html", "one.json", "two.json"))
    short = ["--prompt", "w1 w2", "--max-new-tokens", "4", "--json"]
    code, out, _ = call("trace", "pld", *short, str(one), "--html", str(page))
    assert (code, out.startswith("pld: 4 tokens in ")) == (0, True)
    trace = json.loads(one.read_text("utf-8"))
    assert trace["sampling"]["temperature"] == 1
    assert trace["tokens"] == specwb.decode(
        model, "w1 w2", "pld", max_new_tokens=4, temperature=1.0
    ).tokens[0]  # fmt: skip
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert call("trace", "ar", "pld", *short, str(two))[0] == 0
    both = json.loads(two.read_text("utf-8"))
    assert [trace["method"]["key"] for trace in both] == ["ar", "pld"]
    code, _, err = call("trace", "pld", "--chat", *short, str(one))
    assert (code, "has no chat template; leave --chat out" in err) == (2, True)
    model.tokenizer.chat_template = "w3 {{ messages[0]['content'] }} w4"
    assert call("trace", "pld", "--chat", *short, str(one))[0] == 0
    asked = json.loads(one.read_text("utf-8"))["prompt"]["tokens"]
    assert asked == model.tokenizer("w3 w1 w2 w4")["input_ids"]
