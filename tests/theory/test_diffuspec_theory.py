"""theory/11_diffuspec.md: laws in fractions, searches against all paths, and what its theorems say
of the code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction as F
from itertools import combinations, pairwise, permutations, product

import pytest
import torch

from specwb.core.probability import Sampling
from specwb.drafters.diffuspec_parts.lattice import Lattice, beam, exhaustive, viterbi
from specwb.models.path import sampled_walk
from specwb.theory import exact as E
from specwb.theory.analysis import diffusion as d
from specwb.theory.instances import models
from specwb.theory.wrong_rules import WRONG_RULES

Distributions = Sequence[E.Dist]
Joint = dict[E.Tokens, F]
CHAIN = (-1, 0, 1, 2)


def drawn(rng: random.Random, v: int, least: int = 1) -> list[F]:
    return E.norm([rng.randint(least, 6) for _ in range(v - 1)] + [1])


def block(rng: random.Random, k: int, v: int, sure: int = 0) -> Joint:
    """A joint law with zeros; ``sure`` more weight for one path."""
    weights = {x: rng.choice([0, 0, 1, 2, 5]) for x in product(range(v), repeat=k)}
    weights[rng.choice(list(weights))] += 1 + sure
    return {x: F(w, sum(weights.values())) for x, w in weights.items() if w}


def flat(distributions: Distributions) -> E.Model:
    """A draft that says all its places at once."""
    return lambda prefix: distributions[len(prefix)]


def padded(distributions: Distributions, v: int) -> list[list[F]]:
    return [[*distribution, *[F(0)] * (v - len(distribution))] for distribution in distributions]


def given(joint: Joint, known: dict[int, int], place: int, v: int) -> list[F]:
    """The law of one place given others."""
    there = {x: c for x, c in joint.items() if all(x[i] == a for i, a in known.items())}
    return E.norm([sum((c for x, c in there.items() if x[place] == y), F(0)) for y in range(v)])


def lossless(outcomes: Iterable[E.Outcome], target: E.Model, length: int) -> bool:
    return E.completed(outcomes, target, length) == E.target_distribution(target, length)


def divergence(p: Sequence, q: Sequence) -> float:
    return sum(float(a) * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


# -------------------------------------------------------------------------------- 11.1, marginals


def test_one_pass_gives_marginals():
    """Every law of a place loses its divergence from the marginal, all together the total
    correlation; and so for every set of hidden places."""
    rng = random.Random(0)
    for _ in range(6):
        k, v = 3, 2
        joint = block(rng, k, v)
        distributions, said = padded(d.marginals(joint), v), [drawn(rng, v) for _ in range(k)]

        def loss(distributions: Distributions, joint: Joint = joint) -> float:
            drafted = {x: math.prod(m[y] for m, y in zip(distributions, x)) for x in joint}
            return -sum(float(c) * math.log(drafted[x]) for x, c in joint.items())

        autoregressive = -sum(float(c) * math.log(c) for c in joint.values())
        correlation = sum(
            float(c) * math.log(c / math.prod(m[y] for m, y in zip(distributions, x, strict=True)))
            for x, c in joint.items()
        )
        assert loss(distributions) == pytest.approx(autoregressive + correlation)
        assert loss(said) == pytest.approx(
            loss(distributions)
            + sum(divergence(m, q) for m, q in zip(distributions, said, strict=True))
        )

        # hidden places S, the others seen: what is lost is a sum over S, with laws of its own for
        # each
        found = least = over = 0.0
        for hidden in (s for n in range(1, k + 1) for s in combinations(range(k), n)):
            weight, said_there = rng.random(), {}
            for x, c in joint.items():
                known = {i: x[i] for i in range(k) if i not in hidden}
                for i in hidden:
                    best = given(joint, known, i, v)
                    other = said_there.setdefault((i, *known.items()), drawn(rng, v))
                    found -= weight * float(c) * math.log(other[x[i]])
                    least -= weight * float(c) * math.log(best[x[i]])
                    over += weight * float(c) * divergence(best, other)
        assert found == pytest.approx(least + over)
        assert over > 0.01
        assert [given(joint, {}, i, v) for i in range(k)] == distributions  # all hidden


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_how_many_places_are_hidden(k):
    """Integrals over t of binomial probabilities, multiplied out; and of the same with each hidden
    place weighing 1/t."""

    def integral(n: int, less: int) -> F:
        return math.comb(k, n) * sum(
            (F(math.comb(k - n, j) * (-1) ** j, n + j - less + 1) for j in range(k - n + 1)), F(0)
        )

    assert [integral(n, 0) for n in range(k + 1)] == [F(1, k + 1)] * (k + 1)
    weights = [n * integral(n, 1) for n in range(1, k + 1)]
    assert sum(weights) == k
    assert weights[-1] / sum(weights) == F(1, k)


def test_where_the_targets_distribution_may_be_learnt():
    """The mean of the target's law given what is shown is the law of the token given that, if
    nothing to its right is shown."""
    rng, other = random.Random(13), 0
    for _ in range(10):
        k, v = 3, 2
        joint = block(rng, k, v)
        for place in range(k):
            for shown in (
                s for n in range(k) for s in combinations(sorted({*range(k)} - {place}), n)
            ):
                for values in {tuple(x[i] for i in shown) for x in joint}:
                    known = dict(zip(shown, values, strict=True))
                    there = {
                        x: c for x, c in joint.items() if all(x[i] == a for i, a in known.items())
                    }
                    distributions = {
                        x: given(joint, dict(enumerate(x[:place])), place, v) for x in there
                    }
                    weighted = [[c * a for a in distributions[x]] for x, c in there.items()]
                    mean = E.norm([sum(column, F(0)) for column in zip(*weighted, strict=True)])
                    right = max(shown, default=-1) > place
                    assert right or mean == given(joint, known, place, v)
                    other += right and mean != given(joint, known, place, v)
    assert other > 20
    copied = {(0, 0): F(1, 2), (1, 1): F(1, 2)}
    assert given(copied, {1: 0}, 0, 2) == [1, 0]
    assert given(copied, {}, 0, 2) == [F(1, 2), F(1, 2)]


def test_the_number_of_masks_as_a_promise():
    """Answers of one token say 0, those of two say 1 first. Trained on whole answers a model says 0
    to one mask and 1 to two."""
    answers = {(1, 0): F(2, 5), (2, 1): F(3, 5)}  # (length, first token)
    by_length = {length: given(answers, {0: length}, 1, 2) for length in (1, 2)}
    assert by_length == {1: [1, 0], 2: [0, 1]}
    mean = [sum(c * by_length[n][y] for (n, _), c in answers.items()) for y in range(2)]
    assert mean == given(answers, {}, 1, 2) == [F(2, 5), F(3, 5)]


# ---------------------------------------------------------------------------------- 11.2, the row


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_row_is_no_path(k):
    rest = {0: 2, 1: 1, 2: 1}  # what follows the first token
    joint = {(x, *[y] * (k - 1)): F(4 - (x > 0), 10) for x, y in rest.items()}
    row, greedy = d.argmax_row(joint), d.greedy_path(joint)
    assert row == (0, *[1] * (k - 1))
    assert not any(x[:2] == row[:2] for x in joint)
    assert d.expected_accepted(joint, row) == F(2, 5)
    assert greedy == d.best_path(joint) == (0, *[2] * (k - 1))
    assert d.expected_accepted(joint, greedy) == k * d.expected_accepted(joint, row)


def test_bounds_of_the_row():
    rng, sure, apart, tight = random.Random(1), 0, 0, 0
    for case in range(200):
        k, v = rng.choice([(2, 3), (3, 2), (3, 3), (2, 4)])
        joint = block(rng, k, v, sure=20 * (case % 2) * v**k)
        row, distributions = d.argmax_row(joint), d.marginals(joint)
        kept, most = d.expected_accepted(joint, row), d.expected_accepted(joint, d.best_path(joint))
        assert row[0] == d.greedy_path(joint)[0]
        assert kept >= max(distributions[0]) >= most / k
        s, spent = F(0), F(0)
        for j, distribution in enumerate(distributions, start=1):
            s += 1 - distribution[row[j - 1]]
            assert sum((c for x, c in joint.items() if x[:j] == row[:j]), F(0)) >= 1 - s
            spent += max(1 - s, F(0))
        assert kept >= spent
        tight += kept == spent
        if s < F(1, 2):
            assert row == d.greedy_path(joint) == d.most_probable(joint)
        sure += s < F(1, 2)
        apart += row != d.greedy_path(joint)
    assert min(sure, apart) > 20
    assert tight > 0
    for e in (F(1, 10), F(1, 1000)):  # no number above 1/2
        joint = {(0, 0): F(1, 2) - 3 * e / 2, (0, 1): F(1, 2) - e / 2, (1, 0): 2 * e}
        assert (
            sum(1 - max(distribution) for distribution in d.marginals(joint)) == F(1, 2) + 3 * e / 2
        )
        assert d.argmax_row(joint) == (0, 0)
        assert d.greedy_path(joint) == d.most_probable(joint) == (0, 1)


# ------------------------------------------------------------------------------- 11.3, the search


class Table:
    """A proxy of probabilities: ``row(tokens before)`` is a law or a part of one."""

    def __init__(self, order: int, row) -> None:
        self.order, self.row = order, row

    def scores(self, context, candidates, /) -> list[float]:
        distribution = self.row(tuple(context[max(0, len(context) - self.order + 1) :]))
        return [math.log(distribution[x]) for x in candidates]


def lattice(rows: Sequence[Sequence[F]], ends: Sequence[int] = ()) -> Lattice:
    """All tokens of positive probability at every place, the likeliest first."""
    ids = [
        sorted((x for x, q in enumerate(row) if q), key=lambda x, row=row: (-row[x], x))
        for row in rows
    ]
    logq = [[math.log(row[x]) for x in places] for row, places in zip(rows, ids, strict=True)]
    return Lattice(ids, logq, frozenset(ends))


def test_a_beam_as_wide_as_the_states_can_miss_the_best_path():
    rows = [[F(1, 2), F(1, 2)], [F(3, 4), F(1, 4)], [F(1, 2), F(1, 2)]]
    quarter = [F(1, 4), F(1, 4)]
    proxy = Table(2, lambda before: [F(1, 4), F(1, 2)] if before == (1,) else quarter)
    where = lattice(rows)
    assert viterbi(where, proxy).tokens == exhaustive(where, proxy)[0].tokens == (1, 1, 1)
    for b in (1, 2, 3, 4):
        assert (beam(where, proxy, width=b)[0].tokens == (1, 1, 1)) is (b > 2)
    beginnings = beam(Lattice(where.ids[:2], where.logq[:2]), proxy, width=2)
    assert {path.tokens[-1] for path in beginnings} == {0}
    first = math.log(F(1, 2)) + math.log(F(1, 4))  # of the first token, the same for all
    ways = {path.tokens: math.exp(2 * path.score - first) for path in exhaustive(where, proxy)}
    assert ways[1, 1, 1] == pytest.approx(4 / 128)
    assert max(c for x, c in ways.items() if x[1] == 0) == pytest.approx(3 / 128)


def test_lambda_moves_one_way():
    rng, moved = random.Random(2), 0
    for _ in range(12):
        rows = [drawn(rng, 4) for _ in range(3)]
        table = {before: drawn(rng, 4) for before in [(), *((x,) for x in range(4))]}
        where, proxy = lattice(rows), Table(2, table.__getitem__)
        said, causal = [], []
        for lam in (0, 0.2, 0.4, 0.6, 0.8, 1):
            path = viterbi(where, proxy, lam=lam).tokens
            said.append(sum(math.log(row[x]) for row, x in zip(rows, path, strict=True)))
            causal.append(sum(proxy.scores(path[:i], [x])[0] for i, x in enumerate(path)))
        assert all(a <= b + 1e-9 for a, b in pairwise(said))
        assert all(a >= b - 1e-9 for a, b in pairwise(causal))
        assert viterbi(where, proxy, lam=1).tokens == tuple(where.row)
        assert beam(where, proxy, lam=1, width=1)[0].tokens == tuple(where.row)
        moved += said[0] < said[-1] - 1e-9
    assert moved > 6


PRIOR = [F(3, 10), F(3, 10), F(1, 10), F(3, 10)]
SAID = [F(6, 10), F(1, 10), F(2, 10), F(1, 10)]
CAUSAL = [F(1, 10), F(6, 10), F(2, 10), F(1, 10)]


def test_two_kinds_of_evidence():
    """p(x|C, h) from a joint table in which C and h are independent given x, against m r / p; also
    for random tables."""
    rng = random.Random(3)
    for case in range(20):
        v = 4
        if case:
            prior, (c, h) = drawn(rng, v), ([drawn(rng, 3) for _ in range(v)] for _ in range(2))
        else:  # the instance: likelihoods proportional to SAID/PRIOR and CAUSAL/PRIOR
            prior = PRIOR
            c, h = (
                [[a / b / 10, 1 - a / b / 10] for a, b in zip(distribution, PRIOR, strict=True)]
                for distribution in (SAID, CAUSAL)
            )
        m = E.norm([prior[x] * c[x][0] for x in range(v)])
        r = E.norm([prior[x] * h[x][0] for x in range(v)])
        truth = E.norm([prior[x] * c[x][0] * h[x][0] for x in range(v)])
        assert E.norm([m[x] * r[x] / prior[x] for x in range(v)]) == truth
        if not case:
            assert (m, r, truth) == (SAID, CAUSAL, [F(6, 25), F(6, 25), F(12, 25), F(1, 25)])


def test_a_path_that_no_lambda_chooses():
    where, proxy = lattice([SAID]), Table(1, lambda before: CAUSAL)
    chosen = {viterbi(where, proxy, lam=i / 100).tokens[0] for i in range(101)}
    assert chosen == {0, 1}  # 2 is the likeliest: test_two_kinds_of_evidence


def test_the_most_probable_path_is_not_kept_longest():
    joint = {(0, 0): F(1, 4), (0, 1): F(1, 4), (1, 2): F(3, 10), (2, 2): F(1, 5)}
    likely, best = d.most_probable(joint), d.best_path(joint)
    assert (likely, d.expected_accepted(joint, likely)) == ((1, 2), F(3, 5))
    assert (best, d.expected_accepted(joint, best)) == ((0, 0), F(3, 4))
    rng = random.Random(4)
    for _ in range(10):  # a Markov law: from the end, by the last token alone
        v, k = 3, 4
        first, step = drawn(rng, v), [drawn(rng, v, 0) for _ in range(v)]
        markov = E.target_distribution(
            lambda prefix, first=first, step=step: step[prefix[-1]] if prefix else first, k
        )
        f = [F(0)] * v
        for _ in range(k - 1):
            f = [max(p * (1 + f[x]) for x, p in enumerate(step[s])) for s in range(v)]
        assert max(p * (1 + f[x]) for x, p in enumerate(first)) == d.expected_accepted(
            markov, d.best_path(markov)
        )


# ----------------------------------------------------------------------- 11.4, what keeps the law


def path_as_draft(path: E.Tokens, v: int) -> E.Model:
    """A draft whose top token at place i is the path's."""
    return lambda prefix: [F(x == path[len(prefix)]) for x in range(v)]


