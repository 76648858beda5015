"""The lessons: each question's answer is what the library computes, what stands in a folded answer
is right, and what a cell starts from is not yet."""

from __future__ import annotations

import re

import pytest
from books import LESSONS, NOTEBOOKS, PAPERS, ROOT, cells, code, prose

import specwb
from scripts.drawings.drawing import DARK, INK
from scripts.drawings.lessons import DRAWINGS
from specwb.show import course
from specwb.show.palette import VOCABULARY
from specwb.theory.analysis import best_gamma, speedup

every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
PICTURES = sorted((ROOT / "notebooks" / "pictures").glob("*.svg"))
ASKED = re.compile(r'course\.ask\("([^"]+)"')


def test_every_question_is_asked_once():
    asked = [key for path in LESSONS + PAPERS + NOTEBOOKS for key in ASKED.findall(code(path))]
    assert sorted(asked) == sorted(course.questions())


@pytest.mark.parametrize("key", course.questions())
def test_a_question_has_one_right_answer(key):
    """:func:`course.ask` computes it and refuses sentences that do not fit; two answers are right
    only where a measurement cannot tell them apart."""
    asked = course.ask(key)
    assert len(asked.answer) == 1 or key == "5.fastest"
    for text in (asked.question, asked.because, *filter(None, asked.choices.values())):
        assert "{" not in text


@every_lesson
def test_folded_answers_are_right_and_what_cells_start_from_is_not(path):
    folded = "\n".join(c.source for c in cells(path, "markdown") if "<details>" in c.source)
    space: dict = {}  # a reader who pastes an answer has no more
    for block in re.findall(r"```python\n(.*?)```", folded, re.DOTALL):
        exec(block, space)
    for name in re.findall(r'course\.grade\("(\w+)"', code(path)):
        assert course.grade(name, space[name]).right, name
        outputs = str([c.outputs for c in cells(path, "code") if f'grade("{name}"' in c.source])
        assert f"{name}: not yet" in outputs


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_words_and_the_palettes_colours(path):
    """One that shows numbers is what the program draws of them."""
    svg = path.read_text("utf-8")
    assert re.search(r'<title id="title">[^<]+</title><desc id="desc">[^<]{30,}</desc>', svg)
    assert {*re.findall(r"#[0-9A-F]{6}", svg)} <= {*VOCABULARY.values(), INK, DARK, "#FFFFFF"}
    assert path.stem not in DRAWINGS or svg == DRAWINGS[path.stem]().svg


def test_every_picture_is_shown():
    shown = "".join(map(prose, LESSONS + PAPERS))
    names = {path.stem for path in PICTURES}
    assert {*re.findall(r"\(\.\./pictures/(\w+)\.svg", shown)} == names > {*DRAWINGS}


def numbers(path, cell: str) -> list[float]:
    """The numbers of a folded answer."""
    (text,) = [c.source for c in cells(path, "markdown") if c.id == cell]
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_the_answers_to_lesson_1_s_tasks():
    target, model = specwb.load("lab"), course.calibration()
    texts = ("He said that he had not been in the habit of", "http://www")
    decoded = [specwb.decode(target, text, "sps", max_new_tokens=24) for text in texts]
    assert decoded[0].accepted_lengths[0][:4] == [4] * 4
    taus = [round(one.mean_tokens_per_step, 2) for one in decoded]
    assert numbers(LESSONS[0], "microscope-answer") == taus

    def fastest(alpha, c, v):
        gamma = best_gamma(alpha, c, v, 10)
        return gamma, round(speedup(alpha, gamma, c, v(gamma)), 2)

    (_, slow), (four, reached) = (fastest(a, round(model.c, 2), model.v) for a in (0.8, 0.81))
    eight, free = fastest(0.8, 0.05, lambda gamma: 1.0)
    assert (four, eight) == (4, 8)
    assert slow < 1.5 < reached
    assert numbers(LESSONS[0], "speed-answer") == [0.81, 0.80, slow, free]


def test_the_answers_to_lesson_6_s_tasks():
    pytest.importorskip("plotly")
    from specwb.show.widgets import StopExplorer

    explorer = StopExplorer.of(course.stored("kangaroo-lab-cpu"))
    speeds = {gamma: [x for _, x in explorer.curve("own", gamma)] for gamma in (2, 6)}
    best = {gamma: max(range(21), key=row.__getitem__) / 20 for gamma, row in speeds.items()}
    with explorer.at(eta=0.2):
        steps, slow = explorer.rounds, explorer.predicted
        assert steps.wasted > steps.mean_drafted / 2
    with explorer.at(eta=0.25):
        assert explorer.rounds.wasted < explorer.rounds.mean_drafted / 2
    right = [best[6], max(speeds[6]), 0.6, explorer.measured["own", 6][0.6][1]]
    right += [0.2, 0.2, steps.wasted, steps.mean_drafted, slow]
    right += [best[2], min(speeds[2]), max(speeds[2])]
    assert numbers(LESSONS[5], "stop-answer") == [round(x, 2) for x in right]


def test_the_answer_to_lesson_7_s_task():
    pytest.importorskip("plotly")
    from specwb.show.widgets import BatchExplorer

    explorer, gains = BatchExplorer(), []
    for spread in (0.25, 0.0):
        with explorer.at(rows=110, spread=spread):
            assert "the best same number in every row is 0, 1.00x" in explorer.summary
            assert sum(explorer.verified) == 18
            gains.append(float(re.search(r"per row, ([\d.]+)x", explorer.summary)[1]))
    assert numbers(LESSONS[6], "explorer-answer") == gains


def test_the_answers_to_lesson_10_s_tasks():
    pytest.importorskip("plotly")
    from specwb.show.widgets import LatticeExplorer

    lab, texts, trigrams = course.lattices()
    explorer, at = LatticeExplorer(lab, texts, trigrams, text=3, top=8), texts[2]

    def kept(**settings):
        with explorer.at(**settings):
            return at.kept(explorer.paths["beam 1"].tokens)

    assert [kept(lam=i / 20) for i in range(21)] == [3] * 18 + [1] * 3
    assert (kept(top=11), at.kept(at.lattice().row)) == (4, 1)
    assert lab.tokenizer.decode([at.greedy[3]]) == " he"
