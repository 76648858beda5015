"""Notebooks in a real JupyterLab in a real browser: run all cells, move the sliders, read the
page."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

from specwb.models.load import data_dir

ROOT = Path(__file__).parents[2]
LESSONS = MANY, DRAFTERS, HONEST = (
    "lessons/3_many_candidates.ipynb",
    "lessons/5_drafters.ipynb",
    "lessons/7_measuring_honestly.ipynb",
)
(
    STEP,
    REJECTION,
    SHAPES,
    RULES,
    PATHS,
    TREES,
    HEADS,
    FALCON,
    KANGAROO,
    MCSD_TI,
    DIFFUSPEC,
    EASYSPEC,
) = NOTEBOOKS = (
    "lessons/1_one_speculative_step.ipynb",
    "lessons/2_the_rejection_rule.ipynb",
    "lessons/4_draft_trees.ipynb",
    "lessons/8_the_residual_k_times.ipynb",
    "lessons/10_a_path_through_the_lattice.ipynb",
    "papers/trees.ipynb",
    "papers/heads.ipynb",
    "papers/falcon.ipynb",
    "papers/kangaroo.ipynb",
    "papers/mcsd_ti.ipynb",
    "papers/diffuspec.ipynb",
    "papers/easyspec.ipynb",
)
ONLY = {  # cells that are run here; nbval runs them all
    SHAPES: (
        "setup",
        "shape",
        "values",
        "real",
        "honest",
        "cost",
        "cost-measured",
        "stop",
        "designer",
    ),
    RULES: ("imports", "pair", "lines", "slices", "explorer"),
    PATHS: ("imports", "lattices", "explorer"),
    TREES: ("tree", "predicted-tau", "costs", "designer"),
    HEADS: ("setup", "lm-head", "explorer"),
    KANGAROO: ("setup", "densities", "explorer"),
    MCSD_TI: ("setup", "masks", "places", "room", "roots"),
    DIFFUSPEC: ("setup", "masks", "texts", "replay"),
    EASYSPEC: ("setup", "texts", "explorer", "times", "timeline", "implied", "cost"),
    FALCON: ("setup", "mask", "glancing", "designer"),
    MANY: ("imports", "pair", "two-candidates", "by-hand", "same-p", "score"),
    DRAFTERS: ("setup", "copy-where", "copy-scope", "model", "blind", "score"),
    HONEST: ("setup", "tau-run", "tau", "base", "score"),
}
EXPLORERS = (  # four figures, all in widgets
    "from specwb import widgets",
    "speed = widgets.SpeedExplorer(alpha=0.6, c=0.1, gamma=3)\nwidgets.show(speed, speed.summary)",
    "rules = widgets.RulesExplorer()\nwidgets.show(rules, rules.summary)",
)
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "specwb"
SECONDS = 240

pytestmark = pytest.mark.slow
if CHROMIUM is None:
    pytest.skip("no chromium on this machine", allow_module_level=True)
for name in (
    "target",
    "draft",
    "medusa",
    "eagle",
    "eagle3",
    "falcon",
    "kangaroo",
    "decision",
    "diffusion",
    "deep",
):
    if not (data_dir() / "lab" / name / "config.json").exists():
        pytest.skip(
            f"the lab family's {name} is not in {data_dir() / 'lab'}", allow_module_level=True
        )
pytest.importorskip("jupyterlab")
playwright = pytest.importorskip("playwright.sync_api")


def sources_of(page) -> dict[str, str]:
    """The cells of a page by their names, those that are one thing (x_1, x_2, x) as one."""
    sources: dict[str, str] = {}
    for cell in page.evaluate(MODEL):
        name = cell["id"].partition("_")[0]
        sources[name] = sources.get(name, "") + cell["source"] + "\n"
    return sources


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab as ``make lab`` starts it, on copies of the notebooks without outputs and of the
    pages that they link to, with settings of its own and no news dialog."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    (folder / "papers").mkdir(parents=True)
    shutil.copy(ROOT / "README.md", home)
    for pages in ("theory", "docs"):
        shutil.copytree(ROOT / pages, home / pages)
    shutil.copytree(ROOT / "notebooks" / "lessons", folder / "lessons")
    for name in (*NOTEBOOKS, *LESSONS):
        notebook = nbformat.read(ROOT / "notebooks" / name, 4)
        # cell x is made of the cells x_1, x_2, .. and x
        notebook.cells = [
            c for c in notebook.cells if name not in ONLY or c.id.partition("_")[0] in ONLY[name]
        ]
        for cell in notebook.cells:
            if cell.cell_type == "code":  # what is seen later has been run here
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, folder / name)
    cells = [nbformat.v4.new_code_cell(source) for source in EXPLORERS]
    explorers = nbformat.v4.new_notebook(cells=cells)
    explorers.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(explorers, folder / "explorers.ipynb")
    config, settings = home / "config", home / "settings" / "@jupyterlab" / "notebook-extension"
    (config / "labconfig").mkdir(parents=True)
    off = {
        "@jupyterlab/apputils-extension:announcements": True,
        "@jupyterlab/extensionmanager-extension": True,
    }
    (config / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": off}))
    settings.mkdir(parents=True)
    # cells outside the window are in the page too
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    (made,) = re.findall(
        r"^lab:.*\n\t\S+jupyter lab (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *made.split(),
        "--no-browser",
        "--allow-root",
        "--expose-app-in-browser",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}",
    ]
    log = home / "log.txt"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=home
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        else:
            pytest.fail(f"JupyterLab did not start\n{log.read_text()[-3000:]}")
        yield address
    finally:
        server.terminate()  # shuts the kernels down as well
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def at_rest(browser, lab, name):
    """A notebook, opened, with its kernel ready."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.uncaught = []
    page.on("pageerror", lambda error: page.uncaught.append(f"{error} {error.stack}"))
    # a workspace of its own: the usual one would open what another page has open as well
    path = f"notebooks/{name}"
    page.goto(f"{lab}/lab/workspaces/{Path(name).stem}/tree/{path}?token={TOKEN}")
    page.wait_for_function(
        f"window.jupyterapp?.shell?.currentWidget?.context?.path == '{path}'",
        timeout=SECONDS * 1000,
    )
    page.wait_for_function(
        f"{KERNEL}?.status == 'idle' && {KERNEL}.connectionStatus == 'connected'",
        timeout=SECONDS * 1000,
    )
    return page


