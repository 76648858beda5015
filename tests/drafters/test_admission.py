"""Verifying what is worth its time: the budget follows planted costs, the ranking admits the best
set, texts stay, and what a drafter missed while it did not draft it makes up for."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import test_copying
import tiny
from test_copying import ONCE, copies, first_draft, followed, target

import specwb
from specwb.drafters.admission import PROBES, Admission, Costs, Survival, admitted, convex

LENGTH = 40
PROMPTS = [ONCE + ONCE[:9], ONCE + ONCE + [11], [7], ONCE[::-1] + ONCE[::-1][:6]]
# what a drafter missed while it did not draft is tested of all drafters in test_copying.py
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mcsd": ("mcsd", {"tree": tiny.LOPSIDED}),
    "eagle2": ("eagle2", {"nodes": 7, "depth": 3, "top": 2, "head": "eagle"}),
    "falcon_dynamic": (
        "falcon_dynamic",
        {"nodes": 7, "passes": 2, "top": 2, "beams": 2, "head": "falcon"},
    ),
    "kangaroo's beams": (
        "kangaroo",
        {"tree": True, "gamma": 3, "top": 2, "nodes": 6, "eta": 0.05, "head": "kangaroo"},
    ),
}
every = pytest.mark.parametrize("name", METHODS)
FREE = {1: 1.0}  # further tokens cost nothing
DEAR = {1: 1.0, 2: 3.0}  # a further token costs two plain steps


def built(name: str, costs: dict[int, float] | None = None, **more: Any) -> specwb.Method:
    method = test_copying.built_of(METHODS[name], **more)
    return method if costs is None else planted(method, costs, 0.0 if costs is FREE else 1.0)


def planted(method: specwb.Method, costs: dict[int, float], draft: float) -> specwb.Method:
    drafts = dict.fromkeys(range(1, 21), draft)
    method.drafter.costs = dict.fromkeys(range(1, 9), Costs(costs, drafts))
    method.drafter.planted = True
    return method


def plain(prompt: list[int]) -> list[int]:
    return list(tiny.plain("llama", tuple(prompt), LENGTH, tiny.EXACT))


# --------------------------------------------------------------------------------- what is admitted


def test_the_ranking_admits_the_best_set():
    """Of 300 batches of small drafts whose survival falls along each path: no set that is closed
    under parents survives more often than the admitted one of its size, and none is worth more at
    prices that do not fall."""
    random = np.random.default_rng(0)
    for _ in range(300):
        rows = [random.integers(1, 5) for _ in range(random.integers(1, 4))]
        parents, survival = [], []
        for nodes in rows[: 1 + (sum(rows) <= 9)]:
            first = len(parents)
            for i in range(nodes):
                parent = int(random.integers(-1, i))
                parents.append(-1 if parent < 0 else first + parent)
                above = 1.0 if parent < 0 else survival[first + parent]
                survival.append(above * random.choice([0.25, 0.5, 0.75, 1.0, random.random()]))
        every_set = chain(*(combinations(range(len(parents)), n) for n in range(len(parents) + 1)))
        closed = [s for s in every_set if all(parents[i] < 0 or parents[i] in s for i in s)]
        values = np.array(survival)
        price = np.sort(random.random(len(parents)))
        chosen = admitted(values, price)
        assert tuple(sorted(chosen)) in closed
        sums = {s: values[list(s)].sum() for s in closed}
        of_size = max(total for s, total in sums.items() if len(s) == len(chosen))
        assert values[chosen].sum() >= of_size - 1e-12
        best = max(total - price[: len(s)].sum() for s, total in sums.items())
        assert values[chosen].sum() - price[: len(chosen)].sum() >= best - 1e-12


def test_the_largest_convex_function_below_measured_seconds():
    random = np.random.default_rng(1)
    for _ in range(50):
        widths = [1, *sorted(random.choice(np.arange(2, 20), 4, replace=False).tolist())]
        seconds = {n: float(random.random() + n / 10) for n in widths}
        seconds[1] = 0.05
        found = convex(seconds, 25)
        assert len(found) == 26
        assert (np.diff(found[1:], 2) > -1e-12).all()
        for n in range(1, widths[-1] + 1):  # the lowest chord above or at n
            chords = [
                np.interp(n, [a, b], [seconds[a], seconds[b]])
                for a in widths
                for b in widths
                if a <= n <= b and (a < b or a == n)
            ]
            assert found[n] == pytest.approx(min(chords))
        assert found[25] - found[24] == pytest.approx(found[widths[-1]] - found[widths[-1] - 1])
    assert (np.diff(convex({1: 2.0, 4: 1.0, 8: 1.5}, 10)) >= 0).all()


def test_two_numbers_by_depth_are_fitted_to_what_was_accepted():
    random = np.random.default_rng(2)
    true, fitted = np.array([[0.0, 1.0], [-1.0, 0.5], [0.5, 2.0]]), Survival(2)
    for _ in range(400):
        depth = random.integers(1, 3, 16)
        x = random.normal(size=16)
        a, b = true[depth].T
        fitted.learn(x, depth, random.random(16) < 1 / (1 + np.exp(-(a + b * x))))
    assert abs(fitted.numbers[1:] - true[1:]).max() < 0.5
    for _ in range(400):  # what is likelier for the drafter is accepted less often
        x = random.normal(size=16)
        fitted.learn(x, np.ones(16, int), x < 0)
    assert fitted.numbers[1, 1] == 0


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_step_of_the_fit_never_overshoots(rows):
    """What it learns from is at least as likely afterwards, also where all of a large batch is
    rejected that was thought to be certain, and where the slope is cut off at 0."""

    def likelihood(fitted: Survival, x: np.ndarray, accepted: np.ndarray) -> float:
        p = fitted.below_parent(x, np.ones(len(x), int))
        return np.log(np.where(accepted, p, 1 - p)).sum()

    random = np.random.default_rng(3)
    for _ in range(100):
        fitted = Survival(1)
        for _ in range(6):
            x = random.normal(3 * random.normal(), 2, rows).clip(-6, 6)
            share = [0, 0.5, 1, x > 3, x < 3]
            accepted = random.random(rows) < share[random.integers(5)]
            before = likelihood(fitted, x, accepted)
            fitted.learn(x, np.ones(rows, int), accepted)
            assert likelihood(fitted, x, accepted) >= before - 1e-9
            assert fitted.numbers[1, 1] >= 0


# --------------------------------------------------------------------------------------- the budget


@every
@pytest.mark.parametrize("copy", [None, 2])
def test_the_budget_follows_planted_costs(name, copy):
    """Where further tokens are free the whole draft is verified; where they cost more than they can
    bring, steps are plain but for probes. The greedy text is that of plain decoding."""
    rows = len(PROMPTS)
    for costs in (FREE, DEAR):
        method, verified, whole = built(name, costs, verify="auto", copy=copy), 0, 0
        alone, steps, probes = built(name, copy=copy), 0, 0
        for step in specwb.rounds(target(), PROMPTS[:rows], method, max_new_tokens=LENGTH):
            nodes = int(step.draft.valid[:, 1:].sum())
            verified += nodes
            probes += nodes > 0
            steps += 1
        for row, prompt in enumerate(PROMPTS[:rows]):
            text = step.state.tokens[row, len(prompt) :][:LENGTH].tolist()
            assert text == plain(prompt)
        if costs is DEAR:
            assert 1 <= probes <= 3
            assert steps > LENGTH - 2 * probes
            continue
        for step in specwb.rounds(target(), PROMPTS[:rows], alone, max_new_tokens=LENGTH):
            whole += int((step.draft.valid & (step.verdict.accepted >= 0)[:, None])[:, 1:].sum())
        assert verified == whole > 0


@every
@pytest.mark.parametrize("copy", [None, 2])
@pytest.mark.parametrize("rows", [1, len(PROMPTS)])
def test_after_steps_without_it_a_drafter_has_missed_nothing(name, copy, rows, monkeypatch):
    """Its draft is then that of the drafter alone behind the same text; what pairs of Falcon see
    depends on the steps before. Rows whose end occurs earlier copy, whether or not the others
    draft."""
    order = [0, 0, 9, 0, 9, 9, 0, 0, 0, 0, 9, 0, 0, 9] * LENGTH

    def levels(self):
        return min(next(self.order), self.options[-1])

    monkeypatch.setattr(Admission, "_levels", levels)
    monkeypatch.setattr(Admission, "probe", 10**6, raising=False)
    method, alone = built(name, FREE, verify="auto", copy=copy), built(name)
    method.drafter.order, compared, copied = iter(order), 0, 0
    for step in specwb.rounds(target(), PROMPTS[:rows], method, max_new_tokens=LENGTH):
        for row in range(rows):
            if step.verdict.accepted[row] < 0:
                continue
            before = step.state.tokens[row, : int(step.length[row])].tolist()
            tokens = step.draft.tokens[row, step.draft.valid[row]].tolist()
            if copy and copies(before):
                assert tokens[1:] == followed(before)
                copied += 1
            elif not order[step.index]:
                assert len(tokens) == 1
            else:
                if not name.startswith("falcon") and row < 2:
                    assert sorted(tokens) == sorted(first_draft(alone, before))
                compared += 1
    for row, prompt in enumerate(PROMPTS[:rows]):
        assert step.state.tokens[row, len(prompt) :][:LENGTH].tolist() == plain(prompt)
    assert compared > 3
    assert copied > 5 or not copy


@pytest.mark.parametrize("name", ["mcsd", "eagle2", "kangaroo's beams"])
def test_no_more_levels_are_drafted_than_are_asked_for(name, monkeypatch):
    asked = iter([1, 2, 1, 2, 2, 1] * LENGTH)
    monkeypatch.setattr(Admission, "_levels", lambda self: next(asked))
    monkeypatch.setattr(Admission, "probe", 10**6, raising=False)
    method, deepest = built(name, FREE, verify="auto"), {1: 0, 2: 0}
    for step in specwb.rounds(target(), PROMPTS, method, max_new_tokens=LENGTH):
        levels = [1, 2, 1, 2, 2, 1][step.index % 6]
        found = int((step.draft.tree.depth * step.draft.valid).max())
        assert found <= levels
        deepest[levels] = max(deepest[levels], found)
    assert deepest == {1: 1, 2: 2}
    for row, prompt in enumerate(PROMPTS):
        assert step.state.tokens[row, len(prompt) :][:LENGTH].tolist() == plain(prompt)


@pytest.mark.parametrize("rows", [1, len(PROMPTS)])
@pytest.mark.parametrize("spec", ["sps:gamma=3", "mcsd:tree=2-2-1"])
def test_in_a_text_that_repeats_copying_adds_to_what_is_accepted(spec, rows):
    model = tiny.loops()
    draft, tau = specwb.load(tiny.perturbed(model.model, 0.05)), []
    for name in (f"{spec},verify=auto", f"{spec},verify=auto,copy=3"):
        method = planted(specwb.method(name, model, draft=draft), {1: 1.0, 101: 11.0}, 0.1)
        out = specwb.decode(model, PROMPTS[:rows], method, max_new_tokens=80, eos=())
        assert out.tokens == specwb.decode(model, PROMPTS[:rows], "ar", max_new_tokens=80).tokens
        tau.append(out.mean_tokens_per_step)
    assert tau[1] > tau[0]


def test_what_a_copied_token_survives_is_fitted_by_itself():
    """Two numbers of its own: a head that is always wrong does not lower them, and where copies are
    wrong they fall."""
    method = built("mcsd", FREE, verify="auto", copy=2)
    for _ in specwb.rounds(target(), PROMPTS, method, max_new_tokens=LENGTH):
        pass
    (learnt,) = method.drafter.shared.values()
    right, wrong = learnt.survival.numbers[1], learnt.survival.numbers[0]
    assert right[0] > 1 > wrong[0]


def test_the_times_of_late_steps_replace_what_was_measured_before_them(monkeypatch):
    """Drafting, said to be free, takes ten plain steps: it ends, but for probes."""
    method, drafted = built("mcsd", FREE, verify="auto"), 0
    real = Admission._took
    monkeypatch.setattr(Admission, "_took", lambda self: real(self) + 10.0 * (self.levels > 0))
    for step in specwb.rounds(target(), PROMPTS, method, max_new_tokens=LENGTH):
        drafted += step.draft.tree.n > 1
    assert 2 <= drafted <= 6


def test_seconds_are_measured_once_for_a_number_of_rows(monkeypatch):
    method = built("mcsd", verify="auto")
    calls: list[int] = []
    real = Admission._measured

    def measured(self, state, on):
        calls.append(state.rows)
        return real(self, state, on)

    monkeypatch.setattr(Admission, "_measured", measured)
    for rows in (1, 2, 1, 2):
        out = specwb.decode(target(), PROMPTS[:rows], method, max_new_tokens=8)
        assert out.tokens == [plain(prompt)[:8] for prompt in PROMPTS[:rows]]
    assert calls == [1, 2]
    costs = method.drafter.costs[2]
    assert list(costs.draft) == [1, 2, 3]
    assert set(costs.target) == {1, 2, 4, 8, 16}
    assert min(*costs.target.values(), *costs.draft.values()) > 0


def test_probes_take_their_share_of_the_time_and_never_end():
    """A probe costs three plain steps here: two for the one token that it verifies, one for its
    draft."""
    method = built("eagle2", DEAR, verify="auto")
    at = [
        i
        for i, step in enumerate(specwb.rounds(target(), [[7]], method, max_new_tokens=450, eos=()))
        if step.draft.tree.n > 1
    ]
    assert at[0] == 0
    late = [i for i in at if i > 50]
    assert late
    assert (np.diff([0, *late]) >= 3 / PROBES).all()


@pytest.mark.parametrize(
    ("settings", "probes"),
    [({}, 0), ({"temperature": 1.0}, 1), ({"temperature": 1.0, "exact_text": True}, 0)],
)
def test_what_was_learnt_goes_to_the_next_decoding_where_nothing_is_drawn(settings, probes):
    """A sampled decoding with the same seed was told of its own uniforms."""
    method = built("eagle2", DEAR, verify="auto")
    for first in (True, False):
        counts = [
            step.draft.tree.n > 1
            for step in specwb.rounds(
                target(), [[7]], method, max_new_tokens=40, eos=(), **settings
            )
        ]
        assert sum(counts) == (1 if first else probes)


# ------------------------------------------------------------------------ what is refused, and seen


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("mcsd:tree=3-1-1,draw=with,verify=auto", "verify=auto is not for drafts"),
        ("mcsd:tree=2-2,draw=with,rule=kseq,verify=auto", "'kseq' needs drafts of a fixed shape"),
        ("mcsd:tree=2-2,rule=traversal,verify=auto", "'traversal' needs drafts of a fixed shape"),
        ("sps:verify=some", "verify must be auto"),
        ("mcsd:tree=2-2,draw=with,rule=kseq,copy=3,verify=auto", "without copy= and verify="),
        ("mcsd:verify=auto", "nothing to choose from"),
        ("pld:verify=auto", "no option 'verify'"),
    ],
)
def test_what_cannot_be_verified_in_part(spec, why):
    options: dict[str, Any] = {} if "pld" in spec else {"draft": tiny.draft(dtype=tiny.EXACT)}
    if spec == "mcsd:verify=auto":
        options["tree"] = ()
    with pytest.raises((specwb.MethodError, specwb.RuleMismatch), match=why):
        specwb.method(spec, target(), **options)


def test_shared_lists_and_recorded_steps_are_refused():
    head = tiny.head("falcon", dtype=tiny.EXACT)
    with pytest.raises(specwb.MethodError, match="draw=greedy"):
        specwb.method("falcon:verify=auto", target(), head=head, tree=(2, 2))
    kangaroo = {"tree": (2, 1), "eta": 0.1, "head": "kangaroo"}
    with pytest.raises(specwb.MethodError, match="stops by a confidence"):
        test_copying.built_of(("kangaroo", kangaroo), verify="auto")
    method = built("mcsd", FREE, verify="auto")
    with pytest.raises(specwb.ArgumentError, match="graphs=True"):
        next(specwb.rounds(target(), [[7]], method, graphs=True))
