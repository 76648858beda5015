"""The rules of this project: the result of :func:`specwb.theory.decisions.check_rule` as a
certificate's.

A rule's uniforms are its arguments, so its decisions are recovered by bisection; nothing of torch
is intercepted.
"""

from __future__ import annotations

from typing import Any

from specwb.certificate.instances import Instance
from specwb.certificate.measure import Finding
from specwb.theory.decisions import Step, check_rule


def measured_rule(given: Any) -> Finding:
    """Every step of :func:`specwb.theory.decisions.check_rule`, and the one that is furthest
    off."""
    check = check_rule(given)
    done = tuple(map(_instance, check.steps))
    if step := check.counterexample:
        found = _instance(step), step.text, step.probability, step.wanted
        return Finding(check.worst, done, found)
    failure = f"it raised {check.failure}" if check.failure else ""
    return Finding(check.worst, done, None, failure or check.unchecked)


def _instance(step: Step) -> Instance:
    task = step.task
    return Instance(
        f"{task.kind}, top_k and top_p" if task.sampling.top_k else task.kind,
        task.vocabulary,
        len(task.parents) - 1,
        task.sampling.temperature,
        step.seed,
        scheme=task.scheme.name,
        tree=task.parents,
        tv=step.tv,
        runs=step.boxes,
    )
