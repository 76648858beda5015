"""The player as one ES module, and pages with traces inside that need nothing else."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import foreign, from_json
from specwb.show.palette import VOCABULARY
from specwb.show.scope.trace import Part, TraceError, Traces, several

FOLDER = Path(__file__).with_name("js")
PARTS = ("base", "frames", "prose", "tree", "panel", "lenses", "main")
"""The files that the module is joined from, in this order."""


TITLE = "A decoding under the microscope"
PACKED = "application/vnd.specwb.traces+gzip"
"""The mime type of :func:`packed` traces, which an executed notebook keeps beside a picture."""


def packed(traces: Traces) -> str:
    """Traces as base64 of gzip of JSON, a tenth as long; the same traces give the same text."""
    content = json.dumps(several(traces), ensure_ascii=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def unpacked(text: str) -> list[Part]:
    """The traces of :func:`packed`; a TraceError if the text is something else."""
    with foreign("these are no packed traces", TraceError):
        return several(from_json(gzip.decompress(base64.b64decode(text))))


@cache
def module() -> str:
    """The microscope as one ES module, without imports: it exports ``mount(element, data)`` and, by
    default, what anywidget calls. Its colours are :mod:`specwb.show.palette`'s."""
    colours = f"const COLOURS = {json.dumps(VOCABULARY)};\n"
    return colours + "\n".join((FOLDER / f"{part}.js").read_text("utf-8") for part in PARTS)


def inside_script(value: Any) -> str:
    """JSON that can stand in a <script> element whatever texts it holds: no text of a trace can
    end the element or begin a comment."""
    # NaN, a circle, half of a surrogate pair
    with foreign("a trace cannot be written as JSON", TraceError):
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def section(
    traces: Traces,
    name: str = "specwb",
    play: bool = False,
) -> str:
    """A part of an HTML page that plays the traces; it asks for nothing from outside.

    Args:
        traces: what :func:`specwb.record` returned, one or several.
        name: of the element, different for each section of a page: letters and digits.
        play: whether it plays at once, while it is in view, unless the reader's system asks for
            less motion.
    Raises:
        TraceError: one is no trace.
        ValueError: the name is not plain.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(f"name must be letters, digits and _, got {name!r}")
    data = {"traces": several(traces), "live": None, "note": "", "play": play}
    # each section has its own copy of the module, whose names stay inside it
    start = (
        f'mount(document.getElementById("{name}-microscope"),'
        f' JSON.parse(document.getElementById("{name}-traces").textContent));'
    )
    return (
        f'<div id="{name}-microscope"></div>\n'
        f'<script type="application/json" id="{name}-traces">{inside_script(data)}</script>\n'
        f'<script type="module">\n{module()}\n{start}\n</script>\n'
    )


def page(traces: Traces, command: str = "") -> str:
    """A page of its own that plays the traces, light or dark as the reader's system is.

    Args:
        traces: what :func:`specwb.record` returned, one or several.
        command: the command line that it came from.
    Raises:
        TraceError: one is no trace.
    """
    # the browser itself forbids every request
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
    made = f"<p><code>{escape(command)}</code></p>" if command else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{TITLE}</h1>\n{section(traces)}"
        "<p>Keys: left and right move, with shift by whole steps; space plays; up and down go "
        f"through the tree, enter chooses a node.</p>\n{made}</body></html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.2em auto; padding: 0 12px; max-width: 1310px;
  background: #fff; color: #1f2328; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; } }
h1 { font-size: 1.3em; } p { font-size: 13px; opacity: .8; } code { overflow-wrap: anywhere; }
"""
