"""How much the next tokens depend on each other under a target, measured on texts.

That dependence costs a head acceptance that predicts several of them at once. A block head gives
distributions q_1, .., q_k for the tokens X_1, .., X_k after a text C without knowing which X_1 came
out. Therefore its loss is, at the least, the total correlation
``TC = sum_{j>=2} I(X_j; X_<j | C)`` above that of a head that knew. Everything is in nats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.special import entr

from specwb.core.flow import Draft, InvalidDistribution, Scheme, State
from specwb.core.probability import Sampling, inverse_cdf
from specwb.core.tree import Tree
from specwb.drafters.falcon import FalconDrafter
from specwb.models.falcon import FalconHead
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.target import Target


@torch.inference_mode()
def acceptance_by_dependence(
    target: Target,
    head: FalconHead,
    contexts: Sequence[Prompt],
    paths: int = 64,
    temperature: float = 1.0,
) -> pd.DataFrame:
    """Measure dependence and acceptance at the k positions of a head's block.

    From n paths x^1, .., x^n that the target draws, and its distributions
    ``p_i = p(X_j | C, x^i_<j)`` over the whole vocabulary, and with q_j the head's distribution of
    position j, from the text only, at this temperature::

        information = H(mean_i p_i) - mean_i H(p_i)
        acceptance = mean_i sum_x min(p_i(x), q_j(x))
        marginal   = mean_i sum_x min(p_i(x), (mean_l p_l)(x))

    The expectation of ``information`` is at most I(X_j; X_<j | C): the entropy of a mean of n
    distributions is, in expectation, at most that of the distribution of X_j. It is at most log n,
    and its bias towards 0 falls as n grows; where I is near log n it says little.

    ``marginal`` is the acceptance of a draft whose distribution is that of X_j given C. A head has
    it whose positions know nothing of each other and whose block loss is the least there is. By
    Pinsker's inequality ``1 - marginal <= sqrt(information / 2)``, on the paths themselves.
    ``marginal`` is a little too large, since each p_i is part of the mean (1/n where the
    distributions have nothing in common). The distribution with the least loss is not the one that
    is accepted most, so a head may have more; mostly it has less, and that is the head's own fault.

    At T = 0 the distributions are one-hot: ``acceptance`` is 1 where the head's best token is the
    target's after its greedy tokens before it, else 0; ``marginal`` is 1. The tokens before
    position j are the target's own, not those that a verification would have accepted.

    Args:
        target: the target model.
        head: its k is the number of tokens.
        contexts: texts or token ids of at least k + 1 tokens; tokens 1..k are those that follow.
        paths: n, the paths a context, >= 2.
        temperature: 0 is greedy. Then all paths are the same and the information is 0.
    Returns:
        One row a context and position j = 1..k, with the columns context and place (their numbers),
        information, acceptance and marginal.
    Raises:
        ValueError: there are no contexts, the temperature is < 0, a context and k tokens more are
            longer than the target's context, or it has tokens that the target does not have.
        InvalidDistribution: probabilities are NaN.

    Source: the bound is that for known conditional distributions of Poole et al., "On Variational
    Bounds of Mutual Information" (2019), arXiv 1905.06922, with the sum over the last token done
    exactly. Falcon (Gao et al. 2024, arXiv 2412.12639, 3.3) has I of two tokens, unmeasured.
    """
    rows, k = token_rows(target, contexts), head.k
    check_room(rows, k, target.name, target.context)
    sampling = Sampling(temperature)
    # for j = 1..k the tree of all paths up to the token before token j
    trees = [Tree.branching(*[paths, *[1] * k][:d], device=target.device) for d in range(k)]
    records: list[dict[str, Any]] = []
    for i, ids in enumerate(rows):
        state = target.open([ids], [k], trees[-1].n, sampling, (), head.features)
        drafter = FalconDrafter(head, Tree.chain(k, target.device))
        drafter.open(state, target)
        q = sampling.probabilities(drafter.logits(drafter.begin(state))[0].double())
        for j, p in enumerate(_path_distributions(target, state, trees, paths, i)):
            mean = p.mean(0)
            information = float(entr(mean).sum() - entr(p).sum(-1).mean())
            records.append(
                {
                    "context": i,
                    "place": j + 1,
                    "information": max(information, 0.0),
                    "acceptance": float(torch.minimum(p, q[j]).sum(-1).mean()),
                    "marginal": float(torch.minimum(p, mean).sum(-1).mean()),
                }
            )
    return pd.DataFrame(records)


def _path_distributions(
    target: Target, state: State, trees: list[Tree], paths: int, i: int
) -> Iterator[Tensor]:
    """``[paths,V]`` distributions of token j = 1..k, each after the tokens that its path drew."""
    u = np.random.Generator(np.random.Philox(key=[0, i])).random((len(trees), paths))
    tokens = state.tokens[0, state.horizon - 1 : state.horizon]
    for tree, row in zip(trees, u, strict=True):
        ids = torch.as_tensor(tokens, device=target.device)[None]
        draft = Draft(tree, ids, torch.ones_like(ids, dtype=torch.bool), Scheme.POINT)
        logits = target.score(state, draft).logits[0, -paths:]
        p = state.sampling.probabilities(logits.double())
        if not bool(p.isfinite().all()):
            raise InvalidDistribution(
                "the target's probabilities are NaN; try dtype='float32', or look at the weights"
            )
        p = p.expand(paths, -1)
        tokens = torch.cat([tokens, inverse_cdf(p, torch.from_numpy(row).to(p.device))])
        yield p
