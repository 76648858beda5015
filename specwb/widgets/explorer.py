"""Looking at the rounds of a decoding one by one."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from specwb import figures
from specwb.engine import Output, Prompt, decode, token_rows
from specwb.figures.style import ACCEPTED, INK, TARGET
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.trace import explain
from specwb.tree import Tree
from specwb.widgets.live import ROW, Panel, canvas, redraw, status

MOST_NODES = 128  # more cannot be read in a figure
_LOOKS = {  # of words; the page's own colours would be lost on one theme or the other
    "accepted": f"color:{ACCEPTED};border-bottom:3px solid {ACCEPTED}",
    "bonus": f"color:{TARGET};border:1px solid {TARGET}",
}


def branching(text: str) -> tuple[int, ...]:
    """``"4-2-2"`` -> ``(4, 2, 2)``.

    Raises:
        ValueError: anything but integers >= 1 joined by ``-``, or a tree of more than 128 nodes.
    """
    parts = text.replace(" ", "").split("-")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(
            "tree must be the number of children at each level, whole numbers >= 1 joined by "
            f"'-', such as 4-2-2; got {text!r}"
        )
    ks, nodes, level = tuple(map(int, parts)), 0, 1
    for k in ks:
        level *= k
        nodes += level
        if nodes > MOST_NODES:
            raise ValueError(
                f"tree {text!r} has more than {MOST_NODES} nodes, too many to look at; take fewer "
                "children or levels"
            )
    return ks


class RoundExplorer(Panel):
    """Decode a prompt and look at any of its rounds: the draft tree, every test, the text so far.

    Changing the method, the tree, the temperature or the seed decodes again (the last settings are
    remembered); moving the round slider only draws. A setting that cannot be used is answered in
    the summary line, and the last picture stays.

    Args:
        target: the model that is decoded.
        prompt: one text, or one list of token ids.
        draft: the draft model, default the target's own.
        method, tree, temperature, seed: where the controls stand at first. ``sps`` drafts a chain
            as deep as the tree has levels.
        max_new_tokens: how far a decoding goes.
    Attributes:
        method, tree, temperature, seed, round: the controls; set ``.value``.
        summary: one line of text about the round shown.
        output: the decoding it is part of.
    """

    def __init__(
        self,
        target: Target,
        prompt: Prompt,
        *,
        draft: Target | str | None = None,
        method: str = "mcsd",
        tree: str = "4-2-2",
        temperature: float = 1.0,
        seed: int = 0,
        max_new_tokens: int = 40,
    ) -> None:
        self._prompt_ids = token_rows(target, [prompt])[0]  # type: ignore[list-item]
        self._tokenizer = target.tokenizer

        @lru_cache(maxsize=16)
        def decoded(method: str, ks: tuple[int, ...], temperature: float, seed: int) -> Output:
            shape: dict[str, Any] = (
                {"tree": Tree.branching(*ks)} if method == "mcsd" else {"gamma": len(ks)}
            )
            made = make_method(method, target, draft=draft, **shape)
            return decode(
                target,
                self._prompt_ids,
                made,
                trace=True,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                seed=seed,
            )

        self._decoded = decoded
        style = {"description_width": "90px"}
        self.method = w.Dropdown(
            options=["sps", "mcsd"], value=method, description="method", style=style
        )
        self.tree = w.Text(
            value=tree,
            description="tree",
            placeholder="4-2-2",
            continuous_update=False,
            style=style,
        )
        self.temperature = w.FloatSlider(
            value=temperature,
            min=0,
            max=2,
            step=0.1,
            description="temperature",
            continuous_update=False,
            readout_format=".1f",
            style=style,
        )
        self.seed = w.BoundedIntText(
            value=seed, min=0, max=2**31 - 1, description="seed", style=style
        )
        self.round = w.IntSlider(
            value=1, min=1, max=1, description="round", continuous_update=False, style=style
        )
        self._line, self._text = w.HTML(), w.HTML()
        self._figures: tuple[go.FigureWidget, ...] = ()
        self._busy = False
        self.summary = ""
        self.output = self._decoded(method, branching(tree), float(temperature), seed)
        self._settled = (method, branching(tree), float(temperature), seed)
        self._show_output()
        for control in (self.method, self.tree, self.temperature, self.seed):
            control.observe(self._decode_again, "value")
        self.round.observe(lambda _: None if self._busy else self._draw(), "value")
        controls = w.HBox(
            [self.method, self.tree, self.temperature, self.seed, self.round], layout=ROW
        )
        super().__init__([controls, self._line, *self._figures, self._text])

    def _decode_again(self, _: object = None) -> None:
        try:
            wanted = (
                self.method.value,
                branching(self.tree.value),
                round(self.temperature.value, 3),
                self.seed.value,
            )
            self.output = self._decoded(*wanted)
        except ValueError as error:  # every error of ours about an argument is one
            self._say(f"Not decoded: {error}. Still shown: {self._describe()}", wrong=True)
            return
        self._settled = wanted
        self._show_output()

    def _show_output(self) -> None:
        self._busy = True  # a smaller maximum moves the slider, which would draw twice
        self.round.max = len(self.output.steps)
        self._busy = False
        self._draw()

    def _describe(self) -> str:
        method, ks, temperature, seed = self._settled
        shape = "-".join(map(str, ks)) if method == "mcsd" else f"chain of {len(ks)}"
        return f"{method} {shape}, temperature {temperature:g}, seed {seed}"

    def _draw(self) -> None:
        step = self.output.steps[self.round.value - 1]
        drawn = (figures.draft_tree(step), figures.decisions(explain(step)))
        if not self._figures:
            self._figures = tuple(canvas(f) for f in drawn)
        else:
            for widget, new in zip(self._figures, drawn, strict=True):
                redraw(widget, new)
        self._text.value = self._written()
        accepted = int(step.verdict.accepted[0])
        self._say(
            f"{self._describe()}: round {self.round.value} of {len(self.output.steps)} accepted "
            f"{accepted} of at most {step.draft.tree.D} "
            f"and added {accepted + 1}; tau {self.output.mean_tokens_per_step:.2f} over all rounds"
        )

    def _say(self, line: str, wrong: bool = False) -> None:
        self.summary = line
        self._line.value = status(line, wrong)

    def _written(self) -> str:
        """Prompt and text up to this round as HTML: accepted tokens underlined, bonus tokens in a
        box, this round's ones bold.
        """
        upto = self.round.value
        spans, at = [], 0
        for index, accepted in enumerate(self.output.accepted_lengths[0][:upto], 1):
            ids = self.output.tokens[0][at : at + accepted + 1]
            at += accepted + 1
            bold = "font-weight:bold;background:rgba(230,159,0,0.25);" if index == upto else ""
            for place, token in enumerate(ids):
                kind = "bonus" if place == accepted else "accepted"
                word = escape(self._word(token))
                spans.append(f'<span class="{kind}" style="{bold}{_LOOKS[kind]}">{word}</span>')
        prompt = escape("".join(map(self._word, self._prompt_ids)))
        legend = (
            f'<span style="{_LOOKS["accepted"]}">accepted from the draft</span> · '
            f'<span style="{_LOOKS["bonus"]}">bonus token of a round</span> · bold: this round'
        )
        body = f'<span style="color:{INK}">{prompt}</span>' + "".join(spans)
        return f'<div>{legend}</div><pre style="white-space:pre-wrap;padding:6px">{body}</pre>'

    def _word(self, token: int) -> str:
        return f"{token} " if self._tokenizer is None else self._tokenizer.decode([token])
