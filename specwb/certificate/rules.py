"""The rules of this project: the result of :func:`specwb.theory.decisions.check_rule` as a
certificate's.

A rule's uniforms are its arguments, so its decisions are recovered by bisection; nothing of torch
is intercepted.
"""

from __future__ import annotations

from typing import Any

from specwb.certificate.instances import Instance
from specwb.certificate.measure import Finding
from specwb.theory.decisions import Comparison, check_rule


def measured_rule(given: Any) -> Finding:
    """Every comparison of :func:`specwb.theory.decisions.check_rule`, and the one that is furthest
    off."""
    check = check_rule(given)
    done = tuple(map(_instance, check.comparisons))
    if worst := check.counterexample:
        found = _instance(worst), worst.text, worst.probability, worst.wanted
        return Finding(check.worst, done, found)
    failure = f"it raised {check.failure}" if check.failure else ""
    return Finding(check.worst, done, None, failure or check.unchecked)


def _instance(one: Comparison) -> Instance:
    task = one.task
    return Instance(
        f"{task.kind}, top_k and top_p" if task.sampling.top_k else task.kind,
        task.vocabulary,
        len(task.parents) - 1,
        task.sampling.temperature,
        one.seed,
        scheme=task.scheme.name,
        tree=task.parents,
        tv=one.tv,
        runs=one.boxes,
    )
