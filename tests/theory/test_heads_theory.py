"""theory/09_trained_heads.md: laws in fractions, and what its theorems say of the code."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from fractions import Fraction as F

import tiny
import torch
from instances import divergence, drawn

import specwb
from specwb.core.probability import Sampling
from specwb.models.eagle import EagleHead, eagle_config
from specwb.theory import exact
from specwb.training.heads import target_outputs

# ---------------------------------------------------------------------------------- 9.1, features


def test_what_a_feature_says(monkeypatch):
    """Numbers of features against the library's own hidden states, whose last entry is after the
    norm, and lm_head's reading of them."""
    monkeypatch.setattr(
        "specwb.training.heads.autocast", lambda device: nullcontext()
    )  # digits, not speed
    target = tiny.target()
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
    def accepted(w, f, e) -> float:
        return float(torch.minimum((w @ f).softmax(0), (w @ (f + e)).softmax(0)).sum())

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
