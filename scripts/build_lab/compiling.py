"""Compiling a loss by torch, for runs that are long enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from specwb.training.fit import say

T = TypeVar("T")

COMPILE_FROM = 400
"""Steps from which on compiling pays: it takes about as long as a hundred of them."""


def compiled(function: Callable[..., T], steps: int) -> Callable[..., T]:
    """``function`` compiled by torch, or itself in short runs, and where torch finds no C++
    compiler, which the first call says. It must take tensors of nearly the same shapes every time.
    """
    if steps < COMPILE_FROM:
        return function
    # Compiled code is not looked up by a module's hooks: what was compiled for another head of the
    # same target would be taken again and store none of the layers that this one reads.
    torch._dynamo.reset()
    fast: Callable[..., T] | None = torch.compile(function, dynamic=False)
    say("compiling the first step, which takes a minute or two")

    def call(*args: Any) -> T:
        nonlocal fast
        if fast is not None:
            try:
                return fast(*args)
            except torch._dynamo.exc.TorchDynamoException as error:
                reason = str(error).strip().splitlines()[0]
                say(f"not compiled, which takes longer: {reason}")
                fast = None
        return function(*args)

    return call
