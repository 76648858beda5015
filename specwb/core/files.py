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
import re
import secrets
import shutil
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import isinf
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from specwb.core.errors import ArgumentError, SpecwbError


def data_dir() -> Path:
    """The project's data folder: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
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
    """The value of a JSON text; ValueError where it is not JSON, not UTF-8, nested deeper than the
    parser goes, or has a number that no float holds."""
    try:
        return json.loads(content, parse_int=_integer, parse_float=_number)
    except RecursionError:
        raise ArgumentError("brackets are nested too deep") from None


PICKLE = "it is a pickle with code, or no file of weights; it is not read"
"""What is said of a file that torch refuses, whose own words advise to run the code."""


@cache
def _check(schema: str) -> Callable[[Any], Any]:
    import fastjsonschema

    return fastjsonschema.compile(json.loads(schema), use_default=False)


def _integer(digits: str) -> int:
    _number(digits)
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ArgumentError(f"the number {digits[:20]}.. is too large")
    return value


OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object."""


def document(
    path: Path,
    schema: Mapping[str, Any] = OBJECT,
    error_type: type[Exception] = DataError,
    advice: str = "correct it, or make it anew",
) -> Any:
    """The value in a JSON file that this package wrote: every file of ours is read back here.

    Args:
        path: the file.
        schema: the JSON schema (draft 7) of the value.
        error_type: of the error that is raised.
        advice: how to go on; the end of the message.
    Raises:
        error_type: the file cannot be read or holds something else, in one line with the file, the
            place in it and what is expected there.
    """
    from fastjsonschema import JsonSchemaValueException

    try:
        content = path.read_bytes()
    except OSError as error:
        raise error_type(f"{path}: {error.strerror}; {advice}") from error
    try:
        value = from_json(content)
    except ValueError as error:
        raise error_type(f"{path} is not JSON ({error}); {advice}") from error
    try:
        _check(json.dumps(schema))(value)
    except JsonSchemaValueException as error:
        place = str(error.name).removeprefix("data").lstrip(".") or "it"
        fault = f"{place}{str(error.message).removeprefix(str(error.name))}"[:300]
        raise error_type(f"{path} is damaged or another file: {fault}; {advice}") from error
    return value


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
    return document(path, OBJECT, error_type, "fetch it again, or correct it")


def _part_name(path: Path) -> Path:
    """A name next to ``path`` that nothing else has: two runs that write one file must not meet,
    and in a shared folder a name that can be guessed may be a link by the time it is opened."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raises what keeps ``path`` from being written as a WriteError that names it."""
    try:
        yield
    except BrokenPipeError:  # a reader that has seen enough
        raise
    except (OSError, SafetensorError) as error:
        cause = error.__cause__ if isinstance(error, WriteError) and error.__cause__ else error
        kept = f"; {path} stays as it was" if path.is_file() else ""
        raise WriteError(
            f"cannot write {path}: {getattr(cause, 'strerror', None) or cause}{kept}; free some "
            "space or name another place, and run the same command"
        ) from cause


Content = str | bytes | Callable[[Path], object]
"""What a file is to hold, or what writes it to the path that it is given."""


