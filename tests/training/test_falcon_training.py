"""CSGD does what figure 2 of the paper says, no place sees its answer, and what is trained and measured is what is drafted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from killed import resumed_alike, weights
from terminal import call
from torch.nn import functional as F

import specwb
from specwb.drafters.falcon import FalconDrafter
from specwb.models.eagle import eagle_config
from specwb.models.falcon import FalconHead
from specwb.training import corpus, falcon, fit, heads
from specwb.training.falcon import FalconRecipe, glanced
from specwb.training.heads import look, measure
from specwb.training.recipe import Found, Level, Moment

V = tiny.VOCABULARY
WORDS = [f"w{i}" for i in range(V)]


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    monkeypatch.setattr(fit, "fast_bfloat16", lambda device: False)


@cache
def head(k: int, fusion: str = "linear") -> FalconHead:
    """Random, of large weights: what any place says depends on all that it sees."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(k)
        made = FalconHead(eagle_config(tiny.target(), 2), tiny.target().backbone.config.hidden_size, k, fusion)
        for name, weight in made.named_parameters():
            weight.data = torch.randn_like(weight) * 0.25 + ("norm" in name)
    return made.eval()


def found(rows: int = 3, length: int = 22, seed: int = 0) -> Found:
    ids = torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))
    return look(tiny.target(), ids, (-1,))


def recipe(k: int, **settings) -> FalconRecipe:
    return FalconRecipe(tiny.target(), {"k": k, **settings})


class Step:
    """One training step and what it went through: ``o`` pairs left out, ``count`` of pairs to be replaced, ``mask`` of those that were, the pairs
    ``seen`` by the pass with gradient, all with numbers of pairs counted from o; and the ``levels`` that the loss is of."""

    def __init__(self, recipe: FalconRecipe, head, text: Found, moment: Moment) -> None:
        unroll, choose, self.count = head.unroll, recipe.choose, None

        def chosen(head, found, moment, pairs, o, said):
            self.mask = choose(head, found, moment, pairs, o, said)
            return self.mask

        def spied(embedded, features, steps, first=None):
            self.seen = first or (embedded, features)
            return unroll(embedded, features, steps, first)

        def counting(count, *rest):
            self.count = count
            return glanced(count, *rest)

        self.o, self.mask = int(moment.number(0) * head.k), None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recipe, "choose", chosen)
            patch.setattr(head, "unroll", spied)
            patch.setattr(falcon, "glanced", counting)
            self.levels: list[Level] = list(recipe.training(head, text, moment))


def steps(k: int, rows: int, count: int = 6):
    """Moments at the beginning of a run, all offsets among them."""
    moments = [Moment(0.0, 0, step, rows) for step in range(count)]
    assert {int(moment.number(0) * k) for moment in moments} == set(range(k))
    return moments


# ------------------------------------------------------------------------------------------------------ which pairs are replaced


