"""What a sliced tree mask saves over one that is rebuilt. python benchmarks/masks.py [--device cuda] [--text N] [--out FILE]

A round drafts a tree level by level and may stop below any of them; what is left has a mask of its own. For every shape, medians in microseconds,
averaged over the depths that it may be cut at:

``prefix``   the cut tree from the whole one: slices, made when a depth is first asked for
``again``    the same depth asked for again, as every round does
``mask``     the cut tree's mask alone, filled in anew from the parents and brought to the device
``tree``     the cut tree with all its tables, built anew
``slice``    of the additive mask that the round made over text and tree, the part of the cut tree
``gather``   that part made anew from the cut tree's table
``step``     a round of plain decoding on the lab's target, for scale
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
from specwb.evaluation.cost import forward_seconds
from specwb.mask import tree_mask

SHAPES = ((4, 1, 1, 1, 1), (4, 2, 2, 1), (2, 4, 3, 1, 1), (16, 1, 1, 1, 1, 1))  # ours, MCSD's, the paper's best static and its fork of 16, depth 5


def microseconds(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float]:
    """Medians of calls that take turns; on CUDA until the device has done its part."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, found, strict=True):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            began = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(1e6 * (time.perf_counter() - began))
    return [median(times) for times in found]


def fresh(tree: Tree) -> Tree:
    """The same tree without the prefixes that it has made."""
    other = copy.copy(tree)
    other._prefixes = {}
    return other


def filled(parents: Sequence[int], device: torch.device) -> torch.Tensor:
    """A mask from the parents: each node's row is its parent's and itself, as the published code fills it."""
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask.to(device)


def measured(ks: tuple[int, ...], device: torch.device, text: int, repeats: int) -> dict:
    tree, dtype = Tree.branching(*ks, device=device), torch.float32
    known = torch.tensor([text], device=device)
    whole = tree_mask(tree, known, text, dtype)
    found = []
    for d in range(1, tree.D):
        cut = tree.prefix(d)
        parents, n = cut.host[0], cut.n
        assert torch.equal(filled(parents, device), cut.mask[0])
        assert torch.equal(whole[:, :n, : text - 1 + n], tree_mask(cut, known, text, dtype))
        calls = [
            lambda d=d: fresh(tree).prefix(d), lambda d=d: tree.prefix(d), lambda parents=parents: filled(parents, device),
            lambda parents=parents: Tree([parents], device), lambda n=n: whole[:, :n, : text - 1 + n],
            lambda cut=cut: tree_mask(cut, known, text, dtype),
        ]  # fmt: skip
        found.append(microseconds(calls, device, repeats))
    names = ("prefix", "again", "mask", "tree", "slice", "gather")
    return {"shape": "-".join(map(str, ks)), "nodes": tree.n, **{name: fmean(row[i] for row in found) for i, name in enumerate(names)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--text", type=int, default=512, help="tokens before the tree")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    records = [measured(ks, device, args.text, args.repeats) for ks in SHAPES]
    target = specwb.load("lab", device=args.device)
    step = 1e6 * forward_seconds(target, [1], [1] * args.text)[1]
    table = Table(header_style="bold", title=f"{args.device}, {args.text} tokens of text; microseconds; a plain step takes {step:.0f}")
    for name in records[0]:
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(*(x if isinstance(x, str) else f"{x:.0f}" if x >= 10 else f"{x:.1f}" for x in record.values()))
    Console().print(table)
    if args.out:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        shared = {"machine": name, "torch": torch.__version__, "device": args.device, "text": args.text, "repeats": args.repeats, "step": step}
        args.out.write_text(json.dumps({**shared, "unit": "microseconds", "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
