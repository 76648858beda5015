"""JSON files, results that are written completely or not at all, and public texts.

The public texts are read but not shipped. They come from a folder of the user's, or are downloaded
and checked. Each is named once, with its place under ``SPECWB_DATA``, its address and the sha256 of
its plain content. A file that lies under ``SPECWB_DATA`` (plain or gzipped) is used; otherwise it
is fetched into the user's cache. Either way its checksum must match, so that a model card's hashes
and a table's prompts mean something.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import secrets
import shutil
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwb.errors import ArgumentError, SpecwbError


def data_dir() -> Path:
    """The project's data folder: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    return package / "_data" if (package / "_data").exists() else package.parent / "data"


class DataError(SpecwbError, ValueError):
    """A data file is missing, unreachable or not the file its checksum names."""


class WriteError(SpecwbError, OSError):
    """A file cannot be written; which one, and why."""


@dataclass(frozen=True)
class Remote:
    """A public file: its place under ``SPECWB_DATA``, its address, the checksum of its plain
    content, its licence, and the checksum of a gzip of it if that is what lies at ``url``."""

    path: str
    url: str
    sha256: str
    licence: str
    gzip_sha256: str = ""


_GITHUB = "https://raw.githubusercontent.com/"
_NLTK = _GITHUB + "nltk/nltk_data/5db857e6f7df11eabb5e5665836db9ec8df07e28/packages/corpora/"


def _book(title: str, number: int, sha256: str) -> Remote:
    """A book of Project Gutenberg; ``number`` is its number there."""
    url = f"{_GITHUB}GITenberg/{title}_{number}/master/{number}.txt"
    return Remote(f"gutenberg_books/{number}.txt", url, sha256, "public domain (USA)")


FILES: dict[str, Remote] = {
    "gsm8k_train": Remote(
        "gsm8k/train.jsonl",
        _GITHUB
        + "openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
        + "grade_school_math/data/train.jsonl",
        "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        "MIT",
    ),
    "gsm8k_test": Remote(
        "gsm8k/test.jsonl",
        _GITHUB
        + "openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
        + "grade_school_math/data/test.jsonl",
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        "MIT",
    ),
    "humaneval": Remote(
        "humaneval/HumanEval.jsonl",
        _GITHUB
        + "openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d/"
        + "data/HumanEval.jsonl.gz",
        "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2",
        "MIT",
        gzip_sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    ),
    "mt_bench": Remote(
        "mt_bench/question.jsonl",
        _GITHUB
        + "lm-sys/FastChat/0e6d3e4beaab66f4d3f93db72541a4abab8af28d/"
        + "fastchat/llm_judge/data/mt_bench/question.jsonl",
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        "Apache-2.0",
    ),
    "spec_bench": Remote(
        "spec_bench/question.jsonl",
        _GITHUB
        + "hemingkx/Spec-Bench/fd2c1cd7d2201ef71db4c5f4e455008f017967bf/"
        + "data/spec_bench/question.jsonl",
        "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
        "Apache-2.0; parts of it under the terms of WMT14, CNN/Daily Mail, Natural Questions, "
        "DPR and GSM8K",
    ),
    "tinyshakespeare": Remote(
        "tinyshakespeare/input.txt",
        _GITHUB
        + "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/"
        + "data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "public domain",
    ),
    "pride_and_prejudice": _book(
        "Pride-and-Prejudice",
        1342,
        "441e778a4297bfc944dc254810e8ded3134cfb0e36d73eef6bb312b4ffd74d6a",
    ),
    "great_expectations": _book(
        "Great-Expectations",
        1400,
        "64cd8797f6439d21be03154b8e3e97c4fe8c0df6f032a98871a5554c0621c500",
    ),
    "middlemarch": _book(
        "Middlemarch", 145, "f499b77eb0e4e34edc3bae6b968e3241c8327384631bd26e8eec76b726915a7d"
    ),
    "emma": _book("Emma", 158, "1db38633b6135805b4ca4b874ec5ced5be608ac3c3138cdae6019fc346d633a2"),
    "sherlock_holmes": _book(
        "The-Adventures-of-Sherlock-Holmes",
        1661,
        "2a0ce5568625a304f54fbb6bfdeeadf527a1437254b5f0e06b5a9e233d4784a2",
    ),
    "war_and_peace": _book(
        "War-and-Peace", 2600, "31b5d23be25fe9ad27eca1e78f9f449ae2e17adf07ce62238a79425c53a96646"
    ),
    "moby_dick": _book(
        "Moby-Dick--Or-The-Whale",
        2701,
        "f17ab08e0ad8c6e43d1e85e3cdae4e1b617ae35069cee7db8dcd457c87b1ec76",
    ),
    "inaugural": Remote(
        "us_speeches/inaugural.zip",
        _NLTK + "inaugural.zip",
        "7c5fb5793e31fbeae12bf1aa0ffda5336468f07cedb50654c6d31ca384e2046b",
        "public domain",
    ),
    "state_union": Remote(
        "us_speeches/state_union.zip",
        _NLTK + "state_union.zip",
        "366c1dc82b2abf896f42b2ec50ba802a0141a29f75d29ca48a7a243ce5bfbe8d",
        "public domain",
    ),
}