def run_all(page) -> None:
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells'), 0")
    # done when every cell has run, or when one has failed (the rest is then not run)
    page.wait_for_function(
        "(cells => cells.every(c => c.execution_count != null) || cells.some(c => "
        f"c.outputs.some(o => o.output_type == 'error')))({MODEL})",
        timeout=SECONDS * 1000,
    )


def ran(browser, lab, name):
    """A notebook, opened and run from top to bottom."""
    page = at_rest(browser, lab, name)
    run_all(page)
    return page


def opened(name: str):
    """A fixture: the notebook, all its cells run."""

    @pytest.fixture(scope="module")
    def notebook(browser, lab):
        return ran(browser, lab, name)

    return notebook


page, rejection, shapes, rules, paths, trees, heads, *papers = map(opened, NOTEBOOKS)
falcon, kangaroo, mcsd_ti, diffuspec, easyspec = papers
KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
MODEL = (
    "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.filter(c => "
    "c.cell_type == 'code')"
)


def test_a_link_out_of_the_folder_opens(browser, lab):
    """It opens the page, typeset, beside the notebook."""
    page = browser.new_page()
    page.goto(f"{lab}/lab/workspaces/link/tree/notebooks/{STEP}?token={TOKEN}")
    link = page.locator(".jp-RenderedMarkdown a", has_text="Speed, with proofs").first
    link.wait_for(timeout=SECONDS * 1000)
    link.click()
    page.wait_for_function(
        "window.jupyterapp?.shell?.currentWidget?.context?.path == 'theory/03_speed.md'",
        timeout=60_000,
    )
    page.close()


@pytest.mark.parametrize("which", ["page", "rejection", "shapes", "rules", "trees", "heads"])
def test_all_cells_run_without_error(which, request):
    page = request.getfixturevalue(which)
    cells = page.evaluate(MODEL)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error", output
            assert output.get("name") != "stderr", output
    assert page.uncaught == []


def test_figures_are_drawn(shapes):
    """As many plots as there are figures among the outputs, and two in widgets: the measured one
    and the designer's."""
    figures = sum(
        "application/vnd.plotly.v1+json" in o.get("data", {})
        for c in shapes.evaluate(MODEL)
        for o in c["outputs"]
    )
    assert figures >= 1
    shapes.wait_for_function(
        "[...document.querySelectorAll('.js-plotly-plot')].filter(plot => "
        f"plot.querySelector('.gtitle, .annotation-text')).length >= {figures + 2}",
        timeout=60_000,
    )


PLOTS = """[...document.querySelectorAll('.js-plotly-plot')].map(
  plot => [plot.closest('.jp-OutputArea-output'), plot.querySelector('svg.main-svg')])"""


