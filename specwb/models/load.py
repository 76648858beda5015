"""Loading targets and drafts, and checking that they fit together."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from specwb.models.ranks import Ranks, load_parted
from specwb.models.target import Target
from specwb.options import MethodError


class LoadError(ValueError):
    """A model cannot be loaded, or target and draft do not fit together."""


def data_dir() -> Path:
    """The project's data folder: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    return here / "_data" if (here / "_data").exists() else here.parent / "data"


def load(
    source: str | Path | nn.Module | Target = "lab", *, tokenizer=None, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto",
    ranks: Ranks | None = None,
) -> Target:  # fmt: skip
    """A :class:`Target` from ``"lab"`` / ``"lab-draft"`` (the shipped family), a local folder, a hub id or a loaded model.

    Args:
        dtype: ``"auto"`` is float32 on CPU and the checkpoint's own dtype on CUDA (the lab's fp16 files become float32 on either).
        device: ``"auto"`` is CUDA where there is one; a loaded model stays where it is and keeps its dtype.
        ranks: what :func:`specwb.models.ranks.join` gave: the model is parted among them by its own tensor-parallel plan, as far as it can be.
    Raises:
        LoadError: missing folder, damaged or incomplete weights, unknown dtype, CUDA asked for without one.
        UnsupportedModel: an architecture the backbone does not run.
    """
    if ranks is not None and isinstance(source, Target | nn.Module):
        raise LoadError("a model that is loaded already cannot be parted among ranks; give its folder or hub id")
    if isinstance(source, Target):
        return source
    place = resolve_device(device) if ranks is None else ranks.device
    if isinstance(source, nn.Module):
        if dtype != "auto":
            source = source.to(resolve_dtype(dtype, place))
        return Target((source if device == "auto" else source.to(place)).eval(), tokenizer, name=type(source).__name__)
    name = str(source)
    lab = {"lab": "target", "lab-target": "target", "lab-draft": "draft"}.get(name)
    folder: str | Path = data_dir() / "lab" / lab if lab else source
    kind = "auto" if dtype == "auto" and place.type == "cuda" and lab is None else resolve_dtype(dtype, place)
    model = _weights(folder, kind, name, ranks)
    if tokenizer is None:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            raise LoadError(f"{name}: no tokenizer could be loaded from {folder}: {_line(error)}") from error
    local = Path(folder) if Path(folder).is_dir() else None
    family = data_dir() / "lab" if lab == "target" else local and local.parent
    made = Target(model.to(place).eval(), tokenizer, name, "lab-draft" if lab == "target" else None, local, family)
    made.agreed = partial(ranks.agreed, part="target") if ranks is not None else None
    return made


