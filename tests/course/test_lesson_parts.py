"""Questions, drawings and measured figures of the lessons."""

from __future__ import annotations

from fractions import Fraction

import pytest
from test_scenes import NAMESPACE, inside

from specwb.show import course
from specwb.show.course.measure import HERE, SHIPPED, MeasuredError, says
from specwb.show.course.question import _ASKED, _SCORES, HOLE, QuestionError

STILL = "application/vnd.specwb.still+json"


@pytest.fixture(autouse=True)
def _nothing_asked():
    before = dict(_ASKED)
    _ASKED.clear()
    yield
    _ASKED.clear()
    _ASKED.update(before)


def displayed(thing, monkeypatch) -> dict:
    """The mime bundle that a notebook gets."""
    pytest.importorskip("ipywidgets")
    bundles = []
    monkeypatch.setattr(
        "IPython.display.display", lambda bundle, raw: bundles.append(bundle), raising=True
    )
    monkeypatch.setattr("specwb.show.widgets.display.display", lambda b, raw: bundles.append(b))
    thing._ipython_display_()
    (bundle,) = bundles
    return bundle


# ------------------------------------------------------------------------------------- questions

FILE = """
facts = "two = 2"

[which]
question = "Is {two} < 3?"
choices = ["<yes>", "no", "both"]
answer = "'<yes>' if two < 3 else 'no'"
because = "{half:.1f} is less."
facts = "half = two / 4"
wrong."no" = "It is {two}."
wrong."both" = "It cannot be."

[seeded]
question = "What is {seed}?"
choices = { one = 1, two = 2, three = 3 }
given = { seed = 1 }
answer = "course.nearest(choices, *ends)"
facts = "from specwb.show import course; ends = (seed, seed + 0.6)"
because = "So it is."
show = "course.bars([1, 0], [0, 1], ['a', 'b'], 'Bars', 'Nothing shared')"
wrong = { one = "not {seed}", two = "not {seed}", three = "not {seed}" }
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes the questions of a lesson 9."""
    monkeypatch.setattr("specwb.show.course.question.FOLDER", tmp_path)

    def write(text: str) -> None:
        (tmp_path / "9.toml").write_text(text, "utf-8")

    write(FILE)
    return write


def test_the_first_guess_counts(file):
    asked = course.ask("9.which")
    assert asked.right is None
    assert str(course.score()) == "Questions: 1 asked, 0 answered, 0 right"
    assert not asked.guess("no")
    assert not asked.guess("both")
    assert not asked.guess("<yes>")  # too late
    assert asked.given == "no"
    assert course.ask("9.which").guess("<yes>")  # the cell is run again
    assert str(course.score()) == "Questions: 1 asked, 1 answered, 0 right"
    with pytest.raises(QuestionError, match="'maybe' is none of '<yes>', 'no', 'both'"):
        asked.guess("maybe")


def test_the_answer_is_folded_until_one_has_guessed(file, monkeypatch):
    asked = course.ask("9.which")
    bundle = displayed(asked, monkeypatch)
    assert bundle["text/plain"] == "Question 9.which: Is 2 < 3? [<yes> / no / both]"
    before, folded = bundle["text/html"].split("<details>")
    assert "Is 2 &lt; 3?" in before
    assert "<li>&lt;yes&gt;</li>" in before
    assert "It " not in before
    assert folded.startswith("<summary>")
    assert "<b>&lt;yes&gt;</b>. 0.5 is less." in folded
    assert "<li><i>no</i>: It is 2.</li><li><i>both</i>: It cannot be.</li>" in folded
    assert "half = two / 4" in folded
    assert asked._line.value == ""  # the live one: nothing of the answer is in any control
    assert all(button.button_style == "" for button in asked._buttons)
    asked._buttons[1].click()
    assert asked.given == "no"
    assert "Not so.</b> It is 2." in asked._line.value
    assert "It cannot be" not in asked._line.value
    assert "0.5 is less" in asked._line.value
    assert [button.button_style for button in asked._buttons] == ["success", "danger", ""]
    assert all(button.disabled for button in asked._buttons)


def test_the_answer_varies_with_what_is_given(file, monkeypatch):
    """Several may be right; then each is."""
    assert course.ask("9.seeded").answer == ["one", "two"]
    asked = course.ask("9.seeded", seed=2)
    assert asked.answer == ["two", "three"]
    assert asked.choices == {"one": "not 2", "two": "", "three": ""}
    bundle = displayed(asked, monkeypatch)
    assert "<b>two</b> or <b>three</b>" in bundle["text/html"]
    assert "<svg" in bundle["text/html"].split("<details>")[1]
    asked._buttons[2].click()
    assert "Right." in asked._line.value
    assert [button.button_style for button in asked._buttons] == ["", "success", "success"]
    assert len(asked._box.children) == 4  # and the drawing
    with pytest.raises(QuestionError, match="has no sed; it has seed"):
        course.ask("9.seeded", sed=2)
    with pytest.raises(QuestionError, match="which has no seed; it takes no values"):
        course.ask("9.which", seed=2)
    with pytest.raises(QuestionError, match=r"9\.seeded: seed must be like \d, got 'x'"):
        course.ask("9.seeded", seed="x")


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("two < 3 else", "two < 2 else", r"the answer is \['no'\], `wrong` has \['no', 'both'\]"),
        ("'<yes>' if", "'yes' if", r"\['yes'\] is none, or all, of"),
        ("'<yes>' if", "choices if", "is none, or all, of"),
        ("'<yes>' if", "[] if", "is none, or all, of"),
        ('wrong."both" = "It cannot be."', "", r"`wrong` has \['no'\]"),
        ("[which]", "[what]", "no question '9.which'; there are 9.what, 9.seeded"),
    ],
)
def test_what_cannot_be_asked(file, before, after, fault):
    assert before in FILE
    file(FILE.replace(before, after))
    with pytest.raises(QuestionError, match=fault):
        course.ask("9.which")
    assert course.score().asked == 0


