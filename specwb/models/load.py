"""Loading targets and drafts, and checking that they fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from specwb.core.files import data_dir, foreign, table, weights_hash
from specwb.core.options import MethodError
from specwb.models import gguf, reading, smol
from specwb.models.architectures import check_causal, text_config
from specwb.models.borrowed import borrowed, is_borrowed
from specwb.models.device import (
    check_fits,
    fast_bfloat16,
    is_spread,
    main_device,
    resolve_device,
    resolve_dtype,
    stored_tensors,
    weight_bytes,
)
from specwb.models.folder import (
    HUB,
    SAFE,
    LoadError,
    card_of,
    check_weights,
    first_three,
    folder_of,
    weight_files,
)
from specwb.models.products import compiled_pass
from specwb.models.ranks import Ranks
from specwb.models.target import Target
from specwb.models.templates import check_template, use_template
from specwb.models.vocabulary import fitted, is_padding

LAB = {"lab": "target", "lab-target": "target", "lab-draft": "draft"}
"""The shipped models' names and their folders."""
FIXED = {
    "trust_remote_code": "code that comes with a checkpoint is never run",
    "ignore_mismatched_sizes": "weights must fit their config",
    "torch_dtype": "dtype= names the number type",
    "tp_plan": "ranks= parts a model",
    "distributed_config": "ranks= parts a model",
}
"""Arguments of the library's that are decided here."""
CACHED = 2**26
"""Bytes of float32 weights below which a processor's caches hold a model, which is never rounded
unasked."""
COMPILED = {"llama", "mistral", "qwen2", "qwen3"}
"""Types of models that run through the compiled pass where they have no window: bfloat16 is half as
much to read for it, whether or not the processor has instructions for it."""