def two(seed: int, v: int, kind: str, k: int = 3) -> tuple[E.Model, Distributions]:
    """A target whose laws change with every prefix, and a law for every place."""
    target, draft = models(seed, v, kind)
    return target, [draft((0,) * i) for i in range(k)]


every_model = pytest.mark.parametrize(("v", "kind"), [(2, "any"), (2, "dense"), (3, "any")])


@every_model
def test_every_path_is_lossless_by_the_point_mass_rule(v, kind):
    """All paths, so also the one that a search would choose, whatever it chose by."""
    for seed in range(3):
        target, distributions = two(seed, v, kind)
        proxy = Table(2, lambda before: [F(1 + (x in before), v + 1) for x in range(v)])
        found = beam(lattice(distributions), proxy)[0].tokens
        for path in (found, *product(range(v), repeat=3)):
            draft = path_as_draft(path, v)
            assert lossless(E.walks(E.point, E.top, target, draft, CHAIN), target, 4)


@every_model
def test_independent_draws_are_lossless(v, kind):
    for seed in range(4):
        target, distributions = two(seed, v, kind)
        draft = flat(distributions)
        assert lossless(E.walks(E.rejection, E.iid, target, draft, CHAIN), target, 4)
        assert lossless(E.TREE_RULES["block"].outcomes("IID", target, draft, CHAIN), target, 4)


