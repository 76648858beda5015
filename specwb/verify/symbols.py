"""Random numbers that are not known: what a function under test computes with in their place.

Understood are affine functions and logarithms of uniforms, races ``argmax(p / E)`` and
``argmin(E / p)``, Gumbel noise ``argmax(log p - log E)``, and comparisons with numbers. Whatever
else is done with a symbol raises :class:`NoCertificate` by its name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specwb.errors import SpecwbError

DUST = 1e-12
"""Forks of a smaller probability come from rounding and are not followed."""


class NoCertificate(SpecwbError, ValueError):
    """A distribution cannot be computed; the message names what prevented it. ``hidden``: there is
    randomness or state that was not seen, so that no distribution computed of it is right."""

    def __init__(self, why: str, hidden: bool = False) -> None:
        super().__init__(why)
        self.hidden = hidden


@dataclass
class Run:
    """One run of the function: which way each of its forks goes."""

    script: list[int]  # choices at the first forks; behind them the first choice is taken
    at: int = 0
    chance: float = 1.0  # probability of what was chosen
    others: list[list[int]] = field(default_factory=list)  # scripts that branch off from this one
    bounds: list[tuple[float, float]] = field(default_factory=list)  # where each uniform lies
    # numbers that have taken part in a race: what is known of them is no interval
    raced: set[int] = field(default_factory=set)
    fault: str = ""  # the first thing that was refused, whether or not the function caught it

    def refuse(self, why: str) -> Any:
        self.fault = self.fault or why
        raise NoCertificate(why)

    def fork(self, chances: Sequence[float]) -> int:
        """Choose one of the alternatives whose probability is not 0."""
        options = [i for i, chance in enumerate(chances) if chance > 0]
        if len(options) == 1:
            return options[0]
        if self.at == len(self.script):
            self.others += [[*self.script, j] for j in range(1, len(options))]
            self.script.append(0)
        chosen = options[self.script[self.at]]
        self.at += 1
        self.chance *= chances[chosen]
        return chosen

    def uniforms(self, shape: Sequence[int]) -> Uniform:
        first, count = len(self.bounds), math.prod(shape)
        self.bounds += [(0.0, 1.0)] * count
        return Uniform(self, torch.arange(first, first + count).reshape(list(shape)))

    def below(self, number: int, threshold: float) -> bool:
        """Whether uniform ``number`` is less than a threshold."""
        if number in self.raced:
            self.refuse("random numbers of a race that are compared as well")
        low, high = self.bounds[number]
        if math.isnan(threshold) or threshold <= low:
            return False
        if threshold >= high:
            return True
        chance = (threshold - low) / (high - low)
        # in parts of (0, 1): the last one of cumulated sums is 1 up to their rounding
        if min(threshold - low, high - threshold) < DUST:
            return chance > 0.5
        if is_below := self.fork([chance, 1 - chance]) == 0:
            self.bounds[number] = low, threshold
        else:
            self.bounds[number] = threshold, high
        return is_below

    def token(self, row: Sequence[float]) -> int:
        """Draw from weights, which need not sum to 1."""
        total = math.fsum(row)
        if not (0 < total < math.inf and min(row) >= 0):
            self.refuse(f"a draw from {[round(x, 4) for x in row]}, which is no distribution")
        return self.fork([x / total for x in row])

    def tokens(self, rows: Tensor, count: int = 1, replacement: bool = False) -> Tensor:
        drawn = []
        for row in rows.detach().double().reshape(-1, rows.shape[-1]).tolist():
            for _ in range(count):
                drawn.append(self.token(row))
                if not replacement:
                    row[drawn[-1]] = 0.0
        return torch.tensor(drawn).reshape([*rows.shape[:-1], count])


_NAMES = {"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_NAMES |= {"subtract": "sub", "multiply": "mul", "divide": "div", "truediv": "div"}
_NAMES |= {"true_divide": "div", "negative": "neg", "not_equal": "ne", "equal": "eq"}
_NAMES |= {"radd": "add", "rmul": "mul"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_ARITHMETIC = {"add": "add", "mul": "mul", "sub": "rsub", "div": "rdiv"}
"""Operator -> what it is where the symbol stands on the right."""
_MOVES = {"view", "reshape", "squeeze", "unsqueeze", "flatten", "expand", "permute", "transpose"}
_MOVES |= {"getitem", "select", "narrow", "index_select", "gather", "expand_as", "view_as", "t"}
_SAME = {"float", "double", "cpu", "contiguous", "clone", "detach", "item", "to", "type", "type_as"}
_FACTS = {"size", "dim", "numel", "stride", "is_floating_point"}
_KNOWN = _MOVES | _SAME | _FACTS | _MIRRORED.keys() | _ARITHMETIC.keys()
_KNOWN |= {"neg", "log", "argmax", "argmin", "clamp_min", "clamp", "clip", "rsub", "rdiv"}
WIDE = {torch.float32, torch.float64}
_SMALLEST = 1e-6
"""Up to here a constant only keeps a logarithm or a division finite and is taken for 0."""
_CLAMPS = ("clamp_min", "clamp", "clip")


def _keeps_finite(name: str, args: Sequence[Any], kwargs: dict[str, Any], top: float) -> bool:
    """Whether the bounds of a ``clamp`` are the ends of (0, top), up to ``_SMALLEST``."""
    given = dict(zip(("min", "max"), args, strict=False)) | kwargs
    low, high = (given.get(x) for x in ("min", "max"))
    low, high = 0.0 if low is None else float(low), top if high is None else float(high)
    return 0 <= low <= _SMALLEST and high >= top - _SMALLEST


class Symbol:
    """Random numbers that are not known, ``ids [...]``: what uniforms and races have in common."""

    device, dtype, is_cuda, requires_grad = torch.device("cpu"), torch.float64, False, False
    is_number = False  # a float of Python, which ``-=`` does not change for others that hold it

    def __init__(self, run: Run, ids: Tensor) -> None:
        self.run, self.ids = run, ids
        # shared by all views of a tensor that was filled in place; when that is filled again,
        # ``memory["over"]`` is True and the views are refused
        self.memory: dict[str, bool] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "ndim"):
            return getattr(self.ids, name)
        if name not in _KNOWN and name not in _NAMES:
            return self.run.refuse(f"{name} of random numbers")
        return lambda *args, **kwargs: self.call(name, (self, *args), kwargs)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.ids)))

    def __getitem__(self, key: Any) -> Any:
        return self.call("getitem", (self, key), {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            return self.run.refuse(f"numpy.{ufunc.__name__}.{method} of random numbers")
        return self.call(ufunc.__name__, inputs, {})

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name, only_axis = func.__name__, not set(kwargs) - {"axis"}
        if name in ("argmax", "argmin") and len(args) == 1 and only_axis:
            return self.call(name, args, {"dim": kwargs["axis"]} if kwargs else {})
        if name == "searchsorted" and isinstance(self, Uniform) and not set(kwargs) - {"side"}:
            limits = torch.as_tensor(args[0], dtype=torch.float64)
            found = self.found_in(limits, kwargs.get("side", "left") == "right")
            return found.numpy() if found.ndim else int(found)
        return self.run.refuse(f"numpy.{name} of random numbers")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        symbol = next(x for x in flattened((args, kwargs or {})) if isinstance(x, Symbol))
        return symbol.call(func.__name__, args, kwargs or {})

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Apply an operator of torch, by name, to arguments with a symbol among them."""
        with torch._C.DisableTorchFunction():  # what is computed here is nobody's draw
            return self._called(name, args, kwargs)

    def _called(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        asked, name = name, name.strip("_")
        name = _NAMES.get(name, name)
        if self.memory.get("over"):
            return self.run.refuse("a tensor that was filled with other random numbers since")
        if name in ("stack", "cat", "concat") and len(args) and isinstance(args[0], list | tuple):
            return self._joined(name, args, kwargs)
        known = {"dim", "keepdim"} if name in _MOVES | {"argmax", "argmin"} else set()
        known |= {"min", "max"} if name in _CLAMPS else set()
        if name == "to":
            known = {"device", "dtype", "copy", "non_blocking"}
        if name not in _KNOWN or set(kwargs) - known:
            extra = "".join(f" with {x}=" for x in kwargs if x not in known)
            return self.run.refuse(f"{asked} of random numbers{extra}")
        if args[0] is not self:
            if len(args) == 2 and args[1] is self and name in _MIRRORED:
                return self.compare(_MIRRORED[name], args[0])
            if len(args) == 2 and args[1] is self and name in _ARITHMETIC:
                return self.arithmetic(_ARITHMETIC[name], args[0])
            return self.run.refuse(f"{asked} with random numbers as an argument")
        if name in _MIRRORED and len(args) == 2:
            return self.compare(name, args[1])
        if name in (*_ARITHMETIC, "rsub", "rdiv") and len(args) == 2:
            return self.arithmetic(name, args[1])
        if name == "neg":
            return self.arithmetic("mul", -1.0)
        if name in _SAME:
            return self._cast(name, [*args[1:], *kwargs.values()])
        if name in _FACTS:
            return getattr(self.ids, name)(*args[1:]) if name != "is_floating_point" else True
        if name in _MOVES:
            if any(isinstance(x, Symbol) for x in flattened(args[1:])):
                return self.run.refuse("random numbers as an index")
            moved = self.moved(name, args[1:], kwargs)
            moved.memory = self.memory
            return moved
        return self.special(name, args[1:], kwargs)

    def _cast(self, name: str, to: Sequence[Any]) -> Any:
        """A conversion, which must leave what is known of the numbers as it is."""
        for x in to:
            kind: Any = x.dtype if isinstance(x, Tensor) else x
            if name == "type" and isinstance(kind, str):
                kind = getattr(torch, kind.rpartition(".")[2], None)
            is_type = isinstance(kind, torch.dtype)
            if (is_type and kind not in WIDE) or (name == "type" and not is_type):
                return self.run.refuse(f"random numbers converted to {x}")
        return self

    def moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Symbol:
        raise NotImplementedError

    def compare(self, op: str, other: Any) -> Any:
        return self.run.refuse("such random numbers compared with numbers")

    def arithmetic(self, op: str, other: Any) -> Any:
        return self.run.refuse(f"arithmetic on random numbers ({op})")

    def special(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.run.refuse(f"arithmetic on random numbers ({name})")

    def _joined(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.run.refuse(f"{name} of random numbers")


def _operator(name: str) -> Any:
    def method(self: Symbol, *args: Any) -> Any:
        found = self.call(name, (self, *args), {})
        if isinstance(found, Symbol):
            found.is_number = self.is_number and all(isinstance(x, int | float) for x in args)
        return found

    return method


def _refused(name: str) -> Any:
    def method(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        if self.is_number and name in _AUGMENTED:
            return _operator(name[1:])(self, *args)
        return self.run.refuse(f"{name} of random numbers")

    return method


_AUGMENTED = ("iadd", "isub", "imul", "itruediv")


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "truediv", "neg"):
    setattr(Symbol, f"__{_name}__", _operator(_name))
for _name, _other in (("radd", "add"), ("rmul", "mul"), ("rsub", "rsub"), ("rtruediv", "rdiv")):
    setattr(Symbol, f"__{_name}__", _operator(_other))
for _name in (
    *("bool", "float", "int", "index", "complex", "abs", "round", "floor", "ceil", "trunc", "pos"),
    *("pow", "rpow", "mod", "rmod", "floordiv", "rfloordiv", "divmod", "matmul", "rmatmul", "and"),
    *("or", "xor", "invert", "contains", "setitem", *_AUGMENTED, "array"),
    *("delitem", "reversed", "format", "dlpack"),
):
    # a Python error of its own could be caught, and the refusal with it
    setattr(Symbol, f"__{_name}__", _refused(_name))
Symbol.__hash__ = object.__hash__  # type: ignore[method-assign]


class Uniform(Symbol):
    """``scale u + shift`` of independent uniforms u, or (``logged``) ``log(scale u) + shift``."""

    def __init__(
        self,
        run: Run,
        ids: Tensor,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        logged: bool = False,
    ) -> None:
        super().__init__(run, ids)
        self.scale = torch.ones(ids.shape, dtype=torch.float64) if scale is None else scale
        self.shift = torch.zeros(ids.shape, dtype=torch.float64) if shift is None else shift
        self.logged = logged

    @property
    def is_bare(self) -> bool:
        return not self.logged and bool((self.scale == 1).all() and (self.shift == 0).all())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Uniform:
        ids, scale, shift = map(change, (self.ids, self.scale, self.shift))
        return Uniform(self.run, ids, scale, shift, self.logged)

    def moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Uniform:
        if name == "getitem":
            return self._each(lambda x: x[args[0]])
        return self._each(lambda x: getattr(x, name)(*args, **kwargs))

    def compare(self, op: str, other: Any) -> Any:
        if isinstance(other, Symbol):
            return self.run.refuse("two random numbers compared with each other")
        limits = torch.as_tensor(other, dtype=torch.float64)
        parts = torch.broadcast_tensors(self.ids, self.scale, self.shift, limits)
        out = [
            self._holds(op, *numbers)
            for numbers in zip(*(x.reshape(-1).tolist() for x in parts), strict=True)
        ]
        found = torch.tensor(out, dtype=torch.bool).reshape(parts[0].shape)
        if not found.ndim and not isinstance(other, Tensor):
            return bool(found)
        return found.numpy() if isinstance(other, np.ndarray) else found

    def _holds(self, op: str, number: int, scale: float, shift: float, limit: float) -> bool:
        if math.isnan(limit):
            return op == "ne"
        if self.logged:
            limit, shift = math.exp(min(limit - shift, 700.0)), 0.0
        if scale == 0:
            return bool(getattr(operator, op)(shift, limit))
        if op in ("eq", "ne"):
            return op == "ne"  # a number is met with probability 0
        # for the same reason < and <= are one
        is_below = self.run.below(number, (limit - shift) / scale)
        return is_below == ((op in ("lt", "le")) == (scale > 0))

    def arithmetic(self, op: str, other: Any) -> Any:
        if isinstance(other, Symbol):
            return self.run.refuse("arithmetic of two random numbers")
        if op == "rdiv" or (self.logged and op == "div"):
            return self.run.refuse("a number divided by random numbers")
        x = torch.as_tensor(other, dtype=torch.float64)
        ids, scale, shift, x = torch.broadcast_tensors(self.ids, self.scale, self.shift, x)
        if self.logged and op in ("mul", "rsub"):
            plain = bool(((scale - 1).abs() <= _SMALLEST).all() and (shift == 0).all())
            if op == "mul" and plain and bool((x == -1).all()):
                return Race(self.run, ids)  # -log u is an exponential variable
            return self.run.refuse("arithmetic on logarithms of uniforms")
        if op == "mul":
            scale, shift = scale * x, shift * x
        elif op == "div":
            scale, shift = scale / x, shift / x
        elif op == "rsub":
            scale, shift = -scale, x - shift
        else:
            shift = shift + (x if op == "add" else -x)
        if not bool(scale.isfinite().all() and shift.isfinite().all()):
            return self.run.refuse("arithmetic of random numbers with 1/0, infinity or NaN")
        return Uniform(self.run, ids, scale, shift, self.logged)

    def special(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        small = (self.shift >= 0) & (self.shift <= _SMALLEST)
        if name == "log" and not self.logged and bool((small & (self.scale > 0)).all()):
            return Uniform(self.run, self.ids, self.scale, torch.zeros_like(self.shift), True)
        if name in _CLAMPS and self.is_bare and _keeps_finite(name, args, kwargs, 1.0):
            return self
        return super().special(name, args, kwargs)

    def found_in(self, limits: Tensor, right: bool) -> Tensor:
        """Where each number falls in a sorted row, as ``torch.searchsorted``."""
        rows = limits.double().expand(*self.ids.shape[:-1], limits.shape[-1])
        rows = rows.reshape(-1, limits.shape[-1])
        each = self.ids.reshape(len(rows), -1).shape[1] if self.ids.ndim else 1
        out = []
        for i in range(self.ids.numel()):
            one = self._each(lambda x, i=i: x.reshape(-1)[i])  # type: ignore[misc]
            row = rows[i // each].tolist()
            out.append(next((j for j, t in enumerate(row) if one.compare("lt", t)), len(row)))
        return torch.tensor(out).reshape(self.ids.shape)

    def _joined(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        one = all(isinstance(x, Uniform) and x.logged == self.logged for x in args[0])
        if not one or set(kwargs) - {"dim"}:
            return self.run.refuse(f"{name} of random numbers of several kinds")
        ids, scale, shift = (
            getattr(torch, name)([getattr(x, part) for x in args[0]], *args[1:], **kwargs)
            for part in ("ids", "scale", "shift")
        )
        return Uniform(self.run, ids, scale, shift, self.logged)


class Race(Symbol):
    """Independent exponential variables E, or what a race makes of them with ``weights [..., V]``.

    ``form`` is "E"; "p/E" or "log p - log E", whose argmax is drawn in proportion to p; or "E/p",
    whose argmin is.
    """

    def __init__(
        self, run: Run, ids: Tensor, weights: Tensor | None = None, form: str = "E"
    ) -> None:
        super().__init__(run, ids)
        self.weights, self.form = weights, form

    def moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Race:
        if self.weights is not None:
            return self.run.refuse("a race that is rearranged")
        ids = self.ids[args[0]] if name == "getitem" else getattr(self.ids, name)(*args, **kwargs)
        return Race(self.run, ids, None, self.form)

    def arithmetic(self, op: str, other: Any) -> Any:
        if isinstance(other, Symbol):
            return self.run.refuse("arithmetic on a race")
        # a copy: where the function divides in place, p's own tensor becomes the race
        x = torch.as_tensor(other, dtype=torch.float64).clone()
        if self.weights is not None:
            if self.form != "log p - log E" or op != "add":
                return self.run.refuse("arithmetic on a race")
            ids, weights, x = torch.broadcast_tensors(self.ids, self.weights, x)
            return Race(self.run, ids, weights * x.exp(), self.form)
        if self.form == "E" and op == "add" and bool(((x >= 0) & (x <= _SMALLEST)).all()):
            return self
        if self.form == "log E" and op == "mul" and bool((x == -1).all()):
            return Race(self.run, self.ids, None, "-log E")
        ids, x = torch.broadcast_tensors(self.ids, x)
        if self.form == "E" and op in ("rdiv", "div"):
            return Race(self.run, ids, x, "p/E" if op == "rdiv" else "E/p")
        if self.form == "-log E" and op == "add":
            return Race(self.run, ids, x.exp(), "log p - log E")
        if self.form == "log E" and op == "rsub":
            return Race(self.run, ids, x.exp(), "log p - log E")
        return self.run.refuse(f"arithmetic on exponential variables ({op})")

    def special(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if name == "log" and self.form == "E" and self.weights is None:
            return Race(self.run, self.ids, None, "log E")
        bare = self.form == "E" and self.weights is None
        if name in _CLAMPS and bare and _keeps_finite(name, args, kwargs, math.inf):
            return self
        down = self.form == "E/p"
        if self.weights is None or name != ("argmin" if down else "argmax"):
            return self.run.refuse(f"{name} of exponential variables")
        dim = kwargs.get("dim", args[0] if args else None)
        kept = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
        weights = self.weights
        if dim is None and weights.ndim == 1:
            dim = -1
        if dim not in (-1, weights.ndim - 1):
            return self.run.refuse("a race over another dimension than the last")
        numbers = self.ids.flatten().tolist()
        again = self.run.raced.intersection(numbers) or len(set(numbers)) < len(numbers)
        if again or any(self.run.bounds[number] != (0.0, 1.0) for number in numbers):
            return self.run.refuse("the same random numbers in two decisions")
        self.run.raced.update(numbers)
        out = []
        for row in weights.reshape(-1, weights.shape[-1]).tolist():
            # without a runner all places are 0 (or infinite) alike, and the first one is found
            out.append(self.run.token(row) if any(row) else 0)
        found = torch.tensor(out).reshape(weights.shape[:-1])
        return found.unsqueeze(-1) if kept else found


def flattened(values: Any) -> Iterator[Any]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, list | tuple | dict):
            yield from flattened(value)
        else:
            yield value
