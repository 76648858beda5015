"""Random numbers that are not known: what a function under test computes with in their place.

A *symbol* stands for real numbers, arrays or tensors. It holds a real one of the same type, shape
and number type, ``like``, to which every operation is applied first: what the real operation
refuses is refused, and its result says of which type the symbol's is. The values in ``like`` are
never looked at.

Understood are affine functions of uniforms, logarithms of these, exponential variables
(``-log u``) and comparisons of all of them with numbers; whole parts of affine functions; races
``argmax(p / E)`` and ``argmin(E / p)``, and Gumbel noise ``argmax(log p - log E)``. Whatever else
is done with a symbol raises :class:`NoCertificate` by its name.
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

from specwb.core.errors import SpecwbError

DUST = 1e-12
"""Forks of a smaller probability come from rounding and are not followed."""
SMALLEST = 1.5e-7
"""Up to here, a little above float32's epsilon, a constant only keeps a logarithm or a division of
noise finite and is taken for 0: an error below 1e-5 in a race of 56 tokens."""
LOST = 2e-5
"""Digits that a sum with a constant may lose, as a share of a random number's range."""
EXTREME = 1e20
MOST_FORKS = 400
"""Forks of one run: a loop that has so many has no end that could be reached."""
MOST_CELLS = 64
"""Whole numbers that ``int(n u)`` may come out as."""
WIDE = {torch.float32, torch.float64, np.dtype("float32"), np.dtype("float64")}


class NoCertificate(SpecwbError, ValueError):
    """A distribution cannot be computed; the message names what prevented it."""


@dataclass
class Execution:
    """One run of the function: which way each of its forks goes."""

    script: list[int]  # choices at the first forks; behind them the first choice is taken
    at: int = 0
    chance: float = 1.0  # probability of what was chosen
    others: list[list[int]] = field(default_factory=list)  # scripts that branch off from this one
    bounds: list[tuple[float, float]] = field(default_factory=list)  # where each uniform lies
    # numbers that have taken part in a race: what is known of them is no interval
    raced: set[int] = field(default_factory=set)
    fault: str = ""  # the first thing that was refused, whether or not the function caught it
    doubt: str = ""  # an error that real random numbers might not have raised
    drawn: bool = False  # whether the function has random numbers

    watch: Callable[[], None] = lambda: None  # called at every draw

    def refuse(self, why: str) -> Any:
        self.fault = self.fault or why
        raise NoCertificate(why)

    def fork(self, chances: Sequence[float]) -> int:
        """Choose one of the alternatives whose probability is not 0."""
        options = [i for i, chance in enumerate(chances) if chance > 0]
        if len(options) == 1:
            return options[0]
        if self.at == len(self.script):
            if self.at == MOST_FORKS:
                self.refuse(
                    f"one run makes more than {MOST_FORKS} decisions: a loop without an end"
                )
            self.others += [[*self.script, j] for j in range(1, len(options))]
            self.script.append(0)
        chosen = options[self.script[self.at]]
        self.at += 1
        self.chance *= chances[chosen]
        return chosen

    def numbers(self, shape: Sequence[int]) -> Tensor:
        """The numbers of new independent uniforms on (0, 1)."""
        self.watch()
        self.drawn = True
        first, count = len(self.bounds), math.prod(shape)
        self.bounds += [(0.0, 1.0)] * count
        return torch.arange(first, first + count).reshape(list(shape))

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
        self.watch()
        self.drawn = True
        total = math.fsum(row)
        if not (0 < total < math.inf and min(row) >= 0):
            self.refuse(f"a draw from {[round(x, 4) for x in row[:8]]}, which is no distribution")
        return self.fork([x / total for x in row])

    def tokens(self, rows: Tensor, count: int = 1, replacement: bool = False) -> Tensor:
        drawn = []
        for row in rows.detach().double().reshape(-1, rows.shape[-1]).tolist():
            for _ in range(count):
                drawn.append(self.token(row))
                if not replacement:
                    row[drawn[-1]] = 0.0
        return torch.tensor(drawn).reshape([*rows.shape[:-1], count])

    def start(self, numbers: Tensor) -> None:
        """Let uniforms take part in a race: each may, once, if nothing is known of it."""
        runners = numbers.flatten().tolist()
        again = self.raced.intersection(runners) or len(set(runners)) < len(runners)
        if again or any(self.bounds[number] != (0.0, 1.0) for number in runners):
            self.refuse("the same random numbers in two decisions")
        self.raced.update(runners)


