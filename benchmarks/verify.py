"""What verification costs, against reading its rows once and against the rules as published.

    python benchmarks/verify.py [--rules rrsw ...] [--device cpu] [--seconds 240] [--out FILE]

It is measured from the target's logits to the bonus token.

``needed`` is what must be read at least: the target's row at every visited node and, where a
candidate was rejected, the draft's. ``over read`` is the time over that of summing as many bytes
once. Both find their rows in memory and not in the cache, as after a forward that has streamed the
weights through it: every call is given another copy of the batch. ``moved`` is what the operators
read and wrote, counted operator by operator. ``published / ours`` compares with the rule written as
its authors' code has it: every node's probabilities first, residual vectors that are normalised
after every rejection, one Python loop for each row.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.probability import Sampling, draw_without_replacement, inverse_cdf
from specwb.core.tree import Tree
from specwb.rules import RULES, Rule

SAMPLING = Sampling(1.0)
COLD = 200_000_000  # bytes, more than a cache holds
TURNS = 16  # sets of uniforms, which calls take in turn


# -------------------------------------------------------------------------------------- the batches


def logits_pair(
    rows: int, nodes: int, vocabulary: int, device: str, noise: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns Zipf-like target logits, and draft logits that differ by Gaussian noise.

    Both are ``[rows, nodes, vocabulary]``.
    """
    generator = torch.Generator(device).manual_seed(rows * 1000 + nodes)
    base = -1.2 * torch.arange(1, vocabulary + 1, device=device).float().log()
    shift = torch.randint(vocabulary, (rows, nodes, 1), generator=generator, device=device)
    z = base[(torch.arange(vocabulary, device=device) + shift) % vocabulary]
    w = z + noise * torch.randn(z.shape, generator=generator, device=device)
    z += noise * torch.randn(z.shape, generator=generator, device=device)
    return z, w


