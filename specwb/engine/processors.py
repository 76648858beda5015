"""The library's logits processors applied to a step's scores, for :func:`specwb.hf`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)
from transformers.generation import logits_process

from specwb.core.flow import Draft, Scores, State
from specwb.core.probability import Sampling
from specwb.core.tree import Tree

# Logits processors whose result for a row depends on that row's (input_ids, scores) alone, and
# which a call leaves as they were.
PURE = {
    getattr(logits_process, name)
    for name in (
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "PrefixConstrainedLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopHLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    )
}


def impure(processors: Iterable[Any]) -> str:
    """Names the first logits processor that is not known to be a pure function, "" if all are."""
    for processor in processors:
        if type(processor) not in PURE and not getattr(processor, "specwb_pure", False):
            return getattr(processor, "__name__", type(processor).__name__)
    return ""


class Processors:
    """Replaces a step's scores by those after the logits processors. Prompts are ``input_ids`` from
    the columns ``starts`` on; texts that hold one of ``ends``, or have ``limit`` columns, are
    complete."""

    def __init__(
        self, processors, input_ids: Tensor, starts: list[int], ends: list[int], limit: int
    ) -> None:
        self.ends = torch.tensor(ends, dtype=torch.long, device=input_ids.device)
        self.limit = limit
        self.padding = [row[:start] for row, start in zip(input_ids, starts, strict=True)]
        self.processors = [
            LogitsProcessorList([_for_row(processor, row) for processor in processors])
            for row in range(len(starts))
        ]

    def __call__(self, state: State, draft: Draft, scores: Scores) -> Scores:
        return ProcessedScores(self, state, draft, scores)


def _for_row(processor, row: int):
    """Returns the processor for one row: some tell rows apart by their index in the batch. A
    temperature so low that it is greedy leaves the best token alone, where the library's quotient
    may overflow."""
    if type(processor) is RepetitionPenaltyLogitsProcessor:
        lengths = getattr(processor, "prompt_ignore_length", None)
        if isinstance(lengths, Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = int(lengths[row])
    elif type(processor) is PrefixConstrainedLogitsProcessor:
        allowed_tokens = processor._prefix_allowed_tokens_fn
        processor = copy.copy(processor)
        processor._prefix_allowed_tokens_fn = lambda _, ids: allowed_tokens(row, ids)
    elif type(processor) is TemperatureLogitsWarper and Sampling(processor.temperature).greedy:
        return lambda _, scores: Sampling().probabilities(scores).log()
    return processor


class ProcessedScores(Scores):
    """Scores whose p and argmax are those after the processors, for the nodes that are asked for.

    No processor is shown a text that it has forbidden, nor one that goes on behind its end, since
    one that follows a grammar may fail on either. Rules for whole trees do ask for nodes below a
    token of probability 0, and a walk goes on behind the end before the block is trimmed. What
    stands there cannot matter, since such nodes are never accepted or are cut: it is the target's
    own logits.
    ``logits`` stay the target's own everywhere.
    """

    def __init__(self, rescore: Processors, state: State, draft: Draft, scores: Scores) -> None:
        super().__init__(scores.logits, scores.sampling, scores.features)
        self.rescore, self.draft, self.text = rescore, draft, state.tokens
        self.lengths, self.done = torch.stack((state.length, state.done.long())).tolist()
        self.processed: dict[tuple[int, int], Tensor] = {}  # by row and node
        self.possible: dict[tuple[int, int], bool] = {}  # the same

    def at(self, row: int, node: int) -> Tensor:
        """``[V]`` float32, the node's logits after the library's processors."""
        if (row, node) not in self.processed:
            logits = self.logits[row, node].to(torch.float32, copy=True)
            if not self.done[row]:
                logits = self._process(row, node, logits)
            self.processed[row, node] = logits
        return self.processed[row, node]

    def _process(self, row: int, node: int, logits: Tensor) -> Tensor:
        padding = self.rescore.padding[row]
        tree = self.draft.tree
        parents = tree.host[row if tree.R > 1 else 0]
        path: list[int] = []
        while node > 0:
            path.insert(0, node)
            node = parents[node]
        if not self._possible(row, path):
            return logits
        draft_tokens = self.draft.tokens[row, path].to(padding.device)
        text = self.text[row, : self.lengths[row]].to(padding.device)
        ids: Any = torch.cat([padding, text, draft_tokens])[None]
        has_end = torch.isin(draft_tokens, self.rescore.ends).any()
        if ids.shape[1] >= self.rescore.limit or bool(has_end):
            return logits
        processors = self.rescore.processors[row]
        return processors(ids, logits[None].to(padding.device))[0].to(logits.device)

    def _possible(self, row: int, path: list[int]) -> bool:
        """Whether the nodes of a path are candidates, each with a probability after its parent.

        From the root down, since a node's own row is made only where its path is possible.
        """
        for parent, node in pairwise([0, *path]):
            if (row, node) not in self.possible:
                p = self.at(row, parent).softmax(-1)[self.draft.tokens[row, node]]
                self.possible[row, node] = bool(self.draft.valid[row, node] & (p != 0))
            if not self.possible[row, node]:
                return False
        return True

    def row(self, i: int, node: int) -> Tensor:
        if self.sampling.greedy:
            return Sampling().probabilities(self.at(i, node))
        return self.at(i, node).softmax(-1)  # the processors end with temperature and filters

    def p(self, node: Tensor) -> Tensor:
        return torch.stack([self.row(i, n) for i, n in enumerate(node.tolist())])

    def probabilities(self, tree: Tree) -> Tensor:
        rows = [
            torch.stack([self.row(i, node) for node in range(tree.v)])
            for i in range(len(self.logits))
        ]
        return torch.stack(rows)

    def best(self, tree: Tree) -> Tensor:
        """The argmax at the nodes whose path agrees with the target's argmax, as for plain scores;
        0 at the other nodes, which the greedy walk does not ask about."""
        tokens, valid = self.draft.tokens.tolist(), self.draft.valid.tolist()
        best = [[0] * tree.v for _ in tokens]
        for row in range(len(tokens)):
            parents = tree.host[row if tree.R > 1 else 0]
            level = [] if self.done[row] else [0]
            while level:
                # nodes of one level that agree carry the same text
                token = int(self.at(row, level[0]).argmax())
                for node in level:
                    best[row][node] = token
                level = [
                    node
                    for node in range(1, tree.v)
                    if parents[node] in level and valid[row][node] and tokens[row][node] == token
                ]
        return torch.tensor(best, device=self.logits.device)