def read(name: str) -> bytes:
    """The plain content of a public file of :data:`FILES`, checked against its sha256."""
    if name not in FILES:
        raise DataError(f"unknown data file {name!r}; known: {', '.join(sorted(FILES))}")
    remote = FILES[name]
    path = _local(remote) or _download(name, remote)
    content = unpack(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != remote.sha256:
        difference = f"sha256 is {sha256[:12]}..., expected {remote.sha256[:12]}..."
        raise DataError(f"{path}: {difference}; remove it or point SPECWB_DATA elsewhere")
    return content


def weights_hash(place: Path) -> str:
    """The sha256 of a file, or over a folder's weights in the order of their names: its safetensors
    files or, where it has none, its ``.bin`` files or n-grams (``.npz``)."""
    digest, files = hashlib.sha256(), [place]
    if not place.is_file():
        kinds = (sorted(place.glob(f"*.{kind}")) for kind in ("safetensors", "bin", "npz"))
        files = next(filter(None, kinds), [])
    for path in files:
        with open(path, "rb") as handle:
            while block := handle.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def home(path: str | Path) -> Path:
    """A path whose ``~`` is a home directory, where there is such a user; as it is otherwise."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"a path is a text or a Path, got {path!r:.200}")
    try:
        os.lstat(path := os.path.expanduser(path))
    except ValueError as error:
        raise ArgumentError(f"{str(path)[:60]!r} is no name of a file: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ArgumentError(f"{str(path)[:60]}...: {error.strerror}") from error
    return Path(path)


def from_json(content: str | bytes) -> Any:
    """The value of a JSON text; ValueError where it is not JSON, not UTF-8, or nested deeper than
    the parser goes."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ArgumentError("brackets are nested too deep") from None


PICKLE = "it is a pickle with code, or no file of weights; it is not read"
"""What is said of a file that torch refuses, whose own words advise to run the code."""


def first_line(error: BaseException) -> str:
    """The first line of what a library says."""
    if "weights_only" in str(error):
        return PICKLE
    return next(iter(str(error).strip().splitlines()), "")[:200] or type(error).__name__


@contextmanager
def foreign(what: object, error_type: type[Exception] = DataError) -> Iterator[None]:
    """Turns whatever a parser raises at ``what`` somebody else wrote into one line that names it.
    This package's errors that say more go on as they are."""
    try:
        yield
    except BaseException as error:
        says_more = isinstance(error, SpecwbError) and not isinstance(error, ArgumentError)
        # a panic in Rust is no Exception, and its class has no place to import it from
        parser = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if says_more or isinstance(error, MemoryError) or not parser:
            raise
        # what is wrong often stands in a second line
        why = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, RecursionError):
            why = "brackets are nested too deep"
        if isinstance(error, KeyError):
            why = f"no {error}"
        if "weights_only" in str(error):
            why = PICKLE
        raise error_type(f"{what}: {why}") from error


