"""How much is about to be done: estimated before it begins, and refused where it is too much."""

from __future__ import annotations

import os

from specwb.core.errors import SpecwbError
from specwb.core.progress import duration
from specwb.engine.machine import one_step
from specwb.models.device import free_bytes, gib
from specwb.models.target import Target

HOURS = 24.0
"""What takes longer is refused, unless ``SPECWB_HOURS`` allows more."""
SAMPLE, TOKENS = 0.2, 2048
"""Seconds, or tokens, from which on a forward pass is long enough to be timed for a longer one."""
MOST = 10**15
"""Larger counts are taken as this one, so that their product with a time is a number."""


class WorkError(SpecwbError, ValueError):
    """What is asked for would take longer than a day, or more memory than there is."""


def check_work(
    target: Target, what: str, passes: float, rows: int, length: int = 1, *, lower: str, memory=0
) -> str:
    """Estimate how long a piece of work takes: ``passes`` forward passes of the target over
    ``rows x length`` tokens. One pass is timed, of a large one a part.

    Args:
        what: the work, in words with its numbers.
        lower: the options whose values make it so much.
        memory: bytes that it holds at once, at least.
    Returns:
        One line to print before the work begins.
    Raises:
        WorkError: it takes longer than ``SPECWB_HOURS`` (default :data:`HOURS`), or more memory
            than the target's device has free.
    """
    free = free_bytes(target.device)
    if memory > free:
        raise WorkError(
            f"{what}: they take {gib(min(memory, MOST**2))} of memory or more, {target.device} has "
            f"{gib(free)} free; lower {lower}"
        )
    said = os.environ.get("SPECWB_HOURS", str(HOURS))
    try:
        hours = float(said)
    except ValueError:
        raise WorkError(f"SPECWB_HOURS must be a number of hours, got {said!r}") from None
    seconds = min(passes, MOST) * _pass_seconds(target, min(rows, MOST), length)
    if seconds > 3600 * hours:
        raise WorkError(
            f"{what}: about {duration(seconds)} of forward passes of {target.name!r} here, more "
            f"than {hours:g} h; lower {lower}, or set SPECWB_HOURS to allow it"
        )
    return f"{what}: about {duration(seconds)} of forward passes of {target.name!r}"


def _pass_seconds(target: Target, rows: int, length: int) -> float:
    """Seconds of a forward pass over ``rows x length`` tokens. Passes over more and more of them
    are timed until one is long enough, or has all."""
    one_step(target)()  # what is made when it is first needed
    tokens, part = rows * length, 1
    while True:
        across = min(part, length)
        down = min(-(-part // across), rows)
        seconds = one_step(target, down, across)()
        if seconds > SAMPLE or down * across >= min(tokens, TOKENS):
            return seconds * tokens / (down * across)
        part *= 4
