"""Draft models with another vocabulary than the target's: drafting among shared tokens and through
the text; of the same tokens, with more rows that no token has, or fewer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from scipy import stats
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import specwb
from specwb.models.vocabulary import PIECES, shared, shared_tokens, token_bytes

LETTERS = [f"{c}" for c in "abcde"]


def words(*tokens: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose longer tokens are merges of two shorter ones."""
    single = [token for token in tokens if len(token) == 1]
    merges = [(token[:-1], token[-1]) for token in tokens if len(token) > 1]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    assert len(single) + len(merges) == len(tokens)
    return PreTrainedTokenizerFast(tokenizer_object=made)


OURS = words("a", "b", "c", "d", "ab", "cd", "e")
THEIRS = words("e", "d", "c", "b", "a", "cde", "cd", "ba")
SHARED = {0: 4, 1: 3, 2: 2, 3: 1, 5: 6, 6: 0}


def model(seed: int, rows: int):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return tiny.build("llama", seed=seed, spread=0.35, vocab_size=rows, dtype=tiny.EXACT, **sizes)


@pytest.fixture(scope="module")
def pair() -> tuple[specwb.Target, specwb.Target]:
    """A draft model whose shared rows are the target's, so that drafts are accepted."""
    ours, theirs = model(5, len(OURS)), model(5, len(THEIRS))
    state = {k: w.clone() for k, w in ours.state_dict().items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = theirs.state_dict()[name].clone()
        for mine, other in SHARED.items():
            rows[other] = state[name][mine]
        state[name] = rows
    theirs.load_state_dict(state)
    theirs = tiny.perturbed(theirs, 0.1, 6)
    return specwb.load(ours, tokenizer=OURS), specwb.load(theirs, tokenizer=THEIRS)


def test_which_tokens_are_shared():
    assert shared_tokens(OURS, THEIRS) == SHARED
    spaced = tiny.tokenizer(["<unk>", "▁the", "▁a", "<0x0A>", "x"])
    assert token_bytes(spaced) == {0: "<unk>", 1: b" the", 2: b" a", 3: b"\n", 4: b"x"}
    assert shared_tokens(words("Ġ", "t", "h", "e", "Ġt", "Ġth", "Ġthe", "Ċ"), spaced) == {
        6: 1,
        7: 3,
    }


def test_a_token_that_the_draft_has_not_is_read_in_pieces_and_never_drafted(pair):
    target, draft = pair
    made = shared(draft, target)
    ids = torch.tensor([[0, 4, 5]])
    table = draft.backbone.embed(torch.arange(draft.vocabulary))
    wanted = torch.stack([table[4], (table[4] + table[3]) / 2, table[6]])[None]
    assert torch.allclose(made.backbone.embed(ids), wanted)
    assert made.backbone.pieces.shape == (target.vocabulary, PIECES)
    hidden = torch.randn(2, 3, 16, dtype=tiny.EXACT)
    with torch.no_grad():
        logits, own = made.backbone.head(hidden), draft.backbone.head(hidden)
    for mine, other in SHARED.items():
        assert torch.equal(logits[..., mine], own[..., other])
    assert bool((logits[..., 4] == -torch.inf).all())


def test_of_a_token_in_many_pieces_the_last_four_are_read():
    ours = words("a", "b", "c", "d", "e", "ab", "abc", "abcd", "abcde")
    target = specwb.load(model(5, len(ours)), tokenizer=ours)
    draft = specwb.load(model(6, 5), tokenizer=words("e", "d", "c", "b", "a"))
    table = draft.backbone.embed(torch.arange(5))
    read = shared(draft, target).backbone.embed(torch.tensor([[6, 8]]))
    wanted = [(table[4] + table[3] + table[2]) / 3, (table[3] + table[2] + table[1] + table[0]) / 4]
    assert torch.allclose(read[0], torch.stack(wanted))


METHODS = {
    "sps": {"gamma": 3, "draft_vocabulary": "shared"},
    "mcsd": {"tree": (2, 2), "draft_vocabulary": "shared"},
    "mcsd_ti": {"stop": "top", "draft_vocabulary": "shared"},
    "easyspec": {"gamma": 3, "n": 1, "draft_vocabulary": "shared"},
    "text": {"gamma": 3, "draft_vocabulary": "text"},
}


def made(name: str, pair) -> specwb.Method:
    key = "sps" if name == "text" else name
    return specwb.method(key, pair[0], draft=pair[1], **METHODS[name])


@pytest.mark.parametrize("name", METHODS)
def test_greedy_text_is_the_target_s(pair, name):
    prompts = [[0, 1, 2, 3], [5], [4, 4, 6, 0, 2, 5, 1]]
    plain = specwb.decode(pair[0], prompts, "ar", max_new_tokens=20)
    out = specwb.decode(pair[0], prompts, made(name, pair), max_new_tokens=20)
    assert out.tokens == plain.tokens
    assert out.mean_tokens_per_step > 1.1
    # a row alone is decoded as in the batch
    alone = specwb.decode(pair[0], prompts[2], made(name, pair), max_new_tokens=20)
    assert alone.tokens[0] == out.tokens[2]
    assert alone.accepted_lengths[0] == out.accepted_lengths[2]


def filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """``[..., V]`` the distribution that is sampled from, written down once more."""
    p = (logits / temperature).softmax(-1)
    falling, order = p.sort(-1, descending=True)
    if top_k:
        falling[..., top_k:] = 0
        falling /= falling.sum(-1, keepdim=True)
    falling[falling.cumsum(-1) - falling >= top_p] = 0
    falling /= falling.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, order, falling)


