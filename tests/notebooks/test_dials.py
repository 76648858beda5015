"""Every method's options on sliders: what is shown is what decoding says."""

from __future__ import annotations

import asyncio
from dataclasses import make_dataclass
from typing import Annotated, Any

import pytest
import tiny
from drawn import shown
from explorers import deep

import specwb
from specwb import Tree
from specwb.core.options import Option, options_of
from specwb.drafters.base import Drafter
from specwb.engine.methods import METHODS

pytest.importorskip("plotly")
pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from specwb.show.widgets import Dials, Microscope
from specwb.show.widgets import dials as module
from specwb.show.widgets.dials import BY_LEVEL, dial

FILES = ("draft", "head", "groups", "ngram", "score")  # models and files have no control
TEXTS, TOKENS = [[1, 2, 3], [5, 9], [7, 8, 9, 10]], 10


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(module, "TOKENS", TOKENS)
    monkeypatch.setattr(module, "SHOWN", 5)


def room(key: str, **more: Any) -> Dials:
    """The dials of a method on the tiny models, with what it cannot do without."""
    entry, needs = METHODS[key.partition(":")[0]], {}
    if "draft" in entry.options:
        needs["draft"] = deep() if key == "easyspec" else tiny.draft()
    if "head" in entry.options:
        needs["head"] = tiny.head(entry.head)
    return specwb.dials(key, tiny.target(), TEXTS, **{**needs, **more})


def scope(view: Dials) -> Microscope:
    (found,) = (child for child in view.children if isinstance(child, Microscope))
    return found


def somewhere_else(widget: Any) -> Any:
    """A value that a control does not stand at."""
    if hasattr(widget, "options"):
        values = [x[1] if isinstance(x, tuple) else x for x in widget.options]
        return next(value for value in values if value != widget.value)
    if isinstance(widget.value, bool):
        return not widget.value
    return widget.value + widget.step if widget.value < widget.max else widget.min


@pytest.mark.parametrize("key", METHODS)
def test_every_method_has_its_options_as_controls(key):
    view = room(key)
    options, controls = METHODS[key].options, view.settings()
    plain = {n for n, o in options.items() if n not in FILES}
    assert plain <= {name.removesuffix(" levels") for name in controls}
    for name in plain & set(controls):
        assert view[name].tooltip == options[name].help
    needs = {n: v for n, v in view.options.items() if n in ("draft", "head")}
    out = specwb.decode(tiny.target(), TEXTS, key, max_new_tokens=TOKENS, eos=(), **needs)
    assert view.tau[0] == pytest.approx(out.mean_tokens_per_step)
    assert view.tau[1] <= view.tau[0] <= view.tau[2]
    assert f"tau {out.mean_tokens_per_step:.2f} (" in view.summary
    assert scope(view).traces[0]["method"]["spec"] == specwb.method(key, tiny.target(), **needs).key
    for name in controls:
        widget = view[name][0] if isinstance(view[name], list) else view[name]
        before = widget.value
        widget.value = somewhere_else(widget)
        if "Not drawn" not in view.summary:
            assert ": tau " in view.summary
            assert view.tau[0] >= 1
        widget.value = before
    assert view.tau[0] == pytest.approx(out.mean_tokens_per_step)


def test_a_moved_slider_moves_the_tree_and_tau():
    view = room("eagle2:nodes=4,depth=2,top=2")
    before, drawn = scope(view).traces[0], shown(view)
    view["nodes"].value = 8
    view["depth"].value, view["top"].value = 3, 3
    assert len(scope(view).traces[0]["rounds"][0]["parents"]) == 8
    assert len(before["rounds"][0]["parents"]) == 4
    spec = "eagle2:nodes=8,depth=3,top=3"
    assert view.summary.startswith(f"{spec}, T = 0: tau {view.tau[0]:.2f} ")
    rows = shown(view)["layout"]["yaxis"]["categoryarray"]
    assert rows[0].replace("<br>", "") == f"{spec}, T = 0"
    assert len(rows) == 3  # eight nodes on two levels of two are none
    assert shown(view) != drawn
    assert 0 < view.speedup[1] <= view.speedup[0] <= view.speedup[2]


def test_what_cannot_be_built_says_why():
    view = room("mcsd:tree=2-1")
    trace = scope(view).traces[0]
    view["rule"].value = "block"
    assert view.summary.startswith("Not drawn: rule 'block'")
    assert scope(view).traces[0] == trace
    view["rule"].value = "usual"
    assert ": tau " in view.summary
    for level in view["tree levels"][:3]:
        level.value = 8
    assert "dials have at most 256" in view.summary
    for arguments in ({"texts": [[1]]}, {"gamma": 0}, {"rule": "none"}):
        with pytest.raises(ValueError, match=r"two at least|gamma must be|unknown rule"):
            specwb.dials("pld", tiny.target(), **{"texts": TEXTS, **arguments})


