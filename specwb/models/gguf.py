"""Models in single GGUF files, with their tokenizer and chat template, as llama.cpp has them.

The transformers library reads them, with the package ``gguf``. It dequantises the weights, so that
a model takes what it takes unquantised, and runs as from any other file. Here it is only seen to
that what cannot be read is named before weights are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from specwb.extras import require
from specwb.files import foreign, home
from specwb.models.folder import LoadError, first_three

SUFFIX = ".gguf"
PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
"""What one of several files of a model is called; its group is how many there are."""


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


PRECISE = ("F16", "F32", "F64", "Q8_0", "Q8_1", "Q8_K")
"""Types of weights with more than bfloat16's eight bits of precision, or as many."""


def is_in_few_bits(path: Path) -> bool:
    """Whether all matrices of a GGUF file have fewer bits of precision than bfloat16, or are in
    it."""
    from gguf import GGUFReader

    return not any(
        len(tensor.shape) > 1 and tensor.tensor_type.name in PRECISE
        for tensor in GGUFReader(path).tensors
    )


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
    with foreign(f"{name}: {path} {wrong}", LoadError):
        return AutoConfig.from_pretrained(folder, gguf_file=file, trust_remote_code=False)
