"""How much the next tokens depend on each other under a target, measured on texts.

That dependence costs a head acceptance that predicts several of them at once. A block head gives
distributions q_1, .., q_k for the tokens X_1, .., X_k after a text C without knowing which X_1 came
out. Therefore its loss is, at the least, the total correlation
``TC = sum_{j>=2} I(X_j; X_<j | C)`` above that of a head that knew. Everything is in nats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.special import entr, xlogy

from specwb.drafters.falcon import FalconDrafter
from specwb.errors import ArgumentError
from specwb.flow import Draft, InvalidDistribution, Scheme, State
from specwb.models.falcon import FalconHead
from specwb.models.prompts import Prompt, check_room, token_rows
from specwb.models.target import Target
from specwb.options import whole
from specwb.probability import Sampling, inverse_cdf
from specwb.tree import MOST, Tree

CHUNK = 64
"""Distributions that are held in float64 at once."""


def dependence(
    target: Target,
    contexts: Sequence[Prompt],
    k: int = 3,
    paths: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
    domains: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Measure how much each of the next k tokens after a text depends on those before it.

    The dependence is bounded from either side by two estimates. From n paths x^1, .., x^n that the
    target draws, and its distributions ``p_i = p(X_j | C, x^i_<j)`` over the whole vocabulary::

        information = H(mean_i p_i) - mean_i H(p_i)
        upper       = mean_i KL(p_i || mean of the others' p)

    The expectation of ``information`` is at most I(X_j; X_<j | C), and it is at most log n; the
    expectation of ``upper`` is at least I.

    The first is biased towards 0: the entropy of a mean of n distributions is, in expectation, at
    most that of the distribution of X_j. Its bias falls as n grows; where I is near log n it says
    little. ``upper >= n / (n - 1) information`` on any paths; it is infinite where only one path
    allows a token (in float64). Both are noisy at a single text, most where a rare X_<j matters
    that no path took; for j = 2 :func:`exact_pair` is not.

    Args:
        target: the target model.
        contexts: texts or token ids; tokens 1..k are those that follow.
        k: number of tokens, >= 1.
        paths: n, the paths a context, >= 2.
        temperature: 0 is greedy. Then all paths are the same and everything is 0, which 2 paths
            show as well as more.
        seed: context i draws from (seed, i).
        domains: a label for every context, copied to the result.
    Returns:
        One row a context and position j = 1..k, with the columns

        - context: its number.
        - domain: its label, if given.
        - place: j.
        - entropy: H(mean_i p_i).
        - conditional: mean_i H(p_i), which is unbiased.
        - information, upper: as above.
        - total_correlation: of the first j tokens, the sum of the information up to j.
    Raises:
        ValueError: there are no contexts or another number of labels; k < 1; paths < 2 or more than
            fit a tree; seed < 0; the temperature is < 0; a context and k tokens more are longer
            than the target's context, or it has tokens that the target does not have.
        InvalidDistribution: probabilities are NaN.

    Source: both bounds are those for known conditional distributions of Poole et al., "On
    Variational Bounds of Mutual Information" (2019), arXiv 1905.06922, with the sum over the last
    token done exactly. Falcon (Gao et al. 2024, arXiv 2412.12639, 3.3) has I of two tokens,
    unmeasured.
    """
    rows = _checked_contexts(target, contexts, whole("k", k), paths, seed, domains)
    sampling, trees = Sampling(temperature), _trees(target, k, paths)
    records = []
    for i, ids in enumerate(rows):
        state = _open(target, ids, trees, sampling)
        for j, p in enumerate(_path_distributions(target, state, trees, paths, seed, i), 1):
            records.append({"context": i, "place": j, **_estimates(p)})
    return _table(records, domains)