def _weights(folder: str | Path, dtype: torch.dtype | str, name: str, ranks: Ranks | None = None) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from specwb.models.backbone import check_supported

    path = Path(folder)
    if not path.is_dir() and (isinstance(folder, Path) or str(folder).startswith(("/", ".", "~"))):
        raise LoadError(f"{name}: folder {folder} does not exist")
    if path.is_dir():
        _complete(path, name)
    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise LoadError(f"{name}: not a folder with a config.json and not reachable on the hub: {_line(error)}") from error
    check_supported(config)
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    loaded: Any
    try:
        settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa", "output_loading_info": True}
        loaded = AutoModelForCausalLM.from_pretrained(folder, **settings) if ranks is None else load_parted(folder, config, ranks, **settings)
    except Exception as error:
        if ranks is not None and ranks.gone(error):
            raise
        raise LoadError(f"{name}: the weights in {folder} cannot be read: {_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    model, report = loaded
    problems = [
        f"{kind.replace('_', ' ')}: {', '.join(map(str, sorted(map(str, report[kind]))[:3]))}"
        for kind in ("missing_keys", "mismatched_keys")
        if report.get(kind)
    ]
    if problems:
        raise LoadError(f"{name}: checkpoint does not fit its config ({'; '.join(problems)})")
    return model


def _complete(folder: Path, name: str) -> None:
    """A clear message for missing or cut-off weight files (the library's own is about headers)."""
    import struct

    if not (folder / "config.json").exists():
        raise LoadError(f"{name}: {folder} has no config.json")
    index = folder / "model.safetensors.index.json"
    files = (
        sorted(set(json.loads(index.read_text()).get("weight_map", {}).values()))
        if index.exists()
        else [p.name for p in folder.glob("*.safetensors")]
    )
    for file in files:
        path = folder / file
        if not path.exists():
            raise LoadError(f"{name}: weight file {file} is missing from {folder}")
        size = path.stat().st_size
        with open(path, "rb") as handle:
            head = handle.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            try:
                header = json.loads(handle.read(length)) if 0 < length < size else {}
                needed = 8 + length + max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
            except ValueError:
                needed = -1
        if needed != size:
            raise LoadError(f"{name}: weight file {path} is damaged or cut off ({size} bytes, its header asks for {max(needed, 0)}); fetch it again")


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """A torch dtype by name; ``auto`` is float32. Raises LoadError for an unknown name."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32
    names = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if dtype not in names:
        raise LoadError(f"dtype must be auto, {', '.join(names)} or a torch.dtype, got {dtype!r}")
    return names[dtype]


def resolve_device(device: str | torch.device) -> torch.device:
    """``auto`` is CUDA where there is one. Raises LoadError for an unknown device or a missing CUDA."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise LoadError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from error
    if place.type not in ("cpu", "cuda"):
        raise LoadError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise LoadError(f"device {str(device)!r} was asked for, but this torch sees {torch.cuda.device_count() or 'no'} CUDA device(s)")
    return place


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


def check_pair(target: Target, draft: Target) -> None:
    """Raises LoadError unless both models speak the same tokens and live on one device: verification compares ids, so a shifted vocabulary
    would be silently wrong."""
    if draft.device != target.device:
        raise LoadError(f"target {target.name!r} is on {target.device}, draft {draft.name!r} on {draft.device}; load both with the same device=")
    if draft.vocabulary != target.vocabulary:
        small = min(draft.vocabulary, target.vocabulary)
        padded = target.tokenizer is not None and len(target.tokenizer) <= small
        detail = "; the extra rows are padding, resize the embeddings of one of them" if padded else ""
        raise LoadError(
            f"vocabulary mismatch: target {target.name!r} has {target.vocabulary} tokens, draft {draft.name!r} has {draft.vocabulary}{detail}"
        )
    if target.tokenizer is not None and draft.tokenizer is not None and draft.tokenizer is not target.tokenizer:
        a, b = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
        if a != b:
            token = next(t for t in (*a, *b) if a.get(t) != b.get(t))
            raise LoadError(
                f"tokenizer mismatch: {token!r} is id {a.get(token)} for target {target.name!r} and {b.get(token)} for draft {draft.name!r}; "
                "use a draft trained with the target's tokenizer"
            )


def draft_model(target: Target, draft: object) -> Target:
    """The draft model that was given or named, or the target's own: loaded once a target, checked.

    Raises:
        MethodError: there is none. LoadError: it does not fit.
    """
    chosen: object = draft if draft is not None else target.draft
    if chosen is None:
        way_out = "name one with draft= (--draft on the command line)"
        raise MethodError(f"{target.name!r} has no draft model of its own; {way_out}")
    # one copy of a named draft a target, however many methods use it
    if isinstance(chosen, str):
        cache = target.__dict__.setdefault("_drafts", {})
        if chosen not in cache:
            cache[chosen] = load(chosen, dtype=target.dtype, device=target.device)
        chosen = cache[chosen]
    if not isinstance(chosen, Target):
        chosen = load(cast(Any, chosen), dtype=target.dtype, device=target.device)
    check_pair(target, chosen)
    return chosen
