"""Notebooks in a real JupyterLab in a real browser: run all cells, move the sliders, read the
page."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from browsing import chromium

from specwb.models.load import data_dir

ROOT = Path(__file__).parents[2]
STEP, SHAPES, HEADS, MANY = NOTEBOOKS = (
    "lessons/1_one_speculative_step.ipynb",
    "lessons/4_draft_trees.ipynb",
    "papers/heads.ipynb",
    "lessons/3_many_candidates.ipynb",
)
ONLY = {  # cells that are run here; nbval runs them all
    SHAPES: (
        *("setup", "shape", "values", "real", "honest"),
        *("cost", "cost-measured", "stop", "designer"),
    ),
    HEADS: ("setup", "lm-head", "explorer"),
    MANY: ("imports", "pair", "two-candidates", "by-hand", "same-p", "score"),
}
EXPLORERS = (  # four figures, all in widgets
    "from specwb.show import widgets",
    "speed = widgets.SpeedExplorer(alpha=0.6, c=0.1, gamma=3)\nwidgets.show(speed, speed.summary)",
    "rules = widgets.RulesExplorer()\nwidgets.show(rules, rules.summary)",
)
# with sliders, also of a list of values, and dropdowns
CONTROLLED = ("RulesExplorer", "RootsExplorer", "BlockExplorer", "MaskExplorer")
TOKEN = "specwb"
NO_NEWS = ("apputils-extension:announcements", "extensionmanager-extension")
SECONDS = 240

pytestmark = pytest.mark.slow
for name in ("target", "draft", "medusa"):
    if not (data_dir() / "lab" / name / "config.json").exists():
        pytest.skip(f"the lab family's {name} is not here", allow_module_level=True)
pytest.importorskip("jupyterlab")
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on copies of the notebooks without outputs, with settings of its own."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    for part in ("papers", "lessons"):
        (folder / part).mkdir(parents=True)
    for name in NOTEBOOKS:
        notebook = nbformat.read(ROOT / "notebooks" / name, 4)
        # cell x is made of the cells x_1, x_2, .. and x
        notebook.cells = [
            c for c in notebook.cells if name not in ONLY or c.id.partition("_")[0] in ONLY[name]
        ]
        for cell in notebook.cells:
            if cell.cell_type == "code":  # what is seen later has been run here
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, folder / name)
    shown = [f"from specwb.show import widgets\nwidgets.{name}()" for name in CONTROLLED]
    for name, sources in (("explorers", EXPLORERS), ("controls", shown)):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        made = nbformat.v4.new_notebook(cells=cells)
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(made, folder / f"{name}.ipynb")
    config, settings = home / "config", home / "settings" / "@jupyterlab" / "notebook-extension"
    (config / "labconfig").mkdir(parents=True)
    off = {f"@jupyterlab/{x}": True for x in NO_NEWS}
    (config / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": off}))
    settings.mkdir(parents=True)
    # cells outside the window are in the page too
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--notebook-dir=.", "--no-browser"]
    command += ["--allow-root", "--expose-app-in-browser", f"--ServerApp.port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"]
    log = home / "log.txt"
    with log.open("w") as out:
        how = {"env": environment, "stdout": out, "stderr": subprocess.STDOUT, "cwd": home}
        server = subprocess.Popen(command, **how)
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
    with chromium() as browser:
        yield browser


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


page, shapes, heads, _ = map(opened, NOTEBOOKS)
KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
MODEL = (
    "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.filter(c => "
    "c.cell_type == 'code')"
)


@pytest.mark.parametrize("which", ["page", "shapes", "heads"])
def test_all_cells_run_without_error(which, request):
    page = request.getfixturevalue(which)
    cells = page.evaluate(MODEL)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error", output
            assert output.get("name") != "stderr", output
    assert page.uncaught == []


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


def test_every_question_of_a_lesson_is_answered_by_a_click(browser, lab):
    """The first choice of each: the answer comes up, with its figure where it has one, and the
    score follows those that were asked before it, not the homework."""
    page = ran(browser, lab, MANY)
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


def leaves(widget) -> list:
    """The controls of an explorer in the order of the page."""
    inside = [leaf for child in getattr(widget, "children", ()) for leaf in leaves(child)]
    return inside or [widget]


def test_every_control_of_an_explorer_is_followed_in_the_page(browser, lab):
    """Moved by a step in the page and in Python alike, both say the same."""
    from specwb.show import widgets

    page = ran(browser, lab, "controls.ipynb")
    for place, name in enumerate(CONTROLLED):
        view = getattr(widgets, name)()
        line = page.locator(".specwb-summary").nth(place)
        box = line.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
        sliders = choices = 0
        for control in leaves(view):
            if hasattr(control, "readout_format"):
                up = control.value < control.max
                there = box.locator(".widget-hslider").nth(sliders).get_by_role("slider")
                there.press("ArrowRight" if up else "ArrowLeft")
                control.value += control.step if up else -control.step
                sliders += 1
            elif hasattr(control, "options"):
                control.index = len(control.options) - 1
                box.locator("select").nth(choices).select_option(index=control.index)
                choices += 1
            playwright.expect(line).to_have_text(view.summary, timeout=30_000)
        assert sliders
    assert page.uncaught == []
    page.close()


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