@pytest.mark.parametrize("paths", [2, 3])
def test_independent_sequences_are_lossless(paths):
    """Also in any fixed order; their order of drawing is one of them."""
    for seed, (v, kind) in product(range(2), [(2, "any"), (2, "dense"), (3, "dense")][: 5 - paths]):
        target, distributions = two(seed, v, kind, 2)
        draft = flat(distributions)
        for order in permutations(range(paths)):

            def ordered(drawn: list[E.Tokens], order=order) -> list[E.Tokens]:
                return [drawn[i] for i in order]

            assert lossless(sequences(target, distributions, paths, ordered), target, 3)
        parents = (-1, *[0] * paths, *range(1, paths + 1))
        assert lossless(E.paths_outcomes(E.rrs, target, draft, parents), target, 3)
        # all sequences that agree are followed: under the rule of points the target's text is kept
        # as far as some sequence has it
        outcomes = E.paths_outcomes(E.point, target, draft, parents)
        expected = F(0)
        for n in (1, 2):
            said = E.target_distribution(draft, n)
            for x, p in E.target_distribution(target, n).items():
                expected += p * (1 - (1 - said.get(x, F(0))) ** paths)
        assert E.mean_accepted(outcomes) == expected


def sequences(
    target: E.Model, distributions: Distributions, paths: int, arrange, rule: E.NodeRule = E.rrs
) -> Iterator[E.Outcome]:
    """Rounds over sequences of independent draws, arranged in some way before they are tested."""
    for drawn in product(*(E.iid(distribution, paths) for distribution in distributions)):
        found = arrange(list(zip(*(tokens for tokens, _ in drawn), strict=True)))
        chance = math.prod((c for _, c in drawn), start=F(1))
        yield from E.walked(rule, target, flat(distributions), found, chance)


