"""Public files: under SPECWB_DATA, from a server, and everything that can be wrong with either."""

from __future__ import annotations

import errno
import gzip
import hashlib
import importlib
import os
import socket
import stat
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from specwb import files
from specwb.models.checkpoint import write

PLAIN = b'{"question_id": 81, "category": "writing", "turns": ["one", "two"]}\n' * 50


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests += 1
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(server.body) + server.short))
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, *_):
        pass


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no SPECWB_DATA, no proxy."""
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.delenv("SPECWB_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path / "cache"


@pytest.fixture
def server(cache, monkeypatch):
    """A local server that sends ``body`` under every address.

    ``mt_bench`` (plain) and ``humaneval`` (gzip) are files of it.
    """
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.requests, http.status, http.short, http.body = 0, 200, 0, PLAIN
    polling = {"poll_interval": 0.01}
    thread = threading.Thread(target=http.serve_forever, kwargs=polling, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{http.server_port}/"
    sha256, http.packed = hashlib.sha256(PLAIN).hexdigest(), gzip.compress(PLAIN, mtime=0)
    plain = files.Remote("mt_bench/question.jsonl", address + "question.jsonl", sha256, "x")
    gzip_sha256 = hashlib.sha256(http.packed).hexdigest()
    packed = files.Remote("humaneval/H.jsonl", address + "H.jsonl.gz", sha256, "x", gzip_sha256)
    monkeypatch.setitem(files.FILES, "mt_bench", plain)
    monkeypatch.setitem(files.FILES, "humaneval", packed)
    yield http
    http.shutdown()
    http.server_close()
    thread.join()


def assert_refused(name: str, *words: str) -> None:
    """Asserts that reading the file fails with one short line that has all of ``words``."""
    with pytest.raises(files.DataError) as caught:
        files.read(name)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert all(word in text for word in words), text


def test_a_download_is_checked_and_kept(server, cache):
    assert files.read("mt_bench") == PLAIN
    assert files.read("mt_bench") == PLAIN
    assert server.requests == 1
    assert [p.name for p in cache.iterdir()] == ["mt_bench.jsonl"]


def test_an_official_gzip_is_checked_as_it_is_sent_and_returned_unpacked(server, cache):
    server.body = server.packed
    assert files.read("humaneval") == PLAIN
    assert (cache / "humaneval.jsonl.gz").read_bytes() == server.packed


def spoil_checksum(server):
    server.body = PLAIN + b"x"


def spoil_status(server):
    server.status = 404


def spoil_length(server):
    server.short = 1000


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_checksum, "another sha256"),
        (spoil_status, "HTTP 404"),
        (spoil_length, "the connection was cut"),
    ],
)
def test_a_bad_download_is_one_line_is_not_kept_and_the_next_attempt_works(
    server, cache, caplog, spoil, words
):
    import pooch

    pooch.get_logger().addHandler(caplog.handler)
    spoil(server)
    where = "mt_bench/question.jsonl under SPECWB_DATA (not set)"
    assert_refused("mt_bench", where, f"127.0.0.1:{server.server_port}/question.jsonl", words)
    assert not list(cache.iterdir())
    pooch.get_logger().removeHandler(caplog.handler)
    assert not caplog.records  # the library adds no lines of its own
    server.body, server.status, server.short = PLAIN, 200, 0
    assert files.read("mt_bench") == PLAIN


def test_no_server(cache, monkeypatch):
    nowhere = files.Remote("a", f"http://127.0.0.1:{closed_port()}/a", "0" * 64, "x")
    monkeypatch.setitem(files.FILES, "mt_bench", nowhere)
    assert_refused("mt_bench", "no connection (ConnectionError)")


def test_a_damaged_cache_is_repaired(server, cache):
    files.read("mt_bench")
    (cache / "mt_bench.jsonl").write_bytes(b"rubbish")
    assert files.read("mt_bench") == PLAIN
    assert server.requests == 2


def test_a_cache_that_cannot_be_written(server, cache):
    cache.write_text("a file where the folder should be")
    assert_refused("mt_bench", "the cache cannot be written", str(cache))


def test_without_pooch(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert_refused("mt_bench", "pip install pooch")
    assert server.requests == 0


@pytest.mark.parametrize("name", ["mt_bench", "humaneval"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_of_the_users_comes_first_plain_or_gzipped(
    server, tmp_path, monkeypatch, name, packed
):
    monkeypatch.setenv("SPECWB_DATA", str(tmp_path / "data"))
    path = tmp_path / "data" / (files.FILES[name].path + (".gz" if packed else ""))
    path.parent.mkdir(parents=True)
    # anybody's gzip will do: only its content is checked
    path.write_bytes(gzip.compress(PLAIN, 1) if packed else PLAIN)
    assert files.read(name) == PLAIN
    assert server.requests == 0
    path.write_bytes(gzip.compress(PLAIN + b"x") if packed else PLAIN + b"x")
    assert_refused(name, str(path), "sha256")
    if packed:
        path.write_bytes(gzip.compress(PLAIN)[:-20])
        assert_refused(name, str(path), "not a whole gzip file")
        path.write_bytes(PLAIN)
        assert_refused(name, str(path), "not a whole gzip file")


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


def test_a_pipe_is_written_to_and_stays(tmp_path):
    """As /dev/stdout and /dev/null are; nothing can take their place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files.check_path(pipe, "--json")
    texts = []
    reader = threading.Thread(target=lambda: texts.append(pipe.read_text()))
    reader.start()
    files.write("text", pipe)
    reader.join()
    assert texts == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def half():
        with files.whole_file(path) as part:
            part.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_with_the_file_that_was_to_be_written(tmp_path):
    path = tmp_path / "a"

    def full():
        with files.whole_file(path):
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC)
            )  # as a write does, without a name

    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        full()
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(FileExistsError, match="stays as it is"):
        write_folder("a", "2", lambda: pytest.fail("the work began before the refusal"))
    with pytest.raises(FileExistsError, match="stays as it is"):
        write_folder("b", "slow", lambda: write_folder("b", "fast"))
    (tmp_path / "empty").mkdir()
    write_folder("empty", "1")
    contents = {path.name: (path / "x").read_text() for path in tmp_path.iterdir()}
    assert contents == {"a": "1", "b": "fast", "empty": "1"}


