"""Verification in rational arithmetic: what a rule outputs, computed and not sampled.

A *node rule* is a function ``node(p, q, tokens) -> (accept, residual)`` that returns the conditional law of a verifier's
decision given the drafts: ``accept[i]`` is the probability that child i is the one accepted, ``residual`` the normalised law
of the closing token given that none is (``None`` when that has probability 0). Because every rule is a law and not a draw,
summing over all drafts gives the law of the output exactly, and *lossless* is an equality of fractions: ``tv(...) == 0``.

A *draft law* is a function ``law(q, k)`` that lists every ordered tuple of children with its probability.

Notation: p target, q draft, both after temperature and filters; ``(x)+ = max(x, 0)``; ``norm(v) = v / sum(v)``.
Children whose current draft probability is 0 are never tested and never counted: no draft law proposes them.

This file needs no tensors, no model and no engine, so that the theory can be checked by itself.
Sources: Leviathan et al. 2022, Chen et al. 2023 (rejection); SpecInfer 2305.09781 and MCSD 2401.06706 (several children).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

Dist = Sequence[Fraction]
"""A distribution over the tokens 0 .. V-1."""
Tokens = tuple[int, ...]
Decision = tuple[list[Fraction], list[Fraction] | None]
NodeRule = Callable[[Dist, Dist, Tokens], Decision]
DraftLaw = Callable[[Dist, int], list[tuple[Tokens, Fraction]]]
Model = Callable[[Tokens], Dist]
"""The law of the next token after a prefix."""

_0, _1 = Fraction(0), Fraction(1)


def norm(weights: Sequence[Fraction | int]) -> list[Fraction]:
    """The distribution proportional to ``weights``: ``w / sum(w)``. Refuses weights that are negative or all zero."""
    total = sum(weights, _0)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"not the weights of a distribution: {weights}")
    return [Fraction(w) / total for w in weights]


def _minus(p: Dist, q: Dist, c: Fraction = _1) -> list[Fraction]:
    """``(p - c q)+``, token by token."""
    return [max(a - c * b, _0) for a, b in zip(p, q, strict=True)]


def _overlap(p: Dist, q: Dist) -> Fraction:
    """``sum min(p, q) = 1 - TV(p, q)``."""
    return sum(map(min, p, q), _0)


# ---------------------------------------------------------------------------------------------------- rules, textbook form


def rejection(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Token rejection is lossless for one child drawn from q.

    Accept x with probability ``min(1, p(x)/q(x))``; otherwise close with ``norm((p - q)+)``.

    Args:
        p, q: target and draft law at the node.
        tokens: the child, or nothing.
    Source: Leviathan et al. 2211.17192; Chen et al. 2302.01318.
    """
    if len(tokens) > 1:
        raise ValueError("token rejection takes one child; use rrs or rrsw for several")
    return rrs(p, q, tokens)


