"""Execute notebooks for committing: all cells in order, a PNG beside every figure and explorer, and
the traces of every microscope, packed.

    python notebooks/execute.py lessons/2_the_rejection_rule 02_multi_candidate_verification

GitHub, nbviewer and PDFs draw neither plotly figures nor widgets; they show the PNG. It is taken in
a headless Chromium with the plotly.js that the plotly package has in it, so nothing is downloaded.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbclient import NotebookClient
from PIL import Image

from specwb.show.palette import DARK, INK
from specwb.show.scope.pages import PACKED, packed
from specwb.show.widgets.display import STILL

FOLDER = Path(__file__).parent
WIDTH = 800  # pixels, about as wide as GitHub shows an output
COLOURS = 64  # of a PNG, at a third of the bytes of all colours that smooth letters have
SECONDS = 1200  # a cell, on a busy machine
PAGE = f"""<!DOCTYPE html><style>
  body {{ margin: 0; background: white; color: {DARK}; font: 13px 'DejaVu Sans', sans-serif }}
  #still {{ width: {WIDTH}px }}
  #still > div {{ padding: 3px 6px; box-sizing: border-box }}
  .control {{ display: inline-block; margin: 2px 14px 2px 0 }}
  .control b {{ font-weight: normal; border: 1px solid #B0B0B0; padding: 1px 6px }}
</style><div id="still"></div>"""


@contextmanager
def camera() -> Iterator[Any]:
    """A function from what :func:`specwb.show.widgets.display.still` returns to the bytes of a
    PNG."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)  # None: the one of playwright
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 600})
        page.set_content(PAGE)
        page.add_script_tag(path=str(files("plotly") / "package_data" / "plotly.min.js"))

        def take(parts: list[dict[str, Any]]) -> bytes:
            page.evaluate(DRAW, [_html(part) for part in parts])
            return coloured(page.locator("#still").screenshot())

        yield take
        browser.close()


DRAW = """async parts => {
  const still = document.getElementById("still");
  still.replaceChildren();
  for (const part of parts) {
    const box = still.appendChild(document.createElement("div"));
    if (part.html !== undefined) box.innerHTML = part.html;
    else if (part.traces !== undefined) {
      box.style.padding = "3px 10px";
      const module = URL.createObjectURL(new Blob([part.module], { type: "text/javascript" }));
      (await import(module)).mount(box, { traces: part.traces, live: null, note: "" });
      await new Promise(done => setTimeout(done, 500));
    }
    else {
      box.style.padding = 0;
      const { data, layout } = part.figure;
      await Plotly.newPlot(box, data, layout, { staticPlot: true });
    }
  }
}"""


def coloured(shot: bytes) -> bytes:
    """A PNG in COLOURS colours: half are the most frequent ones, so that a fill keeps its own, and
    half are spread over all that there are, for signs in a legend."""
    image, small = Image.open(BytesIO(shot)).convert("RGB"), BytesIO()
    often = sorted(image.getcolors(1 << 24), reverse=True)[: COLOURS // 2]
    spread = image.quantize(COLOURS // 2, Image.Quantize.MAXCOVERAGE).getpalette()
    palette = np.array([*(colour for _, colour in often), *np.reshape(spread, (-1, 3))])
    # quantize(palette=..) takes colours that are alike for one, and white for a grey
    colours, which = np.unique(np.asarray(image).reshape(-1, 3), axis=0, return_inverse=True)
    nearest = ((colours[:, None].astype(int) - palette) ** 2).sum(2).argmin(1).astype(np.uint8)
    picture = Image.fromarray(nearest[which].reshape(image.height, image.width), "P")
    picture.putpalette(palette.flatten().tolist())
    picture.save(small, "PNG", optimize=True)
    return small.getvalue()


def _html(part: dict[str, Any]) -> dict[str, Any]:
    if "figure" in part:  # a white page is known here, so words may be darker
        return json.loads(json.dumps(part).replace(INK, DARK))
    if "controls" in part:
        controls = (
            f'<span class="control">{escape(name)} <b>{escape(value)}</b></span>'
            for name, value in part["controls"]
        )
        return {"html": "".join(controls)}
    return part


def execute(path: Path, take: Any) -> None:
    """Run a notebook from the top, draw what it shows, and write it back in its place."""
    notebook = nbformat.read(path, 4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        coalesce_streams=True,
        store_widget_state=False,
    )
    client.execute()
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if parts := output.get("data", {}).pop(STILL, None):
                # the site and slides play a microscope, which they show alone
                if len(parts) == 1 and "traces" in parts[0]:
                    output.data[PACKED] = packed(parts[0]["traces"])
                output.data["image/png"] = base64.b64encode(take(parts)).decode() + "\n"
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["SPECWB_STILLS"] = "1"
    with camera() as take:
        for name in sys.argv[1:]:
            path = FOLDER / Path(name).with_suffix(".ipynb")
            print(f"{path.name} ...", flush=True)
            execute(path, take)
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
