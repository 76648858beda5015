"""A CUDA graph in miniature, on the CPU: a decoding step is recorded as its operators on fixed
memory and replayed without running its Python.

What holds for a real graph holds here: shapes are those of the recording, whatever Python decided
then is frozen, and a tensor that was replaced instead of changed in place is not seen any more. A
step that waits for a value cannot be recorded.
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

CONVERSIONS = (
    "__bool__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
    "__array__",
    "item",
    "tolist",
    "numpy",
    "cpu",
)
# operators that wait for values: a scalar read, or a result whose shape depends on values
WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "equal",
    "bincount",
    "is_nonzero",
    "nonzero_static",
    "_unique",
    "unique_consecutive",
    "repeat_interleave",
    "multinomial",
}
INDEXING = ("index", "index_put", "index_put_")


def waits(func: Any, args: tuple) -> bool:
    """Whether an operator waits for values: by its name, or as it indexes with a mask."""
    name = func.overloadpacket.__name__
    by_mask = name in INDEXING and any(i is not None and i.dtype == torch.bool for i in args[1])
    return name in WAITING or by_mask


class Waits(AssertionError):
    """The step asks for a value while it is recorded."""


def _refused(name: str) -> Callable:
    def conversion(tensor, *args, **kwargs):
        raise Waits(f"{name} while the round is recorded")

    return conversion


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


class Tape(TorchDispatchMode):
    """A recording, see :class:`specwb.engine.graphs.Recording`.

    Args:
        body: the step. It runs once, and what it wrote into memory that is not its own is undone
            afterwards, because the capture of a graph executes nothing.
        device: unused; a recorder is called with it.
        earlier: unused too.
    """

    def __init__(
        self, body: Callable[[], Any], device: torch.device | None = None, earlier: Any = None
    ) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []
        self.fresh: set[int] = set()  # memory that the step allocates
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # other memory that it writes to
        with ExitStack() as stack:
            for name in CONVERSIONS:
                stack.enter_context(patch.object(torch.Tensor, name, _refused(name)))
            stack.enter_context(self)
            self.result = body()
        for tensor, content in self.before.values():
            tensor.copy_(content)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        # torch.tensor(list): a copy from the host, which a capture refuses
        from_host = name == "lift_fresh" and args[0].numel() > 1
        if waits(func, args) or from_host:
            raise Waits(f"{name} while the round is recorded")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, Tensor) and _storage(value) not in self.fresh:
                memory = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
                self.before.setdefault(_storage(value), (memory, memory.clone()))
        out = func(*args, **kwargs)
        inputs = {_storage(x) for x in _tensors((args, kwargs))}
        self.fresh |= {_storage(x) for x in _tensors(out)} - inputs
        self.calls.append((func, args, kwargs, out))
        return out

    def replay(self) -> None:
        """Runs the recorded operators again, their results written where they were."""
        for func, args, kwargs, out in self.calls:
            inputs = {_storage(x) for x in _tensors((args, kwargs))}
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and _storage(old) not in inputs:
                    changed = f"{func}: {list(old.shape)} became {list(new.shape)}"
                    assert old.shape == new.shape, changed
                    old.copy_(new)
