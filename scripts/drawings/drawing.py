"""Drawings of boxes, arrows and bars as SVG, in the colours of :mod:`specwb.show.palette`.

They are seen on white and on black, since a page shows them as images that cannot ask which theme
it has; and they have a title and a description, which a screen reader reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Self

from specwb.show.palette import TARGET, VOCABULARY

INK = "#767676"  # words outside of boxes: its contrast with white and with black is alike
DARK = "#141414"  # words on any of the palette's colours but the target's
WIDTH = 720  # pixels; a narrower cell shrinks it
PATTERNS = {
    "draft": "M0,3.5 H7",
    "residual": "M0,7 L7,0",
    "rejected": "M3,3.5 h1",
    "other": "M3.5,0 V7",
}
"""Colour -> the line of its pattern in areas: those of the microscope and of figures."""


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
        desc: what is seen, in a sentence.
    """

    def __init__(self, width: float, height: float, title: str, desc: str) -> None:
        self.width, self.height, self.title, self.desc = width, height, title, desc
        self._parts: list[str] = []

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
        size: float = 14,
    ) -> Self:
        """Draw a box with words in its middle, as small as they need be to fit."""
        fill = _role(colour)
        look = 'fill="none"' if hollow else f'fill="{fill}"'
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" {look}'
            f' stroke="{fill}" stroke-width="2"/>'
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

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> Self:
        """Draw an arrow."""
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        self.line(x1, y1, x2 - 5 * dx, y2 - 5 * dy)
        points = [(x2, y2)]
        points += [(x2 - 9 * dx + s * 4 * dy, y2 - 9 * dy - s * 4 * dx) for s in (1, -1)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{corners}" fill="{INK}"/>')
        return self

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> Self:
        """Draw a filled area, with the colour's pattern, which tells it apart without colour."""
        fill, mark = _role(colour), PATTERNS.get(colour, "")
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{max(height, 0):g}"'
        opaque = ' fill-opacity="0.35"' if mark else ""
        self._parts.append(f'<rect {place} fill="{fill}"{opaque} stroke="{fill}"/>')
        if mark:
            tile = f'<pattern id="{colour}" width="7" height="7" patternUnits="userSpaceOnUse">'
            path = f'<path d="{mark}" stroke="{fill}" stroke-width="2" stroke-linecap="round"/>'
            self._parts.append(f'{tile}{path}</pattern><rect {place} fill="url(#{colour})"/>')
        return self

    @property
    def svg(self) -> str:
        """The whole as SVG, a part on each line."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        begin = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}'
            f' viewBox="0 0 {self.width:g} {self.height:g}" font-family="system-ui, sans-serif"'
            ' aria-labelledby="title desc">'
        )
        names = f'<title id="title">{escape(self.title)}</title>'
        names += f'<desc id="desc">{escape(self.desc)}</desc>'
        return "\n".join([begin, names, *self._parts, "</svg>"]) + "\n"


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
        (f"accepted: min({target}, q)", "accepted"),
        (f"rejected: q above {target}", "rejected"),
        (f"residual: {target} above q", "residual"),
    )
    for i, (words, colour) in enumerate(key):
        drawing.bar(left + 168 * i, 4, 15, 13, colour)
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
            over = "residual" if a > b else "rejected"
            drawing.bar(x, base - tall, width, tall - low, over)
        for value, colour, dashed in ((a, "target", False), (b, "draft", True)):
            y = base - value / most * high
            drawing.line(x - 8, y, x + width + 8, y, colour=colour, dashed=dashed, thick=4)
        drawing.text(x + width / 2, base + 20, str(labels[i]), anchor="middle")
    return drawing
