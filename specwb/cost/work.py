"""What a step computes: products, attentions and small kernels, with their bytes and operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from specwb.cost.shapes import Shape, tables

PRODUCT, ATTENTION, SMALL, EXCHANGE = "products", "attention", "small kernels", "exchanges"
QUERIES = 64
"""Queries that one block of attention takes."""


@dataclass(frozen=True)
class Kernel:
    """Equal kernels that follow each other."""

    kind: str  # one of the four above
    flops: float = 0.0  # flops, bytes: of one of them, on one device
    bytes: float = 0.0
    count: int = 1  # how many there are
    nodes: float = 1.0  # nodes that one of them takes in a graph of this engine
    launches: float = 1.0  # operators that the library launches for one of them
    blocks: int = 0  # blocks that attention runs as in this engine; 0: enough to fill the device
    block_bytes: float = 0.0  # what one of these reads
    keys: int = 0  # those of one text, which this engine may attend to in parts


@dataclass(frozen=True)
class Setting:
    """What all passes of a step have in common."""

    rows: int  # texts decoded together
    context: int  # tokens of each
    size: int  # bytes of a number


@cache
def counts() -> dict[str, dict[str, Any]]:
    """Kernels of layers and of methods: ``data/predict/kernels.toml``."""
    return tables("kernels")


def product(
    tokens: int, k: int, n: int, size: int, nodes: float = 1, launches: float = 1
) -> Kernel:
    """``[tokens, k] @ [k, n]``: ``2 tokens k n`` operations; all three moved once."""
    moved = (k * n + tokens * (k + n)) * size
    return Kernel(PRODUCT, 2.0 * tokens * k * n, moved, 1, nodes, launches)


def small(tokens: int, width: int, size: int, nodes: float, launches: float) -> Kernel:
    """Elementwise kernels: ``nodes`` of them, each reading and writing ``[tokens, width]``."""
    moved = 2.0 * nodes * tokens * width * size
    return Kernel(SMALL, 0.0, moved, 1, nodes, launches)


def bookkeeping(number: float) -> Kernel:
    """Small kernels on a few numbers: drawing, trees, rules, lengths, text."""
    return Kernel(SMALL, nodes=number, launches=number)


def attention(shape: Shape, queries: int, setting: Setting, devices: int = 1) -> Kernel:
    """Attention of ``queries`` tokens a row to the context: keys and values are read once.

    This engine's kernel with a mask runs as a block for every row, head of keys and 64 queries of
    the heads that share it; a block reads the keys and values of its head, of one text in parts
    where that leaves a device idle (:func:`specwb.models.layers.parts_of`).
    """
    heads, kv = -(-shape.heads // devices), -(-shape.kv_heads // devices)
    keys = setting.context + queries
    own = 2.0 * keys * shape.head_dim * setting.size
    rows = setting.rows
    return Kernel(
        ATTENTION,
        4.0 * rows * heads * queries * keys * shape.head_dim,
        rows * (kv * own + 2.0 * heads * queries * shape.head_dim * setting.size),
        blocks=rows * kv * -(-queries * heads // (kv * QUERIES)),
        block_bytes=own,
        keys=keys if rows == 1 else 0,
    )


def exchange(tokens: int, width: int, size: int, devices: int) -> Kernel:
    """Sum of ``[tokens, width]`` over devices: ``2 (N - 1) / N`` of it goes through a link."""
    moved = 2.0 * (devices - 1) / devices * tokens * width * size
    return Kernel(EXCHANGE, 0.0, moved)


def attending(
    shape: Shape,
    tokens: int,
    setting: Setting,
    devices: int = 1,
    group: int = 1,
    inputs: int = 1,
    spread: bool = False,
) -> Iterator[Kernel]:
    """The attention half of a layer; of ``group`` layers side by side, fused into one or spread
    over devices that exchange their outputs; q, k and v read ``inputs`` hidden sizes."""
    own, m = counts()["layer"], tokens * setting.rows
    width = -(-shape.heads // devices) * shape.head_dim
    qkv = width + 2 * -(-shape.kv_heads // devices) * shape.head_dim
    fused = 1 if spread else group
    yield product(m, inputs * shape.hidden, fused * qkv, setting.size, 1, 3 * fused)
    heads = attention(shape, tokens, setting, devices)
    if fused > 1:  # which is not parted
        heads = replace(heads, keys=0)
    yield replace(
        heads,
        flops=fused * heads.flops,
        bytes=fused * heads.bytes,
        launches=fused,
        blocks=fused * heads.blocks,
    )
    yield product(m, fused * width, shape.hidden, setting.size, 1, fused)
    launches = own["attention_launches"] * fused
    # a fused group rotates queries and keys apart
    nodes = own["attention_nodes"] + 2 * (fused > 1)
    yield small(m, shape.hidden * fused, setting.size, nodes, launches)
    if devices > 1 or (spread and group > 1):
        yield exchange(m, shape.hidden, setting.size, devices if devices > 1 else group)


def mlp(shape: Shape, tokens: int, setting: Setting, devices: int = 1) -> Iterator[Kernel]:
    """The gated half of a layer."""
    own, m = counts()["layer"], tokens * setting.rows
    width = -(-shape.intermediate // devices)
    yield product(m, shape.hidden, 2 * width, setting.size, 1, 2)
    yield product(m, width, shape.hidden, setting.size)
    yield small(m, width, setting.size, own["mlp_nodes"], own["mlp_launches"])
    if devices > 1:
        yield exchange(m, shape.hidden, setting.size, devices)


def layers(
    shape: Shape, number: int, tokens: int, setting: Setting, devices: int = 1, inputs: int = 1
) -> list[Kernel]:
    """``number`` whole layers over ``tokens`` of each row."""
    one = [
        *attending(shape, tokens, setting, devices, inputs=inputs),
        *mlp(shape, tokens, setting, devices),
    ]
    own, m = counts()["layer"], tokens * setting.rows
    more = own["tables"] + number * (tokens == 1) if number > 2 else 2 * number
    more_nodes = small(m, shape.head_dim, setting.size, more, 0)
    return [*(times(kernel, number) for kernel in one), more_nodes]


def head(shape: Shape, tokens: int, setting: Setting, devices: int = 1) -> Kernel:
    """The product with the vocabulary."""
    vocabulary = -(-shape.vocabulary // devices)
    return product(tokens * setting.rows, shape.hidden, vocabulary, setting.size)


def times(kernel: Kernel, number: int) -> Kernel:
    """The same kernels, ``number`` times as many."""
    return replace(kernel, count=kernel.count * number)
