"""Pictures of the site's pages at three widths, light and dark, on one page to look at.

    python docs/site/pictures.py [FOLDER] [--only TEXT] [--widths 700,1000,1400]

takes them of every page of the site in FOLDER (``build/site``) whose name has TEXT in it, writes
``FOLDER/pictures/index.html``, and prints what is wrong with a page: it is wider than its window,
asks a network, or has an error in its console. It needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

SCHEMES = ("light", "dark")
WIDTHS = (700, 1000, 1400)
FLAGS = ["--no-sandbox", "--allow-file-access-from-files"]
HEIGHT = 12_000
"""Pixels of a page that are shown at most."""
LEFT_OUT = ("_modules", "_static", "pictures", "tests")


def chromium() -> str | None:
    """Where the browser is, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def pages(folder: Path, only: str = "") -> list[str]:
    """The site's pages by their paths below its folder."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*.html")))
    return [str(n) for n in names if n.parts[0] not in LEFT_OUT and only in str(n)]


def look(
    folder: Path, names: Sequence[str], widths: Sequence[int] = WIDTHS
) -> Iterator[tuple[str, list[str]]]:
    """Take the pictures of the pages; yields each with what is wrong with it.

    Args:
        folder: of the site; pictures are written to ``pictures`` in it.
        names: of the pages, as :func:`pages` gives them.
        widths: of the window, in pixels.
    Raises:
        RuntimeError: there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    program = chromium()
    if program is None:
        raise RuntimeError("pictures are taken by Chromium, which is not installed")
    (folder / "pictures").mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        for name in names:
            wrong: list[str] = []
            for scheme in SCHEMES:
                tab = browser.new_page(color_scheme=scheme)
                _listen(tab, wrong)
                tab.goto((folder / name).resolve().as_uri())
                tab.wait_for_load_state("networkidle")
                for width in widths:
                    tab.set_viewport_size({"width": width, "height": 900})
                    tab.wait_for_timeout(300)  # plots follow the width
                    if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        wrong.append(f"wider than {width} pixels")
                    tall = min(tab.evaluate("document.documentElement.scrollHeight"), HEIGHT)
                    tab.set_viewport_size({"width": width, "height": tall})
                    place = folder / "pictures" / picture(name, width, scheme)
                    tab.screenshot(path=place, type="jpeg", quality=60)
                tab.close()
            yield name, sorted(set(wrong))
        browser.close()


def _listen(tab: Any, wrong: list[str]) -> None:
    """Note what the page complains of and asks for."""
    tab.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    web = ("http:", "https:", "ws:", "wss:")
    tab.on("request", lambda r: wrong.append(f"asks {r.url}") if r.url.startswith(web) else None)


def picture(name: str, width: int, scheme: str) -> str:
    """The file of a page's picture."""
    return f"{name.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.jpg"


def index(folder: Path, names: Sequence[str], widths: Sequence[int]) -> None:
    """The page with all pictures, a row for each page."""
    parts = ["<!doctype html><meta charset=utf-8><title>Pictures of the site</title>"]
    parts.append("<style>body{font-family:sans-serif} img{width:300px;height:400px;")
    parts.append("object-fit:cover;object-position:top;border:1px solid #888}</style>")
    for name in names:
        parts.append(f'<h2><a href="../{escape(name)}">{escape(name)}</a></h2><p>')
        for scheme in SCHEMES:
            for width in widths:
                file = escape(picture(name, width, scheme))
                parts.append(f'<a href="{file}"><img loading=lazy src="{file}"')
                parts.append(f' alt="{escape(name)}, {width} pixels wide, {scheme}"></a>')
    (folder / "pictures" / "index.html").write_text("\n".join(parts), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", default=Path(__file__).parents[2] / "build" / "site")
    parser.add_argument("--only", default="", help="pages whose names have this in them")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)), help="pixels")
    asked = parser.parse_args()
    folder, widths = Path(asked.folder), [int(w) for w in asked.widths.split(",")]
    names = pages(folder, asked.only)
    if not names:
        sys.exit(f"{folder} has no such page; make site writes the site")
    faults = 0
    for name, wrong in look(folder, names, widths):
        faults += len(wrong)
        print(name, *wrong, sep="\n    ", flush=True)
    index(folder, names, widths)
    print(folder / "pictures" / "index.html")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
