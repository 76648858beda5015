"""What a student hands in, and what a class makes of it."""

from __future__ import annotations

import csv
import json

import pytest
from terminal import call

from specwb import course
from specwb.course import classroom, question
from specwb.course.exercises import EXERCISES, GRADES

KEY = "2.keep"


@pytest.fixture(autouse=True)
def _a_new_notebook(monkeypatch):
    monkeypatch.setattr(question, "_ASKED", {})
    for name in list(GRADES):
        monkeypatch.delitem(GRADES, name)


def student(name: str, guess: str, folder, *, solves: bool) -> None:
    question._ASKED.clear()
    GRADES.clear()
    course.ask(KEY).guess(guess)
    answer = EXERCISES["residual"].answer
    course.grade("residual", answer if solves else lambda *_: None)
    course.collect(name, folder)


def test_a_class_of_three(tmp_path, monkeypatch, capsys):
    one = course.ask(KEY)
    right, wrong = one.answer[0], next(c for c, why in one.choices.items() if why)
    student("Ada", right, tmp_path, solves=True)
    student("Émile Borel", wrong, tmp_path, solves=False)
    student("=cmd|' /C calc'!A0", right, tmp_path, solves=True)
    grades = ["--csv", str(tmp_path / "grades.csv")]
    code, out, _ = call(monkeypatch, capsys, "class", str(tmp_path), *grades)
    assert code == 0
    lines = {line.strip() for line in out.splitlines()}
    assert f"{KEY}: 3 guesses, 2 right" in lines
    assert any(line.startswith(f"✓ {right} ") and " 2 █" in line for line in lines)
    assert any(line.startswith(f"{wrong} ") and " 1 █" in line for line in lines)
    before = (tmp_path / "ada.json").read_text("utf-8")
    grades[1] = str(tmp_path / "ada.json")  # a student's file is no place for the sheet
    assert call(monkeypatch, capsys, "class", str(tmp_path), *grades)[0] == 2
    assert (tmp_path / "ada.json").read_text("utf-8") == before
    with (tmp_path / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert [rows["Ada"][c] for c in ("answered", "right", "solved", "residual")] == ["1"] * 4
    assert [rows["Émile Borel"][c] for c in ("right", "solved", "residual")] == ["0"] * 3
    assert not any(name.startswith("=") for name in rows)  # no spreadsheet computes a name


def test_a_file_keeps_other_lessons_and_first_guesses(tmp_path):
    one = course.ask(KEY)
    right, wrong = one.answer[0], next(c for c, why in one.choices.items() if why)
    student("Ada", wrong, tmp_path, solves=False)
    question._ASKED.clear()
    GRADES.clear()
    other = course.ask("2.bonus")
    other.guess(other.answer[0])
    content = json.loads(course.collect("Ada", tmp_path).read_text("utf-8"))
    assert set(content["guesses"]) == {KEY, "2.bonus"}
    assert set(content["grades"]) == {"residual"}
    student("Ada", right, tmp_path, solves=True)
    content = json.loads((tmp_path / "ada.json").read_text("utf-8"))
    assert content["guesses"][KEY] == {"guess": wrong, "right": False}
    assert content["grades"]["residual"]["right"]
    with pytest.raises(classroom.ClassError, match="is of 'Ada'; take a longer name"):
        student("ADA", right, tmp_path, solves=True)


def test_what_was_not_guessed_is_not_handed_in(tmp_path):
    course.ask(KEY)
    content = json.loads(course.collect("Ada", tmp_path).read_text("utf-8"))
    assert content["guesses"] == content["grades"] == {}
    assert content["seed"] == course.seed("Ada")


def test_a_seed_of_one_s_own():
    assert course.seed(" ada  Lovelace ") == course.seed("Ada Lovelace")
    assert len({course.seed(f"student {i}") for i in range(300)}) == 300
    for name in ("", " \n", 7):
        with pytest.raises(course.ClassError, match="name"):
            course.seed(name)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"format": "specwb-class", "version": 1}',
        '{"format": "specwb-class", "version": 1, "name": "", "guesses": {}, "grades": {}}',
        '{"format": "other", "version": 1}',
        '{"format": "specwb-class", "version": 1, "name": "A", "guesses": {"2.keep": 3},'
        ' "grades": {}}',
    ],
)
def test_a_file_of_something_else_is_named(tmp_path, monkeypatch, capsys, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(course.ClassError, match=r"x\.json"):
        classroom.read(tmp_path)
    assert call(monkeypatch, capsys, "class", str(tmp_path))[0] == 2


def test_an_empty_folder_and_a_choice_of_another_version(tmp_path):
    with pytest.raises(course.ClassError, match="no file"):
        classroom.read(tmp_path)
    guesses = {
        KEY: {"guess": "\x1b[31mred", "right": False},
        "9.gone": {"guess": "a", "right": True},
    }
    sheets = [{"name": "Ada", "guesses": guesses, "grades": {}}]
    shown = classroom.histogram(sheets)
    assert "\x1b" not in shown
    assert "9.gone" not in shown
    assert "(no choice of this version)" in shown