def shape(nodes: int, scheme: Scheme) -> Tree:
    """Returns a tree of this many candidates that fits the sampling scheme.

    It is four paths for ``IID_PATHS``, and otherwise has four children a node, level by level.
    """
    if scheme is Scheme.IID_PATHS:
        return Tree.branching(min(4, nodes), *[1] * (max(1, nodes // 4) - 1))
    return Tree([[-1] + [i // 4 for i in range(nodes)]])


def random_draft(tree: Tree, scheme: Scheme, w: Tensor) -> Draft:
    """Draws candidates from the draft's logits under a sampling scheme.

    There is one row of q for every node with children.
    """
    rows = w.shape[0]
    inner = [i for i in range(tree.n) if bool((tree.kids[0, i] >= 0).any())]
    q = SAMPLING.probabilities(w[:, inner])
    q_row = torch.full((1, tree.n), -1, device=w.device)
    tokens = torch.zeros(rows, tree.n, dtype=torch.long, device=w.device)
    generator = torch.Generator(w.device).manual_seed(1)
    for r, node in enumerate(inner):
        q_row[0, node] = r
        kids = [k for k in tree.kids[0, node].tolist() if k >= 0]
        u = torch.rand(rows, len(kids), generator=generator, device=w.device, dtype=torch.float64)
        tokens[:, kids], q[:, r] = draw(q[:, r], u, scheme)
    return Draft(tree, tokens, torch.ones_like(tokens, dtype=torch.bool), scheme, q, q_row)


def draw(q: Tensor, u: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Draws the children of one node; returns them, and the q that rules are to see.

    Args:
        q: ``[B, V]``.
        u: ``[B, K]``.
        scheme: the sampling scheme.
    """
    count = u.shape[1]
    if scheme is Scheme.WITHOUT_REPLACEMENT:
        return draw_without_replacement(q, u)[0], q
    if scheme is Scheme.POINT:
        return q.topk(count, -1).indices, q
    if scheme is Scheme.TOP_AND_SAMPLE:
        top = q.topk(count - 1, -1).indices
        q = q.scatter(1, top, 0)
        q = q / q.sum(1, keepdim=True)
        return torch.cat([top, inverse_cdf(q, u[:, -1])[:, None]], 1), q
    return torch.stack([inverse_cdf(q, u[:, j]) for j in range(count)], 1), q


# ------------------------------------------------------------------------------------- as published

Published = Callable[[Draft, Scores, Tensor], tuple[list[list[int]], Tensor]]


def published(replacement: bool) -> Published:
    """Returns MCSD's and SpecInfer's procedure, for candidates with replacement or without."""

    def verify(draft: Draft, scores: Scores, u: Tensor) -> tuple[list[list[int]], Tensor]:
        p_all = scores.logits.float().softmax(-1)
        assert draft.q is not None
        assert draft.q_row is not None
        paths, bonus = [], []
        for b in range(len(draft.tokens)):
            node, path, tests = 0, [], 0
            p = p_all[b, 0].clone()
            while kids := children(draft.tree, node):
                chosen = None
                q = draft.q[b, draft.q_row[0, node]].clone()
                for k in kids:
                    x = draft.tokens[b, k]
                    tests += 1
                    if u[b, tests - 1] < p[x] / q[x]:
                        chosen = k
                        break
                    p = (p - q).clamp(min=0)
                    p = p / p.sum()
                    if not replacement:
                        q[x] = 0
                        q = q / q.sum()
                if chosen is None:
                    break
                path.append(chosen)
                node, p = chosen, p_all[b, chosen].clone()
            paths.append(path)
            bonus.append(torch.multinomial(p, 1))
        return paths, torch.cat(bonus)

    return verify


def published_naive(draft: Draft, scores: Scores, u: Tensor) -> tuple[list[list[int]], Tensor]:
    """The naive procedure: it draws from p and looks whether a candidate is that token."""
    p_all = scores.logits.float().softmax(-1)
    paths, bonus = [], []
    for b in range(len(draft.tokens)):
        node, path = 0, []
        p = p_all[b, 0].clone()
        while kids := children(draft.tree, node):
            y = torch.multinomial(p, 1)
            chosen = next((k for k in kids if draft.tokens[b, k] == y), None)
            if chosen is None:
                p = torch.zeros_like(p).scatter_(0, y, 1.0)
                break
            path.append(chosen)
            node, p = chosen, p_all[b, chosen].clone()
        paths.append(path)
        bonus.append(torch.multinomial(p, 1))
    return paths, torch.cat(bonus)


def children(tree: Tree, node: int) -> list[int]:
    return [k for k in tree.kids[0, node].tolist() if k >= 0]


def published_block(draft: Draft, scores: Scores, u: Tensor) -> tuple[list[list[int]], Tensor]:
    """Block verification, position by position (Sun et al. 2403.10444, algorithm 2)."""
    p_all = scores.logits.float().softmax(-1)
    assert draft.q is not None
    paths, bonus = [], []
    for b in range(len(draft.tokens)):
        w, tau, length = torch.ones((), device=p_all.device), 0, draft.tree.D
        w_tau = w
        for i in range(1, length + 1):
            x = draft.tokens[b, i]
            ratio = w * p_all[b, i - 1, x] / draft.q[b, i - 1, x]
            w = torch.minimum(torch.ones_like(w), ratio)
            if i < length:
                z = (w * p_all[b, i] - draft.q[b, i]).clamp(min=0).sum()
                h = z / (z + 1 - w)
            else:
                h = w
            if u[b, i - 1] < h:
                tau, w_tau = i, w
        p = p_all[b, tau]
        if tau < length:
            p = (w_tau * p - draft.q[b, tau]).clamp(min=0)
        paths.append(list(range(1, tau + 1)))
        bonus.append(torch.multinomial(p / p.sum(), 1))
    return paths, torch.cat(bonus)


CASES: dict[str, tuple[Scheme, Published | None]] = {
    "rejection": (Scheme.IID, published(True)),
    "block": (Scheme.IID, published_block),
    "rrs": (Scheme.IID_PATHS, published(True)),
    "rrsw": (Scheme.WITHOUT_REPLACEMENT, published(False)),
    "naive": (Scheme.WITHOUT_REPLACEMENT, published_naive),
    "top": (Scheme.TOP_AND_SAMPLE, None),
    "kseq": (Scheme.IID_PATHS, None),
    "race": (Scheme.IID_PATHS, None),
    "traversal": (Scheme.WITHOUT_REPLACEMENT, None),
    "gbv": (Scheme.IID_PATHS, None),
}


# ---------------------------------------------------------------------------------------- measuring


class Bytes(TorchDispatchMode):
    """Counts what operators read and write: the tensors they are given and return, views not."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "view" not in str(func.tags) and not func.is_view:
            leaves = torch.utils._pytree.tree_leaves
            values = [*leaves((args, kwargs)), *leaves(out)]
            tensors = [value for value in values if isinstance(value, Tensor)]
            self.total += sum(self._bytes(func, tensor, tensors) for tensor in tensors)
        return out

    @staticmethod
    def _bytes(func: Any, tensor: Tensor, tensors: list[Tensor]) -> int:
        """Counts one tensor; of what is gathered from, only as much as comes out."""
        count = tensor.numel()
        gathers = ("gather", "index", "index_select", "embedding", "scatter_")
        if func.overloadpacket.__name__ in gathers:
            count = min(count, 2 * min(other.numel() for other in tensors))
        return count * tensor.element_size()


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@cache
def memory(device: str) -> Tensor:
    return torch.randn(COLD // 4, device=device)


def median_seconds(
    calls: dict[str, Callable[[int], Any]], device: str, seconds: float
) -> dict[str, float]:
    """Returns medians; the calls take turns, each given the number of its turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    began, turn = time.perf_counter(), 0
    while turn < 4 or (time.perf_counter() - began < seconds and turn < 200):
        for name, call in calls.items():
            call_began = now(device)
            call(turn)
            if turn:
                times[name].append(now(device) - call_began)
        turn += 1
    return {name: median(values) for name, values in times.items()}


def needed_rows(rule: Rule, draft: Draft, path: Tensor, accepted: Tensor) -> tuple[int, int]:
    """Returns how many rows of p and of q must be read.

    p must at every node that a walk comes to, q where it stopped at a rejection; for rules of whole
    paths all are needed.
    """
    tree, rows = draft.tree, len(path)
    if rule.name == "block":
        return rows * tree.n, rows * tree.n - rows
    if rule.name in ("traversal", "gbv"):
        visited = int(accepted.clamp_min(0).sum()) + rows
        return visited, visited
    last = path.gather(1, accepted[:, None]).squeeze(1)
    stopped = int((tree.kids[0, last, 0] >= 0).sum())
    return int(accepted.sum()) + rows, 0 if rule.name in ("naive", "point") else stopped


def measure(
    name: str, rows: int, nodes: int, vocabulary: int, device: str, seconds: float
) -> dict[str, Any]:
    """Measures one rule at one size, for about ``seconds``."""
    scheme, published_rule = CASES[name]
    is_chain = name in ("rejection", "block")
    tree = (Tree.chain(nodes) if is_chain else shape(nodes, scheme)).to(device)
    z, w = logits_pair(rows, tree.n, vocabulary, device)
    draft = random_draft(tree, scheme, w)
    assert draft.q is not None
    # copies enough to fill the cache several times over
    copies = min(200, COLD // (4 * (z.numel() + draft.q.numel())))
    batches = [(draft, Scores(z, SAMPLING))]
    for _ in range(copies):
        batches.append((replace(draft, q=draft.q.clone()), Scores(z.clone(), SAMPLING)))
    rule = RULES[name]()
    rule.lazy = device == "cpu"
    width = max(rule.uniforms(tree.limits), tree.n * max(tree.K, 1))
    uniforms = [torch.rand(rows, width, dtype=torch.float64, device=device) for _ in range(TURNS)]

    def ours(turn: int) -> Any:
        u = uniforms[turn % TURNS]
        verdict = rule.verify(*batches[turn % len(batches)], u)
        assert verdict.distribution is not None
        return verdict, inverse_cdf(verdict.distribution, u[:, 0])

    began, counts = time.perf_counter(), []
    while len(counts) < TURNS:
        verdict, _ = ours(len(counts))
        counts.append(needed_rows(rule, draft, verdict.path, verdict.accepted))
        if len(counts) >= 2 and time.perf_counter() - began >= seconds / 4:
            break
    needed = max(1, round(float(np.mean(counts, axis=0).sum())))
    store, size = memory(device), needed * vocabulary
    slots = max(1, len(store) // size)

    def read(turn: int) -> Any:
        first = turn % slots * size
        return store[first : first + size].sum()

    calls: dict[str, Callable[[int], Any]] = {"ours": ours, "read": read}
    if published_rule is not None:
        calls["published"] = lambda turn: published_rule(
            *batches[turn % len(batches)], uniforms[turn % TURNS]
        )
    with torch.inference_mode():
        times = median_seconds(calls, device, seconds)
        with Bytes() as moved:
            for turn in range(2):
                ours(turn)
    return {
        "rule": name,
        "rows": rows,
        "nodes": tree.n - 1,
        "vocabulary": vocabulary,
        "microseconds": 1e6 * times["ours"],
        "needed_bytes": size * 4,
        "moved_bytes": moved.total // 2,
        "over_read": times["ours"] / times["read"],
        "over_published": times["published"] / times["ours"] if published_rule else None,
    }


# ----------------------------------------------------------------------------------------- printing

SWEEPS = {  # rows, nodes, vocabulary
    "rows": [(rows, 12, 32768) for rows in (1, 4, 16, 64)],
    "nodes": [(4, nodes, 32768) for nodes in (1, 4, 16, 64)],
    "vocabulary": [(4, 12, size) for size in (4096, 32768, 65536, 152064)],
}
COLUMNS = (
    "rule",
    "rows",
    "nodes",
    "vocabulary",
    "us",
    "needed MB",
    "moved MB",
    "over read",
    "published / ours",
)


def growth(records: list[dict[str, Any]], axis: str) -> float:
    """Returns the exponent of the time in one size: the slope of a line through the logarithms."""
    xs, ys = (np.log([record[key] for record in records]) for key in (axis, "microseconds"))
    return float(np.polyfit(xs, ys, 1)[0])


def cells(record: dict[str, Any]) -> list[str]:
    over = record["over_published"]
    return [
        record["rule"],
        *(str(record[key]) for key in ("rows", "nodes", "vocabulary")),
        f"{record['microseconds']:.0f}",
        f"{record['needed_bytes'] / 1e6:.2f}",
        f"{record['moved_bytes'] / 1e6:.2f}",
        f"{record['over_read']:.1f}",
        "-" if over is None else f"{over:.2f}",
    ]


def names(records: list[dict[str, Any]]) -> str:
    sizes = [f"{r['rule']} {r['rows']}x{r['nodes']}x{r['vocabulary']}" for r in records]
    return ", ".join(sizes) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rules = [name for name in CASES if name in RULES]
    parser.add_argument("--rules", nargs="+", default=rules, choices=rules)
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default_device, choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=240.0, help="about how long to measure")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    points = list(dict.fromkeys(point for sweep in SWEEPS.values() for point in sweep))
    seconds = args.seconds / (len(points) * len(args.rules))
    records: dict[tuple, dict[str, Any]] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name in bar.track(args.rules, description="rules"):
            for point in points:
                records[name, *point] = measure(name, *point, args.device, seconds)
    table = Table(*COLUMNS)
    for record in records.values():
        table.add_row(*cells(record))
    console = Console(width=130)
    console.print(table)
    exponents = {
        name: {
            axis: growth([records[name, *point] for point in sweep], axis)
            for axis, sweep in SWEEPS.items()
        }
        for name in args.rules
    }
    for name, by_axis in exponents.items():
        powers = ", ".join(f"{axis}^{exponent:.2f}" for axis, exponent in by_axis.items())
        console.print(f"{name}: time grows as {powers}")
    wide = [record for record in records.values() if record["vocabulary"] >= 32768]
    far = [record for record in wide if record["over_read"] > 10]
    compared = [record for record in wide if record["over_published"] is not None]
    slow = [record for record in compared if record["over_published"] < 3]
    console.print(f"V >= 32768: more than 10 times the read: {names(far)}")
    console.print(f"V >= 32768: less than 3 times as fast as published: {names(slow)}")
    if args.out:
        processor = platform.processor() or platform.machine()
        document = {
            "machine": torch.cuda.get_device_name() if args.device == "cuda" else processor,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "records": list(records.values()),
            "growth": exponents,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
