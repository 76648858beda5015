"""Lenses: the view of a step that only one family of methods has, of its drafter's input.

A lens is read while the drafter proposes, because a step later its state is another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import Any

from torch import Tensor

from specwb.core.flow import Draft, State
from specwb.drafters.base import Drafter
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.easyspec import EasyDrafter
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.kangaroo import DynamicKangaroo, KangarooDrafter
from specwb.drafters.level import LevelDrafter, Levels
from specwb.drafters.medusa import MedusaDrafter
from specwb.drafters.pld import PromptLookup
from specwb.models.eagle import Eagle3Head
from specwb.models.path import KIND
from specwb.models.target import Target
from specwb.show.scope.trace import short
from specwb.theory.analysis.layer_parallel import timeline

HEADS = 5  # tokens of a head's list
CHOICES = 6  # candidates of a place of a lattice

Lens = dict[str, Any]


class Watcher:
    """Collects what a drafter looked at: ``lenses``, one a step, None where the method has none.
    ``drafter`` is a copy that reports here; it drafts the same."""

    def __init__(self, drafter: Drafter, target: Target) -> None:
        self.lenses: list[Lens | None] = []
        self.target = target
        self._sure: list[float] = []
        kind = type(drafter)
        parts: dict[str, Callable] = {"propose": self._propose(kind)}
        if isinstance(drafter, Levels):
            parts["_sureness"] = self._sureness(kind)
        # a subclass: the engine copies drafters, and a copy keeps its class
        self.drafter = copy.copy(drafter)
        self.drafter.__class__ = type(kind.__name__, (kind,), parts)

    def _propose(self, kind: type[Drafter]) -> Callable:
        def propose(drafter: Any, state: State, noise: Any) -> Draft:
            self._sure.clear()
            before = before_draft(drafter, state)
            draft = kind.propose(drafter, state, noise)
            self.lenses.append(lens(drafter, state, draft, self.target, self._sure, before))
            return draft

        return propose

    def _sureness(self, kind: type) -> Callable:
        def sureness(drafter: Any, *arguments: Any) -> Tensor | None:
            sure = kind._sureness(drafter, *arguments)  # type: ignore[attr-defined]
            if sure is not None:
                self._sure.append(short(float(sure[0])))
            return sure

        return sureness


def before_draft(drafter: Drafter, state: State) -> Lens | None:
    """The part of a lens that has to be read before the drafter changes it."""
    if isinstance(drafter, MedusaDrafter) and drafter.tree.D and state.features is not None:
        return _medusa(drafter, state)
    return None


def lens(
    drafter: Drafter,
    state: State,
    draft: Draft,
    target: Target,
    sure: list[float],
    before: Lens | None,
) -> Lens | None:
    """The drafter's input for row 0; ``kind`` names the picture that it is for. ``sure`` is how
    sure it was, by level that it was asked at; ``before`` what :func:`before_draft` read."""
    if isinstance(drafter, MedusaDrafter):
        return before
    if isinstance(drafter, FalconDrafter):
        return _falcon(drafter, draft)
    if isinstance(drafter, EagleDrafter):
        return _eagle(drafter, state)
    if isinstance(drafter, KangarooDrafter):
        return _kangaroo(drafter, draft, target, sure)
    if isinstance(drafter, DiffusionDrafter):
        return _lattice(drafter) if drafter.scorer is None else _walks(drafter, state, draft)
    if isinstance(drafter, EasyDrafter):
        return _easyspec(drafter, draft)
    if isinstance(drafter, PromptLookup):
        return _lookup(drafter, state, draft)
    if isinstance(drafter, LevelDrafter):
        return _draft_model(drafter, draft, target, sure)
    return None


def _words(state: State, count: int) -> list[int]:
    """The last tokens of row 0's text, the pending one last."""
    n = int(state.length[0])
    return state.tokens[0, max(0, n - count) : n].tolist()


def _medusa(drafter: MedusaDrafter, state: State) -> Lens:
    """The heads' lists: all of them look at one state, that of the token before the pending one."""
    assert state.features is not None
    n = int(state.length[0])
    at = max(n - 2, 0)
    rows = drafter._logits(state.features[:1, at])[0].double().softmax(-1)
    best = rows.topk(min(HEADS, rows.shape[-1]), -1)
    tokens = best.indices if drafter.words is None else drafter.words[best.indices]
    heads = [
        [[token, short(p)] for token, p in zip(ids, ps, strict=True)]
        for ids, ps in zip(tokens.tolist(), best.values.tolist(), strict=True)
    ]
    return {"kind": "medusa", "text": _words(state, 4), "heads": heads if n > 1 else []}