def as_wide_as_their_cells(page) -> None:
    """Waits until every figure, static or in an explorer, has the width of its output area."""
    differ = "Math.abs(area.getBoundingClientRect().width - svg.getBoundingClientRect().width)"
    page.wait_for_function(
        f"(plots => plots.length >= 3 && plots.every(([area, svg]) => svg && {differ} < "
        f"2))({PLOTS})",
        timeout=60_000,
    )


def test_figures_follow_the_width_of_their_cell(shapes):
    as_wide_as_their_cells(shapes)
    area = shapes.locator(".jp-OutputArea-output.js-plotly-plot").first
    first = area.bounding_box()["width"]
    shapes.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area'), 0")
    as_wide_as_their_cells(shapes)
    assert area.bounding_box()["width"] != first
    shapes.set_viewport_size({"width": 1000, "height": 1000})
    as_wide_as_their_cells(shapes)
    shapes.set_viewport_size({"width": 1400, "height": 1000})
    shapes.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area'), 0")
    as_wide_as_their_cells(shapes)
    assert area.bounding_box()["width"] == first


def test_no_white_blocks_on_a_dark_page(shapes):
    theme = (
        "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab %s'}), 0"
    )
    shapes.evaluate(theme % "Dark")
    shapes.wait_for_selector("body[data-jp-theme-light='false']", state="attached", timeout=60_000)
    filled = f"{PLOTS}.map(([_, svg]) => getComputedStyle(svg).backgroundColor)"
    assert set(shapes.evaluate(filled)) == {"rgba(0, 0, 0, 0)"}
    line = shapes.locator(".specwb-summary").first
    assert line.evaluate("line => getComputedStyle(line).backgroundColor") == "rgba(0, 0, 0, 0)"
    shapes.evaluate(theme % "Light")
    shapes.wait_for_selector("body[data-jp-theme-light='true']", state="attached", timeout=60_000)
    # JupyterLab hides and shows its page for a theme; now and then its own React meets a node gone
    shapes.wait_for_timeout(2000)
    shapes.uncaught[:] = [error for error in shapes.uncaught if "removeChild" not in error]


NO_EXTENSION = 'delete window._JUPYTERLAB["jupyterlab-plotly"]'
TRACES = """[...document.querySelectorAll('.js-plotly-plot')].map(
  plot => plot.querySelectorAll('.trace').length)"""


def received(page) -> list[int]:
    """Bytes of the web socket's messages from now on."""
    sizes: list[int] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on(
        "Network.webSocketFrameReceived",
        lambda event: sizes.append(len(event["response"]["payloadData"])),
    )
    return sizes


def has_four_figures(page) -> None:
    page.wait_for_function(
        f"(traces => traces.length == 4 && traces.every(n => n))({TRACES})",
        timeout=SECONDS * 1000,
    )


def test_figures_come_and_follow_in_a_slow_browser(browser, lab):
    """A fifth of the speed, and a page so busy that no module is there when anywidget gives up
    waiting, which is what it does after two seconds: every figure is drawn, and follows."""
    page = at_rest(browser, lab, "explorers.ipynb")
    sizes = received(page)
    slow = page.context.new_cdp_session(page)
    slow.send("Emulation.setCPUThrottlingRate", {"rate": 5})
    page.evaluate(
        "AbortSignal.timeout = () => { const c = new AbortController();"
        " queueMicrotask(() => c.abort()); return c.signal; }"
    )
    run_all(page)
    has_four_figures(page)
    assert sum(sizes) < 500_000
    slow.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    ring = page.locator(".js-plotly-plot").first.locator(".scatterlayer .trace .point").last
    before = ring.get_attribute("transform")
    assert moved(page, 0, "gamma", "ArrowRight").startswith("alpha 0.60, c 0.10, v(4) = 1.00")
    playwright.expect(ring).not_to_have_attribute("transform", before, timeout=30_000)
    assert page.locator(".specwb-figure-line:visible").count() == 0
    assert page.uncaught
    assert all("Failed to initialize model" in error for error in page.uncaught)
    page.close()


def test_the_kernel_sends_plotly_once_where_the_page_has_none(browser, lab):
    page = at_rest(browser, lab, "explorers.ipynb")
    page.evaluate(NO_EXTENSION)
    sizes = received(page)
    run_all(page)
    has_four_figures(page)
    assert 1_000_000 < sum(sizes) < 4_000_000
    assert page.uncaught == []
    page.close()


