"""Predictions, drawings and measured figures of the lessons."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from fractions import Fraction

import pytest

from specwb import course
from specwb.course.measure import HERE, SHIPPED, MeasuredError, origin, says
from specwb.course.predict import _ASKED, PredictionError

SVG = "{http://www.w3.org/2000/svg}"


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
    monkeypatch.setattr("specwb.widgets.display.display", lambda b, raw: bundles.append(b))
    thing._ipython_display_()
    (bundle,) = bundles
    return bundle


# ----------------------------------------------------------------------------------- predictions


def test_the_first_guess_counts():
    asked = course.predict("Which?", ["one", "two"], answer="two")
    assert asked.right is None
    assert str(course.score()) == "Predictions: 1 asked, 0 answered, 0 right"
    assert not asked.guess("one")
    assert not asked.guess("two")  # too late
    assert asked.given == "one"
    again = course.predict("Which?", ["one", "two"], answer="two")  # the cell is run again
    assert again.guess("two")
    assert str(course.score()) == "Predictions: 1 asked, 1 answered, 0 right"


def test_several_answers_may_be_right(monkeypatch):
    for given, right in (("<a>", True), ("b", False), ("c", True)):
        asked = course.predict("Which?", ["<a>", "b", "c"], answer=["c", "<a>"])
        assert asked.answer == ("<a>", "c")  # in the order of the choices
        bundle = displayed(asked, monkeypatch)
        assert "<b>&lt;a&gt;</b> or <b>c</b>" in bundle["text/html"]
        assert asked.guess(given) is right
        assert ("Right. " if right else "Not so. ") in asked._line.value
        styles = [button.button_style for button in asked._controls]
        assert styles == ["success", "" if right else "danger", "success"]
        _ASKED.clear()


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
                assert len(figures) == row["prompts"]
                assert sum(figures) / len(figures) == pytest.approx(row[what], abs=1e-4)
    with pytest.raises(KeyError):
        course.per_prompt(document, "no cell")
    assert course.with_intervals({"a": [2.0] * 9, "b": [1, 3] * 50}, "x").startswith(
        "a: 2.00x (2.00-2.00), b: 2.00x (1.8"
    )
    assert course.ratio([2, 4, 6], [1, 2, 3]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("given", "right"), [(2.0, True), (2.19, True), (2.3, False), (-2, False)])
def test_a_number_is_right_nearby(given, right):
    assert course.predict("How many?", answer=2.0).guess(given) is right


def test_what_cannot_be_asked():
    for settings in (
        {"choices": ["one"], "answer": "one"},
        {"choices": ["one", "one"], "answer": "one"},
        {"choices": ["one", "two"], "answer": "three"},
        {"choices": ["one", "two"], "answer": []},
        {"choices": ["one", "two"], "answer": ["one", "three"]},
        {"choices": ["one", "two"], "answer": ["two", "one"]},  # nothing to ask
        {"choices": ["1", "2"], "answer": 1},
        {"answer": "one"},
        {"answer": ["one"]},
    ):
        with pytest.raises(PredictionError):
            course.predict("Which?", **settings)
    with pytest.raises(PredictionError, match="one line"):
        course.predict("two\nlines", answer=1)
    with pytest.raises(PredictionError, match="'three' is none of 'one', 'two'"):
        course.predict("Which?", ["one", "two"], answer="two").guess("three")
    for no_number in ("2", True, float("nan")):
        with pytest.raises(PredictionError, match="a number"):
            course.predict("How many?", answer=2).guess(no_number)
    assert course.score().answered == 0


def test_the_answer_is_folded_until_one_has_guessed(monkeypatch):
    why = course.bars([1, 0], [0, 1], ["a", "b"], "Bars", "Nothing shared")
    asked = course.predict(
        "Is 1 < 2?", ["<yes>", "no"], answer="<yes>", because="It is less", show=why
    )
    bundle = displayed(asked, monkeypatch)
    assert bundle["text/plain"] == "Predict: Is 1 < 2? [<yes> / no]"
    before, folded = bundle["text/html"].split("<details>")
    assert "Is 1 &lt; 2?" in before
    assert "&lt;yes&gt;</li>" in before
    assert "It is less" not in before
    assert folded.startswith("<summary>")
    assert "It is less" in folded
    assert "<svg" in folded
    # the live one: nothing of the answer is in any control
    assert asked._line.value == ""
    assert all(button.button_style == "" for button in asked._controls)
    asked._controls[1].click()
    assert asked.given == "no"
    assert "Not so" in asked._line.value
    assert "It is less" in asked._line.value
    assert [button.button_style for button in asked._controls] == ["success", "danger"]
    assert all(button.disabled for button in asked._controls)
    assert len(asked._box.children) == 4  # and the drawing


def test_a_number_is_typed(monkeypatch):
    asked = course.predict("How many?", answer=4)
    assert "<li>" not in displayed(asked, monkeypatch)["text/html"]
    asked._controls[0].value = 4.1
    asked._controls[1].click()
    assert asked.right
    assert "Right. You said 4.1" in asked._line.value


def test_a_shown_score_follows(monkeypatch):
    asked = course.predict("How many?", answer=4)
    displayed(course.score(), monkeypatch)
    from specwb.course.predict import _SCORES

    assert "0 answered" in _SCORES[-1].value
    asked.guess(4)
    assert "1 answered, 1 right" in _SCORES[-1].value


def test_a_figure_in_a_folded_answer_becomes_a_picture(monkeypatch):
    go = pytest.importorskip("plotly.graph_objects")
    from specwb.course.predict import HOLE

    monkeypatch.setenv("SPECWB_STILLS", "1")
    asked = course.predict("How many?", answer=4, show=go.Figure())
    bundle = displayed(asked, monkeypatch)
    assert bundle["text/html"].split("<details>")[1].count(HOLE) == 1
    assert [list(part) for part in bundle["application/vnd.specwb.still+json"]] == [["figure"]]


# -------------------------------------------------------------------------------------- drawings


def parsed(drawing: course.Drawing) -> ElementTree.Element:
    root = ElementTree.fromstring(drawing.svg)
    assert root.find(f"{SVG}title").text == drawing.title
    assert root.find(f"{SVG}desc").text == drawing.desc
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [one.text for one in root.iter(f"{SVG}text")]


def inside(root: ElementTree.Element) -> None:
    """Nothing lies outside of the drawing."""
    width, height = float(root.get("width")), float(root.get("height"))
    for one in root.iter(f"{SVG}rect"):
        assert 0 <= float(one.get("x")) <= float(one.get("x")) + float(one.get("width")) <= width
        assert 0 <= float(one.get("y")) <= float(one.get("y")) + float(one.get("height")) <= height
    for one in root.iter(f"{SVG}text"):
        assert 0 <= float(one.get("x")) <= width
        assert 0 <= float(one.get("y")) <= height


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
        root = parsed(drawing)
        inside(root)
        assert set(wanted) <= set(words(root))
        bundle = drawing._repr_mimebundle_()
        assert bundle == {"image/svg+xml": drawing.svg, "text/plain": repr(drawing)}


def test_bars_have_the_areas_of_the_rule():
    """What is rejected and what the residual adds have the same area; accepted is min(p, q)."""
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    root = parsed(course.bars(p, q, list("abc"), "Bars", "Three"))
    from specwb.palette import ACCEPTED, REJECTED, RESIDUAL

    def area(colour: str) -> float:
        drawn = [r for r in root.iter(f"{SVG}rect") if r.get("fill") == colour]
        return sum(float(r.get("width")) * float(r.get("height")) for r in drawn[1:])  # not the key

    assert area(REJECTED) == pytest.approx(area(RESIDUAL))
    assert area(ACCEPTED) / area(REJECTED) == pytest.approx(0.7 / 0.3)


def test_lanes_are_to_scale():
    root = parsed(course.lanes({"a": [(1, "", "draft"), (3, "", "target")]}, "Lanes", "Times"))
    short, long = (float(r.get("width")) + 2 for r in root.iter(f"{SVG}rect"))
    assert long == pytest.approx(3 * short, rel=1e-3)


def test_a_drawing_has_a_still_where_notebooks_are_executed(monkeypatch):
    from specwb.widgets.display import STILL

    monkeypatch.setenv("SPECWB_STILLS", "1")
    drawing = course.Drawing(10, 10, "Box", "One").box(1, 1, 8, 8, "a")
    assert drawing._repr_mimebundle_()[STILL] == [{"html": drawing.svg}]


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


def test_the_light():
    calm = {"busy": False, "disturbed": 0, "runs": 5, "others": 0.1}
    assert says(calm) == "● quiet: 0 of 5 runs beside a slow probe"
    assert says({**calm, "busy": True, "disturbed": 3, "others": 2.0}).startswith(
        "▲ busy: 3 of 5 runs beside a slow probe, other programs had 2 threads"
    )
    assert "not stored" in says(None)


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


def test_one_thread_is_no_plural():
    for threads, words in ((1, "1 thread"), (2, "2 threads"), (11, "11 threads")):
        assert origin({"arguments": {"device": f"X, {threads} threads"}}) == f"X, {words}"