_NAMES = {"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_NAMES |= {"subtract": "sub", "multiply": "mul", "divide": "div", "truediv": "div"}
_NAMES |= {"true_divide": "div", "negative": "neg", "not_equal": "ne", "equal": "eq"}
_NAMES |= {"radd": "add", "rmul": "mul", "rtruediv": "rdiv", "long": "whole", "int": "whole"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_ARITHMETIC = {"add": "add", "mul": "mul", "sub": "rsub", "div": "rdiv"}
"""Operator -> what it is where the symbol stands on the right."""
_MOVES = {"view", "reshape", "squeeze", "unsqueeze", "flatten", "ravel", "expand", "permute"}
_MOVES |= {"transpose", "getitem", "select", "narrow", "index_select", "gather", "expand_as"}
_MOVES |= {"view_as", "t"}
_SAME = {"float", "double", "cpu", "contiguous", "clone", "detach", "item", "to", "type", "type_as"}
_SAME |= {"numpy", "astype", "copy", "tolist"}
_PROPERTIES = {"shape", "ndim", "size", "device", "dtype", "is_cuda", "requires_grad", "layout"}
_FACTS = {"size", "dim", "numel", "stride", "is_floating_point"}
_CLAMPS = {"clamp_min", "clamp", "clip"}
_JOINS = {"stack", "cat", "concat", "concatenate"}
_KNOWN = _MOVES | _SAME | _FACTS | _CLAMPS | _JOINS | _MIRRORED.keys() | _ARITHMETIC.keys()
_KNOWN |= {"neg", "log", "log1p", "argmax", "argmin", "rsub", "rdiv", "whole"}
_KEYWORDS = {"argmax": {"dim", "keepdim", "axis"}, "stack": {"dim", "axis"}, "to": {"device"}}
_KEYWORDS["argmin"], _KEYWORDS["to"] = _KEYWORDS["argmax"], {"device", "dtype", "copy"}
for _name in _MOVES | _JOINS:
    _KEYWORDS[_name] = {"dim", "axis"}
for _name in _CLAMPS:
    _KEYWORDS[_name] = {"min", "max"}


def like_of(value: Any) -> Any:
    """The real value that a symbol, or each symbol in a list, is like."""
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, list | tuple):
        return type(value)(map(like_of, value))
    return value.like if is_symbol(value) else value


def is_symbol(value: Any) -> bool:
    return issubclass(type(value), Symbol)  # its __class__ is another one


def dressed(numbers: Tensor, like: Any) -> Any:
    """Numbers or truths that are known, of the type that the real function returned."""
    if isinstance(like, Tensor):
        return numbers.reshape(like.shape).to(like.dtype)
    if isinstance(like, np.ndarray):
        return numbers.numpy().reshape(like.shape).astype(like.dtype)
    return type(like)(numbers.item())


class Symbol:
    """Random numbers that are not known, the uniforms ``ids [...]``; by itself of a distribution
    that cannot be followed, so that any use of them is refused by their ``name``."""

    def __init__(
        self, run: Execution, ids: Tensor, like: Any, name: str = "random numbers"
    ) -> None:
        self.run, self.ids, self.like, self.name = run, ids, like, name
        # shared by all views of a tensor that was filled in place; when that is filled again,
        # ``memory["over"]`` is True and the views are refused
        self.memory: dict[str, bool] = {}
        run.drawn = True

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # type: ignore[override]
        return type(self.like)  # so that isinstance(u, float) is what it really is

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.like, name)
        if not callable(found) or name.startswith("__"):
            return found if name in _PROPERTIES else self.run.refuse(f"{name} of {self.name}")
        return lambda *args, **kwargs: self.call(
            name, (self, *args), kwargs, lambda like, *a, **k: getattr(like, name)(*a, **k)
        )

    def __len__(self) -> int:
        return len(self.like)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self.like)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            return self.run.refuse(f"numpy.{ufunc.__name__}.{method} of {self.name}")
        return self.call(ufunc.__name__, inputs, {}, ufunc)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ == "searchsorted" and is_symbol(args[1]) and not set(kwargs) - {"side"}:
            like = func(like_of(args[0]), like_of(args[1]), **kwargs)
            limits = torch.as_tensor(args[0], dtype=torch.float64)
            return dressed(args[1].found_in(limits), like)
        return self.call(func.__name__, args, kwargs, func)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        symbol = symbols_in((args, kwargs or {}))[0]
        return symbol.call(func.__name__, args, kwargs or {}, func)

    def call(self, name: str, args: Sequence[Any], kwargs: Any, real: Callable[..., Any]) -> Any:
        """Apply a function, by name, to arguments with a symbol among them."""
        asked, name = name, name.strip("_")
        name = _NAMES.get(name, name)
        if self.memory.get("over"):
            return self.run.refuse("a tensor that was filled with other random numbers since")
        unknown = set(kwargs) - _KEYWORDS.get(name, set())
        in_place = asked.endswith("_") and not asked.endswith("__")
        if name not in _KNOWN or unknown or in_place or type(self) is Symbol:
            extra = "".join(f" with {x}=" for x in sorted(unknown)) if name in _KNOWN else ""
            return self.run.refuse(f"{asked} of {self.name}{extra}")
        # what is computed here is nobody's draw, and warns of nobody's numbers
        with torch._C.DisableTorchFunction(), np.errstate(all="ignore"):
            # what the real one refuses, is refused
            like = real(*map(like_of, args), **{key: like_of(x) for key, x in kwargs.items()})
            if isinstance(like, np.ndarray) and any(like is x for x in (*args, *kwargs.values())):
                return self.run.refuse(f"{asked} of {self.name} into an array that exists")
            if name in _FACTS or isinstance(like, str):
                return like
            if name in _MIRRORED and _common_type([like_of(x) for x in args]) not in WIDE:
                return self.run.refuse(f"{self.name} compared in a type that is too coarse")
            found = self._called(name, args, kwargs)
            if name == "tolist" and isinstance(like, list):
                return [x.tolist() if x.ids.ndim else x.item() for x in found]
            if not is_symbol(found):
                return dressed(found, like) if isinstance(found, Tensor) else found
            if getattr(like, "dtype", torch.float64) not in WIDE or not _on_cpu(like):
                return self.run.refuse(f"{self.name} converted to {like.dtype} on {like.device}")
            found.like = like
            if not found.is_resolved():
                return self.run.refuse(f"{asked} of {self.name}, which lose their digits in it")
            return found

    def _called(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if name in _JOINS:
            return self._joined(name, args, kwargs)
        if args[0] is not self:
            if len(args) == 2 and args[1] is self and name in _MIRRORED:
                return self.compare(_MIRRORED[name], args[0])
            if len(args) == 2 and args[1] is self and name in _ARITHMETIC:
                return self.arithmetic(_ARITHMETIC[name], args[0])
            return self.run.refuse(f"{name} with {self.name} as an argument")
        if name in _MIRRORED and len(args) == 2:
            return self.compare(name, args[1])
        if name in (*_ARITHMETIC, "rsub", "rdiv") and len(args) == 2:
            return self.arithmetic(name, args[1])
        if name == "neg":
            return self.arithmetic("mul", -1.0)
        if name in _SAME:
            if len(args) + len(kwargs) > 1 and name not in ("to", "type", "type_as", "astype"):
                return self.run.refuse(f"{name} of {self.name} with arguments")
            return self.moved("clone", (), {})
        if name in _MOVES:
            if symbols_in((args[1:], kwargs)):
                return self.run.refuse("random numbers as an index")
            return self.moved(name, args[1:], kwargs)
        return self.special(name, args[1:], kwargs)

    def moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Symbol:
        raise NotImplementedError

    def is_resolved(self) -> bool:
        """Whether numbers of this type can tell its values apart."""
        return True

    def keeps(self, factor: Tensor, constant: Tensor) -> bool:
        """Whether ``factor x + constant`` keeps the digits of an x of about 1."""
        size, finite = factor.abs(), factor.isfinite() & (factor != 0)
        lost = constant.abs() * _epsilon(self.like) > LOST * size
        bad = lost & constant.isfinite() | (size > EXTREME) | (size < 1 / EXTREME)
        return not bool((bad & finite).any())

    def compare(self, op: str, other: Any) -> Any:
        return self.run.refuse("such random numbers compared with numbers")

    def arithmetic(self, op: str, other: Any) -> Any:
        return self.run.refuse(f"arithmetic on random numbers ({op})")

    def special(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.run.refuse(f"{name} of random numbers")

    def found_in(self, limits: Tensor) -> Tensor:
        return self.run.refuse(f"searchsorted of {self.name}")

    def _joined(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.run.refuse(f"{name} of {self.name}")


def _epsilon(like: Any) -> float:
    single = getattr(like, "dtype", None) in (torch.float32, np.dtype("float32"))
    return float(np.finfo(np.float32 if single else np.float64).eps)


def _common_type(values: list[Any]) -> Any:
    """The number type in which values are compared."""
    if any(isinstance(x, Tensor) for x in values):
        first, second = (torch.as_tensor(x) if isinstance(x, np.ndarray) else x for x in values)
        return torch.result_type(first, second)
    return np.result_type(*values)


def _on_cpu(like: Any) -> bool:
    return not isinstance(like, Tensor) or like.device.type == "cpu"


def _operator(name: str, real: Callable[..., Any]) -> Any:
    return lambda self, *args: self.call(name, (self, *args), {}, real)


def _refused(name: str) -> Any:
    def method(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        if name in _AUGMENTED and not isinstance(self.like, Tensor | np.ndarray):
            return _AUGMENTED[name](self, *args)  # numbers of Python do not change
        return self.run.refuse(f"{name} of {self.name}")

    return method


_AUGMENTED = {"iadd": operator.add, "isub": operator.sub, "imul": operator.mul}
_AUGMENTED["itruediv"] = operator.truediv
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "truediv", "neg", "getitem"):
    setattr(Symbol, f"__{_name}__", _operator(_name, getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv"):
    _real = getattr(operator, _name)
    setattr(Symbol, f"__r{_name}__", _operator(f"r{_name}", lambda x, y, f=_real: f(y, x)))
for _name, _real in (("int", int), ("floor", math.floor), ("trunc", math.trunc)):
    setattr(Symbol, f"__{_name}__", _operator("whole", _real))
for _name in (
    *("bool", "float", "index", "complex", "abs", "round", "ceil", "pos", "hash", "repr", "str"),
    *("pow", "rpow", "mod", "rmod", "floordiv", "rfloordiv", "divmod", "rdivmod", "matmul"),
    *("rmatmul", "and", "rand", "or", "ror", "xor", "rxor", "invert", "contains", "setitem"),
    *("array", "delitem", "reversed", "format", "dlpack", "reduce_ex", "copy", "deepcopy"),
    *("ipow", "ifloordiv", "imod", *_AUGMENTED),
):
    # a Python error of its own could be caught, and the refusal with it
    setattr(Symbol, f"__{_name}__", _refused(_name))


class UniformSymbol(Symbol):
    """``scale g(a u + b) + shift`` of independent uniforms u, where g is the identity (then scale
    is 1 and shift 0) or, if ``logged``, the natural logarithm. Without ``parts`` they are u, or
    -log u: exponential variables."""

    def __init__(
        self,
        run: Execution,
        ids: Tensor,
        like: Any,
        parts: Sequence[Tensor] = (),
        logged: bool = False,
    ) -> None:
        super().__init__(run, ids, like)
        if not parts:
            one, none = (torch.tensor(x).double().expand(ids.shape) for x in (1.0, 0.0))
            parts = one, none, -one if logged else one, none
        self.a, self.b, self.scale, self.shift = self.parts = tuple(parts)
        self.logged = logged

    @property
    def is_plain(self) -> bool:
        """Whether ``a u + b`` is a uniform on (0, 1) itself: u or 1 - u."""
        same = ((self.a - 1).abs() <= SMALLEST) & (self.b.abs() <= SMALLEST)
        turned = ((self.a + 1).abs() <= SMALLEST) & ((self.b - 1).abs() <= SMALLEST)
        return bool((same | turned).all())

    @property
    def is_exponential(self) -> bool:
        """Whether it is -log u, or that and a constant that keeps it off 0."""
        off = (self.shift >= 0) & (self.shift <= SMALLEST) & (self.scale == -1)
        return self.logged and self.is_plain and bool(off.all())

    def _with(self, ids: Tensor, *parts: Tensor, logged: bool = False) -> UniformSymbol:
        found = UniformSymbol(self.run, ids, self.like, parts, logged or self.logged)
        found.memory = self.memory
        return found

    def moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> UniformSymbol:
        def change(x: Tensor) -> Tensor:
            if name == "getitem":
                return x[args[0]]
            return x.flatten() if name == "ravel" else getattr(x, name)(*args, **kwargs)

        return self._with(*map(change, (self.ids, *self.parts)))

    def is_resolved(self) -> bool:
        inside = self.keeps(self.a, self.b)
        return inside and (not self.logged or self.keeps(self.scale, self.shift))

    def _limits(self, other: Any) -> list[Tensor]:
        """The numbers, their parts and what they meet, of one shape."""
        if symbols_in([other]):
            return self.run.refuse("two random numbers in one operation")
        limits = torch.as_tensor(other, dtype=torch.float64)
        return list(torch.broadcast_tensors(self.ids, *self.parts, limits))

    def compare(self, op: str, other: Any) -> Any:
        parts = self._limits(other)
        rows = zip(*(x.reshape(-1).tolist() for x in parts), strict=True)
        return torch.tensor([self._holds(op, *row) for row in rows], dtype=torch.bool)

    def _holds(
        self, op: str, number: int, a: float, b: float, scale: float, shift: float, limit: float
    ) -> bool:
        if math.isnan(limit):
            return op == "ne"
        turned = False
        if self.logged:
            if math.isinf(scale):
                return self.run.refuse("arithmetic of random numbers with 1/0")
            power = (limit - shift) / scale
            limit, turned = math.exp(power) if power < 700 else math.inf, scale < 0
        if a == 0:
            return bool(getattr(operator, op)(b, limit))
        if op in ("eq", "ne"):
            return op == "ne"  # a number is met with probability 0
        # for the same reason < and <= are one
        is_below = self.run.below(number, (limit - b) / a)
        return is_below == ((op in ("lt", "le")) == ((a > 0) != turned))

    def arithmetic(self, op: str, other: Any) -> Any:
        ids, a, b, scale, shift, x = self._limits(other)
        if op == "rdiv":
            if not self.is_exponential:
                return self.run.refuse("a number divided by random numbers")
            return RaceSymbol(self.run, ids, self.like, x.clone(), "p/E")
        if self.logged and op == "div" and self.is_exponential:
            shift = torch.zeros_like(shift)
        if op in ("mul", "div", "rsub"):
            grown = x if op == "mul" else 1 / x if op == "div" else torch.tensor(-1.0)
            if self.logged:
                scale, shift = scale * grown, torch.where(shift == 0, 0.0, shift * grown)
            else:
                a, b = a * grown, b * grown
        if op in ("add", "sub", "rsub"):
            x = -x if op == "sub" else x
            b, shift = (b, shift + x) if self.logged else (b + x, shift)
        bad = (
            scale.isnan() | ~shift.isfinite() | (scale == 0) if self.logged else ~(a + b).isfinite()
        )
        if op in ("add", "sub", "rsub") and self.logged:
            bad |= ~scale.isfinite()
        if bool(bad.any()):
            return self.run.refuse("arithmetic of random numbers with 1/0, infinity or NaN")
        return self._with(ids, a, b, scale, shift)

    def special(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if name == "log1p":
            return self.arithmetic("add", 1.0).special("log", args, kwargs)
        if name == "log" and not self.logged:
            least = torch.minimum(self.b, self.a + self.b)
            if bool((least >= -DUST * self.a.abs()).all() and (self.a != 0).all()):
                parts = self.a, self.b, self.scale, self.shift
                return self._with(self.ids, *parts, logged=True)
        if name == "log" and self.is_exponential:
            return RaceSymbol(self.run, self.ids, self.like, torch.zeros_like(self.shift), "log E")
        if name in _CLAMPS and self._keeps_finite(args, kwargs):
            return self._with(self.ids, *self.parts)
        if name == "whole" and not self.logged:
            return self._cells()
        if name in ("argmin", "argmax") and self.logged and self.is_plain:
            # the first of E/p, or the last of log(u)/p
            sign = self.scale < 0 if name == "argmin" else self.scale > 0
            small = (self.shift >= 0) & (self.shift <= SMALLEST * self.scale.abs())
            if bool(sign.all() and small.all()):
                return _winners(self.run, self.ids, 1 / self.scale.abs(), args, kwargs)
        return super().special(name, args, kwargs)

    def _keeps_finite(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the bounds of a ``clamp`` are the ends of where the numbers lie."""
        given = dict(zip(("min", "max"), args, strict=False)) | kwargs
        low, high = (given.get(x) for x in ("min", "max"))
        top = 1.0 if not self.logged else math.inf
        low, high = 0.0 if low is None else float(low), top if high is None else float(high)
        known = self.is_exponential if self.logged else self.is_plain
        return known and 0 <= low <= SMALLEST and high >= top - SMALLEST

    def _cells(self) -> Tensor:
        """Whole parts of numbers that are not negative: how many whole numbers from 1 on are
        below."""
        for number, a, b in zip(*(x.flatten().tolist() for x in (self.ids, self.a, self.b))):
            low, high = sorted(a * x + b for x in self.run.bounds[number])
            if low < 0 or high > MOST_CELLS:
                return self.run.refuse("whole parts of random numbers that are negative or large")
        return self.found_in(torch.arange(1.0, MOST_CELLS + 1))

    def found_in(self, limits: Tensor) -> Tensor:
        """Where each number falls in a row, by bisection as the real functions do; on which side of
        an equal limit has probability 0."""
        rows = limits.double().expand(*self.ids.shape[:-1], limits.shape[-1])
        rows = rows.reshape(-1, limits.shape[-1])
        each = self.ids.reshape(len(rows), -1).shape[1] if self.ids.ndim else 1
        if bool(rows.isnan().any()) or (each > 1 and bool((rows.diff(dim=-1) < 0).any())):
            return self.run.refuse("searchsorted in a row that is not sorted")
        out = []
        for i in range(self.ids.numel()):
            a, b, scale, shift = (float(x.reshape(-1)[i]) for x in self.parts)
            row, low, high = rows[i // each].tolist(), 0, rows.shape[-1]
            while low < high:
                middle = (low + high) // 2
                number = int(self.ids.reshape(-1)[i])
                if self._holds("lt", number, a, b, scale, shift, row[middle]):
                    high = middle
                else:
                    low = middle + 1
            out.append(low)
        return torch.tensor(out).reshape(self.ids.shape)

    def _joined(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        given = args[0] if len(args) and isinstance(args[0], list | tuple) else ()
        if (
            not all(type(x) is UniformSymbol and x.logged == self.logged for x in given)
            or not given
        ):
            return self.run.refuse(f"{name} of random numbers of several kinds")
        join = torch.stack if name == "stack" else torch.cat
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
        parts = zip(*((x.ids, *x.parts) for x in given), strict=True)
        return self._with(*(join(list(part), dim) for part in parts))


class RaceSymbol(Symbol):
    """What a race makes of exponential variables E: ``p / E``, whose argmax is drawn in proportion
    to p; or Gumbel noise, ``scale (log E + terms)``, whose argmin (argmax for a scale below 0) is
    drawn in proportion to ``exp(-terms)``."""

    def __init__(
        self, run: Execution, ids: Tensor, like: Any, terms: Tensor, form: str, scale: float = 1.0
    ) -> None:
        super().__init__(run, ids, like)
        self.terms, self.form, self.scale = terms, form, scale

    def _with(self, ids: Tensor, terms: Tensor, scale: float) -> RaceSymbol:
        found = RaceSymbol(self.run, ids, self.like, terms, self.form, scale)
        found.memory = self.memory
        return found

    def is_resolved(self) -> bool:
        constant = self.terms if self.form != "p/E" else torch.zeros(1)
        return self.keeps(torch.ones(1), constant) and 1 / EXTREME < abs(self.scale) < EXTREME

    def moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> RaceSymbol:
        if name == "getitem":
            return self._with(self.ids[args[0]], self.terms[args[0]], self.scale)
        ids, terms = (getattr(x, name)(*args, **kwargs) for x in (self.ids, self.terms))
        return self._with(ids, terms, self.scale)

    def arithmetic(self, op: str, other: Any) -> Any:
        if symbols_in([other]):
            return self.run.refuse("arithmetic on a race")
        x = torch.as_tensor(other, dtype=torch.float64)
        ids, terms, x = torch.broadcast_tensors(self.ids, self.terms, x)
        factor = {"mul": x, "div": 1 / x, "rsub": -torch.ones_like(x)}.get(op, torch.ones_like(x))
        one = float(factor.flatten()[0]) if factor.numel() else 1.0
        if op == "rdiv" or not (math.isfinite(one) and one != 0 and bool((factor == one).all())):
            return self.run.refuse("a race whose places are scaled")
        if self.form == "p/E":
            if one < 0 or op not in ("mul", "div"):
                return self.run.refuse("arithmetic on a race")
            return self._with(ids, terms.clone(), self.scale * one)
        scale = self.scale * one
        added = {"add": x, "sub": -x, "rsub": x}.get(op, torch.zeros_like(x))
        return self._with(ids, terms + added / scale, scale)

    def special(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        down = self.form != "p/E" and self.scale > 0
        if name != ("argmin" if down else "argmax"):
            return self.run.refuse(f"{name} of exponential variables")
        weights = self.terms if self.form == "p/E" else (-self.terms).exp()
        return _winners(self.run, self.ids, weights, args, kwargs)


def _winners(
    run: Execution, ids: Tensor, weights: Tensor, args: Sequence[Any], kwargs: dict[str, Any]
) -> Tensor:
    """Who wins a race in each row, in proportion to the weights."""
    dim = kwargs.get("dim", kwargs.get("axis", args[0] if args else None))
    if dim is None and weights.ndim == 1:
        dim = -1
    if dim not in (-1, weights.ndim - 1):
        return run.refuse("a race over another dimension than the last")
    run.start(ids)
    rows = weights.reshape(-1, weights.shape[-1]).tolist()
    # without a runner all places are 0 (or infinite) alike, and the first one is found
    return torch.tensor([run.token(row) if any(row) else 0 for row in rows])


_PLAIN = {Tensor, int, float, bool, slice, type(None), str, np.ndarray, torch.dtype}


def symbols_in(values: Any) -> list[Symbol]:
    """The symbols among arguments, also inside lists."""
    found = []
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind is list or kind is tuple:
            found += symbols_in(value)
        elif kind is dict:
            found += symbols_in(value.values())
        elif issubclass(kind, Symbol):
            found.append(value)
    return found
