"""The exact output distribution of a Python function that draws random numbers, by forking.

While the function runs, everything that it draws is a *symbol*: a uniform on (0, 1), an exponential
variable. No number is ever sampled. A comparison ``u < t`` of a uniform that is known to lie in
``(a, b)`` forks the run in two, with the exact conditional probabilities ``(t - a) / (b - a)`` and
``(b - t) / (b - a)``; a draw from a row of probabilities (``multinomial``, a race of exponential
variables, Gumbel noise) forks over its tokens. The function is run once for every combination of
outcomes, depth first, and the probability of a result is the sum over the runs that end with it.

What may be done with symbols is in :mod:`specwb.verify.symbols`. Whatever else is done raises
:class:`NoCertificate` by its name, and so does every source of randomness that is not intercepted.
A refusal counts even if the function catches its exception.

All calls of torch pass a ``TorchFunctionMode``, so that ``from torch import rand`` does not escape;
functions of Python's ``random`` and of numpy are replaced while the function runs.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specwb.verify.symbols import WIDE, NoCertificate, Race, Run, Symbol, Uniform, flattened

MOST_RUNS = 20_000
"""Runs of one function, beyond which there is no certificate."""

_PROPERTIES = {"shape", "ndim", "device", "dtype", "is_cuda", "requires_grad"}
_REFUSED = {"randn", "randn_like", "normal", "randint", "randint_like", "randperm", "poisson"}
_REFUSED |= {"normal_", "random_", "cauchy_", "log_normal_", "geometric_", "dropout", "bernoulli_"}
_REFUSED |= {"alpha_dropout", "rrelu", "binomial", "feature_dropout", "_standard_gamma"}
_RANDOM = {
    "rand": {"size", "dtype", "device", "layout", "requires_grad", "pin_memory", "generator"},
    "rand_like": {"dtype", "device", "layout", "requires_grad", "memory_format"},
    "uniform_": {"from", "to", "generator"},
    "exponential_": {"lambd", "generator"},
    "bernoulli": {"generator"},
    "multinomial": {"num_samples", "replacement", "generator"},
    "searchsorted": {"right", "side"},
    "bucketize": {"right"},
}
"""Functions that draw, with the keyword arguments that are understood."""


@dataclass
class _Filled:
    """Memory that was filled in place: which random number lies in each of its elements."""

    tensor: Tensor  # keeps the memory alive
    ids: Tensor  # of the memory's elements; -1: none
    kind: type[Symbol]
    memory: dict[str, bool] = field(default_factory=dict)  # of the symbols made of it
    # what the tensor stands for after an operation in place; None: see ``ids``
    whole: Symbol | None = None


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


_VIEWS = {"__getitem__", "select", "narrow", "unbind", "__iter__", "view", "t", "transpose"}
_VIEWS |= {"__get__", "squeeze", "unsqueeze", "expand", "permute", "flatten", "dim", "size"}


def _is_device(value: Any) -> bool:
    return isinstance(value, str | torch.device)


class _Forking(TorchFunctionMode):
    """Hands out symbols in the place of torch's random numbers.

    A tensor that was filled may be read by a way that is not seen, such as an array of numpy on its
    memory. There it has real random numbers of the generator ``noise``: they differ from one pass
    to the other, and so do the results.
    """

    def __init__(self, noise: torch.Generator) -> None:
        super().__init__()
        self.noise = noise
        self.begin(Run([]))

    def begin(self, run: Run) -> None:
        self.run = run
        self.filled: dict[int, _Filled] = {}

    def _symbol(self, value: Any, is_view: bool = False) -> Any:
        """The symbol that a tensor's memory holds; with ``is_view`` only a view is made of it."""
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(map(self._symbol, value)) if self.filled else value
        if not self.filled or not isinstance(value, Tensor) or value.layout is not torch.strided:
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
        symbol = held.kind(self.run, ids.clone())
        symbol.memory = held.memory
        return symbol

    def _fill(self, tensor: Tensor, symbol: Symbol) -> Symbol:
        """Notes that a tensor's memory holds a symbol now."""
        if tensor.dtype not in WIDE:
            return self.run.refuse(f"uniforms of {tensor.dtype}, which are too coarse")
        key = tensor.untyped_storage().data_ptr()
        held = self.filled.get(key)
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        bare = isinstance(symbol, Uniform) and symbol.is_bare
        bare |= isinstance(symbol, Race) and symbol.weights is None and symbol.form == "E"
        if held is not None:
            held.memory["over"] = True  # symbols that were made of it before
        ids = torch.full((size,), -1) if held is None or held.whole else held.ids.clone()
        if held is not None and (held.whole or held.kind is not type(symbol)):
            if _place(tensor) != _place(held.tensor):
                return self.run.refuse("a tensor filled with random numbers of two kinds")
            ids = torch.full((size,), -1)
        fresh = torch.empty(tensor.shape, dtype=tensor.dtype)
        tensor.detach().copy_(fresh.uniform_(generator=self.noise))
        if bare:
            ids.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(symbol.ids)
            kept = held.tensor if held is not None else tensor
            self.filled[key] = _Filled(kept, ids, type(symbol))
        else:
            self.filled[key] = _Filled(tensor, ids, type(symbol), whole=symbol)
        symbol.memory = self.filled[key].memory
        return symbol

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name, run = getattr(func, "__name__", str(func)), self.run
        filled = args[0] if args and isinstance(args[0], Tensor) else None
        if name in _REFUSED:
            return run.refuse(f"torch.{name}")
        if name in _RANDOM:
            kwargs = kwargs or {}
            if kwargs.get("generator") not in (None, torch.default_generator):
                return run.refuse("a generator of its own; let it draw from the global one")
            if unknown := set(kwargs) - _RANDOM[name]:
                return run.refuse(f"torch.{name} with {', '.join(sorted(unknown))}=")
            if name == "uniform_":
                bounds = [float(x) for x in (*args[1:], *kwargs.values()) if x is not None]
                if bounds not in ([], [0.0, 1.0]):
                    return run.refuse("torch.uniform_ between other numbers than 0 and 1")
                return self._fill(args[0], run.uniforms(args[0].shape))
            if name == "exponential_":
                rates = [float(x) for x in (*args[1:], *kwargs.values()) if x is not None]
                if rates not in ([], [1.0]):
                    return run.refuse("torch.exponential_ of another rate than 1")
                return self._fill(args[0], Race(run, run.uniforms(args[0].shape).ids))
        kwargs = {key: self._symbol(value) for key, value in (kwargs or {}).items()}
        args = [self._symbol(x, name in _VIEWS and not i) for i, x in enumerate(args)]
        if any(str(x).startswith("cuda") for x in (*args[1:], *kwargs.values()) if _is_device(x)):
            return run.refuse("a CUDA device")
        if name in ("rand", "rand_like"):
            wide = kwargs.get("dtype", torch.float64)
            if wide not in (None, *WIDE) or (name == "rand_like" and args[0].dtype not in WIDE):
                return run.refuse("uniforms in half precision, which are too coarse")
            if name == "rand_like":
                return run.uniforms(args[0].shape)
            shape = args[0] if args and isinstance(args[0], list | tuple) else args
            return run.uniforms(list(shape) or list(kwargs.get("size", ())))
        if name == "bernoulli" and len(args) == 1:
            return (run.uniforms(args[0].shape) < args[0]).to(args[0].dtype)
        if name == "multinomial" and isinstance(args[0], Tensor):
            count = args[1] if len(args) > 1 else kwargs.get("num_samples", 1)
            replaced = args[2] if len(args) > 2 else kwargs.get("replacement", False)
            return run.tokens(args[0], count, replaced)
        if name in ("searchsorted", "bucketize") and len(args) == 2:
            limits, value = args if name == "searchsorted" else args[::-1]
            if isinstance(value, Uniform) and isinstance(limits, Tensor):
                return value.found_in(limits, bool(kwargs.get("right")))
        symbols = [x for x in flattened((args, kwargs)) if isinstance(x, Symbol)]
        if not symbols:
            if name in ("bernoulli", "multinomial"):
                return run.refuse(f"torch.{name} with these arguments")
            return func(*args, **kwargs)
        if name == "__get__":  # a property, such as shape
            asked = func.__self__.__name__
            if asked not in _PROPERTIES:
                return run.refuse(f"{asked} of random numbers")
            return getattr(symbols[0], asked)
        in_place = name.endswith("_") and not name.startswith("__")
        if in_place and (filled is None or isinstance(args[0], Symbol)):
            return run.refuse(f"{name} of random numbers")
        found = symbols[0].call(name, args, kwargs)
        if in_place and filled is not None and isinstance(found, Symbol):
            return self._fill(filled, found)
        return found


