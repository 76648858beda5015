"""theory/09_trained_heads.md: laws in fractions, and what its theorems say of the code."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from fractions import Fraction as F
from itertools import product

import pytest
import tiny
import torch
from instances import all_trees, level_order

import specwb
from specwb.core.probability import Sampling
from specwb.drafters.heads import measured_tree
from specwb.models.eagle import EagleHead, eagle_config
from specwb.rules.point import PointMass
from specwb.theory import analysis, exact
from specwb.training.heads import target_outputs


def drawn(rng: random.Random, v: int, least: int = 1) -> list[F]:
    return exact.norm([rng.randint(least, 6) for _ in range(v - 1)] + [1])


def divergence(p, q) -> float:
    return sum(float(a) * math.log(a / b) for a, b in zip(p, q) if a)


# ---------------------------------------------------------------------------------- 9.1, features


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_what_a_feature_says(kind, monkeypatch):
    """Numbers of features against the library's own hidden states, whose last entry is after the
    norm, and lm_head's reading of them."""
    monkeypatch.setattr(
        "specwb.training.heads.autocast", lambda device: nullcontext()
    )  # digits, not speed
    target = tiny.target(kind)
    ids, top = torch.tensor([[5, 1, 7, 3, 9, 2]]), len(target.backbone.layers)
    with torch.no_grad():
        library = target.model(ids, output_hidden_states=True)
        numbers = (0, 1, top, -1)
        h = target.backbone.config.hidden_size
        looked = target_outputs(target, ids, numbers).features.split(h, -1)
        with torch.inference_mode():
            state = target.open(ids.tolist(), [1], 1, Sampling(1.0), (), features=numbers)
        opened = state.features[:, : ids.shape[1] - 1].split(h, -1)
        assert len(library.hidden_states) == top + 1
        for number, ours, prefilled in zip(numbers, looked, opened, strict=True):
            if number != top:
                wanted = library.hidden_states[number]
                torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(prefilled, ours[:, :-1], rtol=1e-4, atol=1e-4)
        below, normed = looked[2], looked[3]
        torch.testing.assert_close(target.backbone.norm(below), normed, rtol=1e-4, atol=1e-4)
        assert (below - library.hidden_states[top]).abs().max() > 0.1, (
            "the library's last hidden state is not the last layer's"
        )
        torch.testing.assert_close(
            target.backbone.lm_head(normed), library.logits, rtol=1e-4, atol=1e-4
        )
        other = torch.tensor([[4, 8, 2]])  # another text with the same last token
        assert torch.equal(target_outputs(target, other, (0,)).features[:, -1], looked[0][:, -1])
        assert (target.model(other).logits[:, -1] - library.logits[:, -1]).abs().max() > 0.1


# ---------------------------------------------------------------------------- 9.2, the next token


def test_what_the_next_token_is_worth():
    """The loss of a head that does not see X is I(X; Y | S), computed as a difference of entropies
    and as a mean divergence."""
    rng = random.Random(0)
    for case in range(12):
        s_distribution, v = drawn(rng, 2), 3
        x_distribution = [drawn(rng, v) for _ in s_distribution]
        same = drawn(rng, v)
        y_distribution = [
            [same if case == 0 else drawn(rng, v) for _ in range(v)] for _ in s_distribution
        ]  # case 0: Y independent of X
        without = with_x = information = 0.0
        best_without = best_with = F(0)
        for s, chance in enumerate(s_distribution):
            m = [
                sum(x_distribution[s][x] * y_distribution[s][x][y] for x in range(v))
                for y in range(v)
            ]
            assert sum(m) == 1
            without -= float(chance) * sum(float(a) * math.log(a) for a in m)
            best_without += chance * max(m)
            for x in range(v):
                weight = chance * x_distribution[s][x]
                with_x -= float(weight) * sum(float(a) * math.log(a) for a in y_distribution[s][x])
                information += float(weight) * divergence(y_distribution[s][x], m)
                best_with += weight * max(y_distribution[s][x])
            q = drawn(rng, v)  # no other prediction from S alone has a smaller cross-entropy
            assert (
                -sum(float(a) * math.log(b) for a, b in zip(m, q))
                >= -sum(float(a) * math.log(a) for a in m) - 1e-12
            )
        assert without - with_x == pytest.approx(information, abs=1e-12)
        assert (information < 1e-12) == (case == 0)
        assert best_without <= best_with


# ----------------------------------------------------------------------- 9.3, measured accuracies


def walked(parents, ranks) -> int:
    """How deep a walk goes whose right token has rank ``ranks[d]`` at depth d + 1 (a rank beyond
    the list: none)."""
    node, depth = 0, 0
    for r in ranks:
        kids = [i for i, parent in enumerate(parents) if parent == node]
        if r >= len(kids):
            break
        node, depth = kids[r], depth + 1
    return depth


def test_trees_from_accuracies():
    """Independent ranks: the tree chosen from a card has the tau that counting all outcomes gives,
    and no tree of its size has more."""
    rng = random.Random(1)
    for _ in range(6):
        # two domains, three depths, three ranks in falling order; the rest is no rank
        tables = [[sorted(drawn(rng, 4), reverse=True)[:3] for _ in range(3)] for _ in range(2)]
        card = {"held_out": {str(i): {"rank": table} for i, table in enumerate(tables)}}
        rates = [[(a + b) / 2 for a, b in zip(*rows)] for rows in zip(*tables)]
        for nodes in (2, 4, 7):
            parents = list(measured_tree(card, nodes).host[0])
            tau = F(1)
            for ranks in product(range(4), repeat=3):
                chance = math.prod(
                    (rates[d][r] if r < 3 else 1 - sum(rates[d]) for d, r in enumerate(ranks)),
                    start=F(1),
                )
                tau += chance * walked(parents, ranks)
            assert tau == sum(analysis.path_values(rates, parents))
            trees = map(level_order, all_trees(nodes - 1))
            every = [
                t for t in trees if max(exact.depths(t)) <= 3 >= max(map(t.count, range(nodes)))
            ]
            assert tau == max(sum(analysis.path_values(rates, t)) for t in every)


