"""The distribution of a verifier's texts on instances, compared with the target's.

All drafts of an instance are enumerated, each with its probability, and the verifier's output
distribution given a draft comes from :func:`specwb.certificate.forking.distribution`. Texts of
fewer tokens than the draft and one more are continued by the target. The distribution of the whole
text is compared with the target's:

    ``TV = 1/2 sum over texts x of |P(x) - p(x)|``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.certificate.forking import distribution
from specwb.certificate.instances import Instance, continued, drafts, of_target
from specwb.certificate.symbols import NoCertificate

ROUNDING = 1e-5
"""A TV above this is a bias; verifiers in float32 round by some 1e-7 an operation."""
CONFIRMED = 250
"""Runs that confirm a bias."""
Texts = dict[tuple[int, ...], float]
Worst = tuple[Instance, tuple[int, ...], float, float]


@dataclass(frozen=True)
class Finding:
    """What a child process reports: measured instances, the counterexample, why it ended early."""

    tv: float = 0.0
    done: tuple[Instance, ...] = ()
    worst: Worst | None = None
    reason: str = ""


def measured(
    verifier: Callable[..., Any], cases: Iterable[Instance], draw: str, logits: bool
) -> Finding:
    """Measure instance after instance up to the first bias."""

    def texts(case: Instance) -> tuple[Texts, int]:
        return _texts(verifier, case, draw, logits)

    done: list[Instance] = []
    tv = 0.0
    for case in cases:
        try:
            found, runs = texts(case)
            own, worst = compared(case, found)
            done.append(replace(case, tv=own, runs=runs))
            tv = max(tv, own)
            if own > ROUNDING:
                _check_again(lambda case=case: texts(case)[0], found, 1 + CONFIRMED // runs)  # type: ignore[misc]
                return Finding(own, tuple(done), worst)
        except NoCertificate as error:
            return Finding(tv, tuple(done), None, str(error))
    return Finding(tv, tuple(done))


def compared(case: Instance, texts: Texts) -> tuple[float, Worst]:
    """The TV of a distribution of texts and the target's, and the text that is worst off."""
    wanted = of_target(case, len(next(iter(texts))))
    apart = {x: texts.get(x, 0.0) - wanted.get(x, 0.0) for x in {*texts, *wanted}}
    text = max(apart, key=lambda x: abs(apart[x]))
    found = case, text, texts.get(text, 0.0), wanted.get(text, 0.0)
    return sum(map(abs, apart.values())) / 2, found


def _check_again(follow: Callable[[], Texts], texts: Texts, times: int) -> None:
    """Refuse a verifier that seems biased and writes its texts with other probabilities when it is
    followed again: hidden randomness may look like a bias."""
    for _ in range(times):
        try:
            again = follow()
        except NoCertificate as error:  # which it did not meet before
            raise NoCertificate(str(error), hidden=True) from error
        if any(abs(again.get(x, 0.0) - texts.get(x, 0.0)) > ROUNDING for x in {*again, *texts}):
            why = "followed again, its texts have other probabilities: some randomness was not seen"
            raise NoCertificate(why, hidden=True)


def _texts(
    verifier: Callable[..., Any], case: Instance, draw: str, logits: bool
) -> tuple[Texts, int]:
    """The distribution of a verifier's texts, of the draft's depth and one token."""
    depth = case.drafted if draw == "chain" else 1
    row = case.logits if logits else case.p
    more = {"temperature": case.temperature} if logits else {}
    texts: Texts = {}
    runs = 0
    for draft, chance in drafts(case, draw):
        before = [draft[:i] for i in range(depth + 1)] if draw == "chain" else [()]
        after = [] if draw == "chain" else [(x,) for x in draft]
        p = torch.stack([row(text) for text in (*before, *after)])
        q = torch.stack([row(text, True) for text in before[:depth]])
        q = q if draw == "chain" else q[0]

        def once(p: Tensor = p, q: Tensor = q, draft: tuple[int, ...] = draft) -> tuple[int, ...]:
            written = verifier(p.clone(), q.clone(), torch.tensor(draft), **more)
            return _tokens(written, case.vocabulary, depth + 1)

        results, count = distribution(once)
        runs += count
        for tokens, share in results.items():
            for text, rest in continued(case, tokens, depth + 1):
                texts[text] = texts.get(text, 0.0) + chance * share * rest
    return texts, runs


def _tokens(written: Any, vocabulary: int, most: int) -> tuple[int, ...]:
    """The tokens that a verifier has returned; NoCertificate if they are none."""
    if not isinstance(written, list | tuple | Tensor | np.ndarray):
        raise NoCertificate(
            f"it returned a {type(written).__name__}: a list, tuple, tensor or array is needed"
        )
    count = len(written) if isinstance(written, list | tuple) else int(np.prod(written.shape))
    if not 1 <= count <= most:
        raise NoCertificate(f"it returned {count:,} tokens: 1 to {most} are needed")
    values = written if isinstance(written, list | tuple) else written.flatten().tolist()
    numbers = [x.item() if hasattr(x, "item") and math.prod(x.shape) == 1 else x for x in values]
    if not all(type(x) in (int, float) and x == int(x) and 0 <= x < vocabulary for x in numbers):
        shown = [x if type(x) in (int, float) else type(x).__name__ for x in numbers]
        raise NoCertificate(f"it returned {shown}: whole numbers below {vocabulary} are needed")
    return tuple(map(int, numbers))