def as_tree(paths: Sequence[E.Tokens], v: int) -> tuple[tuple[int, ...], E.Model]:
    """Paths merged where they begin alike: the tree, and a draft whose top tokens at a node are its
    children in order."""
    nodes: list[E.Tokens] = [()]
    for n in range(1, max(map(len, paths)) + 1):
        nodes += list(dict.fromkeys(path[:n] for path in paths if len(path) >= n))
    below = {node: [x[-1] for x in nodes if x and x[:-1] == node] for node in nodes}
    weights = {
        node: [F(v + 1 - kids.index(x)) if x in kids else F(0) for x in range(v)]
        for node, kids in below.items()
    }
    return (-1, *(nodes.index(node[:-1]) for node in nodes[1:])), lambda prefix: weights[prefix]


@every_model
def test_beams_as_a_tree(v, kind):
    rng, more = random.Random(7), 0
    for seed in range(6):
        target, distributions = two(seed, v, kind)
        proxy = Table(2, lambda before: [F(1 + (x in before), v + 1) for x in range(v)])
        found = [path.tokens for path in beam(lattice(distributions), proxy, width=3)]
        some = rng.sample(list(product(range(v), repeat=3)), 3)
        for paths in (found, some, [some[0][:1], some[1]]):
            parents, draft = as_tree(paths, v)
            outcomes = E.walks(E.point, E.top, target, draft, parents)
            assert lossless(outcomes, target, max(E.depths(parents)) + 1)
            kept = E.expected_accepted(E.point, E.top, target, draft, parents)
            joint = E.target_distribution(target, 3)
            nodes = {path[:n] for path in paths for n in range(1, len(path) + 1)}
            assert kept == sum(c for x, c in joint.items() for n in range(1, 4) if x[:n] in nodes)
            best = max(d.expected_accepted(joint, path) for path in paths)
            assert kept >= best
            more += kept > best
    assert more > 3