def test_a_gzip_that_unpacks_to_more_than_the_limit(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(100_000)))
    assert len(files.unpack(path, 100_000)) == 100_000
    with pytest.raises(files.DataError, match="unpacks to more than 99999 bytes"):
        files.unpack(path, 99_999)


# ------------------------------------------------------------------------------------------- extras


@pytest.mark.parametrize(("part", "package"), [("figures", "plotly"), ("widgets", "ipywidgets")])
def test_a_missing_extra_is_named(monkeypatch, part, package):
    for name in [name for name in sys.modules if name.startswith(f"specwb.{part}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"specwb\.{part} needs {package}, which the extra 'notebooks' brings: pip install "
    with pytest.raises(ImportError, match=message) as caught:
        importlib.import_module(f"specwb.{part}")
    assert "'specwb[" not in str(caught.value)  # no index has that name


def test_away_from_a_checkout_the_packages_themselves_are_named(monkeypatch, tmp_path):
    from specwb import extras

    monkeypatch.setattr(extras, "__file__", str(tmp_path / "specwb" / "extras.py"))
    requirements = ["torch>=2", "pooch>=1.8; extra == 'train'", 'plotly; extra == "x"']
    monkeypatch.setattr(extras.importlib.metadata, "requires", lambda name: requirements)
    assert extras.how("train") == "pip install 'pooch>=1.8'"


def test_paths_are_checked_before_the_work(tmp_path, monkeypatch):
    files.check_path(tmp_path / "new.html", "--html")
    with pytest.raises(ValueError, match=r"--html: .* is a folder"):
        files.check_path(tmp_path, "--html")
    with pytest.raises(ValueError, match=r"--html: .* does not exist"):
        files.check_path(tmp_path / "no" / "new.html", "--html")
    for number, why in ((errno.EACCES, "no permission"), (errno.EROFS, "Read-only file system")):
        monkeypatch.setattr(files, "probe", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(ValueError, match=f"--html: .* cannot be written, {why} in "):
            files.check_path(tmp_path / "new.html", "--html")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="File name too long"):
        files.check_path(tmp_path / ("x" * 240), "--csv")


def test_a_file_that_cannot_be_written_keeps_no_other_from_being(tmp_path):
    contents = {tmp_path / "no" / "a": lambda: "a", tmp_path / "b": lambda: "b"}
    with pytest.raises(OSError, match=r"^cannot write .*/no/a: No such file or directory$"):
        files.write_all(contents)
    assert (tmp_path / "b").read_text() == "b"
