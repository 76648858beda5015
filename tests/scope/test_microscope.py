"""The widget around the player: it records what the page asks for, and says why it cannot."""

from __future__ import annotations

import pytest
import tiny

import specwb
from specwb.show.scope import TraceError
from specwb.show.widgets import Microscope

WORDS = [f"w{i}" for i in range(tiny.VOCABULARY)]


def target() -> specwb.Target:
    return specwb.Target(tiny.build("llama", seed=2), tiny.tokenizer(WORDS))


def test_a_trace_plays_without_a_target():
    trace = specwb.record(tiny.target(), [1, 2, 3], "ar", max_new_tokens=3)
    shown = specwb.microscope([trace, trace])
    assert (len(shown.traces), shown.live) == (2, None)
    assert shown.summary == "ar: 3 tokens in 3 steps, 1.00 per step, and 1 more"
    assert "export default" in shown._esm
    with pytest.raises(TraceError):
        specwb.microscope([{}])
    with pytest.raises(ValueError, match="give a target to set a prompt"):
        specwb.microscope(trace, "w1")


@pytest.fixture
def shown() -> Microscope:
    return specwb.microscope(target(), "w1 w2", "pld", max_new_tokens=4)


def ask(shown: Microscope, **settings) -> None:
    """Record as the page asks for it."""
    settings = {"method": "pld", "prompt": "w3", "max_new_tokens": 4, **settings}
    shown._asked(shown, {"kind": "record", "settings": settings}, None)


def test_the_page_asks_for_another_recording(shown):
    assert shown.live["settings"]["method"] == "pld"
    assert "".join(text for one in shown.traces[0]["rounds"] for _, text in one["text"])
    before = shown.serial
    ask(shown, method="ar", temperature=1, seed=2)
    assert shown.serial == before + 1
    assert (shown.note, len(shown.traces), len(shown.traces[0]["tokens"])) == ("", 1, 4)
    direct = specwb.decode(shown._target, "w3", "ar", max_new_tokens=4, temperature=1.0, seed=2)
    assert shown.traces[0]["tokens"] == direct.tokens[0]
    assert shown.traces[0]["text"] == direct.text


@pytest.mark.parametrize(
    ("change", "words"),
    [({"method": "nonsense"}, "unknown method 'nonsense'"), ({"max_new_tokens": 1000}, "1..200"),
     ({"options": "tree=x"}, "pld has no option 'tree'"), ({"prompt": ""}, "prompt"),
     ({"seed": "many"}, "many")],
)  # fmt: skip
def test_what_cannot_be_recorded_is_said(shown, change, words):
    played = shown.traces
    ask(shown, **change)
    assert shown.note.startswith("Not recorded: ")
    assert words in shown.note
    assert shown.traces == played


@pytest.mark.parametrize(("draft", "key"), [(None, "pld"), ("lab-draft", "mcsd")])
def test_it_begins_with_a_method_that_runs(draft, key, monkeypatch):
    model = target()
    model.draft = draft
    monkeypatch.setattr(
        "specwb.models.load.load",
        lambda *_, **__: specwb.Target(model.model, model.tokenizer, name="draft"),
    )
    shown = specwb.microscope(model, "w1 w2", max_new_tokens=4)
    assert shown.live["settings"]["method"] == shown.traces[0]["method"]["key"] == key


def test_settings_are_known():
    with pytest.raises(ValueError, match="settings are options, temperature"):
        specwb.microscope(target(), "w1", "pld", heat=1)
    with pytest.raises(ValueError, match="prompt must be a text"):
        specwb.microscope(target())
