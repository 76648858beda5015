"""The first page of the site: a recorded decoding that plays at once, what a speedup depends on,
and a map of the methods. It needs no Python and no network, and is smaller than 1.5 MB."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from specwb.cost import Setting, card, ledger, seconds, shape, step
from specwb.cost.cards import SIZES
from specwb.cost.shapes import tables
from specwb.course import calibration, recording, stored
from specwb.course.measure import origin
from specwb.drafters.base import Entry
from specwb.methods import METHODS
from specwb.palette import VOCABULARY
from specwb.scope.pages import inside_script, section

SCRIPT = Path(__file__).with_name("front.js")
PAIRS = (("8b", "1b"), ("7b", "68m"))
"""Target and draft of a preset, names of data/predict/shapes.toml."""
CARDS = {"3090": "RTX 3090", "h100": "H100"}
CONTEXT = 512

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


def machines() -> list[dict[str, Any]]:
    """The hardware of the page: of each the time of a draft pass over that of the target's (c), and
    how the target's time grows with the number of tokens."""
    model, measured = calibration(), stored("tune-lab-cpu")
    arguments = measured["arguments"]
    found: list[dict[str, Any]] = [
        {
            "name": "two-core CPU: a 9.3M model, 1.2M draft",
            "about": f"Measured: {origin(measured)}, {arguments['target']}.",
            "c": round(model.c, 3),
            "seconds": sorted(model.target.items()),
        }
    ]
    setting = Setting(1, CONTEXT, SIZES["bf16"])
    for name, title in CARDS.items():
        machine = card(name).typical("bf16")
        for target, draft in PAIRS:
            plain, *drafting = (
                float(seconds(step(spec, shape(target), own, setting, sampled=True), machine))
                for spec, own in (
                    ("ar", None),
                    ("sps:gamma=4", shape(draft)),
                    ("sps:gamma=5", shape(draft)),
                )
            )
            found.append(
                {
                    "name": f"{title}: a {target.upper()} model, {draft.upper()} draft",
                    "about": "Predicted from the machine card and the models' shapes (specwb"
                    f" predict): texts of {CONTEXT} tokens, bf16. Not measured.",
                    "c": round((drafting[1] - drafting[0]) / plain, 3),
                    "balance": machine.peak / machine.bandwidth,
                }
            )
    return found


def needed() -> dict[str, float]:
    """Method -> tokens per step from which on it is faster than plain decoding on an H100."""
    found: dict[str, float] = {}
    for machine, spec, told in ledger.pending():
        if machine == "h100":
            found.setdefault(spec.partition(":")[0], told.needed)
    return found


def published() -> dict[str, dict[str, Any]]:
    """Method -> its row of Spec-Bench on an RTX 3090."""
    rows = tables("published")["spec_bench"]["rows"]
    return {row["method"].partition(":")[0]: row for row in rows if row["card"] == "3090"}


def methods() -> str:
    """The map: which methods make use of what one has."""
    parts = []
    wanted, shown = needed(), published()
    listed = {need for _, needs, _ in GROUPS for need in needs}
    if missing := sorted({entry.needs for entry in METHODS.values()} - listed):
        raise ValueError(f"docs/site/front.py, GROUPS: nobody has {missing[0]!r}")
    for title, needs, when in GROUPS:
        cards = [
            _method(entry, wanted.get(key), shown.get(key))
            for key, entry in METHODS.items()
            if entry.needs in needs and key != "ar"
        ]
        parts.append(
            f"<section><h3>{escape(title)}</h3><p>{escape(when)}</p>"
            f"<div class='cards'>{''.join(cards)}</div></section>"
        )
    return "\n".join(parts)


def _method(entry: Entry, needed: float | None, row: dict[str, Any] | None) -> str:
    about = " ".join(entry.about.replace("``", "").split())
    first = re.sub(r"(\.) [A-Z].*", r"\1", about)
    facts = []
    if entry.needs.startswith("a draft model and"):
        facts.append(f"needs {entry.needs}")
    if needed is not None:
        facts.append(f"faster from {needed:.2f} tokens per step on (H100, predicted)")
    if row is not None:
        facts.append(f"published: {row['speedup']:.2f}x with {row['tau']:.2f} tokens per step")
    return (
        f"<div><a href='docs/methods.html#{entry.key.replace('_', '-')}'><code>{entry.key}</code>"
        f"</a> <small>{escape(entry.paper)}</small><p>{escape(first)}</p>"
        f"<small>{escape('; '.join(facts))}</small></div>"
    )


def page() -> str:
    """The page as Markdown."""
    trace = recording("front")
    html = f"""
<div class="front">
<p class="lead">A small drafter proposes the next few tokens, the large model checks all of them in
one forward pass, and a rule decides which to keep, so that the text is distributed exactly as if
the large model had written it alone.</p>
{section(trace, "front", play=True)}
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
            "Move the sliders. The formulas are those of [theory, chapter 3](theory/03_speed.md)"
            " and of `specwb.analysis`.\n",
            raw(explorer("mountSpeed", machines())),
            "\n## Which method when\n",
            raw(chart),
            "\nPublished numbers are Spec-Bench's, of Vicuna 7B on an RTX 3090, greedy; where the"
            " predictions come from says [predicting speed](docs/predict.md). All methods with"
            " their options: [methods](docs/methods.md); each under the microscope: [gallery]"
            "(gallery/index.md).\n",
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


EXPLORERS: dict[tuple[str, str], tuple[str, Any]] = {
    ("1_one_speculative_step", "speed"): ("mountSpeed", machines),
    ("2_the_rejection_rule", "explorer"): ("mountCandidates", 1),
    ("3_many_candidates", "explorer"): ("mountCandidates", 2),
    ("8_the_residual_k_times", "explorer"): ("mountCandidates", 3),
}
"""Lesson and cell -> the arguments of :func:`explorer` for what runs in the lesson's page."""


def in_lesson(lesson: str, cell: str) -> str:
    """The explorer that stands below the picture of a lesson's widget, "" where there is none."""
    mount, given = EXPLORERS.get((lesson, cell), ("", None))
    return explorer(mount, given() if callable(given) else given) if mount else ""


def raw(html: str) -> str:
    return f"```{{raw}} html\n{html.strip()}\n```\n"


def _origin(trace: dict[str, Any]) -> str:
    name, sampling = trace["target"]["name"], trace["sampling"]
    return (
        f"A recording: {name} with its draft model, {trace['method']['spec']}, temperature"
        f" {sampling['temperature']:g}, on {trace['plain']['cores']} CPU cores."
    )
