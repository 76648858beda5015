"""The player in a real browser: every method's trace stepped to its end, from a page of its own
that may ask for nothing."""

from __future__ import annotations

import json
import re

import pytest
from browsing import chromium
from test_protocol import FIRST
from test_traces import HOSTILE, recorded

from specwb.show.scope import module, page

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def opened(browser, tmp_path):
    """Opens traces as a page; afterwards nothing may have been asked for, and nothing complained
    about."""
    wrong: list[str] = []
    contexts = []

    def open_page(traces, **context):
        contexts.append(browser.new_context(**context))
        shown = contexts[-1].new_page()
        shown.on("pageerror", lambda error: wrong.append(f"{error} {error.stack}"))
        shown.on("console", lambda one: wrong.append(one.text) if one.type != "log" else None)
        shown.on(
            "request", lambda one: None if one.url.startswith("file:") else wrong.append(one.url)
        )
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(page(traces), "utf-8")
        shown.goto(path.as_uri())
        shown.wait_for_selector(".sw svg")
        return shown

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def frames(shown) -> int:
    return int(shown.get_attribute("input[type=range]", "max"))


def written(shown) -> list[int]:
    return shown.evaluate(
        "[...document.querySelectorAll('[data-token]')].map(x => +x.dataset.token)"
    )


STEPPED = """frames => Array.from({ length: frames }, () => {
    document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, cancelable: true }));
    return [document.querySelectorAll("[data-token]").length,
        [...document.querySelectorAll("[data-lens]")].map(x => x.dataset.lens),
        document.querySelector("[data-says]").textContent];
})"""


def test_every_method_is_stepped_to_its_end_and_back(opened):
    """By keys: the text grows to what was decoded, and is gone again on the way back."""
    traces = [recorded(key, 1.0)[0] for key, _ in FIRST]
    shown = opened(traces, viewport={"width": 1000, "height": 900})
    root = shown.locator(".sw")
    for n, trace in enumerate(traces):
        shown.select_option("select", str(n))
        root.focus()
        lengths, lenses = [], set()
        for length, kinds, says in shown.evaluate(STEPPED, frames(shown)):
            lengths.append(length)
            lenses |= set(kinds)
            assert says.strip()
        assert written(shown) == trace["tokens"], trace["method"]["spec"]
        text = shown.evaluate("[...document.querySelectorAll('[data-token]')]"
                              ".map(x => x.textContent).join('')")  # fmt: skip
        assert text == "".join(text for one in trace["rounds"] for _, text in one["text"])
        assert lengths == sorted(lengths)
        assert lenses == {one["lens"]["kind"] for one in trace["rounds"] if one["lens"]}
        last = trace["rounds"][-1]
        assert (
            shown.inner_text(".row >> text=/step .* of/") == f"step {len(trace['rounds'])} of "
            f"{len(trace['rounds'])}"
        )
        assert shown.locator("g[data-state=accepted]").count() >= last["accepted"]
        root.press("Home")
        assert written(shown) == []


def test_the_dart_says_what_was_decided(opened):
    """At every test the sentence, the colour of the candidate and the trace agree."""
    trace, _ = recorded("mcsd", 1.0)
    shown = opened(trace)
    root = shown.locator(".sw")
    root.focus()
    seen = []
    for _ in range(frames(shown)):
        root.press("ArrowRight")
        if shown.get_attribute("[aria-current=step]", "data-stage") == "test":
            says = shown.inner_text("[data-says]")
            seen.append(says.rsplit(" ", 1)[1].strip("."))
            assert shown.get_attribute("g.node.chosen", "data-state") == seen[-1]
    told = [t["decision"] for one in trace["rounds"] for level in one["levels"]
            for t in level["tests"] if "dart" in t]  # fmt: skip
    assert seen == told
    assert {"accepted", "rejected"} <= set(told)


def test_nothing_is_wider_than_its_page(opened):
    traces, width = [recorded(key, 1.0)[0] for key, _ in FIRST], 700
    shown = opened(traces, viewport={"width": width, "height": 900})
    for n in range(len(traces)):
        shown.select_option("select", str(n))
        for place in (0, 2, 3, frames(shown)):
            shown.locator("input[type=range]").evaluate(
                "(range, at) => { range.value = at; range.dispatchEvent(new Event('input')); }",
                place)  # fmt: skip
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            sticking_out = shown.evaluate("""[...document.querySelectorAll('.pane svg')].filter(
                x => !x.closest('.scroll') && x.getBoundingClientRect().right >
                x.closest('.pane').getBoundingClientRect().right + 1).length""")
            assert sticking_out == 0, traces[n]["method"]["spec"]


