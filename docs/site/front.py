"""The first page of the site: a recorded decoding that plays at once, what a speedup depends on,
and a map of the methods. It needs no Python and no network, and weighs less than 300 kB."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from specwb.drafters.base import Entry
from specwb.engine.methods import METHODS
from specwb.show.course import calibration
from specwb.show.palette import VOCABULARY
from specwb.show.scope.pages import inside_script, section
from specwb.theory.analysis import best_gamma, roofline, speedup

SCRIPT = Path(__file__).with_name("front.js")
RECORDING = Path(__file__).parents[2] / "data/recordings/edit.json"
BALANCE = 989e12 / 3350e9
"""Operations a byte of an H100's data sheet: bf16 without sparsity over the memory's bandwidth."""
PUBLISHED = {
    "eagle": (3.57, 2.03),
    "eagle2": (4.35, 2.19),
    "medusa": (2.32, 1.44),
    "pld": (1.73, 1.64),
}
"""Method -> tokens per step and speedup of Vicuna 7B on an RTX 3090, from Spec-Bench's leaderboard
(2025-04-22): all tasks, greedy, fp16, batch 1."""

GROUPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "You have only the model",
        ("nothing",),
        "Nothing to train, and nothing to load. Prompt lookup pays where the answer repeats the"
        " question: summaries, edits, code. Elsewhere it finds little, and costs almost nothing.",
    ),
    (
        "There is a small model with the same tokens",
        ("a draft model", "a draft model and a decision model", "a deep draft model"),
        "The usual choice for a large model whose family has a small one. It works on any text."
        " A tree of candidates helps where the first guess often fails and scoring is cheap.",
    ),
    (
        "You can train a head on the model, or find one",
        ("trained heads", "a trained head", "a trained adapter"),
        "The shortest draft time and the most accepted tokens, after hours or days of training per"
        " model. The heads of widely used models have been published.",
    ),
    (
        "There is a diffusion model with the same tokens",
        ("a diffusion model",),
        "A whole block in one forward pass of the drafter, so that long drafts cost as much as"
        " short ones.",
    ),
)
"""What one has, the ``needs`` of the methods that make use of it, and when to choose them."""


def machines() -> tuple[dict[str, Any], ...]:
    """The hardware of the page: of each the time of a draft pass over that of the target's (c), and
    how the target's time grows with the number of tokens, in seconds or by what is free."""
    model = calibration()
    measured = {
        "name": "two-core CPU: a 9.3M model, 1.2M draft",
        "about": "Measured: Intel Xeon, 2 threads, specwb's lab model (12 layers of 256).",
        "c": round(model.c, 3),
        "seconds": sorted(model.target.items()),
    }
    sheet = {
        "name": "H100, by its data sheet: 8B model, 1B draft",
        "about": f"A pass takes as long as reading the weights up to {BALANCE:.0f} tokens, and"
        " from there on as long as the arithmetic; c is the ratio of the weights. No device"
        " does quite as well.",
        "c": round(1.24 / 8.03, 3),  # Llama's weights, in billions
        "balance": BALANCE,
    }
    return measured, sheet


def methods() -> str:
    """The map: which methods make use of what one has."""
    parts = []
    listed = {need for _, needs, _ in GROUPS for need in needs}
    rest = tuple({entry.needs: None for entry in METHODS.values() if entry.needs not in listed})
    others = ("You have something else", rest, f"Methods that need {', '.join(rest)}.")
    for title, needs, when in [*GROUPS, others] if rest else GROUPS:
        cards = [
            _method(entry) for key, entry in METHODS.items() if entry.needs in needs and key != "ar"
        ]
        parts.append(
            f"<section><h3>{escape(title)}</h3><p>{escape(when)}</p>"
            f"<div class='cards'>{''.join(cards)}</div></section>"
        )
    return "\n".join(parts)


