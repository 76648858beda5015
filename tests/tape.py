"""A CUDA graph in miniature, on the CPU: a round is recorded as its operators on fixed memory and replayed without running its Python.

What holds for a real graph holds here: shapes are those of the recording, whatever Python decided then is frozen, and a tensor that was
exchanged instead of changed in place is not seen any more. A round that waits for a value cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONVERSIONS = ("__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__", "item", "tolist", "numpy", "cpu")
# operators that wait for values: a scalar read, or a result whose shape depends on values
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "bincount", "is_nonzero",
           "nonzero_static", "_unique", "unique_consecutive", "repeat_interleave", "multinomial"}  # fmt: skip


class Waits(AssertionError):
    """The round asks for a value while it is recorded."""


def _refused(name: str) -> Callable:
    def conversion(tensor, *args, **kwargs):
        raise Waits(f"{name} while the round is recorded")

    return conversion


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    def __init__(self, body: Callable[[], Any], device: torch.device | None = None, earlier: Any = None) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []
        self.made: set[int] = set()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        with ExitStack() as stack:
            for name in CONVERSIONS:
                stack.enter_context(patch.object(torch.Tensor, name, _refused(name)))
            stack.enter_context(self)
            self.result = body()
        for tensor, content in self.before.values():  # a graph's capture executes nothing
            tensor.copy_(content)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        from_host = name == "lift_fresh" and args[0].numel() > 1  # torch.tensor(list): a copy from the host, which a capture refuses
        if name in WAITING or by_mask or from_host:
            raise Waits(f"{name} while the round is recorded")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, Tensor) and _storage(value) not in self.made:
                whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
                self.before.setdefault(_storage(value), (whole, whole.clone()))
        out = func(*args, **kwargs)
        inputs = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        self.made |= {_storage(x) for x in tree_leaves(out) if isinstance(x, Tensor)} - inputs
        self.calls.append((func, args, kwargs, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            inputs = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and _storage(old) not in inputs:
                    assert old.shape == new.shape, f"{func}: {list(old.shape)} became {list(new.shape)}"
                    old.copy_(new)
