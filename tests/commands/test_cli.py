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

import specwb
from specwb import METHODS
from specwb.cli.shared import _files
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
]


def test_help_lists_and_wrong_options_take_no_torch():
    script = WITHOUT_TORCH.format(calls=[arguments for arguments, *_ in WITHOUT_WORK])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    ends = re.findall(r"^exit code (\d) \[(.*)\]$", run.stdout, re.MULTILINE)
    outputs = re.split(r"^exit code .*$", run.stdout, flags=re.MULTILINE)
    assert ends == [(str(code), "") for _, code, _ in WITHOUT_WORK]
    for (arguments, _, pattern), output in zip(WITHOUT_WORK, outputs):
        assert re.search(pattern, output, re.DOTALL), arguments


def test_standard_output_that_is_closed():
    command = f"{sys.executable} -m specwb methods >&-"
    run = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (run.returncode, run.stderr) == (2, "error: standard output is closed\n")


def test_methods_lists_all_and_says_all_about_one(call):
    rows = call("methods")[1].partition("every method takes")[0].splitlines()
    assert set(METHODS) <= {line.split()[0] for line in rows if line[:1].strip()}
    spec = "mcsd:draw=with,rule=rrs,tree=3-2"
    code, out, _ = call("methods", spec)
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line[:1].strip()}
    assert set(METHODS["mcsd"].options) | {"rule"} <= set(rows)
    assert (rows["tree"][1], rows["draw"][1]) == ("4-2-2", "without")
    assert f"{spec} sets: draw=with,tree=3-2,rule=rrs" in out


@pytest.mark.slow
def test_compare_on_the_shipped_family(call, tmp_path, monkeypatch):
    # nothing is measured again because other tests run beside this one
    monkeypatch.setattr("specwb.lab.bench.compare.one_step", lambda target: lambda: 1.0)
    path = tmp_path / "out.json"
    # one prompt of every category, and no limit of time that a slow machine would keep
    questions = (data_dir() / "prompts/lab.jsonl").read_text("utf-8").splitlines(True)[:3]
    few = tmp_path / "few.jsonl"
    few.write_text("".join(questions), "utf-8")
    options = ["--seconds", "0", "--max-new-tokens", "12", "--prompts", str(few)]
    options += ["--json", str(path), "--methods", "ar sps hf_greedy"]
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
        (["compare", "--methods", " , "], "--methods is empty; leave it out for every method"),
        (["compare", "--temperature", "1", "--top-p", "2"], "top_p must be in (0, 1]"),
        (["compare", "--top-k", "-1"], "--top-k"),
        (["compare", "--target", "/does/not/exist"], "/does/not/exist"),
        (["compare", "--json", "/does/not/exist/out.json"], "does not exist"),
        (["trace", "mcsd"], "name a file to write: --html OUT.html or --json OUT.json"),
        (["compare", "--methods", "hf_nope"], "unknown library row 'hf_nope'; known: hf_greedy"),
        (["train", "eagle", "--budget", "huge"], "unknown budget 'huge'"),
        (["train", "talks", "--steps", "5", "--length", "20"], "takes no --steps and no --length"),
        (["train", "talks", "--seed", "1048577"], "--seed is at most 1048576, got 1048577"),
        (["methods", "eagle:preset=nope"], "eagle has no preset 'nope'; its presets: published"),
        (["compare", "--json", "a", "--markdown", "./a"], "--json and --markdown name one file"),
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


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "specwb.cli.main", "--help"]
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


def test_a_long_list_of_methods_is_no_file(tmp_path):
    """A system refuses such names of files, often from 256 letters on."""
    file = tmp_path / "head"
    file.touch()
    assert list(_files("pld " * 100, None)) == list(_files("a" * 5000 + "\0", None)) == []
    assert list(_files(f"{'pld ' * 100} eagle:head={file}", None)) == [str(file)]
