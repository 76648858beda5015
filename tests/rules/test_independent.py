"""Improved MCSD's own rule: what it writes by a closed form, and that it is LOSSY."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.core.flow import Draft, Scheme, Scores
from specwb.core.probability import Sampling
from specwb.rules import Independent

ROWS = 200_000
P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.3, 0.2, 0.4], dtype=torch.float64)


def written(tree: specwb.Tree) -> torch.Tensor:
    """The distribution of the first token of many steps over one level of draws from Q."""
    generator = torch.Generator().manual_seed(0)
    n, V = tree.n, len(P)
    drawn = torch.multinomial(Q.expand(ROWS, -1), n - 1, replacement=True, generator=generator)
    tokens = torch.cat([torch.zeros_like(drawn[:, :1]), drawn], 1)
    q_row = torch.tensor([[0, *[-1] * (n - 1)]])
    valid = torch.ones_like(tokens, dtype=torch.bool)
    draft = Draft(tree, tokens, valid, Scheme.IID, Q.expand(ROWS, 1, V), q_row)
    scores = Scores(P.log().expand(ROWS, n, V), Sampling(1.0))
    u = torch.rand(ROWS, Independent().uniforms(tree.limits), dtype=torch.float64)
    verdict = Independent().verify(draft, scores, u)
    first = tokens.gather(1, verdict.path[:, 1:2])[:, 0]
    assert verdict.distribution is not None
    # where nothing is accepted the bonus token is drawn; its distribution says how often each is
    counts = torch.bincount(first[verdict.accepted > 0], minlength=V).double()
    return (counts + verdict.distribution[verdict.accepted == 0].sum(0)) / ROWS


@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_level_by_its_closed_form(k):
    torch.manual_seed(1)
    shared = torch.minimum(P, Q)
    rest = 1 - shared.sum()
    expected = shared * sum(rest**i for i in range(k)) + rest**k * P
    found = written(specwb.Tree.branching(k))
    assert float((found - expected).abs().max()) < 0.005
    assert float((found - P).abs().sum()) / 2 > 0.05  # one child is LOSSY too


def test_a_path_that_ends_inside_goes_on_from_the_residual():
    tree = specwb.Tree.chain(2)
    tokens = torch.tensor([[0, 1, 3]])
    draft = Draft(
        tree,
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        Scheme.IID,
        Q.expand(1, 2, -1),
        torch.tensor([[0, 1, -1]]),
    )
    scores = Scores(P.log().expand(1, 3, -1), Sampling(1.0))
    for u, accepted, law in (
        ((0.5, 0.9), 1, (P - Q).relu() / (P - Q).relu().sum()),  # .9 * .4 > .05
        ((0.5, 0.1), 2, P),
        ((1.0, 0.1), 0, P),  # the second token alone is no path
    ):
        verdict = Independent().verify(draft, scores, torch.tensor([u], dtype=torch.float64))
        assert int(verdict.accepted) == accepted
        assert verdict.distribution is not None
        assert torch.allclose(verdict.distribution[0], law)


def test_it_is_lossy_and_greedy_text_is_that_of_the_longest():
    several = {"draft": tiny.draft(), "roots": 2, "tree": (2, 1), "lossy": True, "stop": "none"}
    target = tiny.target(dtype=torch.float64)
    one = specwb.method("mcsd", target, draft=tiny.draft(), tree=(2, 1), rule="independent")
    published = specwb.method("mcsd_ti", target, rule="independent", **several)
    repaired = specwb.method("mcsd_ti", target, **several)
    assert one.exactness is published.exactness is specwb.Exactness.LOSSY
    prompts = tiny.PROMPTS[:2]

    def texts(method, temperature=0.0):
        how = {"max_new_tokens": 12, "temperature": temperature, "seed": 1}
        return specwb.decode(target, prompts, method, **how).tokens

    assert texts(one) == texts("ar")
    assert texts(published) == texts(repaired)
    assert [len(text) for text in texts(published, 1.0)] == [12, 12]
    with pytest.raises(specwb.RuleMismatch, match="'independent' is made for"):
        specwb.method("mcsd", target, draft=tiny.draft(), draw="greedy", rule="independent")
