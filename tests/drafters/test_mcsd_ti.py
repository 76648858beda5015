"""Improved MCSD: one root is MCSD itself; several roots are what they are said to be, and are
refused where nobody asked for them."""

from __future__ import annotations

import pytest
import test_decoding_distribution as decoding
import tiny
import torch
from tiny import EXACT

import specwb

PROMPTS = tiny.PROMPTS


def made(**options) -> specwb.Method:
    return specwb.method(
        "mcsd_ti", tiny.target(dtype=EXACT), draft=tiny.draft(dtype=EXACT), **options
    )


def several(roots: int = 3, tree=(1, 1), **options) -> specwb.Method:
    return made(roots=roots, tree=tree, lossy=True, **{"stop": "none", **options})


# --------------------------------------------------------------------------------------- one root


@pytest.mark.parametrize(
    ("tree", "draw"), [(tiny.LOPSIDED, "without"), ((3, 1, 1), "with"), ((2, 2), "top")], ids=str
)
def test_one_root_without_a_stop_is_mcsd(tree, draw):
    run = {"max_new_tokens": 16, "temperature": 1.0, "seed": 3}
    plain = specwb.method(
        "mcsd", tiny.target(dtype=EXACT), draft=tiny.draft(dtype=EXACT), tree=tree, draw=draw
    )
    ours = made(tree=tree, draw=draw, stop="none")
    a, b = (
        specwb.decode(tiny.target(dtype=EXACT), PROMPTS, method, **run) for method in (plain, ours)
    )
    assert (a.tokens, a.accepted_lengths) == (b.tokens, b.accepted_lengths)
    assert ours.exactness is specwb.Exactness.LOSSLESS


# ---------------------------------------------------------------------------------- several roots


def test_the_roots_are_the_targets_best_and_the_longest_stays():
    """At T = 0: the root's children are the target's own best, in order; below each the path that
    is the target's; the longest of them, ties to the first; and what is written is among the
    target's best at its place, not always the best."""
    roots = 3
    for prompt in PROMPTS:
        text, changed, sizes = list(prompt), 0, set()
        for step in specwb.rounds(
            tiny.target(dtype=EXACT), [prompt], several(roots, (2, 1)), max_new_tokens=24
        ):
            tree, tokens = step.draft.tree, step.draft.tokens[0].tolist()
            assert text == step.state.tokens[0, : int(step.length[0])].tolist()[: len(text)]
            logits = tiny.forward(tiny.target(dtype=EXACT).model, text)[-1]
            assert tokens[1 : 1 + roots] == logits.topk(roots).indices.tolist()
            best: list[list[int]] = []
            for w in range(1, 1 + roots):
                right_path: list[int] = []
                for node in (i for i in range(1, tree.n) if tree.mask[0, i, w]):
                    path = tiny.path_to(tree.host[0], tokens, node)
                    said = (
                        tiny.forward(tiny.target(dtype=EXACT).model, text + path)
                        .argmax(-1)
                        .tolist()
                    )
                    agrees = all(said[len(text) + i - 1] == path[i] for i in range(1, len(path)))
                    right_path = path if agrees and len(path) > len(right_path) else right_path
                best.append(right_path)
            longest = max(best, key=len)
            n = int(step.verdict.count[0])
            assert step.verdict.emitted[0, :n].tolist() == longest[:n]
            assert n == len(longest) or step.state.done[0]
            changed += longest[0] != tokens[1]
            sizes.add(n)
            text += longest[:n]
        assert changed, "the first root always stayed"
        assert len(sizes) > 1
        assert text[len(prompt) :] != list(tiny.plain("llama", tuple(prompt), 24))
        said = tiny.forward(tiny.target(dtype=EXACT).model, text).topk(roots).indices
        assert all(text[i] in said[i - 1].tolist() for i in range(len(prompt), len(text)))


def test_the_roots_are_drawn_from_the_distribution_that_is_recorded():
    """At first the target's own after the prompt; then what the verification left: the residual, or
    the law after the last kept token."""
    target, before, residual = tiny.target(dtype=EXACT), None, 0
    method = specwb.method(
        "mcsd_ti",
        target,
        draft=tiny.draft(noise=0.1, dtype=EXACT),
        roots=3,
        tree=(2, 1),
        lossy=True,
        stop="none",
    )
    for step in specwb.rounds(
        target, PROMPTS, method, max_new_tokens=20, temperature=0.8, seed=2, trace=True
    ):
        alive = step.verdict.accepted >= 0
        next_distribution = step.draft.q[:, 0]
        for row in alive.nonzero().flatten().tolist():
            text = step.state.tokens[row, : int(step.length[row])].tolist()
            p = (tiny.forward(target.model, text)[-1] / 0.8).softmax(-1)
            if before is None:
                torch.testing.assert_close(next_distribution[row], p, atol=1e-5, rtol=1e-4)
            else:
                assert torch.equal(next_distribution[row], before[row])
                residual += (
                    float((next_distribution[row] / next_distribution[row].sum() - p).abs().max())
                    > 1e-3
                )
            drawn = step.draft.tokens[row, 1:4].tolist()
            assert len(set(drawn)) == 3
            assert (next_distribution[row, drawn] > 0).all()
        before = step.verdict.next_distribution.clone()
    assert residual > 3


def test_several_roots_do_change_the_distribution_and_one_does_not():
    target, draft = decoding.models()
    for roots, lossy in ((3, True), (1, False)):
        method = specwb.method(
            "mcsd_ti",
            target,
            draft=draft,
            roots=roots,
            tree=(2, 1),
            lossy=lossy,
            stop="top",
            threshold=0.45,
        )
        counts, _ = decoding.sampled(method, "plain")
        pvalue = decoding.chi_square(counts, decoding.enumerated("plain"))
        assert (pvalue < 1e-6) == lossy
