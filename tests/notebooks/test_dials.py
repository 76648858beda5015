"""Every method's options on sliders: what is shown is what decoding says."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Annotated, Any

import pytest
import tiny
from drawn import shown
from explorers import deep

import specwb
from specwb.core.options import Option, options_of
from specwb.engine.methods import METHODS
from specwb.show.widgets import Dials
from specwb.show.widgets import dials as module
from specwb.show.widgets.dials import dial

FILES = ("draft", "head", "groups", "ngram", "pool", "score")  # models and files have no control
TEXTS, TOKENS = [[1, 2, 3], [7, 8, 9, 10]], 3


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(module, "TOKENS", TOKENS)
    monkeypatch.setattr(module, "SHOWN", 1)


def models(key: str) -> dict[str, Any]:
    """What a method cannot do without."""
    entry, needs = METHODS[key], {}
    if "draft" in entry.options:
        needs["draft"] = deep() if key == "easyspec" else tiny.draft()
    if "head" in entry.options:
        needs["head"] = tiny.head(entry.head)
    return needs


def room(spec: str, **more: Any) -> Dials:
    return specwb.dials(spec, tiny.target(), TEXTS, **models(spec.partition(":")[0]), **more)


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
    view, options = room(key), METHODS[key].options
    assert {name for name in options if name not in FILES} <= set(view.settings())
    out = specwb.decode(tiny.target(), TEXTS, key, max_new_tokens=TOKENS, eos=(), **models(key))
    assert view.tau[1] <= view.tau[0] <= view.tau[2]
    assert f"tau {out.mean_tokens_per_step:.2f} (" in view.summary
    played = view.scope.traces[0]["method"]["spec"]
    assert played == specwb.method(key, tiny.target(), **models(key)).key
    start = view.settings()
    for name in start:
        view._set({**start, name: somewhere_else(view[name])})
        assert "Not drawn" in view.summary or view.tau[0] >= 1
    view._set(start)
    assert view.tau[0] == pytest.approx(out.mean_tokens_per_step)


def test_a_moved_slider_moves_the_tree_and_tau():
    view = room("eagle2:nodes=4,depth=2,top=2")
    before = shown(view)
    with view.at(nodes=8, depth=3, top=3):
        assert len(view.scope.traces[0]["rounds"][0]["parents"]) == 8
        assert view.summary.startswith("eagle2:nodes=8,depth=3,top=3, T = 0: tau ")
        assert shown(view) != before
        assert 0 < view.speedup[1] <= view.speedup[0] <= view.speedup[2]


def test_what_cannot_be_built_says_why():
    view = room("mcsd:tree=2-1")
    trace = view.scope.traces[0]
    view["rule"].value = "block"
    assert view.summary.startswith("Not drawn: rule 'block'")
    assert view.scope.traces[0] == trace
    view["rule"].value = "typical"
    assert ", LOSSY: tau " in view.summary
    for arguments in ({"texts": [[1]]}, {"gamma": 0}, {"rule": "none"}):
        with pytest.raises(ValueError, match=r"two at least|gamma must be|unknown rule"):
            specwb.dials("pld", tiny.target(), **{"texts": TEXTS, **arguments})


def test_settings_seen_before_are_not_decoded_again(monkeypatch):
    view = room("mcsd:tree=2-1")
    view["draw"].value = "with"
    calls, rounds = [], module.rounds
    monkeypatch.setattr(module, "rounds", lambda *a, **k: calls.append(1) or rounds(*a, **k))
    view["draw"].value = "without"
    assert calls == []
    view["draw"].value = "top"
    assert len(calls) == len(TEXTS)  # plain decoding is known


OPTIONS = {  # annotation and default -> low, high and step of the control, or its choices
    "share": (Annotated[float, Option("c", within="(0, 1]")], 0.5, (0.01, 1.0, 0.01)),
    "open": (Annotated[int | None, Option("e", low=2)], None, ["default", *range(2, 9)]),
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
