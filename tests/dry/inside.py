"""What runs on the dry device: ``inside.py PART``, one JSON document a line on standard output.

Parts: ``calibrate``, ``steps`` (tiny shapes; DTYPE, then keys of methods), ``large`` (8B; the
same), ``memory``, ``dropped``, ``attention``. ``run.py`` calls them, and ``several.py``, and
judges.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Callable

import device
import torch
from device import GIB

import specwb
from specwb.drafters.base import Drafter

# kernels of other attentions than cuDNN's are the ones that the runtime can stand in for; LSTMs too
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
PROMPTS = {"tiny": [[1, 2, 3], [4, 5]], "large": [[5] * 400]}
KEPT = ("launches", "gemms", "nodes", "replays", "syncs", "pageable", "pinned", "reads", "mallocs")
KEPT += ("collectives",)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def where(error: BaseException) -> str:
    """The last line of specwb that an error went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/specwb/" in f.filename]
    if not frames:
        return ""
    return f"{frames[-1].filename.rpartition('/specwb/')[2]}:{frames[-1].lineno}"


def measured(method: specwb.Method, target: specwb.Target, prompts, temperature, graphs) -> dict:
    """What a decoding step counts once it has settled: the most of four steps, each number apart.

    Its first step is eager, its second recorded.
    """
    device.reset()
    steps = specwb.rounds(
        target, prompts, method, max_new_tokens=60, temperature=temperature, eos=7, graphs=graphs
    )
    most = dict.fromkeys(KEPT, 0)
    whole = dict.fromkeys(("violations", "captured_mallocs"), 0)
    before = device.counts()
    for i in range(8):
        device.reset()
        next(steps)
        now = device.counts()
        if i >= 4:
            most = {name: max(most[name], now[name]) for name in KEPT}
        whole = {name: whole[name] + now[name] for name in whole}
    steps.close()
    return {**most, **whole, "used": now["used"] - before["used"]}


def modes(drafter: Drafter) -> list[str]:
    """How a method's steps are run: recorded, with drafts as short as they may be, eagerly."""
    if not drafter.captured:
        return ["eager"]
    return ["graph", *(["stopped"] if drafter.staged else []), "eager"]


def steps(shapes, prompts, only: list[str]) -> None:
    for name, key, build in shapes.cases():
        if only and key not in only:
            continue
        try:
            method = build()
        except Exception as error:
            say(case=name, key=key, error=f"{type(error).__name__}: {error}"[:200], at=where(error))
            continue
        drafter = method.drafter
        for temperature in (0.0, 1.0):
            for mode in modes(drafter):
                device.shortest = mode == "stopped"
                graphs = False if mode == "eager" else None
                about = {
                    "case": name,
                    "key": key,
                    "T": temperature,
                    "mode": mode,
                    "host_reads": drafter.host_reads,
                    "captured": drafter.captured,
                    "staged": drafter.staged,
                }
                try:
                    counted = measured(method, shapes.target, prompts, temperature, graphs)
                    say(**about, **counted)
                except Exception as error:
                    text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                    say(**about, error=text, at=where(error), complaint=device.complaint())
        method.arenas.clear()
        del method
        gc.collect()
        device.empty_cache()


# --------------------------------------------------------------------------------- calibration


def calibrate() -> None:
    """Operations of which it is known whether a driver accepts them in a capture."""
    x = torch.zeros(4, 8, device="cuda")
    ids = torch.zeros(4, dtype=torch.long, device="cuda")
    host = torch.zeros(4, 1, dtype=torch.long)
    good: dict[str, Callable] = {
        "add": lambda: x + 1,
        "masked_fill": lambda: x.masked_fill(x > 0, 1.0),
        "where with a number": lambda: torch.where(x > 0, x, 0),
        "assignment by a mask": lambda: x.__setitem__(x > 0, 1.0),
        "a number on the host": lambda: x + torch.tensor(2.0),
        "sort": lambda: x.sort(),
        "cumsum in float64": lambda: x.cumsum(-1, dtype=torch.float64),
        "multinomial": lambda: torch.multinomial(x + 1, 1),
        "product": lambda: x @ x.T,
        "scatter": lambda: x.scatter(1, ids[:, None], 1.0),
    }
    bad: dict[str, Callable] = {
        "item": lambda: x.sum().item(),
        "nonzero": lambda: x.nonzero(),
        "read by a mask": lambda: x[x > 0],
        "a list onto the device": lambda: torch.tensor([1, 2, 3], device="cuda"),
        "a pageable copy": lambda: host.to("cuda", non_blocking=True),
        "index on the host": lambda: x[torch.tensor([0, 1])],
        "tensors of two devices": lambda: x + torch.arange(8),
        "unique": lambda: ids.unique(),
        "repeat_interleave": lambda: x.repeat_interleave(ids, 0),
        "bincount": lambda: ids.bincount(),
        "synchronize": torch.cuda.synchronize,
    }
    for wanted, operations in ((True, good), (False, bad)):
        for name, operation in operations.items():
            before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            accepted = True
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    operation()
            except (RuntimeError, ValueError):
                accepted = False
            finally:
                torch.cuda.set_stream(before)
            say(operation=name, wanted=wanted, accepted=accepted)
    mixed = {
        "gather": lambda: x.gather(1, host),
        "cat": lambda: torch.cat([x, torch.zeros(1, 8)]),
        "index_select": lambda: x.index_select(0, torch.tensor([0])),
        "integer product": lambda: ids[None] @ ids[:, None],
    }
    for name, operation in mixed.items():
        try:
            operation()
            accepted = True
        except (RuntimeError, ValueError, NotImplementedError):
            accepted = False
        say(operation=f"{name}, eager, of two devices or integers", wanted=False, accepted=accepted)


