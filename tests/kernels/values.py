"""What the fused kernels compute, beside the exact rules and torch's path.

pytest does not collect this file by itself. ``test_fused_kernels.py`` runs it in a process of its
own: in Triton's interpreter on CPU tensors (``TRITON_INTERPRET=1``, which must be set before Triton
is imported), and on a CUDA device where there is one.
"""

from __future__ import annotations

import logging
import random
from fractions import Fraction as F

import pytest
import tiny
import torch
from torch import Tensor

import specwb
from specwb import kernels
from specwb.flow import Draft, Scheme, Scores
from specwb.kernels import draw, verification
from specwb.models import fused as fused_layers
from specwb.probability import Sampling, _check_draw, draw_without_replacement, inverse_cdf
from specwb.tree import Tree
from specwb.verify import RRS, Naive, PointMass, Rejection, RRSw, fused
from specwb.verify import exact as E

DEVICE = torch.device("cpu" if kernels.interpreted() else "cuda")
RULES = {"rrs": RRS, "rrsw": RRSw, "point": PointMass}
REAL = [torch.float32, torch.float64]


@pytest.fixture
def trusted(monkeypatch):
    """Kernels are used without their checks, which have tests of their own."""
    monkeypatch.setattr(kernels, "_passes", lambda *args: True)
    monkeypatch.setattr(kernels, "_passed", {})
    with kernels.use():
        yield


# -------------------------------------------------------------------------------------------- draw


@pytest.mark.parametrize("width", [3, 64, 5000, 152064])
def test_draws_are_torchs(width):
    torch.manual_seed(width)
    q = (4 * torch.randn(2, width, dtype=torch.float64)).softmax(-1)
    q[1, 2:] = 0  # fewer tokens than draws
    u = torch.rand(2, 3, dtype=torch.float64)
    q, u = q.to(DEVICE), u.to(DEVICE)
    for dtype in REAL if width < 10**5 else [torch.float32]:
        tokens, ok = draw.draw(q.to(dtype), u)
        wanted, there = draw_without_replacement(q.to(dtype), u)
        assert torch.equal(ok, there)
        assert torch.equal(tokens[ok], wanted[ok])
        assert ok[1].tolist() == [True, True, False]


def test_a_token_of_probability_0_is_never_drawn():
    q = torch.zeros(4, 300, dtype=torch.float64, device=DEVICE)
    q[0, 299], q[1, 0], q[2, [5, 9]] = 1e-30, 3.0, 0.5
    for value in (2.0**-33, 0.5, 1 - 2.0**-33):
        tokens, ok = draw.draw(q, torch.full((4, 2), value, dtype=torch.float64, device=DEVICE))
        assert tokens[:3, 0].tolist() == [299, 0, 9 if value >= 0.5 else 5]
        assert sorted(tokens[2].tolist()) == [5, 9]
        assert ok.tolist() == [[True, False], [True, False], [True, True], [False, False]]


def test_the_first_token_whose_sum_lies_above():
    """The edge itself belongs to the next token, as in ``cumsum(p)[x] > u sum(p)``."""
    q = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64, device=DEVICE)
    for value, token in ((0.25, 1), (0.5, 2), (0.2499, 0)):
        u = torch.tensor([[value]], dtype=torch.float64, device=DEVICE)
        assert int(draw.draw(q, u)[0]) == token == int(inverse_cdf(q, u[:, 0]))


def test_nan_draws_nothing():
    q = torch.full((1, 40), float("nan"), device=DEVICE)
    tokens, ok = draw.draw(q, torch.full((1, 2), 0.5, dtype=torch.float64, device=DEVICE))
    assert not ok.any()
    assert ((tokens >= 0) & (tokens < 40)).all()


# ------------------------------------------------------------------------------ as the exact rules


def weights(rng: random.Random, v: int) -> list[F]:
    raw = [rng.choice([0, 1, 1, 2, rng.randint(1, 30)]) for _ in range(v)]
    return E.norm(raw if any(raw) else [1] * v)


