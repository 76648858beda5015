"""Kernels that are ready at once: forks of a process that has imported what notebooks import, which
takes longer than most notebooks."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess
from typing import Any

IMPORTED = ["ipykernel.ipkernel", "specwb.show.course", "specwb.show.widgets", "specwb.lab.papers"]
IMPORTED += ["transformers.models.llama.modeling_llama"]
FORKS = multiprocessing.get_context("forkserver")


def run(connection: str, folder: str) -> None:
    """The kernel's process; its group is interrupted as one, and it ends with its parent."""
    from ipykernel.kernelapp import IPKernelApp

    from specwb.core.progress import errors

    # the console was made before the fork, outside of a kernel, and would draw progress bars
    errors.is_jupyter = True
    os.setsid()
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    IPKernelApp.launch_instance(["-f", connection], parent_handle=os.getppid())


class Kernel:
    """As a ``subprocess.Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], *, cwd: str | None = None, **_: Any) -> None:
        FORKS.set_forkserver_preload(IMPORTED)
        connection = command[command.index("-f") + 1]
        self.process: BaseProcess = FORKS.Process(target=run, args=(connection, cwd or "."))
        self.process.start()
        self.pid = self.process.pid or 0
        # until then a signal to its group would be one to this process
        while self.poll() is None and os.getpgid(self.pid) != self.pid:
            time.sleep(0.001)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
