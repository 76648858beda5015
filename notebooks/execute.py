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
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbclient import NotebookClient

from specwb.show.course.question import HOLE
from specwb.show.palette import DARK, INK
from specwb.show.scope.pages import PACKED, packed
from specwb.show.widgets.display import STILL

FOLDER = Path(__file__).parent
WIDTH = 800  # pixels, about as wide as GitHub shows an output
COLOURS = 32  # of a PNG, at a third of the bytes of all colours that smooth letters have
SECONDS = 1200  # a cell, on a busy machine
PAGE = f"""<!DOCTYPE html><style>
  body {{ margin: 0; background: white; color: {DARK}; font: 13px 'DejaVu Sans', sans-serif }}
  #still {{ width: {WIDTH}px }}
  #still > div {{ padding: 3px 6px }}
  .control {{ display: inline-block; margin-right: 14px }}
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
            shot = base64.b64encode(page.locator("#still").screenshot()).decode()
            width, height, pixels = page.evaluate(PIXELS, f"data:image/png;base64,{shot}")
            coloured = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, width, 4)
            return palette_png(coloured[..., :3])

        yield take
        browser.close()


DRAW = """async parts => {
  const still = document.getElementById("still");
  still.replaceChildren();
  for (const part of parts) {
    const box = still.appendChild(document.createElement("div"));
    if (part.html !== undefined) box.innerHTML = part.html;
    else if (part.traces !== undefined) {
      const module = URL.createObjectURL(new Blob([part.module], { type: "text/javascript" }));
      (await import(module)).mount(box, { traces: part.traces, live: null, note: "" });
      box.style.padding = "3px 10px";
      await new Promise(done => setTimeout(done, 500));
    }
    else {
      box.style.padding = 0;
      const { data, layout } = part.figure;
      await Plotly.newPlot(box, data, layout, { staticPlot: true });
    }
  }
}"""

PIXELS = """async url => {
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const bytes = canvas.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768)
    text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return [image.width, image.height, btoa(text)];
}"""


def palette_png(pixels: np.ndarray) -> bytes:
    """Pixels ``[height, width, 3]`` as a PNG of COLOURS colours: of those in the picture, one after
    the other, the one whose pixels are furthest, by squares and in all, from what was chosen."""
    height, width, _ = pixels.shape
    colours, where, counts = np.unique(
        pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
    palette, nearest = [], np.zeros(len(colours), int)
    error = np.full(len(colours), np.inf)  # to the nearest chosen one
    while len(palette) < COLOURS and error.any():
        chosen = int((counts * np.minimum(error, 3 * 255**2)).argmax())
        distance = np.square(colours.astype(int) - colours[chosen]).sum(1)
        nearest[distance < error] = len(palette)
        error = np.minimum(error, distance)
        palette.append(colours[chosen])
    rows = np.zeros((height, width + 1), np.uint8)  # before each row: it is not filtered
    rows[:, 1:] = nearest[where.ravel()].reshape(height, width)

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    indexed = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, of a palette
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", indexed),
            chunk(b"PLTE", np.array(palette).tobytes()),
            chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            chunk(b"IEND", b""),
        ]
    )


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
                picture = base64.b64encode(take(parts)).decode()
                if HOLE in output.data.get("text/html", ""):  # a folded answer
                    image = f'<img alt="" src="data:image/png;base64,{picture}">'
                    output.data["text/html"] = output.data["text/html"].replace(HOLE, image)
                else:
                    output.data["image/png"] = picture + "\n"
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["SPECWB_STILLS"] = "1"
    with camera() as take:
        for name in sys.argv[1:]:
            path = FOLDER / Path(name).with_suffix(".ipynb")
            print(f"{path.name} ...", flush=True)
            execute(path, take)
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
