"""Tiny deep drafts; and several ranks that draft with one and write what they saw: forks of this
process, each in the environment that torchrun would make."""

from __future__ import annotations

import copy
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tiny
import torch
from torch import nn

import specwb
from specwb.models import ranks
from specwb.models.ranks import Ranks, RanksError

LAYERS = 6
PROMPTS = tiny.PROMPTS


def deepened(
    model: nn.Module, layers: int = LAYERS, small: float = 0.1, noise: float = 0.01
) -> nn.Module:
    """A model of ``layers`` layers that is often right about ``model``: its own layers, a little
    wrong, with others between and behind them that say little; so the order of the layers matters,
    and not too much."""
    config = copy.deepcopy(model.config)
    own, config.num_hidden_layers = config.num_hidden_layers, layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[0]] * layers
    torch.manual_seed(11)
    made = type(model)(config).eval()
    every = layers // own
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.mul_(small)
            layer.mlp.down_proj.weight.mul_(small)
        for i, layer in enumerate(model.model.layers):
            made.model.layers[i * every].load_state_dict(layer.state_dict())
        for name in ("embed_tokens", "norm"):
            getattr(made.model, name).load_state_dict(getattr(model.model, name).state_dict())
        made.lm_head.load_state_dict(model.lm_head.state_dict())
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight) * noise)
    return made


@cache
def deep(kind: str = "llama") -> specwb.Target:
    """Of :func:`tiny.target`."""
    with torch.random.fork_rng(devices=[]):
        return specwb.load(deepened(tiny.target(kind).model))


HOT = {"temperature": 1.0, "seed": [3, 4, 5]}
SIZE = 4
# method and decoding: a rank with nothing to run, MLPs side by side, no calibration
CASES: dict[str, tuple[dict, dict]] = {
    "tree": ({"n": 5, "tree": (2, 2, 1)}, HOT),
    "all at once": ({"groups": "0-5", "gamma": 3, "mlp": "parallel"}, {}),
    "not calibrated": ({"groups": "0-5", "gamma": 3, "calibrate": False}, HOT),
}


def decoded(
    target: specwb.Target, case: str, execution: str, after: Callable | None = None
) -> dict[str, Any]:
    """Texts and drafts of one case; ``after(state, drafter)`` is called with what every round
    left."""
    options, settings = CASES[case]
    method = specwb.method("easyspec", target, draft=deep("llama"), execution=execution, **options)
    found: dict[str, Any] = {"drafts": [], "q": [], "accepted": []}
    opened: list[Any] = []
    kind = type(method.drafter)
    real = kind.open

    def open_(self: Any, *given: Any) -> None:
        opened.append(self)
        real(self, *given)

    kind.open = open_  # type: ignore[method-assign]
    try:
        for step in specwb.rounds(target, PROMPTS, method, max_new_tokens=9, **settings):
            found["drafts"].append(step.draft.tokens.tolist())
            found["accepted"].append(step.verdict.accepted.tolist())
            if step.draft.q is not None:
                found["q"].append(step.draft.q.clone())
            if after:
                after(step, opened[0])
    finally:
        kind.open = real  # type: ignore[method-assign]
    found["texts"] = [
        step.state.tokens[row, : int(step.state.length[row])].tolist()
        for row in range(len(PROMPTS))
    ]
    return found


def work(here: Ranks, folder: Path) -> dict[str, Any]:
    """Everything that a rank can say while the others are well."""
    target = specwb.load(folder / "target", ranks=here)
    seen: dict[str, Any] = {
        "heads": (target.backbone.heads, target.backbone.kv_heads),
        "decoded": {},
        "held": {},
        "off": {},
    }
    fresh = copy.deepcopy(deep("llama").model)  # not parted, not grouped
    plain = specwb.load(fresh).backbone
    for case in CASES:
        held: dict[int, int] = {}
        off = [0.0]

        def after(
            step: Any, drafter: Any, held: dict[int, int] = held, off: list[float] = off
        ) -> None:
            held.update(drafter.groups.held)
            assert drafter.cache.data.shape[0] == max(1, len(held))
            for row in range(len(PROMPTS)):
                length = int(step.length[row])
                exact = tiny.recomputed(plain, step.state.tokens[row, :length])
                off += [
                    float((drafter.cache.data[at, row, :length] - exact[i]).abs().max())
                    for i, at in held.items()
                ]

        seen["decoded"][case] = decoded(target, case, "ranks", after)
        seen["held"][case], seen["off"][case] = sorted(held), max(off)
    try:
        specwb.method("easyspec", target, draft=deep("llama"), execution="ranks", n=here.size - 1)
    except specwb.MethodError as error:
        seen["refused"] = str(error)
    try:
        specwb.method("easyspec", target, draft=target, execution="ranks", groups="0-1")
    except specwb.MethodError as error:
        seen["parted draft"] = str(error)
    try:
        specwb.load(folder / "incomplete", ranks=here)
    except specwb.LoadError as error:
        seen["incomplete"] = str(error)
    projection = target.model.model.layers[0].self_attn.k_proj.weight.to_local()
    seen["stored once"] = (
        projection.untyped_storage().data_ptr()
        == target.backbone.layers[0].qkv.untyped_storage().data_ptr()
    )
    with torch.no_grad():
        seen["library"] = target.model(torch.tensor([PROMPTS[0]])).logits
    return seen


def end(here: Ranks) -> str:
    """The last rank dies in the middle of a round; what that is for the others."""
    from specwb.models.ranks import RankGroups

    real, calls = RankGroups.attend, [0]

    def attend(self: Any, *given: Any) -> Any:
        calls[0] += 1
        if here.rank == here.size - 1 and calls[0] == 40:
            os._exit(3)
        return real(self, *given)

    RankGroups.attend = attend  # type: ignore[method-assign]
    try:
        with here.answered():
            decoded(tiny.target(), "tree", "ranks")
    except RanksError as error:
        return str(error)
    return "nothing was seen"


def rank(folder: Path, number: int, ports: list[int]) -> None:
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(SIZE),
        "MASTER_ADDR": "127.0.0.1",
    }
    os.environ["MASTER_PORT"] = str(ports[0])
    seen: dict[str, Any] = {}
    try:
        here = ranks.join("cpu", timeout=60.0)
        assert ranks.join("cpu") is here
        seen = work(here, folder)
        ranks.leave()
        assert ranks.here() is None
        torch.save(seen, folder / f"{number}.pt")
        os.environ["MASTER_PORT"] = str(ports[1])
        began = time.monotonic()
        seen["ended"] = end(ranks.join("cpu", timeout=4.0))
        seen["waited"] = time.monotonic() - began
    except BaseException:
        seen["failed"] = traceback.format_exc()
    torch.save(seen, folder / f"{number}.pt")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(folder: Path) -> None:
    """Every rank writes into the folder, ``RANK.pt``."""
    deep("llama")
    tiny.target("llama")
    ports, children = [free_port(), free_port()], []
    for number in range(SIZE):
        child = os.fork()
        if not child:
            try:
                signal.alarm(300)
                rank(folder, number, ports)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