def toml(path: Path, error_type: type[Exception] = DataError) -> tuple[dict[str, Any], str]:
    """The table in a TOML file, and the file's text."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise error_type(f"{path}: {error.strerror}") from error
    with foreign(f"{path} is no TOML", error_type):
        content = raw.decode()
        return tomllib.loads(content), content


def table(path: Path, error_type: type[ValueError] = DataError) -> dict[str, Any]:
    """The object in a JSON file, and an empty one where there is no file."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise error_type(f"{path} is no file but a folder, a pipe or a device")
    try:
        content = from_json(path.read_bytes())
    except ValueError as error:
        message = f"{path} is not JSON ({error}); fetch it again, or correct it"
        raise error_type(message) from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise error_type(f"{path} holds no settings: it must be a JSON object, not {kind}")
    return content


def _part_name(path: Path) -> Path:
    """A name next to ``path`` that nothing else has: two runs that write one file must not meet,
    and in a shared folder a name that can be guessed may be a link by the time it is opened."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a file to write, which takes ``path``'s place when the writing has ended: whoever
    opens ``path`` sees the old content or all of the new.

    A link is followed, and what it leads to is replaced. What is no regular file (a device, a pipe)
    is written to as it is. The file gets the mode of the one before it, and a new one what the
    umask leaves.
    """
    path = Path(os.path.realpath(home(path)))
    if path.exists() and not path.is_file():
        yield path
        return
    part = _part_name(path)
    try:
        part.open("x").close()
        # some libraries put a file of their own in its place, which only its owner may read
        mode = stat.S_IMODE((path if path.exists() else part).stat().st_mode)
        yield part
        part.chmod(mode)
        os.replace(part, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(part)):
            raise
        # a name that nobody gave, or none, says nothing to whoever reads the message
        raise WriteError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def probe(path: Path) -> None:
    """Makes and removes the file that :func:`whole_file` would write first: of a name that is too
    long, or a file system mounted for reading, permissions say nothing."""
    part = _part_name(path)
    part.open("x").close()
    part.unlink()


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder to write into, which becomes ``folder`` when the writing has ended. A folder
    of that name must be empty: what a run has made is never moved away for another's."""
    folder = home(folder)
    exists = FileExistsError(f"{folder} exists and stays as it is; delete it or choose another")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise exists
    part = _part_name(folder)
    part.mkdir(parents=True)
    try:
        yield part
        mode = stat.S_IMODE(part.stat().st_mode)
        for path in part.rglob("*"):  # as in whole_file
            path.chmod(mode if path.is_dir() else mode & 0o666)
        try:
            part.rename(folder)
        except OSError as error:
            raise exists if folder.exists() else error from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


UNPACKED_BYTES = 2**28  # of a gzip file's content at most; many times what the official files have


def unpack(path: Path, limit: int = UNPACKED_BYTES) -> bytes:
    """The content of a file, at most ``limit`` bytes, unpacked where its name ends in ``.gz``."""
    if path.suffix != ".gz":
        return path.read_bytes()
    with open(path, "rb") as packed:
        try:
            content = gzip.GzipFile(fileobj=packed).read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            message = f"{path} is not a whole gzip file; remove it or give another"
            raise DataError(message) from error
    if len(content) > limit:
        advice = "unpack it and give the file that it holds"
        raise DataError(f"{path} unpacks to more than {limit} bytes; {advice}")
    return content


def _local(remote: Remote) -> Path | None:
    root = os.environ.get("SPECWB_DATA")
    if not root:
        return None
    plain = home(root) / remote.path
    packed = plain.with_name(plain.name + ".gz")
    return next((path for path in (plain, packed) if path.is_file()), None)


