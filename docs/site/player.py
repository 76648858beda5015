"""The page that plays the recording that its address names, to stand in other pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specwb.show.scope import TraceError
from specwb.show.scope.pages import inside_script, module, packed


def player(recordings: Mapping[str, Mapping[str, Any]]) -> str:
    """A page of its own that plays the recording that its address names, to stand in another page:
    ``<iframe src="microscope.html?recording=NAME&play">``; with ``play`` at once, as a race.

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
    return _PLAYER.replace("RECORDINGS", inside_script(texts)).replace("MODULE", module())


_PLAYER = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A decoding under the microscope</title>
<style>:root { color-scheme: light dark; } body { margin: 0; }</style></head>
<body><noscript>The microscope needs JavaScript.</noscript><script type="module">
MODULE
const recordings = RECORDINGS;
const asked = new URLSearchParams(location.search);
const name = asked.get("recording") ?? Object.keys(recordings)[0];
if (Object.hasOwn(recordings, name)) {
  const bytes = Uint8Array.from(atob(recordings[name]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const traces = await new Response(stream).json();
  mount(document.body, { traces, live: null, note: "", play: asked.has("play") });
} else {
  document.body.textContent = `There is no recording ${name}; there are `
    + `${Object.keys(recordings).join(", ")}.`;
}
</script></body></html>
"""
