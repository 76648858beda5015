"""The generators of Python, numpy and torch, and what else a function may take randomness from,
intercepted for a whole process: it is for child processes only, and nothing is put back.

The methods of all generators are replaced *in their classes*, so that it makes no difference by
which name one is reached, nor when it was made. Functions of C that were bound before to a name, in
a list or in a closure are found there by the garbage collector and replaced. While no function is
followed (``current()`` is None), everything does what it always did.

Of numpy and ``random`` the usual draws are followed; of others a symbol comes that refuses to be
used. Seeds, states, clocks, threads, files and generators made while the function runs are refused.
"""

from __future__ import annotations

import _random
import builtins
import ctypes
import datetime
import gc
import importlib
import opcode
import os
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specwb.certificate.symbols import Execution, NoCertificate, RaceSymbol, Symbol, UniformSymbol

_GENERATORS = (
    *(_random.Random, torch._C.Generator),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
)
_OURS = tuple(str(Path(__file__).with_stem(x)) for x in ("symbols", "forking", "interception"))
_STDLIB = sysconfig.get_path("stdlib")
_LIBRARIES = tuple(str(Path(str(x.__file__)).parent) for x in (np, torch))
_MOST_SIDES = 64
_SOURCES = {
    "os": "urandom getrandom times getloadavg",
    "_ssl": "RAND_bytes",
    "resource": "getrusage",
    "uuid": "_generate_time_safe",
    "_thread": "start_new_thread start_new",
    "torch._C": "_to_dlpack",
    "time": "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time "
    "process_time_ns thread_time thread_time_ns localtime gmtime ctime asctime strftime "
    "clock_gettime clock_gettime_ns",
}
"""Functions of C that may not be called: clocks, threads, random bytes, and what shares memory."""

_id = id  # which is replaced later, for others
_at_work: list[Execution] = []
_known: dict[int, Any] = {}  # generators that existed before the function ran
_private = {
    np.random.Generator: np.random.default_rng(1),
    np.random.RandomState: np.random.RandomState(1),
}
_state_of: dict[Any, Callable[[Any], Any]] = {}  # the original readers
_watched: list[Any] = []  # generators of Python and torch, bit generators of numpy
_tapped: list[str] = []  # sources of random bytes that were opened, for good


def current() -> Execution | None:
    """The run of a function that is being followed; None while our own code is at work."""
    return _at_work[-1] if _at_work else None


def _is_library(file: str) -> bool:
    """Whether a file is Python's own, numpy's or torch's."""
    is_python = file.startswith((_STDLIB, "<frozen")) and "site-packages" not in file
    return is_python or file.startswith(_LIBRARIES)


def _put(owner: Any, name: str, new: Any) -> Any:
    """Set a class's attribute, also of a class of C; returns the old one."""
    inside = gc.get_referents(owner.__dict__)[0]
    old, inside[name] = inside[name], new
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
    return old


