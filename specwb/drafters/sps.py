"""Speculative sampling with a draft length that follows the text."""

from __future__ import annotations

import copy

from torch import Tensor

from specwb.drafters.length import Heuristic, Length
from specwb.drafters.level import LevelDrafter
from specwb.flow import Draft, Scores, State, Verdict
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
        super().__init__(draft, Tree.chain(most if schedule == "heuristic" else gamma))
        self.length = Heuristic(gamma, most, confidence) if schedule == "heuristic" else Length(gamma, confidence=confidence)
        self.host_reads = self.tree.D - 1

    def open(self, state: State, target: Target) -> None:
        super().open(state, target)
        self.length = copy.copy(self.length)
        self.length.open(state.rows, self.draft.device)

    def onward(self, state: State, depth: int, tokens: Tensor, logits: Tensor) -> Tensor:
        if not self.length.confidence:
            return self.length.onward(depth)
        q = state.sampling.at_least_warm.probabilities(logits[:, 0])
        return self.length.onward(depth, q.gather(1, tokens).squeeze(1))

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(state, draft, verdict, scores)
        self.length.observe(draft.valid[:, 1:].sum(1), verdict.accepted)