def load(
    source: str | Path | nn.Module | Target = "lab",
    *,
    tokenizer: Any = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    generic: bool = False,
    template: str | None = None,
    ranks: Ranks | None = None,
    **library: Any,
) -> Target:
    """Loads a target or a draft model.

    Code that comes with a checkpoint is never run: a model or tokenizer that needs some is refused.

    Args:
        source: ``"lab"`` or ``"lab-draft"`` (the shipped family), ``"smol"``
            (:mod:`specwb.models.smol`, fetched once), a local folder, a hub id
            ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, a ``.gguf`` file, or a loaded model.
        tokenizer: the model's tokenizer; default the one that lies beside it.
        dtype: ``"auto"`` is the checkpoint's own dtype on CUDA. On a CPU it is float32, but for
            checkpoints in bfloat16 and GGUF files as coarse where that is faster (by the compiled
            pass, or on a processor with instructions for bfloat16), which a line says. The lab is
            float32 on either. A loaded model keeps its own unless one is named.
        device: ``"auto"`` is CUDA where there is one; a loaded model stays where it is.
        generic: the model runs by the library's own forward, which is slower, as what has no fast
            path does (:mod:`specwb.models.generic`); hooks on its modules are computed then, at
            every node of a draft.
        template: a chat template by name (:data:`specwb.models.templates.TEMPLATES`) for a model
            whose tokenizer has none, as Vicuna's; it takes the place of one that is there.
        ranks: what :func:`specwb.models.ranks.join` gave: the model is parted among them by its own
            tensor-parallel plan, as far as it can be.
        library: arguments of the library's ``from_pretrained``, passed on for a folder or hub id:
            ``revision``, ``token``, ``cache_dir``, ``local_files_only``, ``gguf_file``,
            ``quantization_config``, ``attn_implementation``, and ``device_map`` with ``max_memory``
            and ``offload_folder``, which takes the place of ``device``. A model on one device runs
            as ever; one on several, offloaded or quantised by the library's own forward, whose
            attention ``attn_implementation`` is.
    Raises:
        TemplateError: an unknown template, or no tokenizer to put it on.
        LoadError: a missing folder, a config that cannot be, damaged or incomplete weights, weights
            that the config does not describe or that ``card.json`` beside them does not name, a
            tokenizer with words that the model has no rows for, an unknown dtype, CUDA asked for
            without one, or whatever the library refuses.
        MissingExtra: a GGUF file, and the package that reads it is not installed.
        MemoryShortage: the weights do not fit; nothing of them was read.
        UnsupportedModel: an architecture that cannot be run right.
    """
    library = {key: value for key, value in library.items() if value is not None}
    if isinstance(source, Target | nn.Module) and (ranks is not None or library):
        arguments = "=, ".join(library) or "ranks"
        raise LoadError(f"{arguments}= is of a folder or hub id, not of a model loaded already")
    if isinstance(source, Target):
        return source
    if ranks is not None and not isinstance(ranks, Ranks):
        raise LoadError(f"ranks must come from specwb.models.ranks.join, got {ranks!r}")
    if isinstance(tokenizer, str | int | float | bool):
        raise LoadError(f"tokenizer must be a tokenizer of transformers, got {tokenizer!r:.200}")
    for key, why in FIXED.items():
        if key in library:
            raise LoadError(f"{key}= is not passed on to the library: {why}")
    check_template(template)
    if is_borrowed(source):
        raise LoadError(
            f"{source} is a draft model that borrows its target's embedding; give it as draft="
        )
    if "device_map" in library:
        if device != "auto" or ranks is not None:
            raise LoadError("device_map= says where a model lies; leave device= and ranks= out")
        device = main_device(library["device_map"])
    on = resolve_device(device) if ranks is None else ranks.device
    if isinstance(source, nn.Module):
        if is_spread(source) and (device, dtype) != ("auto", "auto"):
            raise LoadError("a model on several devices cannot be moved or cast: name its folder")
        if dtype != "auto":
            source = cast_weights(source, resolve_dtype(dtype, on))
        model = source if device == "auto" else source.to(on)
        use_template(tokenizer, template)
        target = Target(model.eval(), tokenizer, name=type(source).__name__, generic=generic)
        reading.check_words(tokenizer, target.vocabulary, target.name)
        reading.tell_unused(model.generation_config, target.name)
        return target
    name = str(source)
    folder, commit = _folder(
        source, library, dtype if dtype == "auto" else resolve_dtype(dtype, on)
    )
    config, card = _config(folder, name), card_of(folder)
    kind = _placed(folder, config, card, name, dtype, on, ranks, library)
    if tokenizer is None:
        tokenizer = reading.tokenizer(folder, name)
    reading.check_words(tokenizer, text_config(config).vocab_size, str(folder))
    use_template(tokenizer, template)
    model = reading.weights(folder, config, kind, name, ranks, library)
    if "device_map" not in library:
        model = model.to(on)
    lab = LAB.get(name)
    # of weights that were made from a GGUF file: their own bytes depend on the library's version
    sha256 = card.get("gguf_sha256")
    heads = None if commit is not None or sha256 is not None else folder.parent
    if lab == "target" or sha256 == smol.SHA256:
        heads = data_dir() / ("lab" if lab else smol.NAME)
    draft = "lab-draft" if lab == "target" else None
    target = Target(model.eval(), tokenizer, name, draft, folder, heads, generic)
    reading.tell_unused(model.generation_config, name)
    target.revision = commit or None
    sha256 = check_weights(folder, card) or sha256
    if sha256 is not None:
        target.sha256 = sha256
    if target.draft is None and (own := target.own_head("draft")) is not None:
        target.draft = str(own)
    target.agreed = None if ranks is None else ranks.agreed
    return target