def test_two_denoising_steps_are_not_a_draw():
    """The second place first, the first given it; each tested with the law of the step that drew
    it."""
    half = [F(1, 2), F(1, 2)]

    def target(prefix: E.Tokens) -> E.Dist:
        return half

    def outcomes(second: Callable[[int], E.Dist]) -> Iterator[E.Outcome]:
        for y, chance in enumerate(half):  # x_2 = y, and x_1 is the same for certain
            yield from E.walked(E.rejection, target, flat([points[y], second(y)]), [(y, y)], chance)

    points = [[F(1), F(0)], [F(0), F(1)]]
    distribution = E.completed(outcomes(lambda y: half), target, 3)
    assert sum(distribution.values()) == 1
    for x, y in product(range(2), repeat=2):
        assert sum(distribution[x, y, z] for z in range(2)) == F(3 if x == y else 1, 8)
    assert E.tv(distribution, E.target_distribution(target, 3)) == F(1, 4)
    assert lossless(outcomes(lambda y: points[y]), target, 3)  # tested as what they are: chosen


# ---------------------------------------------------------------------------- 11.5, what does not


def test_a_searched_path_tested_as_a_drawn_one():
    p, q = [F(3, 10), F(7, 10)], [F(3, 5), F(2, 5)]
    assert d.ratio_distribution(p, q, 0) == [F(1, 2), F(1, 2)]
    assert E.tv(d.ratio_distribution(p, q, 0), p) == F(1, 5)
    searched, target = WRONG_RULES["searched_ratio"], lambda prefix: p
    for parents, length in (((-1, 0), 2), (CHAIN, 4)):
        outcomes = searched.outcomes(target, lambda prefix: q, parents)
        wrong = E.completed(outcomes, target, length)
        assert sum(wrong.values()) == 1
        assert sum(c for x, c in wrong.items() if x[0] == 0) == F(1, 2)
        right = E.walks(E.point, E.top, target, path_as_draft((0,) * 3, 2), parents)
        assert lossless(right, target, length)


def test_how_far_off_it_can_be():
    """One place: bounds from both sides. A round: the expected sum over the places that are
    tested."""
    rng, equal = random.Random(8), 0
    for _ in range(300):
        v = rng.choice([2, 3, 4])
        p, q = drawn(rng, v, 0), drawn(rng, v)
        for x in range(v):
            a = min(F(1), p[x] / q[x])
            off = E.tv(d.ratio_distribution(p, q, x), p)
            assert a - p[x] <= off <= 1 - q[x]
            assert v > 2 or off == a - p[x]
            assert (a == p[x]) == (p[x] in (0, 1) or q[x] == 1)
            assert E.tv(d.ratio_distribution(q, q, x), q) == 1 - q[x]
            equal += off == a - p[x]
    assert equal > 100
    strict = 0
    for seed in range(8):
        target, draft = models(seed, 3, "dense")
        distributions = [draft((0,) * i) for i in range(2)]
        outcomes = list(WRONG_RULES["searched_ratio"].outcomes(target, draft, (-1, 0, 1)))
        path = max(
            (path for path, _, _ in outcomes), key=len
        )  # laws without zeros: sometimes all of it is kept
        bound = sum(
            prob * sum(1 - distributions[i][path[i]] for i in range(min(len(kept) + 1, 2)))
            for kept, _, prob in outcomes
        )
        off = E.tv(E.completed(outcomes, target, 3), E.target_distribution(target, 3))
        assert len(path) == 2
        assert 0 < off <= bound
        tested_once = sum(prob for kept, _, prob in outcomes if not kept)
        strict += (
            bound < 2 - distributions[0][path[0]] - distributions[1][path[1]] and tested_once > 0
        )
    assert strict > 3


def test_sorting_sequences():
    third = [F(1, 3), F(2, 3)]

    def target(prefix: E.Tokens) -> E.Dist:
        return third

    def likelier_first(drawn: list[E.Tokens]) -> list[E.Tokens]:
        return sorted(drawn, key=lambda path: -math.prod(third[x] for x in path))

    distribution = E.completed(sequences(target, [third], 2, likelier_first), target, 1 + 1)
    assert sum(c for x, c in distribution.items() if x[0] == 1) == F(8, 9)
    assert E.tv(distribution, E.target_distribution(target, 2)) == F(2, 9)
    assert lossless(sequences(target, [third], 2, list), target, 2)
    # what is sorted may be verified as what it is: candidates
    for length in (1, 2):
        right = sequences(target, [third] * length, 2, likelier_first, E.point)
        assert lossless(right, target, length + 1)
    mutant = WRONG_RULES["sorted_paths"].outcomes
    assert E.completed(mutant(target, target, (-1, 0, 0)), target, 2) == distribution
    assert lossless(mutant(target, target, (-1, 0)), target, 2)  # nothing to sort


