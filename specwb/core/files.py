"""JSON of ours read back, files written whole or not at all, and places that commands write to."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import isinf
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from specwb.core.errors import ArgumentError, SpecwbError


class DataError(SpecwbError, ValueError):
    """A data file is missing, unreachable or not the file its checksum names."""


class WriteError(SpecwbError, OSError):
    """A file cannot be written; which one, and why."""


def data_dir() -> Path:
    """The project's data folder: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    return package / "_data" if (package / "_data").exists() else package.parent / "data"


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


# --------------------------------------------------------------------------------------- reading

OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object."""
PICKLE = "it is a pickle with code, or no file of weights; it is not read"
"""What is said of a file that torch refuses, whose own words advise to run the code."""


def from_json(content: str | bytes) -> Any:
    """The value of a JSON text; ValueError where it is not JSON, not UTF-8, nested deeper than the
    parser goes, or has a number that no float holds."""
    try:
        return json.loads(content, parse_int=_integer, parse_float=_number)
    except RecursionError:
        raise ArgumentError("brackets are nested too deep") from None


def _integer(digits: str) -> int:
    _number(digits)
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ArgumentError(f"the number {digits[:20]}.. is too large")
    return value


@cache
def _check(schema: str) -> Callable[[Any], Any]:
    import fastjsonschema

    return fastjsonschema.compile(json.loads(schema), use_default=False)


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
        value = from_json(path.read_bytes())
        _check(json.dumps(schema))(value)
    except OSError as error:
        raise error_type(f"{path}: {error.strerror}; {advice}") from error
    except JsonSchemaValueException as error:
        place = str(error.name).removeprefix("data").lstrip(".") or "it"
        fault = f"{place}{str(error.message).removeprefix(str(error.name))}"[:300]
        raise error_type(f"{path} is damaged or another file: {fault}; {advice}") from error
    except ValueError as error:
        raise error_type(f"{path} is not JSON ({error}); {advice}") from error
    return value


def table(path: Path, error_type: type[ValueError] = DataError) -> dict[str, Any]:
    """The object in a JSON file, and an empty one where there is no file."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise error_type(f"{path} is no file but a folder, a pipe or a device")
    return document(path, OBJECT, error_type, "fetch it again, or correct it")


def toml(path: Path, error_type: type[Exception] = DataError) -> tuple[dict[str, Any], str]:
    """The table in a TOML file, and the file's text."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise error_type(f"{path}: {error.strerror}") from error
    with foreign(f"{path} is no TOML", error_type):
        content = raw.decode()
        return tomllib.loads(content), content


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


# --------------------------------------------------------------------------------------- writing

Content = str | bytes | Callable[[Path], object]
"""What a file is to hold, or what writes it to the path that it is given."""


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


def _part_name(path: Path) -> Path:
    """A name next to ``path`` that nothing else has: two runs that write one file must not meet,
    and in a shared folder a name that can be guessed may be a link by the time it is opened."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def _put(content: Content, path: Path) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


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


# ------------------------------------------------------------------------------- places of outputs


@dataclass(frozen=True)
class Artifact:
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
FILE = Artifact("a file that may be replaced: it is a store of runs or a file of a model")
FOLDER = Artifact("a folder", (), is_folder=True)  # of files that are named by what is in them
STORE = Artifact("a store of specwb's runs", mark=SQLITE)
STUDY = Artifact("a file of results", mark=rb'\{\s*"arguments":')
TUNED = Artifact("a result of specwb tune", mark=rb'\{\s*"(command|arguments)":')
TALKS = Artifact(
    "a file of specwb train talks",
    mark=rb'\{"messages": \[[^\n]*"temperatures": \[[^\n]*"ended": ',
)
HEAD = Artifact("a trained head", mark=rb"\{", marked="{}/card.json", is_folder=True)
EVALUATION = Artifact(
    "a file of specwb evaluate",
    ("{}/store.sqlite", "{}/run.json", "{}/answers"),
    SQLITE,
    "{}/store.sqlite",
    True,
)
LEDGER = Artifact(
    "a page of specwb reproduce all",
    ("{}/ledger.md",),
    rb"# Ledger of the papers' claims",
    "{}/ledger.md",
    True,
)
DRAWN = b"<!-- a figure of specwb reproduce -->\n"
DRAWING = Artifact(
    "a figure of specwb reproduce", ("{}.html", "{}.png"), re.escape(DRAWN), "{}.html"
)
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".npz")


def claim(
    outputs: Mapping[str, tuple[Path, Artifact]], inputs: Sequence[tuple[str, str]] = ()
) -> None:
    """Checks, before any work, that its results can be written and that nothing is lost by that.

    No output may be a file that is read, lie where another output writes, replace a store or a file
    of a model, or replace what lacks the mark of its kind. Links are followed.

    Args:
        outputs: option -> the place that it names, and what is written there.
        inputs: options with the files and folders that they read.
    Raises:
        ArgumentError: an output breaks one of these rules; the line says which, and what to do.
    """
    written: list[tuple[str, list[Path]]] = []
    for option, (named, output) in outputs.items():
        place = Path(os.path.realpath(home(named)))
        paths = [place, *output.paths(place)]
        for reading, name in inputs:
            if _meet(paths, [Path(os.path.realpath(home(name)))]):
                raise ArgumentError(
                    f"{reading} reads {name}, and {option} would write to it; name another file"
                )
        for other, others in written:
            if _meet(paths, others) or _meet(others, paths):
                raise ArgumentError(f"{other} and {option} name one file, {named}; name two")
        written.append((option, paths))
    for option, (named, output) in outputs.items():
        place = Path(os.path.realpath(home(named)))
        _check_writable(option, named, place, output.is_folder)
        if (path := output.foreign(place)) is not None:
            raise ArgumentError(
                f"{option}: {path if output.is_folder else named} is there and not "
                f"{output.what}; move it away, or name another place"
            )


def _meet(written: Sequence[Path], others: Sequence[Path]) -> bool:
    """Whether one of the others is a path that is written, or lies in a folder that is written, the
    place itself apart. Devices and pipes keep nothing that could be lost."""
    for other in others:
        exists = other.exists()
        if exists and not (other.is_file() or other.is_dir()):
            continue
        if other in written or any(path in other.parents for path in written[1:]):
            return True
        if exists and any(path.exists() and os.path.samefile(path, other) for path in written):
            return True
    return False


def _beginning(path: Path) -> bytes:
    """The first 64 kB of a file; nothing of a folder."""
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
    near = {other.suffix for other in path.parent.iterdir()} & {*WEIGHTS}
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


def stored_png(line: str) -> str | None:
    """The PNG next to this line of text in the notebook that runs in JupyterLab, as last saved, so
    that a notebook that is run again keeps the PNGs of what has not changed."""
    try:
        cells = json.loads(Path(os.environ["JPY_SESSION_NAME"]).read_text("utf-8"))["cells"]
        outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
        lines = {"".join(data.get("text/plain", "")): data.get("image/png") for data in outputs}
    except (KeyError, OSError, ValueError, TypeError, AttributeError):  # no notebook at hand
        return None
    return lines.get(line)