def rrs(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection with replacement is lossless for children drawn independently from q.

    For each child in order: accept with ``min(1, p(x)/q(x))``; on rejection ``p <- norm((p - q)+)``, q unchanged.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order.
    Source: SpecInfer 2305.09781 (multi-step speculative sampling); MCSD 2401.06706 (with replacement).
    """
    return _recursive(p, q, tokens, remove=False)


def rrsw(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection without replacement is lossless for children drawn one after the other without replacement.

    For each child in drawing order: accept with ``min(1, p(x)/q(x))``; on rejection ``p <- norm((p - q)+)``, then
    ``q(x) <- 0`` and ``q <- norm(q)``. A repeated child has q = 0 by then and is skipped, so independent drafts are
    verified as their distinct tokens, which is lossless too.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order (another order is not lossless).
    Source: MCSD 2401.06706 (without replacement); Sequoia 2402.12374.
    """
    return _recursive(p, q, tokens, remove=True)


def _recursive(p: Dist, q: Dist, tokens: Tokens, remove: bool) -> Decision:
    accept, left = [_0] * len(tokens), _1
    for i, x in enumerate(tokens):
        if q[x] == 0:
            continue
        passes = min(_1, p[x] / q[x])
        accept[i], left = left * passes, left * (1 - passes)
        if left == 0:
            return accept, None
        p = norm(_minus(p, q))
        if remove:
            rest = [_0 if y == x else b for y, b in enumerate(q)]
            q = norm(rest) if any(rest) else rest
    return accept, list(p)


def point(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Drawing the next token from p and continuing if it is a child is lossless for any children, however they were chosen.

    Child i is accepted with ``p(x_i)`` (the first of equal ones); otherwise close with p without the children, normalised.

    Args:
        p: target law at the node.
        q: not read.
        tokens: the children.
    Source: EAGLE, vLLM and SGLang verifiers for deterministic children; "naive" (MCNS) when the children are sampled.
    """
    accept = [_0 if x in tokens[:i] else p[x] for i, x in enumerate(tokens)]
    if sum(accept, _0) == 1:
        return accept, None
    return accept, norm([_0 if y in tokens else a for y, a in enumerate(p)])


naive = point
"""The point-mass rule on sampled children: MCSD's naive sampling (MCNS), multi-draft NSS."""


# ------------------------------------------------------------------------------------------------------ rules, scalar form


def rrs_scalar(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection with replacement needs one scalar instead of a residual vector: ``rrs_scalar == rrs``.

    With ``R(c) = sum (p - c q)+``, ``m_1 = 1``, ``M_j = m_1 + .. + m_j``, ``m_{j+1} = R(M_j)``: accept x_j with
    ``min(1, (p(x_j) - M_{j-1} q(x_j))+ / (m_j q(x_j)))``; close with ``norm((p - M_k q)+)``.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order.
    Source: derived in theory/; SpecInfer and MCSD state the recursive form.
    """
    return _scalar(p, q, tokens, remove=False)


def rrsw_scalar(p: Dist, q: Dist, tokens: Tokens) -> Decision:
    """Recursive rejection without replacement needs one scalar instead of two vectors: ``rrsw_scalar == rrsw``.

    With ``A`` the children rejected so far, ``s_j = q(not in A_{j-1})``, ``c_j = c_{j-1} + m_j / s_j``,
    ``m_{j+1} = R(c_j)``: accept x_j with ``min(1, (p(x_j) - c_{j-1} q(x_j))+ s_j / (m_j q(x_j)))``; close with
    ``norm((p - c_k q)+)``, q unpruned: a rejected token stays at 0 because c only grows.

    Args:
        p, q: target and draft law at the node.
        tokens: the children, in drawing order.
    Source: derived in theory/; MCSD and Sequoia state the recursive form.
    """
    return _scalar(p, q, tokens, remove=True)


def _scalar(p: Dist, q: Dist, tokens: Tokens, remove: bool) -> Decision:
    accept, left = [_0] * len(tokens), _1
    c, mass, gone = _0, _1, set[int]()
    for i, x in enumerate(tokens):
        if q[x] == 0 or x in gone:
            continue
        stays = sum((b for y, b in enumerate(q) if y not in gone), _0)
        passes = min(_1, max(p[x] - c * q[x], _0) * stays / (mass * q[x]))
        accept[i], left = left * passes, left * (1 - passes)
        if left == 0:
            return accept, None
        c += mass / stays
        mass = sum(_minus(p, q, c), _0)
        if remove:
            gone.add(x)
    return accept, norm(_minus(p, q, c))


# -------------------------------------------------------------------------------------------------------------- draft laws


def iid(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """All k-tuples drawn independently from q: ``P(x_1..x_k) = prod q(x_j)``.

    Args:
        q: draft law. k: number of children.
    """
    support = [x for x, b in enumerate(q) if b > 0]
    return [(xs, math.prod((q[x] for x in xs), start=_1)) for xs in product(support, repeat=k)]


def without_replacement(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """All tuples drawn one after the other without replacement: ``P(x_1..x_k) = prod q(x_j) / q(not in x_1..x_{j-1})``.

    When the support of q is smaller than k the tuples are as long as the support.

    Args:
        q: draft law. k: number of children asked for.
    """
    drawn: list[tuple[Tokens, Fraction]] = [((), _1)]
    for _ in range(min(k, sum(b > 0 for b in q))):
        drawn = [
            ((*xs, x), prob * b / sum((c for y, c in enumerate(q) if y not in xs), _0))
            for xs, prob in drawn
            for x, b in enumerate(q)
            if b > 0 and x not in xs
        ]
    return drawn


def top(q: Dist, k: int) -> list[tuple[Tokens, Fraction]]:
    """The one tuple of the k most probable tokens in the support of q, lowest index first among equals, with probability 1.

    Args:
        q: what ranks the tokens; the children are deterministic. k: number of children asked for.
    """
    ranked = sorted((x for x, b in enumerate(q) if b > 0), key=lambda x: (-q[x], x))
    return [(tuple(ranked[:k]), _1)]


LAWS: dict[str, DraftLaw] = {"IID": iid, "WITHOUT_REPLACEMENT": without_replacement, "POINT": top}

RULES: dict[str, NodeRule] = {"rejection": rejection, "rrs": rrs, "rrsw": rrsw, "point": point, "naive": naive}

LOSSLESS: dict[str, tuple[str, ...]] = {
    "rejection": ("IID", "WITHOUT_REPLACEMENT"),
    "rrs": ("IID",),
    "rrsw": ("WITHOUT_REPLACEMENT", "IID"),
    "point": ("POINT", "IID", "WITHOUT_REPLACEMENT"),
    "naive": ("IID", "WITHOUT_REPLACEMENT", "POINT"),
}
"""The draft laws each rule is lossless for (rejection: one child only)."""


# ---------------------------------------------------------------------------------------------------------------- one node


def conditional_law(decision: Decision, tokens: Tokens, vocabulary: int) -> list[Fraction]:
    """The law of the next token given the children: ``sum_i accept_i [x_i = y] + (1 - sum_i accept_i) residual(y)``.

    Args:
        decision: what a node rule returned. tokens: the children it was given. vocabulary: V.
    """
    accept, residual = decision
    law = [_0] * vocabulary
    for x, a in zip(tokens, accept, strict=True):
        law[x] += a
    if residual is not None:
        none = 1 - sum(accept, _0)
        law = [a + none * r for a, r in zip(law, residual, strict=True)]
    return law


def output_law(rule: NodeRule, law: DraftLaw, p: Dist, q: Dist, k: int) -> list[Fraction]:
    """The law of the next token at one node, ``P(Y = y) = sum_x P(x) P(y | x)``; the rule is lossless iff it equals p.

    Args:
        rule: node rule. law: draft law. p, q: target and draft law. k: number of children.
    """
    out = [_0] * len(p)
    for tokens, prob in law(q, k):
        given = conditional_law(rule(p, q, tokens), tokens, len(p))
        out = [a + prob * b for a, b in zip(out, given, strict=True)]
    return out


def acceptance(rule: NodeRule, law: DraftLaw, p: Dist, q: Dist, k: int) -> Fraction:
    """The probability that the next token is one of the children, ``P(Y in {x_1..x_k})``.

    A closing token that happens to equal a child counts (it never does under rejection, rrs, rrsw and point).

    Args:
        rule: node rule. law: draft law. p, q: target and draft law. k: number of children.
    """
    total = _0
    for tokens, prob in law(q, k):
        given = conditional_law(rule(p, q, tokens), tokens, len(p))
        total += prob * sum((given[x] for x in set(tokens)), _0)
    return total


def rejection_acceptance(p: Dist, q: Dist) -> Fraction:
    """Token rejection accepts with probability ``sum min(p, q) = 1 - TV(p, q)``, the most any lossless rule can for one draft.

    Args:
        p, q: target and draft law.
    Source: Leviathan et al. 2211.17192.
    """
    return _overlap(p, q)


def rrs_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection with replacement accepts with ``1 - prod_i (1 - beta_i)``, ``beta_i = sum min(p_i, q)``.

    ``p_1 = p``, ``p_{i+1} = norm((p_i - q)+)`` do not depend on the draws.

    Args:
        p, q: target and draft law. k: number of children.
    Source: SpecInfer 2305.09781; MCSD 2401.06706.
    """
    rejected = _1
    for _ in range(k):
        beta = _overlap(p, q)
        rejected *= 1 - beta
        if rejected == 0:
            break
        p = norm(_minus(p, q))
    return 1 - rejected


def rrs_acceptance_scalar(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection with replacement accepts with ``1 - m_{k+1}``, ``m_{j+1} = R(m_1 + .. + m_j)``, ``m_1 = 1``.

    Args:
        p, q: target and draft law. k: number of children.
    Source: derived in theory/.
    """
    c, mass = _0, _1
    for _ in range(k):
        c += mass
        mass = sum(_minus(p, q, c), _0)
    return 1 - mass


def rrsw_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """Recursive rejection without replacement accepts with ``1 - sum over ordered distinct tuples of prod_i (q_i - p_i)+(x_i)``.

    The sum runs over tuples as long as k or, if that is less, the support of q; it has no closed form, p_i and q_i
    depending on the tokens before.

    Args:
        p, q: target and draft law. k: number of children.
    Source: MCSD 2401.06706.
    """

    def rejected(p: Dist, q: Dist, k: int) -> Fraction:
        if k == 0 or not any(q):
            return _1
        loss = _minus(q, p)
        if not any(loss):
            return _0
        after, total = norm(_minus(p, q)), _0
        for x, amount in enumerate(loss):
            if amount:
                rest = [_0 if y == x else b for y, b in enumerate(q)]
                total += amount * rejected(after, norm(rest) if any(rest) else rest, k - 1)
        return total

    return 1 - rejected(p, q, k)


def point_acceptance(p: Dist, tokens: Tokens) -> Fraction:
    """The point-mass rule accepts with the target mass of the children, ``p({x_1..x_k})``; no rule that is lossless given them can do better.

    Args:
        p: target law. tokens: the deterministic children.
    """
    return sum((p[x] for x in set(tokens)), _0)


def naive_acceptance(p: Dist, q: Dist, k: int) -> Fraction:
    """The point-mass rule on k independent draws from q accepts with ``sum p (1 - (1 - q)^k)``.

    Args:
        p, q: target and draft law. k: number of children.
    """
    return sum((a * (1 - (1 - b) ** k) for a, b in zip(p, q, strict=True)), _0)


# --------------------------------------------------------------------------------------------------------------- one round


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of every node: 0 at the root, ``depth[parents[i]] + 1`` elsewhere.

    Args:
        parents: -1 for the root (node 0), else ``parents[i] < i``; siblings in index order are in drawing order.
    """
    if not parents or parents[0] != -1:
        raise ValueError("node 0 must be the root, with parent -1")
    depth = [0]
    for i, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < i:
            raise ValueError(f"parent {parent} of node {i} does not come before it")
        depth.append(depth[parent] + 1)
    return depth


def trees(law: DraftLaw, draft: Model, parents: Sequence[int]) -> Iterator[tuple[tuple[Tokens | None, ...], Fraction]]:
    """Every drafted tree with its probability: ``P(tree) = prod over inner nodes of P(children | path)``.

    Each node is given as the path of tokens from the root to it (the root: ``()``), or ``None`` where the support of the draft
    law was too small for a child; then the nodes below it are ``None`` as well.

    Args:
        law: draft law of every group of siblings. draft: draft model. parents: the tree.
    """
    depths(parents)
    kids = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]

    def grow(node: int, paths: tuple[Tokens | None, ...], prob: Fraction) -> Iterator[tuple[tuple[Tokens | None, ...], Fraction]]:
        if node == len(parents):
            yield paths, prob
            return
        path = paths[node]
        if path is None or not kids[node]:
            yield from grow(node + 1, paths, prob)
            return
        for tokens, chance in law(draft(path), len(kids[node])):
            filled = list(paths)
            for kid, x in zip(kids[node], tokens, strict=False):
                filled[kid] = (*path, x)
            yield from grow(node + 1, tuple(filled), prob * chance)

    yield from grow(0, ((),) + (None,) * (len(parents) - 1), _1)


def _walks(rule: NodeRule, law: DraftLaw, target: Model, draft: Model, parents: Sequence[int]) -> Iterator[tuple[Tokens, Dist | None, Fraction]]:
    """Top-down walks through every tree: (accepted path, law of the closing token, probability)."""
    kids = [[i for i, parent in enumerate(parents) if parent == node] for node in range(len(parents))]
    known: dict[tuple[Tokens, Tokens], Decision] = {}
    for paths, chance in trees(law, draft, parents):
        todo = [(0, chance)]
        while todo:
            node, prob = todo.pop()
            path = paths[node]
            assert path is not None
            drafted = [(i, kid[-1]) for i in kids[node] if (kid := paths[i]) is not None]
            if not drafted:
                yield path, target(path), prob
                continue
            tokens = tuple(x for _, x in drafted)
            if (path, tokens) not in known:
                known[path, tokens] = rule(target(path), draft(path), tokens)
            accept, residual = known[path, tokens]
            todo += [(i, prob * a) for (i, _), a in zip(drafted, accept, strict=True) if a]
            if none := 1 - sum(accept, _0):
                yield path, residual, prob * none


def round_law(rule: NodeRule, law: DraftLaw, target: Model, draft: Model, tree_parents: Sequence[int]) -> dict[Tokens, Fraction]:
    """The joint law of the D + 1 tokens a round over a tree starts; the round is lossless iff it equals ``target_law``.

    Enumerates the drafted trees, walks each from the root (accept a child, or close), and extends outputs shorter than D + 1
    by the target model, so that wrong lengths and wrong bonus tokens show as well.

    Args:
        rule: node rule, used at every node. law: draft law of every group of siblings.
        target, draft: prefix -> law of the next token. tree_parents: the tree, -1 for the root.
    """
    length = max(depths(tree_parents)) + 1
    layers: list[dict[Tokens, Fraction]] = [{} for _ in range(length + 1)]
    for path, closing, prob in _walks(rule, law, target, draft, tree_parents):
        if closing is None:
            raise ValueError(f"the rule leaves probability {prob} after {path} without a law for the closing token")
        layer = layers[len(path) + 1]
        for y, a in enumerate(closing):
            if a:
                layer[(*path, y)] = layer.get((*path, y), _0) + prob * a
    for n in range(1, length):
        for path, prob in layers[n].items():
            for y, a in enumerate(target(path)):
                if a:
                    layers[n + 1][(*path, y)] = layers[n + 1].get((*path, y), _0) + prob * a
    return layers[length]


def target_law(target: Model, length: int) -> dict[Tokens, Fraction]:
    """The joint law of the next tokens under plain decoding: ``prod_i p(x_i | x_<i)``, tokens of probability 0 left out.

    Args:
        target: prefix -> law of the next token. length: number of tokens.
    """
    law: dict[Tokens, Fraction] = {(): _1}
    for _ in range(length):
        law = {(*path, y): prob * a for path, prob in law.items() for y, a in enumerate(target(path)) if a}
    return law


def expected_accepted(rule: NodeRule, law: DraftLaw, target: Model, draft: Model, tree_parents: Sequence[int]) -> Fraction:
    """The expected number of drafted tokens a round accepts, ``sum over nodes of P(node reached)``, the root left out.

    Args:
        rule: node rule. law: draft law. target, draft: prefix -> law of the next token. tree_parents: the tree.
    """
    return sum((len(path) * prob for path, _, prob in _walks(rule, law, target, draft, tree_parents)), _0)


def chain_expected_accepted(target: Model, draft: Model, gamma: int) -> Fraction:
    """Token rejection on a chain accepts ``sum_i sum over paths x^i of prod_{j<=i} min(p, q)(x_j | x_<j)`` tokens.

    Args:
        target, draft: prefix -> law of the next token. gamma: length of the chain.
    Source: Leviathan et al. 2211.17192, for laws that depend on the prefix.
    """
    total = _0
    reached: dict[Tokens, Fraction] = {(): _1}
    for _ in range(gamma):
        reached = {
            (*path, x): prob * min(a, b)
            for path, prob in reached.items()
            for x, (a, b) in enumerate(zip(target(path), draft(path), strict=True))
            if min(a, b)
        }
        total += sum(reached.values(), _0)
    return total


def point_expected_accepted(target: Model, paths: Sequence[Tokens | None]) -> Fraction:
    """The point-mass rule on a tree of distinct siblings accepts ``sum over nodes of p(path)`` tokens; no rule that is lossless
    given the tree can do better.

    Args:
        target: prefix -> law of the next token. paths: the nodes of one drafted tree, as ``trees`` yields them.
    """
    total = _0
    for path in paths:
        if path:
            total += math.prod((target(path[:i])[x] for i, x in enumerate(path)), start=_1)
    return total


def tv(a: Dist | Mapping[Tokens, Fraction], b: Dist | Mapping[Tokens, Fraction]) -> Fraction:
    """Total variation, ``1/2 sum |a - b|``, of two laws over tokens or over sequences; 0 iff they are equal.

    Args:
        a, b: lists over the same vocabulary, or dictionaries in which what is missing has probability 0.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sum((abs(a.get(x, _0) - b.get(x, _0)) for x in {*a, *b}), _0) / 2
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        raise TypeError("cannot compare a law over tokens with a law over sequences")
    return sum((abs(x - y) for x, y in zip(a, b, strict=True)), _0) / 2