def test_a_shown_score_follows_what_was_asked_before_it(file, monkeypatch):
    asked = course.ask("9.which")
    displayed(course.score(), monkeypatch)
    later = course.ask("9.seeded")
    assert "1 asked, 0 answered" in _SCORES[-1]._shown.value
    later.guess("one")
    asked.guess("<yes>")
    assert "1 asked, 1 answered, 1 right" in _SCORES[-1]._shown.value
    assert (course.score().asked, course.score().right) == (2, 2)


def test_stills_of_a_figure_in_a_folded_answer_and_of_a_drawing(file, monkeypatch):
    pytest.importorskip("plotly.graph_objects")
    monkeypatch.setenv("SPECWB_STILLS", "1")
    drawing = course.Drawing(10, 10, "Box", "One").box(1, 1, 8, 8, "a")
    assert drawing._repr_mimebundle_()[STILL] == [{"html": drawing.svg}]
    file(FILE.replace("[which]", "[which]\nshow = '__import__(\"plotly\").graph_objects.Figure()'"))
    bundle = displayed(course.ask("9.which"), monkeypatch)
    assert bundle["text/html"].split("<details>")[1].count(HOLE) == 1
    assert [list(part) for part in bundle[STILL]] == [["figure"]]


def test_the_best_and_what_cannot_be_told_from_it():
    """By hand: differences of 1 in every pair are certain, whatever the prompts' own spread; those
    of mean 1 and standard error 3 are not."""
    spread = [0.0, 100.0, 20.0, 60.0] * 4
    steady = [x - 1 for x in spread]
    assert course.best({"a": spread, "b": steady}) == ["a"]
    assert course.best({"a": spread, "b": steady}, smallest=True) == ["b"]
    wild = [x - 1 + (12 if i % 2 else -12) for i, x in enumerate(spread)]
    assert course.best({"a": spread, "b": steady, "c": wild}) == ["a", "c"]
    # exact numbers
    assert course.best({"none": 0, "0": Fraction(-3, 20), "2": Fraction(1, 10)}) == ["2"]
    assert course.best({"x": Fraction(1, 3), "y": 1 / 3, "z": 0.33}) == ["x", "y"]
    # an exact one beside a measured one
    assert course.best({"a": 1.0, "b": [0.9, 1.0, 0.95, 0.95]}) == ["a"]
    assert course.best({"a": 1.0, "b": [0.9, 1.2, 0.9, 0.9]}) == ["a", "b"]
    with pytest.raises(ValueError, match="10 lies in none of the ranges, which end at 9"):
        course.within({"low": 1, "high": 9}, 10)


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ((0.9,), ["fewer"]),
        ((1.0,), ["fewer"]),  # an upper end belongs to its range
        ((1.2, 1.15, 1.25), ["up to 1.2", "more"]),
        ((1.25, 0.9), ["fewer", "up to 1.2", "more"]),
        ((1.201,), ["more"]),
    ],
)
def test_a_range_and_those_that_the_interval_touches(values, right):
    ranges = {"fewer": 1.0, "up to 1.2": 1.2, "more": 99.0}
    assert course.within(ranges, *values) == right


def test_the_nearest_of_some_numbers():
    choices = {"five": 5, "two": 2, "one": 1}
    assert course.nearest(choices, 1.2) == ["one"]
    assert course.nearest(choices, 1.6, 1.4) == ["one", "two"]
    assert course.nearest(choices, 9) == ["five"]


def test_figures_of_every_prompt_of_a_shipped_study():
    """Their means are what the study says."""
    for name in ("diffuspec-lab-cpu", "mcsd-lab-cpu"):
        document = course.stored(name)
        for row in document["rows"][:12]:
            for what in ("tau", "speedup"):
                figures = course.per_prompt(document, row["cell"], what)
                timed = row.get("timed", row["prompts"])  # of others tokens alone were counted
                assert len(figures) == (row["prompts"] if what == "tau" else timed)
                assert sum(figures) / len(figures) == pytest.approx(row[what], abs=1e-4)
    with pytest.raises(KeyError):
        course.per_prompt(document, "no cell")
    assert course.with_intervals({"a": [2.0] * 9, "b": [1, 3] * 50}, "x").startswith(
        "a: 2.00x (2.00-2.00), b: 2.00x (1.8"
    )
    assert course.ratio([2, 4, 6], [1, 2, 3]) == (2.0, 2.0, 2.0)


