"""The welcome notebook in a real JupyterLab in a real browser: run all cells, move the slider, read the page."""

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
NOTEBOOK = "00_welcome.ipynb"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
TOKEN = "specwb"
SECONDS = 240

if CHROMIUM is None:
    pytest.skip("no chromium on this machine", allow_module_level=True)
for name in ("target", "draft"):
    if not (data_dir() / "lab" / name / "config.json").exists():
        pytest.skip(f"the lab family's {name} is not in {data_dir() / 'lab'}", allow_module_level=True)
pytest.importorskip("jupyterlab")
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab server on a copy of the notebook without outputs, with settings of its own and no news dialog."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    folder.mkdir()
    notebook = nbformat.read(ROOT / "notebooks" / NOTEBOOK, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # what is seen later has been run here
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, folder / NOTEBOOK)
    config, settings = home / "config", home / "settings" / "@jupyterlab" / "notebook-extension"
    (config / "labconfig").mkdir(parents=True)
    off = {"@jupyterlab/apputils-extension:announcements": True, "@jupyterlab/extensionmanager-extension": True}
    (config / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": off}))
    settings.mkdir(parents=True)
    # cells outside the window are in the page too
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "JUPYTER_CONFIG_DIR": str(config), "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser", f"--notebook-dir={folder}",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}",
    ]  # fmt: skip
    log = home / "log.txt"
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
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
def page(lab):
    """The notebook, opened and run from top to bottom."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.uncaught = []
        page.on("pageerror", lambda error: page.uncaught.append(str(error)))
        page.goto(f"{lab}/lab/tree/{NOTEBOOK}?token={TOKEN}")
        page.wait_for_function(f"{KERNEL}?.status == 'idle' && {KERNEL}.connectionStatus == 'connected'", timeout=SECONDS * 1000)
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells'), 0")
        # done when every cell has run, or when one has failed (the rest is then not run)
        page.wait_for_function(
            f"(cells => cells.every(c => c.execution_count != null) || cells.some(c => c.outputs.some(o => o.output_type == 'error')))({MODEL})",
            timeout=SECONDS * 1000,
        )
        yield page
        browser.close()


KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
MODEL = "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.filter(c => c.cell_type == 'code')"
ROUND = re.compile(r"round (\d+) of (\d+) accepted (\d+) of at most (\d+) and added (\d+); tau (\d+\.\d+) over all rounds")


def summary(page) -> re.Match:
    line = page.locator(".specwb-summary").first
    line.wait_for(timeout=60_000)
    found = ROUND.search(line.inner_text())
    assert found, line.inner_text()
    return found


def test_all_cells_run_without_error(page):
    cells = page.evaluate(MODEL)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error", output
            assert output.get("name") != "stderr", output
    assert page.uncaught == []


def test_figures_are_drawn(page):
    """As many plots as there are figures among the outputs, and two in the explorer."""
    figures = sum("application/vnd.plotly.v1+json" in o.get("data", {}) for c in page.evaluate(MODEL) for o in c["outputs"])
    assert figures >= 3
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot .gtitle').length >= {figures + 2}", timeout=60_000)


def test_the_slider_changes_what_the_page_says(page):
    """Every number the page says is the library's."""
    import specwb

    prompt = next(line for c in page.evaluate(MODEL) for line in c["source"].splitlines() if line.startswith("prompt = "))
    scope: dict = {}
    exec(prompt, scope)
    direct = specwb.decode(specwb.load("lab"), scope["prompt"], "mcsd", tree=(4, 2, 2), temperature=1.0, seed=0, max_new_tokens=40)
    lengths = direct.accepted_lengths[0]

    def expected(index: int) -> tuple[str, ...]:
        accepted = lengths[index - 1]
        return (str(index), str(len(lengths)), str(accepted), "3", str(accepted + 1), f"{direct.mean_tokens_per_round:.2f}")

    at = int(summary(page)[1])
    assert summary(page).groups() == expected(at)
    title = page.locator(".specwb-summary").first.locator("xpath=ancestor::*[contains(@class,'widget-vbox')][1]").locator(".gtitle").first
    handle = page.locator(".widget-hslider", has_text="round").get_by_role("slider")
    for key, index in (("ArrowRight", at + 1), ("ArrowRight", at + 2), ("ArrowLeft", at + 1)):
        handle.press(key)
        page.wait_for_function(f"document.querySelector('.specwb-summary').innerText.includes('round {index} of')", timeout=60_000)
        assert summary(page).groups() == expected(index)
        playwright.expect(title).to_have_text(f"Round {index}: 28 tokens drafted, {lengths[index - 1]} accepted, 1 closing", timeout=30_000)
    assert page.uncaught == []


def test_a_bad_tree_is_answered_in_the_page(page):
    box = page.get_by_placeholder("4-2-2")
    box.fill("4-x")
    box.press("Enter")
    line = page.locator(".specwb-summary").first
    playwright.expect(line).to_contain_text("Not decoded: tree must be", timeout=30_000)
    playwright.expect(line).to_contain_text("got '4-x'")
    box.fill("2-2")
    box.press("Enter")
    playwright.expect(line).to_contain_text("mcsd 2-2, temperature 1, seed 0: round", timeout=60_000)
    errors = [o for c in page.evaluate(MODEL) for o in c["outputs"] if o["output_type"] == "error"]
    assert errors == page.uncaught == []
