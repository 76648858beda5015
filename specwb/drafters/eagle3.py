"""EAGLE-3: EAGLE-2's dynamic tree, from a head that reads three layers and has its own words."""

from __future__ import annotations

from specwb.core.options import MethodError
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.eagle2 import Options, dynamic
from specwb.models.eagle import Eagle3Head
from specwb.models.target import Target


def eagle3(target: Target, options: Options) -> Drafter:
    """EAGLE-3: a head that reads the target's hidden states at three depths, and knows the frequent
    tokens only, drafts EAGLE-2's trees.
    """
    drafter = dynamic("eagle3", target, options)
    if not isinstance(drafter.head, Eagle3Head):
        raise MethodError("this is an EAGLE-1 head, whose dynamic tree is eagle2")
    return drafter


ENTRY = Entry(
    "eagle3",
    eagle3,
    Options,
    paper="Li et al. 2025, arXiv 2503.01840",
    needs="a trained head",
    head="eagle3",
    presets={
        "published": Preset(
            {"nodes": 60, "depth": 8, "top": 10},
            "the code's total_token 60, depth 7 (levels after the first), top_k 10",
        ),
        "spec_bench": Preset(
            {"nodes": 60, "depth": 6, "top": 10}, "Spec-Bench's script, as for EAGLE-2"
        ),
    },
    bibtex="""@article{li2025eagle3,
  title={{EAGLE-3}: Scaling up Inference Acceleration of Large Language Models via Training-Time \
Test},
  author={Li, Yuhui and Wei, Fangyun and Zhang, Chao and Zhang, Hongyang}, \
journal={arXiv:2503.01840}, year={2025}}""",
)
