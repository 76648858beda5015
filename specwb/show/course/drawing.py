"""Small drawings from data: boxes, arrows, bars, lanes of time, trees.

A drawing is one SVG in the colours of :mod:`specwb.show.palette`. It is seen on white and on black,
since a notebook shows it as an image that cannot ask which theme the page has; and it has a title
and a description, which a screen reader reads, a terminal prints and the notebook tests compare.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from typing import Any, Self

from specwb.core.files import stored_png
from specwb.show.palette import TARGET, VOCABULARY

INK = "#767676"  # words outside of boxes: its contrast with white and with black is alike
DARK = "#141414"  # words on any of the palette's colours but the target's
WIDTH = 720  # pixels; a narrower cell shrinks it
_NUMBERS = count()  # of drawings: two in one page share no ids


def _role(colour: str) -> str:
    """A colour, or that of a name of the palette."""
    return VOCABULARY.get(colour, colour)


class Drawing:
    """A drawing to which things are added from left to right, top to bottom.

    Positions and sizes are pixels, y downwards; a colour is a name of the palette (``target``,
    ``draft``, ``accepted``, ``rejected``, ``residual``, ``other``) or ``#rrggbb``. Every method
    returns the drawing.

    Args:
        width, height: of the whole.
        title: what it is of, in a few words.
        desc: what is seen, in a sentence: the same in every run.
    """

    def __init__(self, width: float, height: float, title: str, desc: str) -> None:
        self.width, self.height, self.title, self.desc = width, height, title, desc
        self._parts: list[str] = []
        self._id = f"d{next(_NUMBERS)}"

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = INK,
        size: float = 14,
        anchor: str = "start",
        bold: bool = False,
    ) -> Self:
        """Write one line, whose baseline is at y."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{_role(colour)}"'
            f' text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )
        return self

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        colour: str = "other",
        hollow: bool = False,
        dashed: bool = False,
        size: float = 14,
    ) -> Self:
        """Draw a box with words in its middle, as small as they need be to fit."""
        fill = _role(colour)
        look = 'fill="none"' if hollow else f'fill="{fill}"'
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" {look}'
            f' stroke="{fill}" stroke-width="2"{dash}/>'
        )
        lines = words.split("\n") if words else []
        ink = INK if hollow else "#FFFFFF" if fill == TARGET else DARK
        longest = max(map(len, lines), default=1) or 1
        size = min(size, (width - 6) / (0.58 * longest))
        for i, line in enumerate(lines):
            middle = y + height / 2 + (i - (len(lines) - 1) / 2) * size * 1.25 + size * 0.35
            self.text(x + width / 2, middle, line, colour=ink, size=size, anchor="middle")
        return self

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        colour: str = INK,
        dashed: bool = False,
        thick: float = 1.5,
    ) -> Self:
        """Draw a straight line."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{_role(colour)}"'
            f' stroke-width="{thick:g}"{dash}/>'
        )
        return self

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        words: str = "",
        *,
        colour: str = INK,
        dashed: bool = False,
    ) -> Self:
        """Draw an arrow, with words above its middle."""
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        self.line(x1, y1, x2 - 5 * dx, y2 - 5 * dy, colour=colour, dashed=dashed)
        points = [(x2, y2)]
        points += [(x2 - 9 * dx + s * 4 * dy, y2 - 9 * dy - s * 4 * dx) for s in (1, -1)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{corners}" fill="{_role(colour)}"/>')
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 7, words, size=12, anchor="middle")
        return self

    def bar(
        self, x: float, y: float, width: float, height: float, colour: str, pattern: str = ""
    ) -> Self:
        """Draw a filled area: ``pattern`` is nothing, ``stripes`` or ``dots``, told apart without
        colour."""
        fill = _role(colour)
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{max(height, 0):g}"'
        opaque = ' fill-opacity="0.35"' if pattern else ""
        self._parts.append(f'<rect {place} fill="{fill}"{opaque} stroke="{fill}"/>')
        if pattern:
            name = f"{self._id}-{pattern}-{fill[1:]}"
            mark = (
                f'<path d="M0,7 L7,0" stroke="{fill}" stroke-width="2"/>'
                if pattern == "stripes"
                else f'<circle cx="3.5" cy="3.5" r="1.6" fill="{fill}"/>'
            )
            tile = f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse">'
            self._parts.append(f'{tile}{mark}</pattern><rect {place} fill="url(#{name})"/>')
        return self

    @property
    def svg(self) -> str:
        """The whole as SVG."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{self.width:g}"'
            f' height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' style="width:100%;max-width:{self.width:g}px;height:auto"'
            ' font-family="system-ui, sans-serif"'
            f' aria-labelledby="{self._id}-t {self._id}-d">'
            f'<title id="{self._id}-t">{escape(self.title)}</title>'
            f'<desc id="{self._id}-d">{escape(self.desc)}</desc>' + "".join(self._parts) + "</svg>"
        )

    def __repr__(self) -> str:
        return f"{self.title}: {self.desc}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"image/svg+xml": self.svg, "text/plain": repr(self)}
        if os.environ.get(
            "SPECWB_STILLS"
        ):  # of specwb.show.widgets.display, which needs more packages
            bundle["application/vnd.specwb.still+json"] = [{"html": self.svg}]
        elif png := stored_png(repr(self)):
            bundle["image/png"] = png
        return bundle


