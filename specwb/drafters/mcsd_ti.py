"""Improved multi-candidate decoding: a decision model that stops drafting, and candidates that the
target draws itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from specwb.core.flow import Draft, Exactness, Scheme, Scores, State, Verdict
from specwb.core.options import DraftModel, MethodError, Option, spell
from specwb.core.probability import Sampling, draw_without_replacement
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter, Entry, Preset, chain
from specwb.drafters.heads import check_place
from specwb.drafters.length import Length
from specwb.drafters.level import DRAWS, Drafted, LevelDrafter, drawable
from specwb.drafters.stopping import Confidence, DecisionConfidence, Entropy, Top
from specwb.models.decision import KINDS, DecisionModel, load_decision
from specwb.models.load import draft_model
from specwb.models.target import Target


class SeveralRoots(LevelDrafter):
    """Target-initialised candidates with several roots: LOSSY.

    The first level of the tree consists of ``roots`` tokens of the target's distribution after the
    last kept token (at T > 0 drawn without replacement, at T = 0 the best ones). The draft model
    continues below each, and the one with the longest accepted path stays
    (:class:`specwb.rules.Longest`).

    The pending token is the last kept one, which the target has scored already; it is scored once
    more as the root of the tree.

    Source: Lu et al. 2024, arXiv 2409.10644, and its code, which does not score the pending token
    again; the rule's docstring gives the other differences.
    """

    exactness = Exactness.LOSSY
    unasked = 1

    def scheme(self, sampling: Sampling) -> Scheme:
        return Scheme.ROOTS

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        pending = state.pending
        valid = torch.ones_like(pending, dtype=torch.bool)
        root = Draft(chain(0).to(target.device), pending, valid, Scheme.POINT)
        scores = target.score(state, root)
        self.next_distribution = (
            scores.logits[:, 0].clone()
            if state.sampling.greedy
            else scores.p(torch.zeros_like(state.length))
        )

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), "ahead": self.next_distribution}

    def _children(
        self, logits: Tensor, d: int, sampling: Sampling, drafted: Drafted, q: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        if d:
            return super()._children(logits, d, sampling, drafted, q)
        if drafted.u is None:
            children = self.next_distribution.topk(self.tree.widths[0], -1).indices[:, None]
            return children, torch.ones_like(children, dtype=torch.bool)
        q.append(self.next_distribution[:, None])
        return draw_without_replacement(q[-1], self.columns(drafted, 0))

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(state, draft, verdict, scores)
        assert verdict.next_distribution is not None
        self.next_distribution.copy_(verdict.next_distribution)


LARGEST = Tree.branching(4, 1, 1, 1, 1)
"""The tree of one root that is cut, where none is given."""


@dataclass(frozen=True)
class Options:
    draft: DraftModel = None
    tree: Annotated[
        Tree | None,
        Option(
            "the largest tree; default 4-1-1-1-1, four chains, or with several roots 1-1-1-1-1 "
            "below each root"
        ),
    ] = None
    stop: Annotated[
        str,
        Option(
            "the value compared with threshold: soft or hard, the two nets of the decision model; "
            "top, the draft's largest probability; entropy, exp(-H); none, always the whole tree",
            choices=(*KINDS, "top", "entropy", "none"),
        ),
    ] = "soft"
    threshold: Annotated[
        float,
        Option("draft another level while any node's value is at least this", within="[0, 1]"),
    ] = 0.4  # the paper's
    head: Annotated[
        Any,
        Option("the decision model; default the target's own", kind="a folder, hub id or model"),
    ] = None
    roots: Annotated[
        int,
        Option(
            "first-level tokens that the target draws, each with tree below it; the one with the "
            "longest accepted continuation stays. One root is the bonus token, which is lossless",
            low=1,
        ),
    ] = 1
    lossy: Annotated[
        bool, Option("several roots change the output (LOSSY) and need lossy=true")
    ] = False
    draw: Annotated[
        str,
        Option(
            "how a node's children are drawn from q, as for mcsd",
            choices=DRAWS,
        ),
    ] = "without"


def mcsd_ti(target: Target, options: Options) -> Drafter:
    """Improved MCSD: a draft model's tree, cut in every step where a trained decision model expects
    that no further token is accepted, which saves passes of the draft model where the text is
    hard.

    With several roots the target draws the first level itself: LOSSY, only with ``lossy=true``.
    """
    roots, draw = options.roots, options.draw
    if roots > 1 and not options.lossy:
        why = "(the one that the draft goes on from best stays); say lossy=true to have them"
        raise MethodError(f"several roots change the output's distribution {why}")
    if options.stop == "none" and options.threshold != Options.threshold:
        raise MethodError("threshold has no effect with stop=none")
    default = LARGEST if roots == 1 else Tree.chain(LARGEST.D)
    model = draft_model(target, options.draft)
    tree = drawable(options.tree or default, model.drafts)
    if roots > 1:
        tree = _below_roots(tree, roots, target.vocabulary, draw)
    sure = sureness(options.stop, target, model, options.head)
    length = Length(tree.D, confidence=options.threshold) if sure else None
    drafter = SeveralRoots if roots > 1 else LevelDrafter
    return drafter(model, tree, draw, length, sure)


def _below_roots(tree: Tree, roots: int, vocabulary: int, draw: str) -> Tree:
    """The tree with so many roots, ``tree`` below each."""
    if draw not in ("without", "with"):
        ways = "children are drawn without or with replacement"
        raise MethodError(f"below several roots {ways}, got draw={draw!r}")
    if Tree.branching(*tree.widths).host != tree.host:
        ways = "give children per node by level, such as 2-1-1"
        raise MethodError(f"below several roots {ways}, got {spell(tree)}")
    return drawable(Tree.branching(roots, *tree.widths), vocabulary)


def sureness(stop: str, target: Target, draft: Target, head: object = None) -> Confidence | None:
    """The confidence that ``stop`` names, None for none."""
    if stop in KINDS:
        return DecisionConfidence(decision_model(target, draft, head), stop, draft.backbone)
    if head is not None:
        whose = "head is the decision model of stop=soft or hard"
        raise MethodError(f"{whose}; stop={stop} has none")
    return {"top": Top(), "entropy": Entropy(), "none": None}[stop]


def decision_model(target: Target, draft: Target, head: object = None) -> DecisionModel:
    """The decision model that is given or named, or the target's own."""
    if isinstance(head, DecisionModel):
        hidden = draft.backbone.config.hidden_size
        if head.hidden != hidden:
            reads = f"the decision model reads {head.hidden} numbers"
            raise MethodError(f"{reads}, {draft.name!r} has hidden size {hidden}")
        check_place(draft, head)
        return head
    place = head if head is not None else target.own_head("decision")
    if place is None:
        way_out = "name one with head= (specwb train decision makes one), or stop=top"
        raise MethodError(f"{target.name!r} has no decision model of its own; {way_out}")
    return load_decision(str(place), target, draft)


