"""Public texts, which are read but not shipped.

Each is a table of ``data/texts.toml``: its place under ``SPECWB_DATA``, its address and the sha256
of its plain content. A file that lies under ``SPECWB_DATA`` (plain or gzipped) is used; otherwise
it is downloaded into the user's cache. Either way its checksum must match, so that a model card's
hashes and a table's prompts mean something.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path

from specwb.core.files import DataError, data_dir, first_line, home


@dataclass(frozen=True)
class Remote:
    """A public file.

    Attributes:
        path: its place under ``SPECWB_DATA``.
        url: its address.
        sha256: the checksum of its plain content.
        licence: its licence.
        gzip_sha256: the checksum of a gzip of it, if that is what lies at ``url``.
    """

    path: str
    url: str
    sha256: str
    licence: str
    gzip_sha256: str = ""


FILES: dict[str, Remote] = {
    name: Remote(**fields)
    for name, fields in tomllib.loads((data_dir() / "texts.toml").read_text("utf-8")).items()
}
UNPACKED_BYTES = 2**28  # of a gzip file's content at most; many times what the official files have


def read(name: str) -> bytes:
    """The plain content of a public text of :data:`FILES`, checked against its sha256.

    Raises:
        DataError: the name is unknown, the file cannot be had, or it has another checksum.
    """
    if name not in FILES:
        raise DataError(f"unknown data file {name!r}; known: {', '.join(sorted(FILES))}")
    remote = FILES[name]
    path = local(remote) or _download(name, remote)
    content = unpack(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != remote.sha256:
        raise DataError(
            f"{path}: sha256 is {sha256[:12]}..., expected {remote.sha256[:12]}...; remove it or "
            "point SPECWB_DATA elsewhere"
        )
    return content


def unpack(path: Path, limit: int = UNPACKED_BYTES) -> bytes:
    """The content of a file, at most ``limit`` bytes, unpacked where its name ends in ``.gz``."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as packed:
            content = packed.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file; remove it or give another") from error
    if len(content) > limit:
        raise DataError(
            f"{path} unpacks to more than {limit} bytes; unpack it and give the file that it holds"
        )
    return content


def local(remote: Remote) -> Path | None:
    """Where the file lies under ``SPECWB_DATA``, plain or gzipped; None where it does not."""
    root = os.environ.get("SPECWB_DATA")
    if not root:
        return None
    plain = home(root) / remote.path
    packed = plain.with_name(plain.name + ".gz")
    return next((path for path in (plain, packed) if path.is_file()), None)


def _download(name: str, remote: Remote) -> Path:
    """Where the file lies in the user's cache; downloads it where it does not. pooch checks what it
    receives before it gives it that name, so a bad download is never kept."""
    root = os.environ.get("SPECWB_DATA") or "not set"
    where = f"{name}: not at {remote.path} under SPECWB_DATA ({root})"
    try:
        import pooch
    except ImportError as error:
        raise DataError(
            f"{where}, and a download needs pooch, which the extras 'notebooks' and 'train' bring: "
            "pip install pooch"
        ) from error
    pooch.get_logger().setLevel("WARNING")  # it announces every download
    try:
        path = pooch.retrieve(
            remote.url,
            f"sha256:{remote.gzip_sha256 or remote.sha256}",
            fname=f"{name}{''.join(Path(remote.url).suffixes)}",
            path=pooch.os_cache("specwb"),
        )
    except (ValueError, OSError) as error:  # another sha256; no connection, no place in the cache
        is_offline = type(error).__name__ in ("ConnectionError", "ConnectTimeout")
        why = "no connection" if is_offline else first_line(error)
        raise DataError(f"{where}, and the download from {remote.url} failed: {why}") from error
    return Path(path)