def _eagle(drafter: EagleDrafter, state: State) -> Lens:
    """The head's input: pairs of a state of the target and the token after it; below the text
    its own states."""
    third = isinstance(drafter.head, Eagle3Head)
    return {
        "kind": "eagle",
        "text": _words(state, 4),
        "features": list(drafter.features),
        "layers": len(drafter.head.layers) if hasattr(drafter.head, "layers") else 1,
        "fused": third,
        "known": int(drafter.words.numel()) if drafter.words is not None else None,
    }


def _falcon(drafter: FalconDrafter, draft: Draft) -> Lens:
    """The pass that made each node, the nodes of each block, and the slots that each slot sees."""
    blocks = getattr(drafter, "blocks", None)
    found: Lens = {"kind": "falcon", "k": drafter.k, "align": drafter.align, "passes": None}
    if blocks is None:
        return found
    found["passes"] = [
        {"blocks": [list(nodes) for nodes in one.nodes] if b else [], "levels": one.levels}
        for b, one in enumerate(blocks.passes)
    ]
    found["made"] = [list(place) for place in blocks.places]
    found["sight"] = [[int(x) for x in row] for row in blocks.sight()[0, :, 1:-1].tolist()]
    return found


def _kangaroo(drafter: KangarooDrafter, draft: Draft, target: Target, sure: list[float]) -> Lens:
    """The layer of its exit, its settings, and its confidence by level."""
    eta = drafter.length.confidence if drafter.length is not None else 0.0
    if isinstance(drafter, DynamicKangaroo):
        eta = 2.718281828459045**drafter.least_score
    return {
        "kind": "kangaroo",
        "exit": drafter.exit,
        "layers": len(target.backbone.layers),
        "adapter": type(drafter.head).__name__ if drafter.stack is None else "attention",
        "cache": drafter.stack is not None,
        "eta": short(eta),
        "sure": list(sure),
        "most": drafter.limits.depth,
    }


def _lattice(drafter: DiffusionDrafter) -> Lens | None:
    """The candidates of every place with both scores, and the paths that the beam kept.

    r of a candidate is the proxy's probability behind the best path's tokens before it; along the
    other paths each has its own.
    """
    searched = [one for one in drafter.searched if one[0] == 0 and one[3]]
    if not searched:
        return None
    _, lattice, context, paths = searched[0]
    proxy, best = drafter.proxies[0], paths[0]
    reach = max(proxy.order - 1, 0)

    def behind(tokens: tuple[int, ...]) -> tuple[int, ...]:
        whole = (*context, *tokens)
        return whole[len(whole) - reach :] if reach else ()

    def logr(i: int, ranks: list[int]) -> list[float]:
        return proxy.scores(behind(best.tokens[:i]), [lattice.ids[i][rank] for rank in ranks])

    along = [
        {
            "tokens": list(path.tokens),
            "ranks": list(path.ranks),
            "logq": [short(x) for x in path.logq],
            "logr": [
                short(proxy.scores(behind(path.tokens[:i]), [token])[0])
                for i, token in enumerate(path.tokens)
            ],
            "score": short(path.mean),
        }
        for path in paths
    ]
    return {
        "kind": "lattice",
        "lam": drafter.lam,
        "order": proxy.order,
        "text": list(context),
        "places": _places(lattice.ids, lattice.logq, along, logr),
        "paths": along,
        "forwards": drafter.steps,
    }


def _places(
    ids: list[list[int]],
    logq: list[list[float]],
    along: list[dict[str, Any]],
    logr: Callable[[int, list[int]], list[float]],
) -> list[dict[str, Any]]:
    """The candidates that are shown at every place: the likeliest, and those on a path."""
    places = []
    for i, (tokens, scores) in enumerate(zip(ids, logq, strict=False)):
        on = {path["ranks"][i] for path in along if i < len(path["ranks"])}
        kept = sorted({*range(min(CHOICES, len(tokens))), *on})
        places.append({
            "ranks": kept,
            "tokens": [tokens[rank] for rank in kept],
            "logq": [short(scores[rank]) for rank in kept],
            "logr": [short(x) for x in logr(i, kept)],
            "more": len(tokens) - len(kept),
        })  # fmt: skip
    return places