class _Kept:
    """Holds an original function where it is not found, and replaced, like all others."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def _refusing(name: str, old: Callable[..., Any], everywhere: bool = True) -> Any:
    """What stands in for a function that may not be called while a run is followed, or (not
    ``everywhere``) not by anyone but Python itself, numpy and torch."""

    kept = _Kept(old)

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        run = current()
        if run is None or (not everywhere and _is_library(sys._getframe(1).f_code.co_filename)):
            return kept.function(*args, **kwargs)
        return run.refuse(f"{name}, which is not intercepted")

    return stand_in


# ------------------------------------------------------------------------------ Python's generators


def _python(old: Callable[..., Any]) -> Callable[..., Any]:
    def random(self: Any) -> Any:
        run = current()
        if run is None:
            return old(self)
        if _id(self) not in _known:
            return run.refuse("a random.Random made while the function runs")
        return UniformSymbol(run, run.numbers(()), 0.5)

    return random


def _below(old: Callable[..., Any]) -> Callable[..., Any]:
    """Whole numbers below n, which choice, shuffle, sample, randrange and randint draw."""

    def _randbelow(self: Any, n: int) -> int:
        run = current()
        if run is None:
            return old(self, n)
        if _id(self) not in _known or n > _MOST_SIDES:
            return run.refuse(f"whole numbers below {n} by a random.Random")
        return run.token([1.0] * n)

    return _randbelow


def _of_random(name: str, old: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        run = current()
        # a new one seeds itself
        if run is None or (name == "seed" and _id(self) not in _known):
            return old(self, *args)
        return run.refuse(f"random.{name}")

    return method


# ------------------------------------------------------------------------------- numpy's generators


def _uniform(
    run: Execution, real: Any, low: float = 0.0, high: float = 1.0, size: Any = None
) -> Any:
    drawn: Any = UniformSymbol(run, run.numbers(np.shape(real)), real)
    return drawn if (low, high) == (0, 1) else drawn * (high - low) + low


def _random_sample(run: Execution, real: Any, *size: Any, dtype: Any = None, **more: Any) -> Any:
    if set(more) - {"size"}:
        return run.refuse(f"numpy.random with {', '.join(more)}=")
    return _uniform(run, real)


def _exponential(run: Execution, real: Any, scale: float = 1.0, size: Any = None) -> Any:
    drawn: Any = UniformSymbol(run, run.numbers(np.shape(real)), real, logged=True)
    return drawn if scale == 1 else drawn * scale


def _standard_exponential(run: Execution, real: Any, size: Any = None) -> Any:
    return _exponential(run, real)


def _gumbel(
    run: Execution, real: Any, loc: float = 0.0, scale: float = 1.0, size: Any = None
) -> Any:
    if np.ndim(loc) or np.ndim(scale) or not scale > 0:
        return run.refuse("numpy.random.gumbel with a row of scales")
    ids = run.numbers(np.shape(real))
    terms = torch.full(ids.shape, -loc / scale, dtype=torch.float64)
    return RaceSymbol(run, ids, real, terms, "log E", -float(scale))


def _multinomial(run: Execution, real: Any, n: int, pvals: Any, size: Any = None) -> Any:
    row = np.array(pvals, dtype=float)
    if n != 1 or size is not None or row.ndim != 1:
        return run.refuse("numpy.random.multinomial of more than one draw")
    row[-1] = max(0.0, 1 - row[:-1].sum())  # whatever is given there
    return np.eye(len(row), dtype=int)[run.token(row.tolist())]


def _choice(
    run: Execution, real: Any, a: Any, size: Any = None, replace: bool = True, p: Any = None
) -> Any:
    values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
    weights = np.full(len(values), 1 / len(values)) if p is None else np.asarray(p, dtype=float)
    count = 1 if size is None else int(np.prod(size))
    drawn = values[run.tokens(torch.from_numpy(weights), count, replace).numpy()]
    return drawn[0] if size is None else drawn.reshape(np.shape(real))


def _integers(
    run: Execution, real: Any, low: int, high: int | None = None, size: Any = None
) -> Any:
    low, high = (0, low) if high is None else (low, high)
    if size is not None or high - low > _MOST_SIDES:
        return run.refuse("numpy's whole numbers of many values")
    return type(real)(low + run.token([1.0] * (high - low)))


_FOLLOWED: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("random", "random_sample", "rand", "sample", "ranf"), _random_sample),
    **dict.fromkeys(("integers", "randint"), _integers),
    "uniform": _uniform,
    "exponential": _exponential,
    "standard_exponential": _standard_exponential,
    "gumbel": _gumbel,
    "multinomial": _multinomial,
    "choice": _choice,
}


def _numpy(owner: type, name: str, old: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = current()
        if run is None:
            return old(self, *args, **kwargs)
        if _id(self) not in _known:
            return run.refuse("a generator of numpy made, or seeded, while the function runs")
        if name in ("seed", "get_state", "set_state", "spawn", "shuffle"):
            return run.refuse(f"numpy.random.{name}")
        real = _unwatched(old, _private[owner], *args, **kwargs)  # raises what it would
        if any(real is x for x in (*args, *kwargs.values())):
            return run.refuse(f"numpy.random.{name} into an array that exists")
        if name not in _FOLLOWED:
            return Symbol(run, torch.empty(0), real, f"numpy.random.{name}")
        try:
            return _FOLLOWED[name](run, real, *args, **kwargs)
        except TypeError:
            return run.refuse(f"numpy.random.{name} with these arguments")

    return method


def _unwatched(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a real function for ourselves."""
    kept, _at_work[:] = list(_at_work), []
    try:
        return function(*args, **kwargs)
    finally:
        _at_work[:] = kept


