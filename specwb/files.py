"""Public text files the project reads but does not ship: from a folder of the user's, or downloaded and checked.

Every file is named once, with its place under ``SPECWB_DATA``, its address and the sha256 of its plain content.
A file that lies under ``SPECWB_DATA`` (plain or gzipped) is used as it is; otherwise it is fetched into the user's cache.
Either way its checksum must match, so that a model card's hashes mean something.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


class DataError(ValueError):
    """A data file is missing, unreachable or not the file its checksum names."""


@dataclass(frozen=True)
class Remote:
    path: str
    url: str
    sha256: str
    licence: str


_GUTENBERG = "https://raw.githubusercontent.com/GITenberg/{}_{}/master/{}.txt"


def _book(title: str, number: int, sha256: str) -> Remote:
    return Remote(f"gutenberg_books/{number}.txt", _GUTENBERG.format(title, number, number), sha256, "public domain (USA)")


_NLTK = "https://raw.githubusercontent.com/nltk/nltk_data/5db857e6f7df11eabb5e5665836db9ec8df07e28/packages/corpora/"

FILES: dict[str, Remote] = {
    "gsm8k_train": Remote(
        "gsm8k/train.jsonl",
        "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/train.jsonl",
        "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        "MIT",
    ),
    "tinyshakespeare": Remote(
        "tinyshakespeare/input.txt",
        "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "public domain",
    ),
    "pride_and_prejudice": _book("Pride-and-Prejudice", 1342, "441e778a4297bfc944dc254810e8ded3134cfb0e36d73eef6bb312b4ffd74d6a"),
    "great_expectations": _book("Great-Expectations", 1400, "64cd8797f6439d21be03154b8e3e97c4fe8c0df6f032a98871a5554c0621c500"),
    "middlemarch": _book("Middlemarch", 145, "f499b77eb0e4e34edc3bae6b968e3241c8327384631bd26e8eec76b726915a7d"),
    "emma": _book("Emma", 158, "1db38633b6135805b4ca4b874ec5ced5be608ac3c3138cdae6019fc346d633a2"),
    "sherlock_holmes": _book("The-Adventures-of-Sherlock-Holmes", 1661, "2a0ce5568625a304f54fbb6bfdeeadf527a1437254b5f0e06b5a9e233d4784a2"),
    "war_and_peace": _book("War-and-Peace", 2600, "31b5d23be25fe9ad27eca1e78f9f449ae2e17adf07ce62238a79425c53a96646"),
    "moby_dick": _book("Moby-Dick--Or-The-Whale", 2701, "f17ab08e0ad8c6e43d1e85e3cdae4e1b617ae35069cee7db8dcd457c87b1ec76"),
    "inaugural": Remote(
        "us_speeches/inaugural.zip", _NLTK + "inaugural.zip", "7c5fb5793e31fbeae12bf1aa0ffda5336468f07cedb50654c6d31ca384e2046b", "public domain"
    ),
    "state_union": Remote(
        "us_speeches/state_union.zip", _NLTK + "state_union.zip", "366c1dc82b2abf896f42b2ec50ba802a0141a29f75d29ca48a7a243ce5bfbe8d", "public domain"
    ),
}


def read(name: str) -> bytes:
    """Content of a named public file, checked against its sha256.

    Raises:
        DataError: unknown name, file neither under ``SPECWB_DATA`` nor downloadable, or wrong checksum.
    """
    if name not in FILES:
        raise DataError(f"unknown data file {name!r}; known: {', '.join(sorted(FILES))}")
    remote = FILES[name]
    root = os.environ.get("SPECWB_DATA")
    if root:
        plain = Path(root) / remote.path
        packed = plain.with_name(plain.name + ".gz")
        for path in (plain, packed):
            if path.is_file():
                return _checked(gzip.decompress(path.read_bytes()) if path is packed else path.read_bytes(), remote, str(path))
    try:
        import pooch

        path = pooch.retrieve(
            remote.url, known_hash=f"sha256:{remote.sha256}", fname=f"{name}{Path(remote.path).suffix}", path=pooch.os_cache("specwb")
        )
    except Exception as error:
        raise DataError(
            f"{name}: not at {remote.path} under SPECWB_DATA ({root or 'not set'}) and the download from {remote.url} failed: {error}"
        ) from error
    return _checked(Path(path).read_bytes(), remote, path)


def _checked(content: bytes, remote: Remote, where: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != remote.sha256:
        raise DataError(f"{where}: sha256 is {found[:12]}..., expected {remote.sha256[:12]}...; remove it or point SPECWB_DATA elsewhere")
    return content