FILTERS = [
    ("sps", 1.0, 2, 1.0),
    ("sps", 0.6, 0, 0.7),
    ("mcsd", 1.0, 3, 1.0),
    ("mcsd", 0.8, 4, 0.8),
    ("mcsd_ti", 1.0, 2, 1.0),
    ("easyspec", 1.0, 3, 0.9),
    ("text", 1.0, 2, 1.0),
]


def sampled(target: specwb.Target, method: specwb.Method, prompt: list[int], count: int, **how):
    """``[V, V]`` how often each pair of first tokens is sampled, after a chi-square test against
    the target's distribution of it."""
    how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **how}
    with torch.no_grad():
        first = target.model(torch.tensor([prompt])).logits[0, -1]
        texts = torch.tensor([[*prompt, token] for token in range(len(first))])
        second = target.model(texts).logits[:, -1]
    wanted = filtered(first, **how)[:, None] * filtered(second, **how) * count
    seeds = list(range(count))
    out = specwb.decode(target, [prompt] * count, method, max_new_tokens=2, seed=seeds, **how)
    assert how["top_k"] == 2 or out.mean_tokens_per_step > 1.1
    counts = torch.zeros_like(wanted)
    counts.index_put_(tuple(torch.tensor(out.tokens).T), torch.ones(count).to(counts), True)
    assert counts[wanted == 0].sum() == 0, "no token that the filters leave out"
    often = wanted > 5
    observed, expected = counts[often].tolist(), wanted[often].tolist()
    if rare := float(wanted[~often].sum()):
        observed, expected = [*observed, float(counts[~often].sum())], [*expected, rare]
    assert len(expected) >= (3 if how["top_k"] or how["top_p"] < 1 else 11)
    assert stats.chisquare(observed, expected).pvalue > 1e-4
    return counts


@pytest.mark.parametrize(
    ("name", "temperature", "top_k", "top_p"),
    [*((name, 1.0, 0, 1.0) for name in METHODS), *FILTERS],
)
def test_sampled_text_has_the_target_s_distribution(pair, name, temperature, top_k, top_p):
    """Of the first two tokens, those that the draft model has not among them. With
    top_k=2 the two models' best tokens differ: q and p have no token in common."""
    # the text is parted on the host, row by row
    count = 1024 if name == "text" else 2048
    how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    counts = sampled(pair[0], made(name, pair), [0, 1, 2], count, **how)
    if not top_k and top_p == 1:
        assert counts[4].sum() > 20, "the token that the draft model has not"


def test_q_is_the_draft_model_s_distribution_given_a_shared_token(pair):
    target, draft = pair
    (step,) = specwb.rounds(
        target, [0, 1, 2], made("sps", pair), max_new_tokens=1, temperature=1.0, trace=True
    )
    with torch.no_grad():
        full = draft.model(torch.tensor([[4, 3, 2]])).logits[0, -1].softmax(-1)
    wanted = torch.zeros(target.vocabulary, dtype=tiny.EXACT)
    wanted[list(SHARED)] = full[list(SHARED.values())]
    assert torch.allclose(step.draft.q[0, 0], wanted / wanted.sum(), atol=1e-12)


def test_what_cannot_draft_is_said_before_weights_are_read(pair, tmp_path: Path, monkeypatch):
    target, draft = pair
    with pytest.raises(specwb.LoadError, match="mismatch"):
        specwb.method("sps", target, draft=draft)
    folder = tmp_path / "other"
    model(1, 3).save_pretrained(folder)
    words("x", "y", "z").save_pretrained(folder)
    monkeypatch.setattr("specwb.models.load._weights", None)
    with pytest.raises(specwb.LoadError, match="have no token in common"):
        specwb.method("sps", target, draft=str(folder), draft_vocabulary="shared")
    monkeypatch.undo()
    bare = specwb.load(model(1, 3))
    with pytest.raises(specwb.LoadError, match="must both have a tokenizer"):
        specwb.method("sps", target, draft=bare, draft_vocabulary="text")
    with pytest.raises(specwb.SpecwbError, match="constant length"):
        specwb.method("sps", target, draft=draft, draft_vocabulary="text", confidence=0.5)


