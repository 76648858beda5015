"""The exact output distribution of a Python function that draws random numbers, by forking.

While the function runs, everything that it draws is a *symbol*: a uniform on (0, 1), an exponential
variable. No number is ever sampled. A comparison ``u < t`` of a uniform that is known to lie in
``(a, b)`` forks the run in two, with the exact conditional probabilities ``(t - a) / (b - a)`` and
``(b - t) / (b - a)``; a draw from a row of probabilities (``multinomial``, a race of exponential
variables, Gumbel noise) forks over its tokens. The function is run once for every combination of
outcomes, depth first, and the probability of a result is the sum over the runs that end with it.

What may be done with symbols is in :mod:`specwb.certificate.symbols`, what is intercepted in
:mod:`specwb.certificate.interception`, whose ``install`` is called first: this module is for child
processes. Functions of torch pass a ``TorchFunctionMode``. A function that draws is called with the
same arguments first, so that what it refuses is refused. A refusal counts even if the function
catches its exception.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specwb.certificate import interception
from specwb.certificate.symbols import (
    WIDE,
    Execution,
    NoCertificate,
    Symbol,
    UniformSymbol,
    dressed,
    is_symbol,
    like_of,
    symbols_in,
)

MOST_RUNS = 20_000
"""Runs of one function, beyond which there is no certificate."""

_REFUSED = {"normal_", "random_", "cauchy_", "log_normal_", "geometric_", "dropout", "bernoulli_"}
_REFUSED |= {"alpha_dropout", "rrelu", "feature_dropout", "data_ptr", "poisson", "binomial"}
_REFUSED |= {"randn", "randn_like", "normal", "randint", "randint_like", "randperm"}
_REFUSED |= {"_standard_gamma"}
_RANDOM = {
    "rand": {"size", "dtype", "device", "layout", "requires_grad", "pin_memory", "generator"},
    "rand_like": {"dtype", "device", "layout", "requires_grad", "memory_format"},
    "uniform_": {"from", "to", "generator"},
    "exponential_": {"lambd", "generator"},
    "bernoulli": {"generator"},
    "multinomial": {"num_samples", "replacement", "generator"},
    "gumbel_softmax": {"tau", "hard", "eps", "dim"},
}
"""Functions that draw, with the keyword arguments that are understood."""
_SHARED = {"numpy", "__array__", "untyped_storage", "storage", "_typed_storage", "__dlpack__"}
_FOREIGN = {
    "from_numpy",
    "as_tensor",
    "asarray",
    "frombuffer",
    "from_dlpack",
    "from_file",
    "__get__",
}
"""Functions whose result may have memory that was there before."""
_VIEWS = {"__getitem__", "select", "narrow", "unbind", "__iter__", "view", "t", "transpose"}
_VIEWS |= {"__get__", "squeeze", "unsqueeze", "expand", "permute", "flatten", "dim", "size"}


@dataclass
class _Filled:
    """Memory that was filled in place: which random number lies in each of its elements."""

    tensor: Tensor  # keeps the memory alive
    ids: Tensor  # of the memory's elements; -1: none
    is_exponential: bool
    memory: dict[str, bool] = field(default_factory=dict)  # of the symbols made of it
    # what the tensor stands for after an operation in place; None: see ``ids``
    whole: Symbol | None = None


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class Forking(TorchFunctionMode):
    """Hands out symbols in the place of torch's random numbers.

    A tensor that was filled may be read by a way that is not seen, such as an array of numpy on its
    memory. There it has real random numbers of the generator ``noise``: they differ from one pass
    to the other, and so do the results.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(seed)
        self.blank = 113 * (seed % 2)  # what memory without values holds
        self.begin(Execution([]))

    def begin(self, run: Execution) -> None:
        self.run = run
        self.filled: dict[int, _Filled] = {}
        self.fresh: dict[int, Tensor] = {}  # memory that nobody else reads

    def _symbol(self, value: Any, is_view: bool = False) -> Any:
        """The symbol that a tensor's memory holds; with ``is_view`` only a view is made of it."""
        if not self.filled or is_symbol(value):
            return value
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(map(self._symbol, value))
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return value
        held = self.filled.get(value.untyped_storage().data_ptr())
        if held is None:
            return value
        if held.whole is not None:
            if _place(value) != _place(held.tensor):
                return self.run.refuse("a view of random numbers that were changed in place")
            return held.whole
        if value.dtype != held.tensor.dtype:
            return self.run.refuse("the memory of random numbers read as another type")
        ids = held.ids.as_strided(value.shape, value.stride(), value.storage_offset())
        if bool((ids < 0).all()):
            return value
        if bool((ids < 0).any()):
            if is_view:
                return value
            return self.run.refuse("a tensor that is random in part")
        symbol = UniformSymbol(self.run, ids.clone(), value, (), held.is_exponential)
        symbol.memory = held.memory
        return symbol

    def _fill(self, tensor: Tensor, symbol: UniformSymbol, is_fresh: bool) -> Symbol:
        """Notes that a tensor's memory holds a symbol now."""
        if tensor.dtype not in WIDE:
            return self.run.refuse(f"uniforms of {tensor.dtype}, which are too coarse")
        key = tensor.untyped_storage().data_ptr()
        held = self.filled.get(key)
        if key not in self.fresh:
            return self.run.refuse(
                "random numbers in memory that was there before, or that is read by others"
            )
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        if held is not None:
            held.memory["over"] = True  # symbols that were made of it before
        ids = torch.full((size,), -1) if held is None or held.whole else held.ids.clone()
        logged = getattr(symbol, "logged", False)
        if held is not None and (held.whole or held.is_exponential != logged):
            if _place(tensor) != _place(held.tensor):
                return self.run.refuse("a tensor filled with random numbers of two kinds")
            ids = torch.full((size,), -1)
        fresh = torch.empty(tensor.shape, dtype=tensor.dtype)
        tensor.detach().copy_(fresh.uniform_(generator=self.noise))
        if is_fresh:
            ids.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(symbol.ids)
            kept = held.tensor if held is not None else tensor
            self.filled[key] = _Filled(kept, ids, logged)
        else:
            self.filled[key] = _Filled(tensor, ids, logged, whole=symbol)
        symbol.memory = self.filled[key].memory
        return symbol

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name, run, kwargs = getattr(func, "__name__", str(func)), self.run, kwargs or {}
        name = name.partition(".")[0]  # of an operator's overload
        if interception.current() is None:  # our own code
            return func(*args, **kwargs)
        if name in _REFUSED:
            return run.refuse(f"torch.{name}")
        if name in _SHARED and isinstance(args[0], Tensor):
            self.fresh.pop(args[0].untyped_storage().data_ptr(), None)
        found = self._followed(func, name, args, kwargs)
        if type(found) is Tensor and name not in _FOREIGN and found.layout is torch.strided:
            key = found.untyped_storage().data_ptr()
            given = [x for x in (*args, *kwargs.values()) if type(x) is Tensor]
            if all(x.untyped_storage().data_ptr() != key for x in given):
                self.fresh[key] = found
                if "empty" in name:
                    found.fill_(self.blank)
        return found

    def _followed(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        run = self.run
        if name in _RANDOM:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                return run.refuse("random numbers inside of vmap")
            if kwargs.pop("generator", None) not in (None, torch.default_generator):
                return run.refuse("a torch.Generator of its own; let it draw from the global one")
            if unknown := set(kwargs) - _RANDOM[name]:
                return run.refuse(f"torch.{name} with {', '.join(sorted(unknown))}=")
            if name in ("uniform_", "exponential_"):
                given = [float(x) for x in (*args[1:], *kwargs.values()) if x is not None]
                if given not in ([], [0.0, 1.0] if name == "uniform_" else [1.0]):
                    return run.refuse(f"torch.{name} with other parameters than the standard ones")
                numbers = run.numbers(args[0].shape)
                drawn = UniformSymbol(run, numbers, args[0], (), name == "exponential_")
                return self._fill(args[0], drawn, True)
        filled = args[0] if args and isinstance(args[0], Tensor) else None
        if not self.filled and name not in _RANDOM and not symbols_in((args, kwargs)):
            return func(*args, **kwargs)
        kwargs = {key: self._symbol(value) for key, value in kwargs.items()}
        args = [self._symbol(x, name in _VIEWS and not i) for i, x in enumerate(args)]
        symbols = symbols_in((args, kwargs))
        if name in _RANDOM:
            if symbols:
                return run.refuse(f"torch.{name} with random arguments")
            return self._drawn(name, func, args, kwargs)
        if name in ("searchsorted", "bucketize") and len(args) == 2:
            limits, value = args if name == "searchsorted" else args[::-1]
            if (
                type(value) is UniformSymbol
                and not is_symbol(limits)
                and not set(kwargs) - {"right"}
            ):
                like = func(*map(like_of, args), **kwargs)
                with torch._C.DisableTorchFunction():
                    found = value.found_in(torch.as_tensor(limits))
                    return dressed(found, like)
        if not symbols:
            return func(*args, **kwargs)
        if name == "__get__":  # a property, such as shape
            return getattr(symbols[0], func.__self__.__name__)
        if not (name.endswith("_") and not name.startswith("__")):
            return symbols[0].call(name, args, kwargs, func)
        if filled is None or is_symbol(filled):
            return run.refuse(f"{name} of random numbers")
        found = symbols[0].call(name[:-1], args, kwargs, getattr(Tensor, name[:-1]))
        if not is_symbol(found):
            return run.refuse(f"{name} of random numbers")
        if found.like.shape != filled.shape:
            return run.refuse(f"{name} of random numbers of another shape")
        return self._fill(filled, found, False)

    def _drawn(self, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What a function draws, after the real one has been called."""
        run = self.run
        if name == "gumbel_softmax":
            if not kwargs.get("hard", len(args) > 2 and args[2]):
                return run.refuse("torch.nn.functional.gumbel_softmax that is not hard")
            if kwargs.get("dim", -1) not in (-1, args[0].ndim - 1) or len(args) > 3:
                return run.refuse("torch.nn.functional.gumbel_softmax of another dimension")
            if not (kwargs.get("tau", args[1] if len(args) > 1 else 1)) > 0:
                return run.refuse("torch.nn.functional.gumbel_softmax at tau = 0")
            found = run.tokens(args[0].double().softmax(-1))
            return torch.zeros_like(args[0]).scatter_(-1, found, 1.0)
        if name == "rand_like":  # which takes no generator
            like = torch.empty_like(*args, **kwargs)
        else:
            like = func(*args, **kwargs, generator=self.noise)
        number = args[0].dtype if name == "multinomial" else like.dtype
        if like.device.type != "cpu" or number not in WIDE:
            return run.refuse(f"random numbers of {number} on {like.device}")
        if name in ("rand", "rand_like"):
            return UniformSymbol(run, run.numbers(like.shape), like)
        if name == "bernoulli":
            if len(args) > 1:
                return run.refuse("torch.bernoulli with these arguments")
            below = UniformSymbol(run, run.numbers(like.shape), like).compare("lt", args[0])
            return dressed(below, like)
        count = args[1] if len(args) > 1 else kwargs.get("num_samples", 1)
        replaced = args[2] if len(args) > 2 else kwargs.get("replacement", False)
        return run.tokens(args[0], count, replaced)


def _seed(number: int) -> list[Any]:
    torch.default_generator.manual_seed(number)  # torch's own function asks for CUDA as well
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - functions under test draw from it
    return interception.states()


def distribution(
    function: Callable[[], Any], most: int = MOST_RUNS
) -> tuple[dict[Any, float], int]:
    """Compute the output distribution of a function without arguments, over all that it draws.

    Every run is made twice, the second time in reverse order and under other seeds. A result that
    is not the same then comes of randomness that was not intercepted, or of state that is kept.

    Args:
        function: its results are hashable, and equal where they are the same.
        most: runs at most.
    Returns:
        result -> probability, exact up to float64's rounding; and the number of runs.
    Raises:
        NoCertificate: it cannot be had, with the reason.
    """
    found: dict[Any, float] = {}
    leaves: list[tuple[list[int], Any]] = []
    waiting: list[list[int]] = [[]]
    # what torch.compile has made draws unseen; the function it was made of is what is run
    compiled = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        before, forking = _seed(871263), Forking(1)  # what no function seeds itself with
        while waiting:
            if len(leaves) == most:
                raise NoCertificate(f"its draws can come out in more than {most:,} ways")
            run = Execution(waiting.pop())
            result = _once(function, forking, run, before)
            waiting += run.others
            leaves.append((run.script, result))
            found[result] = found.get(result, 0.0) + run.chance
        before, forking = _seed(448071), Forking(2)
        for script, result in reversed(leaves):
            again = Execution(list(script))
            same = _once(function, forking, again, before) == result
            if not same or again.others or again.at != len(script):
                raise NoCertificate(
                    "the same draws give another result in a second run: it keeps state, or "
                    "has randomness that is not intercepted"
                )
    return found, len(leaves)


def _once(function: Callable[[], Any], forking: Forking, run: Execution, before: list[Any]) -> Any:
    def watch() -> None:
        if interception.states() != before:
            run.refuse("a generator is drawn from, or seeded, by a way that is not intercepted")

    forking.begin(run)
    run.watch = watch
    try:
        with forking, interception.followed(run):
            result = function()
        watch()
    except NoCertificate:
        if not run.fault:
            raise
    except (Exception, SystemExit) as error:
        if not run.fault:
            raise NoCertificate(f"it raised {type(error).__name__}: {str(error)[:200]}") from error
    if run.fault:  # also where the function caught it
        raise NoCertificate(run.fault)
    if run.doubt:
        raise NoCertificate(f"it caught {run.doubt}, which real random numbers may not raise")
    return result
