"""What a measurement was made on: models, weights, device, packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from specwb.files import weights_hash
from specwb.methods import METHODS, Method
from specwb.models.products import packed_bytes
from specwb.models.target import Target


def conditions(target: Target, built: dict[str, Method], began: str) -> dict[str, Any]:
    """What was measured on, and when: the first entries of ``frame.attrs``."""
    draft = draft_of(built)
    models = {"target": describe(target)}
    if draft is not None:
        models["draft"] = describe(draft)
    return {
        "packed_bytes": packed_bytes(),
        "device": describe_device(target.device),
        "models": models,
        "sha256": _hashes(target, draft, built),
        "began": began,
        "threads": torch.get_num_threads(),
    }


def _hashes(
    target: Target, draft: Target | None, built: dict[str, Method]
) -> dict[str, str | None]:
    """The sha256 of the weight files by role, or a hub model's commit.

    Of the target's own heads, those are included that a method took.
    """

    def digest(model: Target) -> str | None:
        return model.sha256 or getattr(model.model.config, "_commit_hash", None)

    hashes = {"target": digest(target)}
    if draft is not None:
        hashes["draft"] = digest(draft)
    kinds = set()
    for key in built:
        entry = METHODS.get(key.partition(":")[0])
        if entry and entry.head and "head=" not in key:
            kinds.add(entry.head)
    for kind in sorted(kinds):
        folder = target.own_head(kind)
        if folder is not None:
            hashes[kind] = weights_hash(folder)
    return hashes


def draft_of(built: dict[str, Method]) -> Target | None:
    """The draft model of the first method that has one."""
    drafts = (getattr(method.drafter, "draft", None) for method in built.values())
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