def _method(entry: Entry) -> str:
    first = " ".join(entry.about.partition("\n\n")[0].replace("``", "").split())
    facts = []
    if entry.needs.startswith("a draft model and"):
        facts.append(f"needs {entry.needs}")
    if entry.key in PUBLISHED:
        tau, speedup = PUBLISHED[entry.key]
        facts.append(f"published: {speedup:.2f}x with {tau:.2f} tokens per step")
    return (
        f"<div><a href='docs/methods.html#{entry.key.replace('_', '-')}'><code>{entry.key}</code>"
        f"</a> <small>{escape(entry.paper)}</small><p>{escape(first)}</p>"
        f"<small>{escape('; '.join(facts))}</small></div>"
    )


def page() -> str:
    """The page as Markdown."""
    trace = json.loads(RECORDING.read_text("utf-8"))
    html = f"""
<div class="front">
<p class="lead">A drafter guesses the next few tokens, the large model checks all of them in one
forward pass, and a rule decides which to keep: the text is what the large model alone would have
written, in fewer passes.</p>
{section(trace, "front", play=True)}
<noscript><img src="_images/step.svg" alt="One step: guesses, one pass over all of them, what is
kept, and one token more"></noscript>
<p class="soft">{escape(_origin(trace))} It pauses when you touch it: arrow keys step,
space plays.</p>
</div>
"""
    chart = f'<div class="front map">{methods()}</div>'
    return "\n".join(
        [
            "---\nhide-toc: true\n---\n",
            "# Speculative decoding, step by step\n",
            raw(html),
            "\n## What the speedup depends on\n",
            "Move the sliders, and find two things. The formulas are those of"
            " [theory, chapter 3](theory/03_speed.md) and of `specwb.theory.analysis`.\n",
            _goals(),
            raw(explorer("mountSpeed", machines())),
            "\n## Which method when\n",
            raw(chart),
            "\nPublished numbers are Spec-Bench's, of Vicuna 7B on an RTX 3090, greedy."
            " All methods with their options: [methods](docs/methods.md); each under the"
            " microscope: [gallery](gallery/index.md).\n",
            "\n## Where to go next\n",
            "- **Learn:** [the course](notebooks/lessons/1_one_speculative_step.ipynb), lessons of"
            " fifty minutes, begins with one speculative step.\n"
            "- **Use:** [the README](README.md) has the two commands, [Python](docs/python.md) and"
            " the [command line](docs/cli.md) the rest.\n"
            "- **Research:** [what the papers claim, and what we measured](ledger.md), and [the"
            " theory](theory/README.md) with its proofs.\n",
        ]
    )


def explorer(mount: str, given: Any) -> str:
    """A part of a page with sliders, computed in the page.

    Args:
        mount: a function of the script, of an element and of what is given.
        given: what can be written as JSON.
    """
    colours = ";".join(f"--{name}:{colour}" for name, colour in VOCABULARY.items())
    return f"""
<div id="{mount}" class="explorer" style="{colours}"></div>
<script type="module">
{SCRIPT.read_text("utf-8")}
{mount}(document.getElementById("{mount}"), {inside_script(given)});
</script>
<noscript>The sliders need JavaScript.</noscript>
"""


def raw(html: str) -> str:
    return f"```{{raw}} html\n{html.strip()}\n```\n"


def _origin(trace: dict[str, Any]) -> str:
    name, sampling = trace["target"]["name"], trace["sampling"]
    return (
        f"A recording: {name}, {trace['method']['spec']}, temperature {sampling['temperature']:g}."
        " The drafter copies what followed the same words earlier in the text, and an answer that"
        " repeats its question is the best case for it."
    )


def _goals() -> str:
    """Two things to find with the sliders, with their answers folded."""
    measured, sheet = machines()
    c, v = measured["c"], calibration().v(4)
    alpha = next(a / 100 for a in range(100) if speedup(a / 100, 4, c, v) >= 2)
    rows = next(
        2**n
        for n in range(9)
        if best_gamma(0.75, sheet["c"], lambda g, n=n: roofline(g, 2**n, BALANCE), 12) == 0
    )
    return (
        "1. On the two-core CPU: from which α on do four draft tokens per step double the speed?\n"
        "2. On the H100, with α = 0.75: with how many texts decoded together does no γ pay any"
        f" more?\n\n<details><summary>Answers</summary>\n\n{alpha:.2f}, and {rows}.\n\n"
        "</details>\n"
    )