# ----------------------------------------------------------------------------- the whole process


def install() -> None:
    """Intercept what this process takes randomness from, for good."""
    bound = [x for x in gc.get_objects() if _is_bound(x)]
    for name in ("random", "getrandbits", "seed", "getstate", "setstate"):
        old = _random.Random.__dict__[name]
        if name == "getstate":
            _state_of[_random.Random] = old
        _put(_random.Random, name, _python(old) if name == "random" else _of_random(name, old))
    random.Random._randbelow = _below(random.Random._randbelow)  # type: ignore[attr-defined]
    for owner in _private:
        for name, old in list(owner.__dict__.items()):
            if not name.startswith("_") and callable(old):
                _put(owner, name, _numpy(owner, name, old))
    for name, old in list(torch._C.Generator.__dict__.items()):
        if not name.startswith("__") and callable(old):
            if name == "get_state":
                _state_of[torch._C.Generator] = old
            _put(torch._C.Generator, name, _refusing(f"{name} of a torch.Generator", old))
    for bits in (np.random.BitGenerator, *np.random.BitGenerator.__subclasses__()):
        if "state" in bits.__dict__:
            _state_of[bits] = bits.__dict__["state"].__get__
        for name, old in list(bits.__dict__.items()):
            what = f"{name} of a bit generator of numpy"
            if name.startswith("_"):
                continue
            if callable(old):
                _put(bits, name, _refusing(what, old))
            elif hasattr(old, "__get__"):
                read, write = _refusing(what, old.__get__), _refusing(what, old.__set__)
                _put(bits, name, property(read, write))
    moments = (datetime.datetime, "now"), (datetime.datetime, "utcnow"), (datetime.date, "today")
    for day, name in moments:
        _put(day, name, _moment(name, day.__dict__[name]))
    rng = _Kept(np.random.default_rng)

    def default_rng(seed: Any = None) -> Any:
        made = _unwatched(rng.function, seed)
        if seed is None:
            _known[_id(made)] = made
        return made

    changes = {_id(x): getattr(x.__self__, x.__name__) for x in bound}
    changes[_id(rng.function)] = default_rng
    functions = [*bound, rng.function]
    for module, names in _SOURCES.items():
        with suppress(ImportError):
            for name in names.split():
                if old := getattr(importlib.import_module(module), name, None):
                    functions.append(old)
                    changes[_id(old)] = _refusing(f"{module}.{name}", old)
    del bound
    _replace(functions, changes)
    builtins.id = _refusing("id()", id, False)
    load = builtins.__import__
    # what a module does when it is imported is not the function's doing
    builtins.__import__ = lambda *args, **kwargs: _unwatched(load, *args, **kwargs)
    sys.addaudithook(_audit)
    know()


def _is_bound(value: Any) -> bool:
    """Whether it is a method of C of some generator, which holds the code that it was bound to."""
    if type(value) is types.MethodType and type(value.__func__) is types.FunctionType:
        return False
    bound = type(value) in (types.BuiltinMethodType, types.MethodType)
    return bound and _is_generator(value.__self__)


def _is_generator(value: Any) -> bool:
    return issubclass(type(value), _GENERATORS)


def _moment(name: str, old: Any) -> Any:
    def now(owner: type, *args: Any, **kwargs: Any) -> Any:
        run = current()
        if run is not None:
            return run.refuse(f"datetime's {name}, which is not intercepted")
        return old.__get__(None, owner)(*args, **kwargs)

    return classmethod(now)


def know() -> None:
    """Take note of the generators there are: functions may use them."""
    made = [x for x in gc.get_objects() if _is_generator(x)]
    made += [np.random.mtrand._rand, torch.default_generator]
    made.append(random._inst)  # type: ignore[attr-defined]
    _known.update((_id(x), x) for x in made)
    ours = {_id(_bits(x)) for x in _private.values()}
    watched = {_id(x): x for x in map(_bits, made) if isinstance(x, tuple(_state_of))}
    _watched[:] = [x for number, x in watched.items() if number not in ours]