def _folder(
    source: str | Path, library: dict[str, Any], dtype: str | torch.dtype
) -> tuple[Path, str | None]:
    """The folder of a model that is named, and of one from the hub its commit ("" where the cache
    does not say it). Takes the arguments that say how files are had out of ``library``."""
    place, file = gguf.split(_place(source), library.pop("gguf_file", None))
    hub = {key: library.pop(key) for key in HUB if key in library}
    folder, fetched = folder_of(place, SAFE if file is None else (file,), **hub)
    # the folder that the hub's files are kept in is named by the commit
    commit = None
    if fetched:
        commit = folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else ""
    return (folder if file is None else _converted(folder / file, str(source), dtype)), commit


def _placed(
    folder: Path,
    config: Any,
    card: dict[str, Any],
    name: str,
    dtype: str | torch.dtype,
    device: torch.device,
    ranks: Ranks | None,
    library: dict[str, Any],
) -> str | torch.dtype:
    """The number type that weights are loaded in, "auto" for the stored one, after a check that
    they fit on the device; quantised ones are made there, since they cannot be moved."""
    tensors, is_lab = stored_tensors(folder), name in LAB
    stored = getattr(config, "quantization_config", None) is not None
    quantised = stored or "quantization_config" in library
    kind: str | torch.dtype = "auto"
    if dtype != "auto" or is_lab or not (device.type == "cuda" or quantised):
        kind = resolve_dtype(dtype, device)
        if dtype == "auto" and not (is_lab or ranks or "device_map" in library):
            fast = fast_bfloat16(device) or (
                config.model_type in COMPILED
                and not getattr(config, "sliding_window", None)
                and bool(compiled_pass())
            )
            kind = _cpu_dtype(tensors, card, fast, name)
    # a map is accelerate's to fill, and what fewer bits take is not known
    if ranks is None and "device_map" not in library and (stored or not quantised):
        check_fits(weight_bytes(tensors, kind), device, name)
    if quantised:
        library.setdefault("device_map", {"": device})
    return kind


def _cpu_dtype(tensors: list, card: dict, fast: bool, name: str) -> torch.dtype:
    """The number type of a model on the CPU where none is named: bfloat16 where its matrices are
    stored in it, or in a GGUF file as coarsely, and it is faster."""
    in_bfloat16 = {kind for kind, shape in tensors if len(shape) > 1} == {"BF16"}
    large = weight_bytes(tensors, torch.float32) >= CACHED
    if not (large and fast and (in_bfloat16 or gguf.is_coarse(card))):
        return torch.float32
    reading.logger.warning(
        "%s: in bfloat16, which is faster here; without rounding its weights in dtype=float32",
        name,
    )
    return torch.bfloat16


def _converted(file: Path, name: str, dtype: torch.dtype | str) -> Path:
    """The folder that a GGUF file was converted into."""
    if not file.is_file():
        gguf.config_of(file.parent, file.name, name)  # which says what there is
    with foreign(f"{name}: {file} cannot be read", LoadError):
        sha256 = weights_hash(file)
    return gguf.converted(name, sha256, lambda _: file, dtype)


def _config(folder: Path, name: str) -> Any:
    """The library's config of a folder that has weights, of a model that can be a target."""
    from transformers import AutoConfig

    if not (folder / "config.json").exists():
        hint = "it holds no model"
        if files := gguf.names(folder):
            hint = f"name its GGUF file with gguf_file= or by its path: {first_three(files)}"
        raise LoadError(f"{name}: the folder {folder} has no config.json; {hint}")
    _check_settings(folder, name)
    weights = weight_files(folder)
    if weights is None:
        raise LoadError(
            f"{name}: {folder} has no weights, neither model.safetensors nor pytorch_model.bin nor "
            "an index of their parts"
        )
    with foreign(f"{name}: config.json in {folder} describes no model that is known", LoadError):
        # without trust_remote_code=False the library asks on standard input whether to run a
        # checkpoint's code; a prompt may answer
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    check_causal(config)
    layers = getattr(text_config(config), "num_hidden_layers", None) or 0
    if all(file.suffix == ".safetensors" for file in weights):
        count = len(stored_tensors(folder))  # the library would make the layers first
        if layers > count:
            raise LoadError(
                f"{name}: config.json says num_hidden_layers={layers}, but the weights are only "
                f"{count} tensors"
            )
    return config


