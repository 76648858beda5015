"""What verification costs, against reading its rows once and against the rules as published.

    python benchmarks/verify.py [--rules rrsw ...] [--device cpu] [--seconds 240] [--out benchmarks/results/verify-cpu.json]

From the target's logits to the closing token. ``needed`` is what must be read at least: the target's row at every visited node and,
where a candidate was rejected, the draft's; ``over read`` is the time over that of summing as many bytes once. Both find their rows in
memory and not in the cache, as after a forward that has streamed the weights through it: every call is given another copy of the
batch. ``moved`` is what the operators read and wrote, counted operator by operator. ``published / ours`` compares with the rule written
as its authors' code has it: every node's probabilities first, residual vectors that are normalised after every rejection, one
Python loop a row.
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

from specwb.flow import Draft, Law, Scores
from specwb.probability import Sampling, draw_without_replacement, inverse_cdf
from specwb.tree import Tree
from specwb.verify import RULES, Rule

SAMPLING = Sampling(1.0)
COLD = 200_000_000  # bytes, more than a cache holds


def logits_pair(rows: int, nodes: int, vocabulary: int, device: str, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Zipf-like target logits and draft logits that differ by Gaussian noise, ``[rows, nodes, vocabulary]``."""
    generator = torch.Generator(device).manual_seed(rows * 1000 + nodes)
    base = -1.2 * torch.arange(1, vocabulary + 1, device=device).float().log()
    shift = torch.randint(vocabulary, (rows, nodes, 1), generator=generator, device=device)
    z = base[(torch.arange(vocabulary, device=device) + shift) % vocabulary]
    w = z + noise * torch.randn(z.shape, generator=generator, device=device)
    z += noise * torch.randn(z.shape, generator=generator, device=device)
    return z, w