def test_a_figure_that_cannot_be_drawn_says_why_and_can_be_run_again(browser, lab):
    page = at_rest(browser, lab, "explorers.ipynb")
    page.evaluate(
        f"{NO_EXTENSION}; window.unpack = DecompressionStream; DecompressionStream = null"
    )
    run_all(page)
    lines = page.locator(".specwb-figure-line[role=alert]")
    playwright.expect(lines).to_have_text(
        [re.compile("^The figure cannot be drawn: .+ Run this cell again.$")] * 4, timeout=60_000
    )
    page.evaluate("DecompressionStream = window.unpack, 0")
    run_all(page)
    has_four_figures(page)
    assert page.uncaught == []
    page.close()


def test_a_figure_is_measured_on_this_machine(page):
    """The button draws a second line and says whether the machine was quiet."""
    box = page.locator(".widget-vbox", has_text="Measure on this machine").last
    assert "this machine" not in box.locator("svg.main-svg").first.text_content()
    button = box.get_by_role("button", name="Measure on this machine")
    button.click()
    said = box.locator("[role=status]", has_text="repeats")
    playwright.expect(said).to_have_text(re.compile("quiet|busy"), timeout=SECONDS * 1000)
    playwright.expect(button).to_be_enabled()
    playwright.expect(
        box.locator("svg").filter(has_text=re.compile("this machine"))
    ).not_to_have_count(0)


def test_a_guess_opens_the_answer_and_counts(page):
    """The first one, right or wrong; and the score at the lesson's end follows."""
    score = page.locator("[role=status]", has_text="Questions:").first
    asked = re.match(r"Questions: (\d+) asked, 0 answered, 0 right", score.inner_text())
    assert asked, score.inner_text()
    question = page.locator(".widget-vbox", has_text="The target has just written 48 tokens").last
    assert question.locator("[role=status]").count() == 0
    question.get_by_role("button", name="about 12").click()
    answer = question.locator("[role=status]")
    playwright.expect(answer).to_contain_text("Not so.", timeout=30_000)
    playwright.expect(answer).to_contain_text("The answer: 48.")
    for button in question.get_by_role("button").all():
        playwright.expect(button).to_be_disabled()
    playwright.expect(score).to_contain_text(
        f"Questions: {asked[1]} asked, 1 answered, 0 right", timeout=30_000
    )
    question = page.locator(".widget-vbox", has_text="Does the text of 48 tokens change?").last
    question.get_by_role("button", name="not by a token").click()
    playwright.expect(question.locator("[role=status]")).to_contain_text("Right.", timeout=30_000)
    playwright.expect(score).to_contain_text("2 answered, 1 right", timeout=30_000)
    errors = [o for c in page.evaluate(MODEL) for o in c["outputs"] if o["output_type"] == "error"]
    assert errors == page.uncaught == []


@pytest.mark.parametrize("name", LESSONS)
def test_every_question_of_a_lesson_is_answered_by_a_click(browser, lab, name):
    """The first choice of each: the answer comes up, with its figure where it has one, and the
    score follows those that were asked before it, not the homework."""
    page = ran(browser, lab, name)
    for cell in page.evaluate(MODEL):
        for output in cell["outputs"]:
            assert output["output_type"] != "error", output
            assert output.get("name") != "stderr", output
    score = page.locator("[role=status]", has_text="Questions:").first
    asked = int(re.match(r"Questions: (\d+) asked, 0 answered", score.inner_text())[1])
    every = sum("course.ask(" in c["source"] for c in page.evaluate(MODEL))
    assert 1 <= asked <= every
    right = 0
    for i in range(every):
        label = page.locator(".widget-html", has_text="Question.").nth(i)
        question = label.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
        drawn = question.locator("svg.main-svg").count()
        assert question.locator("[role=status]").count() == drawn == 0
        question.get_by_role("button").first.click()
        answer = question.locator("[role=status]")
        playwright.expect(answer).to_contain_text(re.compile(r"(Right|Not so)\."), timeout=30_000)
        right += i < asked and answer.inner_text().startswith("Right")
        said = f"{asked} asked, {min(i + 1, asked)} answered, {right} right"
        playwright.expect(score).to_contain_text(said, timeout=30_000)
    assert page.uncaught == []
    page.close()


def moved(page, place: int, label: str, key: str) -> str:
    """Press a key on a slider of the place-th explorer; the line of text that it then shows."""
    explorer = (
        page.locator(".specwb-summary")
        .nth(place)
        .locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
    )
    line = explorer.locator(".specwb-summary")
    before = line.inner_text()
    explorer.locator(".widget-hslider", has_text=label).get_by_role("slider").press(key)
    playwright.expect(line).not_to_have_text(before, timeout=30_000)
    return line.inner_text()


