"""The pictures of the lessons that show numbers; all others are SVG files and no more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from scripts.drawings.drawing import WIDTH, Drawing, bars
from specwb.show.course import calibration
from specwb.theory import exact


def two_orders(speedup: float = 1.3, load: float = 1.6) -> Drawing:
    """Nine runs of plain decoding and nine of a method while another program runs for a while:
    one after the other, and in turn; and the speedup that each order yields.

    Args:
        speedup: the true one.
        load: how many times longer a run takes in the stretch.
    """
    count, first, last = 9, 2, 8  # the stretch is from run `first` to before run `last`
    slow = [load if first <= i < last else 1.0 for i in range(2 * count)]
    orders = {
        "one after the other": [i < count for i in range(2 * count)],
        "in turn": [i % 2 == 0 for i in range(2 * count)],
    }
    said, runs = {}, {}
    for name, is_plain in orders.items():
        runs[name] = [s / (1 if own else speedup) for s, own in zip(slow, is_plain, strict=True)]
        plain, method = (
            [s for s, own in zip(runs[name], is_plain, strict=True) if own == wanted]
            for wanted in (True, False)
        )
        pairs = median(a / b for a, b in zip(plain, method, strict=True))
        means = median(plain) / median(method)
        paired = name == "in turn"
        ratio = f"median of ratios: {pairs:.2f}x" if paired else f"ratio of medians: {means:.2f}x"
        said[name] = ratio
    one, other = said.values()
    desc = (
        f"A true speedup of {speedup:g} on a machine that is busy for a while. One after the other,"
        f" {one}; in turn, {other}"
    )
    drawing = Drawing(WIDTH, 296, "Two orders of the same runs", desc)
    left, step, high = 4, 27, 62
    for row, (name, is_plain) in enumerate(orders.items()):
        top = 12 + 142 * row
        base, end = top + 26 + high + 14, left + 2 * count * step
        drawing.text(left, top + 12, name, bold=True)
        stretch = left + first * step - 2, top + 20, (last - first) * step, base - top - 20
        drawing.bar(*stretch, "other")
        for i, (time, own) in enumerate(zip(runs[name], is_plain, strict=True)):
            tall = high * time / load
            colour = "target" if own else "draft"
            drawing.bar(left + i * step + 2, base - tall, step - 8, tall, colour)
        drawing.line(left, base, end, base).text(end + 16, base - 34, said[name], bold=True)
        drawing.text(end + 16, base - 12, f"the truth: {speedup:.2f}x")
    for x, colour, words in (
        (left, "target", "plain decoding"),
        (left + 130, "draft", "the method"),
        (left + 250, "other", "another program runs"),
    ):
        drawing.bar(x, 281, 13, 11, colour).text(x + 18, 291, words, size=12)
    return drawing


def four_tokens() -> Drawing:
    """Four tokens by plain decoding, and one decoding step with three guesses, to scale."""
    model = calibration()  # seconds by number of tokens, measured on two idle CPU cores
    check = model.target[1] * model.v(3)  # one forward pass over four tokens
    desc = (
        "Plain decoding is four passes of the target; a step is three small guesses and one check."
    )
    drawing = Drawing(WIDTH, 134, "Four tokens, and one speculative step", desc)
    plain = [(model.target[1], f"target: token {i}", "target") for i in range(1, 5)]
    step = [(model.draft[1], "", "draft")] * 3 + [(check, "target checks", "target")]
    left, scale = 132, (WIDTH - 140) / sum(seconds for seconds, _, _ in plain)
    for y, name, passes in ((6, "plain", plain), (56, "speculative", step)):
        x = float(left)
        drawing.text(left - 10, y + 24, name, anchor="end", bold=True)
        for seconds, words, colour in passes:
            drawing.box(x + 1, y, seconds * scale - 2, 38, words, colour=colour, size=13)
            x += seconds * scale
    drawing.arrow(left, 108, WIDTH - 4, 108)
    return drawing.text(WIDTH - 6, 126, "time, to scale", size=12, anchor="end")


def distributions(p: list[int], q: list[int], title: str, desc: str, target: str = "p") -> Drawing:
    """Two distributions over tokens, in proportion to ``p`` and ``q``."""
    names = [f"token {x}" for x in range(len(p))]
    return bars(exact.norm(p), exact.norm(q), names, title, desc, target=target)


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "four_tokens": four_tokens,
    "two_distributions": partial(
        distributions,
        [5, 3, 2],
        [2, 3, 5],
        "Two distributions over three tokens",
        "The target p prefers token 0, the draft q token 2; they share 7/10.",
    ),
    "bad_draft": partial(
        distributions,
        [5, 3, 2, 0],
        [1, 2, 3, 4],
        "A bad draft",
        "They share a half; token 3 has no probability under p.",
    ),
    "after_one_rejection": partial(
        distributions,
        [4, 1, 0, 0],  # (p - q)+ of the bad draft
        [1, 2, 3, 4],
        "After one rejection",
        "What is left of p and q share less.",
        "left",
    ),
    "two_orders": two_orders,
}
"""Name of a picture -> what draws it."""
