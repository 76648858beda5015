"""Lines on standard error about work that lasts, so that no command is silent for long.

The first comes ``FIRST`` seconds after the work has begun, and another wherever none was printed
for ``EVERY`` seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

FIRST, EVERY = 3.0, 30.0
# :x: is part of a message such as package:x: and no picture
errors = Console(stderr=True, emoji=False)
Report = Callable[[float, str], None]
"""Called with (fraction done, text)."""
_printed = 0.0  # when the last line was
_begun = 0.0  # when the last block began that prints lines of its own


def line(text: str) -> None:
    """Print a line, which is never broken."""
    global _printed
    _printed = time.monotonic()
    errors.print(text, highlight=False, markup=False, soft_wrap=True)


def unseen(*_: object) -> None:
    """Report progress to nobody."""


def duration(seconds: float) -> str:
    """Write a time in its largest fitting unit, such as ``12 min``."""
    units = (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60))
    for unit, size in units:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def _is_first() -> bool:
    """Whether this is the first of several processes that train or decode together (torchrun,
    accelerate), or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def first_line(text: str) -> Iterator[None]:
    """Print one line after ``FIRST`` seconds of a block, unless one with lines of its own has begun
    by then: libraries are imported meanwhile."""
    began = time.monotonic()

    def run() -> None:
        if _begun < began:
            line(text)

    timer = threading.Timer(FIRST, run)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def lines(words: Callable[[], str], first: float | None = None) -> Iterator[None]:
    """Print what ``words`` returns and the time spent, now and then while the block lasts.

    A thread prints, since the work may be one call of a library. In a notebook nothing is printed.
    """
    global _begun
    began, ended = time.monotonic(), threading.Event()
    _begun = began

    def run() -> None:
        due = began + (FIRST if first is None else first)
        while not ended.wait(due - time.monotonic()):
            if _printed + EVERY <= time.monotonic() or _printed < began:
                line(f"{words()}, {duration(time.monotonic() - began)} so far")
            due = _printed + EVERY

    thread = threading.Thread(target=run, daemon=True)
    # a stored notebook would lack a line that comes on a slow machine only
    if _is_first() and not errors.is_jupyter:
        thread.start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def progress(task: str, lasting: bool = False) -> Iterator[Callable[[float, str], None]]:
    """Show a bar on a terminal, elsewhere :func:`lines`; yields what moves it: the share done, and
    what is done now.

    A ``lasting`` one says how long it will take, and its bar stays when it is full.
    """
    share, doing = 0.0, task
    start: tuple[float, float] | None = None  # time and share, some of which an earlier call did

    def move(done: float, text: str) -> None:
        nonlocal share, doing, start
        share, doing = min(done, 1.0), text
        start = start or (time.monotonic(), share)
        bar.update(number, completed=share, description=text)

    def words() -> str:
        began, before = start or (0.0, share)
        if share <= before:
            return doing
        left = (time.monotonic() - began) * (1 - share) / (share - before)
        return f"{share:.0%}: {doing}" + (f", about {duration(left)} left" if lasting else "")

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    hidden = not (errors.is_terminal and _is_first())
    about: dict[str, Any] = {"console": errors, "disable": hidden}
    with (
        nullcontext() if errors.is_terminal else lines(words),
        Progress(*columns[: 3 * lasting], transient=not lasting, **about) as bar,
    ):
        number = bar.add_task(task, total=1.0)
        yield move
