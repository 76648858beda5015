"""theory/14_easyspec.md: what its theorems say of the code. Times and bounds are in
tests/theory/test_layer_parallel.py."""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction as F
from functools import cache
from itertools import product

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import specwb
from specwb.core.tree import Tree
from specwb.drafters.easyspec import EasyDrafter
from specwb.models.backbone import Backbone
from specwb.models.fuzzy import FusedGroups, Groups, unit
from specwb.models.layers import rms
from specwb.models.place import Place
from specwb.theory import exact as E
from specwb.theory.instances import models

LAYERS, GROUPS = 6, ((0,), (1,), (2, 3, 4), (5,))


@cache
def pair() -> tuple[specwb.Target, specwb.Target]:
    """A deep draft and a target that is nearly the same; branches small enough for layers side by
    side to be about right."""
    made = tiny.build("llama", seed=4, num_hidden_layers=LAYERS)
    for name, weight in made.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= 0.5
    return specwb.load(tiny.perturbed(made, 0.01)), specwb.load(made)


class Looked(EasyDrafter):
    """Every round: the text, how far its entries are off in every layer ``[L,length]``, and how
    many tokens were kept."""

    def propose(self, state, noise):
        text = state.tokens[0, : int(state.length)]
        draft = super().propose(state, noise)
        wanted = tiny.recomputed(self.backbone, text)
        off = (self.cache.data[:, 0, : len(text)] - wanted).abs().amax((-1, -2))
        self.seen.append({"text": text.tolist(), "off": off})
        return draft

    def observe(self, state, draft, verdict, scores):
        super().observe(state, draft, verdict, scores)
        self.seen[-1]["kept"] = int(verdict.accepted)


def looked(calibrate: bool = True, depth: int = 3, groups=GROUPS) -> Looked:
    return Looked(pair()[1], Tree.chain(depth), Groups(groups), calibrate)


def decoded(drafter: Looked, length: int) -> list[dict]:
    drafter.seen = []
    method = specwb.Method("looked", drafter, None, specwb.Exactness.LOSSLESS)
    list(specwb.rounds(pair()[0], [[3, 1, 4, 1, 5]], method, max_new_tokens=length))
    return drafter.seen


# --------------------------------------------------------------------------------- 14.1, lossless


def written(
    target: E.Model,
    draft,
    rule: E.NodeRule,
    scheme: E.SamplingScheme,
    parents: tuple[int, ...],
    length: int,
) -> dict[E.Tokens, F]:
    """The law of ``length`` tokens written in rounds by a drafter that is a function of all that
    was ever drafted, kept or not."""
    done: dict[E.Tokens, F] = defaultdict(F)
    todo: list[tuple[E.Tokens, tuple, F]] = [((), (), F(1))]
    while todo:
        text, history, chance = todo.pop()
        if len(text) >= length:
            done[text[:length]] += chance
            continue
        drafted: list[E.Paths] = []

        def note(paths: E.Paths, drafted=drafted) -> E.Paths:
            drafted.append(paths)
            return paths

        def here(tokens: E.Tokens, history=history, text=text) -> E.Dist:
            return draft(history, text + tokens)

        def there(tokens: E.Tokens, text=text) -> E.Dist:
            return target(text + tokens)

        for path, bonus, prob in E.walks(rule, scheme, there, here, parents, note):
            for y, a in enumerate(bonus or ()):
                if a:
                    ended = (*history, (len(text), tuple(drafted[-1])))
                    todo.append(((*text, *path, y), ended, chance * prob * a))
    return done


def remembering(seed: int, v: int):
    """A draft law that depends on the text and on the whole history of rounds, as a cache that is
    never made exact does."""

    @cache
    def distribution(history: tuple, text: E.Tokens) -> list[F]:
        rng = random.Random(f"{seed} {history} {text}")
        return E.norm([rng.randint(1, 9) for _ in range(v)])

    return distribution


@pytest.mark.parametrize(("parents", "length"), [((-1, 0), 3), ((-1, 0, 1), 3), ((-1, 0, 0), 2)])
def test_lossless_whatever_the_drafter_remembers(parents, length):
    for seed in range(2):
        target, _ = models(seed, 2, "dense")
        for scheme, rule in ((E.iid, E.rrs), (E.without_replacement, E.rrsw)):
            assert written(
                target, remembering(seed, 2), rule, scheme, parents, length
            ) == E.target_distribution(target, length)
    # what it remembers does matter: the same text, drafted for after other rounds, has other laws
    draft = remembering(0, 2)
    assert draft(((0, ((), (1,))),), (0, 0)) != draft(((0, ((), (0,))),), (0, 0))


