"""Prompt lookup proposes what the transformers library proposes, row by row, and cuts a draft only
where nothing is lost."""

from __future__ import annotations

import random

import pytest
import tiny
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from specwb.core.flow import State
from specwb.core.probability import Sampling
from specwb.drafters.pld import PromptLookup


def state_of(texts: list[list[int]], done: list[bool] | None = None, spare: int = 20) -> State:
    """Rows of these known texts; what lies beyond them is tokens too."""
    length = torch.tensor([len(text) for text in texts])
    capacity = int(length.max()) + spare
    tokens = torch.randint(0, 4, (len(texts), capacity))
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    over = torch.tensor(done or [False] * len(texts))
    return State(
        tokens,
        length,
        length.clone(),
        length + 10,
        over,
        torch.tensor([], dtype=torch.long),
        Sampling(),
        int(length.max()),
        None,
    )


def proposed(drafter: PromptLookup, state: State) -> list[list[int]]:
    draft = drafter.propose(state, None)
    lengths = draft.valid[:, 1:].sum(1)
    assert bool((draft.valid[:, 1:].int().cumprod(1).sum(1) == lengths).all()), (
        "a chain is valid up to its end"
    )
    assert draft.tree.is_chain
    assert int(draft.tokens.max()) < tiny.VOCABULARY, "of invalid nodes too"
    assert int(lengths.max()) == draft.tree.D, "cut to the longest"
    assert draft.tokens[:, 0].tolist() == [
        int(row[k - 1]) for row, k in zip(state.tokens, state.length)
    ]
    return [row[1 : n + 1].tolist() for row, n in zip(draft.tokens, lengths.tolist())]


@pytest.mark.parametrize(("gamma", "ngram"), [(10, 3), (1, 1), (4, 2), (3, 5)])
def test_candidates_are_those_of_the_library(gamma, ngram):
    rng = random.Random(gamma)
    library = PromptLookupCandidateGenerator(
        num_output_tokens=gamma, max_matching_ngram_size=ngram, max_length=10**6
    )
    drafter = PromptLookup(gamma, ngram)
    seen: set[int] = set()
    for _ in range(60):
        letters = rng.choice([1, 2, 4, 9])
        texts = [[rng.randrange(letters) for _ in range(rng.randint(1, 24))] for _ in range(5)]
        found = proposed(drafter, state_of(texts))
        for text, mine in zip(texts, found):
            ids = torch.tensor([text])
            assert mine == library.get_candidates(ids)[0][0, len(text) :].tolist(), text
            seen.add(len(mine))
    assert seen == set(range(gamma + 1))
