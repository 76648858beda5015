"""Models in single GGUF files, with their tokenizer and chat template, as llama.cpp has them.

The transformers library reads them, with the package ``gguf``, and dequantises the weights, so a
model takes what it takes unquantised. For a file of half a gigabyte this lasts minutes. So it is
done once for every content (sha256): what the library read is written into the user's cache as an
ordinary folder, and loaded from there ever after.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from specwb.core.extras import require
from specwb.core.files import first_line, foreign, home, table, whole_folder
from specwb.models.architectures import check_causal
from specwb.models.device import check_fits, free_bytes, gib, parameters
from specwb.models.folder import LoadError, first_three, quiet
from specwb.models.products import cache_folder
from specwb.models.reading import tokenizer, weights

logger = logging.getLogger("specwb")

SUFFIX = ".gguf"
PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
"""What one of several files of a model is called; its group is how many there are."""
PRECISE = {"F16", "F32", "F64"}
"""Types of matrices that bfloat16 would round. In the others a weight is one of at most 256 steps
of its block, so its error is already that of bfloat16's eight bits or larger."""
CARD = "card.json"


def split(source: Any, file: str | None) -> tuple[Any, str | None]:
    """Parts the path of a GGUF file into its folder and its name; everything else stays as it
    is."""
    if file is not None and not isinstance(file, str):
        raise LoadError(f"gguf_file must be the name of a GGUF file, got {file!r}")
    if not isinstance(source, str | Path) or Path(source).suffix != SUFFIX:
        return source, file
    with foreign("the path of a GGUF file", LoadError):
        path = home(source)
        if not path.is_file():
            return source, file
    if file is not None:
        raise LoadError(f"gguf_file={file!r} is of a folder or hub id; {source} is a file")
    return path.parent, path.name


def names(folder: Path) -> list[str]:
    """The names of a folder's GGUF files."""
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}"))


def config_of(folder: Path, file: str, name: str) -> Any:
    """The library's config of the model in a GGUF file."""
    require("a GGUF file", "gguf", "gguf")
    from transformers import AutoConfig

    path = folder / file
    if not path.is_file():
        others = names(folder)
        hint = f"; there are {first_three(others)}" if others else ", and no other GGUF file"
        raise LoadError(f"{name}: gguf_file={file!r} is not in {folder}{hint}")
    if (part := PART.search(file)) and int(part[1]) > 1:
        raise LoadError(
            f"{name}: {file} is one of {int(part[1])} parts, which are not read; make one file of "
            "them with llama.cpp's llama-gguf-split --merge"
        )
    wrong = "is damaged, cut off or no GGUF file, or of an architecture that transformers lacks"
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, gguf_file=file, trust_remote_code=False)
    except Exception as error:
        # a file whose keys it cannot read the library takes for a config.json
        why = "" if isinstance(error, OSError) else f": {first_line(error)}"
        place = path if Path(name) == path else f"{name}: {path}"
        raise LoadError(f"{place} {wrong}{why}") from error


def is_coarse(card: Mapping[str, Any]) -> bool:
    """Whether a folder's card says that it was made from a GGUF file none of whose matrices
    bfloat16 would round (:data:`PRECISE`)."""
    kinds = card.get("matrices")
    return isinstance(kinds, list) and bool(kinds) and PRECISE.isdisjoint(map(str, kinds))


def cached(sha256: str, dtype: torch.dtype = torch.float32) -> Path | None:
    """The folder that was made from the GGUF file of this checksum, in float32 or ``dtype``, or
    None."""
    places = [_place(sha256, kind) for kind in (torch.float32, dtype)]
    return next((place for place in places if place.exists()), None)


def converted(
    name: str,
    sha256: str,
    fetch: Callable[[Path], Path],
    dtype: torch.dtype | str = "auto",
) -> Path:
    """The folder in the user's cache with a GGUF file's model and tokenizer, made when first asked
    for.

    Args:
        name: what messages call the model.
        sha256: of the file.
        fetch: returns the file; it is given a folder that it may use, and called only where the
            file was not converted before.
        dtype: the number type that is wanted. The folder is in float32, from which any other is
            cast, or in ``dtype`` where the memory has no room for float32.
    Raises:
        LoadError: the file cannot be read, or the cache cannot be written.
        MemoryShortage: the model does not fit into memory.
    """
    wanted = dtype if isinstance(dtype, torch.dtype) else torch.float32
    place = cached(sha256, wanted)
    if place is None:
        require("a GGUF file", "gguf", "gguf")
        cache = _place(sha256, wanted).parent
        with foreign(f"{name}: {cache} cannot be written", LoadError):
            cache.mkdir(parents=True, exist_ok=True)
            with (
                FileLock(cache / f"{sha256[:16]}.lock"),
                tempfile.TemporaryDirectory(dir=cache, prefix="fetched-") as scratch,
            ):
                place = cached(sha256, wanted)  # made by another process meanwhile
                if place is None:
                    place = _convert(name, sha256, fetch(Path(scratch)), wanted)
    return place


def _place(sha256: str, dtype: torch.dtype) -> Path:
    return cache_folder() / "gguf" / f"{sha256[:16]}-{str(dtype).removeprefix('torch.')}"


def _convert(name: str, sha256: str, file: Path, dtype: torch.dtype) -> Path:
    config = config_of(file.parent, file.name, name)
    check_causal(config)
    numbers, memory = parameters(config), torch.device("cpu")
    if 4 * numbers <= free_bytes(memory):
        dtype = torch.float32
    size = numbers * dtype.itemsize
    check_fits(size, memory, name)
    place = _place(sha256, dtype)
    logger.warning("%s: writing its weights to %s once, %s", name, place, gib(size))
    with whole_folder(place) as folder, quiet():
        model = weights(file.parent, config, dtype, name, None, {"gguf_file": file.name})
        # its weights are ordinary ones now
        vars(model.config).pop("quantization_config", None)
        model.is_quantized, model.hf_quantizer = False, None
        model.save_pretrained(folder)
        try:
            tokenizer(file.parent, name, file.name).save_pretrained(folder)
        except LoadError as error:  # tokenizer= may give another
            logger.warning("%s", error)
        matrices = _matrices(file)
        if matrices in (["F16"], ["BF16"]):  # what dtype="auto" is on CUDA
            settings = table(folder / "config.json", LoadError)
            settings["dtype"] = {"F16": "float16", "BF16": "bfloat16"}[matrices[0]]
            (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        card = {"source": file.name, "gguf_sha256": sha256, "matrices": matrices}
        (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")
    return place


def _matrices(file: Path) -> list[str]:
    """The number types of a file's matrices."""
    from gguf import GGUFReader

    tensors = GGUFReader(file).tensors
    return sorted({t.tensor_type.name for t in tensors if len(t.shape) > 1})