# ------------------------------------------------------------------------ memory and attention


def memory() -> None:
    """GiB reserved when a model has been loaded, and the most that a decoding has allocated."""
    from shapes import SIZES, llama

    for size in SIZES:
        device.empty_cache()
        device.reset()
        floor = device.counts()["used"]
        model = llama(size)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        before = device.counts()["used"] - floor
        target = specwb.Target(model)
        now = device.counts()
        reserved, peak = now["used"] - floor, now["peak"] - floor
        gc.collect()
        device.empty_cache()
        settled = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in zip(range(3), specwb.rounds(target, [[5] * 500], "ar", max_new_tokens=100, eos=7)):
            pass
        used = torch.cuda.max_memory_allocated() - settled
        sizes = {"weights": weights, "library": before, "reserved": reserved, "peak": peak}
        sizes["decoding"] = used
        say(size=size, **{name: round(value / GIB, 2) for name, value in sizes.items()})
        del model, target
        gc.collect()


def dropped() -> None:
    """A method that is given up takes its own graphs along, at once, and nothing that the graphs of
    others go on using: what cuBLAS has set aside for captured products."""
    from shapes import Tiny

    shapes = Tiny(torch.float32)

    def held(key: str, **options: float) -> tuple[specwb.Method, int]:
        """A method with its graphs, and the bytes that are allocated then."""
        method = specwb.method(key, shapes.target, **options)
        steps = specwb.rounds(shapes.target, [[1, 2, 3]], method, max_new_tokens=60, eos=7)
        for _ in zip(range(6), steps):
            pass
        steps.close()
        device.empty_cache()
        return method, torch.cuda.memory_allocated()

    gc.disable()
    _kept, before = held("ar")
    for key, options in (
        ("sps", {"draft": shapes.draft, "gamma": 2}),
        ("sps", {"draft": shapes.draft, "gamma": 2, "confidence": 0.4}),
    ):
        method, with_it = held(key, **options)
        del method
        device.empty_cache()
        left = torch.cuda.memory_allocated()
        about = {"case": f"{key} given up{', staged' if len(options) > 2 else ''}"}
        if not before <= left < (before + with_it) / 2:  # tables that are made once stay
            about["error"] = f"bytes allocated: {before} before, {with_it} with it, {left} after"
        say(**about)
        before = left
    gc.enable()


def attention() -> None:
    """Which backend torch chooses for the products of attention that steps ask for."""
    from unittest.mock import patch

    from shapes import DTYPES, Large
    from torch.nn import functional as F

    backends = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    real = F.scaled_dot_product_attention
    torch.backends.cudnn.enabled = True
    torch.backends.cuda.enable_cudnn_sdp(True)
    for dtype_name, dtype in DTYPES.items():
        shapes = Large(dtype)
        for name, key, build in shapes.cases():
            if key not in ("ar", "sps", "eagle"):
                continue
            seen: dict[str, int] = {}

            def asked(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, seen=seen, **more):
                choice = torch._fused_sdp_choice(q, k, v, attn_mask, 0.0, is_causal, **more)
                kind = "prompt" if is_causal else "mask" if attn_mask is not None else "all"
                label = f"{kind}: {backends.get(choice, 'error')}"
                seen[label] = seen.get(label, 0) + 1
                if backends.get(choice) != "cudnn":
                    return real(q, k, v, attn_mask, dropout_p, is_causal, **more)
                return torch.empty_like(q)

            method = build()
            for graphs in (None, False):
                seen.clear()
                with patch.object(F, "scaled_dot_product_attention", asked):
                    steps = specwb.rounds(
                        shapes.target,
                        PROMPTS["large"],
                        method,
                        max_new_tokens=60,
                        eos=7,
                        graphs=graphs,
                    )
                    for _ in zip(range(3), steps):
                        pass
                    steps.close()
                mode = "eager" if graphs is False else "graph"
                say(case=name, dtype=dtype_name, mode=mode, chosen=dict(seen))
        del shapes
        gc.collect()
        device.empty_cache()


def main() -> None:
    part, dtype, *only = *sys.argv[1:], *["fp32"][len(sys.argv) - 2 :]
    if part == "calibrate":
        calibrate()
        return
    from shapes import DTYPES, Large, Tiny

    device.endless()
    if part == "steps":
        steps(Tiny(DTYPES[dtype]), PROMPTS["tiny"], only)
    elif part == "large":
        steps(Large(DTYPES[dtype]), PROMPTS["large"], only)
    else:
        {"memory": memory, "attention": attention, "dropped": dropped}[part]()


if __name__ == "__main__":
    main()