def test_the_draft_is_shaped_in_the_page(rejection):
    from specwb import analysis
    from specwb.widgets.acceptance import shaped

    rejection.locator(".specwb-summary").first.wait_for(timeout=60_000)
    title = (
        rejection.locator(".specwb-summary")
        .first.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
        .locator(".gtitle")
    )
    settings = {"temperature": 1.0, "shift": 1.0, "sharpness": 1.0}
    for label, name, step in (
        ("shift", "shift", 0.5),
        ("sharpness", "sharpness", 0.1),
        ("temperature", "temperature", 0.1),
    ):
        text = moved(rejection, 0, label, "ArrowRight")
        settings[name] += step
        p, q = shaped(**settings)
        alpha = analysis.acceptance_rate(p, q)
        counts, accepted = analysis.simulate(p, q, 2000)
        assert text == (
            "temperature {temperature:.1f}, shift {shift:.1f}, sharpness {sharpness:.1f}".format(
                **settings
            )
            + f": acceptance 1 - TV = {alpha:.3f}; {accepted / 2000:.3f} of 2000 draws accepted, "
            f"shares of the output off p by at most {abs(counts / 2000 - p).max():.3f}, the noise "
            "of so many draws"
        )
        playwright.expect(title).to_have_text(
            f"accepted {alpha:.3f} = 1 − TV(p, q)", timeout=30_000
        )
    assert rejection.uncaught == []


def test_the_speedup_model_in_the_page(page):
    from specwb import analysis

    page.get_by_label("scoring costs").select_option("as one token (v = 1)")
    playwright.expect(page.locator(".specwb-summary").first).to_contain_text(
        "v(4) = 1.00", timeout=30_000
    )
    start = re.match(
        r"alpha (.+), c (.+), v\(4\)", page.locator(".specwb-summary").first.inner_text()
    )
    alpha, c, gamma = float(start[1]), float(start[2]), 4  # as measured, and shipped
    for label in ("alpha", "c", "gamma"):
        text = moved(page, 0, label, "ArrowRight")
        alpha, c, gamma = (
            alpha + 0.01 * (label == "alpha"),
            c + 0.01 * (label == "c"),
            gamma + (label == "gamma"),
        )
        best = analysis.best_gamma(alpha, c, most=10)
        assert text == (
            f"alpha {alpha:.2f}, c {c:.2f}, v({gamma}) = 1.00: gamma {gamma} adds "
            f"{analysis.expected_tokens(alpha, gamma):.2f} tokens per step, "
            f"speedup {analysis.speedup(alpha, gamma, c):.2f}x; best is gamma {best} with "
            f"{analysis.speedup(alpha, best, c):.2f}x"
        )
    assert page.uncaught == []


def test_rules_are_compared_in_the_page(rules):
    import numpy as np

    from specwb import analysis
    from specwb.verify import exact
    from specwb.verify.mutants import no_residual_update
    from specwb.widgets.rules import NAMES, pair

    def said(verifier: str, output: str) -> str:
        a, b = (
            np.array(x, dtype=float)
            for x in pair(
                settings["temperature"],
                settings["mismatch"],
                settings["vocabulary"],
                settings["seed"],
            )
        )
        rates = {name: float(rate(a, b, settings["k"])) for name, rate in analysis.RATES.items()}
        most = max(rates, key=lambda name: round(rates[name], 9))
        return (
            "temperature {temperature:.1f}, mismatch {mismatch:.1f}, {vocabulary} tokens, k = "
            "{k}, seed {seed}: ".format(**settings)
            + f"1 - TV(p, q) = {rates['rejection']:.3f}; most accepted by "
            f"{NAMES.get(most, most)}, {rates[most]:.3f}. {verifier}: the output {output}"
        )

    rules.locator(".specwb-summary").first.wait_for(timeout=60_000)
    settings = {"temperature": 1.0, "mismatch": 1.0, "vocabulary": 5, "k": 3, "seed": 0}
    labels = {"temperature": 0.1, "mismatch": 0.1, "vocabulary": 1, "candidates": -1, "seed": 1}
    for (label, step), name in zip(labels.items(), settings, strict=True):
        text = moved(rules, 0, label, "ArrowLeft" if step < 0 else "ArrowRight")
        settings[name] += step
        assert text == said("rrsw", "has distribution p, TV = 0 in fractions")
    rules.get_by_label("verifier").select_option(
        "WRONG: sampled siblings tested without updating the residual"
    )
    p, q = pair(
        settings["temperature"], settings["mismatch"], settings["vocabulary"], settings["seed"]
    )
    off = exact.tv(exact.output_distribution(no_residual_update, exact.iid, p, q, 2), p)
    assert off > 0
    line = rules.locator(".specwb-summary").first
    playwright.expect(line).to_have_text(
        said("the WRONG rule no_update_sampled", f"is off p, TV = {float(off):.4f}"), timeout=30_000
    )
    assert rules.uncaught == []


