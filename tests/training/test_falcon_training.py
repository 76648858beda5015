"""CSGD does what figure 2 of the paper says, and no position sees its answer.

What is trained and measured is what is drafted.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

import specwb
from specwb.drafters.falcon import FalconDrafter
from specwb.models.eagle import eagle_config
from specwb.models.falcon import FalconHead
from specwb.training import falcon, heads
from specwb.training.falcon import FalconRecipe, glance_mask
from specwb.training.heads import measure, target_outputs
from specwb.training.recipe import Moment, Predictions, TargetOutputs

V = tiny.VOCABULARY
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("in_float32")


@cache
def head(k: int, fusion: str = "linear") -> FalconHead:
    config, width = eagle_config(tiny.target(), 2), tiny.target().backbone.config.hidden_size
    return tiny.loud(lambda: FalconHead(config, width, k, fusion), k)


def random_outputs(rows: int = 3, length: int = 22, seed: int = 0) -> TargetOutputs:
    ids = torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))
    return target_outputs(tiny.target(), ids, (-1,))


def falcon_recipe(k: int, **settings) -> FalconRecipe:
    return FalconRecipe(tiny.target(), {"k": k, **settings})


class Step:
    """One training step and its intermediate results.

    Attributes:
        o: how many pairs are left out; pairs are counted from there.
        count: how many pairs are to be replaced.
        mask: which of them were.
        seen: the pairs that the pass with gradient sees.
        levels: what the loss is taken of.
    """

    def __init__(self, recipe: FalconRecipe, head, text: TargetOutputs, moment: Moment) -> None:
        unroll, choose, self.count = head.unroll, recipe.choose, None

        def stored_choose(*arguments):
            self.mask = choose(*arguments)
            return self.mask

        def stored_unroll(embedded, features, steps, first=None):
            self.seen = first or (embedded, features)
            return unroll(embedded, features, steps, first)

        def stored_mask(count, *rest):
            self.count = count
            return glance_mask(count, *rest)

        self.o, self.mask = int(moment.number(0) * head.k), None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipe, "choose", stored_choose)
            patch.setattr(head, "unroll", stored_unroll)
            patch.setattr(falcon, "glance_mask", stored_mask)
            self.levels: list[Predictions] = list(recipe.training_levels(head, text, moment))


def steps(k: int, rows: int, count: int = 6):
    """Returns moments at the beginning of a run, with all offsets among them."""
    moments = [Moment(0.0, 0, step, rows) for step in range(count)]
    assert {int(moment.number(0) * k) for moment in moments} == set(range(k))
    return moments


# ------------------------------------------------------------------------- which pairs are replaced


@pytest.mark.parametrize("k", [2, 4])
def test_lambda_times_the_mistakes_are_replaced(k):
    """N = floor(lambda d); d is counted here by position from the pass without glancing.

    lambda falls in a line from ``glance`` to ``glance_end``.
    """
    text, model = random_outputs(), head(k)
    lm_head = tiny.target().backbone.lm_head
    recipe = falcon_recipe(k, glance=0.875, glance_end=0.125)
    for moment in steps(k, 3):
        for progress in (0.0, 0.25, 1.0):
            step = Step(recipe, model, text, Moment(progress, moment.seed, moment.step, 3))
            m = step.mask.shape[1]
            embedded = text.embedded[:, 1 + step.o :][:, :m]
            features = text.features[:, step.o :][:, :m]
            (states,) = model.unroll(embedded, features, 1)
            best = lm_head(states).argmax(-1)
            for row in range(3):
                # what pair i is to predict, for all pairs that have an answer
                answers = text.logits[row, step.o + k :].argmax(-1).tolist()
                d = sum(answers[i] != int(best[row, i]) for i in range(len(answers)))
                assert d > 0
                assert int(step.count[row]) == int((0.875 - 0.75 * progress) * d)
                blocks = (len(answers) - 1) // k  # those whose answers are pairs of the text
                lengths = moment.uniforms(m // k, 3, CPU)[row, :blocks]
                prefixes = int((1 + (lengths * (k - 1)).long()).sum())
                assert int(step.mask[row].sum()) == min(int(step.count[row]), prefixes)


# ------------------------------------------------------------------------ what they are replaced by


@pytest.mark.parametrize("k", [2, 4])
def test_a_replaced_pair_is_its_own_answer(k):
    """Token t_{i+k+1} and feature f_{i+k}; every other pair i is t_{i+1} and f_i."""
    text, replaced = random_outputs(), 0
    for moment in steps(k, 3):
        step = Step(falcon_recipe(k, glance=1), head(k), text, moment)
        for row in range(3):
            for i in range(step.mask.shape[1]):
                is_replaced = bool(step.mask[row, i])
                replaced += is_replaced
                at = step.o + i + (k if is_replaced else 0)
                assert torch.equal(step.seen[0][row, i], text.embedded[row, at + 1])
                assert torch.equal(step.seen[1][row, i], text.features[row, at])
    assert replaced > 20


# ------------------------------------------------------------------------------ what the loss is of


@pytest.mark.parametrize("k", [2, 4])
def test_replaced_pairs_do_not_count(k):
    """Nor does, in the second pass, any pair whose block stands below one that glanced."""
    text, both = random_outputs(), set()
    for moment in steps(k, 3):
        step = Step(falcon_recipe(k, unroll=2, glance=0.3), head(k), text, moment)
        one, two = step.levels
        m = step.mask.shape[1]
        assert one.start == step.o + k
        assert two.start == step.o + 2 * k
        for row in range(3):
            for i in range(one.logits.shape[1]):
                assert bool(one.weights[row, i]) is not bool(step.mask[row, i])
            for n in range(two.logits.shape[1]):
                block = (n + k) // k  # its pairs are n + k
                above = bool(step.mask[row, (block - 1) * k : block * k].any())
                both.add(above)
                assert bool(two.weights[row, n]) is not above
        # a prediction for every pair whose answer is in the text
        assert one.logits.shape[1] == 22 - step.o - k
        assert two.logits.shape[1] == 22 - step.o - 2 * k
        assert m % k == 0
    assert both == {True, False}
    counting = falcon_recipe(k, unroll=2, glance=0.9, count_glanced=1)
    step = Step(counting, head(k), text, steps(k, 3)[0])
    assert step.mask.any()
    assert all(level.weights is None for level in step.levels)


# --------------------------------------------------------------------------------------- no leakage


def sources(value: torch.Tensor, text: TargetOutputs, row: int) -> tuple[set[int], set[int]]:
    """Returns the tokens and the features of the text that ``value`` is a function of."""
    gradients = torch.autograd.grad(
        value, [text.embedded, text.features], retain_graph=True, allow_unused=True
    )
    return tuple(
        set() if g is None else {int(i) for i in g[row].abs().sum(-1).nonzero()} for g in gradients
    )  # type: ignore[return-value]


@pytest.mark.parametrize("glance", [0.0, 0.6])
@pytest.mark.parametrize(("k", "fusion"), [(2, "lstm"), (4, "linear")])
def test_no_pair_sees_its_answer(k, glance, fusion):
    """The answer of pair i is feature i + k and the token after it.

    Pair i sees the pairs up to the end of its block, and the answers of the pairs before it that
    glanced; a pass below, the pairs of blocks above and its own block's tokens. A pair that counts
    sees neither its answer nor anything later.
    """
    model, glimpses = head(k, fusion), 0
    for moment in {int(moment.number(0) * k): moment for moment in steps(k, 1)}.values():
        text = random_outputs(1, 3 * k + 5)
        for part in (text.embedded, text.features):
            part.requires_grad_()
        step = Step(falcon_recipe(k, unroll=2, glance=glance), model, text, moment)
        o = step.o
        for depth, level in enumerate(step.levels):
            for n in range(level.logits.shape[1]):
                if level.weights is not None and not level.weights[0, n]:
                    continue
                i = n + depth * k
                block = i // k * k
                tokens, features = sources(level.hidden[0, n].sum(), text, 0)
                assert max(features) < o + i + k  # the answer
                assert max(tokens) < o + i + k + 1
                replaced = 0 if step.mask is None else int(step.mask[0, block : block + k].sum())
                if depth == 0:
                    last = max(o + block + k - 1, o + block + replaced - 1 + k if replaced else 0)
                    assert max(features) == last
                    assert max(tokens) == last + 1
                    glimpses += replaced
                else:
                    assert max(features) == o + block - 1
                    assert max(tokens) == o + block + k
    assert bool(glimpses) is bool(glance)


# -------------------------------------------------------------- what is measured is what is drafted


class ForcedDrafter(FalconDrafter):
    """Drafts a chain of given tokens, and stores its own logits."""

    stored: list[torch.Tensor]
    forced: list[int]

    def own_logits(self, hidden):
        logits = super().own_logits(hidden)
        self.stored += list(logits[0])
        now = self.forced[len(self.stored) - logits.shape[1] : len(self.stored)]
        return F.one_hot(torch.tensor([now]), V).float()


def draft_logits(model: FalconHead, text: list[int], length: int, depth: int) -> list[torch.Tensor]:
    """Returns the drafter's logits ``[V]`` by depth after ``length`` tokens of a text.

    The tokens that it drafts are the text's.
    """
    drafter = ForcedDrafter(model, specwb.Tree.branching(*[1] * depth), "greedy", "right")
    # a decoding works with a copy of its drafter
    ForcedDrafter.stored, ForcedDrafter.forced = [], text[length : length + depth]
    method = specwb.Method("falcon", drafter, None, specwb.Exactness.LOSSLESS)
    next(specwb.rounds(tiny.target(), [text[:length]], method, max_new_tokens=1))
    assert len(ForcedDrafter.stored) == depth
    return ForcedDrafter.stored


@pytest.mark.parametrize(("k", "fusion"), [(1, "linear"), (2, "lstm"), (3, "pointwise")])
def test_measured_depths_are_the_drafters(k, fusion):
    """Predictions d is the prediction at depth d + 1 of a draft that follows the text.

    It is so for every text of full blocks, over several passes.
    """
    model, recipe, depth = head(k, fusion), falcon_recipe(k), 2 * k + 1
    recipe.measured_levels = depth
    ids = torch.randint(V, (1, 6 * k + 2), generator=torch.Generator().manual_seed(1))
    text, outputs = ids[0].tolist(), target_outputs(tiny.target(), ids, (-1,))
    levels = list(recipe.levels(model, outputs, depth))
    assert len(levels) == depth
    hits, overlap = np.zeros((depth, heads.RANKS)), np.zeros(depth)
    compared = np.zeros(depth, dtype=int)
    for length in range(k + 1, len(text) + 1, k):
        # predictions of tokens that the text has, and of the one after it
        count = min(depth, len(text) - length + 1)
        by_depth = draft_logits(model, [*text, *[0] * depth], length, depth)
        for d, logits in enumerate(by_depth[:count]):
            level, block = levels[d], (length - 1) // k - 1
            torch.testing.assert_close(level.logits[0, block], logits, atol=2e-3, rtol=1e-2)
            wanted = level.select(outputs.logits)[0, block]
            assert torch.equal(wanted, outputs.logits[0, length - 1 + d])
            order = logits.argsort(descending=True)[: heads.RANKS]
            hits[d] += (order == wanted.argmax()).numpy()
            overlap[d] += float(torch.minimum(logits.softmax(-1), wanted.softmax(-1)).sum())
            compared[d] += 1
    assert compared.tolist() == [level.logits.shape[1] for level in levels]
    measurements = measure(recipe, model, ids)
    for d in range(depth):
        assert measurements["rank"][d] == pytest.approx(hits[d] / compared[d], abs=1e-3)
        assert measurements["sampled"][d] == pytest.approx(overlap[d] / compared[d], abs=1e-3)
