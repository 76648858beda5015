"""Hooks, patched forwards and parametrisations on a model's modules, which only a model that is
called as the library calls it computes."""

from __future__ import annotations

from typing import Any

from torch import nn

from specwb.models.architectures import UnsupportedModel


class HookedModel(UnsupportedModel):
    """Something was put on a model's modules that the way it runs would ignore."""


def check_unhooked(model: Any, name: str = "model") -> None:
    """Checks that no hook, patched ``forward`` or parametrisation was put on a model's modules.

    Only weights are read from the modules, or they are called in another order than the library
    does: whatever such an addition computes would be ignored."""
    remaining = [model]
    while remaining:  # every decoding asks, and model.modules() takes longer
        module = remaining.pop()
        remaining += filter(None, module._modules.values())
        if addition := _addition(module):
            path = next(path for path, one in model.named_modules() if one is module)
            which = f"module {path!r} has" if path else "module itself has"
            way_out = "remove it, or load the model with generic=True, which computes it at a node"
            raise HookedModel(f"{name}: {which} {addition}, which would be ignored; {way_out}")


def check_whole(model: Any, name: str = "model") -> None:
    """Checks that nothing was put on a model itself that a forward in two parts would not compute.

    Its layers and its head are called one after the other; hooks of all its modules, and of its
    outputs, are computed there, of every node of a draft as of a token of a text."""
    hooks = [hook for hook in model._forward_pre_hooks.values() if not _is_from(hook, _TRANSPARENT)]
    # accelerate's brings inputs to the weights' devices; what it calls is the class's own
    patched = "forward" in model.__dict__ and not hasattr(model, "_hf_hook")
    if hooks or patched:
        what = "a hook on its inputs" if hooks else "a forward of its own"
        way_out = "remove it, or decode with the model's own generate"
        raise HookedModel(f"{name}: the model itself has {what}, which would be ignored; {way_out}")


def _addition(module: nn.Module) -> str | None:
    """What a module computes beyond its class, in words; None where that is nothing."""
    attributes = module.__dict__
    hooks = (*attributes["_forward_pre_hooks"].values(), *attributes["_forward_hooks"].values())
    for hook in hooks:
        if not _is_from(hook, _TRANSPARENT):
            return f"a forward hook ({getattr(hook, '__qualname__', type(hook).__name__)})"
    if "forward" in attributes and not _is_from(attributes["forward"], _PARTS):
        return "a forward of its own, put over its class's"
    if "parametrizations" in attributes["_modules"]:
        return "a parametrised weight"
    return None


# what parts a module among devices does so where the module is called, and the backbone calls it
_PARTS = ("transformers.distributed.", "torch.distributed.")
_TRANSPARENT = ("transformers.", "torch.distributed.")  # the library's hooks copy outputs


def _is_from(function: Any, packages: tuple[str, ...]) -> bool:
    return str(getattr(function, "__module__", None)).startswith(packages)
