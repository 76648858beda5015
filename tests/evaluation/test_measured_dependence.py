"""Dependence of the next tokens: against every continuation of a tiny target written out, and acceptance against what drafting really proposes."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from torch.special import entr

import specwb
from specwb.evaluation import dependence as measured
from specwb.models.eagle import EagleHead, eagle_config
from specwb.models.falcon import FalconHead

SIX, TEXT, WARM = 6, [1, 2, 3, 0], 0.5


@cache
def small() -> specwb.Target:
    """Six tokens; spread so wide that the next tokens are far from independent."""
    return specwb.load(tiny.build("llama", seed=4, spread=0.4, vocab_size=SIX))


@cache
def joint(temperature: float = WARM) -> torch.Tensor:
    """``[6,6,6]``: the law of the three tokens after ``TEXT``, from the library's forward, prefix by prefix."""

    def law(prefix: tuple[int, ...]) -> torch.Tensor:
        return (tiny.forward(small().model, [*TEXT, *prefix])[-1].double() / temperature).softmax(-1)

    table = torch.zeros(SIX, SIX, SIX, dtype=torch.float64)
    for x, y in itertools.product(range(SIX), repeat=2):
        table[x, y] = law(())[x] * law((x,))[y] * law((x, y))
    return table


def entropy(table: torch.Tensor) -> float:
    return float(entr(table).sum())


def true_information(table: torch.Tensor) -> tuple[float, float]:
    """I(X;Y) and I(XY;Z) from entropies of marginals."""
    x, y, z, xy = table.sum((1, 2)), table.sum((0, 2)), table.sum((0, 1)), table.sum(2)
    return entropy(x) + entropy(y) - entropy(xy), entropy(xy) + entropy(z) - entropy(table)


def test_many_paths_come_to_the_truth():
    table = joint()
    first, second = true_information(table)
    assert min(first, second) > 0.3
    found = measured.dependence(small(), [TEXT] * 12, paths=300, temperature=WARM).groupby("place").mean()
    assert found.information.tolist() == pytest.approx([0, first, second], abs=0.04)
    assert found.upper.tolist() == pytest.approx([0, first, second], abs=0.04)
    singles = [entropy(table.sum((1, 2))), entropy(table.sum((0, 2))), entropy(table.sum((0, 1)))]
    assert found.entropy.tolist() == pytest.approx(singles, abs=0.04)
    # total correlation: what the marginals' entropies have beyond the joint's
    assert found.total_correlation.tolist() == pytest.approx([0, first, sum(singles) - entropy(table)], abs=0.06)


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.slow
def test_bias_is_as_stated(n):
    """Few paths, many times: the mean of one estimate lies below the truth, that of the other above; of two paths both are what enumeration says."""
    many = 400
    found = measured.dependence(small(), [TEXT] * many, k=3, paths=n, temperature=WARM, seed=3)
    for place, true in zip((2, 3), true_information(joint())):
        mine = found[found.place == place]
        error = mine[["information", "upper"]].std() / many**0.5
        assert mine.information.mean() + 2 * error.information < true < mine.upper.mean() - 2 * error.upper
        assert mine.information.max() <= math.log(n) + 1e-12
        assert (mine.upper >= n / (n - 1) * mine.information - 1e-12).all()
    if n == 2:
        p, given = joint().sum((1, 2)), joint().sum(2) / joint().sum((1, 2))[:, None]
        mean, above = 0.0, 0.0
        for a, b in itertools.product(range(SIX), repeat=2):
            one, other = given[a], given[b]
            mean += float(p[a] * p[b]) * (entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2)
            above += float(p[a] * p[b] * (one * (one / other).log()).sum())
        mine = found[found.place == 2]
        assert abs(mine.information.mean() - mean) < 4 * mine.information.std() / many**0.5
        assert abs(mine.upper.mean() - above) < 4 * mine.upper.std() / many**0.5
        assert mean < true_information(joint())[0] < above


def test_others_are_summed_without_cancelling():
    """A token that one path alone allows: the others' mean there is what they say, not the rounding of a difference."""
    laws = torch.tensor([[1 - 1e-30, 1e-30], [0.1, 0.9], [1 - 1e-40, 1e-40]], dtype=torch.float64)
    by_hand = sum(
        float((laws[i] * (laws[i] / laws[[l for l in range(3) if l != i]].mean(0)).log()).sum()) for i in range(3)
    ) / 3  # fmt: skip
    assert measured._measured(laws)["upper"] == pytest.approx(by_hand, rel=1e-9)
    # and where they have nothing, it is not finite
    assert measured._measured(torch.tensor([[1.0, 0], [0.5, 0.5]], dtype=torch.float64))["upper"] == math.inf


