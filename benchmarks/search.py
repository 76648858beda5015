"""What path search costs: a beam and the exact search over lattices of 30 places and 15 candidates. python benchmarks/search.py [--out FILE]

Lattices are those of the lab's diffusion drafter behind prompts of the set "lab"; where there is none, of the lab's draft model along text, the
law of every place given the text before it (``--lattices draft``). The proxy is the lab's trigram by stupid backoff. ``first`` is a search
whose contexts the proxy was never asked for, ``again`` the same once more; ``gap`` how much mean log score a token the beam misses of the best path.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

import specwb
from specwb.evaluation.prompts import interleave, load_prompts
from specwb.lattice import Lattice, beam, candidates, viterbi
from specwb.models.diffusion import load_diffusion
from specwb.models.load import data_dir
from specwb.ngram import NGram

K, TOP, WIDTH, LAM = 30, 15, 3, 0.5
EXACT = 12  # lattices that the exact search is timed on


def drafted(kind: str, many: int) -> list[tuple[list, list[int]]]:
    """For every prompt: what :func:`candidates` gave for 30 places, and the text before them."""
    target = specwb.load("lab", device="cpu")
    prompts = [q.ids(target.tokenizer)[:400] for q in interleave(load_prompts("lab"))[:many]]
    none = torch.tensor([], dtype=torch.long)
    found = []
    with torch.inference_mode():
        if kind == "diffusion":
            from specwb.models.masked import Blocks

            model = load_diffusion(data_dir() / "lab" / "diffusion", target)
            none = torch.tensor([model.mask_id])
            for prompt in prompts:
                n = len(prompt)
                tokens, known = torch.tensor([prompt]), torch.tensor([n])
                logits = Blocks(model, 1, n + K).say(tokens, known, n, torch.zeros_like(known), n, torch.tensor([K]), K)
                found.append((candidates(logits, TOP, target.vocabulary, none)[:, 0].tolist(), prompt))
        else:
            draft = specwb.load("lab-draft", device="cpu")
            for prompt in (p for p in prompts if len(p) > K + 2):
                logits = draft.model(torch.tensor([prompt])).logits[:, -K - 1 : -1]
                found.append((candidates(logits, TOP, target.vocabulary, none)[:, 0].tolist(), prompt[:-K]))
    return found


def timed(repeats: int, call: Callable[..., object], *arguments: object) -> float:
    """Milliseconds of processor time (it all runs on one core), the median of so many."""
    out = []
    for _ in range(repeats):
        began = time.process_time()
        call(*arguments)
        out.append(time.process_time() - began)
    return 1e3 * median(out)


def measured(found: list[tuple[list, list[int]]], mass: float, repeats: int) -> dict[str, float]:
    """Medians over lattices pruned to ``mass``, all their places kept (no token ends the text)."""
    lattices = [(Lattice.prune(*rows, mass), prompt[-2:]) for rows, prompt in found]
    proxy = NGram.load(data_dir() / "lab" / "ngram" / "ngram.npz")
    proxy.scores((), [0])  # tables are made once
    few = lattices[:EXACT]
    gaps = [viterbi(lattice, proxy, known, LAM).mean - beam(lattice, proxy, known, LAM, WIDTH)[0].mean for lattice, known in few]
    proxy = proxy.with_smoothing(proxy.smoothing)  # that was asked for nothing
    proxy.scores((), [0])
    return {
        "mass": mass,
        "candidates": sum(len(row) for lattice, _ in lattices for row in lattice.ids) / (len(lattices) * K),
        "prune_ms": median(timed(repeats, Lattice.prune, *rows, mass) for rows, _ in found),
        "beam_first_ms": median(timed(1, beam, lattice, proxy, known, LAM, WIDTH) for lattice, known in lattices),
        "beam_again_ms": median(timed(repeats, beam, lattice, proxy, known, LAM, WIDTH) for lattice, known in lattices),
        "viterbi_ms": median(timed(1, viterbi, lattice, proxy, known, LAM) for lattice, known in few),
        "gap_nats": sum(gaps) / len(gaps),
        "best_found": sum(gap <= 0 for gap in gaps) / len(gaps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lattices", choices=("diffusion", "draft"), help="default: the first that there is")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lab = data_dir() / "lab"
    kind = args.lattices or ("diffusion" if (lab / "diffusion").is_dir() else "draft")
    found = drafted(kind, args.prompts)
    records = [measured(found, mass, args.repeats) for mass in (1.0, 0.8)]
    table = Table(header_style="bold", title=f"k = {K}, M = {TOP}, B = {WIDTH}, lambda = {LAM}; lattices of the lab's {kind} model, ms")
    for name in ("mass", "candidates a place", "prune", "beam, first", "beam, again", "viterbi", "gap, nats a token", "best path found"):
        table.add_column(name, justify="right")
    for r in records:
        table.add_row(*(f"{x:.3g}" for x in r.values()))
    Console().print(table)
    if args.out:
        shared = {"machine": platform.machine(), "python": platform.python_version(), "lattices": kind, "prompts": len(found),
                  "k": K, "top": TOP, "width": WIDTH, "lambda": LAM, "clock": "process_time"}  # fmt: skip
        args.out.write_text(json.dumps({**shared, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
