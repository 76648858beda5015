"""Draft lengths, round by round, by hand."""

from __future__ import annotations

import copy

import pytest
import torch

from specwb.drafters.length import Adaptive, Heuristic, Length


def trace(length: Length, rounds: list[tuple[int, int]]) -> list[int]:
    """The lengths before the first round and after each of (drafted, accepted)."""
    length.open(1, "cpu")
    found = [int(length.tokens)]
    for drafted, accepted in rounds:
        length.observe(torch.tensor([drafted]), torch.tensor([accepted]))
        found.append(int(length.tokens))
    return found


HAND = {
    # averages begin at 0, so the first block of 30 counts as 15, which the bounds make 20: g 15,
    # 17.5, 18.75, 19.375, a 1.5, 2.25, 2.625, 2.8125
    "the paper's constants": (
        Adaptive(),
        [(30, 3), (20, 3), (20, 3), (20, 3)],
        [30, 20, 20, 20, 20],
    ),
    # g 4, 5, 5, 5.5, a 4, 4.5, 4.75, 4.375
    "delta only while all is accepted": (
        Adaptive(4, 8, 2),
        [(8, 8), (6, 5), (5, 5), (6, 4)],
        [8, 6, 5, 5, 6],
    ),
    # what was generated before an end of text: g 1, 1.5, 1.75, bounded below
    "the lower bound": (Adaptive(3, 8, 2), [(2, 0), (2, 0), (2, 0)], [8, 3, 3, 3]),
    # half accepted is enough: g 4, 5, 5.5, a 2, 2.5, 2.25
    "share": (Adaptive(1, 9, 2, share=0.5), [(8, 4), (6, 3), (6, 2)], [9, 6, 7, 6]),
    "constant": (Length(6), [(6, 6), (6, 0)], [6, 6, 6]),
    "heuristic": (Heuristic(4, 7), [(4, 4), (6, 6), (7, 6), (6, 0), (5, 5)], [4, 6, 7, 6, 5, 7]),
    "heuristic at its bounds": (Heuristic(2, 3), [(2, 0), (1, 0), (1, 1), (3, 3)], [2, 1, 1, 3, 3]),
}


@pytest.mark.parametrize("name", HAND)
def test_by_hand(name):
    length, rounds, wanted = HAND[name]
    assert trace(copy.copy(length), rounds) == wanted


def test_going_on_within_a_round():
    """Below what was drafted, up to the row's length; with a confidence, where the least probable
    token has at least that."""
    length = Length(6, confidence=0.5)
    length.open(4, "cpu")
    length.tokens = torch.tensor([6, 6, 6, 3])
    sure = torch.tensor([0.5, 0.49, 1.0, 1.0])
    assert length.onward(3, sure).tolist() == [True, False, True, False]
    assert length.onward(6, sure).tolist() == [False] * 4
    assert length.onward(2).tolist() == [True] * 4
    indifferent = Length(6)
    indifferent.open(4, "cpu")
    assert indifferent.onward(3, torch.zeros(4)).tolist() == [True] * 4