def test_exact_pair_is_exact_and_its_bounds_hold():
    true, _ = true_information(joint())
    whole = measured.exact_pair(small(), TEXT, WARM, keep=1.0)
    assert whole.tokens == SIX
    assert (whole.information, whole.at_least, whole.at_most) == pytest.approx((true, true, true), abs=1e-5)
    p = joint().sum((1, 2)).sort(descending=True)
    for count in range(1, SIX):
        # keep a little less than count tokens have
        part = measured.exact_pair(small(), TEXT, WARM, keep=float(p.values[:count].sum()) - 1e-4)
        assert part.tokens == count
        assert part.left_out == pytest.approx(float(p.values[count:].sum()), abs=1e-6)
        assert part.at_least - 1e-6 <= true <= part.at_most + 1e-6
        assert part.at_least == pytest.approx((1 - part.left_out) * part.information)
        kept = joint().sum(2)[p.indices[:count]]
        kept = kept / kept.sum()
        assert part.information == pytest.approx(entropy(kept.sum(0)) + entropy(kept.sum(1)) - entropy(kept), abs=1e-5)
    assert measured.exact_pair(small(), TEXT, WARM, keep=1.0, most=2).tokens == 2
    # what is kept can depend more than the whole does: it is no lower bound by itself
    whole, part = (measured.exact_pair(small(), [1], WARM, keep=1.0, most=n) for n in (SIX, SIX - 1))
    assert part.at_least < whole.information < part.information - 1e-4


def test_estimates_lie_around_the_exact_one_on_a_target_of_more_tokens():
    target, text = tiny.target(), [7, 8, 9, 10]
    pair = measured.exact_pair(target, text, 0.4, keep=1.0)
    found = measured.dependence(target, [text] * 80, k=2, paths=4, temperature=0.4, seed=1)
    mine = found[found.place == 2]
    error = mine[["information", "upper"]].std() / 80**0.5
    assert pair.tokens == tiny.VOCABULARY
    assert mine.information.mean() + 2 * error.information < pair.information < mine.upper.mean() - 2 * error.upper
    closer = measured.dependence(target, [text] * 10, k=2, paths=300, temperature=0.4).groupby("place").mean()
    assert closer.information[2] == pytest.approx(pair.information, abs=0.04)


def test_without_temperature_nothing_depends_on_anything():
    head = tiny.head("falcon3")
    found = measured.dependence(tiny.target(), tiny.PROMPTS, k=3, paths=4, temperature=0)
    accepted = measured.acceptance_by_dependence(tiny.target(), head, [[1, 2, 3, 4], [7, 8, 9, 10]], paths=4, temperature=0)
    for table in (found, accepted):
        assert (table[["entropy", "conditional", "information", "upper", "total_correlation"]] == 0).all(axis=None)
    assert (accepted.marginal == 1).all()
    pair = measured.exact_pair(tiny.target(), [1, 2, 3], 0)
    assert (pair.information, pair.at_least, pair.at_most, pair.left_out, pair.tokens) == (0, 0, 0, 0, 1)


def test_greedy_acceptance_is_that_of_the_tokens_really_drafted():
    target, head = tiny.target(), tiny.head("falcon3")
    k = head.k
    text = [1, 2, 3, *tiny.plain("llama", (1, 2, 3), 20)]
    contexts = [text[:n] for n in range(k + 1, 20)]
    found = measured.acceptance_by_dependence(target, head, contexts, paths=2, temperature=0)
    method = specwb.method("falcon", target=target, head=head, tree=(1,) * k)
    hits = []
    for i, context in enumerate(contexts):
        step = specwb.decode(target, [context], method, max_new_tokens=k + 1, trace=True).steps[0]
        drafted, real = step.draft.tokens[0, 1:].tolist(), text[len(context) : len(context) + k]
        hits += [float(a == b) for a, b in zip(drafted, real)]
        assert found[found.context == i].acceptance.tolist() == hits[-k:], i
    assert 0 < sum(hits) < len(hits)