def _walks(drafter: DiffusionDrafter, state: State, draft: Draft) -> Lens | None:
    """As :func:`_lattice`, of walks by learned scores: r of a candidate is its probability behind
    the token that the first walk took before it."""
    if drafter.walked is None or not draft.tree.D:
        return None
    assert drafter.scorer is not None
    ids, logq = (x[0].tolist() for x in drafter.walked[:2])
    logr = drafter.walked[2][0].double().log_softmax(-1).tolist()
    parents, tokens, valid = draft.tree.host[0], draft.tokens[0].tolist(), draft.valid[0].tolist()
    inner = {parents[i] for i in range(1, draft.tree.n) if valid[i]}
    along: list[dict[str, Any]] = []
    for leaf in (i for i in range(1, draft.tree.n) if valid[i] and i not in inner):
        path: list[int] = []
        node = leaf
        while node > 0:
            path.insert(0, tokens[node])
            node = parents[node]
        # a drawn token may be none of the candidates: the walk is shown up to it
        known = takewhile(lambda one: one[1] in one[0], zip(ids, path, strict=False))
        ranks = [row.index(token) for row, token in known]
        if not ranks:
            continue
        path = path[: len(ranks)]
        steps = [logr[i][a][b] for i, (a, b) in enumerate(pairwise([0, *ranks]))]
        along.append({
            "tokens": path,
            "ranks": ranks,
            "logq": [short(logq[i][rank]) for i, rank in enumerate(ranks)],
            "logr": [short(x) for x in steps],
            "score": short(sum(steps) / len(steps)),
        })  # fmt: skip
    if not along:
        return None
    before = [0, *along[0]["ranks"][:-1]]

    def first(i: int, ranks: list[int]) -> list[float]:
        return [logr[i][before[i]][rank] for rank in ranks]

    return {
        "kind": "lattice",
        "learned": KIND,
        "lam": 0.0,
        "order": 2,
        "text": _words(state, 1),
        "places": _places(ids[: len(before)], logq, along, first),
        "paths": along,
        "forwards": drafter.steps,
    }


def _easyspec(drafter: EasyDrafter, draft: Draft) -> Lens:
    """The layers that run side by side, and a step's timeline in attentions and MLPs: each counts
    1, exchanges and the head nothing, and there are as many devices as the widest group needs."""
    groups = tuple(tuple(group) for group in drafter.groups.layers)
    devices, depth = max(map(len, groups)), max(draft.tree.D, 1)
    spans = timeline(groups, 1, 1, 0, devices, depth, calibrate=drafter.calibrate)
    return {
        "kind": "easyspec",
        "groups": [list(group) for group in groups],
        "devices": devices,
        "calibrate": drafter.calibrate,
        "depth": depth,
        "spans": [
            [span.device, short(span.start), short(span.stop), span.kind, span.layer, span.step]
            for span in spans
            if span.kind in ("attention", "mlp")
        ],
        "sequential": 2 * sum(map(len, groups)) * depth,
    }


def _lookup(drafter: PromptLookup, state: State, draft: Draft) -> Lens:
    """The earlier place in the text from which the last tokens were copied."""
    n = int(state.length[0])
    text = state.tokens[0, :n].tolist()
    copied = [
        token
        for token, ok in zip(draft.tokens[0].tolist()[1:], draft.valid[0].tolist()[1:], strict=True)
        if ok
    ]
    found: Lens = {"kind": "lookup", "text": text[-64:], "begins": n - len(text[-64:])}
    for size in range(min(drafter.ngram, n - 1), 0, -1):
        tail = text[n - size :]
        for at in range(n - size):
            goes_on = text[at + size : at + size + len(copied)]
            if copied and text[at : at + size] == tail and goes_on == copied:
                return found | {"at": at, "ngram": size, "copied": len(copied)}
    return found | {"at": None, "ngram": drafter.ngram, "copied": 0}


def _draft_model(drafter: LevelDrafter, draft: Draft, target: Target, sure: list[float]) -> Lens:
    """The two models' sizes, and where drafting stopped."""

    def size(model: Target) -> dict[str, Any]:
        count = sum(weight.numel() for weight in model.model.parameters())
        return {"name": model.name, "layers": len(model.backbone.layers), "weights": count}

    length = drafter.length
    return {
        "kind": "model",
        "draft": size(drafter.draft),
        "target": size(target),
        "forwards": draft.tree.D,
        "threshold": short(length.confidence) if length is not None else None,
        "sure": list(sure),
        "most": drafter.limits.depth,
    }