def _download(name: str, remote: Remote) -> Path:
    """Where the file lies in the user's cache; downloads it where it does not. pooch checks what it
    receives before it gives it that name, so a bad download is never kept."""
    where = f"not at {remote.path} under SPECWB_DATA ({os.environ.get('SPECWB_DATA') or 'not set'})"
    try:
        import pooch
    except ImportError as error:
        extras = "which the extras 'notebooks' and 'train' bring: pip install pooch"
        raise DataError(f"{name}: {where}, and a download needs pooch, {extras}") from error
    log = pooch.get_logger()
    level = log.level
    log.setLevel("WARNING")  # it announces every download; an error should stay one line
    try:
        path = pooch.retrieve(
            remote.url,
            f"sha256:{remote.gzip_sha256 or remote.sha256}",
            fname=f"{name}{''.join(Path(remote.url).suffixes)}",
            path=pooch.os_cache("specwb"),
        )
    except (ValueError, OSError) as error:
        failure = f"the download from {remote.url} failed: {_reason(error)}"
        raise DataError(f"{name}: {where}, and {failure}") from error
    finally:
        log.setLevel(level)
    return Path(path)


def _reason(error: Exception) -> str:
    """Why a download failed, in a few words: the libraries' own texts run over several lines."""
    from requests import HTTPError, RequestException
    from requests.exceptions import ChunkedEncodingError

    match error:
        case HTTPError():
            answer = error.response
            return "HTTP error" if answer is None else f"HTTP {answer.status_code}"
        case ChunkedEncodingError():
            return "the connection was cut"
        case RequestException():
            return f"no connection ({type(error).__name__})"
        case OSError():
            return f"the cache cannot be written ({error.filename}: {error.strerror})"
        case _:
            return "the file received has another sha256"


def check_path(path: Path, option: str) -> None:
    """Checks that a file can be written there, before the work whose results it is to hold;
    ``option`` named it."""
    real = Path(os.path.realpath(home(path)))  # what a link leads to is what is written
    folder = real.parent
    if real.is_dir():
        raise ArgumentError(f"{option}: {path} is a folder, give the name of a file")
    if not folder.is_dir():
        raise ArgumentError(
            f"{option}: {path} cannot be written, the folder {folder} does not exist"
        )
    # a regular file is replaced by a new one in its folder; a device or pipe is written to
    replaced = not real.exists() or real.is_file()
    try:
        if replaced:
            probe(real)
        elif not os.access(real, os.W_OK):
            raise ArgumentError(f"{option}: {path} cannot be written, no permission")
    except OSError as error:
        why = "no permission" if isinstance(error, PermissionError) else error.strerror
        raise ArgumentError(f"{option}: {path} cannot be written, {why} in {folder}") from error


def write(content: str | bytes, path: Path) -> None:
    """Writes text or bytes to ``path`` as :func:`whole_file` does."""
    with whole_file(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_all(contents: Mapping[Path, Callable[[], str | bytes]]) -> None:
    """Writes several files; one that cannot be written does not keep the others from being."""
    failed = []
    for path, text in contents.items():
        try:
            write(text(), path)
        except OSError as error:
            failed.append(f"{path}: {error.strerror or error}")
    if failed:
        raise WriteError(f"cannot write {'; '.join(failed)}")


def stored_png(line: str) -> str | None:
    """The PNG next to this line of text in the notebook that runs in JupyterLab, as last saved, so
    that a notebook that is run again keeps the PNGs of what has not changed."""
    try:
        cells = json.loads(Path(os.environ["JPY_SESSION_NAME"]).read_text("utf-8"))["cells"]
        every = [one.get("data", {}) for cell in cells for one in cell.get("outputs", ())]
        lines = {"".join(data.get("text/plain", "")): data.get("image/png") for data in every}
    except (KeyError, OSError, ValueError, TypeError, AttributeError):  # no notebook at hand
        return None
    return lines.get(line)
