"""The distribution of a verifier's texts on instances, compared with the target's.

All drafts of an instance are enumerated, each with its probability, and the verifier's output
distribution given a draft comes from :func:`specwb.certificate.forking.distribution`. Texts of
fewer tokens than the draft and one more are continued by the target. The distribution of the whole
text is compared with the target's:

    ``TV = 1/2 sum over texts x of |P(x) - p(x)|``.
"""

from __future__ import annotations

import itertools
import math
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import (
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.certificate import interception
from specwb.certificate.forking import distribution
from specwb.certificate.instances import Instance, models_of
from specwb.certificate.symbols import NoCertificate
from specwb.theory import exact as E

LOSSLESS, BIASED, NOTHING = "lossless", "biased", "no certificate"
ROUNDING = 1e-5
"""A TV above this is a bias; verifiers in float32 round by some 1e-7 an operation."""
CONFIRMED = 250
"""Runs that confirm a bias."""
_WATCHED = 10_000  # elements of a list, or of a tensor
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "specwb"}
Texts = dict[tuple[int, ...], float]
Worst = tuple[Instance, tuple[int, ...], float, float]


@dataclass(frozen=True, repr=False)
class Certificate:
    """The verdict on a verifier.

    Attributes:
        tv: the largest total variation of a computed instance.
        instances: the computed ones, up to the first bias.
        worst: for a biased verifier: the instance, the text, its probability and the right one.
        reason: why there is no certificate.
        seconds: the time taken.
    """

    tv: float = 0.0
    instances: tuple[Instance, ...] = ()
    worst: Worst | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """ "lossless" (on these instances), "biased" or "no certificate"."""
        return BIASED if self.worst else NOTHING if self.reason else LOSSLESS

    def __bool__(self) -> bool:
        return self.verdict == LOSSLESS

    def __repr__(self) -> str:
        if self.verdict == NOTHING:
            return f"no certificate: {self.reason}"
        if self.worst is None:
            count, runs = len(self.instances), sum(one.runs for one in self.instances)
            return f"lossless in these {count} instances (TV < {ROUNDING:g}, {runs:,} runs)"
        where, text, got, wanted = self.worst
        return (
            f"biased: TV {self.tv:.3g}; the text {list(text)} comes out with probability "
            f"{got:.4f}, the target's is {wanted:.4f} ({where})"
        )


