"""What a drafter of one's own proposes and is no draft is named."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb


class Own(specwb.Drafter):
    """Proposes whatever it was given."""

    def __init__(self, what) -> None:
        self.what, self.tree = what, specwb.Tree.chain(2)

    def propose(self, state, noise):
        return self.what(self, state)


def drafted(*tokens, **changes):
    return lambda self, state: self.candidates(state, torch.tensor([tokens]), **changes)


def raw(tokens, valid=None):
    ok = torch.ones(1, 3, dtype=torch.bool) if valid is None else valid
    return lambda self, state: specwb.Draft(self.tree, tokens, ok, specwb.Scheme.POINT)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda *_: None, "Own.propose must return a specwb.Draft, got None"),
        (drafted(1, 64), r"Own drafted token 64; ids are 0\.\.63, of invalid nodes too"),
        (drafted(1.0, 2.0), "candidates must be token ids, integers, got torch.float32"),
        (drafted(1, 2, 3), r"candidates must be \[rows, nodes - 1\]"),
        (drafted(1, 2, 3, tree=specwb.Tree.chain(3)), "larger than its tree"),
        (raw(torch.ones(1, 3)), r"tokens .* must be \[1, 3\] of torch.int64, got .*float32"),
        (raw(torch.ones(1, 3).long(), torch.ones(1, 3)), "valid .* got .* of torch.float32"),
    ],
)
def test_what_is_no_draft_is_named(what, named):
    specwb.register("own", Own)
    try:
        with pytest.raises(ValueError, match=named):
            specwb.decode(tiny.target(), [1, 2], "own", what=what, max_new_tokens=4)
    finally:
        specwb.unregister("own")
