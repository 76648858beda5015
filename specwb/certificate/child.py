"""The processes that functions under test run in.

A function that is named, ``package.module:function``, is imported by a *fresh* interpreter, in
which everything is intercepted before. That interpreter has imported torch and numpy and nothing of
the user's; it stays, and every certificate is a fork of it. A function that is handed over as an
object runs in a fork of the present process, in which everything is intercepted afterwards.

In both cases the parent process is left as it was, whatever the function does, and a time limit
kills the child and what it has started.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, ClassVar, NoReturn

import psutil

from specwb.certificate.adapters import ADAPTERS
from specwb.certificate.instances import Instance
from specwb.certificate.measure import Certificate, measured
from specwb.certificate.symbols import NoCertificate
from specwb.core.errors import ArgumentError, SpecwbError

_TICK = 0.2  # seconds between two looks at whether the process that asked has ended


class Ended(SpecwbError, RuntimeError):
    """A process at the other end of a line has ended."""


@dataclass(frozen=True)
class Request:
    """What is asked of a child: the verifier or its name, and the instances."""

    verifier: Any
    cases: Sequence[Instance]
    draw: str
    logits: bool
    like: str | None
    seconds: float
    # of the process that asks
    path: list[str] = field(default_factory=lambda: list(sys.path))
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def run(job: Request) -> Certificate:
    """Measure a verifier in a child process.

    Raises:
        ArgumentError: its name cannot be imported, or there is no fork on this system.
    """
    if not hasattr(os, "fork"):
        raise ArgumentError("certificates need os.fork, which this system does not have")
    if isinstance(job.verifier, str):
        return _Interpreter.ask(job)

    def work() -> Certificate:
        from specwb.certificate import interception

        interception.install()
        return _measure(job, job.verifier)

    return forked(work, job.seconds)


def _measure(job: Request, verifier: Any) -> Certificate:
    import torch

    from specwb.certificate import interception

    interception.check_process()
    torch.set_num_threads(1)  # OpenMP's threads do not outlive a fork
    if job.like is not None:
        verifier = partial(ADAPTERS[job.like], verifier)
    return measured(verifier, job.cases, job.draw, job.logits)


def forked(work: Callable[[], Any], seconds: float, watched: int | None = None) -> Any:
    """Do work in a fork of this process and return its result, or a :class:`Certificate` that says
    why there is none. ``watched`` is a file descriptor on whose end everything ends."""
    print(end="", flush=True)  # or the child prints again what is buffered
    with TemporaryFile() as answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child has none of the threads
            pid = os.fork()  # multiprocessing starts no process in its daemonic workers
            if not pid:
                _work(work, answer, seconds, watched)
        child, code, end = psutil.Process(pid), -signal.SIGALRM, time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                if watched is not None and wait([watched], 0):
                    raise Ended("the process that asked has ended")
                with suppress(psutil.TimeoutExpired):
                    code = child.wait(min(left, _TICK)) or 0
                    break
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(psutil.NoSuchProcess):
                child.kill()
            child.wait()
        if code == -signal.SIGALRM:
            return Certificate(reason=f"it ran longer than {seconds:g} s")
        answer.seek(0)
        try:
            result = pickle.load(answer)
        except (EOFError, pickle.UnpicklingError):
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            return Certificate(reason=f"it ended the process it ran in ({how})")
    if isinstance(result, ArgumentError):
        raise result
    return result


def _work(
    work: Callable[[], Any], answer: IO[bytes], seconds: float, watched: int | None
) -> NoReturn:
    """The child's whole life, which the alarm ends where the process that asked cannot."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(min(seconds, 1e9)) + 1)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        if watched is not None:
            os.close(watched)
        try:
            result = work()
        except NoCertificate as error:
            result = Certificate(reason=str(error))
        except ArgumentError as error:
            result = error
        except BaseException as error:
            result = Certificate(reason=f"{type(error).__name__}: {str(error)[:200]}")
        answer.seek(0)
        pickle.dump(result, answer)
        answer.flush()
        code = 0
    finally:
        os._exit(code)


class _Interpreter:
    """The fresh interpreter, one for a process."""

    of_process: ClassVar[dict[int, _Interpreter]] = {}

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        call = f"from specwb.certificate.child import serve; serve({theirs.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", call],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for its parent
        )
        theirs.close()
        self.line = Connection(ours.detach())
        atexit.register(self.close)

    @classmethod
    def ask(cls, job: Request) -> Certificate:
        one = cls.of_process.get(os.getpid())
        if one is None:
            one = cls.of_process[os.getpid()] = cls()
        try:
            one.line.send(job)
            result = one.line.recv()
        except BaseException as error:
            one.close()
            if isinstance(error, EOFError | OSError):
                raise Ended("the interpreter for certificates has ended") from error
            raise
        if isinstance(result, ArgumentError):
            raise result
        return result

    def close(self) -> None:
        self.of_process.pop(os.getpid(), None)
        self.line.close()
        self.process.wait()
        atexit.unregister(self.close)


def serve(descriptor: int) -> None:
    """The fresh interpreter's life: it intercepts everything and forks for every job."""
    from specwb.certificate import interception

    interception.install()
    line = Connection(descriptor)
    while True:
        try:
            job = line.recv()
            try:
                line.send(forked(partial(_named, job), job.seconds, descriptor))
            except ArgumentError as error:
                line.send(error)
        except (EOFError, Ended):
            return


def _named(job: Request) -> Certificate:
    from specwb.certificate import interception

    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.path[:] = job.path
    importlib.invalidate_caches()
    name, _, attribute = job.verifier.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except Exception as error:  # whatever a user's module does
        raise ArgumentError(
            f"{job.verifier}: cannot import {name!r}: {type(error).__name__}: {error}"
        ) from None
    except SystemExit as error:
        raise NoCertificate(f"importing {name!r} ended the program: sys.exit({error})") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"{job.verifier}: {name!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(f"{job.verifier} is no function")
    interception.know()
    return _measure(job, found)
