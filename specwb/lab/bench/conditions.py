"""The conditions of a measurement: models, weights, device, packages, this code."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specwb.core.files import home, weights_hash
from specwb.engine.machine import commit
from specwb.engine.methods import METHODS, Method
from specwb.lab.bench.store import digest
from specwb.models.target import Target, memory_hash


def conditions(
    target: Target, methods: Iterable[Any] = (), draft: Target | None = None
) -> dict[str, Any]:
    """Return what results depend on besides settings: together they identify a run.

    Args:
        target: the target model.
        methods: built methods; a decoding of the library has nothing of its own.
        draft: the draft model, default that of the first method that has one.

    Returns:
        A dict with the keys

        - models: role -> name, type, size and number of parameters.
        - sha256: of the weights, by role: target, draft, the kind of a trained head (the method's
          key, where that names the head or no kind is known), and ``files``, the n-grams that a
          method drafts with. Of a second draft, head or file in one role, the role is the method's
          key and the role.
        - device: the GPU, or the processor and the number of threads.
        - threads: CPU threads that torch computes with.
        - dtype: the target's number type.
        - versions: of the packages that decide a result.
        - commit: of this code.
    """
    return {
        **weights(target, methods, draft),
        "device": describe_device(target.device),
        "threads": torch.get_num_threads(),
        "dtype": str(target.dtype).removeprefix("torch."),
        "versions": versions(),
        "commit": commit(),
    }


def weights(
    target: Target, methods: Iterable[Any] = (), draft: Target | None = None
) -> dict[str, Any]:
    """Return the keys ``models`` and ``sha256`` of :func:`conditions`."""
    built = [method for method in methods if isinstance(method, Method)]
    models = {"target": target}
    if (draft := draft or draft_of(built)) is not None:
        models["draft"] = draft
    sha256 = {role: model.fingerprint for role, model in models.items()}
    for method in built:
        for role, hash in _drafted_with(target, method).items():
            if sha256.setdefault(role, hash) != hash:
                sha256[f"{method.key} {role}"] = hash
    return {
        "models": {role: describe(model) for role, model in models.items()},
        "sha256": sha256,
    }


def _drafted_with(target: Target, method: Method) -> dict[str, str]:
    """The sha256 of what a method drafts with, by role."""
    name, drafter, head = method.key.partition(":")[0], method.drafter, method.options.get("head")
    kind = METHODS[name].head if name in METHODS else ""
    hashes: dict[str, str] = {}
    if (draft := draft_of([method])) is not None:
        hashes["draft"] = draft.fingerprint
    place = target.own_head(kind) if kind and head is None else head
    role = kind if kind and "head=" not in method.key else method.key
    # a drafter, and what stops it, may have modules that were handed over or are from the hub
    owners = (drafter, getattr(drafter, "sure", None), getattr(drafter, "behind", None))
    values = [value for owner in owners for value in getattr(owner, "__dict__", {}).values()]
    modules = [value for value in values if isinstance(value, nn.Module)]
    if isinstance(place, str | Path) and home(place).exists():
        hashes[role] = weights_hash(home(place))
    elif modules:
        hashes[role] = digest([memory_hash(module) for module in modules])
    if files := [weights_hash(file) for file in getattr(drafter, "files", ())]:
        hashes["files"] = files[0] if len(files) == 1 else digest(files)
    return hashes


def draft_of(methods: Iterable[Any]) -> Target | None:
    """Return the draft model of the first method that has one."""
    drafters = (getattr(method, "drafter", None) for method in methods)
    drafts = (getattr(drafter, "draft", None) for drafter in drafters)
    return next((draft for draft in drafts if isinstance(draft, Target)), None)


def versions() -> dict[str, str]:
    """List the versions of the packages that decide a result.

    scikit-learn is among them: the library's assisted decoding behaves differently where it is
    installed.
    """
    numbers = {"python": platform.python_version()}
    for name in ("specwb", "torch", "transformers", "scikit-learn"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            numbers[name] = "not installed"
    return numbers


def describe_device(device: torch.device) -> str:
    """Name the GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def describe(target: Target) -> str:
    """Name a model with its type, layers x width, and number of parameters."""
    count = sum(p.numel() for p in target.model.parameters())
    config = target.model.config
    size = f"{config.num_hidden_layers} x {config.hidden_size}"
    parameters = f"{count / 1e6:.1f} M parameters"
    return f"{target.name} ({config.model_type}, {size}, {parameters})"