def test_a_tree_is_designed_in_the_page(trees):
    from specwb import analysis
    from specwb.verify.exact import depths

    found = json.loads((data_dir() / "results" / "trees-lab.json").read_text())
    rates = next(run["by_rank"] for run in found["sampled"] if run["temperature"] == 1)
    line = trees.locator(".specwb-summary").first
    trees.get_by_label("a step costs").select_option("free up to n* nodes")
    trees.get_by_label("tree", exact=True).select_option("most tokens a second")
    playwright.expect(line).to_contain_text("fastest, 16 nodes", timeout=30_000)
    nodes, depth = 16, 6  # where they stand at first, n* at 128 and c at 0.1
    for label in ("nodes", "depth"):
        text = moved(trees, 0, label, "ArrowLeft")
        nodes, depth = nodes - (label == "nodes"), depth - (label == "depth")
        tree, speed = analysis.choose_tree(
            rates,
            lambda t: analysis.roofline(len(t) - 1, 1, 128) + 0.1 * max(depths(t)),
            nodes,
            depth,
        )
        tau, cost = (
            sum(analysis.path_values(rates, tree)),
            analysis.roofline(len(tree) - 1, 1, 128) + 0.1 * max(depths(tree)),
        )
        assert text == (
            f"fastest, {len(tree)} nodes, depth {max(depths(tree))}: {tau - 1:.2f} accepted + 1 = "
            f"{tau:.2f} tokens per step for {cost:.2f} plain "
            f"steps, speedup {speed:.2f}x; the fastest of at most {nodes} nodes and depth {depth} "
            f"has {len(tree)} nodes and {speed:.2f}x"
        )
    assert trees.uncaught == []


def test_dials_follow_in_the_page(heads):
    """A slider moved: at once the line says so, then come the new tree, tau and speedup."""
    line = heads.locator(".specwb-summary").first
    playwright.expect(line).to_contain_text("on 12 texts", timeout=120_000)
    assert line.inner_text().startswith("medusa, T = 0: tau ")
    room = line.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
    nodes = room.locator(".sw [data-node]")
    before = nodes.count()
    assert moved(heads, 0, "nodes", "ArrowRight").startswith("medusa:nodes=11")
    playwright.expect(line).to_contain_text("on 12 texts", timeout=120_000)
    playwright.expect(nodes).to_have_count(before + 1)
    row = room.locator(".ytick text", has_text="medusa:nodes=11, T = 0").first
    playwright.expect(row).to_be_visible(timeout=30_000)
    level = room.get_by_text("tree, level 1", exact=True)
    assert not level.is_visible()
    room.get_by_label("tree", exact=True).select_option("by level")
    playwright.expect(level).to_be_visible()
    room.get_by_label("rule", exact=True).select_option("block")
    playwright.expect(line).to_contain_text("Not drawn: rule 'block'", timeout=30_000)
    assert heads.uncaught == []


def test_blocks_are_explored_in_the_page(falcon):
    import numpy as np
    import torch

    from specwb.analysis import dependence, path_values
    from specwb.blocks import BlockTree
    from specwb.drafters.heads import accuracies, measured_tree
    from specwb.training.falcon import glance_mask
    from specwb.training.markov import MarkovSource

    lines = falcon.locator(".specwb-summary")
    lines.nth(2).wait_for(timeout=60_000)
    assert moved(falcon, 0, "pairs", "ArrowRight").startswith(
        "k = 2, 8 pairs in blocks 1-2 3-4 5-6 7-8: X1 by pair 7, which sees 8 of 8"
    )
    assert moved(falcon, 0, "k", "ArrowRight").startswith(
        "k = 3, 8 pairs in blocks 1-2 3-5 6-8: X1 by pair 6"
    )
    lines.nth(0).locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]").get_by_label(
        "blocks end"
    ).select_option("left")
    playwright.expect(lines.nth(0)).to_contain_text(
        "1-3 4-6 7-8: X1 by pair 6, which sees 6 of 8", timeout=30_000
    )

    text, source = moved(falcon, 1, "lambda", "ArrowRight"), MarkovSource.ring(8, 3)
    made = np.random.default_rng(0)
    u = [torch.from_numpy(made.random((6, 12))) for _ in range(2)]
    mask = glance_mask(torch.full((6,), int(0.45 * 0.5 * 24)), 24, 2, *u)
    share = float(mask[:, ::2].double().mean())
    left = dependence.excess(source.joint(2), [[1.0], [1 - share, share]], source.stationary)
    assert text.startswith(
        f"k = 2: lambda 0.45 of 50% wrong guesses, {int(mask.sum())} of 144 pairs replaced, "
        f"{share:.0%} of blocks glance"
    )
    assert f"least loss {left:.3f} nats a block above autoregression" in text

    card = json.loads((data_dir() / "lab" / "falcon" / "card.json").read_text())
    rates, tree = accuracies(card), measured_tree(card, 17, 4)
    blocks, tau = BlockTree(tree, 2), sum(path_values(rates, tree.host[0]))
    fed = 2 * sum(len(one.blocks) for one in blocks.passes[1:])
    cost = 1 + 0.02 * 16 + 0.1 * len(blocks.passes) + 0.01 * fed
    assert (
        f"{tau - 1:.2f} accepted + 1 = {tau:.2f} tokens per step expected at T = 0 for {cost:.2f} "
        f"plain steps, speedup {tau / cost:.2f}x" in moved(falcon, 2, "nodes", "ArrowRight")
    )
    assert falcon.uncaught == []


