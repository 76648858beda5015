"""Steps that are derived from shapes have the kernels that dry runs counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specwb.cost import PredictionError, Setting, Shape, Step, shape, step
from specwb.cost.steps import draft_kind
from specwb.cost.work import Kernel, attending, attention, counts, exchange, product
from specwb.drafters.eagle import EAGLE_TREE
from specwb.models.load import data_dir

COUNTED = json.loads((Path(__file__).parents[1] / "dry" / "budget.json").read_text())["large bf16"]
SETTING = Setting(1, 400, 2)


def derived(spec: str, t: str) -> Step:
    # the dry runs' draft and diffusion models have 1b's layers
    own, _, _ = spec.partition(",both_ways")
    draft = replace(shape("1b"), both_ways=spec != own)
    return step(own, shape("8b"), draft if draft_kind(spec) else None, SETTING, t == "T=1")


def stored(mode: str) -> list[tuple[str, str]]:
    names = [name.split() for name in COUNTED["budget"]]
    return [(s, t) for s, own, t in names if own == mode and "confidence" not in s]


@pytest.mark.parametrize(("spec", "t"), stored("graph"))
def test_nodes_graphs_and_reads_of_dry_runs(spec: str, t: str) -> None:
    own, name = derived(spec, t), f"{spec} graph {t}"
    assert own.graph_nodes() == pytest.approx(COUNTED["budget"][name], rel=0.02)
    assert [own.replays, own.reads] == COUNTED["steps"][name][:2]


@pytest.mark.parametrize(("spec", "t"), stored("eager"))
def test_products_of_dry_runs(spec: str, t: str) -> None:
    assert derived(spec, t).products() == COUNTED["steps"][f"{spec} eager {t}"][2]


def test_a_layer_has_what_was_counted() -> None:
    own = counts()["layer"]
    assert 5 + own["attention_nodes"] + own["mlp_nodes"] == 17
    assert 8 + own["attention_launches"] + own["mlp_launches"] == 40


def test_bytes_of_a_plain_step_are_the_weights() -> None:
    target = shape("8b")
    own = step("ar", target, None, Setting(1, 1, 2))
    products = [k for k in own.stages["target forward"] if k.kind == "products"]
    weights = 2 * (target.parameters - target.vocabulary * target.hidden)  # one row is embedded
    assert sum(k.count * k.bytes for k in products) == pytest.approx(weights, rel=1e-3)
    assert sum(k.count * k.flops for k in products) == pytest.approx(weights)


@pytest.mark.parametrize("spec", [spec for spec, t in stored("graph") if t == "T=0"])
def test_batch_and_context_reach_every_pass(spec: str) -> None:
    def kernels(rows: int, context: int) -> list[Kernel]:
        own = step(spec.partition(",both_ways")[0], shape("8b"), draft, Setting(rows, context, 2))
        return [kernel for stage in own.stages.values() for kernel in stage]

    draft = shape("1b") if draft_kind(spec) else None
    for one, eight, longer in zip(kernels(1, 400), kernels(8, 400), kernels(1, 800), strict=True):
        assert (eight.flops, eight.count) == (8 * one.flops, one.count)
        if one.kind == "attention":
            assert longer.flops > one.flops
            assert longer.bytes > one.bytes
        else:
            assert longer == one


def test_eagle_reads_a_layer_and_the_head_a_pass() -> None:
    target = shape("7b")
    own = step("eagle", target, None, Setting(1, 1, 2))
    assert own.depth == 5
    assert own.nodes == 26
    h = target.hidden
    one = target.layer_parameters + 2 * h * h + target.vocabulary * h
    moved = sum(k.count * k.bytes for k in own.stages["draft"] if k.kind == "products")
    assert moved == pytest.approx(5 * 2 * one, rel=0.02)
    # said are the children of all nodes but the last level's; fed are these nodes, and in place of
    # the root the six pairs that a step may have accepted
    said = 26 - EAGLE_TREE.depths[0].count(5)
    flops = sum(k.count * k.flops for k in own.stages["draft"] if k.kind == "products")
    pair = target.layer_parameters + 2 * h * h
    assert flops == pytest.approx(2 * ((said + 5) * pair + said * target.vocabulary * h))


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "falcon", "kangaroo"])
def test_smols_own_heads_have_their_shipped_sizes(kind: str) -> None:
    """But for norms and biases; the output layer is rows of the target's."""
    card = json.loads((data_dir() / "smol" / kind / "card.json").read_text())
    spec = {"medusa": "medusa:tree=1-1-1-1-1", "falcon": "falcon:tree=1-1-1"}.get(kind, kind)
    own, target = step(spec, shape("smol"), None, SETTING), shape("smol")
    assert own.parameters == pytest.approx(card["parameters"], rel=1e-3)
    # the last pass's; Medusa's five heads have one product
    outputs = {"eagle": 3, "eagle3": 4, "medusa": 5}.get(kind, 1)
    output = product(outputs, target.hidden, 8192, 2)
    assert output in own.stages["draft"]


def test_smol_and_its_draft_model() -> None:
    card = json.loads((data_dir() / "smol" / "draft" / "card.json").read_text())
    draft = shape("smol-draft")
    assert draft.layers * draft.layer_parameters == pytest.approx(card["parameters"], rel=1e-3)
    assert shape("smol").parameters == 134_479_872  # SmolLM2-135M's, without norms


