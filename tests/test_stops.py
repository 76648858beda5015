"""Texts that end a row: at which token, however many tokens a step writes."""

from __future__ import annotations

import itertools

import pytest

from specwb.stops import Stops

PIECES = ["a", "b", " n", "'t", "ab", "\u00e9", ""]


class Joining:
    """A tokenizer that, as published ones do, takes out the space before "n't"."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(PIECES[i] for i in ids).replace(" n't", "n't")


def ends(text: list[int], parts: tuple[int, ...], stop: list[str]) -> int | None:
    """After how many tokens a row ends that is written in steps of so many tokens."""
    stops, at = Stops(stop, Joining(), 1), 0
    for n in parts:
        new = text[at : at + n]
        at += len(new)
        if new and (surplus := stops.surplus(0, new)) is not None:
            return at - surplus
    return None


@pytest.mark.parametrize("stop", [[" n"], ["ba"], ["n't"], ["bab", " n"]])
def test_a_row_ends_at_the_same_token_however_it_is_written(stop: list[str]) -> None:
    """Plain decoding writes one token a step; a method, what it has accepted."""
    ended = 0
    for text in itertools.product(range(len(PIECES)), repeat=4):
        plain = ends(list(text), (1, 1, 1, 1), stop)
        ended += plain is not None
        for parts in [(4,), (1, 3), (2, 2), (3, 1), (1, 2, 1)]:
            assert ends(list(text), parts, stop) == plain, (text, parts)
    assert ended > 100


def test_a_text_that_the_next_token_unsays_has_ended_the_row() -> None:
    assert ends([0, 2, 3, 1], (4,), [" n"]) == 2


def test_a_text_over_the_border_of_a_step_takes_back_what_is_behind_it() -> None:
    assert ends([1, 0, 1, 0, 0], (2, 3), ["bab"]) == 3