def test_a_tree_is_shaped_by_level():
    view = room("medusa:nodes=4")
    assert (view["tree"].value, view["tree"].index) == ("default", 0)
    first = view["tree levels"][0]
    assert first.layout.display == "none"
    view["tree"].value = BY_LEVEL
    for level, children in zip(view["tree levels"], (2, 1, 0, 0, 0)):
        level.value = children
    assert first.layout.display is None
    assert scope(view).traces[0]["rounds"][0]["parents"] == list(Tree.branching(2, 1).host[0])
    view = room("mcsd", tree=Tree.parents([-1, 0, 0, 1]))
    assert "tree levels" not in view.settings()
    assert len(scope(view).traces[0]["rounds"][0]["parents"]) == 4


def test_typical_acceptance_has_its_two():
    view = room("mcsd:tree=3-2", temperature=1.0)
    assert view["typical epsilon"].layout.display == "none"
    view["rule"].value = "typical"
    assert view["typical epsilon"].layout.display is None
    strict = {"typical epsilon": 1.0, "typical delta": 1.0}
    with view.at(**{"typical epsilon": 0.01, "typical delta": 0.01}):
        loose = view.tau[0]
        assert ", LOSSY: tau" in view.summary
    with view.at(**strict):
        assert view.tau[0] < loose
    view.temperature.value = 0.0
    assert "at T = 0 all rules are greedy" in view.summary


def test_settings_seen_before_are_not_decoded_again(monkeypatch):
    view = room("mcsd:tree=2-2")
    view["draw"].value = "with"
    calls = []
    counted = module.rounds
    monkeypatch.setattr(module, "rounds", lambda *a, **k: calls.append(1) or counted(*a, **k))
    view["draw"].value = "without"
    room("mcsd:tree=2-2")
    assert calls == []
    view["draw"].value = "top"
    assert len(calls) == len(TEXTS)  # plain decoding is known


def test_decodings_with_other_heads_are_not_mixed():
    right, wrong = tiny.head("eagle"), tiny.head("eagle3")
    assert room("eagle2:nodes=6", head=right).tau != room("eagle2:nodes=6", head=wrong).tau


def test_a_method_registered_anew_is_decoded_anew():
    class Guess(Drafter):
        def __init__(self, token: int = 1, deep: bool = False) -> None:
            self.tree, self.token = Tree.chain(1), token

        def propose(self, state, noise):
            return self.candidates(state, state.tokens[:, :1] * 0 + self.token)

    try:
        specwb.register("guess", Guess)
        view = specwb.dials("guess", tiny.target(), TEXTS, token=3)
        assert set(view.settings()) >= {"token", "deep"}
        assert view["token"].value == 3
        assert "guess:token=3" in view.summary
        specwb.unregister("guess")
        specwb.register("guess", lambda target, token=1: Guess(token))
        assert len(specwb.dials("guess", tiny.target(), TEXTS, token=3)._known) > 0
        assert module._KNOWN[tiny.target()][METHODS["guess"].build, None, None]
    finally:
        specwb.unregister("guess")


def test_the_page_goes_on_while_texts_are_decoded(monkeypatch):
    monkeypatch.setattr(module, "FEW", 2)

    def line(view: Dials) -> str:
        return next(x.value for x in view.children if 'role="status"' in getattr(x, "value", ""))

    async def page() -> None:
        view = room("mcsd:tree=3")
        assert "2 texts" in view.summary
        assert "1 more texts" in line(view)
        trace = scope(view).traces[0]
        view["tree levels"][1].value = 1
        view["tree levels"][1].value = 2  # what was asked first is left
        await asyncio.sleep(0)
        assert "mcsd:tree=3-2, T = 0: decoding" in line(view)
        assert scope(view).traces[0] == trace
        while "3 texts" not in view.summary:
            await asyncio.sleep(0.01)
        assert scope(view).traces[0]["method"]["spec"] == "mcsd:tree=3-2"
        assert not any("tree=3-1," in name for name in view._tried)
        with view.at(**{"tree levels": [2, 0, 0, 0, 0]}):
            assert view.summary.startswith("mcsd:tree=2, T = 0: tau")
            assert "3 texts" in view.summary
        await view._task

    asyncio.run(page())


OPTIONS = {  # annotation and default -> low, high and step of the control, or its choices
    "many": (Annotated[int, Option("a", low=0)], 3, (0, 12, None)),
    "few": (Annotated[int, Option("b", low=1, high=4)], 2, (1, 4, None)),
    "share": (Annotated[float, Option("c", within="(0, 1]")], 0.5, (0.01, 1.0, 0.01)),
    "below": (Annotated[float, Option("d", within="[0, 1)")], 0.0, (0.0, 0.99, 0.01)),
    "flag": (Annotated[bool, Option("g")], False, (0, 1, None)),
    "open": (Annotated[int | None, Option("e", low=2)], None, ["default", *range(2, 9)]),
    "word": (Annotated[str, Option("f", choices=("x", "y"))], "x", ["x", "y"]),
    "model": (Annotated[Any, Option("h")], None, None),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_controls_have_the_options_ranges(name):
    kind, default, wanted = OPTIONS[name]
    made = options_of(len, make_dataclass("Options", [(name, kind, default)], frozen=True))
    control = dial(made[name])
    if wanted is None:
        assert control is None
    elif control.of is None:
        assert (control.low, control.high, control.step) == wanted
    else:
        assert [value for _, value in control.of] == wanted
    if name == "many":
        assert dial(made[name], [60, None]).high == 60
