"""Search over a lattice: beam and dynamic programming against the list of all paths; pruning.

The text may end anywhere in the lattices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, candidates, exhaustive, viterbi
from specwb.drafters.diffuspec_parts.ngram import NGram

V, END, OTHER = 12, 11, 10


def proxy_of(order: int, seed: int = 0) -> NGram:
    text = np.minimum(np.random.default_rng(seed).geometric(0.25, 400) - 1, V - 1)
    return NGram.count([text], V, order)


def random_lattice(rng: np.random.Generator, k: int, m: int, ends: Sequence[int]) -> Lattice:
    """Returns a lattice of distinct tokens in falling order of probability.

    ``ends`` are among the tokens as often as others, and first at some positions.
    """

    def falling(count: int) -> list[float]:
        return np.sort(np.log(rng.dirichlet(np.ones(V))))[::-1][:count].tolist()

    ids = [rng.permutation(V)[: int(rng.integers(1, m + 1))].tolist() for _ in range(k)]
    logq = [falling(len(row)) for row in ids]
    return Lattice(ids, logq, frozenset(ends))


def every_path(lattice: Lattice) -> list[tuple[int, ...]]:
    """Returns the ranks of all paths by the definition.

    They are all choices of all positions, each cut behind its first end.
    """
    paths = set()
    for ranks in itertools.product(*(range(len(row)) for row in lattice.ids)):
        tokens = [row[r] for row, r in zip(lattice.ids, ranks)]
        length = next((i + 1 for i, x in enumerate(tokens) if x in lattice.ends), len(tokens))
        paths.add(ranks[:length])
    return sorted(paths)


def score_of(
    lattice: Lattice, proxy, context: tuple[int, ...], lam: float, ranks: tuple[int, ...]
) -> float:
    """Computes the formula, term by term."""
    tokens, total = [row[r] for row, r in zip(lattice.ids, ranks)], 0.0
    for i, r in enumerate(ranks):
        before = (*context, *tokens[:i])
        before = before[max(0, len(before) - proxy.order + 1) :] if proxy.order > 1 else ()
        total += lam * lattice.logq[i][r] + (1 - lam) * proxy.scores(before, [tokens[i]])[0]
    return total


@pytest.mark.parametrize("ends", [(), (END, OTHER, 3)])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("order", [1, 3])
def test_beam_and_viterbi_equal_the_list_of_all_paths(order, lam, ends):
    rng = np.random.default_rng(order)
    early_winners = mixed_lengths = 0
    for seed in range(8):
        proxy = proxy_of(order, seed)
        lattice = random_lattice(rng, int(rng.integers(1, 5)), 4, ends)
        context = tuple(rng.integers(V, size=int(rng.integers(4))).tolist())
        every_rank = every_path(lattice)
        wanted = {ranks: score_of(lattice, proxy, context, lam, ranks) for ranks in every_rank}
        every = exhaustive(lattice, proxy, context, lam)
        assert {path.ranks: pytest.approx(path.score) for path in every} == wanted
        assert [p.mean for p in every] == sorted((p.mean for p in every), reverse=True)
        for path in every:
            assert path.tokens == tuple(row[r] for row, r in zip(lattice.ids, path.ranks))
            assert path.logq == tuple(row[r] for row, r in zip(lattice.logq, path.ranks))
            assert path.mean == path.score / len(path.tokens)
        wide = beam(lattice, proxy, context, lam, len(every))
        assert {p.ranks for p in wide} == set(wanted)
        assert [p.score for p in wide] == [p.score for p in every]
        best = viterbi(lattice, proxy, context, lam)
        assert best.score / len(best.tokens) == every[0].mean
        if len(every) == 1 or every[0].mean > every[1].mean:
            assert best == every[0]
        early_winners += every[0].ends_text
        mixed_lengths += len({len(p.tokens) for p in every}) > 1
    assert not ends or (early_winners and mixed_lengths)


# ------------------------------------------------------------------------------------------ pruning


def test_pruning_keeps_the_fewest_that_have_the_mass():
    p = [0.5, 0.3, 0.15, 0.05]
    logs = [[math.log(x) for x in p]] * 2
    ids = [[3.0, 1.0, 2.0, 0.0]] * 2  # as a tensor of floats gives them
    for mass, count in [(0.4, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)]:
        lattice = Lattice.prune(ids, logs, mass)
        assert lattice.ids == [[3, 1, 2, 0][:count]] * 2
        assert all(type(x) is int for row in lattice.ids for x in row)
        assert lattice.logq == [logs[0][:count]] * 2
    few = [math.log(0.2), math.log(0.1)]
    assert Lattice.prune([[1.0, 2.0]], [few], 0.8).ids == [[1, 2]]  # all M do not reach the mass


def test_where_the_text_ends():
    probabilities = [[0.6, 0.4], [0.5, 0.3], [0.7, 0.2], [0.9, 0.1]]
    logs = [[math.log(x) for x in p] for p in probabilities]
    ids = [[1, END], [2, END], [END, 3], [4, 5]]
    lattice = Lattice.prune(ids, logs, 0.8, [END])
    # The end stays where it is among the fewest (at position 0 .6 is not enough, at 1 .5 is not),
    # it is the only candidate where it is the best, and nothing comes behind it.
    assert lattice.ids == [[1, END], [2, END], [END]]
    assert lattice.row == [1, 2, END]
    assert (lattice.depth, lattice.k, lattice.generated) == (3, 4, 2)
    # and it is not forced where it is not among the fewest
    assert Lattice.prune(ids, logs, 0.5, [END]).ids == [[1], [2], [END]]
    first = Lattice.prune([[END, 1], [2, 3]], logs[:2], 0.8, [END])
    assert (first.ids, first.depth, first.generated, first.row) == ([[END]], 1, 0, [END])
    none = Lattice.prune(ids, logs, 0.8)
    assert (none.depth, none.generated, none.ends) == (4, 4, frozenset())
    several = Lattice.prune([[1, 2], [OTHER, END]], logs[:2], 1.0, [END, OTHER])
    assert several.ids == [[1, 2], [OTHER]]


# --------------------------------------------------------------------------------------- candidates


@pytest.mark.parametrize("words", [None, torch.arange(3, 2 * V + 13, 2)], ids=["all", "words"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_candidates_are_the_best_that_may_be_drafted(dtype, words):
    logits = (torch.randn(3, 4, V + 5) * 3).to(dtype)
    before = logits.clone()
    banned = torch.tensor([2, 7])
    best = candidates(logits, 5, V, banned, words)
    assert torch.equal(logits, before)
    assert best.shape == (2, 3, 4, 5)
    assert best.dtype == torch.float64
    allowed = [x for x in range(V) if x not in (2, 7)]
    for b, i in np.ndindex(3, 4):
        logq = logits[b, i, allowed].double().log_softmax(-1)
        order = logq.argsort(descending=True, stable=True)[:5]
        ids = torch.tensor(allowed)[order]
        assert best[0, b, i].tolist() == (ids if words is None else words[ids]).tolist()
        assert best[1, b, i].tolist() == pytest.approx(logq[order].tolist(), abs=1e-5)
