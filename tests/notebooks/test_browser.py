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
LESSON = "3_many_candidates"
MADE = {  # notebooks of a few cells
    "explorers": (
        "from specwb.show import widgets\nspeed = widgets.SpeedExplorer(alpha=0.6, c=0.1, gamma=3)",
        "widgets.show(speed, speed.summary)",
        "rules = widgets.RulesExplorer()\nwidgets.show(rules, rules.summary)",
    ),
    "controls": (
        "from specwb.show import widgets\nwidgets.RulesExplorer()",
        "widgets.RootsExplorer()",
    ),
}
TOKEN = "specwb"
NO_NEWS = ("apputils-extension:announcements", "extensionmanager-extension")
SECONDS = 240

pytestmark = pytest.mark.slow
for name in ("target", "draft"):
    if not (data_dir() / "lab" / name / "config.json").exists():
        pytest.skip(f"the lab family's {name} is not here", allow_module_level=True)
pytest.importorskip("jupyterlab")
playwright = pytest.importorskip("playwright.sync_api")


def notebooks(folder: Path) -> None:
    """Write the notebooks that are run here, without outputs: what is seen has been run here."""
    lesson = nbformat.read(ROOT / "notebooks" / "lessons" / f"{LESSON}.ipynb", 4)
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(lesson, folder / f"{LESSON}.ipynb")
    for name, sources in MADE.items():
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        notebook = nbformat.v4.new_notebook(cells=cells)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, folder / f"{name}.ipynb")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab with settings of its own."""
    home = tmp_path_factory.mktemp("jupyter")
    (home / "notebooks").mkdir()
    notebooks(home / "notebooks")
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
        where = {"env": environment, "stdout": out, "stderr": subprocess.STDOUT, "cwd": home}
        server = subprocess.Popen(command, **where)
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


KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
CELLS = (
    "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.filter(c => "
    "c.cell_type == 'code')"
)


def opened(browser, lab, name):
    """A notebook, opened, with its kernel ready."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.uncaught = []
    page.on("pageerror", lambda error: page.uncaught.append(f"{error} {error.stack}"))
    # a workspace of its own: the usual one would open what another page has open as well
    path = f"notebooks/{name}.ipynb"
    page.goto(f"{lab}/lab/workspaces/{name}/tree/{path}?token={TOKEN}")
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
    """Run all cells, and check that none failed or wrote to stderr."""
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells'), 0")
    # done when every cell has run, or when one has failed (the rest is then not run)
    page.wait_for_function(
        "(cells => cells.every(c => c.execution_count != null) || cells.some(c => "
        f"c.outputs.some(o => o.output_type == 'error')))({CELLS})",
        timeout=SECONDS * 1000,
    )
    for output in (output for cell in page.evaluate(CELLS) for output in cell["outputs"]):
        assert output["output_type"] != "error", output
        assert output.get("name") != "stderr", output


def uncaught(page) -> list[str]:
    """Errors of the page, but not of anywidget: after two seconds without a module it complains."""
    return [error for error in page.uncaught if "Failed to initialize model" not in error]


def test_every_question_of_a_lesson_is_answered_by_a_click(browser, lab):
    """The first choice of each: the answer comes up, with its figure where it has one; and the
    lesson's picture is there."""
    page = opened(browser, lab, LESSON)
    run_all(page)
    assert page.locator("img[src*='two_candidates']").count() == 1
    questions = page.locator(".specwb-question")
    keys = re.findall(r'course\.ask\("(3\.[\w-]+)"', str(page.evaluate(CELLS)))
    assert questions.count() == len(keys) > 4
    for i, key in enumerate(keys):
        question = questions.nth(i).locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
        answer = question.locator("[role=status]")
        assert answer.inner_text() == ""
        assert question.locator("svg.main-svg").count() == 0
        question.get_by_role("button").first.click()
        playwright.expect(answer).to_contain_text(re.compile(r"(Right|Not so)\."), timeout=30_000)
        playwright.expect(question.get_by_role("button").first).to_be_disabled()
        playwright.expect(question.locator(".js-plotly-plot")).to_have_count(int(key == "3.rules"))
    assert uncaught(page) == []
    page.close()


def test_the_kernel_sends_plotly_once_where_the_page_has_none(browser, lab):
    page = opened(browser, lab, "explorers")
    page.evaluate('delete window._JUPYTERLAB["jupyterlab-plotly"]')
    sizes: list[int] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on(
        "Network.webSocketFrameReceived",
        lambda event: sizes.append(len(event["response"]["payloadData"])),
    )
    run_all(page)
    page.wait_for_function(
        "(plots => plots.length == 2 && plots.every(plot => plot.querySelector('.trace')))"
        "([...document.querySelectorAll('.js-plotly-plot')])",
        timeout=SECONDS * 1000,
    )
    assert 1_000_000 < sum(sizes) < 4_000_000
    assert uncaught(page) == []
    page.close()


def leaves(widget) -> list:
    """The controls of an explorer in the order of the page."""
    inside = [leaf for child in getattr(widget, "children", ()) for leaf in leaves(child)]
    return inside or [widget]


def test_every_control_of_an_explorer_is_followed_in_the_page(browser, lab):
    """Moved by a step in the page and in Python alike, both say the same."""
    from specwb.show import widgets

    page = opened(browser, lab, "controls")
    run_all(page)
    for place, source in enumerate(MADE["controls"]):
        view = getattr(widgets, re.search(r"widgets\.(\w+)\(", source)[1])()
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
    assert uncaught(page) == []
    page.close()