def test_it_follows_the_theme(opened):
    shown = opened(recorded("ar", 0.0)[0], color_scheme="dark")
    assert "dark" in shown.get_attribute(".sw", "class")
    # as JupyterLab says it, which counts more
    shown.evaluate("document.body.dataset.jpThemeLight = 'true'")
    shown.wait_for_selector(".sw:not(.dark)")


def test_texts_are_texts(opened):
    trace = json.loads(json.dumps(recorded("mcsd", 1.0)[0]))
    trace["prompt"]["text"] = HOSTILE
    trace["words"] = dict.fromkeys(trace["words"], HOSTILE)
    trace["method"]["paper"] = trace["method"]["rule"]["words"] = HOSTILE
    shown = opened(trace)
    for _ in range(frames(shown)):
        shown.locator(".sw").press("ArrowRight")
    assert "script" not in shown.title()
    assert shown.title() != "taken"
    assert shown.locator("img").count() == 0
    assert HOSTILE in shown.locator("[data-text]").inner_text()


def test_keys_choose_nodes_and_play(opened):
    trace, _ = recorded("mcsd", 1.0)
    shown = opened(trace)
    shown.locator("g[data-node='1']").focus()
    shown.keyboard.press("ArrowDown")
    assert shown.evaluate("document.activeElement.dataset.node") == "2"
    shown.keyboard.press("Enter")
    assert shown.get_attribute("g[data-node='2']", "aria-pressed") == "true"
    shown.keyboard.press("Escape")
    assert shown.locator("[aria-pressed=true][data-node]").count() == 0
    root = shown.locator(".sw")
    root.press("Shift+ArrowRight")
    assert re.match("step 2 of", shown.inner_text(".row >> text=/step .* of/"))
    root.press("Shift+ArrowLeft")
    assert shown.input_value("input[type=range]") == "0"
    root.press(" ")
    playwright.expect(shown.locator("input[type=range]")).to_have_value("2", timeout=20_000)
    root.press(" ")
    assert "play" in shown.inner_text("button.main")


LIVE = """
const model = { values: VALUES, sent: [], heard: {},
  get(name) { return this.values[name]; }, send(message) { this.sent.push(message); },
  on(name, act) { this.heard[name] = act; }, off(name) { delete this.heard[name]; } };
window.model = model;
window.stop = render({ model, el: document.body.appendChild(document.createElement("div")) });
"""


def test_the_prompt_box_asks_python(browser):
    """As anywidget calls it, with Python's side played by the test."""
    first, second = recorded("sps", 1.0)[0], recorded("mcsd", 1.0)[0]
    settings = {"prompt": "a <b>", "method": "sps", "options": "", "temperature": 1, "seed": 0,
                "max_new_tokens": 20}  # fmt: skip
    values = {"traces": [first], "live": {"methods": ["ar", "sps", "mcsd"], "settings": settings},
              "note": "", "serial": 1}  # fmt: skip
    shown = browser.new_page()
    errors: list[str] = []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    code = module() + LIVE.replace("VALUES", json.dumps(values))
    shown.add_script_tag(content=code, type="module")
    shown.wait_for_selector(".sw svg")
    assert shown.input_value("textarea") == "a <b>"
    shown.fill("textarea", "another")
    shown.locator("textarea").press("ArrowRight")  # moves in the text, not in the trace
    shown.select_option("select", "mcsd")
    assert shown.input_value("input[type=range]") == "0"
    assert shown.inner_text("[data-record]") == "Record mcsd"
    shown.click("[data-record]")
    assert shown.is_disabled("[data-record]")
    asked = shown.evaluate("model.sent")
    assert asked == [{"kind": "record", "settings": {**settings, "method": "mcsd",
                                                     "prompt": "another"}}]  # fmt: skip
    answer = "v => { Object.assign(model.values, v); model.heard['change:serial'](); }"
    shown.evaluate(answer, {"traces": [second], "live": {**values["live"],
                   "settings": asked[0]["settings"]}})  # fmt: skip
    assert shown.input_value("textarea") == "another"
    assert frames(shown) > 0
    assert shown.is_enabled("[data-record]")
    shown.evaluate(answer, {"note": "Not recorded: <i>no</i>"})
    assert shown.inner_text("[data-error]") == "Not recorded: <i>no</i>"
    shown.evaluate("window.stop()")
    assert shown.locator(".sw").count() == 0
    assert errors == []
    shown.close()