# -------------------------------------------------------------------------- 9.4, top-k candidates


def test_one_uniform_decides_about_top_k():
    """All uniforms of a fine enough grid: the rule that runs, the cut and the tests in turn decide
    with one law, and p comes out."""
    rng = random.Random(2)
    for k in (1, 2, 3):
        p, q = drawn(rng, 4, 0), drawn(rng, 4)
        ((tokens, chance),) = exact.top(q, k)
        assert chance == 1
        unit = math.lcm(*(a.denominator for a in p))
        u = torch.tensor([(i + 0.5) / unit for i in range(unit)], dtype=torch.float64)
        rows = torch.tensor([[float(a) for a in p]], dtype=torch.float64).expand(unit, -1)
        children = torch.tensor([tokens]).expand(unit, -1)
        choice, residual = PointMass().node(
            rows, None, children, torch.ones_like(children, dtype=torch.bool), u[:, None]
        )
        accept = [F(int((choice == j).sum()), unit) for j in range(k)]
        assert accept == [p[x] for x in tokens] == exact.point(p, q, tokens)[0]
        out, left, one_by_one = [F(0)] * 4, list(p), F(1)
        for x, a in zip(tokens, accept):
            out[x] += a
            assert one_by_one * left[x] == a  # tested in turn with q(x) = 1
            one_by_one *= 1 - left[x]
            if one_by_one:
                left = exact.norm(exact.without(left, (x,)))
        if one_by_one:
            bonus = residual[choice < 0][0]
            torch.testing.assert_close(
                bonus / bonus.sum(), torch.tensor([float(a) for a in left], dtype=torch.float64)
            )
        assert [a + one_by_one * b for a, b in zip(out, left)] == p


# ------------------------------------------------------------------------- 9.5, trees of the text


def table(seed: int, v: int):
    rng, distributions = random.Random(seed), {}
    return lambda text: distributions.setdefault(text, drawn(rng, v))


def head(seed: int = 0) -> EagleHead:
    target = tiny.target()
    torch.manual_seed(seed)
    made = EagleHead(eagle_config(target), target.backbone.config.hidden_size)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return made.eval()


def test_a_dynamic_draft_does_not_depend_on_noise_or_temperature():
    target, made = tiny.target(), head()
    drafts = {}
    for temperature, seed in ((0.0, 0), (1.0, 0), (1.0, 1), (0.5, 2)):
        method = specwb.method("eagle2", target, head=made, nodes=12, depth=3, top=3)
        how = {"max_new_tokens": 6, "temperature": temperature, "seed": seed, "trace": True}
        out = specwb.decode(target, tiny.PROMPTS[2], method, **how)
        draft = out.steps[0].draft
        drafts[temperature, seed] = (draft.tokens.tolist(), draft.tree.parent.tolist())
        assert draft.scheme is specwb.Scheme.POINT
    assert len({str(d) for d in drafts.values()}) == 1


# ----------------------------------------------------------------------- 9.7, loss and acceptance


def test_divergence_bounds_acceptance():
    rng = random.Random(5)
    near = [(0.0, 0.0)]
    for _ in range(300):
        p, q = drawn(rng, 4), exact.norm([rng.choice([1, 2, 8, 60]) for _ in range(4)])
        loss, accepted = divergence(p, q), float(exact.overlap(p, q))
        pinsker, second = 1 - math.sqrt(loss / 2), 1 - math.sqrt(1 - math.exp(-loss))
        assert accepted >= max(pinsker, second) - 1e-12
        assert second >= math.exp(-loss) / 2
        near.append((loss, accepted - max(pinsker, second)))
    assert max(loss for loss, _ in near) > 2, "beyond 2 Pinsker's bound says nothing"


# ------------------------------------------------------------------------ 9.8, errors in features


def test_an_error_in_the_feature():
    w, f = (
        torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64),
        torch.zeros(2, dtype=torch.float64),
    )

    def accepted(w, f, e) -> float:
        return float(torch.minimum((w @ f).softmax(0), (w @ (f + e)).softmax(0)).sum())

    errors = [torch.tensor(e, dtype=torch.float64) * math.log(3) for e in ([0.0, 1.0], [1.0, 0.0])]
    assert [accepted(w, f, e) for e in errors] == pytest.approx([1.0, 0.75])
    for loss in (torch.nn.functional.smooth_l1_loss, torch.nn.functional.mse_loss):
        assert loss(f + errors[0], f) == loss(f + errors[1], f)
    slack = []
    for _ in range(300):
        w, f, e = torch.randn(5, 3).double(), torch.randn(3).double(), torch.randn(3).double()
        r = float((w @ e).max() - (w @ e).min())
        slack.append(accepted(w, f, e) - 2 / (1 + math.exp(r / 2)))
        assert slack[-1] >= -1e-12
        assert r <= float(torch.cdist(w, w).max() * e.norm()) + 1e-9
    assert min(slack) < 0.05
    for root in (2, 3, 10):  # attained
        p = exact.norm([1, root])
        assert exact.overlap(p, p[::-1]) == F(2, 1 + root)
