"""What ``explain`` says afterwards is what the engine decided, test by test."""

from __future__ import annotations

import pytest
import tiny
import torch

import specwb
from specwb.noise import ACCEPT, CLOSE, Noise
from specwb.probability import inverse_cdf

SPECS = {
    "ar": ("ar", {}),
    "chain": ("sps", {"gamma": 4}),
    "chain, rejection": ("sps:rule=rejection", {"gamma": 3}),
    "chain, naive": ("sps:rule=point", {"gamma": 4}),
    "tree": ("mcsd", {}),
    "tree with replacement": ("mcsd", {"draw": "with"}),
    "lopsided": ("mcsd", {"tree": specwb.Tree.paths([(0, 0, 0), (0, 1), (1, 0), (2,)])}),
}
SEEDS = [11, 12, 13]
every_spec = pytest.mark.parametrize(("spec", "options"), SPECS.values(), ids=SPECS)


def steps(spec: str, options: dict, temperature: float, **more) -> list[specwb.Step]:
    draft = {} if spec == "ar" else {"draft": tiny.draft()}
    settings = {"max_new_tokens": [24, 17, 20], "temperature": temperature, "seed": SEEDS, "trace": True, **more}
    return list(specwb.rounds(tiny.target(), tiny.PROMPTS, spec, **draft, **options, **settings))


@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 3}], ids=["T0", "T1", "filtered"])
@every_spec
def test_explain_reproduces_every_verdict(spec, options, filters):
    seen = set()
    for step in steps(spec, options, **filters):
        verdict, tree = step.verdict, step.draft.tree
        for row in range(3):
            accepted = int(verdict.accepted[row])
            if accepted < 0:
                continue
            told = specwb.explain(step, row)
            assert told.row == row
            assert told.rule == step.rule.name
            walk = [level.accepted.token for level in told.levels if level.accepted]
            path = verdict.path[row, : accepted + 1].tolist()
            assert walk[:accepted] == step.draft.tokens[row, path[1:]].tolist()
            assert told.closing == int(verdict.closing[row])
            whole = len(walk) == accepted
            assert whole or bool(step.state.done[row]), "only a row's last block is cut"
            assert [level.node for level in told.levels[: accepted + 1]] == path[: len(told.levels)]
            for d, level in enumerate(told.levels):
                node = level.node
                assert level.depth == d + 1 == int(tree.depth[0, node]) + 1
                decisions = [test.decision for test in level.tests]
                seen.update(decisions)
                kids = [i for i, parent in enumerate(tree.host[0]) if parent == node]
                assert [t.token for t in level.tests][: len(kids)] == step.draft.tokens[row, kids].tolist()
                assert all(t.decision == "invalid" for t in level.tests[len(kids) :])
                assert decisions.count("accepted") == (d < len(walk))
                assert float(level.residual.sum()) == pytest.approx(1, abs=1e-5)
                at = torch.tensor([node] * 3)
                p = step.scores.p(at)[row]
                for test in level.tests:
                    assert test.p == float(p[test.token])
                    if filters["temperature"]:
                        assert test.q == float(step.draft.q[row, step.draft.q_row[0, node], test.token])
                    else:
                        assert (test.q, test.u) == (None, None)
                first = level.tests[0]
                if filters["temperature"]:
                    assert (first.decision == "accepted") == (first.u * (1 if told.rule == "point" else first.q) < first.p)
                    if "accepted" in decisions:
                        order = decisions[decisions.index("accepted") + 1 :]
                        assert set(order) <= {"not tested", "invalid"}
                        assert "not tested" not in decisions[: decisions.index("accepted")]
                else:
                    assert all((t.decision == "accepted") == (t.p == 1) for t in level.tests if t.decision != "invalid")
            if whole and filters["temperature"]:
                last = told.levels[-1] if told.levels and not told.levels[-1].accepted else None
                law = last.residual if last else step.scores.p(verdict.path[:, -1])[row]
                assert int(inverse_cdf(law[None], step.close[row : row + 1])) == told.closing
            elif whole:
                assert told.closing == int(step.scores.logits[row, path[-1]].argmax())
    if spec != "ar":
        assert {"accepted", "rejected"} <= seen


