"""The lessons: what each has, how long it is, and that its own answers are right."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from fractions import Fraction
from pathlib import Path

import nbformat
import pytest
from books import LESSONS, PAPERS, ROOT, cells, prose

import specwb
from specwb.show import course
from specwb.show.course.problems import pairs
from specwb.show.scope.pages import PACKED, unpacked
from specwb.theory import exact, wrong_rules
from specwb.theory.analysis import best_gamma, speedup

every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
LINES = 12  # of a cell at most
MINUTES = 50


def number(path: Path) -> str:
    return path.stem.partition("_")[0]


def calls(path: Path, name: str) -> list[ast.Call]:
    """Calls of ``course.NAME`` or ``specwb.show.course.NAME`` in a lesson's code."""
    found = []
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"course.{name}"):
                found.append(node)
    return found


@every_lesson
def test_small_cells_and_about_twenty_five_of_them(path):
    code = cells(path, "code")
    assert 18 <= len(code) <= 32
    assert max(len(cell.source.splitlines()) for cell in code) <= LINES
    imports = [line for line in code[0].source.splitlines() if re.match("import|from", line)]
    assert len(imports) <= 4


@every_lesson
def test_a_drawing_comes_first(path):
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    assert "image/svg+xml" in outputs[0].data


def in_class(path: Path, name: str) -> int:
    """Calls of ``course.NAME`` before the homework."""
    sources = [cell.source for cell in nbformat.read(path, 4).cells]
    (end,) = [at for at, source in enumerate(sources) if source.startswith("## Homework")]
    return sum(f"course.{name}(" in source for source in sources[:end])


def asks(path: Path, whose: str) -> list[str]:
    """The questions of a notebook, each alone in its cell; none of the file ``whose`` is left
    out."""
    asked = [ast.literal_eval(call.args[0]) for call in calls(path, "ask")]
    assert sorted(asked) == sorted(key for key in course.questions() if key.startswith(f"{whose}."))
    for cell in cells(path, "code"):
        if "course.ask(" in cell.source:
            assert re.fullmatch(r'course\.ask\("\w+\.[\w-]+"(, \w+=\w+)*\)', cell.source), cell.id
            (output,) = cell.outputs  # nothing beside the question
            assert "<details>" in output.data["text/html"]
            assert output.data["text/plain"].startswith("Question ")
    return asked


@every_lesson
def test_asks_before_it_shows(path):
    """Four to six questions in fifty minutes, further ones as homework."""
    assert asks(path, number(path))
    assert 4 <= in_class(path, "ask") <= 6
    assert in_class(path, "score") == len(calls(path, "score")) == 1


ASKED = [
    path for path in PAPERS if path.stem in {key.partition(".")[0] for key in course.questions()}
]


@pytest.mark.parametrize("path", ASKED, ids=lambda path: path.stem)
def test_a_papers_notebook_asks_too(path):
    """Three or four questions; no comment asks anything whose answer is printed below it."""
    assert 3 <= len(asks(path, path.stem)) <= 4
    comments = re.findall(r"^\s*# .*\?$", "\n".join(c.source for c in cells(path, "code")), re.M)
    assert comments == []


JUDGES = ("course.best", "course.within", "course.nearest")


def picks(answer: str) -> list[str]:
    """Calls in an answer that pick one choice and leave the others unjudged."""
    called = [node for node in ast.walk(ast.parse(answer)) if isinstance(node, ast.Call)]
    names = [ast.unparse(node.func) for node in called]  # the outermost first
    if names and names[0] in JUDGES:
        return []
    return [name for name in names if name in ("max", "next", "sorted")]


def test_every_choice_is_judged_by_itself():
    """What is best, or where a number lies, is answered by ``best``, ``within`` or ``nearest``:
    they name everything that is right, and what cannot be told from it. No answer is a constant."""
    for file in (ROOT / "specwb" / "course" / "questions").glob("*.toml"):
        for name, row in tomllib.loads(file.read_text("utf-8")).items():
            if isinstance(row, dict):
                assert picks(row["answer"]) == [], (file.stem, name)
                tree = ast.parse(row["answer"], mode="eval")
                assert any(isinstance(node, ast.Name) for node in ast.walk(tree)), (file.stem, name)


