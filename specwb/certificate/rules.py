"""The rules of this project, measured on small trees.

A rule's uniforms are its arguments, so :func:`specwb.verify.distribution.boxes_of` recovers its
decisions, as in ``specwb verify``; nothing of torch is intercepted.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import torch

from specwb.certificate.instances import KINDS, Instance
from specwb.certificate.measure import ROUNDING, Finding, compared
from specwb.certificate.symbols import NoCertificate
from specwb.errors import ArgumentError
from specwb.probability import Sampling
from specwb.tree import Tree
from specwb.verify import distribution as recovered
from specwb.verify.exact import Model, norm
from specwb.verify.production import compare, takes

TREES = (
    (5, (-1, 0)),
    (3, (-1, 0, 1)),
    (2, (-1, 0, 1, 2)),
    (4, (-1, 0, 0)),
    (3, (-1, 0, 0, 0)),
    (2, (-1, 0, 0, 1, 2)),
    (2, (-1, 0, 0, 1, 1, 2)),
)
"""V, and the parents of a tree's nodes: the drafts that a rule is asked about."""


def measured_rule(given: Any) -> Finding:
    """Every draft of small trees, all instances of a tree as one batch, up to the first bias."""
    rule = recovered.rule_of(given)
    batches = [
        (scheme, size, temperature, kinds)
        for scheme in recovered.DRAFTS
        for size in TREES
        if takes(rule, scheme, size[1])
        for temperature, kinds in ((1.0, KINDS), (0.7, KINDS[:1]))
        if temperature == 1 or len(size[1]) <= 3
    ]
    if not batches:
        why = [
            f"{x.name}: {recovered.UNLISTED[x]}" for x in rule.schemes if x in recovered.UNLISTED
        ]
        raise NoCertificate("; ".join(why) or "the rule takes none of the small trees")
    done: list[Instance] = []
    for scheme, (vocabulary, parents), temperature, kinds in batches:
        cases = [
            Instance(
                kind, vocabulary, len(parents) - 1, temperature, i, (), False, scheme.name, parents
            )
            for i, kind in enumerate(kinds)
        ]
        pairs = [(_model(case, False), _model(case, True)) for case in cases]
        drafts = recovered.all_drafts(scheme, Tree.parents(list(parents)), pairs)
        logits = drafts.scores.logits * temperature
        scores = replace(drafts.scores, logits=logits, sampling=Sampling(temperature))
        try:
            boxes = recovered.boxes_of(rule, drafts.draft, scores)
            texts = compare(rule, replace(drafts, scores=scores), pairs, boxes, ROUNDING)
        except recovered.Unfollowed as error:
            hidden = isinstance(error, recovered.Inconstant)
            raise NoCertificate(str(error), hidden) from error
        except (ArgumentError, NoCertificate):
            raise
        except Exception as error:  # a rule of somebody's own may raise anything
            raise NoCertificate(f"it raised {type(error).__name__}: {error}") from error
        of_case = torch.tensor(drafts.case)[boxes.row]
        for i, (case, (found, _, _)) in enumerate(zip(cases, texts, strict=True)):
            tv, worst = compared(case, found)
            done.append(replace(case, tv=tv, runs=int((of_case == i).sum())))
            if tv > ROUNDING:
                return Finding(tv, tuple(done), worst)
    return Finding(max(case.tv or 0.0 for case in done), tuple(done))


def _model(case: Instance, draft: bool) -> Model:
    @cache
    def model(prefix: tuple[int, ...]) -> list[Fraction]:
        return norm([Fraction(x) for x in case.p(prefix, draft).tolist()])

    return model