@every_spec
def test_replay_needs_nothing_but_the_seed(spec, options):
    """The uniforms kept in a trace are those of (seed, stream, position)."""
    for step in steps(spec, options, 1.0):
        tree = step.draft.tree
        noise = Noise(torch.tensor(SEEDS), {}, 1)
        assert torch.equal(step.close, noise.make(CLOSE, step.known[:, None], 1)[:, 0, 0])
        if tree.D:
            assert torch.equal(step.uniforms, noise.make(ACCEPT, step.known[:, None], tree.D * tree.K)[:, 0])


def test_tracing_changes_nothing():
    settings = {"draft": tiny.draft(), "max_new_tokens": 20, "temperature": 1.0, "seed": 4}
    traced = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd", trace=True, **settings)
    bare = specwb.decode(tiny.target(), tiny.PROMPTS, "mcsd", **settings)
    assert traced.tokens == bare.tokens
    assert bare.steps == []
    assert len(traced.steps) == max(traced.step_counts)
    assert [step.index for step in traced.steps] == list(range(len(traced.steps)))


def test_a_finished_row_an_untraced_step_and_a_wrong_row_are_refused():
    traced = steps("sps", {}, 1.0, max_new_tokens=[20, 1, 20])
    with pytest.raises(ValueError, match="row 1 had finished"):
        specwb.explain(traced[1], 1)
    for row in (3, -1):
        with pytest.raises(ValueError, match=rf"row must be 0\.\.2, got {row}"):
            specwb.explain(traced[0], row)
    with pytest.raises(ValueError, match="trace=True"):
        specwb.explain(steps("sps", {}, 1.0, trace=False)[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_gives_the_levels_of_the_walk(temperature):
    for step in steps("mcsd", {}, temperature)[:4]:
        told = specwb.explain(step, 0)
        for depth, level in enumerate(told.levels, 1):
            assert told.at(depth) is level
        for depth in (0, -1, len(told.levels) + 1):
            with pytest.raises(ValueError, match=rf"depth must be 1\.\.{len(told.levels)} .* got {depth}"):
                told.at(depth)


def test_printed_with_the_tokenizers_words():
    words = [f"w{i}" for i in range(tiny.VOCABULARY)]
    target = specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(words))
    step = next(specwb.rounds(target, "w1 w2 w3", "sps", draft=tiny.draft(), temperature=1.0, seed=2, trace=True, max_new_tokens=8))
    assert step.draft.tokens[0, 0] == 3
    text = str(specwb.explain(step))
    assert text.startswith("rule rejection\ndepth 1:")
    for level in specwb.explain(step).levels:
        for test in level.tests:
            assert test.text == f"w{test.token}"
            assert f"'w{test.token}' p={test.p:.3g}  q={test.q:.3g}  u={test.u:.3g}  {test.decision}" in text
    assert text.endswith(f"closing token 'w{int(step.verdict.closing[0])}'")


def test_a_trimmed_round_is_explained_as_it_was_kept():
    """draft = target accepts everything; the limit keeps two tokens, the second of which becomes the closing token."""
    target = tiny.target()
    step = next(specwb.rounds(target, [1, 2, 3], "sps", draft=target, gamma=4, temperature=1.0, max_new_tokens=2, trace=True))
    told = specwb.explain(step)
    assert int(step.verdict.accepted[0]) == 1
    assert told.trimmed
    assert len(told.levels) == 2
    assert told.levels[-1].accepted.token == told.closing
    whole = next(specwb.rounds(target, [1, 2, 3], "sps", draft=target, gamma=4, temperature=1.0, max_new_tokens=9, trace=True))
    assert not specwb.explain(whole).trimmed
