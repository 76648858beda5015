"""How much the next tokens depend on each other under a target, measured on texts, and what that costs a head that says several of them at once.

A block head says q_1, .., q_k for tokens X_1, .., X_k after a text C without knowing which X_1 came out. By that its loss is, at the least, the total
correlation ``TC = sum_{j>=2} I(X_j; X_<j | C)`` above that of a head that knew. Everything is in nats.
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
from specwb.engine import Prompt, token_rows
from specwb.flow import BrokenLaw, Draft, Law, State
from specwb.models.falcon import FalconHead
from specwb.models.target import Target
from specwb.options import whole
from specwb.probability import Sampling, inverse_cdf
from specwb.tree import MOST, Tree

AT_ONCE = 64  # laws held in float64


def dependence(
    target: Target, contexts: Sequence[Prompt], k: int = 3, paths: int = 64, temperature: float = 1.0, seed: int = 0,
    domains: Sequence[str] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """How much each of the next k tokens after a text depends on those before it, between two estimates that bound it from either side.

    From n paths x^1, .., x^n that the target draws, and its laws ``p_i = p(X_j | C, x^i_<j)`` over the whole vocabulary::

        information = H(mean_i p_i) - mean_i H(p_i)               its expectation is at most I(X_j; X_<j | C), and it is at most log n
        upper       = mean_i KL(p_i || mean of the others' p)     its expectation is at least I

    The first is biased towards 0: the entropy of a mean of n laws is, in expectation, at most that of the law of X_j. Its bias falls as n grows;
    where I is near log n it says little. ``upper >= n / (n - 1) information`` on any paths; it is infinite where one path alone allows a token
    (in float64). Both are noisy at a single text, most where what matters is a rare X_<j that no path took; for j = 2 :func:`exact_pair` is not.

    Args:
        contexts: texts or token ids; tokens 1..k are those that follow. k: >= 1. paths: n >= 2 a context. temperature: 0 is greedy: all paths are the
            same and everything is 0; 2 paths say so. seed: context i draws from (seed, i). domains: a label for every context, passed through.
    Returns: one row a context and place j = 1..k: context (its number), domain (if given), place, entropy = H(mean_i p_i), conditional =
        mean_i H(p_i) (unbiased), information, upper, total_correlation (of the first j tokens: the information of the places up to j, summed).
    Raises:
        ValueError: no contexts, labels of another number, k < 1, paths < 2 or more than fit a tree, seed < 0, a bad temperature, a context that with
            k tokens more is longer than the target's, tokens it does not have. BrokenLaw: laws with NaN.
    Source: both bounds are those for known conditional laws of Poole et al., "On Variational Bounds of Mutual Information" (2019), arXiv 1905.06922,
        with the sum over the last token done exactly. Falcon (Gao et al. 2024, arXiv 2412.12639, 3.3) has I of two tokens, unmeasured.
    """
    rows = _checked(target, contexts, whole("k", k), paths, seed, domains)
    sampling, trees, out = Sampling(temperature), _trees(target, k, paths), []
    for i, ids in enumerate(rows):
        state = _open(target, ids, trees, sampling)
        out += [{"context": i, "place": j, **_measured(laws)} for j, laws in enumerate(_drawn(target, state, trees, paths, seed, i), 1)]
    return _table(out, domains)


def acceptance_by_dependence(
    target: Target, head: FalconHead, contexts: Sequence[Prompt], paths: int = 64, temperature: float = 1.0, seed: int = 0,
    domains: Sequence[str] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """The table of :func:`dependence` for the k places of a head's block, with what is accepted there of the first pass over each text.

    Columns beside its own, both means over the paths that the target drew::

        acceptance = mean_i sum_x min(p_i(x), q_j(x))              q_j: the head's law of place j, from the text alone, at this temperature
        marginal   = mean_i sum_x min(p_i(x), (mean_l p_l)(x))     of a draft that says the law of X_j given C as it is

    ``marginal`` is what a head has whose places know nothing of each other and whose block loss is the least there is: by Pinsker's inequality
    ``1 - marginal <= sqrt(information / 2)``, on the paths themselves. It is a little too large, since each p_i is part of the mean (1/n where
    the laws have nothing in common). The law with the least loss is not the one that is accepted most, so a head may have more;
    mostly it has less, and that is the head's own.

    At T = 0 laws are points: ``acceptance`` is 1 where the head's best token is the target's after its greedy tokens before it, else 0; ``marginal``
    is 1. The tokens before place j are the target's own, not those that a verification would have let pass.

    Args: as :func:`dependence`; k is the head's, and a context has at least k + 1 tokens.
    Raises:
        ValueError: as :func:`dependence`; a context of fewer tokens, a head of another hidden size.
    """
    hidden = target.backbone.config.hidden_size
    if not isinstance(head, FalconHead) or head.hidden != hidden:
        given = f"{type(head).__name__} of {getattr(head, 'hidden', 'none')}"
        raise ValueError(f"head must be a FalconHead of hidden size {hidden}, the target's; got {given}")
    k = head.k
    rows = _checked(target, contexts, k, paths, seed, domains)
    for i, ids in enumerate(rows):
        if len(ids) <= k:
            raise ValueError(f"context {i} has {len(ids)} tokens; a head of blocks of {k} drafts from {k + 1} on")
    sampling, trees, out = Sampling(temperature), _trees(target, k, paths), []
    for i, ids in enumerate(rows):
        state = _open(target, ids, trees, sampling, head.features)
        drafter = FalconDrafter(head, Tree.chain(k, target.device))
        with torch.inference_mode():
            drafter.open(state, target)
            q = sampling.probabilities(drafter.logits(drafter.begin(state))[0].double())
        for j, laws in enumerate(_drawn(target, state, trees, paths, seed, i), 1):
            shared = [float(torch.minimum(laws, law).sum(-1).mean()) for law in (q[j - 1], laws.mean(0))]
            out.append({"context": i, "place": j, **_measured(laws), "acceptance": shared[0], "marginal": shared[1]})
    return _table(out, domains)


@dataclass(frozen=True)
class Pair:
    """What :func:`exact_pair` finds: ``information``, I(X;Y|C) given that X is one of the ``tokens`` most probable; ``left_out``, the probability of
    the others; ``at_least`` and ``at_most``, between which I(X;Y|C) itself lies."""

    information: float
    at_least: float
    at_most: float
    left_out: float
    tokens: int


def exact_pair(target: Target, context: Prompt, temperature: float = 1.0, keep: float = 0.999, most: int = 512) -> Pair:
    """I(X;Y|C) of the next two tokens, by the target's law of Y after each of the most probable X, with what leaving out the others can change.

    With S the fewest tokens of mass >= ``keep`` (at most ``most`` of them) and m = p(S)::

        I_S = H(sum_S p(x) p(.|x) / m) - sum_S p(x) H(p(.|x)) / m
        m I_S  <=  I(X;Y|C)  <=  m I_S - m log m - sum_{x not in S} p(x) log p(x)

    since ``I(X;Y) = I(B;Y) + m I_S + (1 - m) I(X;Y | X not in S)`` for B = [X in S], where I(B;Y) is at most B's entropy and the last term at most
    (1 - m) times that of X among the tokens left out. The law of Y is whole. One forward over a tree of |S| children.

    Raises:
        ValueError: keep outside (0, 1], most < 1 or more than fits a tree, an empty context, one too long, tokens the target does not have.
        BrokenLaw: laws with NaN.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    if whole("most", most) >= MOST:
        raise ValueError(f"most must be below {MOST}, got {most}")
    (ids,) = _checked(target, [context], 2)
    sampling, most = Sampling(temperature), min(most, target.vocabulary)
    with torch.inference_mode():
        state = target.open([ids], [2], most + 1, sampling, ())
        root = Tree.chain(0, target.device)
        p, order = _laws(sampling, _scored(target, state, root, ids[-1:]))[0].sort(descending=True)
        count = min(int((p.cumsum(0) < keep).sum()) + 1, most)
        kept, rest = p[:count], p[count:]
        mass = kept.sum()
        logits = _scored(target, state, Tree.branching(count, device=target.device), [ids[-1], *order[:count].tolist()])[1:]
        mean, conditional = torch.zeros_like(p), torch.zeros_like(mass)
        for part, weight in zip(logits.split(AT_ONCE), (kept / mass).split(AT_ONCE), strict=True):
            laws = _laws(sampling, part)
            mean += weight @ laws
            conditional += weight @ entr(laws).sum(-1)
        information = (entr(mean).sum() - conditional).clamp_min(0)
        low = mass * information
        high = low + entr(mass).clamp_min(0) + entr(rest).sum()
    return Pair(float(information), float(low), float(high), float(rest.sum()), count)


def _checked(
    target: Target, contexts: Sequence[Prompt], k: int, paths: int = 2, seed: int = 0, domains: Sequence[str] | None = None
) -> list[list[int]]:
    """Token ids of every context."""
    whole("seed", seed, 0)
    nodes = 1 + whole("paths", paths, 2) * (k - 1)
    if nodes > MOST:
        raise ValueError(f"{paths} paths of {k} tokens make a tree of {nodes} nodes, at most {MOST} fit; give fewer paths")
    rows = token_rows(target, contexts)
    if domains is not None and len(domains) != len(rows):
        raise ValueError(f"there are {len(rows)} contexts and {len(domains)} domains; give a label for each")
    for i, ids in enumerate(rows):
        if len(ids) + k > target.context:
            raise ValueError(f"context {i} has {len(ids)} tokens; with {k} more it is longer than the context of {target.name!r} ({target.context})")
    return rows


def _trees(target: Target, k: int, paths: int) -> list[Tree]:
    """What is known of the paths before token j, for j = 1..k."""
    return [Tree.branching(*[paths, *[1] * k][:d], device=target.device) for d in range(k)]


def _open(target: Target, ids: list[int], trees: list[Tree], sampling: Sampling, features: tuple[int, ...] = ()) -> State:
    with torch.inference_mode():
        return target.open([ids], [len(trees)], trees[-1].n, sampling, (), features)


def _scored(target: Target, state: State, tree: Tree, tokens: Sequence[int] | Tensor) -> Tensor:
    """``[n,V]`` logits after every node."""
    row = torch.as_tensor(tokens, device=target.device)[None]
    return target.score(state, Draft(tree, row, torch.ones_like(row, dtype=torch.bool), Law.POINT)).logits[0]


def _laws(sampling: Sampling, logits: Tensor) -> Tensor:
    laws = sampling.probabilities(logits.double())
    if not bool(laws.isfinite().all()):
        raise BrokenLaw("the target's probabilities are NaN; try dtype='float32', or look at the weights")
    return laws


def _drawn(target: Target, state: State, trees: list[Tree], paths: int, seed: int, i: int) -> Iterator[Tensor]:
    """``[paths,V]`` laws of token j = 1..k, each after the tokens that its path drew before."""
    u = np.random.Generator(np.random.Philox(key=[seed, i])).random((len(trees), paths))
    tokens = state.tokens[0, state.horizon - 1 : state.horizon]
    for tree, uniforms in zip(trees, u, strict=True):
        with torch.inference_mode():
            logits = _scored(target, state, tree, tokens)[-paths:]
            laws = _laws(state.sampling, logits).expand(paths, -1)
            tokens = torch.cat([tokens, inverse_cdf(laws, torch.from_numpy(uniforms).to(laws.device))])
        yield laws


def _measured(laws: Tensor) -> dict[str, float]:
    """Of ``laws [n,V]``, which are as many equally probable conditions'."""
    n = len(laws)
    mean, conditional = laws.mean(0), entr(laws).sum(-1).mean()
    # sums before and after a path: a total less its own would leave rounding where the others have next to nothing
    before = F.pad(laws.cumsum(0), (0, 0, 1, 0))[:-1]
    after = F.pad(laws.flip(0).cumsum(0), (0, 0, 1, 0))[:-1].flip(0)
    upper = -xlogy(laws, (before + after) / (n - 1)).sum(-1).mean() - conditional
    entropy = entr(mean).sum()
    return {
        "entropy": float(entropy), "conditional": float(conditional),
        "information": max(float(entropy - conditional), 0.0), "upper": max(float(upper), 0.0),
    }  # fmt: skip


def _table(records: list[dict[str, Any]], domains: Sequence[str] | None) -> pd.DataFrame:
    table = pd.DataFrame(records)
    if domains is not None:
        table.insert(1, "domain", [domains[i] for i in table.context])
    table.insert(table.columns.get_loc("upper") + 1, "total_correlation", table.groupby("context").information.cumsum())  # type: ignore[operator]
    return table