def test_the_exact_distribution_in_the_place_of_the_one_drawn_from():
    rng, off, equal = random.Random(3), 0, 0
    for _ in range(60):
        v = rng.choice([2, 3, 4])
        p, q, drawn = (E.norm([rng.randint(1, 6) for _ in range(v)]) for _ in range(3))
        for target, tested in ((p, q), (q, q)):
            distribution = [F(0)] * v
            for x, chance in enumerate(drawn):
                for y, a in enumerate(
                    E.conditional_distribution(E.rejection(target, tested, (x,)), (x,), v)
                ):
                    distribution[y] += chance * a
            assert E.tv(distribution, target) <= E.tv(drawn, tested)
            off += distribution != target
        assert distribution == drawn  # where the exact draft is the target: everything is accepted
        equal += E.tv(distribution, q) == E.tv(drawn, q)
    assert off > 60
    assert equal == 60


def shared(draft) -> dict[tuple[int, ...], F]:
    """The law of three of two tokens, p uniform, by two paths and shared noise: at a place both
    paths' tokens under uniform q and which path wins are eight cases of one chance. ``draft`` of
    the text and all rounds: a token for both paths, or None for uniform q, at each place left."""
    distribution: dict[tuple[int, ...], F] = defaultdict(F)
    for noise in product(product((0, 1), repeat=3), repeat=3):
        text: list[int] = []
        rounds: list[list[list[int]]] = []
        while len(text) < 3:
            ahead = noise[len(text) :]
            drawn = zip(ahead, draft(text, rounds), strict=True)
            rounds.append([[*at[:2]] if q is None else [q, q] for at, q in drawn])
            agree = [0, 1]
            for (*own, winner), drafted in zip(ahead, rounds[-1], strict=True):
                text.append(own[winner if len(agree) == 2 else agree[0]])
                agree = [k for k in agree if drafted[k] == text[-1]]
                if not agree:
                    break
        distribution[tuple(text)] += F(1, 512)
    return distribution


def test_shared_noise_and_a_drafter_that_remembers_what_was_not_kept():
    """Lossless for a drafter that knows what is written, for no other."""

    def knowing(text, rounds):
        return ([0, None, None], [*text, None], [None])[len(text)]

    def remembering(text, rounds):
        if len(text) == 1:
            _, second, third = rounds[0]
            if second[0] != second[1] and third[0] != third[1] and second[third.index(0)] == 1:
                return [1, None]
        return [None] * (3 - len(text)) if text else knowing(text, rounds)

    assert set(shared(knowing).values()) == {F(1, 8)}
    distribution = shared(remembering)
    assert distribution[1, 0, 0] / (distribution[1, 0, 0] + distribution[1, 0, 1]) == F(9, 16)


# ---------------------------------------------------------------------- 14.2, groups of one layer


def test_entries_are_exact_up_to_the_first_layer_of_the_first_group():
    """Never calibrated, and off in every layer behind it and in none before."""
    for groups, exact in (
        (((0,), (1, 2), (3, 4), (5,)), 2),
        (GROUPS, 3),
        (((0, 1, 2), (3,), (4,), (5,)), 1),
    ):
        rounds = decoded(looked(False, groups=groups), 12)
        off = torch.stack([seen["off"].amax(-1) for seen in rounds]).amax(0)
        assert float(off[:exact].max()) < 1e-4
        assert float(off[exact:].min()) > 1e-3


# ------------------------------------------------------------------------------ 14.3, calibration


def test_a_window_of_one_less_is_too_short():
    """D tokens fed, not D + 1: exact until a round keeps all D, off from there on, first in its
    first drafted token."""
    drafter = looked(depth=2)
    drafter.window = 2
    seen = decoded(drafter, 30)
    full = [i for i, s in enumerate(seen[:-1]) if s["kept"] == 2]
    wrong = [i for i, s in enumerate(seen) if float(s["off"].max()) > 1e-4]
    assert full
    assert wrong[0] == full[0] + 1
    length = len(seen[full[0]]["text"])
    assert seen[wrong[0]]["off"].amax(0).gt(1e-4).nonzero().min() == length


# ------------------------------------------------------------------------------------ 14.4, norms


@torch.no_grad()
def test_a_norm_without_a_gain_keeps_cosines():
    torch.manual_seed(0)
    stack = pair()[1].backbone
    norm = stack.layers[2].norm1
    x, y = torch.randn(2, 200, 32)
    y = x + 0.3 * y

    def cosine(a, b):
        return torch.cosine_similarity(a, b, -1)

    torch.testing.assert_close(
        cosine(*(unit(z, norm.variance_epsilon) for z in (x, y))), cosine(x, y), atol=1e-6, rtol=0
    )
    gained = (cosine(rms(x, norm), rms(y, norm)) - cosine(x, y)).abs()
    kappa = float(norm.weight.abs().max() / norm.weight.abs().min())
    assert float(gained.max()) > 1e-3
    for before, after in zip(
        cosine(x, y).double().tolist(), cosine(rms(x, norm), rms(y, norm)).tolist(), strict=True
    ):
        low, high = specwb.theory.analysis.gained_cosine(before, kappa)
        assert low - 1e-6 <= after <= high + 1e-6
    centred = torch.nn.functional.layer_norm(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), (2,))
    assert float(cosine(centred[0], centred[1])) == pytest.approx(-1)


# ------------------------------------------------------------------------------- 14.7, one device


