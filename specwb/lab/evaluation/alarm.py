"""When one of several tests of a method says that something is wrong.

A check makes :data:`TESTS` tests, each at the level ``ALARM = FALSE_ALARM / TESTS``, so that a
right method fails once in ``1 / FALSE_ALARM`` checks or more rarely (Bonferroni). A test whose
p-value is small and does not decide, ``AT_ONCE < p < DOUBT``, is made again with ``MORE`` times the
rows and other seeds. The two p-values are put together stage by stage (Tsiatis, Rosner and Mehta
1984): ``p = AT_ONCE + (DOUBT - AT_ONCE) p2``, which is uniform on (0, 1) wherever p1 and p2 are
uniform and independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

FALSE_ALARM = 1e-4
"""How often a right method fails, at most."""
TESTS = 3
"""How many tests a check makes."""
ALARM = FALSE_ALARM / TESTS
"""The p-value below which one of them fails."""
AT_ONCE = ALARM / 2
"""The p-value below which it fails without being made again."""
DOUBT = 0.01
"""The p-value below which it is made again."""
MORE = 4
"""So many times the rows are then taken."""
AGAIN = (ALARM - AT_ONCE) / (DOUBT - AT_ONCE)
"""The second p-value below which it fails then."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test.

    Attributes:
        first: the p-value of the first run, where this is the second; else None.
    """

    first: float | None = field(default=None, kw_only=True)

    @property
    def own(self) -> float:
        """The p-value of this run alone."""
        raise NotImplementedError

    @property
    def pvalue(self) -> float:
        """The p-value of both runs."""
        return self.own if self.first is None else AT_ONCE + (DOUBT - AT_ONCE) * self.own

    @property
    def failed(self) -> bool:
        return self.pvalue < ALARM


T = TypeVar("T", bound=Outcome)


def decided(run: Callable[[int, int], T], rows: int, seed: int) -> T:
    """Make a test, and again where the first p-value does not decide."""
    once = run(rows, seed)
    if not AT_ONCE < once.own < DOUBT:
        return once
    return replace(run(MORE * rows, seed + 2**31), first=once.own)
