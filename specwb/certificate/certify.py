"""``specwb.certify``: does a verifier keep the target's distribution on a list of small instances?

TV is exact up to the rounding of the verifier's own arithmetic (``ROUNDING``), so "biased" always
comes with a text whose probability is wrong, and "lossless" is a theorem about these instances
only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specwb.certificate import child
from specwb.certificate.adapters import ADAPTERS
from specwb.certificate.instances import SCHEMES, Instance, instances
from specwb.certificate.measure import Certificate
from specwb.core.errors import ArgumentError
from specwb.core.inputs import real

if TYPE_CHECKING:
    from specwb.rules.rule import Rule

SECONDS = 60.0


def certify(
    verifier: Callable[..., Any] | str | Rule | type[Rule],
    draw: str = "chain",
    *,
    logits: bool = False,
    like: str | None = None,
    cases: Sequence[Instance] | None = None,
    seconds: float = SECONDS,
) -> Certificate:
    """Compute whether a verifier keeps the target's distribution, exactly, on small instances.

    ::

        def mine(p, q, drafts):
            for i, x in enumerate(drafts):
                if torch.rand(()) * q[i, x] >= p[i, x]:
                    rest = (p[i] - q[i]).clamp(min=0)
                    return [*drafts[:i], torch.multinomial(rest / rest.sum(), 1)]
            return [*drafts, torch.multinomial(p[-1], 1)]

        specwb.certify(mine)    # lossless in these 27 instances (TV < 1e-05, 825 runs)

    In a test suite it is one line: ``assert specwb.certify(mine)``. The function runs in a child
    process (:mod:`specwb.certificate.child`): a fresh one if it is named, a fork of this one if it
    is handed over.

    Args:
        verifier: ``verifier(p, q, drafts)`` returns the tokens that are written, the accepted ones
            and one more: a list, tuple, tensor or array. It gets copies, in float64 and in some
            instances float32, and draws its randomness from torch, ``random`` or numpy as it likes.
            A function, or its name "package.module:function".

            Of a chain of g tokens: ``p [g+1,V]``, ``q [g,V]``, ``drafts [g]``. Of g candidates at
            one node: ``p [g+1,V]`` (row 0 at the node, row i + 1 after candidate i), ``q [V]``,
            ``drafts [g]``.

            Or a rule of this project: its name in ``specwb.RULES`` ("rrsw"), a
            :class:`specwb.Rule` or its class. It names its sampling schemes itself and takes none
            of the options but ``seconds``; its drafts are chains and trees.
        draw: how drafts are drawn: a "chain" from q; or candidates of one node "with" replacement
            (i.i.d.) or "without", or q's "top" tokens.
        logits: it gets logits in the place of p and q, and ``temperature=``, which in some
            instances is .7, 1.5, .3, .5 or 2, otherwise 1.
        like: the engine whose signature the function has, a key of
            ``specwb.certificate.adapters.ADAPTERS``.
        cases: other instances.
        seconds: how long it may take in all.
    Raises:
        ArgumentError: an argument that cannot be.
    """
    is_rule = ":" not in verifier if isinstance(verifier, str) else _is_rule(verifier)
    if not (isinstance(verifier, str) or is_rule or callable(verifier)):
        raise ArgumentError(f"verifier must be a function (p, q, drafts), got {verifier!r:.80}")
    if is_rule and (draw != "chain" or logits or like or cases is not None):
        raise ArgumentError("a rule names its sampling schemes itself: give no draw, logits, cases")
    if real("seconds", seconds) <= 0:
        raise ArgumentError(f"seconds must be above 0, got {seconds!r}")
    if draw not in SCHEMES:
        *others, last = SCHEMES
        raise ArgumentError(f"draw must be {', '.join(others)} or {last}, got {draw!r}")
    if like is not None and like not in ADAPTERS:
        raise ArgumentError(f"like must be one of {', '.join(ADAPTERS)}, got {like!r}")
    began = time.monotonic()
    if is_rule:
        from specwb.certificate.rules import check_rule

        found = child.forked(lambda: check_rule(verifier), seconds)
    else:
        if cases is None:
            cases = instances(draw, logits)
        found = child.run(child.Request(verifier, list(cases), draw, logits, like, seconds))
    reason = found.reason or ("" if found.instances else "there are no instances")
    return replace(found, reason=reason, seconds=time.monotonic() - began)


def _is_rule(verifier: Any) -> bool:
    """Whether it is a rule of this project, without importing these for anything else."""
    owner = verifier if isinstance(verifier, type) else type(verifier)
    return any(x.__module__ == "specwb.rules.rule" and x.__name__ == "Rule" for x in owner.__mro__)