def decide(kind: str, rows: list, u: list[list[float]], k: int) -> tuple[Tensor, Tensor]:
    """The accepted child (-1: none) and the normalised distribution of one-level drafts."""
    tree = Tree.branching(k)
    double = {"dtype": torch.float64, "device": DEVICE}
    p = torch.tensor([[float(a) for a in p] for p, _, _ in rows], **double)
    q = torch.tensor([[float(a) for a in q] for _, q, _ in rows], **double)
    tokens = torch.tensor([[0, *xs, *[0] * (k - len(xs))] for _, _, xs in rows], device=DEVICE)
    valid = torch.tensor(
        [[True, *[True] * len(xs), *[False] * (k - len(xs))] for _, _, xs in rows], device=DEVICE
    )
    of_q = torch.zeros(1, k + 1, dtype=torch.long, device=DEVICE)
    of_q[:, 1:] = -1
    draft = Draft(tree.to(DEVICE), tokens, valid, Scheme.IID, q[:, None], of_q)
    logits = p.log()[:, None].expand(-1, k + 1, -1).contiguous()
    rule = RULES[kind]()
    columns = torch.tensor(u, **double)[:, : rule.draws(k)]
    verdict = fused._run(kind, rule, draft, Scores(logits, Sampling(1.0)), columns)
    residual = verdict.distribution
    chosen = torch.where(verdict.accepted > 0, verdict.path[:, 1] - 1, -1)
    return chosen, residual / residual.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("name", "kind", "scheme"),
    [
        ("rejection", "rrs", E.iid),
        ("rrs", "rrs", E.iid),
        ("rrsw", "rrsw", E.without_replacement),
        ("repeats", "rrsw", E.iid),
        ("point", "point", E.top),
    ],
)
def test_kernels_are_the_exact_rules(name, kind, scheme):
    """On both sides of every threshold, and the residual; k = 3 of five tokens, some of them fewer
    than q's support has, zeros, one-hot rows, and rows with p = q."""
    exact = {"rejection": E.rejection, "rrs": E.rrs, "point": E.point}.get(name, E.rrsw)
    rng, k, rows, u, wanted = random.Random(3), 1 if name == "rejection" else 3, [], [], []
    residuals = []
    for i in range(16):
        p, q = weights(rng, 5), weights(rng, 5)
        p = list(q) if i % 8 == 1 else p
        p = E.norm([int(x == i % 5) for x in range(5)]) if i % 8 == 2 else p
        q = E.norm([int(x == i % 5) for x in range(5)]) if i % 8 == 3 else q
        tokens = rng.choice(scheme(q, k))[0]
        accept, residual = exact(p, q, tokens)
        before = F(0)
        for j, chance in enumerate(accept):
            if kind == "point":
                edges = [(before + chance * F(1, 2**20), j), (before + chance, None)]
            else:
                left = 1 - before
                edges = [(chance / left, None)] if left else []
            for edge, child in edges:
                for side in (-1, 1):
                    value = float(edge) + side * 1e-6
                    if not 0 < value < 1 or (kind == "point" and chance == 0):
                        continue
                    rows.append((p, q, tokens))
                    row = [1 - 1e-13] * k
                    row[0 if kind == "point" else j] = value
                    u.append(row)
                    if kind == "point":
                        wanted.append((j, side < 0) if child is None else (None, True))
                    else:
                        wanted.append((j, side < 0))
            before += chance
        if residual is not None:
            rows.append((p, q, tokens))
            u.append([1 - 1e-13] * k)
            wanted.append((None, True))
            residuals.append((len(rows) - 1, [float(x) for x in residual]))
    chosen, distribution = decide(kind, rows, u, k)
    tested = 0
    for (j, hit), child in zip(wanted, chosen.tolist(), strict=True):
        if j is not None:
            tested += 1
            assert (child == j) == hit
    for row, residual in residuals:
        assert int(chosen[row]) == -1
        torch.testing.assert_close(distribution[row].tolist(), residual, atol=1e-6, rtol=0)
    assert tested > 15
    assert len(residuals) > 3


# ---------------------------------------------------------------------------------- as torch's path