def test_when_to_stop_in_the_page(kangaroo):
    from specwb.studies.kangaroo.cells import costs_of, rounds_of

    sources, scope = sources_of(kangaroo), {}
    for cell in ("setup", "densities"):
        exec(sources[cell], scope)
    kangaroo.locator(".specwb-summary").first.wait_for(timeout=60_000)
    title = (
        kangaroo.locator(".specwb-summary")
        .first.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
        .locator(".js-plotly-plot")
    )
    names = [
        ("own", scope["own"], ""),
        *((name, scope["ablation"], name) for name in scope["ablation"]["traces"]),
    ]
    exit, eta, gamma = 0, 0.6, 6
    for slider, key in (
        ("eta", "ArrowLeft"),
        ("gamma", "ArrowLeft"),
        ("exit", "ArrowRight"),
        ("eta", "ArrowRight"),
    ):
        text = moved(kangaroo, 0, slider, key)
        eta += {"ArrowLeft": -0.05, "ArrowRight": 0.05}[key] * (slider == "eta")
        gamma, exit = gamma - (slider == "gamma"), exit + (slider == "exit")
        name, document, variant = names[exit]
        one, costs = (
            rounds_of(document["traces"][variant]).simulate("top", round(eta, 2), gamma),
            costs_of(document["costs"][variant]),
        )
        assert text.startswith(
            f"{name}, eta {eta:.2f}, gamma {gamma}: {one.mean_drafted:.2f} tokens drafted per "
            f"step, {one.cr - 1:.2f} kept + 1 = CR {one.cr:.2f}, "
            f"{one.wasted:.2f} wasted; predicted speedup "
            f"{one.speedup(costs.seconds, costs.plain):.2f}x"
        )
    playwright.expect(title).to_have_count(1)
    assert kangaroo.uncaught == []


def test_masks_dials_and_roots_in_the_page(mcsd_ti):
    from fractions import Fraction

    from specwb.analysis.roots import kept_root
    from specwb.verify import exact

    lines = mcsd_ti.locator(".specwb-summary")
    lines.nth(2).wait_for(timeout=60_000)
    assert moved(mcsd_ti, 0, "levels left", "ArrowRight").startswith(
        "tree 4-1-1-1-1, 3 of 5 levels: 13 of 21 nodes, the leading 13 x 13 block"
    )

    room = lines.nth(1)
    playwright.expect(room).to_contain_text("mcsd_ti, T = 0: tau ", timeout=120_000)
    box = room.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
    box.get_by_label("stop", exact=True).select_option("top")
    playwright.expect(room).to_contain_text("mcsd_ti:stop=top, T = 0", timeout=120_000)
    assert "threshold=0.41" in moved(mcsd_ti, 1, "threshold", "ArrowRight")

    P, rates, W, D = (
        [Fraction(n, 10) for n in (4, 3, 2, 1)],
        [Fraction(n, 20) for n in (4, 4, 18, 18)],
        2,
        1,
    )
    for slider in ("roots", "levels below", "below a", "below b", "below c", "below d"):
        place = "abcd".find(slider[-1]) if slider.startswith("below") else -1
        text = moved(mcsd_ti, 2, slider, "ArrowRight")
        W, D = W + (slider == "roots"), D + (slider == "levels below")
        if place >= 0:
            rates[place] += Fraction(1, 20)
        distribution = kept_root(P, [[*(a**n * (1 - a) for n in range(D)), a**D] for a in rates], W)
        assert (
            "the root that stays has distribution "
            + " ".join(f"{float(x):.3f}" for x in distribution)
            in text
        )
        assert f"{float(exact.tv(distribution, P)):.3f} from the target's" in text
    assert mcsd_ti.uncaught == []


