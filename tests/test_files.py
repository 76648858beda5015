"""Public files: under SPECWB_DATA, from a server, and everything that can be wrong with either."""

from __future__ import annotations

import errno
import gzip
import hashlib
import importlib
import os
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from specwb.core import files, texts
from specwb.core.errors import ArgumentError
from specwb.models.checkpoint import write

PLAIN = b'{"question_id": 81, "category": "writing", "turns": ["one", "two"]}\n' * 50


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A local server that sends ``body`` under every address, an empty cache, no SPECWB_DATA.

    ``mt_bench`` (plain) and ``humaneval`` (gzip) are files of it.
    """
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.delenv("SPECWB_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            http.requests += 1
            self.send_response(http.status)
            self.send_header("Content-Length", str(len(http.body) + http.short))
            self.end_headers()
            self.wfile.write(http.body)

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.requests, http.status, http.short, http.body = 0, 200, 0, PLAIN
    polling = {"poll_interval": 0.01}
    thread = threading.Thread(target=http.serve_forever, kwargs=polling, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{http.server_port}/"
    sha256, packed = hashlib.sha256(PLAIN).hexdigest(), gzip.compress(PLAIN, mtime=0)
    plain = texts.Remote("mt_bench/question.jsonl", address + "question.jsonl", sha256, "x")
    packed_sha256 = hashlib.sha256(packed).hexdigest()
    zipped = texts.Remote("humaneval/H.jsonl", address + "H.jsonl.gz", sha256, "x", packed_sha256)
    monkeypatch.setitem(texts.FILES, "mt_bench", plain)
    monkeypatch.setitem(texts.FILES, "humaneval", zipped)
    yield http
    http.shutdown()
    http.server_close()
    thread.join()


def assert_refused(name: str, *words: str) -> None:
    """Asserts that reading the text fails with one short line that has all of ``words``."""
    with pytest.raises(files.DataError) as caught:
        texts.read(name)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert all(word in text for word in words), text


def test_a_download_is_checked_and_kept(server, tmp_path):
    assert texts.read("mt_bench") == texts.read("mt_bench") == PLAIN
    assert server.requests == 1
    (tmp_path / "cache" / "mt_bench.jsonl").write_bytes(b"rubbish")  # is downloaded again
    assert texts.read("mt_bench") == PLAIN
    server.body = gzip.compress(PLAIN, mtime=0)
    assert texts.read("humaneval") == PLAIN
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"body": PLAIN + b"x"}, "does not match"),
        ({"status": 404}, "404"),
        ({"short": 1000}, "failed: "),
    ],
    ids=str,
)
def test_a_bad_download_is_not_kept_and_the_next_attempt_works(server, tmp_path, fault, words):
    vars(server).update(fault)
    where = "mt_bench/question.jsonl under SPECWB_DATA (not set)"
    assert_refused("mt_bench", where, f"127.0.0.1:{server.server_port}/question.jsonl", words)
    assert not list((tmp_path / "cache").iterdir())
    vars(server).update(status=200, short=0, body=PLAIN)
    assert texts.read("mt_bench") == PLAIN


def test_without_a_place_a_server_or_pooch(server, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert_refused("mt_bench", "failed: ", str(tmp_path / "cache"))
    nowhere = replace(texts.FILES["mt_bench"], url="http://127.0.0.1:9/a")
    monkeypatch.setitem(texts.FILES, "mt_bench", nowhere)
    assert_refused("mt_bench", "failed: ")
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert_refused("mt_bench", "pip install pooch")
    assert_refused("nonsense", "unknown data file 'nonsense'")
    assert server.requests == 0


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_of_the_users_comes_first_plain_or_gzipped(server, tmp_path, monkeypatch, packed):
    name = "humaneval"
    monkeypatch.setenv("SPECWB_DATA", str(tmp_path / "data"))
    path = tmp_path / "data" / (texts.FILES[name].path + (".gz" if packed else ""))
    path.parent.mkdir(parents=True)
    # anybody's gzip will do: only its content is checked
    path.write_bytes(gzip.compress(PLAIN, 1) if packed else PLAIN)
    assert texts.read(name) == PLAIN
    assert server.requests == 0
    path.write_bytes(gzip.compress(PLAIN + b"x") if packed else PLAIN + b"x")
    assert_refused(name, str(path), "sha256")
    if packed:
        for damaged in (gzip.compress(PLAIN)[:-20], PLAIN):
            path.write_bytes(damaged)
            assert_refused(name, str(path), "not a whole gzip file")


def test_a_gzip_that_unpacks_to_more_than_the_limit(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(100_000)))
    assert len(texts.unpack(path, 100_000)) == 100_000
    with pytest.raises(files.DataError, match="unpacks to more than 99999 bytes"):
        texts.unpack(path, 99_999)


# ------------------------------------------------------------------------------------------ writing


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    files.write("new", link)
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def half(part):
        part.write_text("half")
        raise KeyError

    with pytest.raises(KeyError):
        files.write(half, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_with_the_file_that_was_to_be_written(tmp_path):
    path = tmp_path / "a"

    def full(part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as a write does, without a name

    with pytest.raises(files.WriteError, match=f"cannot write {path}: No space left on device; fr"):
        files.write_all({path: full, tmp_path / "b": "b"})
    (tmp_path / "b").unlink()  # it was written all the same
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    with pytest.raises(files.WriteError, match=f"{path} stays as it was; free some space"):
        files.write(full, path)
    folder = tmp_path / "folder"
    with (
        pytest.raises(files.WriteError, match=f"cannot write {folder}: No space"),
        files.whole_folder(folder) as part,
    ):
        files.write(full, part / "a")  # the place that a user knows is named
    assert [x.read_text() for x in tmp_path.iterdir()] == ["old"]


def test_modes_are_what_the_umask_leaves(tmp_path):
    """safetensors writes files that their owner alone may read; colleagues could not use a head."""
    before = os.umask(0o027)
    try:
        write(tmp_path / "head", {}, {"a": torch.ones(2)}, "model", {})
        with files.whole_folder(tmp_path / "folder") as part:
            save_file({"a": torch.ones(2)}, part / "model.safetensors")
            (part / "sub").mkdir()
            (part / "sub" / "b").write_text("b")
    finally:
        os.umask(before)
    for folder in (tmp_path / "head", tmp_path / "folder"):
        for path in (folder, *folder.rglob("*")):
            mode = 0o750 if path.is_dir() else 0o640
            assert path.stat().st_mode & 0o777 == mode, path


def test_a_folder_that_exists_is_never_replaced(tmp_path):
    def write_folder(name, text, meanwhile=lambda: None):
        with files.whole_folder(tmp_path / name) as part:
            (part / "x").write_text(text)
            meanwhile()

    write_folder("a", "1")
    with pytest.raises(files.WriteError, match="stays as it is"):
        write_folder("a", "2", lambda: pytest.fail("the work began before the refusal"))
    with pytest.raises(files.WriteError, match="stays as it is"):
        write_folder("b", "slow", lambda: write_folder("b", "fast"))
    (tmp_path / "empty").mkdir()
    write_folder("empty", "1")
    contents = {path.name: (path / "x").read_text() for path in tmp_path.iterdir()}
    assert contents == {"a": "1", "b": "fast", "empty": "1"}


# ------------------------------------------------------------------------------------------- extras


def test_a_missing_extra_is_named(monkeypatch):
    part, package = "figures", "plotly"
    for name in [name for name in sys.modules if name.startswith(f"specwb.show.{part}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    message = (
        rf"specwb\.show\.{part} needs {package}, which the extra 'notebooks' brings: pip install "
    )
    with pytest.raises(ImportError, match=message) as caught:
        importlib.import_module(f"specwb.show.{part}")
    assert "'specwb[" not in str(caught.value)  # no index has that name


def test_places_are_checked_before_the_work(tmp_path, monkeypatch):
    def refused(path, words, output=files.FILE):
        with pytest.raises(ArgumentError, match=f"--out: .* {words}") as caught:
            files.claim({"--out": (path, output)})
        assert "\n" not in str(caught.value)

    new = tmp_path / "new.html"
    files.claim({"--out": (new, files.FILE)})
    refused(tmp_path, "is a folder, give the name of a file")
    refused(tmp_path, "is a folder, give the name of a file", files.TALKS)
    refused(tmp_path / "no" / "new.html", "does not exist")
    refused(tmp_path / ("x" * 240), "File name too long")
    files.claim({"--out": (tmp_path / "no" / "folder", files.HEAD)})  # is made
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "is a file, give the name of a folder", files.HEAD)
    refused(tmp_path / "file" / "x", "cannot be written, Not a directory", files.HEAD)
    monkeypatch.chdir(tmp_path)
    files.claim({"--out": (Path("build/a/new.html"), files.FILE)})
    for number, why in ((errno.EACCES, "no permission"), (errno.EROFS, "Read-only file system")):
        error = OSError(number, os.strerror(number))
        monkeypatch.setattr(Path, "open", Mock(side_effect=error))
        refused(new, f"cannot be written, {why} in ")
        refused(tmp_path / "heads", f"cannot be written, {why} in ", files.HEAD)


# ------------------------------------------------------------------- what is there is whose?

STORE = "SQLite format 3\0.."
USERS = {
    "a user's talks": (files.TALKS, "", '{"messages": [{"role": "user", "content": "a"}]}\n'),
    "answers by an evaluation": (files.EVALUATION, "answers/ar.jsonl", "{}"),
    "a file where a head goes": (files.HEAD, "notes.txt", "notes"),
    "a store as a table": (files.FILE, "", STORE),
}
OURS = {
    "results": (files.STUDY, "", '{\n"arguments": {\n'),
    "a head": (files.HEAD, "card.json", "{}"),
    "an evaluation": (files.EVALUATION, "store.sqlite", STORE),
}


def lay(folder: Path, output: files.Artifact, name: str, content: str) -> tuple[Path, Path]:
    """The place of an output, with a file of this content there."""
    place = folder / "place"
    path = place / name if output.is_folder else Path(f"{place}{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return place, path


@pytest.mark.parametrize(("output", "name", "content"), USERS.values(), ids=USERS)
def test_what_lacks_the_mark_is_not_replaced(tmp_path, output, name, content):
    place, path = lay(tmp_path, output, name, content)
    with pytest.raises(ArgumentError, match=r"--out: .* is there and not .* move it"):
        files.claim({"--out": (place, output)})
    assert path.read_text() == content
    link = tmp_path / "link"
    if name == "" or output.is_folder:  # a link that leads there is no way round
        link.symlink_to(place)
        with pytest.raises(ArgumentError, match="is there and not"):
            files.claim({"--out": (link, output)})


@pytest.mark.parametrize(("output", "name", "content"), OURS.values(), ids=OURS)
def test_what_has_the_mark_is_gone_on_from(tmp_path, output, name, content):
    files.claim({"--out": (tmp_path / "place", output)})
    place, _ = lay(tmp_path, output, name, content)
    files.claim({"--out": (place, output)})


@pytest.mark.parametrize("csv", ["ev/store.sqlite", "ev/answers/ar.jsonl", "ev"])
def test_an_output_inside_another(tmp_path, monkeypatch, csv):
    monkeypatch.chdir(tmp_path)
    outputs = {"--out": (Path("ev"), files.EVALUATION), "--csv": (Path(csv), files.FILE)}
    for order in (outputs, dict(reversed(outputs.items()))):
        with pytest.raises(ArgumentError, match=r"name one file, .*; name two"):
            files.claim(order, [("--bench", "elsewhere")])
    Path("ev").mkdir()
    files.claim(outputs | {"--csv": (Path("ev/figures.csv"), files.FILE)})


# -------------------------------------------------------------------------------- reading it back

SCHEMA = {
    "type": "object",
    "required": ["rows"],
    "properties": {"rows": {"type": "array", "items": {"type": "object", "required": ["cell"]}}},
}
DAMAGED = {
    "empty": (b"", r"not JSON \(Expecting value"),
    "not UTF-8": (b'{"rows": "\xff"}', "not JSON .*codec can't decode"),
    "a large integer": (b'{"n": 1' + b"0" * 400 + b"}", "not JSON .the number 1000.* is too large"),
    "brackets": (b"[" * 100_000, "not JSON .brackets are nested too deep"),
    "a list": (b"[]", "damaged or another file: it must be object; correct it"),
    "no rows": (b"{}", r"damaged or another file: it must contain \['rows'\]"),
    "a row without its cell": (
        b'{"rows": [{"cell": 1}, {}]}',
        r"damaged or another file: rows\[1\] must contain \['cell'\]",
    ),
}


@pytest.mark.parametrize(("content", "words"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_one_line_with_its_name_and_the_place(tmp_path, content, words):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(files.DataError, match=f"r.json is {words}") as caught:
        files.document(path, SCHEMA)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert path.read_bytes() == content


def test_a_file_that_is_not_there_and_a_whole_one(tmp_path):
    with pytest.raises(files.DataError, match=r"r\.json: No such file or directory; make it"):
        files.document(tmp_path / "r.json", advice="make it")
    (tmp_path / "r.json").write_text('{"rows": [{"cell": "a"}], "n": 1e300}')
    assert files.document(tmp_path / "r.json", SCHEMA) == {"rows": [{"cell": "a"}], "n": 1e300}
