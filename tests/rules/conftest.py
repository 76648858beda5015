"""Common to the tests of rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specwb.rules import kseq, race


@pytest.fixture
def computed_once(monkeypatch):
    """k-SEQ's scale and the race's weights are computed once for equal rows of p, q and the number
    of candidates: thousands of uniforms are asked about with each of them."""
    scale = remembered(lambda *given, real=kseq.scale: [real(*given)])
    monkeypatch.setattr(kseq, "scale", lambda *given: scale(*given)[0])
    monkeypatch.setattr(race, "race_weights", remembered(race.race_weights))


def remembered(compute: Callable) -> Callable:
    """A function of rows whose results ``[B,...]`` are kept by the numbers in the row."""
    known: dict[tuple, tuple] = {}

    def computed(*given):
        rows = torch.cat([x.view(len(x), -1) for x in given], 1).double()
        key, where = (rows @ torch.rand_like(rows[0])).unique(return_inverse=True)
        one = torch.empty_like(where[: len(key)])
        one.scatter_(0, where, torch.arange(len(rows), device=where.device))
        assert torch.equal(rows[one][where], rows)
        names = [tuple(row) for row in rows[one].tolist()]
        new = [(name, i) for name, i in zip(names, one) if name not in known]
        if new:
            at = torch.stack([i for _, i in new])
            results = zip(*compute(*(x[at] for x in given)))
            known.update(zip([name for name, _ in new], results))
        return [torch.stack(x)[where] for x in zip(*map(known.get, names))]

    return computed