def value(choice: str) -> Fraction | str:
    """What a choice stands for: 2/4 and 1/2 are the same."""
    try:
        return Fraction(choice.removesuffix("x"))
    except ValueError:
        return choice


TIED = {"5.fastest": ["prompt lookup", "EAGLE"]}
"""Questions with more than one right answer."""


@pytest.mark.parametrize("key", course.questions())
def test_distractors_are_wrong(key):
    """:func:`course.ask` refuses a file whose sentences do not fit the answer that it computes. No
    two choices are the same number, and only what is known to be tied has two answers."""
    asked = course.ask(key)
    assert set(map(type, asked.choices.values())) == {str}
    for text in (asked.question, asked.because, *filter(None, asked.choices.values())):
        assert text[-1] in ".?!:", text
        assert "\n" not in text
    assert len(set(map(value, asked.choices))) == len(asked.choices)
    assert len(asked.answer) == 1 or TIED[key] == asked.answer


def answers(path: Path, cell: str) -> list[float]:
    """The numbers of a folded answer."""
    (found,) = [one.source for one in cells(path, "markdown") if one.id == cell]
    return [float(text) for text in re.findall(r"\d+\.\d+", found)]


def test_the_answers_to_lesson_1_s_tasks():
    target, model = specwb.load("lab"), course.calibration()
    taus = [
        specwb.decode(target, prompt, "sps", max_new_tokens=24)
        for prompt in ("He said that he had not been in the habit of", "http://www")
    ]
    assert taus[0].accepted_lengths[0][:4] == [4] * 4
    found = [round(tau.mean_tokens_per_step, 2) for tau in taus]
    assert answers(LESSONS[0], "microscope-answer") == found
    c, most = round(model.c, 2), 10

    def fastest(alpha, c, v):
        gamma = best_gamma(alpha, c, v, most)
        return gamma, round(speedup(alpha, gamma, c, v(gamma)), 2)

    assert fastest(0.81, c, model.v)[0] == 4
    slow, reached = fastest(0.80, c, model.v)[1], fastest(0.81, c, model.v)[1]
    assert slow < 1.5 < reached
    free = fastest(0.8, 0.05, lambda gamma: 1.0)
    assert free[0] == 8
    assert answers(LESSONS[0], "speed-answer") == [0.81, 0.80, slow, free[1]]


def test_the_answers_to_lesson_6_s_tasks():
    pytest.importorskip("plotly")
    from specwb.show.widgets import StopExplorer

    explorer = StopExplorer.of(course.stored("kangaroo-lab-cpu"))
    speeds = {gamma: [x for _, x in explorer.curve("own", gamma)] for gamma in (2, 6)}
    best = {gamma: max(range(21), key=row.__getitem__) / 20 for gamma, row in speeds.items()}
    with explorer.at(eta=0.2):
        one, slow = explorer.rounds, explorer.predicted
        assert one.wasted > one.mean_drafted / 2
    with explorer.at(eta=0.25):
        assert explorer.rounds.wasted < explorer.rounds.mean_drafted / 2
    told = [best[6], max(speeds[6]), 0.2, 0.2, one.wasted, one.mean_drafted, slow]
    told += [best[2], min(speeds[2]), max(speeds[2])]
    assert answers(LESSONS[5], "stop-answer") == [round(x, 2) for x in told]
    (scope,) = [cell for cell in cells(LESSONS[5], "code") if cell.id == "scope"]
    _, trace = unpacked(scope.outputs[0].data[PACKED])
    step = trace["rounds"][0]
    assert step["lens"]["paths"][0]["ranks"][:4] == [0, 5, 3, 0]
    assert step["accepted"] == 4


def test_a_wrong_verifier_is_exposed():
    """Lesson 2 promises it: a pair over two tokens, which shows nothing until one changes it."""
    (path,) = [path for path in LESSONS if path.stem.startswith("2_")]
    assert "expose a wrong verifier with a pair of distributions over two tokens" in prose(path)
    (cell,) = [cell for cell in cells(path, "code") if cell.id == "expose"]
    assert cell.outputs[0].text == "p = (1/2, 1/2)\nq = (1/2, 1/2)\noff by 0\n"
    wrong = wrong_rules.AT_ONE_NODE[0]
    assert wrong.wrong.startswith("bonus token from p")
    p, q = exact.norm([1, 1]), exact.norm([1, 0])  # the folded answer
    assert exact.tv(wrong.output(p, q), p) == Fraction(1, 4)
    silent = [m for m in wrong_rules.AT_ONE_NODE if not exposed(m, (2,))]
    assert [m.name for m in silent] == ["rrs_without_replacement", "deduplicated", "noise_reused"]
    assert all(exposed(m, (3,)) for m in silent)


