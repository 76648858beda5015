"""docs/step.svg, the picture of README: one decoding step of the lab models, drawn as it happened.

Greedy decoding, since there a draft token is accepted exactly where it is the target's own choice,
which can be shown without a number.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import specwb
from specwb.show.palette import ACCEPTED, TARGET

PROMPT = "It was a good dog that"
MARGIN = 0.05  # between the two best logits, so that every processor decides alike

GREY, BLACK = "#767676", "#222222"
WIDTH, HEIGHT, LEFT, COLUMN, BOX = 760, 384, 310, 104, 92


def decoded() -> tuple[list[str], list[str], int]:
    """The first step after the prompt: its draft tokens, what the target writes after the prompt
    and after each draft token, and how many draft tokens are accepted."""
    target = specwb.load("lab", dtype="float32")
    step = next(specwb.rounds(target, PROMPT, "sps:gamma=4", trace=True))
    best = step.scores.logits[0].topk(2)
    assert (best.values[:, 0] - best.values[:, 1]).min() > MARGIN
    draft = [target.tokenizer.decode([i]) for i in step.draft.tokens[0, 1:].tolist()]
    choices = [target.tokenizer.decode([i]) for i in best.indices[:, 0].tolist()]
    accepted = int(step.verdict.accepted[0])
    assert accepted == 2, "README says of the picture that two of four tokens are accepted"
    return draft, choices, accepted


def words(x: float, y: float, text: str, size: int = 15, **style: str) -> str:
    """A line of text that begins at x; ``anchor="middle"`` centres it there."""
    look = {"fill": BLACK, "anchor": "start", "weight": "normal"} | style
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{look["fill"]}"'
        f' text-anchor="{look["anchor"]}" font-weight="{look["weight"]}">{escape(text)}</text>'
    )


def box(column: int, y: int, token: str, colour: str, mark: str = "", dash: str = "") -> str:
    """A token in its column; ``mark`` stands before it, ``dash`` breaks the frame's line."""
    x = LEFT + column * COLUMN
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="34" rx="5" fill="white" stroke="{colour}"'
        f' stroke-width="2.5" stroke-dasharray="{dash or "none"}"/>'
        + words(
            x + BOX / 2, y + 23, f"{mark} {token.strip()}".strip(), 17, fill=colour, anchor="middle"
        )
    )


def label(y: int, title: str, *lines: str) -> list[str]:
    """What a row of the picture is, at its left."""
    rows = [words(20, y + 13, title, 16, weight="bold")]
    return rows + [words(20, y + 33 + 18 * i, line, 14, fill=GREY) for i, line in enumerate(lines)]


def picture() -> str:
    """The whole picture as SVG."""
    draft, choices, accepted = decoded()
    bonus = choices[accepted]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        ' font-family="Helvetica, Arial, sans-serif" role="img">',
        "<title>One decoding step: draft, score, verify</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="white"/>',
        *label(22, "Text so far"),
        words(LEFT, 39, PROMPT, 17),
        *label(66, "1  Draft", "A small draft model proposes", "tokens, one after another."),
        *(box(i, 72, token, GREY) for i, token in enumerate(draft)),
        *label(
            152,
            "2  Score",
            "The large model, the target, reads",
            "all of them in one pass. It would",
            "have written:",
        ),
        *(box(i, 158, token, BLACK) for i, token in enumerate(choices[:-1])),
        *label(
            248, "3  Verify", "What agrees is accepted, then comes", "a token of the target's own."
        ),
    ]
    for i, token in enumerate(draft):
        if i < accepted:
            parts.append(box(i, 254, token, ACCEPTED, "✓"))
        elif i == accepted:
            parts.append(box(i, 254, bonus, TARGET, "+", "6 3"))
    under = LEFT + accepted * COLUMN / 2 - (COLUMN - BOX) / 2
    parts += [
        words(under, 308, "accepted draft tokens", 14, fill=ACCEPTED, anchor="middle"),
        words(LEFT + accepted * COLUMN, 308, "bonus token", 14, fill=TARGET),
        f'<line x1="20" y1="332" x2="{WIDTH - 20}" y2="332" stroke="{GREY}"/>',
        words(20, 360, f"{accepted + 1} tokens in one pass.", 16, weight="bold"),
        words(LEFT, 360, f"Plain decoding writes the same text in {accepted + 1} passes.", 16),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("step.svg")
    place.write_text(picture(), encoding="utf-8")
    print(place)