# -------------------------------------------------------------------------- 11.6, adaptive length


@pytest.mark.parametrize("rho", [F(1, 2), F(1, 5), F(1)])
def test_the_averages_begin_at_nothing(rho):
    rounds = d.adl_trace([9] * 6, [4] * 6, least=9, most=9, rho=rho)
    assert [r.mean_generated for r in rounds] == [(1 - (1 - rho) ** n) * 9 for n in range(1, 7)]
    assert [r.mean_accepted for r in rounds] == [(1 - (1 - rho) ** n) * 4 for n in range(1, 7)]


def traces(count: int, end: bool = True) -> Iterator[tuple[list[d.AdlRound], int, int]]:
    """Random rounds, the first ones whole, with their limits."""
    rng = random.Random(9)
    for _ in range(count):
        least = rng.randint(1, 20)
        most = least + rng.randint(0, 30)
        n, whole = 25, rng.randint(0, 8)
        made = [
            rng.choice([None, rng.randint(0, most)]) if end or i <= whole else None
            for i in range(n)
        ]
        kept = [most if i < whole else rng.randint(0, most) for i in range(n)]
        kept = [k if m is None else min(k, m) for k, m in zip(kept, made, strict=True)]
        delta, rho = rng.randint(0, 12), F(rng.randint(1, 4), 5)
        yield d.adl_trace(made, kept, least, most, delta, rho), least, most


def test_growth_ends_with_the_first_failure():
    seen = fell = grew = 0
    for rounds, _, _ in traces(150):
        whole = True
        for r, after in zip(rounds, [*rounds[1:], None], strict=True):
            whole = whole and r.accepted == r.generated
            assert r.grows == whole
            grew += r.next > r.k
            if not whole and after is not None:
                assert after.next <= after.k == r.next
                fell += after.next < after.k
        seen += not whole
    assert seen > 100
    assert min(fell, grew) > 50
    # the newest round alone, with rho = 1
    rounds = d.adl_trace([3, 5, 4], [1, 5, 3], 1, 9, 2, F(1))
    assert [r.grows for r in rounds] == [False, True, False]
    # in floating point the gap is lost after some fifty whole rounds
    rounds = d.adl_trace([None] * 80, [19] + [20] * 79, least=20, most=20, rho=0.5)
    assert not any(r.grows for r in rounds[:45])
    assert rounds[-1].grows
    assert not any(
        r.grows for r in d.adl_trace([None] * 80, [19] + [20] * 79, least=20, most=20, rho=F(1, 2))
    )


def test_without_ends_the_length_is_frozen():
    lengths = set()
    for rounds, least, most in traces(150, end=False):
        first = next((i for i, r in enumerate(rounds) if r.accepted < r.generated), None)
        if first is not None:
            frozen = min(max(math.ceil(rounds[first].mean_generated), least), most)
            assert {r.next for r in rounds[first:]} == {frozen}
            lengths.add((frozen > least, frozen < most))
    assert len(lengths) >= 3


def test_published_constants():
    rng, later = random.Random(10), set()
    for a, b in product([None, 0, 7, 19, 20, 21, 25, 29, 30], repeat=2):
        for _ in range(30):
            rest = [rng.choice([None, rng.randint(0, 30)]) for _ in range(12)]
            made = [a, b, *rest]
            kept = [rng.randint(0, 30 if m is None else m) for m in made]
            kept[0] = rng.choice([kept[0], 30 if a is None else a])
            rounds = d.adl_trace(made, kept)
            assert rounds[0].k == 30
            whole = [r.accepted == r.generated for r in rounds]
            if not whole[0]:
                assert {r.k for r in rounds[1:]} == {20}
            elif not whole[1]:
                assert {r.k for r in rounds[2:]} == {20}
                later.add(rounds[1].k)
    assert min(later) == 20
    assert max(later) == 25
    for least, most, rho in ((4, 8, F(1, 2)), (6, 30, F(1, 5))):
        rounds = d.adl_trace([None] * 9, [most - 1] + [most] * 8, least, most, rho=rho)
        assert [r.k for r in rounds] == [most] + [least] * 8
    frozen_elsewhere = d.adl_trace([None] * 6, [30, 25, 30, 0, 5, 28])  # three whole rounds
    assert [r.k for r in frozen_elsewhere] == [30, 25, 30, 30, 28, 28]