@pytest.mark.parametrize("kind", ["rrs", "rrsw", "point", "greedy"])
@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_checks_pass(kind, dtype):
    """The check that a kernel must pass before it is used, with all kinds of rows: half-precision
    logits, NaN, disjoint supports, fewer tokens than candidates, p = q."""
    fused.check(kind, DEVICE, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rrs", "rrsw", "point", "greedy"])
@pytest.mark.parametrize("dtype", [torch.float16, *REAL])
def test_checks_pass_in_other_precisions(kind, dtype):
    fused.check(kind, DEVICE, dtype)


def test_check_of_draws_passes():
    _check_draw(DEVICE, torch.float32)


@pytest.mark.parametrize("kind", ["rrs", "rrsw"])
def test_a_wide_vocabulary(kind):
    """One row over 152,064 tokens, half of whose candidates are rejected."""
    torch.manual_seed(1)
    tree, width = Tree.branching(3, 1).to(DEVICE), 152064
    logits = 3 * torch.randn(2, tree.n, width)
    q = (logits + torch.randn(2, tree.n, width)).softmax(-1)
    tokens = torch.zeros(2, tree.n, dtype=torch.long)
    tokens[:, 1:4] = torch.multinomial(q[:, 0], 3)
    for i in range(4, tree.n):
        tokens[:, i] = torch.multinomial(q[:, tree.host[0][i]], 1)[:, 0]
    draft = Draft(
        tree,
        tokens.to(DEVICE),
        torch.ones_like(tokens, dtype=torch.bool).to(DEVICE),
        Scheme.WITHOUT_REPLACEMENT if kind == "rrsw" else Scheme.IID,
        q.to(DEVICE),
        torch.arange(tree.n, device=DEVICE)[None],
    )
    scores, rule = Scores(logits.to(DEVICE), Sampling(0.9)), RULES[kind]()
    counts = set()
    for values in ([0.999, 0.999, 0.999, 0.2, 0.5, 0.5], [0.999, 0.01, 0.5, 0.999, 0.5, 0.5]):
        u = torch.tensor([values] * 2, dtype=torch.float64, device=DEVICE)
        got, wanted = fused._run(kind, rule, draft, scores, u), rule.verify(draft, scores, u)
        fused.assert_same(got, wanted, 1e-6)
        counts |= set(got.accepted.tolist())
    assert len(counts) > 1


def test_an_over_confident_draft():
    """What remains of q is 1e-30: summed over what remains nothing is lost."""
    tree = Tree.branching(2).to(DEVICE)
    q = torch.tensor([[1.0, 3e-30, 1e-30, 0.0]], device=DEVICE)
    logits = torch.tensor([[0.1, 0.5, 0.3, 0.1]], device=DEVICE).log()[:, None].expand(1, 3, 4)
    tokens = torch.tensor([[0, 0, 1]], device=DEVICE)
    of_q = torch.tensor([[0, -1, -1]], device=DEVICE)
    there = torch.ones(1, 3, dtype=torch.bool, device=DEVICE)
    draft = Draft(tree, tokens, there, Scheme.WITHOUT_REPLACEMENT, q[:, None], of_q)
    rule, scores = RRSw(), Scores(logits.contiguous(), Sampling(1.0))
    for second in (0.7, 0.8):  # accepted below (5/9) / (3/4)
        u = torch.tensor([[0.9, second]], dtype=torch.float64, device=DEVICE)
        got, wanted = fused._run("rrsw", rule, draft, scores, u), rule.verify(draft, scores, u)
        fused.assert_same(got, wanted, 1e-6)
        assert int(got.accepted) == (second < 5 / 9 / (3 / 4))


# ------------------------------------------------------------------------------- in whole decodings


CASES = [
    ("sps", {"gamma": 3}, {}),
    ("mcsd", {"tree": (2, 2)}, {"top_k": 20}),
    ("mcsd", {"tree": (3, 1), "draw": "with"}, {"top_p": 0.9}),
    ("pld", {}, {}),
    ("mcsd", {"tree": (2, 1)}, {"temperature": 0.0}),
]


@pytest.mark.parametrize(("key", "options", "settings"), CASES)
def test_whole_decodings_are_torchs(key, options, settings, trusted, monkeypatch):
    """The same text and the same accepted lengths, in float64."""
    models = tiny.target("llama", tiny.EXACT), tiny.draft("llama", dtype=tiny.EXACT)
    target, draft = models if DEVICE.type == "cpu" else tiny.on_cuda("llama", 0.02, tiny.EXACT)
    launched = []
    real = fused._run
    monkeypatch.setattr(fused, "_run", lambda *a: launched.append(a[0]) or real(*a))
    if key in ("sps", "mcsd"):
        options = {**options, "draft": draft}
    run = {"max_new_tokens": 8, "temperature": 1.0, "seed": 4, **settings}
    method = specwb.method(key, target, **options)
    got = specwb.decode(target, [[1, 2, 3], [7, 8]], method, **run)
    assert launched
    with kernels.use(False):
        wanted = specwb.decode(target, [[1, 2, 3], [7, 8]], method, **run)
    assert (got.tokens, got.accepted_lengths) == (wanted.tokens, wanted.accepted_lengths)


# --------------------------------------------------------------------------------------- the checks


def test_a_kernel_that_fails_its_check_is_not_used(monkeypatch, caplog):
    """A wrong kernel: one warning, torch's path, the same verdict."""
    real = verification.verify

    def wrong(*args):
        path, accepted, distribution = real(*args)
        return path, accepted, distribution.roll(1, -1)

    monkeypatch.setattr(verification, "verify", wrong)
    monkeypatch.setattr(kernels, "_passed", {})
    tree = Tree.paths([(0, 0)]).to(DEVICE)
    draft, scores, u = fused.example("rrs", tree, 5, DEVICE, torch.float32)
    with kernels.use(), caplog.at_level(logging.WARNING, "specwb"):
        got = [Rejection().verify(draft, scores, u) for _ in range(2)]
    assert [r.getMessage() for r in caplog.records if "failed its check" in r.getMessage()] == [
        f"kernel rejections failed its check on {DEVICE} in float32, torch's path is used: "
        "AssertionError: Tensor-likes are not close!"
    ]
    with kernels.use(False):
        wanted = Rejection().verify(draft, scores, u)
    assert all(
        torch.equal(a.distribution.nan_to_num(), wanted.distribution.nan_to_num()) for a in got
    )


def test_the_naive_rule_is_the_point_mass_rule(trusted):
    tree = Tree.paths([(0, 0)]).to(DEVICE)
    draft, scores, u = fused.example("rrs", tree, 5, DEVICE, torch.float64)
    got = Naive().verify(draft, scores, u)
    with kernels.use(False):
        fused.assert_same(got, Naive().verify(draft, scores, u), 1e-9)


# ------------------------------------------------------------------------------- layers of a model


@pytest.mark.parametrize("check", [fused_layers.check_rotate, fused_layers.check_gated])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_parts_of_a_layer_are_torchs(check, dtype):
    check(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_add_norm_is_torchs(dtype):
    fused_layers.check_add_norm(DEVICE, dtype)


@pytest.mark.parametrize("kind", ["llama", "everything"])
def test_a_whole_model_is_torchs(kind, trusted):
    """Scores of a draft tree and what is written to the cache, in float64."""
    target = tiny.target(kind, tiny.EXACT)
    if DEVICE.type == "cuda":
        target, _ = tiny.on_cuda(kind, 0.02, tiny.EXACT)
    steps = []
    for wanted in (True, False):
        with kernels.use(wanted):
            decoding = specwb.rounds(
                target, [[1, 2, 3], [5]], "pld", max_new_tokens=8, eos=(), trace=True
            )
            steps.append([next(decoding) for _ in range(2)])
    for a, b in zip(*steps, strict=True):
        torch.testing.assert_close(a.scores.logits, b.scores.logits, atol=1e-9, rtol=1e-9)
    caches = [step[-1].state.cache.data for step in steps]
    torch.testing.assert_close(*caches, atol=1e-9, rtol=1e-9)