def shape(nodes: int, law: Law) -> Tree:
    """A tree of so many candidates: a chain, four paths, or two children a node, as the law wants it."""
    if law is Law.IID_PATHS:
        return Tree.branching(min(4, nodes), *[1] * (max(1, nodes // 4) - 1))
    parents = [-1] + [i // 4 for i in range(nodes)]  # four children a node, level by level
    return Tree([parents])


def drafted(tree: Tree, law: Law, w: Tensor) -> Draft:
    """Candidates drawn from the draft's logits under a law; one row of q for every node with children."""
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
        if law is Law.WITHOUT_REPLACEMENT:
            tokens[:, kids] = draw_without_replacement(q[:, r], u)[0]
        elif law is Law.TOP_AND_SAMPLE:
            _, top = q[:, r].topk(len(kids) - 1, -1) if len(kids) > 1 else (u[:, :0].float(), u[:, :0].long())
            q[:, r] = q[:, r].scatter(1, top, 0)
            q[:, r] /= q[:, r].sum(1, keepdim=True)
            tokens[:, kids] = torch.cat([top, inverse_cdf(q[:, r], u[:, -1])[:, None]], 1)
        elif law is Law.POINT:
            tokens[:, kids] = q[:, r].topk(len(kids), -1).indices
        else:
            tokens[:, kids] = torch.stack([inverse_cdf(q[:, r], u[:, j]) for j in range(len(kids))], 1)
    return Draft(tree, tokens, torch.ones_like(tokens, dtype=torch.bool), law, q, q_row)


# ------------------------------------------------------------------------------------------------------------ as published


def published(replace: bool | None) -> Callable[[Draft, Scores, Tensor], tuple[list[list[int]], Tensor]]:
    """MCSD's and SpecInfer's procedure: ``replace`` True and False, and for None the naive one."""

    def verify(draft: Draft, scores: Scores, u: Tensor) -> tuple[list[list[int]], Tensor]:
        law = scores.logits.float().softmax(-1)
        assert draft.q is not None
        assert draft.q_row is not None
        tree, paths, closing = draft.tree, [], []
        for b in range(len(draft.tokens)):
            node, path, place = 0, [], 0
            p = law[b, 0].clone()
            while True:
                kids = [k for k in tree.kids[0, node].tolist() if k >= 0]
                if not kids:
                    break
                chosen = None
                if replace is None:
                    y = torch.multinomial(p, 1)
                    chosen = next((k for k in kids if draft.tokens[b, k] == y), None)
                    if chosen is None:
                        p = torch.zeros_like(p).scatter_(0, y, 1.0)
                else:
                    q = draft.q[b, draft.q_row[0, node]].clone()
                    for k in kids:
                        x = draft.tokens[b, k]
                        place += 1
                        if u[b, place - 1] < p[x] / q[x]:
                            chosen = k
                            break
                        p = (p - q).clamp(min=0)
                        p = p / p.sum()
                        if not replace:
                            q[x] = 0
                            q = q / q.sum()
                if chosen is None:
                    break
                path.append(chosen)
                node, p = chosen, law[b, chosen].clone()
            paths.append(path)
            closing.append(torch.multinomial(p, 1))
        return paths, torch.cat(closing)

    return verify


def published_block(draft: Draft, scores: Scores, u: Tensor) -> tuple[list[list[int]], Tensor]:
    """Block verification, position by position (Sun et al. 2403.10444, algorithm 2)."""
    law = scores.logits.float().softmax(-1)
    assert draft.q is not None
    paths, closing = [], []
    for b in range(len(draft.tokens)):
        w, tau, length = torch.ones((), device=law.device), 0, draft.tree.D
        kept = w
        for i in range(1, length + 1):
            x = draft.tokens[b, i]
            w = torch.minimum(torch.ones_like(w), w * law[b, i - 1, x] / draft.q[b, i - 1, x])
            if i < length:
                z = (w * law[b, i] - draft.q[b, i]).clamp(min=0).sum()
                h = z / (z + 1 - w)
            else:
                h = w
            if u[b, i - 1] < h:
                tau, kept = i, w
        p = law[b, tau] if tau == length else (kept * law[b, tau] - draft.q[b, tau]).clamp(min=0)
        paths.append(list(range(1, tau + 1)))
        closing.append(torch.multinomial(p / p.sum(), 1))
    return paths, torch.cat(closing)


CASES: dict[str, tuple[Law, Callable[[Draft, Scores, Tensor], Any] | None]] = {
    "rejection": (Law.IID, published(True)),
    "block": (Law.IID, published_block),
    "rrs": (Law.IID_PATHS, published(True)),
    "rrsw": (Law.WITHOUT_REPLACEMENT, published(False)),
    "naive": (Law.WITHOUT_REPLACEMENT, published(None)),
    "top": (Law.TOP_AND_SAMPLE, None),
    "kseq": (Law.IID_PATHS, None),
    "race": (Law.IID_PATHS, None),
    "traversal": (Law.WITHOUT_REPLACEMENT, None),
    "gbv": (Law.IID_PATHS, None),
}


# --------------------------------------------------------------------------------------------------------------- measuring


class Bytes(TorchDispatchMode):
    """Counts what operators read and write: the tensors they are given and return, views not."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "view" not in str(func.tags) and not func.is_view:
            flat = [x for x in [*torch.utils._pytree.tree_leaves((args, kwargs)), *torch.utils._pytree.tree_leaves(out)] if isinstance(x, Tensor)]
            gathers = func.overloadpacket.__name__ in ("gather", "index", "index_select", "embedding", "scatter_")
            small = min((x.numel() for x in flat), default=0)
            self.total += sum((min(x.numel(), 2 * small) if gathers else x.numel()) * x.element_size() for x in flat)
        return out


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@cache
def memory(device: str) -> Tensor:
    return torch.randn(COLD // 4, device=device)


def timed(calls: dict[str, Callable[[int], Any]], device: str, seconds: float) -> dict[str, float]:
    """Medians; the calls take turns, each given the number of its turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    began, turn = time.perf_counter(), 0
    while turn < 4 or (time.perf_counter() - began < seconds and turn < 200):
        for name, call in calls.items():
            a = now(device)
            call(turn)
            if turn:
                found[name].append(now(device) - a)
        turn += 1
    return {name: median(values) for name, values in found.items()}


def needed(rule: Rule, draft: Draft, path: Tensor, accepted: Tensor) -> tuple[int, int]:
    """Rows of p and of q that must be read: p at every node a walk comes to; q where it stopped at a rejection; all for rules of whole paths."""
    tree, rows = draft.tree, len(path)
    if rule.name in ("block", "traversal", "gbv"):
        length = int(accepted.clamp_min(0).sum()) + rows if rule.name != "block" else rows * tree.n
        return length, length - rows if rule.name == "block" else length
    last = path.gather(1, accepted[:, None]).squeeze(1)
    stopped = int((tree.kids[0, last, 0] >= 0).sum())
    return int(accepted.sum()) + rows, 0 if rule.name in ("naive", "point") else stopped


def measure(name: str, rows: int, nodes: int, vocabulary: int, device: str, seconds: float) -> dict[str, Any]:
    law, direct = CASES[name]
    tree = (Tree.chain(nodes) if name in ("rejection", "block") else shape(nodes, law)).to(device)
    z, w = logits_pair(rows, tree.n, vocabulary, device)
    draft = drafted(tree, law, w)
    assert draft.q is not None
    size = 4 * (z.numel() + draft.q.numel())
    # copies enough to fill the cache several times over
    batches = [(draft, Scores(z, SAMPLING))]
    batches += [(replace(draft, q=draft.q.clone()), Scores(z.clone(), SAMPLING)) for _ in range(min(200, COLD // size))]
    rule = RULES[name]()
    rule.lazy = device == "cpu"
    wide = [torch.rand(rows, max(rule.uniforms(tree.limits), tree.n * max(tree.K, 1)), dtype=torch.float64, device=device) for _ in range(16)]

    def ours(turn: int) -> Any:
        u = wide[turn % 16]
        verdict = rule.verify(*batches[turn % len(batches)], u)
        assert verdict.law is not None
        return verdict, inverse_cdf(verdict.law, u[:, 0])

    began, counts = time.perf_counter(), []
    while len(counts) < 16 and (len(counts) < 2 or time.perf_counter() - began < seconds / 4):
        verdict, _ = ours(len(counts))
        counts.append(needed(rule, draft, verdict.path, verdict.accepted))
    need = np.mean(counts, axis=0)
    need_rows = max(1, round(float(need.sum())))
    store = memory(device)
    places = max(1, len(store) // (need_rows * vocabulary))

    def read(turn: int) -> Any:
        at = turn % places * need_rows * vocabulary
        return store[at : at + need_rows * vocabulary].sum()

    calls: dict[str, Callable[[int], Any]] = {"ours": ours, "read": read}
    if direct is not None:
        calls["published"] = lambda turn: direct(*batches[turn % len(batches)], wide[turn % 16])
    with torch.inference_mode():
        times = timed(calls, device, seconds)
        with Bytes() as moved:
            for turn in range(2):
                ours(turn)
    return {
        "rule": name, "rows": rows, "nodes": tree.n - 1, "vocabulary": vocabulary, "microseconds": 1e6 * times["ours"],
        "needed_bytes": need_rows * vocabulary * 4, "moved_bytes": moved.total // 2, "over_read": times["ours"] / times["read"],
        "over_published": times["published"] / times["ours"] if direct else None,
    }  # fmt: skip


def growth(records: list[dict[str, Any]], axis: str) -> float:
    """Exponent of the time in one size: the slope of a line through the logarithms."""
    xs, ys = (np.log([r[key] for r in records]) for key in (axis, "microseconds"))
    return float(np.polyfit(xs, ys, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rules", nargs="+", default=[name for name in CASES if name in RULES], choices=[name for name in CASES if name in RULES])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=240.0, help="about how long to measure")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sweeps = {
        "rows": [(b, 12, 32768) for b in (1, 4, 16, 64)],
        "nodes": [(4, n, 32768) for n in (1, 4, 16, 64)],
        "vocabulary": [(4, 12, v) for v in (4096, 32768, 65536, 152064)],
    }
    points = list(dict.fromkeys(p for sweep in sweeps.values() for p in sweep))
    share = args.seconds / (len(points) * len(args.rules))
    records: dict[tuple, dict[str, Any]] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name in bar.track(args.rules, description="rules"):
            for point in points:
                records[name, *point] = measure(name, *point, args.device, share)
    table = Table("rule", "rows", "nodes", "vocabulary", "us", "needed MB", "moved MB", "over read", "published / ours")
    for r in records.values():
        over = "-" if r["over_published"] is None else f"{r['over_published']:.2f}"
        sizes = [str(r[k]) for k in ("rows", "nodes", "vocabulary")]
        table.add_row(
            r["rule"],
            *sizes,
            f"{r['microseconds']:.0f}",
            f"{r['needed_bytes'] / 1e6:.2f}",
            f"{r['moved_bytes'] / 1e6:.2f}",
            f"{r['over_read']:.1f}",
            over,
        )
    console = Console(width=130)
    console.print(table)
    exponents = {name: {axis: growth([records[name, *p] for p in sweep], axis) for axis, sweep in sweeps.items()} for name in args.rules}
    for name, found in exponents.items():
        console.print(f"{name}: time grows as " + ", ".join(f"{axis}^{e:.2f}" for axis, e in found.items()))
    wide = [r for r in records.values() if r["vocabulary"] >= 32768]
    far = [r for r in wide if r["over_read"] > 10]
    slow = [r for r in wide if r["over_published"] is not None and r["over_published"] < 3]

    def names(found: list[dict[str, Any]]) -> str:
        return ", ".join(f"{r['rule']} {r['rows']}x{r['nodes']}x{r['vocabulary']}" for r in found) or "none"

    console.print(f"V >= 32768: more than 10 times the read: {names(far)}")
    console.print(f"V >= 32768: less than 3 times as fast as published: {names(slow)}")
    if args.out:
        machine = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
        result = {"machine": machine, "threads": torch.get_num_threads(), "torch": torch.__version__}
        args.out.write_text(json.dumps({**result, "records": list(records.values()), "growth": exponents}, indent=1) + "\n")


if __name__ == "__main__":
    main()