def _bits(generator: Any) -> Any:
    """What holds a generator's state."""
    return getattr(generator, "bit_generator", getattr(generator, "_bit_generator", generator))


def _replace(functions: list[Any], changes: dict[int, Any]) -> None:
    """Replace functions in dictionaries, such as a module's, in lists and closures. A generator's
    that is held elsewhere moves the generator's state, which is compared at every draw."""
    ours = {_id(functions), _id(changes)}
    for holder in gc.get_referrers(*functions):
        kind = type(holder)
        if _id(holder) in ours:
            continue
        if issubclass(kind, dict):
            for key, value in list(dict.items(holder)):
                if _id(value) in changes:
                    dict.__setitem__(holder, key, changes[_id(value)])
        elif issubclass(kind, list):
            holder[:] = [changes.get(_id(x), x) for x in holder]
        elif kind is types.CellType:
            holder.cell_contents = changes[_id(holder.cell_contents)]


_FORBIDDEN = (
    *("os.", "subprocess.", "socket.", "ctypes.", "sqlite3.", "signal.", "mmap.", "fcntl.", "gc."),
    *("sys.settrace", "sys.setprofile"),
)
_CODE = (".py", ".pyc", ".so", ".pyd")


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and str(args[0]) in ("/dev/urandom", "/dev/random"):
        _tapped.append(str(args[0]))
    if not _at_work:
        return
    if event.startswith(_FORBIDDEN):
        _at_work[-1].refuse(f"{event} while it runs")
    if event == "open":
        is_read = not args[2] & (os.O_WRONLY | os.O_RDWR)
        if not (is_read and str(args[0]).endswith(_CODE)):
            _at_work[-1].refuse(f"the file {args[0]} opened while it runs")


def states() -> list[Any]:
    """The states of all generators that may be used, which nothing draws from."""
    with torch._C.DisableTorchFunction():
        return [state(x) for x in _watched]


def state(generator: Any) -> Any:
    read = next(_state_of[x] for x in type(generator).__mro__ if x in _state_of)
    return _comparable(read(generator))


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return [_comparable(x) for x in value.values()]
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    return value.tobytes() if isinstance(value, np.ndarray) else value


def check_process() -> None:
    """Refuse a process in which something goes on besides."""
    if _tapped:
        raise NoCertificate(f"{_tapped[0]} is open")
    if len(sys._current_frames()) > 1:
        raise NoCertificate("another thread runs besides")


_HARMLESS = (
    *(NoCertificate, StopIteration, StopAsyncIteration, LookupError, AttributeError),
    *(ZeroDivisionError, ImportError, OSError),
)
_RAISE = {opcode.opmap[x] for x in ("RAISE_VARARGS", "RERAISE")}


def _trace(frame: types.FrameType, event: str, value: Any) -> Any:
    """Refuse errors that functions of C, or of a library, raise once there are random numbers: the
    real numbers might not have raised them."""
    if event == "call":
        if frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_lines = False
        return _trace
    run = current()
    if event != "exception" or run is None or not run.drawn:
        return _trace
    kind, error, place = value
    if not issubclass(kind, Exception) or issubclass(kind, _HARMLESS):
        return _trace
    last = place
    while last.tb_next is not None:
        last = last.tb_next
    from_here = last is place
    file = frame.f_code.co_filename
    is_own = frame.f_code.co_code[frame.f_lasti] in _RAISE and not _is_library(file)
    if (from_here and not is_own) or last.tb_frame.f_code.co_filename.startswith(_OURS):
        run.doubt = run.doubt or f"{kind.__name__}: {str(error)[:80]}"
    return _trace


@contextmanager
def followed(run: Execution) -> Iterator[None]:
    """``with followed(run):`` what is called inside belongs to a run."""
    sys.settrace(_trace)
    _at_work.append(run)
    try:
        yield
    finally:
        _at_work.clear()
        sys.settrace(None)
