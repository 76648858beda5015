"""The pictures of the lessons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from scripts.drawings.drawing import INK, WIDTH, Drawing, bars
from specwb.show.course import calibration
from specwb.theory import exact

SIGNS = {"accepted": "✓ ", "rejected": "✗ ", "target": "◆ ", "draft": "", "other": ""}


def chain_and_tree() -> Drawing:
    """Six draft tokens as a chain and as a tree, where the target refuses the second of a path."""
    desc = (
        "As a chain one is accepted and five are lost behind a rejection; as a tree three are"
        " accepted, because the rejected token has a sibling"
    )
    drawing = Drawing(WIDTH, 316, "Six draft tokens, twice", desc)
    step, width, high = 101, 84, 30

    def put(column: float, row: float, words: str, look: str, parent: tuple[float, float]) -> None:
        x, y = 4 + column * step, 34 + row * 42
        before = 4 + parent[0] * step + width, 34 + parent[1] * 42 + high / 2
        how = {"hollow": look == "other", "dashed": look == "target"}
        drawing.line(*before, x, y + high / 2, dashed=how["dashed"])
        drawing.box(x, y, width, high, SIGNS[look] + words, colour=look, **how)

    for row, title in ((0, "a chain: 1 accepted + ◆"), (3, "a tree: 3 accepted + ◆")):
        drawing.text(4, 20 + row * 42, title, bold=True)
        drawing.box(4, 34 + row * 42, width, high, "The", colour="other")
    put(1, 0, "old", "accepted", (0, 0))
    for column, words in enumerate(("house", "was", "empty", "and", "cold"), 2):
        put(column, 0, words, "rejected" if column == 2 else "other", (column - 1, 0))
    put(2, 1, "man", "target", (1, 0))
    put(1, 3.5, "old", "accepted", (0, 3))
    put(1, 5, "young", "other", (0, 3))
    put(2, 3, "house", "rejected", (1, 3.5))
    put(2, 4, "man", "accepted", (1, 3.5))
    put(3, 3, "was", "other", (2, 3))
    put(3, 4, "sat", "accepted", (2, 4))
    put(4, 4, "down", "target", (3, 4))
    key = "✓ accepted   ✗ rejected   hollow: scored in vain   ◆ bonus token of the target"
    drawing.text(4, 304, key, size=12)
    return drawing


def five_drafters() -> Drawing:
    """Where five kinds of drafter look, and what each has seen when it drafts a token."""
    desc = (
        "Copying reads the text; a draft model writes token by token; Medusa's heads all read the"
        " target's last hidden state; EAGLE's head also reads the token before; a block drafter"
        " fills all places at once"
    )
    drawing = Drawing(WIDTH, 430, "Five ways to draft", desc)
    panels = (
        ("copy", "sees the text and nothing else"),
        ("draft model", "t3 is drafted after t1 and t2"),
        ("Medusa", "t3 is drafted without seeing t2"),
        ("EAGLE", "t3 is drafted after seeing t2"),
        ("block (Falcon, diffusion)", "t2 is drafted without seeing t1"),
    )
    for i, (title, below) in enumerate(panels):
        x, y = 4 + 240 * (i % 3), 8 + 212 * (i // 3)
        drawing.box(x, y, 228, 196, colour="other", hollow=True)
        drawing.text(x + 10, y + 20, title, bold=True)
        drawing.text(x + 10, y + 186, below, size=12)
        (_copy, _model, _medusa, _eagle, _block)[i](drawing, x + 10, y + 30)
    x, y = 4 + 240 * 2, 8 + 212
    for j, (colour, words) in enumerate(
        (("target", "target, its token"), ("draft", "drafter, its tokens"))
    ):
        drawing.box(x, y + 30 + 40 * j, 40, 26, colour=colour)
        drawing.text(x + 50, y + 48 + 40 * j, words, size=13)
    drawing.box(x, y + 110, 40, 26, "text", colour="other", size=12)
    drawing.text(x + 50, y + 128, "what is written already", size=13)
    drawing.text(x, y + 166, "f: the target's last", size=13)
    drawing.text(x, y + 183, "hidden state", size=13)
    return drawing


def _token(drawing: Drawing, x: float, y: float, words: str, colour: str = "draft") -> None:
    drawing.box(x, y, 36, 26, words, colour=colour, size=13)


def _copy(drawing: Drawing, x: float, y: float) -> None:
    for i, word in enumerate(("a", "b", "c", "d", "a")):
        _token(drawing, x + 42 * i, y + 84, word, "other")
    for i, word in enumerate(("b", "c")):
        _token(drawing, x + 42 * (3 + i), y + 14, word)
        drawing.arrow(x + 42 * (1 + i) + 18, y + 82, x + 42 * (3 + i) + 14, y + 43)
    drawing.line(x, y + 114, x + 36, y + 114, colour=INK, thick=3)
    drawing.line(x + 168, y + 114, x + 204, y + 114, colour=INK, thick=3)
    drawing.text(x + 102, y + 130, "the same token", size=12, anchor="middle")


def _model(drawing: Drawing, x: float, y: float) -> None:
    drawing.box(x + 20, y + 62, 188, 30, "small model, 3 forwards", colour="draft", size=13)
    _token(drawing, x - 4, y + 104, "text", "other")
    drawing.arrow(x + 34, y + 112, x + 46, y + 95)
    for i in range(3):
        left = x + 46 + 58 * i
        _token(drawing, left, y + 14, f"t{i + 1}")
        drawing.arrow(left + 12, y + 60, left + 12, y + 42)
        if i < 2:
            drawing.arrow(left + 38, y + 40, left + 58, y + 60)


def _target(drawing: Drawing, x: float, y: float) -> None:
    drawing.box(x, y + 78, 62, 52, "target", colour="target", size=13)
    drawing.arrow(x + 14, y + 76, x + 14, y + 42)
    _token(drawing, x - 4, y + 14, "t1", "target")


def _medusa(drawing: Drawing, x: float, y: float) -> None:
    _target(drawing, x, y)
    drawing.text(x + 66, y + 126, "f", bold=True)
    for i in range(3):
        left = x + 84 + 44 * i
        drawing.box(left, y + 62, 38, 24, "head", colour="draft", size=12)
        drawing.line(x + 62, y + 112, left + 19, y + 112)
        drawing.arrow(left + 19, y + 112, left + 19, y + 89)
        drawing.arrow(left + 19, y + 60, left + 19, y + 42)
        _token(drawing, left + 1, y + 14, f"t{i + 2}")


def _eagle(drawing: Drawing, x: float, y: float) -> None:
    _target(drawing, x, y)
    drawing.text(x + 66, y + 126, "f", bold=True)
    drawing.box(x + 92, y + 66, 116, 28, "one head, again", colour="draft", size=12)
    drawing.line(x + 62, y + 112, x + 106, y + 112)
    drawing.arrow(x + 106, y + 112, x + 106, y + 97)
    drawing.arrow(x + 34, y + 40, x + 94, y + 65)  # it sees the token that was drawn
    for i in range(2):
        left = x + 106 + 56 * i
        _token(drawing, left, y + 14, f"t{i + 2}")
        drawing.arrow(left + 18, y + 64, left + 18, y + 42)
        if i < 1:
            drawing.arrow(left + 36, y + 38, left + 58, y + 64)


def _block(drawing: Drawing, x: float, y: float) -> None:
    drawing.box(x, y + 58, 208, 30, "one forward", colour="draft", size=13)
    _token(drawing, x, y + 100, "text", "other")
    for i in range(3):
        left = x + 50 + 54 * i
        drawing.box(left, y + 100, 40, 26, "mask", colour="other", hollow=True, size=12)
        drawing.arrow(left + 20, y + 98, left + 20, y + 90)
        drawing.arrow(left + 20, y + 56, left + 20, y + 42)
        _token(drawing, left + 2, y + 14, f"t{i + 1}")
    drawing.arrow(x + 18, y + 98, x + 18, y + 90)


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
        drawing.bar(*stretch, "other", "dots")
        for i, (time, own) in enumerate(zip(runs[name], is_plain, strict=True)):
            tall = high * time / load
            look = ("target", "") if own else ("draft", "stripes")
            drawing.bar(left + i * step + 2, base - tall, step - 8, tall, *look)
        drawing.line(left, base, end, base).text(end + 16, base - 34, said[name], bold=True)
        drawing.text(end + 16, base - 12, f"the truth: {speedup:.2f}x")
    for x, look, words in (
        (left, ("target", ""), "plain decoding"),
        (left + 130, ("draft", "stripes"), "the method"),
        (left + 250, ("other", "dots"), "another program runs"),
    ):
        drawing.bar(x, 281, 13, 11, *look).text(x + 18, 291, words, size=12)
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


def two_candidates() -> Drawing:
    """What each candidate of a place is tested against."""
    desc = "Each rejection leaves a residual, which is what the next candidate is tested against."
    drawing = Drawing(WIDTH, 108, "Two candidates for one place", desc)
    boxes = (
        ("candidate 1", "drawn from q,", "tested against p", "draft"),
        ("candidate 2", "drawn from q, tested", "against the residual", "draft"),
        ("bonus token", "drawn from what is", "then left", "target"),
    )
    for i, (words, first, second, colour) in enumerate(boxes):
        x = 4 + 248 * i
        drawing.box(x, 6, 214, 52, words, colour=colour, size=15)
        drawing.text(x + 107, 77, first, size=13, anchor="middle")
        drawing.text(x + 107, 94, second, size=13, anchor="middle")
        if i:
            drawing.arrow(x - 30, 32, x - 4, 32)
    return drawing


def cities() -> Drawing:
    """The two next words of lesson 9's target, with their probabilities."""
    desc = "New York half of the time, Los Angeles and San Francisco a quarter of the time each."
    drawing = Drawing(WIDTH, 140, "What the target writes", desc)
    drawing.box(4, 50, 118, 32, "She lives in", colour="other")
    words = (("New", "York", "1/2"), ("Los", "Angeles", "1/4"), ("San", "Francisco", "1/4"))
    for i, (first, second, share) in enumerate(words):
        y = 6 + 44 * i
        drawing.line(122, 66, 241, y + 16).text(235, y + 11, share, size=12, anchor="end")
        drawing.box(241, y, 118, 32, first, colour="target")
        drawing.line(359, y + 16, 478, y + 16).text(472, y + 11, "1", size=12, anchor="end")
        drawing.box(478, y, 118, 32, second, colour="target")
    return drawing


