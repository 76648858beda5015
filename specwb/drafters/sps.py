"""Speculative sampling with a draft length that follows the text."""

from __future__ import annotations

from specwb.drafters.length import Heuristic, Length
from specwb.drafters.level import LevelDrafter
from specwb.drafters.stopping import Drafted
from specwb.models.target import Target
from specwb.tree import Tree

SCHEDULES = ("constant", "heuristic")


class ScheduledChain(LevelDrafter):
    """A chain whose length is chosen anew every round and for every row, from earlier rounds and the draft model alone.

    Schedule "heuristic": gamma grows by 2 after a round in which every drafted token was accepted and shrinks by 1 after any other,
    within 1..``most``. Confidence: a row drafts on below a token x only while q(x) >= ``confidence``; x itself stays a candidate.
    Leaving x out because its own probability is low would not be lossless: whether x is tested must not depend on x.

    A row's length depends on that row only, so a row alone and in a batch decode alike; shorter rows have the rest of their chain invalid.
    On the CPU drafting stops with the longest row (one host read a level), elsewhere all levels are computed.

    Attributes: length: what decides, see :mod:`specwb.drafters.length`.
    Source: assisted generation of the transformers library (num_assistant_tokens_schedule "heuristic", assistant_confidence_threshold).
    Differs from it in: the heuristic's gamma has an upper bound, because a draft's memory is reserved; the threshold stays as it was given,
    where the library moves it if scikit-learn is installed.
    """

    def __init__(self, draft: Target, gamma: int, schedule: str = "heuristic", confidence: float = 0.0, most: int = 20) -> None:
        heuristic = schedule == "heuristic"
        length = Heuristic(gamma, most, confidence) if heuristic else Length(gamma, confidence=confidence)
        super().__init__(draft, Tree.chain(most if heuristic else gamma), length=length, sure=Drafted())