def _put(content: Content, path: Path) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def write(content: Content, path: Path) -> None:
    """Writes a file completely or not at all: whoever opens ``path`` sees the old content or all of
    the new, also after a power cut.

    A link is followed, and what it leads to is replaced. What is no regular file (a device, a pipe)
    is written to as it is. The file gets the mode of the one before it, and a new one what the
    umask leaves; a missing folder is made. Whether the file may be replaced is :func:`claim`'s
    matter.

    Raises:
        WriteError: it cannot be written; what was there stays.
    """
    path = Path(os.path.realpath(home(path)))
    with _writing(path):
        if path.exists() and not path.is_file():
            _put(content, path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part_name(path)
        try:
            part.open("x").close()
            # some libraries put a file of their own in its place, which only its owner may read
            mode = stat.S_IMODE((path if path.exists() else part).stat().st_mode)
            _put(content, part)
            part.chmod(mode)
            with open(part, "rb") as handle:  # on the disk before it replaces the old one
                os.fsync(handle.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_all(contents: Mapping[Path, Content]) -> None:
    """Writes several files; one that cannot be written does not keep the others from being."""
    failed = []
    for path, content in contents.items():
        try:
            write(content, path)
        except WriteError as error:
            failed.append(str(error))
    if failed:
        raise WriteError("; ".join(failed))


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder to write into, which becomes ``folder`` when the writing has ended. A folder
    of that name must be empty: what a run has made is never moved away for another's.

    Raises:
        WriteError: it is not empty, or cannot be written.
    """
    folder = home(folder)
    exists = WriteError(f"{folder} exists and stays as it is; delete it or choose another")
    if folder.exists() and not _is_empty(folder):
        raise exists
    part = _part_name(folder)
    try:
        with _writing(folder):
            part.mkdir(parents=True)
            yield part
            mode = stat.S_IMODE(part.stat().st_mode)
            for path in part.rglob("*"):  # as in write
                path.chmod(mode if path.is_dir() else mode & 0o666)
        try:
            part.rename(folder)
        except OSError as error:
            raise exists if folder.exists() else error from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@dataclass(frozen=True)
class Output:
    """What a command writes at a place that its user names.

    Attributes:
        what: it is, in words.
        names: the files and folders that are written, by templates in which ``{}`` is the place.
        mark: a regular expression that a file of ours begins with. Nothing of ``names`` is replaced
            where that file lacks it. None: the user names this very file, which may be replaced.
        marked: the file that has the mark, a template as well; it is written before the others.
        is_folder: whether the place is a folder.
    """

    what: str
    names: tuple[str, ...] = ("{}",)
    mark: bytes | None = None
    marked: str = "{}"
    is_folder: bool = False

    def paths(self, place: Path) -> list[Path]:
        """The files and folders that are written at a place."""
        return [Path(name.format(place)) for name in self.names]

    def foreign(self, place: Path) -> Path | None:
        """What lies at a place, would be replaced, and is not ours; None where nothing does."""
        there = [path for path in self.paths(place) if path.exists() and not _is_empty(path)]
        if self.mark is None:
            return next(filter(_is_precious, there), None)
        beginning = _beginning(Path(self.marked.format(place)))
        return None if re.match(self.mark, beginning, re.DOTALL) else next(iter(there), None)


SQLITE = rb"SQLite format 3\0"
FILE = Output("a file that may be replaced: it is a store of runs or a file of a model")
FOLDER = Output("a folder", (), is_folder=True)  # of files that are named by what is in them
STORE = Output("a store of specwb's runs", mark=SQLITE)
STUDY = Output("a file of results", mark=rb'\{\s*"arguments":')
TUNED = Output("a result of specwb tune", mark=rb'\{\s*"(command|arguments)":')
TALKS = Output(
    "a file of specwb train talks",
    mark=rb'\{"messages": \[[^\n]*"temperatures": \[[^\n]*"ended": ',
)
HEAD = Output("a trained head", mark=rb"\{", marked="{}/card.json", is_folder=True)
EVALUATION = Output(
    "a file of specwb evaluate",
    ("{}/store.sqlite", "{}/run.json", "{}/answers"),
    SQLITE,
    "{}/store.sqlite",
    True,
)
LEDGER = Output(
    "a page of specwb reproduce all",
    ("{}/ledger.md", "{}/ledger.html", "{}/ledger.json"),
    rb"# Ledger of the papers' claims",
    "{}/ledger.md",
    True,
)
DRAWN = b"<!-- a figure of specwb reproduce -->\n"
DRAWING = Output("a figure of specwb reproduce", ("{}.html", "{}.png"), re.escape(DRAWN), "{}.html")
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".npz")


def claim(
    outputs: Mapping[str, tuple[Path, Output]], inputs: Sequence[tuple[str, str]] = ()
) -> None:
    """Checks, before any work, that its results can be written and that nothing is lost by that.

    No output may be a file that is read, lie where another output writes, replace a store or a file
    of a model, or replace what lacks the mark of its kind. Links are followed; upper and lower case
    do not tell outputs apart.

    Args:
        outputs: option -> the place that it names, and what is written there.
        inputs: options with the files and folders that they read.
    Raises:
        ArgumentError: an output breaks one of these rules; the line says which, and what to do.
    """
    written: list[tuple[str, Path, list[Path]]] = []
    for option, (named, output) in outputs.items():
        place = Path(os.path.realpath(home(named)))
        paths = output.paths(place)
        for reading, name in inputs:
            if _overlap(place, paths, home(name)):
                problem = f"{reading} reads {name}, and {option} would write to it"
                raise ArgumentError(f"{problem}; name another file")
        for other, its, others in written:
            mine, theirs = _folded(place, paths), _folded(its, others)
            if (
                _overlap(*mine, theirs[0])
                or any(_overlap(*mine, path) for path in theirs[1])
                or (any(_overlap(*theirs, path) for path in (mine[0], *mine[1])))
            ):
                raise ArgumentError(f"{other} and {option} name one file, {named}; name two")
        written.append((option, place, paths))
    for option, (named, output) in outputs.items():
        place = Path(os.path.realpath(home(named)))
        _check_writable(option, named, place, output.is_folder)
        if (path := output.foreign(place)) is not None:
            raise ArgumentError(
                f"{option}: {path if output.is_folder else named} is there and not "
                f"{output.what}; move it away, or name another place"
            )


def _overlap(place: Path, paths: Sequence[Path], other: Path) -> bool:
    """Whether ``other`` is a place, or lies at or below one of the paths that are written there.
    Devices and pipes keep nothing that could be lost."""
    if other.exists() and not (other.is_file() or other.is_dir()):
        return False
    real = Path(os.path.realpath(other))
    if any(path == real or path in real.parents for path in paths) or place == real:
        return True
    return other.exists() and any(
        path.exists() and os.path.samefile(path, other) for path in (place, *paths)
    )


def _folded(place: Path, paths: Sequence[Path]) -> tuple[Path, list[Path]]:
    """Paths as outputs are compared: in lower case, and files that SQLite or a lock keep next to a
    store as the store."""

    def folded(path: Path) -> Path:
        return Path(re.sub(r"(-wal|-shm|-journal|\.lock)$", "", str(path).casefold()))

    return folded(place), [folded(path) for path in paths]


def _beginning(path: Path) -> bytes:
    """The first line of a file that is a text, the first 64 kB of another; nothing of a folder."""
    if not path.is_file():
        return b""
    with open(path, "rb") as handle:
        return handle.read(1 << 16)


def _is_empty(path: Path) -> bool:
    """Whether a file or a folder has nothing in it."""
    if path.is_dir():
        return not any(path.iterdir())
    return path.is_file() and not path.stat().st_size


def _is_precious(path: Path) -> bool:
    """Whether a file is a store or belongs to a model, and so is replaced by no table or page."""
    if not path.is_file():
        return False
    near = {one.suffix for one in path.parent.iterdir()} & {*WEIGHTS}
    in_model = (path.parent / "card.json").is_file() or (
        bool(near) and (path.parent / "config.json").is_file()
    )
    return in_model or path.suffix in WEIGHTS or bool(re.match(SQLITE, _beginning(path)))


def _check_writable(option: str, named: Path, place: Path, is_folder: bool) -> None:
    """Checks that a file or folder can be made; ``place`` is what a link at ``named`` leads to."""
    if place.exists() and not (place.is_file() or place.is_dir()):  # written to as it is
        if is_folder or not os.access(place, os.W_OK):
            raise ArgumentError(f"{option}: {named} cannot be written, no permission")
        return
    if place.exists() and place.is_dir() != is_folder:
        kinds = ("file", "folder") if is_folder else ("folder", "file")
        raise ArgumentError(f"{option}: {named} is a {kinds[0]}, give the name of a {kinds[1]}")
    # the folder that is there, in which the file or the first missing folder is made
    near = place if is_folder and place.exists() else place.parent
    if not is_folder and not near.is_dir() and home(named).parts[:1] != ("build",):
        raise ArgumentError(
            f"{option}: {named} cannot be written, the folder {near} does not exist"
        )
    try:
        while not near.exists():
            near = near.parent
        # permissions say nothing of a name that is too long, or of a file system for reading
        part = _part_name(near / (place.name or "new"))
        part.open("x").close()
        part.unlink()
    except OSError as error:
        why = "no permission" if isinstance(error, PermissionError) else error.strerror
        raise ArgumentError(f"{option}: {named} cannot be written, {why} in {near}") from error


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
