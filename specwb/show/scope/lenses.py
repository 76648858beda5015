"""Partes: the view of a step that only one family of methods has, of its drafter's input.

A lens is read while the drafter proposes, because a step later its state is another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from specwb.core.flow import Draft, State
from specwb.drafters.admission import Admission
from specwb.drafters.base import Drafter
from specwb.drafters.copying import Copying
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.kangaroo import DynamicKangaroo, KangarooDrafter
from specwb.drafters.level import LevelDrafter, Levels
from specwb.drafters.medusa import MedusaDrafter
from specwb.drafters.pld import PromptLookup
from specwb.models.eagle import Eagle3Head
from specwb.models.target import Target
from specwb.show.scope.trace import Part, short

HEADS = 5  # tokens of a head's list
CHOICES = 6  # candidates of a place of a lattice


class Look(NamedTuple):
    """What a lens reads besides its drafter."""

    state: State
    draft: Draft
    target: Target
    sure: list[float]  # how sure the drafter was, by level that it was asked at

    def words(self, count: int) -> list[int]:
        """The last tokens of row 0's text, the pending one last."""
        n = int(self.state.length[0])
        return self.state.tokens[0, max(0, n - count) : n].tolist()


def watched(drafter: Drafter, target: Target) -> tuple[Drafter, list[Part | None]]:
    """A copy of a drafter, which drafts the same, and the list to which it adds a lens for each
    step, None where its method has none."""
    kind: Any = type(drafter)
    lenses: list[Part | None] = []
    sure: list[float] = []

    def propose(self: Any, state: State, noise: Any) -> Draft:
        sure.clear()
        draft = kind.propose(self, state, noise)
        lenses.append(_of(self, Look(state, draft, target, list(sure))))
        return draft

    def sureness(self: Any, *arguments: Any) -> Tensor | None:
        level = kind._sureness(self, *arguments)
        if level is not None:
            sure.append(short(float(level[0])))
        return level

    parts: Part = {"propose": propose}
    if isinstance(drafter, Levels):
        parts["_sureness"] = sureness
    # a subclass: the engine copies drafters, and a copy keeps its class
    twin = copy.copy(drafter)
    twin.__class__ = type(kind.__name__, (kind,), parts)
    return twin, lenses


def _of(drafter: Drafter, look: Look) -> Part | None:
    view = next((view for cls, view in VIEWS.items() if isinstance(drafter, cls)), None)
    return view(drafter, look) if view else None


def _copying(drafter: Copying, look: Look) -> Part | None:
    """Where row 0's draft was copied from, otherwise the view of the drafter behind."""
    lens = _lookup(drafter, look)
    return lens if lens["at"] is not None else _of(drafter.behind, look)


def _medusa(drafter: MedusaDrafter, look: Look) -> Part | None:
    """The heads' lists: all of them see one state, that of the token before the pending one."""
    if not drafter.tree.D or look.state.features is None:
        return None
    n = int(look.state.length[0])
    if n < 2:
        return {"kind": "medusa", "text": look.words(4), "heads": []}
    rows = drafter._logits(look.state.features[:1, n - 2])[0].double().softmax(-1)
    best = rows.topk(min(HEADS, rows.shape[-1]), -1)
    tokens = best.indices if drafter.words is None else drafter.words[best.indices]
    heads = [
        [[token, short(p)] for token, p in zip(ids, ps, strict=True)]
        for ids, ps in zip(tokens.tolist(), best.values.tolist(), strict=True)
    ]
    return {"kind": "medusa", "text": look.words(4), "heads": heads}


def _eagle(drafter: EagleDrafter, look: Look) -> Part:
    """The head's input: pairs of a state of the target and the token after it; below the text
    its own states."""
    return {
        "kind": "eagle",
        "text": look.words(4),
        "features": list(drafter.features),
        "fused": isinstance(drafter.head, Eagle3Head),
        "known": int(drafter.words.numel()) if drafter.words is not None else None,
    }


def _falcon(drafter: FalconDrafter, look: Look) -> Part:
    """The nodes of each block by pass, and the slots that each slot sees."""
    lens: Part = {"kind": "falcon", "k": drafter.k}
    if (blocks := getattr(drafter, "blocks", None)) is not None:
        nodes = [list(map(list, each.nodes)) for each in blocks.passes]
        nodes[0] = []  # the first pass reads the text
        lens["passes"] = [{"blocks": block} for block in nodes]
        lens["sight"] = [[int(x) for x in row] for row in blocks.sight()[0, :, 1:-1].tolist()]
    return lens