def test_sampled_acceptance_is_the_expectation_over_all_prefixes():
    target, head, temperature = tiny.target(), tiny.head("falcon3"), 0.5
    method = specwb.method("falcon", target=target, head=head, tree=(1, 1, 1), draw="without")
    every = range(tiny.VOCABULARY)

    def laws(prefixes: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            return (target.model(torch.tensor(prefixes)).logits[:, -1].double() / temperature).softmax(-1)

    context = [7, 8, 9, 10, 11]
    found = measured.acceptance_by_dependence(target, head, [context] * 4, paths=300, temperature=temperature)
    mine = found.groupby("place").mean()
    q = specwb.decode(target, [context], method, max_new_tokens=4, temperature=temperature, trace=True).steps[0].draft.q[0].double()
    p = laws([context])[0]
    after = laws([[*context, x] for x in every])
    last = laws([[*context, x, y] for x in every for y in every])
    pairs = (p[:, None] * after).flatten()
    true = [float(weight @ torch.minimum(law, q[j]).sum(-1)) for j, (weight, law) in enumerate(((p.new_ones(1), p[None]), (p, after), (pairs, last)))]
    assert mine.acceptance.tolist() == pytest.approx(true, abs=0.02)
    assert abs(mine.acceptance[1] - true[0]) < 1e-5
    ideal = [1, *(float(weight @ torch.minimum(law, weight @ law).sum(-1)) for weight, law in ((p, after), (pairs, last)))]
    assert mine.marginal.tolist() == pytest.approx(ideal, abs=0.04)
    assert min(abs(a - b) for a, b in itertools.combinations(true, 2)) > 0.03  # no two places can have been exchanged
    assert ideal[1] < 0.9
    # Pinsker's inequality, on the paths themselves
    assert (1 - found.marginal <= np.sqrt(found.information / 2) + 1e-12).all()


def test_table_labels_and_reproducibility():
    contexts, domains = [[1, 2, 3], [5, 6, 7]], ["code", "prose"]
    first = measured.dependence(tiny.target(), contexts, k=2, paths=4, domains=domains, seed=5)
    assert list(first.columns) == ["context", "domain", "place", "entropy", "conditional", "information", "upper", "total_correlation"]
    assert first.domain.tolist() == ["code", "code", "prose", "prose"]
    assert first.place.tolist() == [1, 2, 1, 2]
    again = measured.dependence(tiny.target(), contexts, k=2, paths=4, seed=5)
    assert "domain" not in again
    assert again.equals(first.drop(columns="domain"))
    assert not measured.dependence(tiny.target(), contexts, k=2, paths=4, seed=6).equals(again)
    same = measured.dependence(tiny.target(), [[1, 2, 3]] * 2, k=2, paths=4)
    assert same.information[1] != same.information[3]  # every context has noise of its own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": []}, "no prompt"),
        ({"contexts": [[1], []]}, "prompt 1 is empty"),
        ({"contexts": [[1, 64]]}, "outside 0..63"),
        ({"contexts": [[1] * 511]}, "with 2 more it is longer than the context .* \\(512\\)"),
        ({"domains": ["a", "b"]}, "1 contexts and 2 domains"),
        ({"k": 0}, "k must be an integer >= 1"),
        ({"paths": 1}, "paths must be an integer >= 2"),
        ({"paths": 5000}, "5001 nodes, at most 4096"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"temperature": -1}, "temperature must be >= 0"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        measured.dependence(tiny.target(), **{"contexts": [[1, 2, 3]], "k": 2, "paths": 4, **changes})


def test_bad_input_of_the_others():
    target, head = tiny.target(), tiny.head("falcon3")
    with pytest.raises(ValueError, match="context 1 has 3 tokens; a head of blocks of 3 drafts from 4 on"):
        measured.acceptance_by_dependence(target, head, [[1, 2, 3, 4], [1, 2, 3]])
    other = specwb.load(tiny.build("llama", hidden_size=64))
    for wrong, said in ((FalconHead(eagle_config(other), 64, 2), "FalconHead of 64"), (EagleHead(eagle_config(target), 32), "EagleHead of 32")):
        with pytest.raises(ValueError, match=f"hidden size 32, the target's; got {said}"):
            measured.acceptance_by_dependence(target, wrong, [[1, 2, 3]])
    for keep in (0, 1.1):
        with pytest.raises(ValueError, match="keep must be in"):
            measured.exact_pair(target, [1], keep=keep)
    for most, message in ((0, ">= 1"), (5000, "below 4096")):
        with pytest.raises(ValueError, match=f"most must be .*{message}"):
            measured.exact_pair(target, [1], most=most)
    broken = tiny.build("llama")
    with torch.no_grad():
        broken.lm_head.weight.fill_(float("nan"))
    with pytest.raises(specwb.flow.BrokenLaw, match="NaN"):
        measured.dependence(specwb.load(broken), [[1, 2]], paths=2)
