"""A notebook in a real JupyterLab in a real browser: run all cells, move the sliders, answer the
questions, read the page."""

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

EXPLORERS = ("RulesExplorer", "RootsExplorer")
QUESTIONS = {"3.rules": 1, "3.two": 0}
"""Questions, and how many figures their answers have."""
CELLS = (
    "from specwb.show import course, widgets",
    *(f"widgets.{name}()" for name in EXPLORERS),
    *(f'course.ask("{key}")' for key in QUESTIONS),
)
NAME = "pages"
TOKEN = "specwb"
NO_NEWS = ("apputils-extension:announcements", "extensionmanager-extension")
SECONDS = 240

pytestmark = pytest.mark.slow
for name in ("target", "draft"):
    if not (data_dir() / "lab" / name / "config.json").exists():
        pytest.skip(f"the lab family's {name} is not here", allow_module_level=True)
pytest.importorskip("jupyterlab")
playwright = pytest.importorskip("playwright.sync_api")


def notebook(folder: Path) -> None:
    """Write the notebook that is run here, without outputs: what is seen has been run here."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(made, folder / f"{NAME}.ipynb")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab with settings of its own."""
    home = tmp_path_factory.mktemp("jupyter")
    (home / "notebooks").mkdir()
    notebook(home / "notebooks")
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
RUN = (
    "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.filter(c => "
    "c.cell_type == 'code')"
)


@pytest.fixture(scope="module")
def page(browser, lab):
    """The notebook after all its cells have run, in a page that had no plotly."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.uncaught, page.sizes = [], []
    page.on("pageerror", lambda error: page.uncaught.append(f"{error} {error.stack}"))
    path = f"notebooks/{NAME}.ipynb"
    page.goto(f"{lab}/lab/tree/{path}?token={TOKEN}")
    page.wait_for_function(
        f"window.jupyterapp?.shell?.currentWidget?.context?.path == '{path}'",
        timeout=SECONDS * 1000,
    )
    page.wait_for_function(
        f"{KERNEL}?.status == 'idle' && {KERNEL}.connectionStatus == 'connected'",
        timeout=SECONDS * 1000,
    )
    page.evaluate('delete window._JUPYTERLAB["jupyterlab-plotly"]')
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on(
        "Network.webSocketFrameReceived",
        lambda event: page.sizes.append(len(event["response"]["payloadData"])),
    )
    run_all(page)
    yield page
    # but not of anywidget: after two seconds without a module it complains
    assert [error for error in page.uncaught if "Failed to initialize model" not in error] == []


def run_all(page) -> None:
    """Run all cells, and check that none failed or wrote to stderr."""
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells'), 0")
    # done when every cell has run, or when one has failed (the rest is then not run)
    page.wait_for_function(
        "(cells => cells.every(c => c.execution_count != null) || cells.some(c => "
        f"c.outputs.some(o => o.output_type == 'error')))({RUN})",
        timeout=SECONDS * 1000,
    )
    for output in (output for cell in page.evaluate(RUN) for output in cell["outputs"]):
        assert output["output_type"] != "error", output
        assert output.get("name") != "stderr", output


def test_the_kernel_sends_plotly_once_where_the_page_has_none(page):
    page.wait_for_function(
        "(plots => plots.length == 2 && plots.every(plot => plot.querySelector('.trace')))"
        "([...document.querySelectorAll('.js-plotly-plot')])",
        timeout=SECONDS * 1000,
    )
    assert 1_000_000 < sum(page.sizes) < 4_000_000


def leaves(widget) -> list:
    """The controls of an explorer in the order of the page."""
    inside = [leaf for child in getattr(widget, "children", ()) for leaf in leaves(child)]
    return inside or [widget]


def test_every_control_of_an_explorer_is_followed_in_the_page(page):
    """Moved by a step in the page and in Python alike, both say the same."""
    from specwb.show import widgets

    for place, name in enumerate(EXPLORERS):
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


def test_a_question_is_answered_by_a_click(page):
    """The first choice: the answer comes up, with its figure where it has one."""
    questions = page.locator(".specwb-question")
    assert questions.count() == len(QUESTIONS)
    for i, figures in enumerate(QUESTIONS.values()):
        question = questions.nth(i).locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]")
        answer = question.locator("[role=status]")
        assert answer.inner_text() == ""
        assert question.locator("svg.main-svg").count() == 0
        question.get_by_role("button").first.click()
        playwright.expect(answer).to_contain_text(re.compile(r"(Right|Not so)\."), timeout=30_000)
        playwright.expect(question.get_by_role("button").first).to_be_disabled()
        playwright.expect(question.locator(".js-plotly-plot")).to_have_count(figures)
