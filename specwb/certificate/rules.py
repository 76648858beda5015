"""The rules of this project: the result of :func:`specwb.theory.production.check_rule` as a
certificate's.

A rule's uniforms are its arguments, so its decisions are recovered by bisection; nothing of torch
is intercepted.
"""

from __future__ import annotations

from typing import Any

from specwb.certificate.instances import Instance
from specwb.certificate.measure import Finding
from specwb.core.flow import Scheme
from specwb.theory.distribution import UNLISTED
from specwb.theory.production import RuleCheck, Step, check_rule


def measured_rule(given: Any) -> Finding:
    """Every step of :func:`specwb.theory.production.check_rule`, and the one that is furthest
    off."""
    check = check_rule(given)
    done = tuple(map(_instance, check.steps))
    if step := check.counterexample:
        found = _instance(step), step.text, step.probability, step.wanted
        return Finding(check.worst, done, found)
    return Finding(check.worst, done, None, _reason(check))


def _reason(check: RuleCheck) -> str:
    """Why there is no certificate; empty if there is one."""
    if check.failure:
        return f"it raised {check.failure}"
    if check.host:
        return f"with `lazy` set it decides otherwise in {check.host} cases"
    if check.pvalue is not None:
        return f"COUPLED: {UNLISTED[Scheme.COUPLED]}"
    return check.unchecked


def _instance(step: Step) -> Instance:
    task = step.task
    return Instance(
        ", ".join([task.kind, *task.settings.split(" with ")[1:]]),
        task.vocabulary,
        len(task.parents) - 1,
        task.sampling.temperature,
        task.seeds[step.index],
        scheme=task.scheme.name,
        tree=task.parents,
        tv=step.tv,
        runs=step.boxes,
    )
