"""Times in closed form, speedups, intervals, the command and its messages."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from terminal import call, refused
from typer.main import get_command

from specwb.cli import app
from specwb.cost import PredictionError, Setting, card, forecast, seconds, shape, step
from specwb.cost.forecast import (
    CAPTURED,
    EAGER,
    acceptance,
    from_card,
    graph_nodes,
    kernel_seconds,
    parts,
)
from specwb.cost.ledger import model_error
from specwb.cost.shapes import tables
from specwb.cost.work import Kernel, product

H100 = card("h100")
MACHINE = H100.typical("bf16")


def test_plain_decoding_is_bytes_over_bandwidth_and_launches() -> None:
    own = step("ar", shape("8b"), None, Setting(1, 1, 2))
    kernels = [kernel for all_ in own.stages.values() for kernel in all_]
    moved = sum(k.count * k.bytes for k in kernels if k.kind != "attention")
    nodes = sum(k.count * k.nodes for k in kernels)
    blocks = sum(k.count * k.block_bytes for k in kernels) * MACHINE.sms / MACHINE.block_share
    expected = (
        (moved + blocks) / MACHINE.bandwidth + nodes * MACHINE.node + MACHINE.graph + MACHINE.read
    )
    assert seconds(own, MACHINE) == pytest.approx(expected, rel=1e-3)
    # launched eagerly on a device that has nothing to do, only launches count
    idle = dataclasses.replace(MACHINE, bandwidth=1e30, peak=1e30)
    launches = 32 * 40 + 1 + 12
    assert seconds(own, idle, EAGER) == pytest.approx(launches * idle.launch + idle.read)


def test_the_roofline_is_crossed_where_it_should_be() -> None:
    ridge = MACHINE.peak / MACHINE.bandwidth  # tokens, of 2-byte weights, without activations
    few, many = int(ridge / 2), int(ridge * 4)
    weights = 4096 * 4096
    bound = kernel_seconds(product(few, 4096, 4096, 2), MACHINE)
    assert bound == pytest.approx((weights + few * 8192) * 2 / MACHINE.bandwidth)
    busy = kernel_seconds(product(many, 4096, 4096, 2), MACHINE)
    assert busy == pytest.approx(2 * many * weights / MACHINE.peak)
    times = [kernel_seconds(product(m, 4096, 4096, 2), MACHINE) for m in range(1, 2000, 37)]
    assert times == sorted(times)


def test_parts_of_a_texts_keys_are_read_side_by_side() -> None:
    """A block that reads 100 MB alone, or an eighth of it in each of eight."""
    alone = Kernel("attention", bytes=1e8, blocks=8, block_bytes=1e8)
    parted = dataclasses.replace(alone, keys=1100)
    share = MACHINE.block_share * MACHINE.bandwidth / MACHINE.sms
    assert kernel_seconds(alone, MACHINE) == pytest.approx(1e8 / share)
    assert kernel_seconds(parted, MACHINE) == pytest.approx(1e8 / 8 / share)
    assert kernel_seconds(parted, MACHINE, EAGER) == pytest.approx(1e8 / MACHINE.bandwidth)
    many = dataclasses.replace(parted, blocks=100)  # which leave none idle
    short = dataclasses.replace(parted, keys=600)
    nodes = [graph_nodes(kernel, MACHINE) for kernel in (alone, parted, many, short)]
    assert nodes == [1, 5, 1, 1]


@pytest.mark.parametrize("mode", [CAPTURED, EAGER])
def test_more_never_costs_less(mode: str) -> None:
    def time(spec: str, rows: int = 1, context: int = 1024) -> float:
        own = step(spec, shape("8b"), shape("1b"), Setting(rows, context, 2))
        return float(seconds(own, MACHINE, mode))

    chains = [time(f"sps:gamma={gamma}") for gamma in (1, 2, 4, 8, 16)]
    # a pass over one token has a kernel more a layer than one over several, so chains are left out
    trees = [time(f"mcsd:tree={tree}") for tree in ("2-1-1", "2-2-1", "2-2-2", "4-2-2")]
    batches = [time("sps:gamma=4", rows) for rows in (1, 2, 8, 64, 512)]
    contexts = [time("sps:gamma=4", 1, n) for n in (1, 100, 2000, 100000)]
    for times in (chains, trees, batches, contexts):
        # sums in another order may differ in their last bits
        assert all(b >= a * (1 - 1e-12) for a, b in pairwise(times))
    assert batches[-1] > 2 * batches[0]


def test_parts_sum_to_the_step_and_devices_share_it() -> None:
    own = step("mcsd:tree=4-2-2", shape("70b"), shape("8b"), Setting(1, 2048, 2), True, 4)
    for mode in (CAPTURED, EAGER):
        rows = parts(own, MACHINE, mode)
        assert sum(row.seconds for row in rows) == pytest.approx(seconds(own, MACHINE, mode))
    one = step("ar", shape("70b"), None, Setting(1, 1, 2))
    four = step("ar", shape("70b"), None, Setting(1, 1, 2), devices=4)
    reading = [
        sum(kernel_seconds(k, MACHINE) for k in s.stages["target forward"] if k.kind == "products")
        for s in (one, four)
    ]
    assert reading[1] == pytest.approx(reading[0] / 4, rel=0.01)
    assert any(kernel.kind == "exchanges" for kernel in four.stages["target forward"])
    assert kernel_seconds(Kernel("exchanges", bytes=0), MACHINE) == MACHINE.exchange


def test_speedup_and_its_interval() -> None:
    sure = dataclasses.replace(H100, ranges={k: (v[1],) * 3 for k, v in H100.ranges.items()})
    for place, near in ((sure, 1e-6), (H100, 0.03)):  # a median of ratios is no ratio of medians
        told = from_card(
            "sps:gamma=3", shape("8b"), place, draft=shape("1b"), accept="0.8,0.5,0.25"
        )
        assert told.tau == pytest.approx(1 + 0.8 + 0.4 + 0.1)
        assert told.speedup == pytest.approx(told.tau * told.plain / told.step, rel=near)
        assert told.tokens_per_second == pytest.approx(told.tau / told.step, rel=near)
        assert told.needed == pytest.approx(told.step / told.plain, rel=near)
    for value, (low, high) in (
        (told.step, told.step_interval),
        (told.speedup, told.speedup_interval),
        (told.needed, told.needed_interval),
    ):
        assert low < value < high
    assert forecast("sps:gamma=3", shape("8b"), H100, draft=shape("1b")).speedup is None
    plain = forecast("ar", shape("8b"), H100, tau=1.0)
    assert plain.speedup_interval == (1.0, 1.0)
    own = from_card("ar", shape("8b"), sure)
    assert own.step_interval == pytest.approx((own.step, own.step))


def test_the_models_error_is_in_every_interval() -> None:
    sure = dataclasses.replace(H100, ranges={k: (v[1],) * 3 for k, v in H100.ranges.items()})
    how: dict = {"draft": shape("1b"), "tau": 2.5}
    told, factor = forecast("sps:gamma=3", shape("8b"), sure, **how), math.exp(model_error())
    for value, interval in (
        (told.step, told.step_interval),
        (told.plain, told.plain_interval),
        (told.needed, told.needed_interval),
        (told.speedup, told.speedup_interval),
        (told.tokens_per_second, told.tokens_interval),
    ):
        assert interval == pytest.approx((value / factor, value * factor))
    # a card that leaves more open is what the interval goes by; the prediction stays
    open_ = dataclasses.replace(sure, ranges=sure.ranges | {"bandwidth": (1.0, 2000.0, 4e6)})
    card_alone = from_card("sps:gamma=3", shape("8b"), open_, **how)
    wide = forecast("sps:gamma=3", shape("8b"), open_, **how)
    assert wide.step_interval == card_alone.step_interval
    assert wide.step == card_alone.step


def test_numbers_of_four_bytes_have_units_of_their_own() -> None:
    assert H100.ranges["single"][1] < H100.ranges["half"][1]
    assert H100.typical("fp32").peak == 1e12 * H100.ranges["single"][1]
    assert H100.typical("fp16").peak == MACHINE.peak == 1e12 * H100.ranges["half"][1]


def test_all_rows_of_a_batch_are_counted() -> None:
    sure = dataclasses.replace(H100, ranges={k: (v[1],) * 3 for k, v in H100.ranges.items()})
    told = from_card("ar", shape("8b"), sure, tau=1.0, batch=8)
    assert told.tokens_per_second == pytest.approx(8 / told.step)
    assert told.tokens_interval == pytest.approx((8 / told.step,) * 2)


def test_memory_by_hand() -> None:
    """8b has 32 layers with 8 heads of 128 for keys and as many for values: 65,536 numbers a
    token."""
    target = shape("8b")
    told = forecast("ar", target, H100, batch=2, context=1000)
    assert told.memory == pytest.approx(2 * (target.parameters + 2000 * 65_536) / 2**30)


def test_typical_values_are_the_medians_of_what_is_drawn() -> None:
    drawn = H100.drawn("bf16", 20001)
    for name in ("bandwidth", "peak", "node", "launch", "exchange"):
        assert np.median(getattr(drawn, name)) == pytest.approx(getattr(MACHINE, name), rel=0.03)
    assert drawn.node.min() >= 1e-6


def test_a_draft_that_stops_lies_between_whole_numbers() -> None:
    def time(**more: float) -> float:
        return forecast("kangaroo:gamma=6,exit=2", shape("7b"), card("a100"), **more).step  # type: ignore[arg-type]

    two, three = (
        forecast(f"kangaroo:exit=2,gamma={n}", shape("7b"), card("a100")).step for n in (2, 3)
    )
    assert time(drafted=2.25) == pytest.approx(0.75 * two + 0.25 * three, rel=1e-3)
    assert time(drafted=6) == pytest.approx(time())
    partly = forecast("kangaroo:gamma=6,exit=2", shape("7b"), card("a100"), drafted=2.25)
    shown = sum(part.seconds for part in partly.table)  # the table is of that mean too
    assert shown == pytest.approx(partly.step, rel=0.1)
    assert shown < 0.9 * time()
    with pytest.raises(PredictionError, match=r"drafted must be in 1\.\.6, got 7"):
        time(drafted=7)


def test_a_method_that_does_not_stop_is_one_graph() -> None:
    eight, one = shape("8b"), shape("1b")
    setting = Setting(1, 400, 2)
    for spec, draft in (("kangaroo:eta=0,gamma=6", None), ("mcsd_ti:stop=none,tree=4-2-2", one)):
        own = step(spec, eight, draft, setting)
        assert (own.replays, own.reads) == (1, 1)
    assert step("kangaroo:gamma=6", eight, None, setting).replays == 8
    told = forecast("ar", eight, H100, dtype="bfloat16")
    assert told == forecast("ar", eight, H100, dtype="bf16")


def test_acceptance_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    path.write_text(json.dumps({"acceptance_by_depth": {"sps:gamma=2": [[8, 10], [3, 6]]}}))
    assert acceptance(str(path), 2, "sps:gamma=2") == [0.8, 0.5]
    assert acceptance("0.7", 3, "sps") == [0.7] * 3
    for given, depth, key, message in (
        (str(path), 3, "sps:gamma=2", "rates for 2 depths, the draft of sps:gamma=2 has 3"),
        (str(path), 2, "eagle", "has no acceptance of eagle; it has sps:gamma=2"),
        ("0.7,0.6", 3, "sps", "rates for 2 depths"),
        ("1.2", 1, "sps", r"a rate must be in 0\.\.1, got 1\.2"),
        ("nan", 1, "sps", r"a rate must be in 0\.\.1, got nan"),
        ("much", 1, "sps", "must be a rate, rates by depth"),
    ):
        with pytest.raises(PredictionError, match=message):
            acceptance(given, depth, key)


def test_a_card_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = "\n".join(
        f"{key} = {value}"
        for key, value in {
            **{name: list(values) for name, values in H100.ranges.items()},
            "memory": 80,
            "sms": 132,
            "bf16": "true",
            "source": '"measured"',
        }.items()
    )
    path.write_text(text)
    assert card(path).ranges == H100.ranges
    for wrong, message in (
        (text.replace("sms = 132", "sms = 0"), r"sms must be a whole number in 1\.\.10000, got 0"),
        (text.replace("node = [1.0,", "node = [9.0,"), r"must be a finite number >= 0 or \[low"),
        (
            text.replace("memory = 80", "memory = inf"),
            "memory must be a number of GiB > 0, got inf",
        ),
        (
            re.sub(r"^bandwidth = .*$", "bandwidth = inf", text, flags=re.M),
            "bandwidth must be a finite number > 0",
        ),
        (text.replace("node =", "nodes ="), "unknown key 'nodes'"),
        (text.replace("sms = 132", ""), "sms is missing"),
        ("[", "is no TOML"),
    ):
        path.write_text(wrong)
        with pytest.raises(PredictionError, match=message):
            card(path)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"num_local_experts": 8},
            r"a mixture of experts \(num_local_experts=8\) is not predicted",
        ),
        ({"n_routed_experts": 64}, "a mixture of experts"),
        ({"kv_lora_rank": 512}, "keys and values are compressed"),
        ({"num_key_value_heads": 3}, "must divide num_attention_heads=8, got 3"),
        ({"num_key_value_heads": 0}, r"must be a whole number in 1\.\.10\^9, got 0"),
        ({"hidden_size": 9}, "num_attention_heads=8 must divide hidden_size=9"),
        ({"vocab_size": 10**400}, r"must be a whole number in 1\.\.10\^9, got 1000"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"tie_word_embeddings": "false"}, "must be true or false, got 'false'"),
        ({"text_config": [1]}, r"text_config must be an object, got \[1\]"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not predicted"),
        ({"is_encoder_decoder": True}, "an encoder with a decoder"),
    ],
)
def test_a_model_that_is_no_dense_llama(tmp_path: Path, more: dict, said: str) -> None:
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = {**dict.fromkeys(sizes, 8), "vocab_size": 32}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert shape(path).kv_heads == 8
    path.write_text(json.dumps(config | more))
    with pytest.raises(PredictionError, match=said):
        shape(path)


def test_the_command(monkeypatch, capsys) -> None:
    words = ["predict", "sps:gamma=5", "--draft", "1b", "--gpu", "h100", "--context", "2k"]
    code, out, err = call(monkeypatch, capsys, *words, "--accept", "0.7")
    assert (code, err) == (0, "")
    assert "whole step" in out
    assert "predicted, not measured" in out
    code, out, _ = call(monkeypatch, capsys, *words, "--accept", "0.7", "--json")
    told = json.loads(out)
    assert code == 0
    low, high = told["speedup_interval"]
    assert low < told["speedup"] < high
    assert sum(row["seconds"] for row in told["table"]) == pytest.approx(told["step"], rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "name a method, such as sps:gamma=5, or give --ledger"),
        ("sps", "sps needs a draft model: give --draft, such as 1b"),
        ("ar --gpu tpu", "no card 'tpu': give one of h100"),
        ("ar --target 70b", "a device, h100 has 80"),
        ("ar --gpu v100", "v100 has no bf16: give --dtype fp16"),
        ("ar --dtype int8", "dtype must be one of bf16, fp16, fp32, got 'int8'"),
        ("ar --context long", "--context must be a number of tokens such as 500 or 2k, got 'long'"),
        ("ar --mode fast", "mode must be one of captured, library-eager, got 'fast'"),
        ("ar --gpu 4090 --devices 2", "4090 has no NVLink: devices must be 1, got 2"),
        (
            "ar --devices 3",
            "devices must divide the target's heads, kv_heads and intermediate: 3 does not divide "
            "heads=32 of 8b",
        ),
        ("eagle --tau 9", "tau of eagle must be in 1..6"),
        ("kangaroo --tau 4 --drafted 2.5", "tau of kangaroo must be in 1..3.5"),
        ("kangaroo --accept 0.7 --drafted 2.5", "--drafted goes with --tau"),
        ("eagle --tau 2 --accept 0.5", "give an acceptance or tau, not both"),
        ("eagles", "unknown method 'eagles'"),
        ("eagle --draft 1b", "eagle has no draft model: leave --draft out"),
        ("ar --temperature inf", "temperature must be a number >= 0, got inf"),
        ("kangaroo --tau 3 --drafted nan", "drafted must be in 1..6, got nan"),
        ("ar --gpu ~nosuchuser/x.toml", "no card '~nosuchuser/x.toml'"),
        ("ar --target ~nosuchuser/x", "no shape '~nosuchuser/x'"),
        ("--ledger --tau 3", "--ledger has its own rows; leave --tau out"),
        ("ar --ledger", "--ledger has its own rows; leave 'ar' out"),
    ],
)
def test_one_line_of_what_is_wrong(monkeypatch, capsys, words: str, message: str) -> None:
    assert message in refused(monkeypatch, capsys, "predict", *words.split())


def test_the_help_names_every_shape_and_card():
    options = {p.name: p.help for p in get_command(app).commands["predict"].params}
    shapes = options["target"] + options["draft"]
    assert all(re.search(rf"\b{name}\b", shapes) for name in tables("shapes"))
    assert all(re.search(rf"\b{name}\b", options["gpu"]) for name in tables("cards"))