def test_layers_side_by_side_of_a_draft_with_another_tokenizer(pair):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3}
    deep = tiny.build("llama", seed=5, vocab_size=len(THEIRS), dtype=tiny.EXACT, **sizes)
    draft = specwb.load(deep, tokenizer=THEIRS)
    options = {"gamma": 2, "groups": "0-1", "draft_vocabulary": "shared"}
    method = specwb.method("easyspec", pair[0], draft=draft, **options)
    assert method.drafter.fuzzy is not None
    prompts = [[0, 1, 2, 3], [5]]
    plain = specwb.decode(pair[0], prompts, "ar", max_new_tokens=12)
    assert specwb.decode(pair[0], prompts, method, max_new_tokens=12).tokens == plain.tokens


@pytest.mark.parametrize("way", ["shared", "text"])
def test_generate_of_the_library_with_the_models_tokenizer(pair, way):
    target, draft = pair
    ids, spec = torch.tensor([OURS("abcd")["input_ids"]]), f"sps:gamma=3,draft_vocabulary={way}"
    right = target.model.generate(ids, max_new_tokens=12, do_sample=False)
    custom = specwb.hf(spec, draft=draft, tokenizer=OURS)
    assert target.model.generate(ids, max_new_tokens=12, custom_generate=custom).equal(right)
    with pytest.raises(specwb.LoadError, match="is not known; give"):
        target.model.generate(ids, max_new_tokens=12, custom_generate=specwb.hf(spec, draft=draft))


# ------------------------------------------------------------------- of the same tokens, other rows

TOKENS, SMALL, LARGE = 11, 12, 16
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [7, 1, 8]]
every_pair = pytest.mark.parametrize(
    "rows", [(LARGE, SMALL), (SMALL, LARGE)], ids=["fewer", "more"]
)


class Known(SimpleNamespace):
    """A tokenizer of so many tokens."""

    eos_token_id = None

    def get_vocab(self) -> dict[str, int]:
        return {f"t{i}": i for i in range(self.tokens)}


def padded(target_rows: int, draft_rows: int) -> tuple[specwb.Target, specwb.Target]:
    """Two models that agree often: the rows they share are the same but for a disturbance."""
    large = tiny.build("llama", seed=2, vocab_size=LARGE, dtype=tiny.EXACT)
    small = tiny.build("llama", seed=2, vocab_size=SMALL, dtype=tiny.EXACT)
    state = large.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = state[name][:SMALL].clone()
    small.load_state_dict(state)
    models, known = {SMALL: tiny.perturbed(small, 0.02), LARGE: large}, Known(tokens=TOKENS)
    target, draft = (specwb.load(models[n], tokenizer=known) for n in (target_rows, draft_rows))
    return target, draft


@every_pair
def test_with_other_rows_text_is_the_target_s_and_drafts_are_accepted(rows):
    target, draft = padded(*rows)
    methods = [specwb.method(s, target, draft=draft) for s in ("sps:gamma=3", "mcsd:tree=2-2")]
    target.tokenizer = None  # it cannot decode
    plain = specwb.decode(target, PROMPTS, "ar", max_new_tokens=20)
    for method in methods:
        out = specwb.decode(target, PROMPTS, method, max_new_tokens=20)
        assert out.tokens == plain.tokens
        assert out.mean_tokens_per_step > 1.3


@every_pair
@pytest.mark.parametrize("spec", ["sps:gamma=2", "mcsd:tree=3-1,draw=with"])
def test_with_other_rows_sampled_text_has_the_target_s_distribution(rows, spec):
    """Of the first two tokens, the target's rows of padding among them."""
    target, draft = padded(*rows)
    method = specwb.method(spec, target, draft=draft)
    target.tokenizer = None
    sampled(target, method, [3, 1, 4], 4096)


def test_rows_that_a_token_has_are_no_padding():
    target, draft = padded(LARGE, SMALL)
    target.tokenizer = draft.tokenizer = Known(tokens=SMALL + 1)
    for word in (
        "more than unused rows",
        "more than unused rows",
        "without a tokenizer",
    ):
        with pytest.raises(specwb.LoadError, match=word):
            specwb.method("sps", target, draft=draft)
        target.tokenizer, draft.tokenizer = None, target.tokenizer


@every_pair
def test_with_other_rows_in_generate_of_the_library(rows):
    """With the model's own tokenizer; without one the message says what to give."""
    target, draft = padded(*rows)
    ids = torch.tensor(PROMPTS[:1])
    right = target.model.generate(ids, max_new_tokens=20, do_sample=False)
    custom = specwb.hf("sps:gamma=3", draft=draft.model, tokenizer=draft.tokenizer)
    text = target.model.generate(ids, max_new_tokens=20, custom_generate=custom)
    assert text.tolist() == right.tolist()
    custom = specwb.hf("sps", draft=draft.model)
    with pytest.raises(specwb.LoadError, match="without a tokenizer"):
        target.model.generate(ids, max_new_tokens=20, custom_generate=custom)