class Operators(TorchDispatchMode):
    """Counts what is launched."""

    VIEWS = ("view", "reshape", "transpose", "permute", "expand", "slice", "select", "unsqueeze")
    VIEWS += ("squeeze", "split", "unbind", "t.", "alias", "detach")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not any(
            str(func).removeprefix("aten.").lstrip("_").startswith(view) for view in self.VIEWS
        )
        return func(*args, **(kwargs or {}))


def test_a_fused_group_has_the_work_of_its_layers_in_fewer_operators():
    stack, m = pair()[1].backbone, 12
    x, at = torch.randn(1, m, 32), torch.arange(m)[None]
    mask = torch.zeros(1, m, m).masked_fill_(
        torch.ones(m, m).triu(1).bool(), torch.finfo(torch.float32).min
    )

    def measured(groups: Groups | None) -> tuple[int, int]:
        run, place = stack.run if groups is None else groups.on(stack), Place(at, at, m, mask)
        with torch.inference_mode():
            # weights are stacked, rotations made
            run(x, place, stack.cache(1, m))
            cache = stack.cache(1, m)
            with FlopCounterMode(display=False) as work:
                run(x, place, cache)
            with Operators() as operators:
                run(x, place, cache)
        return work.get_total_flops(), operators.count

    plain = measured(None)
    by_n = {
        n: [
            measured(kind(((*range(n),), *((i,) for i in range(n, LAYERS)))))
            for kind in (Groups, FusedGroups)
        ]
        for n in (2, 3, 4, 5, 6)
    }
    for simulated, fused in by_n.values():
        assert simulated[0] == fused[0] == plain[0] > 0
        assert simulated[1] == plain[1] > fused[1]
    # every further layer in the group saves as many: the attention's are there already
    saved = [by_n[n][1][1] - by_n[n + 1][1][1] for n in (2, 3, 4, 5)]
    assert len(set(saved[:-1])) == 1
    assert saved[0] > 0
    # where no layer is left alone, their tables of rotations are not made either
    assert saved[-1] >= saved[0]


# ----------------------------------------------------------------------------- 14.8, whole layers


@cache
def scaled(eps: float) -> Backbone:
    """Branches multiplied by ``eps``, in float64."""
    made = tiny.build("llama", seed=4, num_hidden_layers=4).double()
    for name, weight in made.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= eps
    return Backbone(made)


def test_side_by_side_is_right_to_first_order():
    """The error falls with the square of the branches' size; attentions side by side drop half the
    terms of whole layers."""
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    errors: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for eps in (1e-3, 5e-4):
        stack = scaled(eps)
        with torch.inference_mode():
            x = stack.embed(tokens)

            def out(run, stack=stack, x=x):
                return run(x, Place.text(1, 7), stack.cache(1, 7))[0]

            exact = out(stack.run)
            for parallel_mlp, found in errors.items():
                found.append(out(Groups(((0, 1, 2, 3),), parallel_mlp).on(stack)) - exact)
            # what the group adds is of the first order itself
            assert float((exact - x).norm()) > 20 * float(errors[True][-1].norm())
    for first, second in errors.values():
        assert float(first.norm() / second.norm()) == pytest.approx(4, rel=0.05)
    assert float(errors[False][1].norm()) < float(errors[True][1].norm())


def test_which_products_of_linear_layers_are_dropped():
    """Layers that are matrices: the second order of what is dropped, pair by pair."""
    torch.manual_seed(0)
    n, size, eps = 4, 5, 1e-4
    a, m = torch.randn(2, n, size, size, dtype=torch.float64)
    one = torch.eye(size, dtype=torch.float64)

    def exact(x):
        for i in range(n):
            x = x + eps * a[i] @ x
            x = x + eps * m[i] @ x
        return x

    def fuzzy(h):
        x = h
        for i in range(n):
            x = x + eps * a[i] @ h
            x = x + eps * m[i] @ x
        return x

    def whole(h):
        return h + sum(eps * a[i] @ h + eps * m[i] @ (h + eps * a[i] @ h) for i in range(n))

    pairs = [(i, j) for j in range(n) for i in range(j)]
    attended = sum(a[j] @ (a[i] + m[i]) for i, j in pairs)
    fed = sum(m[j] @ (a[i] + m[i]) for i, j in pairs)
    torch.testing.assert_close((exact(one) - fuzzy(one)) / eps**2, attended, atol=0.1, rtol=0)
    torch.testing.assert_close((exact(one) - whole(one)) / eps**2, attended + fed, atol=0.1, rtol=0)
    # counted: words of two letters in the product of all (1 + a_i), (1 + m_i) in order, whose first
    # letter is applied last
    letters = [(i, kind) for i in range(n) for kind in "am"]
    words = [(later, first) for at, later in enumerate(letters) for first in letters[:at]]
    assert len(words) == n + 2 * n * (n - 1) == 28
    assert sum(later[1] == "a" for later, _ in words) == n * (n - 1) == 12
    assert sum(later[0] != first[0] for later, first in words) == 24