def flow(
    steps: Sequence[tuple[str, str, str]], title: str, desc: str, *, back: str = ""
) -> Drawing:
    """Boxes from left to right with arrows between them.

    Args:
        steps: (what stands in the box, what stands below it, colour), lines by ``\\n``.
        back: what is said at an arrow from the last box to the first one; empty: there is none.
    """
    lines = max(below.count("\n") + 1 for _, below, _ in steps)
    height = 74 + 17 * lines + (34 if back else 0)
    drawing = Drawing(WIDTH, height, title, desc)
    gap = 34
    width = (WIDTH - 8 - gap * (len(steps) - 1)) / len(steps)
    for i, (words, below, colour) in enumerate(steps):
        x = 4 + i * (width + gap)
        drawing.box(x, 6, width, 52, words, colour=colour, size=15)
        for j, line in enumerate(below.split("\n")):
            size = min(13, width / (0.5 * max(len(line), 1)))
            drawing.text(x + width / 2, 77 + 17 * j, line, size=size, anchor="middle")
        if i:
            drawing.arrow(x - gap + 4, 32, x - 4, 32)
    if back:
        first, last, low = 4 + width / 2, WIDTH - 4 - width / 2, height - 12
        drawing.line(last, low - 16, last, low).line(last, low, first, low)
        drawing.arrow(first, low, first, low - 18)
        drawing.text((first + last) / 2, low - 6, back, size=13, anchor="middle")
    return drawing


def lanes(
    rows: Mapping[str, Sequence[tuple[float, str, str]]], title: str, desc: str, *, unit: str = ""
) -> Drawing:
    """What takes how long: a lane for every row, a box for every piece, drawn to scale.

    Args:
        rows: name -> pieces (length, words, colour), one after the other.
        unit: what the axis counts.
    """
    whole = max(sum(length for length, _, _ in pieces) for pieces in rows.values())
    left, scale = 132, (WIDTH - 132 - 8) / whole
    drawing = Drawing(WIDTH, 50 * len(rows) + (34 if unit else 6), title, desc)
    for i, (name, pieces) in enumerate(rows.items()):
        x = float(left)
        drawing.text(left - 10, 30 + 50 * i, name, anchor="end", bold=True)
        for length, words, colour in pieces:
            drawing.box(x + 1, 6 + 50 * i, length * scale - 2, 38, words, colour=colour, size=13)
            x += length * scale
    if unit:
        low = 50 * len(rows) + 8
        drawing.arrow(left, low, WIDTH - 4, low)
        drawing.text(WIDTH - 6, low + 18, unit, size=12, anchor="end")
    return drawing