def test_an_exchange_by_hand() -> None:
    """30 numbers of two bytes: each of four devices sends three quarters of them twice."""
    assert exchange(3, 10, 2, 4).bytes == 90
    assert exchange(3, 10, 2, 2).bytes == 60


def test_attention_by_hand() -> None:
    """Four heads of two numbers that share two heads of keys and values, one query behind nine
    tokens: ten keys of four bytes a head, as many values, and a query and its answer a head."""
    own = attention(Shape("x", 8, 1, 1, 4, 2, 2, 1), 1, Setting(1, 9, 2))
    assert own.bytes == 2 * (40 + 40) + 4 * (4 + 4)
    assert own.flops == 4 * 10 * 2 * 4  # a product and a sum of two numbers, for q k and for p v
    assert (own.blocks, own.block_bytes) == (2, 80)


def test_keys_of_one_text_may_be_parted() -> None:
    """64 queries of two heads that share their keys are two blocks. Two texts are not parted, nor
    are the layers of a fused group."""
    model = Shape("x", 8, 1, 1, 2, 1, 2, 1)
    one, two = (attention(model, 64, Setting(rows, 1000, 2)) for rows in (1, 2))
    assert (one.blocks, one.keys, two.blocks, two.keys) == (2, 1064, 4, 0)
    kernels = attending(model, 64, Setting(1, 1000, 2), group=2)
    assert [(k.keys, k.blocks) for k in kernels if k.kind == "attention"] == [(0, 4)]


def test_a_diffusion_model_that_looks_both_ways_reads_the_text_anew() -> None:
    draft, k = shape("dream-7b"), 20
    ahead = replace(draft, both_ways=False)

    def flops(draft: Shape, context: int, **options: int) -> float:
        spec = ",".join([f"diffuspec:k={k}", *(f"{o}={v}" for o, v in options.items())])
        own = step(spec, shape("32b"), draft, Setting(1, context, 2))
        return sum(x.count * x.flops for x in own.stages["draft"] if x.kind == "products")

    layer, head = 2 * draft.layers * draft.layer_parameters, 2 * draft.hidden * draft.vocabulary
    assert flops(draft, 500) == pytest.approx((500 + k) * layer + k * head)
    assert flops(draft, 500, steps=2) == pytest.approx(2 * flops(draft, 500))
    assert flops(ahead, 500) == flops(ahead, 100) == pytest.approx(2 * k * layer + k * head)
    assert flops(ahead, 500, steps=2) == pytest.approx(3 * k * layer + 2 * k * head)


def test_a_search_takes_time_on_the_host() -> None:
    def searched(spec: str, rows: int = 1) -> float:
        return step(spec, shape("32b"), shape("dream-7b"), Setting(rows, 500, 2)).searched

    assert searched("diffuspec:k=20") == 20
    assert searched("diffuspec:k=20,beams=6", rows=2) == 80
    assert searched("diffuspec:k=20,top=30") == 40
    assert searched("diffuspec:k=20,beams=1,lam=1") == 0
    with pytest.raises(PredictionError, match="made for 2048 tokens, and drafts nothing behind"):
        step("diffuspec:k=20", shape("32b"), shape("dream-7b"), Setting(1, 2048, 2))
    with pytest.raises(PredictionError, match="what draw=sample costs is not predicted"):
        searched("diffuspec:draw=sample")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("falcon_dynamic", "falcon_dynamic is not predicted; what is: ar, sps"),
        ("diffuspec", "diffuspec needs a diffusion model: give --draft, such as dream-7b"),
        ("diffuspec:draw=sample", "what draw=sample costs is not predicted"),
        ("diffuspec:chunk=4,confidence=.5", "diffuspec: what chunk=4 costs is not predicted"),
        ("sps:confidence=.4", "sps: what confidence=0.4 costs is not predicted"),
        ("sps", "sps needs a draft model: give --draft, such as 1b"),
        ("pld:rule=naive", "pld: what rule=naive costs is not predicted"),
        ("kangaroo:exit=40", "exit must be below the target's 32 layers, got 40"),
    ],
)
def test_what_nothing_is_known_of(spec: str, message: str) -> None:
    with pytest.raises(PredictionError, match=message):
        step(spec, shape("8b"), None, SETTING)


def test_shapes_from_a_config(tmp_path: Path) -> None:
    config = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    own = shape(tmp_path)
    assert (own.head_dim, own.parameters) == (64, shape("1b").parameters)
    assert own.parameters == 1_235_746_816  # Llama 3.2 1B's, without 67,584 in norms
    for more, both_ways, context in (
        ({"model_type": "Dream"}, True, 2048),
        ({"specwb_diffusion": {"causal": False}}, True, 0),
        ({"specwb_diffusion": {"shift": True}}, False, 0),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        own = shape(tmp_path)
        assert (own.both_ways, own.context) == (both_ways, context)
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": "many"}))
    with pytest.raises(PredictionError, match=r"vocab_size must be a whole number in 1\.\.10\^9"):
        shape(tmp_path)
    with pytest.raises(PredictionError, match="no shape '9b': give one of 68m, 1b"):
        shape("9b")
