"""Speculative sampling: a chain of draft tokens of constant or adaptive length.

The length (:mod:`specwb.drafters.length`) may be chosen anew in every step and for every row,
from earlier steps and the draft model alone. Schedule "heuristic": gamma grows by 2 after a
step in which every draft token was accepted and shrinks by 1 after any other, within 1..20, or
gamma if that is more. Confidence: a row continues after a token x only while q(x) >=
``confidence``; x itself stays a candidate. Leaving x out because its own probability is low
would not be lossless: whether x is tested must not depend on x.

A row's length depends on that row only, so a row decodes alike alone and in a batch; the rest
of a shorter row's chain is invalid. Drafting stops with the longest row (one host read per
level).

Source: assisted generation of the transformers library (num_assistant_tokens_schedule
"heuristic", assistant_confidence_threshold). Differs from it in: the heuristic's gamma has an
upper bound, because memory is reserved for a draft; the threshold is constant, whereas the
library adapts it if scikit-learn is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specwb.core.options import Copy, DraftModel, Option, Verify
from specwb.core.tree import Tree
from specwb.drafters.base import Drafter, Entry, Preset
from specwb.drafters.length import Heuristic, Length
from specwb.drafters.level import LevelDrafter
from specwb.drafters.stopping import TokenProbability
from specwb.models.load import draft_model
from specwb.models.target import Target

LONGEST = 20  # draft tokens that schedule=heuristic goes up to, unless it begins with more


@dataclass(frozen=True)
class Options:
    draft: DraftModel = None
    gamma: Annotated[
        int, Option("draft tokens per step; with schedule=heuristic, in the first step", low=1)
    ] = 4
    schedule: Annotated[
        str,
        Option(
            "constant gamma, or heuristic: 2 more after a step in which all draft tokens were "
            "accepted, otherwise 1 less",
            choices=("constant", "heuristic"),
        ),
    ] = "constant"
    confidence: Annotated[
        float,
        Option(
            "stop drafting after a token whose probability in the draft model is below this",
            within="[0, 1)",
        ),
    ] = 0.0
    copy: Copy = None
    verify: Verify = None


def sps(target: Target, options: Options) -> Drafter:
    """Speculative sampling: a small model with the same tokens drafts a chain of ``gamma`` tokens,
    one forward pass each. It works on any text, and pays where the small model is cheap beside
    the target and often agrees with it.
    """
    model = draft_model(target, options.draft)
    gamma, schedule, confidence = options.gamma, options.schedule, options.confidence
    if schedule == "constant" and not confidence:
        return LevelDrafter(model, Tree.chain(gamma))
    length = Length(gamma, confidence=confidence)
    if schedule == "heuristic":
        length = Heuristic(gamma, max(LONGEST, gamma), confidence)
    return LevelDrafter(model, Tree.chain(length.most), length=length, sure=TokenProbability())


ENTRY = Entry(
    "sps",
    sps,
    Options,
    paper="Leviathan et al. 2023; Chen et al. 2023",
    needs="a draft model",
    presets={
        "spec_bench": Preset(
            {"gamma": 5, "schedule": "heuristic"},
            "the library's assisted generation in Spec-Bench, with the defaults of its time",
        )
    },
    bibtex="""@inproceedings{leviathan2023fast,
  title={Fast Inference from Transformers via Speculative Decoding},
  author={Leviathan, Yaniv and Kalman, Matan and Matias, Yossi}, booktitle={ICML}, year={2023}}""",
)
