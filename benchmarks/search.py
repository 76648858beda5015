"""What path search costs: a beam and the exact search over lattices of 30 positions.

    python benchmarks/search.py [--out FILE]

The lattices have 15 candidates a position. They are those of the lab's diffusion drafter behind
prompts of the set "lab"; where there is none, those of the lab's draft model along text, the
distribution of every position given the text before it (``--lattices draft``). The proxy is the
lab's trigram by stupid backoff. ``first`` is a search whose contexts the proxy was never asked for,
``again`` the same once more; ``gap`` is how much mean log score per token the beam is below the
best path.
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
from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, candidates, viterbi
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.models.diffusion import load_diffusion
from specwb.models.load import data_dir
from specwb.models.questions import interleave, load_prompts

K, TOP, WIDTH, LAM = 30, 15, 3, 0.5
EXACT = 12  # lattices that the exact search is timed on
COLUMNS = (
    "mass",
    "candidates a position",
    "prune",
    "beam, first",
    "beam, again",
    "viterbi",
    "gap, nats a token",
    "best path found",
)

# the tokens and log-probabilities of 30 positions, and the text before them
Block = tuple[list, list[int]]


def diffusion_blocks(target: specwb.Target, prompts: list[list[int]]) -> list[Block]:
    """Returns what the lab's diffusion drafter predicts behind every prompt."""
    from specwb.models.masked import Blocks

    model = load_diffusion(data_dir() / "lab" / "diffusion", target)
    banned = torch.tensor([model.mask_id])
    blocks = []
    for prompt in prompts:
        n = len(prompt)
        tokens, length = torch.tensor([prompt]), torch.tensor([n])
        start, sizes = torch.zeros_like(length), torch.tensor([K])
        logits, _ = Blocks(model, 1, n + K).say(tokens, length, n, start, n, sizes, K)
        best = candidates(logits, TOP, target.vocabulary, banned)
        blocks.append((best[:, 0].tolist(), prompt))
    return blocks


def draft_blocks(target: specwb.Target, prompts: list[list[int]]) -> list[Block]:
    """Returns what the lab's draft model predicts along the end of every prompt."""
    draft = specwb.load("lab-draft", device="cpu")
    banned = torch.tensor([], dtype=torch.long)
    blocks = []
    for prompt in prompts:
        if len(prompt) > K + 2:
            logits = draft.model(torch.tensor([prompt])).logits[:, -K - 1 : -1]
            best = candidates(logits, TOP, target.vocabulary, banned)
            blocks.append((best[:, 0].tolist(), prompt[:-K]))
    return blocks


def milliseconds(repeats: int, call: Callable[..., object], *arguments: object) -> float:
    """Returns the median of a call's processor time; it all runs on one core."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call(*arguments)
        times.append(time.process_time() - began)
    return 1e3 * median(times)


def measure(blocks: list[Block], mass: float, repeats: int) -> dict[str, float]:
    """Returns medians over lattices pruned to ``mass``.

    All their positions stay: no token ends the text.
    """
    lattices = [(Lattice.prune(*rows, mass), text[-2:]) for rows, text in blocks]
    proxy = NGram.load(data_dir() / "lab" / "ngram" / "ngram.npz")
    proxy.scores((), [0])  # tables are made once
    few = lattices[:EXACT]
    gaps = []
    for lattice, context in few:
        best = viterbi(lattice, proxy, context, LAM)
        gaps.append(best.mean - beam(lattice, proxy, context, LAM, WIDTH)[0].mean)
    proxy = proxy.forgetful()  # one that remembers no context
    proxy.scores((), [0])

    def beam_time(lattice: Lattice, context: list[int], repeats: int) -> float:
        return milliseconds(repeats, beam, lattice, proxy, context, LAM, WIDTH)

    count = sum(len(row) for lattice, _ in lattices for row in lattice.ids)
    prune = [milliseconds(repeats, Lattice.prune, *rows, mass) for rows, _ in blocks]
    first = [beam_time(*lattice, 1) for lattice in lattices]
    again = [beam_time(*lattice, repeats) for lattice in lattices]
    exact = [milliseconds(1, viterbi, lattice, proxy, context, LAM) for lattice, context in few]
    return {
        "mass": mass,
        "candidates": count / (len(lattices) * K),
        "prune_ms": median(prune),
        "beam_first_ms": median(first),
        "beam_again_ms": median(again),
        "viterbi_ms": median(exact),
        "gap_nats": sum(gaps) / len(gaps),
        "best_found": sum(gap <= 0 for gap in gaps) / len(gaps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("diffusion", "draft")
    parser.add_argument("--lattices", choices=kinds, help="default: the first that there is")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    has_diffusion = (data_dir() / "lab" / "diffusion").is_dir()
    kind = args.lattices or ("diffusion" if has_diffusion else "draft")
    target = specwb.load("lab", device="cpu")
    questions = interleave(load_prompts("lab"))[: args.prompts]
    prompts = [question.ids(target.tokenizer)[:400] for question in questions]
    with torch.inference_mode():
        make_blocks = diffusion_blocks if kind == "diffusion" else draft_blocks
        blocks = make_blocks(target, prompts)
    records = [measure(blocks, mass, args.repeats) for mass in (1.0, 0.8)]
    sizes = f"k = {K}, M = {TOP}, B = {WIDTH}, lambda = {LAM}"
    title = f"{sizes}; lattices of the lab's {kind} model, ms"
    table = Table(header_style="bold", title=title)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(*(f"{value:.3g}" for value in record.values()))
    Console().print(table)
    if args.out:
        document = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "lattices": kind,
            "prompts": len(blocks),
            "k": K,
            "top": TOP,
            "width": WIDTH,
            "lambda": LAM,
            "clock": "process_time",
            "records": records,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