def _kangaroo(drafter: KangarooDrafter, look: Look) -> Part:
    """The layer of its exit, its threshold eta, and its confidence by level."""
    eta = drafter.length.confidence if drafter.length is not None else 0.0
    if isinstance(drafter, DynamicKangaroo):
        eta = 2.718281828459045**drafter.least_score
    return {
        "kind": "kangaroo",
        "exit": drafter.exit,
        "layers": len(look.target.backbone.layers),
        "cache": drafter.stack is not None,
        "eta": short(eta),
        "sure": look.sure,
    }


def _lattice(drafter: DiffusionDrafter, look: Look) -> Part | None:
    """The candidates of every place with both scores, and the paths that the beam kept.

    r of a candidate is the proxy's probability behind the best path's tokens before it; along the
    other paths each token has its own.
    """
    searched = next((entry for entry in drafter.searched if entry[0] == 0 and entry[3]), None)
    if searched is None:
        return None
    _, lattice, context, paths = searched
    proxy = drafter.proxies[0]

    def log_r(before: tuple[int, ...], candidates: list[int]) -> list[float]:
        text = (*context, *before)
        reach = min(max(proxy.order - 1, 0), len(text))
        return [short(x) for x in proxy.scores(text[len(text) - reach :], candidates)]

    places = []
    for i, (ids, log_q) in enumerate(zip(lattice.ids, lattice.logq, strict=False)):
        on_paths = {path.ranks[i] for path in paths if i < len(path.ranks)}
        ranks = sorted({*range(min(CHOICES, len(ids))), *on_paths})
        tokens = [ids[rank] for rank in ranks]
        scores = [short(log_q[rank]) for rank in ranks]
        behind = log_r(paths[0].tokens[:i], tokens)
        places.append({"ranks": ranks, "tokens": tokens, "logq": scores, "logr": behind})
    return {
        "kind": "lattice",
        "lam": drafter.lam,
        "order": proxy.order,
        "text": list(context),
        "places": places,
        "paths": [
            {
                "tokens": list(path.tokens),
                "ranks": list(path.ranks),
                "logq": [short(x) for x in path.logq],
                "logr": [log_r(path.tokens[:i], [x])[0] for i, x in enumerate(path.tokens)],
                "score": short(path.mean),
            }
            for path in paths
        ],
    }


def _lookup(drafter: PromptLookup | Copying, look: Look) -> Part:
    """The earlier place in the text from which the draft was copied."""
    n = int(look.state.length[0])
    text = look.words(n)
    tokens, valid = look.draft.tokens[0, 1:], look.draft.valid[0, 1:]
    copied = tokens[valid].tolist()
    lens: Part = {"kind": "lookup", "text": text[-64:], "begins": n - len(text[-64:]), "at": None}
    for size in range(min(drafter.ngram, n - 1), drafter.least - 1, -1):
        for at in range(n - size):
            block = text[at : at + size + len(copied)]
            if copied and block == text[n - size :] + copied:
                return lens | {"at": at, "ngram": size, "copied": len(copied)}
    return lens


def _draft_model(drafter: LevelDrafter, look: Look) -> Part:
    """The two models' sizes, and where drafting stopped."""

    def size(model: Target) -> Part:
        count = sum(weight.numel() for weight in model.model.parameters())
        return {"layers": len(model.backbone.layers), "weights": count}

    length = drafter.length
    return {
        "kind": "model",
        "draft": size(drafter.draft),
        "target": size(look.target),
        "forwards": look.draft.tree.D,
        "threshold": short(length.confidence) if length is not None else None,
        "sure": look.sure,
    }


VIEWS: dict[type, Callable[[Any, Look], Part | None]] = {
    MedusaDrafter: _medusa,
    FalconDrafter: _falcon,
    EagleDrafter: _eagle,
    KangarooDrafter: _kangaroo,
    DiffusionDrafter: _lattice,
    PromptLookup: _lookup,
    Copying: _copying,
    Admission: lambda drafter, look: _of(drafter.behind, look),
    LevelDrafter: _draft_model,
}
"""Class of drafters -> its lens; of a drafter's classes the first one counts."""