def test_a_relaxed_condition_grows_again():
    rng, again, both = random.Random(11), 0, set()
    for _ in range(60):
        share, rho, n = F(rng.randint(1, 9), 10), F(rng.randint(1, 4), 5), 12
        made = [rng.choice([None, rng.randint(0, 30)]) for _ in range(n)]
        kept = [rng.randint(0, 30 if m is None else m) for m in made]
        rounds = d.adl_trace(made, kept, 4, 30, 4, rho, share)
        low, high = [rng.randint(0, 29) for _ in range(n)], [rng.randint(0, 4) for _ in range(n)]
        closing = d.adl_trace(
            low, [max(x - y, 0) + 1 for x, y in zip(low, high, strict=True)], 30, 30, 4, rho
        )
        for m in range(n):
            weights = [rho * (1 - rho) ** (m - j) for j in range(m + 1)]
            a, b = (
                sum(w * getattr(r, what) for w, r in zip(weights, rounds, strict=False))
                for what in ("generated", "accepted")
            )
            assert rounds[m].grows == (b >= share * a)
            again += rounds[m].grows and any(r.accepted < r.generated for r in rounds[: m + 1])
            lost = sum(
                w * (r.generated - (r.accepted - 1)) for w, r in zip(weights, closing, strict=False)
            ) / sum(weights)
            assert closing[m].grows == (lost <= 1)
            both.add(closing[m].grows)
    assert again > 50
    assert both == {False, True}


# ---------------------------------------------------------------------- 11.7, choosing or drawing


def test_choosing_against_drawing_at_one_place():
    rng, ahead = random.Random(12), set()
    for _ in range(300):
        v = rng.choice([2, 3, 4])
        p, q = drawn(rng, v, 0), drawn(rng, v)
        alpha = E.overlap(p, q)
        for x in range(v):
            kept = p[x]
            assert alpha - kept == sum(
                (min(a, b) for y, (a, b) in enumerate(zip(p, q, strict=True)) if y != x), F(0)
            ) - max(p[x] - q[x], F(0))
            assert kept - alpha <= max(p[x] - q[x], F(0))
            assert p[x] > q[x] or alpha >= kept
            ahead.add((alpha > kept) - (alpha < kept))
        square = sum(a * a for a in p)
        assert math.exp(sum(float(a) * math.log(a) for a in p if a)) <= float(square) + 1e-12
        assert square <= max(p)
        assert E.naive_acceptance(p, p, 1) == square
        uniform = len({a for a in p if a}) == 1
        assert (square == max(p)) == uniform
        assert (
            abs(math.exp(sum(float(a) * math.log(a) for a in p if a)) - float(square)) < 1e-9
        ) == uniform
    assert ahead == {-1, 0, 1}


def test_a_colder_draft_becomes_a_choice():
    p, q = [F(1, 2), F(3, 10), F(1, 5)], [F(2, 5), F(7, 20), F(1, 4)]
    kept = [E.overlap(p, E.norm([b**n for b in q])) for n in (1, 2, 50, 400)]  # temperatures 1/n
    assert abs(kept[-1] - p[0]) < F(1, 10**6) < abs(kept[0] - p[0])
    assert kept[1] > max(kept[0], p[0])  # between the ends it can be better than at both
    certain = [F(0), F(1), F(0)]
    assert E.overlap(certain, q) == q[1]


@pytest.mark.parametrize("v", [2, 3, 4])
def test_choosing_against_drawing_a_block(v):
    ahead = []
    for k in range(1, 8):
        joint = {(x,) * k: F(1, v) for x in range(v)}
        by_draws, by_choice = d.drawn_accepted(joint), d.expected_accepted(joint, (0,) * k)
        assert by_draws == sum(F(1, v**j) for j in range(k)) < F(v, v - 1)
        assert by_choice == F(k, v)
        if k <= 4:
            assert d.expected_accepted(joint, d.best_path(joint)) == by_choice
        ahead.append(by_choice > by_draws)
    assert ahead == sorted(ahead)  # from some length on
    assert not ahead[0]
    assert ahead[-1]
    assert v != 4 or ahead.index(True) + 1 == 6


# ---------------------------------------------------------------------- 11.8, walks over candidates


def a_walk(rng: random.Random, v: int, k: int, restricted: bool = False) -> E.Model:
    """A sampled walk as a draft: at every place random weights of candidates behind the candidates
    of the place before, and the model's own probabilities of all others and behind all others."""
    kept = [rng.sample(range(v), rng.randint(1, v)) for _ in range(k)]
    own = [E.norm([F(rng.randint(0, 3)) for _ in range(v - 1)] + [F(1)]) for _ in range(k)]
    scores = [[[F(rng.randint(1, 6), 4) for _ in range(v)] for _ in range(v)] for _ in range(k)]

    def draft(prefix: E.Tokens) -> E.Dist:
        i = len(prefix)
        if i and prefix[-1] not in kept[i - 1] and not restricted:
            return own[i]
        row = scores[i][prefix[-1] if prefix else 0]
        other = [F(0)] * v if restricted else own[i]
        return E.norm([row[b] if b in kept[i] else other[b] for b in range(v)])

    return draft