def bars(
    p: Sequence[Any],
    q: Sequence[Any],
    labels: Sequence[str],
    title: str,
    desc: str,
    *,
    target: str = "p",
) -> Drawing:
    """Two distributions in one column a token: what they share, what only q has, what only p has.

    The shared part, min(p, q), is what is accepted; q's surplus is rejected; p's surplus is the
    residual, which has the same area. A blue line is p, a dashed orange one q.

    Args:
        target: what stands at the blue line where it is not p itself, such as what is left of it.
    """
    ps, qs = [float(x) for x in p], [float(x) for x in q]
    most, high, left = max(ps + qs), 150, 52
    drawing = Drawing(WIDTH, high + 86, title, desc)
    key = (
        (f"accepted: min({target}, q)", "accepted", ""),
        (f"rejected: q above {target}", "rejected", "dots"),
        (f"residual: {target} above q", "residual", "stripes"),
    )
    for i, (words, colour, pattern) in enumerate(key):
        drawing.bar(left + 168 * i, 4, 15, 13, colour, pattern)
        drawing.text(left + 168 * i + 21, 16, words, size=13)
    drawing.line(left + 506, 10, left + 530, 10, colour="target", thick=4)
    drawing.text(left + 536, 15, target)
    drawing.line(left + 566, 10, left + 590, 10, colour="draft", thick=4, dashed=True)
    drawing.text(left + 596, 15, "q")
    base, step = high + 52, (WIDTH - left - 20) / len(ps)
    width = min(step * 0.6, 96)
    drawing.line(left - 6, base, WIDTH - 10, base)
    drawing.text(0, base - high - 13, "probability", size=12)
    for share in (0, most / 2, most):
        y = base - share / most * high
        drawing.line(left - 10, y, left - 6, y)
        drawing.text(left - 14, y + 4, f"{share:.2g}", size=12, anchor="end")
    for i, (a, b) in enumerate(zip(ps, qs, strict=True)):
        x = left + step * (i + 0.5) - width / 2
        low, tall = min(a, b) / most * high, max(a, b) / most * high
        drawing.bar(x, base - low, width, low, "accepted")
        if a != b:
            over = ("residual", "stripes") if a > b else ("rejected", "dots")
            drawing.bar(x, base - tall, width, tall - low, *over)
        for value, colour, dashed in ((a, "target", False), (b, "draft", True)):
            y = base - value / most * high
            drawing.line(x - 8, y, x + width + 8, y, colour=colour, dashed=dashed, thick=4)
        drawing.text(x + width / 2, base + 20, str(labels[i]), anchor="middle")
    return drawing


def chain(
    guesses: Sequence[str],
    choices: Sequence[str],
    title: str,
    desc: str,
    *,
    accepted: int | None = None,
) -> Drawing:
    """One greedy decoding step: the draft's guesses, and below what the target would write there.

    Args:
        guesses: gamma draft tokens.
        choices: gamma + 1 tokens: the target's choice after the text and after every guess.
        accepted: how many guesses stay; they and the bonus token are marked. Default: no marks.
    """
    drawing = Drawing(WIDTH, 104, title, desc)
    step = (WIDTH - 128) / len(choices)
    drawing.text(118, 32, "draft", anchor="end", bold=True)
    drawing.text(118, 80, "target", anchor="end", bold=True)
    for i, words in enumerate(guesses):
        stays = accepted is None or i < accepted
        colour = "draft" if accepted is None else "accepted" if stays else "rejected"
        mark = "" if accepted is None else "✓ " if stays else "✗ "
        drawing.box(128 + i * step, 6, step - 12, 38, mark + words, colour=colour, dashed=not stays)
    for i, words in enumerate(choices):
        mark = "+ " if i == accepted else ""
        how = {"hollow": accepted not in (None, i), "dashed": accepted is not None and i > accepted}
        drawing.box(128 + i * step, 54, step - 12, 38, mark + words, colour="target", **how)
    return drawing


def tree(
    parents: Sequence[int],
    labels: Sequence[str],
    title: str,
    desc: str,
    *,
    colours: Sequence[str] | None = None,
    notes: Sequence[str] | None = None,
) -> Drawing:
    """A draft tree from left to right: node 0 is the root, the token that is known.

    Args:
        parents: of every node, -1 for the root; a parent comes before its children.
        labels: what stands in the boxes.
        colours: of the boxes; default: the root grey, the others the draft's.
        notes: what stands above the line to a node, such as its probability.
    """
    n = len(parents)
    depth, children = [0] * n, [[j for j in range(n) if parents[j] == i] for i in range(n)]
    for i in range(1, n):
        depth[i] = depth[parents[i]] + 1
    row, rows = [0.0] * n, 0

    def place(i: int) -> None:
        nonlocal rows
        if not children[i]:
            row[i], rows = float(rows), rows + 1
        for j in children[i]:
            place(j)
        if children[i]:
            row[i] = (row[children[i][0]] + row[children[i][-1]]) / 2

    place(0)
    colours = colours or ["other"] + ["draft"] * (n - 1)
    step = (WIDTH - 8) / (max(depth) + 1)
    width = min(step - 44, 118)
    drawing = Drawing(WIDTH, 44 * rows + 8, title, desc)
    for i in range(n):
        x, y = 4 + depth[i] * step, 6 + 44 * row[i]
        if i:
            begin = 4 + depth[parents[i]] * step + width, 22 + 44 * row[parents[i]]
            drawing.line(*begin, x, y + 16)
            if notes and notes[i]:
                drawing.text(x - 6, y + 11, notes[i], size=12, anchor="end")
        drawing.box(x, y, width, 32, labels[i], colour=colours[i])
    return drawing
