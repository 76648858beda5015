"""What runs on the dry device: ``inside.py PART``, one JSON document a case on standard output.

Parts: ``calibrate``, ``fp32`` and ``bf16`` (every method's variants of tests/test_protocol.py on
the tiny family with every feature, the first in both, the others in turn), ``rank`` (EasySpec and a
sharded target on two ranks, in the environment of torchrun). ``run.py`` starts them and judges.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from functools import cache

import device
import ranked
import test_protocol as protocol
import tiny
import torch
from torch import nn

import specwb
from specwb.core.flow import Exactness
from specwb.models import ranks

# kernels of other attentions than cuDNN's are the ones that the runtime can stand in for; LSTMs too
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
PROMPTS = [[1, 2, 3], [4, 5]]


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


def moved(target: specwb.Target, dtype: torch.dtype) -> specwb.Target:
    return specwb.load(copy.deepcopy(target.model).to(dtype), device="cuda")


def measured(method: specwb.Method, target: specwb.Target, sampling: dict, graphs) -> dict:
    """Counts of a decoding step once it has settled: the most of three steps, each counter apart;
    violations of all steps. The first step is eager, the second recorded."""
    device.reset()
    steps = specwb.rounds(
        target, PROMPTS, method, max_new_tokens=60, eos=7, graphs=graphs, **sampling
    )
    most, violations = dict.fromkeys(device.NAMES, 0), 0
    for i in range(6):
        device.reset()
        next(steps)
        counts = device.counts()
        violations += counts["violations"]
        if i >= 3:
            most = {name: max(most[name], counts[name]) for name in most}
    steps.close()
    return most | {"violations": violations}


def counted(about: dict, method: specwb.Method, target: specwb.Target, graphs=None) -> dict:
    """Report the counts of a step, or the error that ended it."""
    drafter = method.drafter
    about |= {name: getattr(drafter, name) for name in ("host_reads", "captured", "staged")}
    try:
        sampling = {"temperature": about["T"], "exact_text": about.get("exact_text", False)}
        counts = measured(method, target, sampling, graphs)
    except Exception as error:
        message = f"{type(error).__name__}: {error} ({device.complaint()})"
        report(**about, error=message.replace("\n", " ")[:400])
        return {}
    report(**about, **counts)
    return counts


class Variants:
    """Every method's variants of ``tests/test_protocol.py``, on the family with every feature."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.host = dtype, tiny.target("everything")
        self.target = moved(self.host, dtype)
        self.draft = moved(tiny.draft("everything"), dtype)

    @cache  # noqa: B019
    def head(self, kind: str) -> nn.Module:
        host = self.host
        if kind == "decision":
            host = tiny.with_draft(host, tiny.draft("everything"))
        made = tiny._untrained(kind, host, torch.zeros(1, 8, dtype=torch.long), 48)[0]
        return made.to(self.dtype).to("cuda").eval().requires_grad_(False)

    def scorer(self) -> nn.Module:
        made = copy.deepcopy(tiny.scorer(self.host)).to("cuda")
        object.__setattr__(made, "table", self.target.backbone.embed)
        return made

    def method(self, key: str, options: dict) -> specwb.Method:
        values = {**protocol.NEEDS.get(key, {}), **options}
        for name, value in values.items():
            if isinstance(value, protocol.Scorer):
                values[name] = self.scorer()
            elif isinstance(value, protocol.Head):
                values[name] = self.head(value.kind)
        if "draft" in specwb.METHODS[key].options:
            values["draft"] = self.draft
        return specwb.method(key, self.target, **values)


def steps(dtype: torch.dtype) -> None:
    variants = Variants(dtype)
    device.endless()
    for i, (key, options) in enumerate(protocol.CASES):
        if i % 2 != (dtype is torch.bfloat16) and (key, options) not in protocol.FIRST:
            continue
        executions: list[dict] = [{}]
        if key == "easyspec" and "execution" not in options:
            executions = [{"execution": way} for way in ("fused", "simulation", "streams")]
        for execution in executions:
            method = variants.method(key, {**options, **execution})
            exact = [(1.0, True)] * (
                method.rule is None and method.exactness is not Exactness.LOSSY
            )
            for temperature, exact_text in [(0.0, False), (1.0, False), *exact]:
                about = {"case": protocol.named(key, {**options, **execution}), "T": temperature}
                about["exact_text"] = exact_text
                if method.drafter.captured:
                    counted({**about, "mode": "graph"}, method, variants.target)
                    device.shortest = method.drafter.staged
                    if device.shortest:
                        counted({**about, "mode": "stopped"}, method, variants.target)
                    device.shortest = False
                if (temperature and not exact_text) or not method.drafter.captured:
                    counted({**about, "mode": "eager"}, method, variants.target, graphs=False)


def rank(folder: str) -> None:
    """Decodings whose attentions are on both ranks, with the target whole and parted over them."""
    device.endless()
    here = ranks.join("cuda", timeout=60.0)
    draft = moved(ranked.deep(), torch.float32)
    whole, methods = moved(tiny.target(), torch.float32), []
    for kind, target in (("whole", whole), ("parted", specwb.load(folder, ranks=here))):
        for name, (options, settings) in ranked.CASES.items():
            about = {"case": f"{name}, {kind} target, rank {here.rank}"}
            about["T"] = settings.get("temperature", 0.0)
            method = specwb.method("easyspec", target, draft=draft, execution="ranks", **options)
            methods.append(method)  # their graphs are there when the group is left
            exchanged = {
                counted({**about, "mode": mode}, method, target, graphs).get("collectives")
                for mode, graphs in (("graph", True), ("eager", False))
            }
            if exchanged in ({0}, {None}) or len(exchanged) > 1:
                report(**about, error=f"collectives of a step, recorded and eager: {exchanged}")
    alone = specwb.method("sps", whole, draft=whole)
    measured(alone, whole, {}, True)
    device.reset()
    ranks.leave()
    if device.counts()["violations"]:
        report(case="leaving", error=device.complaint())
    counted({"case": "after leaving", "T": 0.0, "mode": "graph"}, alone, whole, graphs=True)


def calibrate() -> None:
    """Operations of which it is known whether a driver accepts them in a capture."""
    x = torch.zeros(4, 8, device="cuda")
    ids = torch.zeros(4, dtype=torch.long, device="cuda")
    host = torch.zeros(4, 1, dtype=torch.long)
    accepted: dict[str, Callable] = {
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
    refused: dict[str, Callable] = {
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
    for name, operation in (accepted | refused).items():
        before, graph, error = torch.cuda.current_stream(), torch.cuda.CUDAGraph(), None
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                operation()
        except (RuntimeError, ValueError) as refusal:
            error = refusal
        finally:
            torch.cuda.set_stream(before)
        if (error is None) == (name in accepted):
            report(case=name)
        else:
            report(case=name, error=f"{error or 'not refused'}")


if __name__ == "__main__":
    part, *arguments = sys.argv[1:]
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if part in dtypes:
        steps(dtypes[part])
    else:
        {"calibrate": calibrate, "rank": rank}[part](*arguments)