def _pair(weights: list[int], other: list[int], title: str, desc: str) -> Drawing:
    names = [f"token {x}" for x in range(len(weights))]
    return bars(exact.norm(weights), exact.norm(other), names, title, desc)


def after_one_rejection() -> Drawing:
    """What is left of lesson 3's p when one candidate was rejected, and q."""
    p, q = exact.norm([5, 3, 2, 0]), exact.norm([1, 2, 3, 4])
    left = exact.norm(exact.minus(p, q))
    desc = "What is left of p and q share less."
    names = [f"token {x}" for x in range(4)]
    return bars(left, q, names, "After one rejection", desc, target="left")


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "four_tokens": four_tokens,
    "two_distributions": partial(
        _pair,
        [5, 3, 2],
        [2, 3, 5],
        "Two distributions over three tokens",
        "The target p prefers token 0, the draft q token 2; they share 7/10.",
    ),
    "two_candidates": two_candidates,
    "bad_draft": partial(
        _pair,
        [5, 3, 2, 0],
        [1, 2, 3, 4],
        "A bad draft",
        "They share a half; token 3 has no probability under p.",
    ),
    "after_one_rejection": after_one_rejection,
    "chain_and_tree": chain_and_tree,
    "five_drafters": five_drafters,
    "two_orders": two_orders,
    "cities": cities,
}
"""Name of a picture -> what draws it."""
