"""Numbers and token ids that a caller passes in, checked and brought into plain Python."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.core.errors import ArgumentError


def integer(
    name: str,
    value: object,
    low: int | None = None,
    high: int | None = None,
    kind: type[ValueError] = ArgumentError,
) -> int:
    """``value`` (an int, or one number of an integer type of numpy or torch) as an int in
    ``low..high``. A bool or a float, even 3.0, raises ``kind``."""
    number = as_int(value)
    too_low = number is not None and low is not None and number < low
    too_high = number is not None and high is not None and number > high
    if number is None or too_low or too_high:
        bounds = f" >= {low}" if high is None else f" in {low}..{high}"
        raise kind(f"{name} must be an integer{'' if low is None else bounds}, got {value!r}")
    return number


def real(name: str, value: object, kind: type[ValueError] = ArgumentError) -> float:
    """``value``, a number of Python, numpy or torch that is neither NaN nor a bool, as a float."""
    number = value.item() if isinstance(value, Tensor | np.ndarray) and value.ndim == 0 else value
    if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Real):
        raise kind(f"{name} must be a number, got {value!r}")
    if number != number:
        raise kind(f"{name} must be a number, got nan")
    try:
        return float(number)
    except OverflowError:
        raise kind(f"{name} must be a number, got one of more than 300 digits") from None


def as_int(value: object) -> int | None:
    """The int that ``value`` is, or None where it is not one integer."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) is torch.bool:
        return None
    if getattr(value, "ndim", 0):  # torch takes a list of one number for that number
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return None


def to_python(values: Any) -> Any:
    """A tensor or an array as Python lists or numbers, and everything else as it is."""
    if isinstance(values, Tensor) and values.is_meta:
        raise ArgumentError("a tensor on the device meta holds no numbers")
    return values.tolist() if isinstance(values, Tensor | np.ndarray) else values


def is_many(value: object) -> bool:
    """Whether ``value`` is a sequence of things: no text, bytes, mapping or single number."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def eos_ids(eos: object, vocabulary: int, source: str = "eos") -> list[int]:
    """The id or ids that end a row as a list; ``source`` names where they come from. One outside
    the vocabulary would never end a row and is refused."""
    if isinstance(eos, set | frozenset):
        eos = list(eos)
    ids = []
    for value in to_python(eos) if is_many(eos) else [eos]:
        number = as_int(value)
        if number is None or not 0 <= number < vocabulary:
            raise ArgumentError(f"{source} must be token ids in 0..{vocabulary - 1}, got {value!r}")
        ids.append(number)
    return ids


def check_unicode(name: str, text: str, kind: type[ValueError] = ArgumentError) -> None:
    """Checks that a text has no half of a surrogate pair: what Python makes of bytes that are no
    UTF-8, and of half a pair in JSON."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} is {text[error.start]!r}"
        raise kind(f"{name} is not valid Unicode text (UTF-8): {where}") from None
