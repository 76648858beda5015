"""A round's verdict is cut at the end of text and at the limit before anything is committed, and
the state grows by what was emitted."""

from __future__ import annotations

import random

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Draft, Scheme, State, Verdict
from specwb.core.mask import aligned, tree_mask
from specwb.core.probability import Sampling
from specwb.engine.loop import trim

TREE = specwb.Tree.branching(2, 2, 1)


def state_of(
    lengths: list[int], limit: list[int], done: list[bool], eos: list[int], capacity: int = 30
) -> State:
    rows = len(lengths)
    tokens = torch.arange(rows * capacity).view(rows, capacity) % 7 + 100
    return State(
        tokens,
        torch.tensor(lengths),
        torch.tensor(lengths),
        torch.tensor(limit),
        torch.tensor(done),
        torch.tensor(eos, dtype=torch.long),
        Sampling(),
        max(lengths),
        None,
    )


def by_hand(
    path: list[int],
    accepted: int,
    bonus: int,
    tokens: list[int],
    length: int,
    limit: int,
    done: bool,
    eos: list[int],
):
    """(emitted tokens, done), one row, from the words of the contract."""
    if done:
        return [], True
    emitted = [tokens[node] for node in path[1 : accepted + 1]] + [bonus]
    emitted = emitted[: limit - length]
    for i, token in enumerate(emitted):
        if token in eos:
            return emitted[: i + 1], True
    return emitted, length + len(emitted) >= limit


@pytest.mark.parametrize("eos", [[], [3, 4]], ids=["none", "two"])
@pytest.mark.parametrize(
    "tree", [TREE, specwb.Tree.chain(4), specwb.Tree.chain(0)], ids=["tree", "chain", "root"]
)
def test_trim_is_closed(tree, eos):
    """Against the contract row by row: random paths, limits that fall inside the block, rows that
    had finished."""
    rng = random.Random(1)
    rows = 400
    lengths = [rng.randint(1, 9) for _ in range(rows)]
    limit = [k + rng.randint(1, 7) for k in lengths]
    done = [rng.random() < 0.1 for _ in range(rows)]
    tokens = [[rng.randrange(8) for _ in range(tree.n)] for _ in range(rows)]
    node = [rng.randrange(tree.n) for _ in range(rows)]
    path = tree.trail[0][torch.tensor(node)]
    accepted = tree.depth[0][torch.tensor(node)]
    bonus = [rng.randrange(8) for _ in range(rows)]
    draft = Draft(
        tree, torch.tensor(tokens), torch.ones(rows, tree.n, dtype=torch.bool), Scheme.POINT
    )
    raw = Verdict(path.clone(), accepted.clone(), torch.tensor(bonus), torch.rand(rows, 8))
    state = state_of(lengths, limit, done, eos)
    verdict, after = trim(raw, draft, state)
    assert torch.equal(raw.path, path), "the raw verdict was changed"
    assert torch.equal(raw.accepted, accepted)
    assert verdict.distribution is raw.distribution
    cuts = 0
    for i in range(rows):
        row = path[i].tolist(), int(accepted[i]), bonus[i], tokens[i]
        wanted, over = by_hand(*row, lengths[i], limit[i], done[i], eos)
        n = len(wanted)
        assert verdict.accepted[i] == n - 1
        assert verdict.count[i] == n
        assert bool(after[i]) == over
        assert verdict.emitted[i, :n].tolist() == wanted
        if n:
            cuts += n <= int(accepted[i])
            assert verdict.bonus[i] == wanted[-1]
            # an ordinary verdict: the path to the last accepted node, repeated
            assert verdict.path[i].tolist() == [
                int(path[i, min(d, n - 1)]) for d in range(tree.D + 1)
            ]
        else:
            assert not verdict.path[i].any()
    assert tree.D == 0 or cuts > 20, "nothing was cut inside a block"


def test_advance_appends_what_was_emitted():
    state = state_of([3, 5, 4], [9, 9, 4], [False, False, True], [])
    before = state.tokens.clone()
    emitted = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    verdict = Verdict(
        torch.zeros(3, 3, dtype=torch.long),
        torch.tensor([1, 2, -1]),
        torch.tensor([2, 6, 0]),
        None,
        emitted,
    )
    length = state.length
    state.advance(verdict, torch.tensor([False, False, True]))
    state.read()
    assert length is state.length, "in place: a captured round has its address"
    assert state.length.tolist() == [5, 8, 4]
    assert (state.horizon, state.finished) == (8, False)
    assert state.tokens[0, :5].tolist() == [*before[0, :3].tolist(), 1, 2]
    assert state.tokens[1, :8].tolist() == [*before[1, :5].tolist(), 4, 5, 6]
    assert state.tokens[2, :4].tolist() == before[2, :4].tolist()
    state.advance(
        Verdict(verdict.path, torch.tensor([0, -1, -1]), torch.tensor([1, 0, 0]), None, emitted),
        torch.ones(3, dtype=torch.bool),
    )
    state.read()
    assert (state.horizon, state.finished) == (8, True)
    assert state.done.all()