@every_model
@pytest.mark.parametrize("restricted", [False, True])
def test_sampled_walks_are_lossless(v, kind, restricted):
    for seed in range(3):
        target, _ = two(seed, v, kind)
        draft = a_walk(random.Random(seed), v, 3, restricted)
        assert lossless(E.walks(E.rejection, E.iid, target, draft, CHAIN), target, 4)
        assert lossless(E.TREE_RULES["block"].outcomes("IID", target, draft, CHAIN), target, 4)
        parents = (-1, 0, 0, 1, 2)
        assert lossless(E.paths_outcomes(E.rrs, target, draft, parents), target, 3)


def test_walks_are_drawn_as_in_the_theorem():
    """What the drafter calls the q of a node, against the theorem's weights: behind a candidate and
    behind another token, also with a temperature."""
    rng, behind_others = random.Random(5), 0
    for _ in range(40):
        kept = [rng.sample(range(4), 2) for _ in range(2)]
        own = [E.norm([F(rng.randint(1, 5)) for _ in range(4)]) for _ in range(2)]
        weights = [
            [[F(rng.randint(1, 6), 4) for _ in range(2)] for _ in range(2)] for _ in range(2)
        ]
        weights[0][1] = weights[0][0]  # behind the anchor
        t = rng.choice([1.0, 0.5])
        tokens, q = sampled_walk(
            torch.tensor([[[[float(x) for x in b] for b in a] for a in weights]]).double().log(),
            torch.tensor([kept]),
            torch.tensor([[[float(x) for x in row] for row in own]]).double().log(),
            Sampling(t),
            torch.tensor([[rng.random(), rng.random()]]).double(),
        )
        first = int(tokens[0, 0])
        behind_others += first not in kept[0]
        for i in range(2):
            wanted = list(own[i])
            if not i or first in kept[0]:
                rank = kept[0].index(first) if i else 0
                for b, x in zip(kept[i], weights[i][rank], strict=True):
                    wanted[b] = x
            if t == 0.5:
                wanted = [x * x for x in wanted]
            exact = torch.tensor([float(x) for x in E.norm(wanted)]).double()
            assert torch.allclose(q[0, i], exact, atol=1e-7)
    assert 5 < behind_others < 35


def test_candidates_limit_a_restricted_walk():
    """The bound, its equality for the scores of a Markov chain, and that others stay below it."""
    rng, below = random.Random(3), 0
    for _ in range(60):
        v = rng.choice([3, 4])
        p = drawn(rng, v, 0)
        kept = rng.sample(range(v), rng.randint(1, v))
        mass = sum(p[b] for b in kept)
        if not mass:
            continue
        best = E.norm([p[b] if b in kept else F(0) for b in range(v)])
        assert E.overlap(p, best) == mass
        other = E.norm([F(rng.randint(1, 6)) if b in kept else F(0) for b in range(v)])
        assert E.overlap(p, other) <= mass
        below += E.overlap(p, other) < mass
    assert below > 20


def test_what_other_tokens_add_to_a_walk():
    """The formula and its bounds for the scores of a Markov chain: more or less than the mass of
    the candidates; and the two instances."""

    def accepted(p: E.Dist, m: E.Dist, kept: list[int]) -> tuple[F, F, F]:
        others = [b for b in range(len(p)) if b not in kept]
        q = E.norm([p[b] if b in kept else m[b] for b in range(len(p))])
        mass, rest = sum((p[b] for b in kept), F(0)), sum((m[b] for b in others), F(0))
        z = mass + rest
        found = E.overlap(p, q)
        assert found == mass / max(F(1), z) + sum(min(p[b], m[b] / z) for b in others)
        assert (found == 1) == all(m[b] == p[b] for b in others)
        return found, mass, rest

    rng, more, less = random.Random(4), 0, 0
    for _ in range(80):
        v = rng.choice([3, 4])
        p, m = (E.norm([F(rng.choice([1, 1, 2, 9])) for _ in range(v)]) for _ in range(2))
        found, mass, rest = accepted(p, m, rng.sample(range(v), rng.randint(1, v - 1)))
        assert found >= mass / (1 + rest)
        more, less = more + (found > mass), less + (found < mass)
    assert more > 20
    assert less > 2
    m = [F(2, 5), F(2, 5), F(1, 5)]
    assert accepted([F(2, 5), F(2, 5), F(1, 5)], m, [0, 1])[:2] == (1, F(4, 5))
    assert accepted([F(1, 2), F(1, 2), F(0)], m, [0, 1])[:2] == (F(5, 6), 1)


def test_a_greedy_walk_tested_as_a_drawn_one():
    """Biased where the walk is not sure, by more than nothing."""
    p = [F(3, 5), F(2, 5)]
    always = min(F(1), p[0] / p[0])
    assert always - p[0] == F(2, 5)
    target, _ = two(1, 2, "dense")
    draft = a_walk(random.Random(1), 2, 3)
    path: E.Tokens = ()
    for _ in range(3):
        q = draft(path)
        path = (*path, max(range(2), key=q.__getitem__))
    # a node rule that takes the path for a draw
    found = E.walked(E.rejection, target, draft, [path], F(1))
    assert not lossless(found, target, 4)
    point = E.walks(E.point, E.top, target, path_as_draft(path, 2), CHAIN)
    assert lossless(point, target, 4)
