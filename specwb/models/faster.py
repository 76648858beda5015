"""The number type of a model on the CPU where none is named: bfloat16 where it is faster here.

Whether it is depends on the processor (instructions for bfloat16 products, the width of its memory)
and on the model, so it is measured, once for every shape of a model, and kept beside the choices of
:mod:`specwb.models.products`. Asked about are only checkpoints whose matrices are stored in
bfloat16, or in a GGUF file as coarsely
(:func:`specwb.models.gguf.is_coarse`): others are never rounded unasked. Models that a
processor's caches hold stay in float32.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import psutil
import torch
from torch import nn

from specwb.core.flow import chain
from specwb.core.probability import Sampling
from specwb.models.architectures import text_config
from specwb.models.products import choices
from specwb.models.target import Target

logger = logging.getLogger("specwb")
SMALL = 2**26  # bytes of float32 weights below which nothing is measured
GAIN = 1.1  # how many times as fast as float32 bfloat16 must be to be taken
TURNS = 5
LENGTHS = (1, 5)  # tokens of the forwards that are timed: plain decoding's and a draft's
TEXT = 16  # tokens before them


def chosen(
    model: Any, name: str, cast: Callable[[nn.Module, torch.dtype], nn.Module], generic: bool
) -> Any:
    """A float32 model on the CPU, in the number type that is faster."""
    size = sum(p.nbytes for p in model.parameters())
    # where copies and packed weights of both have no room, nothing is measured
    if size < SMALL or psutil.virtual_memory().available < 2 * size:
        return model
    c = text_config(model.config)
    shape = f"{model.config.model_type} {c.num_hidden_layers}x{c.hidden_size} {size} bytes"
    key = f"{shape}{' generic' if generic else ''} number type"
    halves: list[nn.Module] = []

    def half() -> nn.Module:
        if not halves:
            halves.append(cast(copy.deepcopy(model), torch.bfloat16))
        return halves[0]

    def measured() -> dict[str, str]:
        logger.warning("%s: measuring whether it is faster in bfloat16 here, once", name)
        ratio = gain(model, half(), generic)
        return {key: "bfloat16" if ratio >= GAIN else "float32"}

    # of one thread and of several it is the same model
    if choices().kept(key, ("float32", "bfloat16"), measured, threads="any") == "float32":
        if halves:
            logger.warning("%s: stays in float32, bfloat16 is not clearly faster here", name)
        return model
    logger.warning(
        "%s: in bfloat16, measured to be faster here; methods and plain decoding write the same "
        "greedy text to the last token in dtype=float32 only",
        name,
    )
    model = half() if halves else cast(model, torch.bfloat16)
    model.config.dtype = torch.bfloat16
    return model


def gain(exact: Any, half: Any, generic: bool = False) -> float:
    """How many times as fast the second model is as the first: the median over turns of the time
    of forwards over :data:`LENGTHS` tokens behind a short text, through all layers and the head."""
    calls = [forwards(model, generic) for model in (exact, half)]
    ratios = []
    with torch.inference_mode():
        for turn in range(TURNS + 2):  # the first two choose products and pack them
            seconds = []
            for call in calls:
                began = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - began)
            if turn > 1:
                ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def forwards(model: Any, generic: bool) -> Callable[[], None]:
    """What is timed."""
    target = Target(model, generic=generic, quiet=True)
    with torch.inference_mode():
        state = target.open([[0] * TEXT], [max(LENGTHS)], max(LENGTHS), Sampling(), ())
    drafts = [chain(torch.zeros(1, n, dtype=torch.long)) for n in LENGTHS]

    def run() -> None:
        for draft in drafts:
            target.score(state, draft)

    return run
