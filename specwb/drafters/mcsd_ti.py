"""Improved multi-candidate decoding: a decision model that stops drafting, and candidates that the target draws itself."""

from __future__ import annotations

import torch
from torch import Tensor

from specwb.drafters.base import Drafter, chain
from specwb.drafters.heads import check_place
from specwb.drafters.length import Length
from specwb.drafters.level import DRAWS, LevelDrafter
from specwb.drafters.stopping import Confidence, Decision, Entropy, Top
from specwb.flow import Draft, Exactness, Law, Scores, State, Verdict
from specwb.models.decision import KINDS, DecisionModel, load_decision
from specwb.models.load import draft_model
from specwb.models.target import Target
from specwb.options import MethodError, shape, share, spell, whole
from specwb.probability import Sampling, draw_without_replacement
from specwb.tree import Tree

STOPS = (*KINDS, "top", "entropy", "none")
THRESHOLD = 0.4  # the paper's


class SeveralRoots(LevelDrafter):
    """Target-initialised candidates with several roots: LOSSY. The first level of the tree are ``roots`` tokens of the law that the target said after
    the last kept token (at T > 0 drawn without replacement, at T = 0 its best), the draft model goes on below each, and the one with the longest
    accepted path stays (:class:`specwb.verify.Longest`).

    The loop's pending token is the last kept one, which the target has scored already; it is scored once more as the root of the tree.

    Source: Lu et al. 2024, arXiv 2409.10644, and its code; see the rule for where it differs. There the pending token is not scored again.
    """

    exactness = Exactness.LOSSY
    unasked = 1

    def law(self, sampling: Sampling) -> Law:
        return Law.ROOTS

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        pending = state.tokens.gather(1, (state.known - 1)[:, None])
        root = Draft(chain(0).to(target.device), pending, torch.ones_like(pending, dtype=torch.bool), Law.POINT)
        scores = target.score(state, root)
        self.ahead = scores.logits[:, 0].clone() if state.sampling.greedy else scores.p(torch.zeros_like(state.known))

    def _children(
        self, logits: Tensor, d: int, sampling: Sampling, u: Tensor | None, used: int, race: Tensor | None, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        if d:
            return super()._children(logits, d, sampling, u, used, race, q)
        k = self.tree.widths[0]
        if u is None:
            children = self.ahead.topk(k, -1).indices[:, None]
            return children, torch.ones_like(children, dtype=torch.bool)
        q.append(self.ahead[:, None])
        return draw_without_replacement(self.ahead[:, None], u[:, used : used + k].view(-1, 1, k))

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(state, draft, verdict, scores)
        assert verdict.ahead is not None
        self.ahead.copy_(verdict.ahead)


def mcsd_ti(
    target: Target, *, draft=None, tree=None, stop: str = "soft", threshold: float = THRESHOLD, head=None, roots: int = 1, lossy: bool = False,
    draw: str = "without",
) -> Drafter:  # fmt: skip
    """Improved MCSD: a tree that is cut, at a depth of its own every round, where a trained model does not expect its tokens to be accepted.

    ``tree``: the largest, as for mcsd; default 4-1-1-1-1, four chains. ``stop``: ``soft`` or ``hard``, the two nets of the decision model ``head`` (a
    folder; default the target's own); ``top``, the draft's largest probability; ``entropy``, exp(-H); ``none``, always the whole tree. A level
    follows while any node's value is at least ``threshold``. ``draw``: as for mcsd.

    ``roots``: so many tokens drawn by the target begin the tree, each with ``tree`` below it (default 1-1-1-1-1), and the one that is gone on from
    best stays. One is the closing token, which is lossless; several change the output: LOSSY, only with ``lossy=true``.
    """
    key = "mcsd_ti"
    if stop not in STOPS:
        raise MethodError(f"{key}: stop must be {', '.join(STOPS)}, got {stop!r}")
    if not isinstance(lossy, bool):
        raise MethodError(f"{key}: lossy must be true or false, got {lossy!r}")
    if whole(f"{key}: roots", roots) > 1 and not lossy:
        raise MethodError(
            f"{key}: several roots change the output's law (the one that the draft goes on from best stays); say lossy=true to have them"
        )
    if draw not in DRAWS or draw == "coupled":
        raise MethodError(f"{key}: draw must be one of {', '.join(d for d in DRAWS if d != 'coupled')}, got {draw!r}")
    threshold = share(f"{key}: threshold", threshold)
    if stop == "none" and threshold != THRESHOLD:
        raise MethodError(f"{key}: threshold has no effect with stop=none")
    chosen = shape(key, tree if tree is not None else (4, 1, 1, 1, 1) if roots == 1 else (1, 1, 1, 1, 1))
    if not chosen.in_level_order or chosen.D < 1:
        raise MethodError(f"{key} drafts level by level: give one tree for all rows, of at least one candidate, its nodes in level order")
    if max(chosen.K, roots) > target.vocabulary:
        raise MethodError(f"{key}: {max(chosen.K, roots)} children a node but the vocabulary has {target.vocabulary} tokens")
    model = draft_model(target, draft)
    sure = sureness(key, stop, target, model, head)
    if roots == 1:
        length = Length(chosen.D, confidence=threshold) if sure else None
        return LevelDrafter(model, chosen, draw, length, sure)
    if draw not in ("without", "with"):
        raise MethodError(f"{key}: below several roots children are drawn without or with replacement, got draw={draw!r}")
    if Tree.branching(*chosen.widths).host != chosen.host:
        raise MethodError(f"{key}: below several roots give children a node by level, such as 2-1-1, got {spell(chosen)}")
    whole_tree = Tree.branching(roots, *chosen.widths)
    return SeveralRoots(model, whole_tree, draw, Length(whole_tree.D, confidence=threshold) if sure else None, sure)


def sureness(key: str, stop: str, target: Target, draft: Target, head: object = None) -> Confidence | None:
    """What ``stop`` compares with its threshold.

    Raises:
        MethodError: no decision model, or one for another draft.
    """
    if stop in KINDS:
        return Decision(decision_model(key, target, draft, head), stop, draft.backbone)
    if head is not None:
        raise MethodError(f"{key}: head is the decision model of stop=soft or hard; stop={stop} has none")
    return {"top": Top(), "entropy": Entropy(), "none": None}[stop]


def decision_model(key: str, target: Target, draft: Target, given: object = None) -> DecisionModel:
    """The one that was given, named, or lies beside the target."""
    if isinstance(given, DecisionModel):
        if given.hidden != draft.backbone.config.hidden_size:
            raise MethodError(
                f"{key}: the decision model reads {given.hidden} numbers, {draft.name!r} has hidden size {draft.backbone.config.hidden_size}"
            )
        check_place(key, draft, given)
        return given
    place = given if given is not None else target.own_head("decision")
    if place is None:
        raise MethodError(f"{target.name!r} has no decision model of its own; name one with head= (specwb train decision makes one), or stop=top")
    return load_decision(str(place), target, draft)
