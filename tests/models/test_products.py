"""Products of few tokens: every way computes the same, the measured one is taken, packed copies
follow their weights and stay within their memory."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F

from specwb.models import products


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Choices of this test alone, for weights of any size."""
    monkeypatch.setenv("SPECWB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECWB_PACK_MB", raising=False)
    monkeypatch.setattr(products, "SMALL", 0)
    products.forget()
    yield
    products.forget()


def always(way: str, monkeypatch) -> None:
    monkeypatch.setattr(products, "_choices", lambda *_: way)


def said(**seconds: float):
    """Measurements that find these seconds for every number of tokens."""
    return lambda rows, columns, dtype, tokens: dict.fromkeys(tokens, seconds)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest value: a sum of K float32 terms is off by less than K *
    2**-24."""
    return float((found - expected).abs().max() / expected.abs().max())


needs_packing = pytest.mark.skipif(not products.packing(), reason="this torch has no oneDNN")
WAYS = ["linear", "turned", "split", pytest.param("packed", marks=needs_packing)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (5,), (1, 1), (3, 2, 4), "slanted"])
def test_every_way_is_the_product(way, bias, shape, monkeypatch):
    always(way, monkeypatch)
    weight = torch.randn(48, 40)
    x = torch.randn(6, 3, 40).mT.contiguous().mT if shape == "slanted" else torch.randn(*shape, 40)
    b = torch.randn(48) if bias else None
    expected = F.linear(x.double(), weight.double(), None if b is None else b.double())
    with torch.inference_mode():
        for _ in range(3):  # packed copies are made at the second use
            found = products.product(x, weight, b)
            assert found.shape == expected.shape
            assert distance(found, expected) < 40 * 2**-22
            assert found.is_contiguous()  # or the next product reads its weight four times as long
            found.add_(1)  # a caller may change what it was given
    assert (products.packed_bytes() > 0) == (way == "packed")


EDITS = {
    "all of it, in place": lambda w: w.mul_(2),
    "all of it, through data": lambda w: w.data.copy_(torch.ones_like(w)),
    "one row": lambda w: w.data[17].zero_(),
    "one column": lambda w: w.data[:, 3].zero_(),
}


@needs_packing
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("size", [(48, 40), (40, 40)])
def test_a_packed_copy_follows_its_weight(edit, size, monkeypatch):
    always("packed", monkeypatch)
    weight, x = torch.randn(size), torch.randn(4, size[1])
    with torch.inference_mode():
        for _ in range(2):
            products.product(x, weight, None)
    assert products.packed_bytes() == weight.nbytes
    EDITS[edit](weight)
    products.refresh()
    assert products.packed_bytes() == 0
    with torch.inference_mode():
        assert distance(products.product(x, weight, None), F.linear(x, weight)) < 40 * 2**-22


@needs_packing
def test_packed_copies_stay_within_their_memory(monkeypatch):
    always("packed", monkeypatch)
    weights, x = [torch.randn(512, 256) for _ in range(4)], torch.randn(4, 256)  # 0.5 MB each
    monkeypatch.setenv("SPECWB_PACK_MB", "1.2")
    with torch.inference_mode():
        for weight in weights * 3:
            assert distance(products.product(x, weight, None), F.linear(x, weight)) < 256 * 2**-22
    assert products.packed_bytes() == 2 * weights[0].nbytes


def test_no_packed_copies_where_they_are_switched_off(monkeypatch):
    monkeypatch.setenv("SPECWB_PACK_MB", "0")
    assert not products.packing()
    assert "packed" not in products.measure(48, 40, torch.float32, [4])[4]
    choices = products.Choices()
    choices._machine, choices._known = "m", {}
    monkeypatch.setattr(products, "measure", said(linear=1.0, packed=0.1))
    assert choices(48, 40, torch.float32, 4) == "linear"


def test_differentiated_products_are_torchs_own(monkeypatch):
    always("packed", monkeypatch)
    weight, x = torch.randn(48, 40, requires_grad=True), torch.randn(4, 40)
    for _ in range(3):
        products.product(x, weight, None).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():  # a weight that is being trained changes between two products
        products.product(x, weight, None)
    assert products.packed_bytes() == 0


def test_another_way_must_be_clearly_faster():
    assert products.fastest({"linear": 1.0, "turned": 0.97, "packed": 0.94}) == "linear"
    assert products.fastest({"linear": 1.0, "turned": 0.9, "packed": 0.89}) == "turned"
    assert products.fastest({"linear": 1.0, "turned": 0.9, "packed": 0.5}) == "packed"
    assert products.fastest({"linear": 1.0}) == "linear"


def test_other_work_beside_a_measurement_does_not_choose():
    own = [1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0]  # slowed in most rounds
    slower = [1.5, 1.5, 1.5, 1.5, 1.5, 4.0, 4.0]
    assert products.fastest(products.cautious({"linear": own, "turned": slower})) == "linear"
    halves = [second / 2 for second in own]
    assert products.fastest(products.cautious({"linear": own, "turned": halves})) == "turned"
    lucky = [0.5, *[1.1] * 6]
    calm = {"linear": [1.0] * 7, "turned": lucky}
    assert products.fastest(products.cautious(calm)) == "linear"


def test_choices_are_measured_once_a_shape_and_kept(monkeypatch):
    asked = []

    def measure(*shape):
        asked.append(shape[:3])
        return {n: {"linear": 1.0, "turned": 0.5 if n > 4 else 2.0} for n in shape[3]}

    monkeypatch.setattr(products, "measure", measure)
    weight, x = torch.randn(48, 40), torch.randn(7, 40)
    with torch.inference_mode():
        for _ in range(3):
            products.product(x, weight, None)
            products.product(x[:1], weight, None)
    assert asked == [(48, 40, torch.float32)]
    ways = products._known[id(weight)].ways
    assert (ways[7], ways[1]) == ("turned", "linear")
    products.forget()
    with torch.inference_mode():
        products.product(x, weight, None)
    assert len(asked) == 1
    kept = json.loads((products.cache_folder() / "products-3.json").read_text())
    assert set(kept[products.machine()].values()) == {"turned", "linear"}


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 3}', '{"a": {"b": "c"}}', "\x00"])
def test_a_damaged_file_of_choices_is_made_anew(content, tmp_path, monkeypatch):
    monkeypatch.setattr(products, "measure", said(linear=1.0, turned=0.5))
    path = tmp_path / "products.json"
    path.write_text(content)
    assert products.Choices(path)(48, 40, torch.float32, 4) == "turned"
    assert products.machine() in json.loads(path.read_text())


def test_choices_hold_for_the_number_of_threads_they_were_made_with(tmp_path, monkeypatch):
    asked, threads = [], [1]

    def measure(rows, columns, dtype, tokens):
        asked.append(threads[0])
        way = "linear" if threads[0] == 1 else "split"
        return {n: {way: 1.0} for n in tokens}

    monkeypatch.setattr(products, "measure", measure)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(products, "_choices", products.Choices(tmp_path / "products.json"))
    weight, x = torch.randn(48, 40), torch.randn(4, 40)
    for number in (1, 4, 1, 4):
        threads[0] = number
        assert products._choices(48, 40, torch.float32, 4) == {1: "linear", 4: "split"}[number]
        products.refresh()
        with torch.inference_mode():
            products.product(x, weight, None)
        assert products._known[id(weight)].ways[4] == {1: "linear", 4: "split"}[number]
    assert asked == [1, 4]


def test_seconds_are_of_the_whole_weight_and_of_one(monkeypatch):
    """Of 40,960 rows a tenth fits into what is measured; of 64 rows 48 copies are multiplied."""
    monkeypatch.setattr(products, "SPAN", 2**20)
    monkeypatch.setattr(products, "in_turns", lambda ways: dict.fromkeys(ways, [3.0] * 5))
    assert products.measure(40_960, 64, torch.float32, [1])[1]["linear"] == 30.0
    assert products.measure(64, 64, torch.float32, [1])[1]["linear"] == 3 / 48
