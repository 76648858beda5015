"""Whether products take the fastest way here.

    python benchmarks/ways.py [--shapes 49152x576 3072x576] [--dtypes float32 bfloat16]
        [--tokens 1 2 5 9 17] [--threads N]

For every shape, number type and number of tokens: what ``specwb.models.products`` chooses, measured
as when a model first asks (nothing is read from a file), and then all ways again, over four
times as many bytes. It prints the gigabytes of weights a second of every way, the choice, and how
much of the best one's speed the choice has; at the end how many choices have 90 % of it.

linear is torch's own way; turned computes (W x^T)^T; split does so by parts of the weight's rows,
one a thread; packed is oneDNN's product with a packed copy of the weight.
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch

from specwb.lab.bench.conditions import describe_device
from specwb.models import products

SHAPES = ["49152x576", "3072x576", "576x1536", "960x576", "576x576", "8192x2048", "2048x8192"]


def speeds(rows: int, columns: int, dtype: torch.dtype, tokens: int) -> dict[str, float]:
    """GB/s of weights by way, of more rounds over more bytes than a choice is made from."""
    names = ("SPAN", "LEAST", "HOPELESS")
    kept = [getattr(products, name) for name in names]
    try:
        for name, value in zip(names, (4 * kept[0], 9, float("inf")), strict=True):
            setattr(products, name, value)
        seconds = products.measure(rows, columns, dtype, [tokens])[tokens]
    finally:
        for name, value in zip(names, kept, strict=True):
            setattr(products, name, value)
    return {way: rows * columns * dtype.itemsize / s / 1e9 for way, s in seconds.items()}


def shape(text: str) -> tuple[int, int]:
    rows, columns = (int(size) for size in text.split("x"))
    if min(rows, columns) < 1:
        raise ValueError
    return rows, columns


def number_type(text: str) -> torch.dtype:
    if text not in (names := {str(dtype)[6:]: dtype for dtype in products.DTYPES}):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
    return names[text]


def few(text: str) -> int:
    if not 1 <= int(text) <= products.MOST:
        raise ValueError
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = list(products.DTYPES[:2])
    parser.add_argument("--shapes", type=shape, nargs="+", default=list(map(shape, SHAPES)))
    parser.add_argument("--dtypes", type=number_type, nargs="+", default=usual)
    parser.add_argument("--tokens", type=few, nargs="+", default=[1, 2, 5, 9, 17])
    parser.add_argument("--threads", type=few)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    print(describe_device(torch.device("cpu")))
    print("number type, shape, tokens: GB/s of weights by way; the one that is taken")
    good, every, choosing = 0, 0, 0.0
    for kind, (rows, columns) in itertools.product(args.dtypes, args.shapes):
        began = time.perf_counter()
        measured = products.measure(rows, columns, kind, list(products.TOKENS.values()))
        choosing += time.perf_counter() - began
        for tokens in args.tokens:
            choice = products.fastest(
                measured[min(n for most, n in products.TOKENS.items() if most >= tokens)]
            )
            found = speeds(rows, columns, kind, tokens)
            share = found[choice] / max(found.values())
            good, every = good + (share >= 0.9), every + 1
            ways = "  ".join(f"{way} {speed:5.1f}" for way, speed in found.items())
            print(
                f"{str(kind)[6:]} {rows}x{columns} {tokens:2}: {ways}  takes {choice}, {share:.0%}",
                flush=True,
            )
    print(f"{good} of {every} choices have 90 % of the best; choosing took {choosing:.1f} s")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
