"""Multi-candidate speculative decoding: a static tree of draft tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specwb.core.options import Copy, DraftModel, Option, Verify
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.level import DRAWS, LevelDrafter, drawable
from specwb.models.load import draft_model
from specwb.models.target import Target


@dataclass(frozen=True)
class Options:
    draft: DraftModel = None
    tree: Annotated[Tree, Option("the draft tree")] = (4, 2, 2)  # type: ignore[assignment]
    draw: Annotated[
        str,
        Option(
            "how a node's children are drawn from q: with or without replacement; top, the most "
            "probable ones and one draw from the rest; greedy, the most probable "
            "ones whatever the temperature",
            choices=DRAWS,
        ),
    ] = "without"
    copy: Copy = None
    verify: Verify = None


def mcsd(target: Target, options: Options) -> Drafter:
    """Multi-candidate speculative decoding: a small model drafts several candidates for each place,
    as a tree. One of several is right more often than a single guess, and all of them are
    verified in one forward pass.
    """
    model = draft_model(target, options.draft)
    tree = drawable(options.tree, model.drafts, empty=True)
    return LevelDrafter(model, tree, options.draw)


ENTRY = Entry(
    "mcsd",
    mcsd,
    Options,
    paper="Yang et al. 2024, arXiv 2401.06706",
    needs="a draft model",
    presets={
        "published": Preset({"tree": (4, 2, 2, 1), "draw": "without"}, "the code's default tree"),
        "spectr": Preset(
            {"tree": (8, 1, 1, 1, 1, 1, 1, 1), "draw": "with", "rule": "kseq"},
            "SpecTr, Sun et al. 2023: 8 drafts of 8 tokens, k-SEQ; from secondary sources",
        ),
    },
    bibtex="""@article{yang2024multi,
  title={Multi-Candidate Speculative Decoding},
  author={Yang, Sen and Huang, Shujian and Dai, Xinyu and Chen, Jiajun}, \
journal={arXiv:2401.06706}, year={2024}}""",
)
