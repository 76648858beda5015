"""A method's decoding step as lists of kernels: its forward passes, translated by shapes.

The passes are those that the method's file states (:attr:`specwb.drafters.base.Entry.work`). What a
step takes in small kernels besides is counted by the dry runs (``data/predict/kernels.toml``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specwb.cost.shapes import Head, PredictionError, Shape
from specwb.cost.work import (
    PRODUCT,
    Kernel,
    Setting,
    attending,
    bookkeeping,
    counts,
    head,
    layers,
    mlp,
    product,
    small,
    times,
)
from specwb.drafters.base import Forward
from specwb.methods import METHODS, read_spec
from specwb.models.fuzzy import grouping

DRAFT, VERIFY, REST = "draft", "target forward", "rules and text"


@dataclass(frozen=True)
class Step:
    """One decoding step."""

    stages: dict[str, list[Kernel]]  # kernels by what they are for
    depth: int  # draft tokens that can be accepted
    nodes: int  # tokens of a row in the target's forward
    replays: int = 1  # replays, reads: graphs and host reads in this engine
    reads: int = 1
    parameters: int = 0  # weights that the method adds to the target's
    cached: int = 0  # layers' keys and values, in numbers a token, that it adds
    # places that the host searches, of all rows; each for three beams and 15 candidates
    searched: float = 0

    def products(self) -> int:
        """Products with weights, as the dry runs count them."""
        return sum(k.count for all_ in self.stages.values() for k in all_ if k.kind == PRODUCT)

    def graph_nodes(self) -> float:
        """Nodes of its graphs, but for those that join parts of keys (:mod:`.forecast`)."""
        return sum(k.count * k.nodes for all_ in self.stages.values() for k in all_)


def draft_kind(spec: str) -> str:
    """Which model a method has besides the target: draft, diffusion, or "" for none."""
    entry = METHODS.get(spec.partition(":")[0])
    if entry is None or entry.head == "diffusion":
        return "" if entry is None else entry.head
    return "draft" if "draft" in entry.options else ""


def step(
    spec: str,
    target: Shape,
    draft: Shape | None,
    setting: Setting,
    sampled: bool = False,
    devices: int = 1,
) -> Step:
    """Derive the step of a method.

    Of a method that stops where it is unsure this is the longest draft. Heads have the published
    sizes, or those of the target's own heads where its shape has some, and a method with a static
    tree has its published one where none is given. The target is parted over ``devices``; the draft
    model lies on one, EasySpec's attentions on as many as there are.
    """
    entry, rule, options = read_spec(spec, None, {})
    key, own = entry.key, counts().get(entry.key)
    if entry.work is None or own is None:
        known = ", ".join(name for name in METHODS if name in counts())
        raise PredictionError(f"{key} is not predicted; what is: {known}")
    for name, value in options.items():
        is_priced = name in (*entry.priced, "head")
        # without nodes the published tree is priced, and not the best one of so many nodes
        if not is_priced and (name == "nodes" or value != entry.options[name].default):
            raise PredictionError(f"{key}: what {name}={value} costs is not predicted")
    if rule is not None:
        raise PredictionError(f"{key}: what rule={rule.name} costs is not predicted")
    if (kind := draft_kind(key)) and draft is None:
        such = {"draft": "1b", "diffusion": "dream-7b"}[kind]
        raise PredictionError(f"{key} needs a {kind} model: give --draft, such as {such}")
    if key == "kangaroo" and options.get("exit") is None:
        options["exit"] = target.exit or max(1, target.layers // 16)
    values, part = entry.check(options), target.head(entry.head)
    *passes, scored = entry.forwards(options)
    if draft is not None and kind == "draft":
        draft = replace(draft, both_ways=False, context=0)
    if scored.start >= target.layers:
        raise PredictionError(
            f"{key}: exit must be below the target's {target.layers} layers, got {scored.start}"
        )
    levels = sum(one.model != "target" for one in passes)
    parameters, cached = part.parameters(target, len(passes)), part.layers * target.cached
    if draft is not None and kind:
        parameters, cached = draft.parameters, draft.layers * draft.cached
    if part.shared:  # all heads' states go through the output layer in one product
        passes = [*(replace(one, outputs=0) for one in passes), Forward("head", 0, len(passes))]
    drafted: list[Kernel] = []
    for i, one in enumerate(passes):
        if one.model == "head":
            drafted += _head_pass(one, part, target, setting, values.get("k") or 2)
        elif one.model == "target":
            drafted += _model_pass(one, target, setting)
        else:
            assert draft is not None
            drafted += _model_pass(one, draft, setting, spread=devices > 1)
        if i and "step" in own:
            drafted.append(bookkeeping(own["step"]))
    number = _small_kernels(own, levels, sum(scored.children), sampled)
    stages = {DRAFT: drafted, VERIFY: _model_pass(scored, target, setting, devices)}
    staged = own.get("staged", False) and values.get("stop") != "none" and values.get("eta") != 0
    searched = 0.0
    if key == "diffuspec" and (values["lam"] < 1 or values["beams"] > 1):
        searched = (scored.tokens - 1) * values["beams"] / BEAMS * values["top"] / TOP
    return Step(
        {name: kernels for name, kernels in stages.items() if kernels} | {REST: [number]},
        len(scored.children),
        scored.tokens,
        levels + 2 if staged else own.get("replays", 1),
        levels if staged else own.get("reads", 1),
        parameters,
        cached,
        setting.rows * searched,
    )


BEAMS, TOP = 3, 15
"""Beams and candidates of the search whose time a card has."""


def _small_kernels(own: dict[str, Any], levels: int, candidates: int, sampled: bool) -> Kernel:
    """A step's small kernels besides those of its passes; ``own``: the method's counts."""
    plain = counts()["plain"]
    number = plain["fixed"] + own["fixed"] + levels * own.get("level", 0)
    if sampled:
        number += plain["sampled"] + own.get("sampled_fixed", 0)
        number += candidates * own.get("sampled", 0) + levels * own.get("sampled_level", 0)
    return bookkeeping(number)


def _model_pass(
    one: Forward, shape: Shape, setting: Setting, devices: int = 1, spread: bool = False
) -> list[Kernel]:
    """A pass of the target, or of a draft or diffusion model.

    One whose text sees what is behind it computes the text again, and the places that it puts out.
    """
    outputs = one.tokens if one.outputs is None else one.outputs
    number = (shape.layers if one.stop is None else one.stop) - one.start
    if shape.context and setting.context + outputs > shape.context:
        raise PredictionError(
            f"diffuspec: {shape.name} was made for {shape.context} tokens, and drafts nothing "
            f"behind {setting.context} of text where k={outputs}; give a smaller --context"
        )
    kernels: list[Kernel] = []
    if shape.both_ways:
        alone = replace(setting, context=0)
        kernels += layers(shape, number, setting.context + outputs, alone)
    elif not one.group:
        kernels += layers(shape, number, one.tokens, setting, devices)
    for group in map(len, grouping(number, one.group) if one.group else ()):
        kernels += attending(shape, one.tokens, setting, group=group, spread=spread)
        kernels += [times(kernel, group) for kernel in mlp(shape, one.tokens, setting)]
        if group > 1:
            kernels.append(bookkeeping(counts()["easyspec"]["group"]))
    return [*kernels, head(shape, outputs, setting, devices)] if outputs else kernels


def _head_pass(one: Forward, part: Head, target: Shape, setting: Setting, k: int) -> list[Kernel]:
    """A pass of a trained head; ``k``: tokens of a block, which an LSTM goes through one by one."""
    h, size, m = target.hidden, setting.size, one.tokens * setting.rows
    kernels = [product(m, a * h, b * h, size) for a, b in part.enter if m]
    if part.cells:
        runs = setting.rows * max(one.tokens // k, 1)
        kernels.append(times(product(runs, h, 4 * h, size), part.cells * k))
    if part.inline:
        products_and_attention = list(attending(target, one.tokens, setting))[:3]
        nodes = counts()["layer"]["attention_nodes"] + 2  # of a layer alone
        kernels += [*products_and_attention, small(m, h, size, 0, nodes)]
        kernels += mlp(target, one.tokens, setting) if part.gated else ()
    elif part.layers:
        kernels += layers(target, part.layers, one.tokens, setting, inputs=part.inputs)
    outputs = one.tokens if one.outputs is None else one.outputs
    if outputs:
        words = part.words or target.vocabulary
        kernels.append(product(outputs * setting.rows, h, words, size))
    return kernels
