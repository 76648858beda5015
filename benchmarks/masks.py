"""What a sliced tree mask saves over one that is rebuilt.

    python benchmarks/masks.py [--device cuda] [--text N] [--out FILE]

A decoding step drafts a tree level by level and may stop below any of them; what is left has a mask
of its own. For every shape it measures medians in microseconds, averaged over the depths that the
tree may be cut at:

``prefix``   the cut tree from the full one: slices, made when a depth is first asked for
``again``    the same depth asked for again, as every step does
``mask``     the cut tree's mask alone, filled in anew from the parents and brought to the device
``tree``     the cut tree with all its tables, built anew
``slice``    of the additive mask that the step made over text and tree, the part of the cut tree
``gather``   that part made anew from the cut tree's table
``step``     a step of plain decoding on the lab's target, for scale
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

import torch
from rich.console import Console
from rich.table import Table

import specwb
from specwb import Tree
from specwb.core.mask import tree_mask
from specwb.lab.cost.calibrate import forward_seconds

SHAPES = (
    (4, 1, 1, 1, 1),  # ours
    (4, 2, 2, 1),  # MCSD's
    (2, 4, 3, 1, 1),  # the paper's best static tree
    (16, 1, 1, 1, 1, 1),  # the paper's fork of 16, depth 5
)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def microseconds(
    calls: Sequence[Callable[[], object]], device: torch.device, repeats: int
) -> list[float]:
    """Returns the medians of calls that take turns; on CUDA until the device has finished."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, call_times in zip(calls, times, strict=True):
            synchronize(device)
            began = time.perf_counter()
            call()
            synchronize(device)
            call_times.append(1e6 * (time.perf_counter() - began))
    return [median(call_times) for call_times in times]


def without_prefixes(tree: Tree) -> Tree:
    """Returns the same tree without the prefixes that it remembers."""
    other = copy.copy(tree)
    vars(other).pop("_prefixes", None)  # a tree has no other way of being changed
    return other


def filled_mask(parents: Sequence[int], device: torch.device) -> torch.Tensor:
    """Fills in a mask from the parents, as the published code does.

    Each node's row is its parent's and itself.
    """
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask.to(device)


def measure(ks: tuple[int, ...], device: torch.device, text: int, repeats: int) -> dict:
    """Measures one shape behind ``text`` tokens."""
    tree, dtype = Tree.branching(*ks, device=device), torch.float32
    length = torch.tensor([text], device=device)
    full = tree_mask(tree, length, text, dtype)
    times: dict[str, list[float]] = {}
    for depth in range(1, tree.D):
        cut = tree.prefix(depth)
        parents, n = cut.host[0], cut.n
        assert torch.equal(filled_mask(parents, device), cut.mask[0])
        part = full[:, :n, : text - 1 + n]
        assert torch.equal(part, tree_mask(cut, length, text, dtype))
        calls = {
            "prefix": lambda d=depth: without_prefixes(tree).prefix(d),
            "again": lambda d=depth: tree.prefix(d),
            "mask": lambda parents=parents: filled_mask(parents, device),
            "tree": lambda parents=parents: Tree([parents], device),
            "slice": lambda n=n: full[:, :n, : text - 1 + n],
            "gather": lambda cut=cut: tree_mask(cut, length, text, dtype),
        }
        medians = microseconds(list(calls.values()), device, repeats)
        for name, value in zip(calls, medians, strict=True):
            times.setdefault(name, []).append(value)
    means = {name: fmean(values) for name, values in times.items()}
    return {"shape": "-".join(map(str, ks)), "nodes": tree.n, **means}


def cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--text", type=int, default=512, help="tokens before the tree")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    records = [measure(ks, device, args.text, args.repeats) for ks in SHAPES]
    target = specwb.load("lab", device=args.device)
    step = 1e6 * forward_seconds(target, [1], [1] * args.text)[1]
    units = f"microseconds; a plain step takes {step:.0f}"
    title = f"{args.device}, {args.text} tokens of text; {units}"
    table = Table(header_style="bold", title=title)
    for name in records[0]:
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(*map(cell, record.values()))
    Console().print(table)
    if args.out:
        is_cuda = device.type == "cuda"
        document = {
            "machine": torch.cuda.get_device_name(device) if is_cuda else platform.machine(),
            "torch": torch.__version__,
            "device": args.device,
            "text": args.text,
            "repeats": args.repeats,
            "step": step,
            "unit": "microseconds",
            "records": records,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
