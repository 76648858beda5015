"""Lookahead decoding against what was published: mask and positions, pool, window; and a trie is
verified as one."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch

import specwb
from specwb.core.mask import tree_mask
from specwb.drafters.lookahead import Lookahead, lookahead_tree

SIZES = [(7, 5, 7), (1, 3, 1), (2, 4, 0)]
SPECS = ["lookahead", "lookahead:window=5,level=4,guesses=3,prompt=true"]


# ----------------------------------------------------------------------------- mask and positions


def published(window: int, level: int, guesses: int) -> tuple[list[list[bool]], list[int]]:
    """Mask and positions of the published code, in its order (pending token, window level by level,
    n-grams), by its blocks.

    Every level is a block of ``window`` columns, the pending token and the rest of level 0 being
    the first. Within the window a block sees the first block causally, and of every later block up
    to itself the diagonal. N-grams see the pending token and their own beginning.
    """
    length, block = level - 1, window
    n = block * length + guesses * length
    mask = [[False] * n for _ in range(n)]
    for ll in range(length):
        for i in range(block):
            for j in range(i + 1):
                mask[block * ll + i][j] = True
            for r in range(1, ll + 1):
                mask[block * ll + i][block * r + i] = True
    positions = list(range(window))
    for ll in range(1, length):
        positions += range(ll, ll + window)
    for g in range(guesses):
        start = block * length + g * length
        for i in range(length):
            mask[start + i][0] = True
            for j in range(i + 1):
                mask[start + i][start + j] = True
        positions += range(1, level)
    return mask, positions


@pytest.mark.parametrize(("window", "level", "guesses"), SIZES)
def test_mask_and_positions_are_the_published_ones(window, level, guesses):
    tree = lookahead_tree(window, level, guesses)
    length = level - 1
    assert tree.n == 1 + guesses * length + window * length - 1
    candidates = list(range(1, 1 + guesses * length))
    ours_to_theirs = [0, *range(1 + guesses * length, tree.n), *candidates]
    mask, positions = published(window, level, guesses)
    lengths, before = torch.tensor([6]), 5
    found = (tree_mask(tree, lengths, 6, torch.float32) == 0)[0]
    assert bool(found[:, :before].all()), "everything sees the text before the pending token"
    assert found[:, before:][ours_to_theirs][:, ours_to_theirs].tolist() == mask
    assert tree.depth[0, ours_to_theirs].tolist() == positions
    assert (tree.v, tree.D, tree.widths) == (
        1 + len(candidates),
        length * (guesses > 0),
        (guesses, *[1] * (length - 1)) if guesses else (),
    )


# --------------------------------------------------------------------------------------- the pool


class Pool(dict):
    """A key's last used n-grams, oldest first: the published list, one n-gram at a time."""

    def __init__(self, size: int) -> None:
        self.size = size

    def add(self, key: int, gram: tuple[int, ...]) -> None:
        held = self.setdefault(key, [])
        if gram in held:
            held.remove(gram)
        elif len(held) == self.size:
            held.pop(0)
        held.append(gram)


# ----------------------------------------------------------------------------- rounds, one by one


class Seen(Lookahead):
    """The engine's copies, to look into."""

    opened: list[Lookahead] = []  # noqa: RUF012

    def open(self, state, target):
        self.opened.append(self)
        super().open(state, target)


@pytest.mark.parametrize("temperature", [0.0, 0.4])
@pytest.mark.parametrize("spec", SPECS)
def test_rounds_are_those_of_a_plain_reimplementation(spec, temperature):
    """One row at a time, with lists and a dictionary: the window, the n-grams and the candidates of
    every round."""
    target = tiny.loops()
    method = specwb.method(spec, target)
    drafter = copy.copy(method.drafter)
    drafter.__class__ = Seen
    method = specwb.Method(spec, drafter, None, method.exactness)
    window, length = drafter.columns, drafter.level - 1
    levels: list[list[list[int]]] = []
    pools = [Pool(drafter.guesses) for _ in tiny.PROMPTS]
    texts = [list(prompt) for prompt in tiny.PROMPTS]
    if drafter.prompt:
        for row, text in enumerate(texts):
            for i in range(len(text) - length):
                pools[row].add(text[i], tuple(text[i + 1 : i + length + 1]))
    drafted = accepted = 0
    loop = specwb.rounds(
        target,
        tiny.PROMPTS,
        method,
        max_new_tokens=[40, 10, 33],
        temperature=temperature,
        seed=2,
        trace=True,
    )
    for index, step in enumerate(loop):
        tokens, valid, n = step.draft.tokens.tolist(), step.draft.valid.tolist(), step.draft.tree.n
        new = step.scores.logits.argmax(-1).tolist()
        alive = [int(a) >= 0 for a in step.verdict.accepted]
        wanted = [
            list(reversed(pool.get(text[-1], []))) if on else []
            for pool, text, on in zip(pools, texts, alive)
        ]
        assert step.draft.tree.v == 1 + length * max(map(len, wanted)), (
            "cut to the largest number of candidates"
        )
        for row, text in enumerate(texts):
            candidates, inside = (
                tokens[row][1 : step.draft.tree.v],
                tokens[row][step.draft.tree.v :],
            )
            if index == 0:
                # any tokens of the prompt
                assert set(inside) <= set(text)
                levels.append(
                    [[*inside[: window - 1]]]
                    + [inside[window - 1 + window * r :][:window] for r in range(length - 1)]
                )
                levels[row][0].insert(0, -1)
            assert tokens[row][0] == text[-1] or not alive[row]
            assert inside == levels[row][0][1:] + [x for level in levels[row][1:] for x in level]
            ok = valid[row][1:]
            assert ok == [True] * (length * len(wanted[row])) + [False] * (
                n - 1 - length * len(wanted[row])
            )
            assert [
                tuple(candidates[i : i + length])
                for i in range(0, length * len(wanted[row]), length)
            ] == wanted[row]
            if temperature:
                kids = step.draft.tree.kids[row % len(step.draft.tree.kids), 0]
                siblings = [tokens[row][i] for i in kids.tolist() if i > 0 and valid[row][i]]
                assert siblings == list(dict.fromkeys(gram[0] for gram in wanted[row])), (
                    "verified as a trie"
                )
            drafted += len(wanted[row])
            # what the window found
            results = new[row][n - window :]
            for c in range(window):
                key = text[-1] if c == 0 else levels[row][0][c]
                if index >= drafter.level - 2:
                    pools[row].add(
                        key, (*(levels[row][r][c] for r in range(1, length)), results[c])
                    )
            levels[row] = [*levels[row][1:], results]
            count = int(step.verdict.count[row])
            accepted += max(count - 1, 0)
            for token in step.verdict.emitted[row, :count].tolist():
                text.append(token)
                if drafter.prompt and len(text) > length:
                    pools[row].add(text[-length - 1], tuple(text[-length:]))
    assert drafted > 20
    assert accepted > 10
    for row, held in enumerate(Seen.opened[-1].pool.tolist()):
        for key, grams in enumerate(held):
            assert [tuple(gram) for gram in grams if gram[0] >= 0] == list(
                reversed(pools[row].get(key, []))
            )