def _check_settings(folder: Path, name: str) -> None:
    """Checks that both files are tables, and the ends of text in them."""
    vocabulary = table(folder / "config.json", LoadError).get("vocab_size")
    for file in ("config.json", "generation_config.json"):
        ids = table(folder / file, LoadError).get("eos_token_id")
        if ids == []:
            raise LoadError(f"{name}: {file} says eos_token_id=[]; for no such token it is null")
        for i in () if ids is None else ids if isinstance(ids, list) else [ids]:
            if type(i) is not int or not 0 <= i < (vocabulary or 2**63):
                raise LoadError(
                    f"{name}: {file} says eos_token_id={ids!r}; it must be token ids below the "
                    f"vocabulary's {vocabulary}"
                )


def cast_weights(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with its weights in a number type, in place.

    Buffers that no checkpoint has are constants and stay as they are: a rounded rotary frequency
    turns keys the more wrongly the later they stand in the text.
    """
    constants = [
        (module, name, module._buffers[name])
        for module in model.modules()
        for name in module._non_persistent_buffers_set
    ]
    model.to(dtype)
    for module, name, buffer in constants:
        module._buffers[name] = buffer
    return model


def check_pair(target: Target, draft: Target) -> None:
    """Checks that both models speak the same tokens and live on one device: verification compares
    ids, so a shifted vocabulary would be silently wrong. Rows that no token has may differ in
    number."""
    if draft.device != target.device:
        raise LoadError(
            f"target {target.name!r} is on {target.device}, draft {draft.name!r} on "
            f"{draft.device}; load both with the same device="
        )
    if draft.vocabulary != target.vocabulary and not is_padding(target, draft):
        why = "and more than unused rows differ; use a draft with the target's tokenizer"
        if target.tokenizer is None and draft.tokenizer is None:
            why = (
                "and without a tokenizer nothing says whether only unused rows differ; give one: "
                "draft=specwb.load(.., tokenizer=..)"
            )
        raise LoadError(
            f"vocabulary mismatch: target {target.name!r} has {target.vocabulary} tokens, draft "
            f"{draft.name!r} has {draft.vocabulary}, {why}"
        )
    tokenizers = target.tokenizer, draft.tokenizer
    if None in tokenizers or tokenizers[0] is tokenizers[1]:
        return
    a, b = (tokenizer.get_vocab() for tokenizer in tokenizers)
    if a != b:
        token = next(t for t in (*a, *b) if a.get(t) != b.get(t))
        raise LoadError(
            f"tokenizer mismatch: {token!r} is id {a.get(token)} for target {target.name!r} and "
            f"{b.get(token)} for draft {draft.name!r}; "
            "use a draft trained with the target's tokenizer"
        )


def draft_model(target: Target, draft: object) -> Target:
    """The draft model that was given or named, or the target's own: read once a target, checked,
    and in the terms of the target's vocabulary, which may have more or fewer rows of padding."""
    chosen: object = draft if draft is not None else target.draft
    if chosen is None:
        way_out = "name one with draft= (--draft on the command line)"
        raise MethodError(f"{target.name!r} has no draft model of its own; {way_out}")

    def read() -> Target:
        if is_borrowed(chosen):
            return borrowed(cast(Any, chosen), target)
        return load(cast(Any, chosen), dtype=target.dtype, device=target.device)

    model = target.loaded("draft", chosen, read) if isinstance(chosen, str | Path) else read()
    check_pair(target, model)
    same = model.vocabulary == target.vocabulary
    return model if same else fitted(model, target.vocabulary)


def _place(source: str | Path) -> str | Path:
    """Where a model lies: of a shipped one its folder."""
    if str(source) == smol.NAME:
        return smol.folder()
    lab = LAB.get(str(source))
    return data_dir() / "lab" / lab if lab else source
