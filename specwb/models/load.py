"""Loading targets and drafts, and checking that they fit together."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from specwb.files import data_dir, foreign, table, weights_hash
from specwb.models import gguf, reading, smol
from specwb.models.architectures import check_causal, text_config
from specwb.models.borrowed import borrowed, is_borrowed
from specwb.models.faster import chosen
from specwb.models.folder import (
    SAFE,
    Hub,
    LoadError,
    card_of,
    check_weights,
    first_three,
    folder_of,
    tensors_in,
    weight_files,
)
from specwb.models.generation import unused
from specwb.models.memory import check_weights_fit, is_in_bfloat16
from specwb.models.placement import (
    check_quantised,
    checked_map,
    is_spread,
    main_device,
    on_disk,
    quantisation,
    resolve_device,
    resolve_dtype,
)
from specwb.models.ranks import Ranks
from specwb.models.target import Target
from specwb.models.vocabulary import fitted, is_padding
from specwb.options import MethodError
from specwb.templates import check_template, use_template

logger = logging.getLogger("specwb")
ATTENTIONS = ("eager", "sdpa")
"""The library's that take a mask of four dimensions."""
LAB = {"lab": "target", "lab-target": "target", "lab-draft": "draft"}
"""The shipped models' names and their folders."""
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
"""Settings of a config that are counts."""


