"""What some mutant (``mutants``) changes and no other test was sure to see."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Scheme, Verdict
from specwb.drafters.length import Heuristic
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.kangaroo import KangarooAdapter
from specwb.rules.rule import Rule

PROMPTS = [[1, 2, 3], [7, 8, 9, 10, 11, 12]]
DEPTH = 3
ACCEPTED = (DEPTH, 0, DEPTH, DEPTH, 1, 2)  # by round, in every row


class Scheduled(Rule):
    """Accepts so many tokens of a chain, whatever they are."""

    schemes = frozenset(Scheme)

    def __init__(self) -> None:
        self.left = list(ACCEPTED)

    def uniforms(self, tree):
        return 0

    def verify(self, draft, scores, u):
        rows, tree = len(draft.tokens), draft.tree
        node = torch.full((rows,), self.left.pop(0) if self.left else 0)
        return Verdict(tree.trail[0, node], tree.depth[0, node], torch.empty(0), scores.p(node))


def eagle() -> EagleHead:
    """Of weights so large that what it says depends on all that it sees."""
    target = tiny.target()
    config, width = eagle_config(target), target.backbone.config.hidden_size
    return tiny.loud(lambda: EagleHead(config, width), 1, 0.15).requires_grad_(False)


def adapter() -> KangarooAdapter:
    target = tiny.target()
    made = KangarooAdapter(eagle_config(target, 1), 1).start_from(target)
    return made.requires_grad_(False).eval()


DRAFTERS = {
    "sps": lambda: {"draft": tiny.draft(), "gamma": DEPTH},
    "mcsd": lambda: {"draft": tiny.draft(), "tree": (1,) * DEPTH},
    "easyspec": lambda: {"draft": tiny.draft(), "groups": "0-1", "gamma": DEPTH},
    "eagle": lambda: {"head": eagle(), "tree": (1,) * DEPTH},
    "kangaroo": lambda: {"head": adapter(), "gamma": DEPTH, "eta": 0},
}


@pytest.mark.parametrize("key", DRAFTERS)
def test_a_draft_is_a_function_of_the_text_whatever_was_accepted_before(key):
    """q at the root comes from all that a drafter has cached of the text. It is what a new decoding
    has after the same text, behind rounds in which all was accepted, nothing and something."""
    target = tiny.target()
    right = specwb.method(key, target, **DRAFTERS[key]())
    method = specwb.Method(key, right.drafter, Scheduled(), right.exactness)
    settings = {"temperature": 1.0, "eos": ()}
    accepted = []
    for step in specwb.rounds(target, PROMPTS, method, max_new_tokens=40, **settings):
        if len(accepted) > len(ACCEPTED):
            break
        accepted.append(int(step.verdict.accepted[0]))
        for row, length in enumerate(step.length.tolist()):
            text = step.state.tokens[row, :length].tolist()
            anew = next(specwb.rounds(target, [text], right, max_new_tokens=DEPTH + 1, **settings))
            q, wanted = step.draft.q[row, 0], anew.draft.q[0, 0]
            torch.testing.assert_close(q, wanted, atol=1e-5, rtol=1e-3)
    assert accepted == [*ACCEPTED, 0]


def test_the_length_of_one_row_does_not_depend_on_another():
    """The heuristic schedule: a row that accepted all it drafted drafts more next."""
    length = Heuristic(2, 20)
    length.open(3, "cpu")
    length.observe(torch.tensor([2, 2, 1]), torch.tensor([2, 0, 1]))
    assert length.tokens.tolist() == [4, 1, 4]
    length.observe(torch.tensor([4, 1, 3]), torch.tensor([3, 1, 0]))
    assert length.tokens.tolist() == [3, 3, 3]