STATIC = {"roots": 2, "tree": (4, 4, 1, 1), "stop": "none", "lossy": True}
"""The published static tree."""
ENTRY = Entry(
    "mcsd_ti",
    mcsd_ti,
    Options,
    paper="Lu et al. 2024, arXiv 2409.10644",
    needs="a draft model and a decision model",
    head="decision",
    presets={
        "published": Preset(
            {
                "roots": 2,
                "tree": (4, 4, 1, 1),
                "stop": "none",
                "lossy": True,
                "rule": "independent",
            },
            "the code's static tree with its own verification; LOSSY",
        ),
        "repaired": Preset(
            STATIC,
            "the same tree, verified without loss below each root; LOSSY by its roots",
        ),
        "first_version": Preset(
            {"roots": 16, "tree": (1, 1, 1, 1, 1), "lossy": True, "rule": "independent"},
            "the first version: 16 roots, chains of 5, the decision model at 0.4; LOSSY",
        ),
    },
    bibtex="""@inproceedings{lu2024improving,
  title={Improving Multi-candidate Speculative Decoding},
  author={Lu, Xiaofan and Zeng, Yixiao and Ma, Feiyang and Yu, Zixu and Levorato, Marco},
  booktitle={NeurIPS Efficient Natural Language and Speech Processing Workshop}, year={2024}}""",
)
