"""The page that plays the recording that its address names, to stand in other pages."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from specwb.show.scope import TraceError
from specwb.show.scope.pages import inside_script, module, packed


def films() -> dict[str, dict[str, Any]]:
    """The films of ``films.toml``, by name; a caption is one line."""
    found = tomllib.loads(Path(__file__).with_name("films.toml").read_text("utf-8"))
    for shot in chain(*(film["shots"] for film in found.values())):
        shot["say"] = " ".join(shot["say"].split())
    return found


def player(recordings: Mapping[str, Mapping[str, Any]]) -> str:
    """A page of its own that plays the recording that its address names, to stand in another page:
    ``<iframe src="microscope.html?recording=NAME&play">``; with ``play`` at once, as a race. With
    ``?film=NAME`` it plays frames of a recording with captions.

    Args:
        recordings: name -> what :func:`specwb.record` returned.
    Raises:
        TraceError: one is no trace, or of another version; it is named.
    """
    texts = {}
    for name, trace in recordings.items():
        try:
            texts[name] = packed([trace])
        except TraceError as error:
            raise TraceError(f"recording {name}: {error}") from error
    page = _PLAYER.replace("MODULE", module()).replace("FILMS", inside_script(films()))
    return page.replace("RECORDINGS", inside_script(texts))


_PLAYER = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A decoding under the microscope</title>
<style>:root { color-scheme: light dark; } body { margin: 0; }</style></head>
<body><noscript>The microscope needs JavaScript.</noscript><script type="module">
MODULE
const recordings = RECORDINGS;
const films = FILMS;
const asked = new URLSearchParams(location.search);
const film = asked.has("film") ? films[asked.get("film")] ?? {} : null;
const name = film ? film.recording : asked.get("recording") ?? Object.keys(recordings)[0];
if (Object.hasOwn(recordings, name)) {
  const bytes = Uint8Array.from(atob(recordings[name]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const traces = await new Response(stream).json();
  mount(document.body, { traces, live: null, note: "", film, play: asked.has("play") });
} else {
  document.body.textContent = film
    ? `There is no film ${asked.get("film")}; there are ${Object.keys(films).join(", ")}.`
    : `There is no recording ${name}; there are ${Object.keys(recordings).join(", ")}.`;
}
</script></body></html>
"""