def drawn(rows: int, blocks: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, blocks, generator=generator), torch.rand(rows, blocks, generator=generator)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_choices_of_figure_2(k):
    """For k = 4: the first pair, the first two, the first three, equally often; never the last."""
    order, _ = drawn(1, 300)
    lengths = (torch.arange(300)[None] + 0.5) / 300
    blocks = glanced(torch.tensor([300 * k]), 300 * k + 1, k, order, lengths)[0, :-1].view(300, k).int().tolist()
    choices = [tuple(int(i < length) for i in range(k)) for length in range(1, k)]
    assert [blocks.count(list(choice)) for choice in choices] == [300 // (k - 1)] * (k - 1)
    assert (1, 1, 1, 0) in choices or k < 4
    ends = glanced(torch.tensor([9]), 2 * k, k, torch.rand(1, 2), torch.tensor([[0.0, 1.0]]))  # the uniforms' ends
    assert ends.view(2, k).sum(1).tolist() == [1, k - 1]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_exactly_so_many_are_replaced(k):
    """Or all that can be; of blocks in random order, only the last taken is cut short."""
    rows, blocks = 40, 6
    order, lengths = drawn(rows, blocks)
    count = torch.arange(rows) % (blocks * k)
    mask = glanced(count, blocks * k + 3, k, order, lengths)
    wished = 1 + (lengths * (k - 1)).long()
    assert mask.sum(1).tolist() == torch.minimum(count, wished.sum(1)).tolist()
    assert not mask[:, blocks * k :].any()
    per = mask[:, : blocks * k].view(rows, blocks, k)
    assert (per.sum(2) <= wished).all()
    assert torch.equal(per, torch.arange(k) < per.sum(2, keepdim=True))  # prefixes
    taken = per.sum(2).gather(1, order.argsort(1))
    for row in range(rows):
        full = taken[row] == wished[row][order[row].argsort()]
        used = int((taken[row] > 0).sum())
        assert full[: max(0, used - 1)].all()
        assert not taken[row, used:].any()
    first = glanced(torch.ones(rows, dtype=torch.long), blocks * k, k, order, lengths).view(rows, blocks, k)[:, :, 0]
    assert torch.equal(first.int().argmax(1), order.argmin(1))
    assert len(set(order.argmin(1).tolist())) == blocks


def test_pairs_anywhere():
    order, lengths = drawn(400, 8)
    count = torch.arange(400) % 11
    mask = glanced(count, 10, 4, order, lengths, "random")
    assert mask.sum(1).tolist() == count.clamp_max(8).tolist()
    assert not mask[:, 8:].any()
    assert mask[count == 4].float().mean(0)[:8].tolist() == pytest.approx([0.5] * 8, abs=0.25)


@pytest.mark.parametrize("where", ["prefix", "random"])
def test_blocks_of_one_never_glance(where):
    step = Step(recipe(1, where=where, glance=1), head(1), found(), Moment(0.0, 0, 0, 3))
    assert step.mask is None or not step.mask.any()
    assert all(level.counted is None or level.counted.all() for level in step.levels)


@pytest.mark.parametrize("where", ["prefix", "random"])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_as_many_as_lambda_says_of_the_mistakes(k, where):
    """N = floor(lambda d), d counted here place by place from the pass without glancing; lambda falls in a line from ``glance`` to ``glance_end``."""
    text, model = found(), head(k)
    lm_head = tiny.target().backbone.lm_head
    made = recipe(k, where=where, glance=0.875, glance_end=0.125)
    for moment in steps(k, 3):
        for progress in (0.0, 0.25, 1.0):
            step = Step(made, model, text, Moment(progress, moment.seed, moment.step, 3))
            m = step.mask.shape[1]
            (said,) = model.unroll(text.embedded[:, 1 + step.o :][:, :m], text.features[:, step.o :][:, :m], 1)
            best = lm_head(said).argmax(-1)
            for row in range(3):
                answers = text.logits[row, step.o + k :].argmax(-1).tolist()  # what pair i is to say, for all pairs that have an answer
                d = sum(answers[i] != int(best[row, i]) for i in range(len(answers)))
                assert d > 0
                assert int(step.count[row]) == int((0.875 - 0.75 * progress) * d)
                blocks = (len(answers) - 1) // k  # those whose answers are pairs of the text
                lengths = moment.uniforms(m // k, 3, torch.device("cpu"))[row, :blocks]
                most = blocks * k if where == "random" else int((1 + (lengths * (k - 1)).long()).sum())
                assert int(step.mask[row].sum()) == min(int(step.count[row]), most)


def test_lambda():
    made = recipe(2)
    assert [made.ratio(x) for x in (0.0, 0.5, 1.0)] == [0.4, 0.2, 0.0]  # the paper's
    made = recipe(2, glance=0.45, glance_end=0.1)
    assert [made.ratio(x) for x in (0.0, 0.5, 1.0)] == pytest.approx([0.45, 0.275, 0.1])
    at_the_end = Step(recipe(2, glance=1.0), head(2), found(), Moment(1.0, 0, 0, 3))
    assert not at_the_end.mask.any()
    assert Step(recipe(2, glance=0, glance_end=0), head(2), found(), Moment(0.0, 0, 0, 3)).mask is None
    rising = Step(recipe(2, glance=0, glance_end=1), head(2), found(), Moment(1.0, 0, 0, 3))
    assert rising.mask.any()


class Oracle:
    """Says what the target says, but for the places ``wrong``."""

    k = 2

    def __init__(self, text: Found, o: int, wrong: list[int]) -> None:
        hidden = torch.roll(text.normed, -self.k - o, 1).clone()
        hidden[:, wrong] *= -1
        self.hidden = hidden.requires_grad_()

    def unroll(self, embedded, features, steps, first=None):
        return iter([self.hidden[:, : embedded.shape[1]]])

    def logits(self, hidden, lm_head):
        return F.linear(hidden, lm_head.weight.detach())


@pytest.mark.parametrize(("wrong", "n"), [([], 0), ([3, 6], 0), ([3, 6, 8], 1)])
def test_nothing_is_replaced_where_little_is_wrong(wrong, n):
    """And the step is made: every place not replaced counts. lambda = 0.4."""
    text, moment = found(), Moment(0.0, 0, 0, 3)
    oracle = Oracle(text, int(moment.number(0) * 2), wrong)
    made = recipe(2, unroll=1)
    step = Step(made, oracle, text, moment)
    assert step.count.tolist() == step.mask.sum(1).tolist() == [n] * 3
    (level,) = step.levels
    assert level.counted.sum(1).tolist() == [level.counted.shape[1] - n] * 3
    heads.step_loss(made, oracle, text, moment).backward()
    assert (oracle.hidden.grad[:, : level.counted.shape[1]].abs().sum(-1) > 0).sum() > 0


# --------------------------------------------------------------------------------------------------- what they are replaced by


@pytest.mark.parametrize("what", falcon.WHAT)
@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_replaced_pair_is_its_own_answer(k, what):
    """Token t_{i+k+1} and feature f_{i+k}; every other pair i is t_{i+1} and f_i."""
    text, replaced = found(), 0
    for moment in steps(k, 3):
        step = Step(recipe(k, glance=1, replaced=what), head(k), text, moment)
        for row in range(3):
            for i in range(step.mask.shape[1]):
                there = bool(step.mask[row, i])
                replaced += there
                at = step.o + i + (k if there else 0)
                token = at if what != "features" else step.o + i
                feature = at if what != "tokens" else step.o + i
                assert torch.equal(step.seen[0][row, i], text.embedded[row, token + 1])
                assert torch.equal(step.seen[1][row, i], text.features[row, feature])
    assert replaced > 20


def test_noise_on_features_that_are_read():
    """Uniform on both sides, times 512 over the length; the target's own are what is glanced at and what is learnt."""
    text = found(rows=4, length=32)
    step = Step(recipe(2, noise=0.1, glance=1), head(2), text, Moment(0.0, 0, 1, 4))
    m = step.mask.shape[1]
    away = step.seen[1] - text.features[:, step.o :][:, :m]
    away = away[~step.mask] / (0.1 * 512 / 32)
    assert -1 <= float(away.min()) < -0.9 < 0.9 < float(away.max()) <= 1
    assert abs(float(away.mean())) < 0.05
    later = text.features[:, step.o + 2 :]
    glances = step.mask[:, : later.shape[1]]
    assert glances.any()
    assert torch.equal(step.seen[1][:, : later.shape[1]][glances], later[glances])


# ----------------------------------------------------------------------------------------------------------- what the loss is of


@pytest.mark.parametrize("k", [2, 3, 4])
def test_replaced_places_do_not_count(k):
    """Nor does, in the second pass, any place whose block stands below one that glanced."""
    text, both = found(), set()
    for moment in steps(k, 3):
        step = Step(recipe(k, unroll=2, glance=0.3), head(k), text, moment)
        one, two = step.levels
        m = step.mask.shape[1]
        assert one.start == step.o + k
        assert two.start == step.o + 2 * k
        for row in range(3):
            for i in range(one.logits.shape[1]):
                assert bool(one.counted[row, i]) is not bool(step.mask[row, i])
            for n in range(two.logits.shape[1]):
                block = (n + k) // k  # its pairs are n + k
                above = bool(step.mask[row, (block - 1) * k : block * k].any())
                both.add(above)
                assert bool(two.counted[row, n]) is not above
        # a law for every pair whose answer is in the text
        assert one.logits.shape[1] == 22 - step.o - k
        assert two.logits.shape[1] == 22 - step.o - 2 * k
        assert m % k == 0
    assert both == {True, False}
    everything = Step(recipe(k, unroll=2, glance=0.9, count_glanced=1), head(k), text, steps(k, 3)[0])
    assert everything.mask.any()
    assert all(level.counted is None for level in everything.levels)


def test_the_loss_place_by_place():
    """Cross-entropy to the target's law with a share of its best token, SmoothL1 to its states, nothing of places that do not count; a mean over
    all places, the second pass weighing ``decay``."""
    k, text, moment = 2, found(), Moment(0.0, 0, 2, 3)
    made = recipe(k, unroll=2, glance=0.5, regression=0.7, hard=0.2)
    step = Step(made, head(k), text, moment)
    total = 0.0
    for weight, level in zip((1.0, made.decay), step.levels, strict=True):
        logits, hidden, (rows, m) = level.logits.detach(), level.hidden.detach(), level.counted.shape
        for row in range(rows):
            for n in range(m):
                if not level.counted[row, n]:
                    continue
                at = level.start + n
                p = text.logits[row, at].softmax(-1) * 0.8
                p[text.logits[row, at].argmax()] += 0.2
                away = (hidden[row, n] - text.normed[row, at]).abs()
                smooth = torch.where(away < 1, away**2 / 2, away - 0.5).mean()
                total += weight * float(-(p * logits[row, n].log_softmax(-1)).sum() + 0.7 * smooth) / (rows * m)
    assert heads.step_loss(made, head(k), text, moment).item() == pytest.approx(total, rel=1e-5)


# --------------------------------------------------------------------------------------------------------------- no leakage


def sources(value: torch.Tensor, text: Found, row: int) -> tuple[set[int], set[int]]:
    """Of which tokens and which features of the text ``value`` is a function."""
    given = torch.autograd.grad(value, [text.embedded, text.features], retain_graph=True, allow_unused=True)
    return tuple({int(i) for i in g[row].abs().sum(-1).nonzero()} if g is not None else set() for g in given)  # type: ignore[return-value]


@pytest.mark.parametrize("glance", [0.0, 0.6])
@pytest.mark.parametrize(("k", "fusion"), [(2, "lstm"), (3, "lstm"), (4, "linear")])
def test_no_place_sees_its_answer(k, glance, fusion):
    """Place i sees the pairs up to the end of its block, and the answers of the places before it that glanced; a step below, the pairs of blocks
    above and its own block's tokens. Its answer is feature i + k and the token after it, and neither nor anything later is seen by a place that
    counts."""
    model, glimpses = head(k, fusion), 0
    for moment in {int(moment.number(0) * k): moment for moment in steps(k, 1)}.values():
        text = found(1, 3 * k + 5)
        for part in (text.embedded, text.features):
            part.requires_grad_()
        step = Step(recipe(k, unroll=2, glance=glance), model, text, moment)
        o = step.o
        for depth, level in enumerate(step.levels):
            for n in range(level.logits.shape[1]):
                if level.counted is not None and not level.counted[0, n]:
                    continue
                i = n + depth * k
                block = i // k * k
                tokens, features = sources(level.hidden[0, n].sum(), text, 0)
                assert max(features) < o + i + k  # the answer, and the token that its law is of
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


# -------------------------------------------------------------------------------------------------------- several processes


def test_two_processes_make_the_rows_of_one(monkeypatch):
    """The same pairs glance, whichever process has the row."""
    text, made = found(rows=4), recipe(3, glance=0.7, noise=0.1)
    moment = Moment(0.1, 5, 7, 4)
    whole, table = Step(made, head(3), text, moment), moment.uniforms(6, 2, torch.device("cpu"))
    assert table.shape == (4, 6)
    assert len({float(x) for x in table.flatten()}) == 24
    assert not torch.equal(table, moment.uniforms(6, 3, torch.device("cpu")))
    assert not torch.equal(table, Moment(0.1, 5, 8, 4).uniforms(6, 2, torch.device("cpu")))
    assert not torch.equal(table, Moment(0.1, 6, 7, 4).uniforms(6, 2, torch.device("cpu")))
    for index in range(2):
        monkeypatch.setattr(fit, "_processes", lambda index=index: SimpleNamespace(num_processes=2, process_index=index))
        part = Found(*(x[index::2] for x in (text.ids, text.embedded, text.features, text.normed, text.logits)))
        step = Step(made, head(3), part, moment)
        assert step.o == whole.o
        assert torch.equal(moment.uniforms(6, 2, torch.device("cpu")), table[index::2])
        assert torch.equal(step.mask, whole.mask[index::2])
        assert torch.equal(step.seen[1], whole.seen[1][index::2])
        for own, every in zip(step.levels, whole.levels, strict=True):
            assert torch.equal(own.counted, every.counted[index::2])
    assert whole.mask.any()


# ------------------------------------------------------------------------------------------------ what is measured is what is drafted


class Told(FalconDrafter):
    """Drafts a chain of tokens that it is told, and keeps what it would have said."""

    def logits(self, hidden):
        said = super().logits(hidden)
        self.said += list(said[0])
        now = self.told[len(self.said) - said.shape[1] : len(self.said)]
        return F.one_hot(torch.tensor([now]), V).float()


def drafted(model: FalconHead, text: list[int], known: int, depth: int) -> list[torch.Tensor]:
    """``[V]`` by depth: what the drafter says of the places after ``known`` tokens of a text, the text itself being what it drafts."""
    drafter = Told(model, specwb.Tree.branching(*[1] * depth), "greedy", "right")
    # a decoding works with a copy of its drafter
    Told.said, Told.told = [], text[known : known + depth]
    method = specwb.Method("falcon", drafter, None, specwb.Exactness.LOSSLESS)
    next(specwb.rounds(tiny.target(), [text[:known]], method, max_new_tokens=1))
    assert len(Told.said) == depth
    return Told.said


@pytest.mark.parametrize(("k", "fusion"), [(1, "linear"), (2, "lstm"), (3, "pointwise"), (3, "lstm"), (4, "linear")])
def test_measured_depths_are_the_drafters(k, fusion):
    """Level d is the law at depth d + 1 of a draft that follows the text; for every text of whole blocks, over several passes."""
    model, made, depth = head(k, fusion), recipe(k), 2 * k + 1
    made.measured = depth
    ids = torch.randint(V, (1, 6 * k + 2), generator=torch.Generator().manual_seed(1))
    text, seen = ids[0].tolist(), look(tiny.target(), ids, (-1,))
    levels = list(made.levels(model, seen, depth))
    assert len(levels) == depth
    hits, overlap, compared = np.zeros((depth, heads.RANKS)), np.zeros(depth), np.zeros(depth, dtype=int)
    for known in range(k + 1, len(text) + 1, k):
        there = min(depth, len(text) - known + 1)  # laws of tokens that the text has, and of the one after it
        for d, logits in enumerate(drafted(model, [*text, *[0] * depth], known, depth)[:there]):
            level, place = levels[d], (known - 1) // k - 1
            torch.testing.assert_close(level.logits[0, place], logits, atol=2e-3, rtol=1e-2)
            wanted = level.of(seen.logits)[0, place]
            assert torch.equal(wanted, seen.logits[0, known - 1 + d])
            order = logits.argsort(descending=True)[: heads.RANKS]
            hits[d] += (order == wanted.argmax()).numpy()
            overlap[d] += float(torch.minimum(logits.softmax(-1), wanted.softmax(-1)).sum())
            compared[d] += 1
    assert compared.tolist() == [level.logits.shape[1] for level in levels]
    said = measure(made, model, ids)
    for d in range(depth):
        assert said["rank"][d] == pytest.approx(hits[d] / compared[d], abs=1e-3)
        assert said["sampled"][d] == pytest.approx(overlap[d] / compared[d], abs=1e-3)


@pytest.mark.parametrize(("k", "unroll"), [(1, 1), (2, 2), (3, 1), (4, 3)])
def test_the_shortest_row_has_places_at_every_depth(k, unroll):
    """With any offset, trained and measured."""
    made = recipe(k, unroll=unroll)
    text = found(1, made.least())
    for moment in steps(k, 1):
        assert all(level.logits.shape[1] > 0 for level in made.training(head(k), text, moment))
    assert all(level.logits.shape[1] > 0 for level in made.levels(head(k), text, made.measured))


# ------------------------------------------------------------------------------------------------------- stopped and resumed


def train(out: Path, **settings) -> Path:
    rng = np.random.default_rng(0)
    text = corpus.Corpus({"text": rng.integers(0, V, 2000).astype(np.uint16)}, {"text": rng.integers(0, V, 500).astype(np.uint16)}, [], "x")
    chosen = {"k": 3, "unroll": 2, "layers": 1, "glance": 0.5, "noise": 0.02, **settings}
    return heads.train_head("falcon", tiny.target(), out, chosen, {"steps": 10, "rows": 4, "length": 32}, text, {"text": 1.0}, seed=3, source="read")


@pytest.mark.slow
def test_killed_training_resumes_bit_for_bit(monkeypatch, tmp_path):
    """SIGKILL in the middle of a step, after a checkpoint; what glances when is a function of the step."""
    whole = resumed_alike(monkeypatch, tmp_path, train, 10)
    # glancing is part of it
    plain = weights(train(tmp_path / "plain", glance=0))
    assert not torch.equal(plain["lstm.weight_ih_l0"], whole["lstm.weight_ih_l0"])
    # and the files are a head that drafts
    method = specwb.method("falcon", tiny.target(), head=tmp_path / "part")
    texts = [specwb.decode(tiny.target(), tiny.PROMPTS, m, max_new_tokens=8).tokens for m in (method, "ar")]
    assert texts[0] == texts[1]


# ------------------------------------------------------------------------------------------------------------- bad settings


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("falcon")
    tiny.build("llama", seed=2).save_pretrained(root / "target")
    tiny.tokenizer(WORDS).save_pretrained(root / "target")
    (root / "corpus.txt").write_text(" ".join(WORDS * 60))
    return root


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("k=5", "falcon: k must be 1..4, got 5"),
        ("k=0", "falcon: k must be an integer >= 1, got 0"),
        ("k=two", "falcon: k must be an integer >= 1, got 'two'"),
        ("unroll=0", "falcon: unroll must be an integer >= 1, got 0"),
        ("layers=0", "falcon: layers must be an integer >= 1, got 0"),
        ("k=4,unroll=8", "rows of 32 tokens are too short, falcon needs 41"),
        ("fusion=gru", "falcon: fusion must be lstm, pointwise, linear, got 'gru'"),
        ("align=middle", "falcon: align must be right, left, got 'middle'"),
        ("where=suffix", "falcon: where must be prefix, random, got 'suffix'"),
        ("replaced=neither", "falcon: replaced must be both, tokens, features, got 'neither'"),
        ("glance=1.5", "falcon: glance, glance_end and hard are shares of at most 1, got 1.5"),
        ("glance_end=2", "falcon: glance, glance_end and hard are shares of at most 1"),
        ("hard=1.1", "falcon: glance, glance_end and hard are shares of at most 1"),
        ("glance=-0.1", "falcon: glance must be a number >= 0, got -0.1"),
        ("glance=nan", "falcon: glance must be a number >= 0, got nan"),
        ("noise=inf", "falcon: noise must be a number >= 0, got inf"),
        ("count_glanced=-1", "falcon: count_glanced must be an integer >= 0, got -1"),
        ("lambda=0.4", "falcon: settings are k, layers, ffn, fusion, align, unroll, regression, hard, noise, glance, glance_end, where, replaced"),
        ("k", "written name=value; got 'k'"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(monkeypatch, capsys, place, tmp_path, given, named):
    arguments = {"target": place / "target", "out": tmp_path / "head", "budget": "smoke", "steps": 2, "rows": 4, "length": 32, "set": given,
                 "corpus": place / "corpus.txt", "generated": tmp_path / "generated", "device": "cpu"}  # fmt: skip
    code, out, err = call(monkeypatch, capsys, "train", "falcon", *(part for name, value in arguments.items() for part in (f"--{name}", str(value))))
    lines = [line for line in err.strip().splitlines() if line != "reading the training text"]
    assert code == 2, err
    assert named in err
    assert len(lines) == 1, err
    assert not out
    assert not list(tmp_path.iterdir())