def test_a_beam_grows_in_the_page(paths):
    from specwb import course
    from specwb.lattice import Lattice, beam, viterbi

    _, found, proxy = course.lattices()
    now = {"text": 3, "places": 2, "lambda": 0.5, "B paths": 3, "mass": 0.8, "M tokens": 8}
    paths.locator(".specwb-summary").first.wait_for(timeout=60_000)
    right = {"places": 1, "lambda": 0.05, "B paths": 1, "M tokens": 1, "text": 1}
    for slider, step in [*([("places", 1)] * 5), *right.items()]:
        text = moved(paths, 0, slider, "ArrowRight")
        now[slider] += step
        at = found[now["text"] - 1]
        whole = at.lattice(now["mass"], now["M tokens"])
        part = Lattice(whole.ids[: now["places"]], whole.logq[: now["places"]], whole.ends)
        search = (proxy, at.text, now["lambda"])
        ours, best = beam(part, *search, now["B paths"])[0], viterbi(part, *search)
        assert text.startswith(
            "text {text}, {places} of 8 places, lambda {lambda:.2f}, B = {B paths}, mass "
            "{mass:.2f}, M = {M tokens}: ".format(**now)
        )
        assert f"{-ours.mean:.3f} on the beam's best path, {-best.mean:.3f} on the best of" in text
        if now["places"] == 8:
            kept = [at.kept(path) for path in (part.row, ours.tokens, best.tokens)]
            said = "keeps {} of the first choices, {} of the beam, {} of the best"
            assert said.format(*kept) in text
    assert paths.uncaught == []


def test_draft_lengths_adapt_in_the_page(diffuspec):
    sources, scope = sources_of(diffuspec), {}
    for cell in ("setup", "masks", "texts"):
        exec(sources[cell], scope)
    diffuspec.locator(".specwb-summary").first.wait_for(timeout=60_000)
    exec(sources["replay"], scope)
    constants = {"least": 4, "most": 8, "delta": 2, "rho": 0.5, "share": 1.0}
    for slider, name, key, step in (
        ("k_min", "least", "ArrowLeft", -1),
        ("k_max", "most", "ArrowRight", 1),
        ("delta", "delta", "ArrowRight", 1),
        ("rho", "rho", "ArrowLeft", -0.05),
        ("share", "share", "ArrowLeft", -0.05),
    ):
        text = moved(diffuspec, 0, slider, key)
        constants[name] += step
        rounds = scope["replay"].rounds(**constants)
        assert (
            f"share {constants['share']:.2f}: {len(rounds)} steps, "
            f"{sum(r.k for r in rounds) / len(rounds):.1f} tokens drafted per step" in text
        )
        assert f"= {len(scope['replay'].text) / len(rounds):.2f}; " in text
        assert text.endswith(f"k = {rounds[-1].k} in the last step")
    assert diffuspec.uncaught == []


def test_layers_side_by_side_in_the_page(easyspec):
    from specwb.analysis import layer_parallel as parallel
    from specwb.models.fuzzy import grouping

    lines = easyspec.locator(".specwb-summary")
    lines.nth(2).wait_for(timeout=60_000)
    assert moved(easyspec, 0, "n", "ArrowRight").startswith(
        "n 5, groups 0 1-4 5-6 7, R = 4 of 8: smallest cosine of hidden 0."
    )
    easyspec.get_by_label("last layer alone").click()
    playwright.expect(lines.nth(0)).to_contain_text(
        "n 5, groups 0 1-4 5-7, R = 3 of 8", timeout=30_000
    )
    assert moved(easyspec, 1, "devices", "ArrowRight").startswith(
        "n 4, width 1, 4 devices, exchange 0.02 ms: drafting takes"
    )
    share, n = 0.7, 4  # where the notebook left them
    for label in ("share", "n"):
        text = moved(easyspec, 2, label, "ArrowRight")
        share, n = share + 0.01 * (label == "share"), n + (label == "n")
        rounds = parallel.attention_rounds(grouping(32, n))
        ratio = parallel.fuzzy_ratio(share, rounds, 32)
        stage, most = (
            parallel.stage_speedup(ratio, 5),
            parallel.largest_stage_speedup(5, rounds, 32),
        )
        assert text.startswith(
            f"32 layers, n {n}, R = {rounds}, depth 5, share {share:.2f}: fuzzy / exact "
            f"{ratio:.2f}, stage {stage:.2f}x, at most {most:.2f}x"
        )
    assert easyspec.uncaught == []