class _Numpy:
    """A stand-in for ``numpy.random.default_rng()`` and its global functions."""

    def __init__(self, forking: _Forking) -> None:
        self.forking = forking

    @property
    def run(self) -> Run:
        return self.forking.run

    def random(self, size: Any = None, **more: Any) -> Uniform:
        if more:
            return self.run.refuse(f"numpy.random with {', '.join(more)}=")
        drawn = self.run.uniforms(() if size is None else np.empty(size).shape)
        drawn.is_number = size is None
        return drawn

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        drawn: Any = self.random(size)
        return drawn * (high - low) + low

    def rand(self, *shape: int) -> Uniform:
        return self.run.uniforms(shape)

    def exponential(self, scale: float = 1.0, size: Any = None) -> Any:
        if scale != 1:
            return self.run.refuse("numpy.random.exponential of another scale than 1")
        return Race(self.run, self.random(size).ids)

    def standard_exponential(self, size: Any = None) -> Any:
        return self.exponential(size=size)

    def gumbel(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        if (loc, scale) != (0, 1):
            return self.run.refuse("numpy.random.gumbel that is moved or scaled")
        return Race(self.run, self.random(size).ids, None, "-log E")

    def multinomial(self, n: int, pvals: Any, size: Any = None) -> Any:
        row = np.asarray(pvals, dtype=float)
        if n != 1 or size is not None or row.ndim != 1:
            return self.run.refuse("numpy.random.multinomial of more than one draw")
        return np.eye(len(row), dtype=int)[self.run.token(row.tolist())]

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        weights = np.full(len(values), 1 / len(values)) if p is None else np.asarray(p)
        count = 1 if size is None else int(np.prod(size))
        found = self.run.tokens(torch.as_tensor(weights, dtype=torch.float64), count, replace)
        drawn = values[found.numpy()]
        return drawn[0] if size is None else drawn.reshape(size)

    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: self.run.refuse(f"numpy.random.{name}")


@contextmanager
def _forking(seed: int) -> Iterator[_Forking]:
    """Intercepts the randomness of torch, ``random`` and numpy."""
    # made before the constructor is replaced
    forking = _Forking(torch.Generator().manual_seed(seed))
    numpy = _Numpy(forking)

    def no(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: forking.run.refuse(name)

    def fresh(seed: Any = None) -> _Numpy:
        return numpy if seed is None else forking.run.refuse("a generator with a seed of its own")

    def choices(
        population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1
    ) -> Any:
        if cum_weights is not None:
            weights = np.diff([float(x) for x in cum_weights], prepend=0.0)
        weights = [1.0] * len(population) if weights is None else weights
        row = [float(x) for x in weights]
        return [population[forking.run.token(row)] for _ in range(k)]

    changes: list[tuple[Any, str, Any]] = [
        (random, "random", numpy.random),
        (random, "uniform", numpy.uniform),
        (random, "choices", choices),
        (np.random, "default_rng", fresh),
        (torch, "Generator", no("a torch.Generator of its own")),
        (random, "Random", no("a random.Random of its own")),
        (random, "SystemRandom", no("random.SystemRandom")),
        (os, "urandom", no("os.urandom")),
        (secrets, "token_bytes", no("secrets")),
        (secrets, "randbelow", no("secrets")),
    ]
    refused = {
        random: "seed randint randrange choice shuffle sample gauss betavariate expovariate"
        " setstate triangular getrandbits",
        torch: "manual_seed seed set_rng_state initial_seed",
        torch.random: "manual_seed seed set_rng_state fork_rng",
        np.random: "seed randn randint normal RandomState permutation"
        " shuffle standard_normal binomial Generator set_state",
    }
    for module, names in refused.items():
        changes += [(module, name, no(f"{module.__name__}.{name}")) for name in names.split()]
    drawn = "random random_sample rand uniform choice exponential standard_exponential gumbel"
    for name in (*drawn.split(), "multinomial"):
        stand_in = numpy.random if name == "random_sample" else getattr(numpy, name)
        changes.append((np.random, name, stand_in))
    patches = [patch.object(module, name, new) for module, name, new in changes]
    for one in patches:
        one.start()
    # what torch.compile has made draws unseen; the function it was made of is what is run
    compiled = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    try:
        with eager, forking:
            yield forking
    finally:
        for one in reversed(patches):
            one.stop()


def _seed(number: int) -> tuple[Any, ...]:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - functions under test draw from it
    return _states()


def _states() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    key, place = numpy["state"]["key"].tobytes(), numpy["state"]["pos"]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), key, place


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
    kept = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    found: dict[Any, float] = {}
    leaves: list[tuple[list[int], Any]] = []
    waiting: list[list[int]] = [[]]
    try:
        before = _seed(871263)  # what no function seeds itself with
        with _forking(1) as forking:
            while waiting:
                if len(leaves) == most:
                    raise NoCertificate(f"its draws can come out in more than {most:,} ways")
                run = Run(waiting.pop())
                result = _once(function, forking, run)
                waiting += run.others
                leaves.append((run.script, result))
                found[result] = found.get(result, 0.0) + run.chance
        if _states() != before:
            raise NoCertificate("it draws from a generator that is not intercepted", True)
        _seed(448071)
        with _forking(2) as forking:
            for script, result in reversed(leaves):
                again = Run(list(script))
                same = _once(function, forking, again) == result
                if not same or again.others or again.at != len(script):
                    raise NoCertificate(
                        "the same draws give another result in a second run: it keeps state, or "
                        "has randomness that is not intercepted",
                        hidden=True,
                    )
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])  # noqa: NPY002
    return found, len(leaves)


def _once(function: Callable[[], Any], forking: _Forking, run: Run) -> Any:
    forking.begin(run)
    try:
        result = function()
    except NoCertificate:
        raise
    except (Exception, SystemExit) as error:
        if not run.fault:
            raise NoCertificate(f"it raised {type(error).__name__}: {error}") from error
    if run.fault:  # also where the function caught it
        raise NoCertificate(run.fault)
    return result