# -------------------------------------------------------------------------------------- drawings


def test_drawings_say_what_they_are_given():
    steps = [("draft <&>", "four small steps", "draft"), ("score", "one\nforward", "target")]
    for drawing, wanted in (
        (course.flow(steps, "Flow", "Two boxes", back="again"), ["draft <&>", "forward", "again"]),
        (course.lanes({"plain": [(1, "a", "target"), (2, "b", "target")],
                       "fast": [(1, "c", "#000000")]},
                      "Lanes", "Times", unit="ms"), ["plain", "b", "c", "ms"]),
        (course.chain(["a", "b"], ["a", "c", "d"], "Step", "Two", accepted=1),
         ["✓ a", "✗ b", "+ c"]),
        (course.bars([0.5, 0.5], [0.2, 0.8], ["x", "y"], "Bars", "Two"), ["x", "y", "p", "q"]),
        (course.tree([-1, 0, 0, 1], list("rabc"), "Tree", "Four", notes=["", ".5", ".3", ".9"]),
         ["r", "c", ".9"]),
    ):  # fmt: skip
        assert set(wanted) <= {one.text for one in inside(drawing).iter(f"{NAMESPACE}text")}
        bundle = drawing._repr_mimebundle_()
        assert bundle == {"image/svg+xml": drawing.svg, "text/plain": repr(drawing)}


def test_bars_have_the_areas_of_the_rule():
    """What is rejected and what the residual adds have the same area; accepted is min(p, q)."""
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    root = inside(course.bars(p, q, list("abc"), "Bars", "Three"))
    from specwb.show.palette import ACCEPTED, REJECTED, RESIDUAL

    def area(colour: str) -> float:
        drawn = [r for r in root.iter(f"{NAMESPACE}rect") if r.get("fill") == colour]
        return sum(float(r.get("width")) * float(r.get("height")) for r in drawn[1:])  # not the key

    assert area(REJECTED) == pytest.approx(area(RESIDUAL))
    assert area(ACCEPTED) / area(REJECTED) == pytest.approx(0.7 / 0.3)


def test_lanes_are_to_scale():
    root = inside(course.lanes({"a": [(1, "", "draft"), (3, "", "target")]}, "Lanes", "Times"))
    short, long = (float(r.get("width")) + 2 for r in root.iter(f"{NAMESPACE}rect"))
    assert long == pytest.approx(3 * short, rel=1e-3)


# -------------------------------------------------------------------------------------- measured


def test_measured_here_beside_what_was_shipped(monkeypatch):
    pytest.importorskip("plotly")
    runs = iter([{1: 1.0, 2: 5.0}, {1: 2.0, 2: 6.0}, {1: 9.0, 2: 7.0}])
    shown = course.measured({1: 1, 2: 2}, "costs", measure=lambda: next(runs), xaxis="tokens")
    bundle = displayed(shown, monkeypatch)
    assert bundle["text/plain"] == "costs (stored): 1: 1, 2: 2"
    assert list(shown.rows) == [SHIPPED]
    assert shown.here(repeats=3) == {1: 2.0, 2: 6.0}  # medians
    assert shown.rows[HERE] == {1: 2.0, 2: 6.0}
    assert shown.light.split()[0] in "●▲"
    assert says({"busy": True, "disturbed": 3, "runs": 5, "others": 2.0}).startswith(
        "▲ busy: 3 of 5"
    )
    assert "not stored" in says(None)
    assert "Widest spread of 3 repeats: 400% of the median" in shown.light


def test_the_button_measures_and_says_why_it_could_not(monkeypatch):
    ipywidgets = pytest.importorskip("ipywidgets")
    answers = iter([{1: 3.0}] * 5 + [ValueError("no model")])

    def measure():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shown = course.measured({1: 1.0}, "costs", measure=measure)
    panel = shown._widget()
    (row,) = [child for child in panel.children if isinstance(child, ipywidgets.HBox)]
    button, line = row.children
    button.click()
    assert [trace.name for trace in shown._canvas.figure.data] == [SHIPPED, HERE]
    assert "of the median" in line.value
    button.click()
    assert "not measured: no model" in line.value
    assert not button.disabled


def test_what_is_stored(tmp_path):
    document = course.stored("tune-lab-cpu")
    assert document["rows"]
    shown = course.measured({1: 2.0}, "x", document=document)
    assert document["arguments"]["device"] in shown.summary
    model = course.calibration()
    times = list(model.target.values())
    assert times == sorted(times)
    assert model.v(8) >= model.v(4) >= 1
    with pytest.raises(MeasuredError, match="no result of specwb tune"):
        course.calibration("mcsd-lab-cpu")
    with pytest.raises(MeasuredError, match=r"there are .*tune-lab-cpu"):
        course.stored("nothing")
    with pytest.raises(MeasuredError, match="no numbers"):
        course.measured({}, "x")
    with pytest.raises(MeasuredError, match="nothing was given"):
        shown.here()