def acceptance_by_dependence(
    target: Target,
    head: FalconHead,
    contexts: Sequence[Prompt],
    paths: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
    domains: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Measure dependence and acceptance at the k positions of a head's block.

    Beside the columns of :func:`dependence` there are two means over the paths that the target
    drew, of what is accepted of the first pass over each text::

        acceptance = mean_i sum_x min(p_i(x), q_j(x))
        marginal   = mean_i sum_x min(p_i(x), (mean_l p_l)(x))

    q_j is the head's distribution of position j, from the text only, at this temperature.
    ``marginal`` is the acceptance of a draft whose distribution is that of X_j given C.

    A head has the acceptance ``marginal`` whose positions know nothing of each other and whose
    block loss is the least there is. By Pinsker's inequality
    ``1 - marginal <= sqrt(information / 2)``, on the paths themselves. ``marginal`` is a little too
    large, since each p_i is part of the mean (1/n where the distributions have nothing in common).
    The distribution with the least loss is not the one that is accepted most, so a head may have
    more; mostly it has less, and that is the head's own fault.

    At T = 0 the distributions are one-hot: ``acceptance`` is 1 where the head's best token is the
    target's after its greedy tokens before it, else 0; ``marginal`` is 1. The tokens before
    position j are the target's own, not those that a verification would have accepted.

    Args:
        target: the target model.
        head: its k is the number of tokens.
        contexts: texts or token ids of at least k + 1 tokens. The others are those of
            :func:`dependence`.
    Raises:
        ValueError: as :func:`dependence`; or a context has fewer tokens, or the head another
            hidden size.
    """
    hidden = target.backbone.config.hidden_size
    if not isinstance(head, FalconHead) or head.hidden != hidden:
        kind = f"{type(head).__name__} of {getattr(head, 'hidden', 'none')}"
        raise ArgumentError(
            f"head must be a FalconHead of hidden size {hidden}, the target's; got {kind}"
        )
    k = head.k
    rows = _checked_contexts(target, contexts, k, paths, seed, domains)
    for i, ids in enumerate(rows):
        if len(ids) <= k:
            raise ArgumentError(
                f"context {i} has {len(ids)} tokens; a head of blocks of {k} drafts from {k + 1} on"
            )
    sampling, trees = Sampling(temperature), _trees(target, k, paths)
    records = []
    for i, ids in enumerate(rows):
        state = _open(target, ids, trees, sampling, head.features)
        drafter = FalconDrafter(head, Tree.chain(k, target.device))
        with torch.inference_mode():
            drafter.open(state, target)
            q = sampling.probabilities(drafter.logits(drafter.begin(state))[0].double())
        for j, p in enumerate(_path_distributions(target, state, trees, paths, seed, i), 1):
            records.append(
                {
                    "context": i,
                    "place": j,
                    **_estimates(p),
                    "acceptance": _overlap(p, q[j - 1]),
                    "marginal": _overlap(p, p.mean(0)),
                }
            )
    return _table(records, domains)


def _overlap(p: Tensor, q: Tensor) -> float:
    """``mean_i sum_x min(p_i(x), q(x))``."""
    return float(torch.minimum(p, q).sum(-1).mean())


@dataclass(frozen=True)
class Pair:
    """The result of :func:`exact_pair`.

    Attributes:
        information: I(X;Y|C) given that X is one of the ``tokens`` most probable tokens.
        at_least: a lower bound of I(X;Y|C) itself.
        at_most: an upper bound of it.
        left_out: the probability of all other X.
        tokens: how many X are in.
    """

    information: float
    at_least: float
    at_most: float
    left_out: float
    tokens: int


def exact_pair(
    target: Target,
    context: Prompt,
    temperature: float = 1.0,
    keep: float = 0.999,
    max_tokens: int = 512,
) -> Pair:
    """Compute I(X;Y|C) of the next two tokens.

    It uses the target's distribution of Y after each of the most probable X, and bounds what
    leaving out the others can change. With S the fewest tokens of mass >= ``keep`` (at most
    ``max_tokens`` of them) and m = p(S)::

        I_S = H(sum_S p(x) p(.|x) / m) - sum_S p(x) H(p(.|x)) / m
        m I_S  <=  I(X;Y|C)  <=  m I_S - m log m - sum_{x not in S} p(x) log p(x)

    since ``I(X;Y) = I(B;Y) + m I_S + (1 - m) I(X;Y | X not in S)`` for B = [X in S], where I(B;Y)
    is at most B's entropy and the last term at most (1 - m) times that of X among the tokens left
    out. The distribution of Y is over the whole vocabulary. There is one forward over a tree of
    ``|S|`` children.

    Args:
        target: the target model.
        context: text or token ids.
        temperature: 0 is greedy.
        keep: the mass of S, in (0, 1].
        max_tokens: the most tokens of S.
    Raises:
        ValueError: keep is outside (0, 1]; max_tokens is < 1 or more than fits a tree; the context
            is empty, too long, or has tokens that the target does not have.
        InvalidDistribution: probabilities are NaN.
    """
    if not 0 < keep <= 1:
        raise ArgumentError(f"keep must be in (0, 1], got {keep}")
    if whole("max_tokens", max_tokens) >= MOST:
        raise ArgumentError(f"max_tokens must be below {MOST}, got {max_tokens}")
    (ids,) = _checked_contexts(target, [context], 2)
    sampling, max_tokens = Sampling(temperature), min(max_tokens, target.vocabulary)
    with torch.inference_mode():
        state = target.open([ids], [2], max_tokens + 1, sampling, ())
        root = Tree.chain(0, target.device)
        p = _distributions(sampling, _logits(target, state, root, ids[-1:]))[0]
        p, order = p.sort(descending=True)
        count = min(int((p.cumsum(0) < keep).sum()) + 1, max_tokens)
        p_in, p_out = p[:count], p[count:]
        mass = p_in.sum()
        children = Tree.branching(count, device=target.device)
        logits = _logits(target, state, children, [ids[-1], *order[:count].tolist()])[1:]
        mean, conditional = torch.zeros_like(p), torch.zeros_like(mass)
        weights = p_in / mass
        for part, weight in zip(logits.split(CHUNK), weights.split(CHUNK), strict=True):
            p_y = _distributions(sampling, part)
            mean += weight @ p_y
            conditional += weight @ entr(p_y).sum(-1)
        information = (entr(mean).sum() - conditional).clamp_min(0)
        low = mass * information
        high = low + entr(mass).clamp_min(0) + entr(p_out).sum()
    return Pair(
        information=float(information),
        at_least=float(low),
        at_most=float(high),
        left_out=float(p_out.sum()),
        tokens=count,
    )


def _checked_contexts(
    target: Target,
    contexts: Sequence[Prompt],
    k: int,
    paths: int = 2,
    seed: int = 0,
    domains: Sequence[str] | None = None,
) -> list[list[int]]:
    """The token ids of every context, after a check of the arguments."""
    whole("seed", seed, 0)
    nodes = 1 + whole("paths", paths, 2) * (k - 1)
    if nodes > MOST:
        raise ArgumentError(
            f"{paths} paths of {k} tokens make a tree of {nodes} nodes, at most {MOST} fit; "
            "give fewer paths"
        )
    rows = token_rows(target, contexts)
    if domains is not None and len(domains) != len(rows):
        raise ArgumentError(
            f"there are {len(rows)} contexts and {len(domains)} domains; give a label for each"
        )
    check_room(rows, k, target.name, target.context)
    return rows


def _trees(target: Target, k: int, paths: int) -> list[Tree]:
    """For j = 1..k the tree of all paths up to the token before token j."""
    return [Tree.branching(*[paths, *[1] * k][:d], device=target.device) for d in range(k)]


def _open(
    target: Target,
    ids: list[int],
    trees: list[Tree],
    sampling: Sampling,
    features: tuple[int, ...] = (),
) -> State:
    """A state after a context, with room for the trees."""
    with torch.inference_mode():
        return target.open([ids], [len(trees)], trees[-1].n, sampling, (), features)


def _logits(target: Target, state: State, tree: Tree, tokens: Sequence[int] | Tensor) -> Tensor:
    """``[n,V]`` logits after every node; ``tokens``: of the nodes, the root's first."""
    row = torch.as_tensor(tokens, device=target.device)[None]
    draft = Draft(tree, row, torch.ones_like(row, dtype=torch.bool), Scheme.POINT)
    return target.score(state, draft).logits[0]


def _distributions(sampling: Sampling, logits: Tensor) -> Tensor:
    """``[n,V]`` probabilities in float64; NaN is an error."""
    p = sampling.probabilities(logits.double())
    if not bool(p.isfinite().all()):
        raise InvalidDistribution(
            "the target's probabilities are NaN; try dtype='float32', or look at the weights"
        )
    return p


def _path_distributions(
    target: Target, state: State, trees: list[Tree], paths: int, seed: int, i: int
) -> Iterator[Tensor]:
    """``[paths,V]`` distributions of token j = 1..k, each after the tokens that its path drew."""
    u = np.random.Generator(np.random.Philox(key=[seed, i])).random((len(trees), paths))
    tokens = state.tokens[0, state.horizon - 1 : state.horizon]
    for tree, row in zip(trees, u, strict=True):
        with torch.inference_mode():
            logits = _logits(target, state, tree, tokens)[-paths:]
            p = _distributions(state.sampling, logits).expand(paths, -1)
            uniforms = torch.from_numpy(row).to(p.device)
            tokens = torch.cat([tokens, inverse_cdf(p, uniforms)])
        yield p


def _estimates(p: Tensor) -> dict[str, float]:
    """The columns of :func:`dependence` from ``p [n,V]``, the distributions of n equal paths."""
    n = len(p)
    mean, conditional = p.mean(0), entr(p).sum(-1).mean()
    # The sum of the others is the sum before a path and the sum after it. A total less the path's
    # own would leave rounding where the others have next to nothing.
    before = F.pad(p.cumsum(0), (0, 0, 1, 0))[:-1]
    after = F.pad(p.flip(0).cumsum(0), (0, 0, 1, 0))[:-1].flip(0)
    upper = -xlogy(p, (before + after) / (n - 1)).sum(-1).mean() - conditional
    entropy = entr(mean).sum()
    return {
        "entropy": float(entropy),
        "conditional": float(conditional),
        "information": max(float(entropy - conditional), 0.0),
        "upper": max(float(upper), 0.0),
    }


def _table(records: list[dict[str, Any]], domains: Sequence[str] | None) -> pd.DataFrame:
    """The records as a frame, with the domains and the total correlation."""
    table = pd.DataFrame(records)
    if domains is not None:
        table.insert(1, "domain", [domains[i] for i in table.context])
    after_upper = table.columns.get_loc("upper") + 1  # type: ignore[operator]
    total = table.groupby("context").information.cumsum()
    table.insert(after_upper, "total_correlation", total)
    return table