@pytest.mark.parametrize("w", [1, 4])
def test_window_is_the_last_known_tokens(w):
    state = state_of([1, 3, 9], [20] * 3, [False] * 3, [])
    begin, positions, tokens = state.window(w)
    for row, k in enumerate([1, 3, 9]):
        start = max(0, k - w)
        assert begin[row] == start
        assert positions[row].tolist() == list(range(start, start + w))
        assert torch.equal(tokens[row], state.tokens[row, start : start + w])


def test_masks_are_made_once_a_round_and_anew_the_next():
    state = state_of([4, 2], [20, 20], [False, False], [])
    mask = state.tree_mask(TREE, torch.float32)
    assert state.tree_mask(TREE, torch.float32) is mask
    assert state.tree_mask(TREE, torch.float64).dtype == torch.float64
    assert torch.equal(mask, tree_mask(TREE, state.length, 4, torch.float32))
    state.advance(
        Verdict(
            torch.zeros(2, 1, dtype=torch.long),
            torch.tensor([0, 0]),
            torch.tensor([1, 1]),
            None,
            torch.ones(2, 1, dtype=torch.long),
        ),
        state.done,
    )
    state.read()
    assert torch.equal(
        state.tree_mask(TREE, torch.float32),
        tree_mask(TREE, torch.tensor([5, 3]), 5, torch.float32),
    )


class Told(specwb.Drafter):
    """Row 0 a chain that is right, row 1 a bush whose second child is right, row 2 nothing right
    and padding."""

    def __init__(self, truth: list[list[int]]) -> None:
        self.tree = specwb.Tree([[-1, 0, 1, 2, 3], [-1, 0, 0, 2, 2], [-1, 0, -1, -1, -1]])
        self.truth = torch.tensor(truth)

    def propose(self, state, noise):
        right = self.truth.gather(
            1, (state.length[:, None] - 1 + self.tree.depth).clamp_max(self.truth.shape[1] - 1)
        )
        wrong = (right + 1) % tiny.VOCABULARY
        good = torch.tensor(
            [[True] * 5, [True, False, True, False, True], [True, False, True, True, True]]
        )
        return self.candidates(state, torch.where(good, right, wrong)[:, 1:])


def test_every_row_may_have_its_own_tree():
    target = tiny.target()
    whole = [list(tiny.plain("llama", tuple(prompt), 20)) for prompt in tiny.PROMPTS]
    method = specwb.Method(
        "told",
        Told([p + t + [0] * (7 - len(p)) for p, t in zip(tiny.PROMPTS, whole)]),
        None,
        specwb.Exactness.LOSSLESS,
    )
    out = specwb.decode(target, tiny.PROMPTS, method, max_new_tokens=15)
    assert out.tokens == [t[:15] for t in whole]
    assert out.accepted_lengths == [[4, 4, 4], [2, 2, 2, 2, 2], [0] * 15]


def test_what_is_not_valid_is_not_accepted():
    """Right tokens that may not be accepted, at T = 0 on a chain and on a tree."""
    whole = list(tiny.plain("llama", (1, 2, 3), 20))
    truth = torch.tensor([[1, 2, 3, *whole]])
    for tree in (specwb.Tree.chain(3), specwb.Tree.parents([-1, 0, 1, 2, 0])):

        class Half(specwb.Drafter):
            def __init__(self, tree=tree):
                self.tree = tree

            def propose(self, state, noise):
                right = truth.gather(
                    1, (state.length[:, None] - 1 + self.tree.depth).clamp_max(truth.shape[1] - 1)
                )
                valid = torch.tensor([[True, False, True, True][: self.tree.n - 1]])
                return self.candidates(
                    state, right[:, 1:], valid[:, : self.tree.n - 1] & (self.tree.depth[:, 1:] != 2)
                )

        method = specwb.Method("half", Half(), None, specwb.Exactness.LOSSLESS)
        out = specwb.decode(tiny.target(), [[1, 2, 3]], method, max_new_tokens=12)
        assert out.tokens == [whole[:12]]
        assert out.accepted_lengths == [[1] * 6]


@pytest.mark.parametrize("extent", [7, 8])
def test_an_aligned_mask_is_the_mask(extent):
    whole = torch.randn(2, 3, 20)
    for mask in (whole[..., :extent], whole[:, 1:, :extent].contiguous()):
        out = aligned(mask)
        assert torch.equal(out, mask)
        assert not any(step % 8 for step in out.stride()[:-1])
        assert aligned(out) is out