def load(
    source: str | Path | nn.Module | Target = "lab",
    *,
    tokenizer: Any = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    ranks: Ranks | None = None,
    revision: str | None = None,
    gguf_file: str | None = None,
    generic: bool = False,
    template: str | None = None,
    device_map: Any = None,
    max_memory: dict[Any, Any] | None = None,
    offload_folder: str | Path | None = None,
    quantization_config: Any = None,
    attn_implementation: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Target:
    """Loads a target or a draft model.

    Code that comes with a checkpoint is never run: a model or tokenizer that needs some is refused.

    Args:
        source: ``"lab"`` or ``"lab-draft"`` (the shipped family), ``"smol"``
            (:mod:`specwb.models.smol`, fetched once), a local folder, a hub id
            ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, a ``.gguf`` file, or a loaded model.
        tokenizer: the model's tokenizer; default the one that lies beside it.
        dtype: ``"auto"`` is the checkpoint's own dtype on CUDA. On a CPU it is float32, but for
            checkpoints in bfloat16 and coarser GGUF files where bfloat16 was measured to be faster
            here, which a line says (:mod:`specwb.models.faster`). The lab is float32 on either. A
            loaded model keeps its own unless one is named.
        device: ``"auto"`` is CUDA where there is one; a loaded model stays where it is.
        ranks: what :func:`specwb.models.ranks.join` gave: the model is parted among them by its own
            tensor-parallel plan, as far as it can be.
        revision: of a hub id: a branch, tag or commit; default the newest.
        gguf_file: of a folder or hub id: the name of the GGUF file that holds the model, its
            tokenizer and its chat template (:mod:`specwb.models.gguf`).
        generic: the model runs by the library's own forward, which is slower, as what has no fast
            path does (:mod:`specwb.models.generic`); hooks on its modules are computed then, at
            every node of a draft.
        template: a chat template by name (:data:`specwb.templates.TEMPLATES`) for a model whose
            tokenizer has none, as Vicuna's; it takes the place of one that is there.
        device_map: instead of ``device``: ``"auto"`` and the library's other strategies, a device,
            or a table from modules to devices, ``"cpu"`` and ``"disk"`` among them. A model on one
            device runs as ever; one on several, or offloaded, by the library's own forward.
        max_memory: with a strategy, how much each device gives, ``{0: "20GiB", "cpu": "60GiB"}``.
        offload_folder: where weights are put that ``"disk"`` is said of and that are no
            safetensors.
        quantization_config: weights are quantised while they are read: a config of the library's,
            its fields as a table, or ``"4bit"`` or ``"8bit"``, which are bitsandbytes'. A
            checkpoint that is quantised needs none. Quantised layers run by the library's forward.
        attn_implementation: ``"eager"`` or ``"sdpa"``, of a model that runs by the library's
            forward; the fast path has its own attention, and says so.
        token: of the hub, for repositories that ask for one; default the one that is logged in.
        cache_dir: where the hub's files are kept.
        local_files_only: nothing is asked of the hub; what was fetched before is used.
    Raises:
        TemplateError: an unknown template, or no tokenizer to put it on.
        LoadError: a missing folder, a config that cannot be, damaged or incomplete weights, weights
            that the config does not describe or that ``card.json`` beside them does not name, a
            tokenizer with words that the model has no rows for, an unknown dtype, or CUDA asked for
            without one; a map of devices that cannot be; a quantisation whose library is not here.
        MissingExtra: a GGUF file, and the package that reads it is not installed.
        MemoryShortage: the weights do not fit; nothing of them was read.
        UnsupportedModel: an architecture that cannot be run right.
    """
    if ranks is not None and isinstance(source, Target | nn.Module):
        raise LoadError(
            "a model that is loaded already cannot be parted among ranks; give its folder or hub id"
        )
    of_files = {
        "gguf_file": gguf_file,
        "device_map": device_map,
        "max_memory": max_memory,
        "offload_folder": offload_folder,
        "quantization_config": quantization_config,
        "attn_implementation": attn_implementation,
    }
    if isinstance(source, Target):
        _check_unused(of_files, "a target that is loaded already")
        return source
    if ranks is not None and not isinstance(ranks, Ranks):
        raise LoadError(f"ranks must come from specwb.models.ranks.join, got {ranks!r}")
    if isinstance(tokenizer, str | int | float | bool):
        raise LoadError(f"tokenizer must be a tokenizer of transformers, got {tokenizer!r:.200}")
    if not isinstance(max_memory, dict | None):
        raise LoadError(f"max_memory must be a table of devices, got {max_memory!r:.200}")
    check_template(template)
    check_attention(attn_implementation)
    if device_map is not None and (device != "auto" or ranks is not None):
        raise LoadError("device_map= says where a model lies; leave device= and ranks= out")
    if is_borrowed(source):
        raise LoadError(
            f"{source} is a draft model that borrows its target's embedding; give it as draft="
        )
    on = resolve_device(device) if ranks is None else ranks.device
    if isinstance(source, nn.Module) and is_spread(source) and (device, dtype) != ("auto", "auto"):
        raise LoadError("a model on several devices cannot be moved or cast: name its folder")
    if isinstance(source, nn.Module):
        _check_unused(of_files, "a model that is loaded already")
        if dtype != "auto":
            source = cast_weights(source, resolve_dtype(dtype, on))
        model = source if device == "auto" else source.to(on)
        use_template(tokenizer, template)
        target = Target(model.eval(), tokenizer, name=type(source).__name__, generic=generic)
        reading.check_words(tokenizer, target.vocabulary, target.name)
        _tell_unused(target)
        return target
    name = str(source)
    lab = LAB.get(name)
    places = None if device_map is None else checked_map(device_map)
    asked = quantisation(quantization_config)
    if places is not None:
        on = main_device(places)
    hub = Hub(revision, token, cache_dir, local_files_only)
    folder, file, fetched = _files(source, gguf_file, hub)
    # what the hub's files are kept in is called by the commit
    commit = folder.name if fetched and re.fullmatch("[0-9a-f]{40}", folder.name) else None
    if file is not None:
        wanted = dtype if dtype == "auto" else resolve_dtype(dtype, on)
        folder = _converted(folder / file, name, wanted)
    config = _config(folder, name)
    quantised = check_quantised(config, asked, name)
    stored = dtype == "auto" and (on.type == "cuda" or quantised) and lab is None
    kind = "auto" if stored else resolve_dtype(dtype, on)
    if asked is None and ranks is None and not on_disk(places):  # what 4 bits take is not known
        spread = places is not None and (isinstance(places, str) or len(places) > 1)
        check_weights_fit(folder, config, kind, on, name, spread)
    if quantised and places is None:
        places = {"": on}  # such weights are made on their device and cannot be moved
    how: dict[str, Any] = {
        "device_map": places,
        "max_memory": max_memory,
        "offload_folder": None if offload_folder is None else str(offload_folder),
        "quantization_config": asked,
        "attn_implementation": attn_implementation,
    }
    how = {key: value for key, value in how.items() if value is not None}
    if tokenizer is None:
        tokenizer = reading.tokenizer(folder, name)
    reading.check_words(tokenizer, text_config(config).vocab_size, str(folder))
    use_template(tokenizer, template)
    model = reading.weights(folder, config, kind, name, ranks, how)
    card = card_of(folder)
    # of weights that were made from a GGUF file: their own bytes depend on the library's version
    sha256 = card.get("gguf_sha256")
    beside = None if fetched or sha256 is not None else folder.parent
    if lab == "target" or sha256 == smol.SHA256:
        beside = data_dir() / ("lab" if lab else smol.NAME)
    draft = "lab-draft" if lab == "target" else None
    if places is None:
        model = model.to(on)
    may_round = dtype == "auto" and kind is torch.float32 and not (lab or places or ranks)
    if may_round and (gguf.is_coarse(card) or is_in_bfloat16(folder)):
        model = chosen(model.eval(), name, cast_weights, generic)
    target = Target(model.eval(), tokenizer, name, draft, folder, beside, generic)
    _tell_unused(target)
    if attn_implementation is not None and not target.backbone.whole:
        logger.warning(
            "%s: attn_implementation=%s is of the library's forward; this model runs by our own "
            "attention (generic=True is the library's)",
            name,
            attn_implementation,
        )
    target.revision = commit
    sha256 = check_weights(folder, card) or sha256
    if sha256 is not None:
        target.sha256 = sha256
    if target.draft is None and (own := target.own_head("draft")) is not None:
        target.draft = str(own)
    target.agreed = None if ranks is None else ranks.agreed
    return target


def _check_unused(settings: dict[str, Any], what: str) -> None:
    """Checks that nothing was said that is said of files which are read."""
    for name, value in settings.items():
        if value is not None:
            raise LoadError(f"{name}= is of a folder or hub id, not of {what}")


def check_attention(implementation: str | None) -> None:
    """Checks that an attention of the library's takes a tree's mask."""
    if implementation not in (None, *ATTENTIONS):
        raise LoadError(
            f"attn_implementation={implementation!r}: a tree of drafts needs an attention that "
            f"takes any mask, which are {' and '.join(ATTENTIONS)}"
        )


def _tell_unused(target: Target) -> None:
    """Says in one line what a checkpoint's generation_config asks for that decoding goes without,
    since the library's ``generate`` obeys it."""
    settings = unused(target.model.generation_config)
    if settings:
        asked = ", ".join(f"{name}={value}" for name, value in settings.items())
        logger.warning(
            "%s: its generation_config asks for %s; decoding here goes without", target.name, asked
        )


def _files(source: str | Path, gguf_file: str | None, hub: Hub) -> tuple[Path, str | None, bool]:
    """The folder that a model lies in, the name of the GGUF file that it is there, or None, and
    whether the folder is the hub's."""
    place, file = gguf.split(_place(source), gguf_file)
    folder, fetched = folder_of(place, SAFE if file is None else (file,), hub=hub)
    return folder, file, fetched


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
        count = sum(map(tensors_in, weights))  # the library would make the layers first
        if layers > count:
            raise LoadError(
                f"{name}: config.json says num_hidden_layers={layers}, but the weights are only "
                f"{count} tensors"
            )
    return config


def _check_settings(folder: Path, name: str) -> None:
    """Checks what the library would take as it is, and fail at later or never."""
    config = table(folder / "config.json", LoadError)
    generation = table(folder / "generation_config.json", LoadError)
    for key in SIZES:
        size = config.get(key)
        if size is not None and (type(size) is not int or size < 1):
            raise LoadError(f"{name}: config.json says {key}={size!r}; it must be an integer >= 1")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    ropes = [rope, *rope.values()] if isinstance(rope, dict) else []  # of a type of layers each
    for place in (config, *ropes):
        for key in ("rope_theta", "factor") if isinstance(place, dict) else ():
            number = place.get(key)
            if number is not None and not (type(number) in (int, float) and 0 < number < math.inf):
                raise LoadError(
                    f"{name}: config.json says {key}={number!r}; it must be a number > 0"
                )
    for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        number = config.get(key)
        if number is not None and not (type(number) in (int, float) and 0 <= number < math.inf):
            raise LoadError(f"{name}: config.json says {key}={number!r}; it must be a number >= 0")
    vocabulary = config.get("vocab_size")
    for file, settings in (("config.json", config), ("generation_config.json", generation)):
        ids = settings.get("eos_token_id")
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


def check_device(target: Target, draft: Target) -> None:
    """Checks that both models live on one device."""
    if draft.device != target.device:
        raise LoadError(
            f"target {target.name!r} is on {target.device}, draft {draft.name!r} on "
            f"{draft.device}; load both with the same device="
        )


def check_pair(target: Target, draft: Target) -> None:
    """Checks that both models speak the same tokens and live on one device: verification compares
    ids, so a shifted vocabulary would be silently wrong. Rows that no token has may differ in
    number."""
    check_device(target, draft)
    if draft.vocabulary != target.vocabulary and not is_padding(target, draft):
        why = "and more than unused rows differ; use a draft with the target's tokenizer"
        if target.tokenizer is None and draft.tokenizer is None:
            why = (
                "and without a tokenizer nothing says whether only unused rows differ; give one: "
                "draft=specwb.load(.., tokenizer=..), or specwb.hf(.., tokenizer=..)"
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