def exposed(mutant: wrong_rules.WrongRule, tokens: tuple[int, ...]) -> bool:
    """Whether a pair over so many tokens shows that a rule is wrong."""
    return any(
        mutant.output(pair["p"], pair["q"]) != pair["p"]
        for pair in pairs(tokens, parts=3)
        if len(pair["p"]) in tokens
    )


@every_lesson
def test_fifty_minutes(path):
    instructor = importlib.import_module("instructor")
    notebook = nbformat.read(path, 4)
    assert sum(map(instructor.minutes, notebook.cells)) == MINUTES
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            later = cell.source.startswith(("## Homework", "## What next"))
            assert bool(instructor.minutes(cell)) != later, cell.source.splitlines()[0]


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))


@every_lesson
def test_one_exercise_and_more_as_homework_whose_answers_are_right(path):
    """What stands in the folded answers is graded; what stands in the cells is not yet right."""
    names = [ast.literal_eval(call.args[0]) for call in calls(path, "grade")]
    walk = int(number(path)) >= 8  # their homework is on paper
    assert len(names) == len(set(names)) >= (1 if walk else 2)
    assert in_class(path, "grade") == 1
    answers = "\n\n".join(
        cell.source for cell in cells(path, "markdown") if "answer" in cell.metadata.get("tags", ())
    )
    space: dict = {}  # a reader who pastes an answer has no more
    for block in re.findall(r"```python\n(.*?)```", answers, re.DOTALL):
        exec(block, space)
    for name in names:
        assert course.grade(name, space[name]).right, name
    outputs = "\n".join(
        str(output.get("data", {}).get("text/plain", "") or output.get("text", ""))
        for cell in cells(path, "code")
        for output in cell.outputs
    )
    for name in names:
        assert f"{name}: not yet" in outputs


@every_lesson
def test_one_layout(path):
    """What one needs, how it works, how long; at the end five things that one can do, homework, and
    the way on."""
    text = prose(path)
    opening, can = text.split("\n## ")[0], text.split("## You can now")[1].split("\n## ")[0]
    for words in ("**You need** ", "**How it works** ", "**Fifty minutes.**"):
        assert opening.count(words) == 1, words
    assert len(re.findall(r"^\d\. ", can, re.MULTILINE)) == 5
    assert text.index("## Exercise\n") < text.index("## You can now") < text.index("## Homework")
    assert "**Next:**" in text
    assert "specwb.citation(" in "\n".join(cell.source for cell in cells(path, "code"))
    assert text.count("<details>") == text.count("</details>") > 0


def test_no_term_before_its_definition():
    """Read in order, a lesson emphasises a word of the glossary where it explains it, and no prose
    has the word before. Left out are headings, links, code and what a lesson's first cell says one
    will be able to do."""
    known = {
        *("distribution", "uniform", "seed"),  # what the reader brings along
        "lab",  # explained in lesson 1 as the name that is typed, `"lab"`
    }
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]*\*\*[^|]*) \|", glossary, re.M)
    terms = {term for row in rows for term in re.findall(r"\*\*([^*]+)\*\*", row)} - known
    assert {"draft model", "lossless", "τ"} <= terms
    explained, early = set(), []
    for path in LESSONS:
        for at, cell in enumerate(cells(path, "markdown")):
            read = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|^#.*$", "", cell.source, flags=re.M)
            for term in terms - explained:
                word = re.compile(rf"(\*{{0,2}})\b{term}s?\b(\*{{0,2}})", re.IGNORECASE)
                for match in word.finditer(read):
                    if all(match.groups()):
                        explained.add(term)
                        break
                    if at:
                        early.append(f"{path.stem}, {cell.id}: {term}")
    assert not early