def measured(
    verifier: Callable[..., Any], cases: Iterable[Instance], draw: str, logits: bool
) -> Certificate:
    """Measure instance after instance up to the first bias."""

    def texts(case: Instance) -> tuple[Texts, int]:
        return _texts(verifier, case, draw, logits)

    done: list[Instance] = []
    tv = 0.0
    kept = _state(verifier)
    for case in cases:
        try:
            found, runs = texts(case)
            own, worst = compared(case, found, models_of(case)[0])
            if not done:  # what the first calls have made
                kept = {**_state(verifier), **kept}
            done.append(replace(case, tv=own, runs=runs))
            tv = max(tv, own)
            if own > ROUNDING:
                _check_again(lambda case=case: texts(case)[0], found, 1 + CONFIRMED // runs)  # type: ignore[misc]
                return Certificate(own, tuple(done), worst)
        except NoCertificate as error:
            return Certificate(tv, tuple(done), None, str(error))
    if changed := [x for x, value in _state(verifier).items() if kept.get(x, value) != value]:
        reason = f"it keeps state: {', '.join(changed[:3])} changes from call to call"
        return Certificate(tv, tuple(done), None, reason)
    return Certificate(tv, tuple(done))


def _state(verifier: Any) -> dict[str, Any]:
    """What a function may count with, by name: numbers, texts, tensors, arrays and lengths of lists
    that its code, its closure and its module's functions, objects and classes hold."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # keeps what it has seen alive
    waiting = [("", verifier)]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, int | float | complex | str | bytes):
            found[at] = value
            continue
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor | np.ndarray):
            array = value.detach().cpu() if isinstance(value, Tensor) else value
            found[at] = pickle.dumps(array) if math.prod(array.shape) <= _WATCHED else ""
        elif isinstance(value, torch.Generator):
            found[at] = interception.state(value)
        elif isinstance(value, itertools.count):
            found[at] = repr(value)
        else:
            if isinstance(value, list | set | deque):
                found[f"the length of {at}"] = len(value)
            waiting += _parts(at, value)
    return found


def _parts(at: str, value: Any) -> Iterable[tuple[str, Any]]:
    """What an object holds, with its names."""
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, dict):
        return [(f"{at}[{x!r:.20}]", y) for x, y in islice(dict.items(value), _WATCHED)]
    if isinstance(value, list | tuple | deque):
        return [(f"{at}[{i}]", x) for i, x in enumerate(islice(value, _WATCHED))]
    if isinstance(value, partial):
        return [(at, x) for x in (value.func, value.args, value.keywords)]
    if isinstance(value, MethodType):
        return [(at, value.__self__), (at, value.__func__)]
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return [] if frame is None else [(at, frame.f_lasti), *frame.f_locals.items()]
    if isinstance(value, FunctionType) and not _is_library(value):
        names = list(_names(value.__code__))
        held = {x: value.__globals__[x] for x in names if x in value.__globals__}
        free = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        held |= {x: cell.cell_contents for x, cell in free if cell != CellType()}
        more = value.__defaults__, value.__kwdefaults__, value.__dict__
        return [*held.items(), *((value.__name__, x) for x in more if x)]
    if isinstance(value, ModuleType):
        is_own = value.__name__.partition(".")[0] not in _LIBRARIES
        is_own &= "site-packages" not in str(vars(value).get("__file__"))
        return list(vars(value).items()) if is_own else []
    if kind is SimpleNamespace or not _is_library(kind):
        slots = [x for one in kind.__mro__ for x in vars(one).get("__slots__", ())]
        held = {x: getattr(value, x) for x in slots if hasattr(value, x)}
        held |= getattr(value, "__dict__", {})
        return [(f"{at}.{x}", y) for x, y in (*held.items(), ("", type(value)))]
    return []


def _is_library(value: Any) -> bool:
    module = value.__module__ or ""  # of types of C a descriptor
    return not isinstance(module, str) or module.partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> Iterable[str]:
    """The names that a function's code has, and the functions inside of it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def compared(case: Instance, texts: Texts, target: E.Model) -> tuple[float, Worst]:
    """The TV of a distribution of texts and the target's, and the text that is worst off."""
    wanted = E.target_distribution(target, len(next(iter(texts))))
    pairs = {x: (texts.get(x, 0.0), float(wanted.get(x, 0))) for x in {*texts, *wanted}}
    text = max(pairs, key=lambda x: abs(pairs[x][0] - pairs[x][1]))
    return float(E.tv(texts, wanted)), (case, text, *pairs[text])


def _check_again(follow: Callable[[], Texts], texts: Texts, times: int) -> None:
    """Refuse a verifier that seems biased and writes its texts with other probabilities when it is
    followed again: hidden randomness may look like a bias."""
    for _ in range(times):
        again = follow()
        if any(abs(again.get(x, 0.0) - texts.get(x, 0.0)) > ROUNDING for x in {*again, *texts}):
            why = "followed again, its texts have other probabilities: some randomness was not seen"
            raise NoCertificate(why)


def _texts(
    verifier: Callable[..., Any], case: Instance, draw: str, logits: bool
) -> tuple[Texts, int]:
    """The distribution of a verifier's texts, of the draft's depth and one token."""
    chain = draw == "chain"
    depth = case.drafted if chain else 1
    row = case.logits if logits else case.p
    more = {"temperature": case.temperature} if logits else {}
    texts: Texts = {}
    runs = 0
    for paths, chance in case.drafts(draw):
        draft = torch.tensor([path[-1] for path in paths[1:]])
        p = torch.stack([row(path) for path in paths])
        q = torch.stack([row(path, True) for path in paths[:-1]]) if chain else row((), True)

        def once(p: Tensor = p, q: Tensor = q, draft: Tensor = draft) -> tuple[int, ...]:
            written = verifier(p.clone(), q.clone(), draft.clone(), **more)
            return _tokens(written, case.vocabulary, depth + 1)

        results, count = distribution(once)
        runs += count
        for tokens, share in results.items():
            texts[tokens] = texts.get(tokens, 0.0) + chance * share
    return E.continued(texts, models_of(case)[0], depth + 1), runs


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
