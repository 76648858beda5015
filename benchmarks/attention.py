"""Attention of one text's draft to its keys on CUDA: all keys of a head at once, or in parts.

    python benchmarks/attention.py [--out FILE]

Microseconds of one attention in bfloat16 within a CUDA graph of forty: torch's masked kernel, which
the engine asks for (``whole``), the same in 2 to 16 parts (:func:`specwb.models.layers.in_parts`),
cuDNN's, and two plain products with a softmax in float32. ``chosen`` is what the engine takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).parent))

from preflight import problem

from specwb.models.layers import in_parts, parts_of, processors

# heads of keys, queries that share one, width: an 8B model, a 1B model, smol
SHAPES = [(8, 4, 128), (8, 4, 64), (3, 3, 64)]
KEYS, QUERIES, SCALE = (256, 512, 1024, 2304, 8192), (1, 60), 0.1


def microseconds(attend: Callable[[], Tensor], count: int = 40, replays: int = 3) -> float:
    """The time of one call, of ``count`` that are recorded one behind the other."""
    attend()  # plans and allocations are made before the recording
    torch.cuda.synchronize()
    graph, (begin, end) = torch.cuda.CUDAGraph(), (torch.cuda.Event(True) for _ in range(2))
    with torch.cuda.graph(graph):
        for _ in range(count):
            attend()
    graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / replays / count * 1e3


def products(q: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.bmm(q[0] * SCALE, key[0].transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm((scores + mask[0]).softmax(-1).to(q.dtype), value[0])[None]


def row(kv: int, per_key: int, width: int, keys: int, queries: int) -> dict:
    """The times of one shape; the keys lie in a cache, beside the values."""
    made = {"dtype": torch.bfloat16, "device": "cuda"}
    slots = torch.randn(1, keys, 2 * kv, width, **made).transpose(1, 2)
    key, value = slots[:, :kv], slots[:, kv:]
    q = torch.randn(1, kv, per_key * queries, width, **made)
    mask = torch.zeros(1, 1, per_key * queries, keys, **made)

    def fused(backend: SDPBackend) -> float:
        with sdpa_kernel([backend]):
            whole = lambda: F.scaled_dot_product_attention(q, key, value, mask, scale=SCALE)  # noqa: E731
            return microseconds(whole)

    times = {
        "whole": fused(SDPBackend.EFFICIENT_ATTENTION),
        **{
            f"{n} parts": microseconds(lambda n=n: in_parts(q, key, value, mask, SCALE, n))
            for n in (2, 4, 8, 16)
        },
        "cudnn": fused(SDPBackend.CUDNN_ATTENTION),
        "products": microseconds(lambda: products(q, key, value, mask)),
    }
    free = processors(q.device, q.dtype)
    about = {"heads": kv, "queries": per_key * queries, "width": width, "keys": keys}
    about["chosen"] = parts_of(keys, kv, per_key * queries, free)
    return about | {name: round(time, 1) for name, time in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if wrong := problem():
        print(f"attention: {wrong}")
        return 2
    rows = []
    with torch.inference_mode():
        for shape in SHAPES:
            for keys in KEYS:
                for queries in QUERIES:
                    rows.append(row(*shape, keys, queries))
                    print(json.dumps(rows[-1]), flush=True)
    if args.out:
        document = {"device": torch.cuda.get_device_name(), "rows": rows}
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
