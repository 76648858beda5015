"""Loading targets and drafts, and checking that they fit together."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from specwb.files import table
from specwb.models.folder import LoadError, card_of, check_weights, folder_of, line, some, weight_files
from specwb.models.ranks import Ranks, load_parted
from specwb.models.target import Target
from specwb.options import MethodError

HARMLESS = re.compile(r"rotary_emb\.inv_freq$|^medusa_head\.")
"""Weights that a target may have too many: constants that older files repeat, and heads that are read as heads."""
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip


def data_dir() -> Path:
    """The project's data folder: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    return here / "_data" if (here / "_data").exists() else here.parent / "data"


def load(
    source: str | Path | nn.Module | Target = "lab", *, tokenizer=None, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto",
    ranks: Ranks | None = None, revision: str | None = None,
) -> Target:  # fmt: skip
    """A :class:`Target` from ``"lab"`` / ``"lab-draft"`` (the shipped family), a local folder, a hub id or a loaded model.

    Code that comes with a checkpoint is never run: a model or tokenizer that needs some is refused.

    Args:
        source: a hub id is ``OWNER/NAME`` or ``OWNER/NAME@REVISION``.
        dtype: ``"auto"`` is float32 on CPU and the checkpoint's own dtype on CUDA (the lab's fp16 files become float32 on either).
        device: ``"auto"`` is CUDA where there is one; a loaded model stays where it is and keeps its dtype.
        ranks: what :func:`specwb.models.ranks.join` gave: the model is parted among them by its own tensor-parallel plan, as far as it can be.
        revision: of a hub id: a branch, tag or commit; default the newest.
    Raises:
        LoadError: missing folder, a config that cannot be, damaged or incomplete weights, weights that the config does not describe or
            that ``card.json`` beside them does not name, unknown dtype, CUDA asked for without one.
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
    folder, fetched = folder_of(data_dir() / "lab" / lab if lab else source, revision=revision)
    kind = "auto" if dtype == "auto" and place.type == "cuda" and lab is None else resolve_dtype(dtype, place)
    model = _weights(folder, kind, name, ranks)
    if tokenizer is None:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:
            raise LoadError(f"{name}: no tokenizer could be loaded from {folder}: {line(error)}") from error
    family = data_dir() / "lab" if lab == "target" else None if fetched else folder.parent
    made = Target(model.to(place).eval(), tokenizer, name, "lab-draft" if lab == "target" else None, folder, family)
    if (found := check_weights(folder, card_of(folder))) is not None:
        made.sha256 = found
    made.agreed = partial(ranks.agreed, part="target") if ranks is not None else None
    return made


def _weights(folder: Path, dtype: torch.dtype | str, name: str, ranks: Ranks | None = None) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from specwb.models.backbone import check_supported

    if not (folder / "config.json").exists():
        raise LoadError(f"{name}: {folder} has no config.json")
    _check_settings(folder, name)
    if weight_files(folder) is None:
        raise LoadError(f"{name}: {folder} has no weights, neither model.safetensors nor pytorch_model.bin nor an index of their parts")
    try:
        # without trust_remote_code=False the library asks on standard input whether to run a checkpoint's code; a prompt may answer
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise LoadError(f"{name}: config.json in {folder} describes no model that is known: {' '.join(str(error).split())[:200]}") from error
    check_supported(config)
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    loaded: Any
    try:
        settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa", "output_loading_info": True, "trust_remote_code": False}
        loaded = AutoModelForCausalLM.from_pretrained(folder, **settings) if ranks is None else load_parted(folder, config, ranks, **settings)
    except Exception as error:
        if ranks is not None and ranks.gone(error):
            raise
        raise LoadError(f"{name}: the weights in {folder} cannot be read: {line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    model, report = loaded
    surplus = [key for key in report.get("unexpected_keys", ()) if not HARMLESS.search(str(key))]
    problems = [f"{kind.replace('_', ' ')}: {some(report[kind])}" for kind in ("missing_keys", "mismatched_keys") if report.get(kind)]
    if surplus:
        problems.append(f"weights that it does not describe: {some(surplus)}")
    if problems:
        raise LoadError(f"{name}: checkpoint does not fit its config ({'; '.join(problems)}); fetch both again, or put config.json right")
    return model


def _check_settings(folder: Path, name: str) -> None:
    """What the library would take as it is, and fail at later or never."""
    config, generation = (table(folder / file, LoadError) for file in ("config.json", "generation_config.json"))
    for key in SIZES:
        if config.get(key) is not None and (type(config[key]) is not int or config[key] < 1):
            raise LoadError(f"{name}: config.json says {key}={config[key]!r}; it must be an integer >= 1")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    for base in (config.get("rope_theta"), rope.get("rope_theta") if isinstance(rope, dict) else None):
        if base is not None and not (type(base) in (int, float) and 0 < base < float("inf")):
            raise LoadError(f"{name}: config.json says rope_theta={base!r}; it must be a number > 0")
    size = config.get("vocab_size")
    for file, settings in (("config.json", config), ("generation_config.json", generation)):
        ids = settings.get("eos_token_id")
        for i in () if ids is None else ids if isinstance(ids, list) else [ids]:
            if type(i) is not int or not 0 <= i < (size or 2**63):
                raise LoadError(f"{name}: {file} says eos_token_id={ids!r}; it must be token ids below the vocabulary's {size}")


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
    if place.type == "cpu" and place.index:
        raise LoadError(f"device {device!r}: there is one cpu device; write cpu")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise LoadError(f"device {str(device)!r} was asked for, but this torch sees {torch.cuda.device_count() or 'no'} CUDA device(s)")
    return place


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

    def read() -> Target:
        return load(cast(Any, chosen), dtype=target.dtype, device=target.device)

    model = target.loaded("draft", chosen, read) if isinstance(chosen, str | Path) else read()
    check_pair(target, model)
    return model
