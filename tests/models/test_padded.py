"""A draft model of the same tokens whose embeddings have more rows, or fewer, than the target's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch
from scipy import stats

import specwb

TOKENS, SMALL, LARGE = 11, 12, 16
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [7, 1, 8]]


class Tokenizer(SimpleNamespace):
    def get_vocab(self) -> dict[str, int]:
        return {f"t{i}": i for i in range(self.tokens)}


def pair(target_rows: int, draft_rows: int) -> tuple[specwb.Target, specwb.Target]:
    """Two models that agree often: the rows they share are the same but for a disturbance."""
    large = tiny.build("llama", seed=2, vocab_size=LARGE, dtype=tiny.EXACT)
    small = tiny.build("llama", seed=2, vocab_size=SMALL, dtype=tiny.EXACT)
    state = large.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = state[name][:SMALL].clone()
    small.load_state_dict(state)
    small = tiny.perturbed(small, 0.02)
    models = {SMALL: small, LARGE: large}
    known = Tokenizer(tokens=TOKENS, eos_token_id=None)
    loaded = [specwb.load(models[rows], tokenizer=known) for rows in (target_rows, draft_rows)]
    return loaded[0], loaded[1]


@pytest.mark.parametrize("rows", [(LARGE, SMALL), (SMALL, LARGE)], ids=["fewer", "more"])
def test_greedy_text_is_the_target_s_and_drafts_are_accepted(rows):
    target, draft = pair(*rows)
    target.tokenizer = None  # of no use here
    plain = specwb.decode(target, PROMPTS, "ar", max_new_tokens=20)
    target.tokenizer = draft.tokenizer
    for method in ("sps:gamma=3", "mcsd:tree=2-2"):
        made = specwb.method(method, target, draft=draft)
        target.tokenizer = None
        out = specwb.decode(target, PROMPTS, made, max_new_tokens=20)
        target.tokenizer = draft.tokenizer
        assert out.tokens == plain.tokens
        assert out.mean_tokens_per_step > 1.3


@pytest.mark.parametrize("rows", [(LARGE, SMALL), (SMALL, LARGE)], ids=["fewer", "more"])
@pytest.mark.parametrize("method", ["sps:gamma=2", "mcsd:tree=3-1,draw=with"])
def test_sampled_text_has_the_target_s_distribution(rows, method):
    """Of the first two tokens, the target's rows of padding among them."""
    target, draft = pair(*rows)
    made, count = specwb.method(method, target, draft=draft), 4096
    target.tokenizer = None
    prompt = [3, 1, 4]
    with torch.no_grad():
        first = target.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        texts = torch.tensor([[*prompt, token] for token in range(len(first))])
        both = first[:, None] * target.model(texts).logits[:, -1].softmax(-1)
    settings = {"max_new_tokens": 2, "temperature": 1.0, "seed": list(range(count))}
    out = specwb.decode(target, [prompt] * count, made, **settings)
    assert out.mean_tokens_per_step > 1.1
    tokens = torch.tensor(out.tokens)
    counts = torch.zeros(both.numel()).scatter_add(
        0, tokens[:, 0] * len(first) + tokens[:, 1], torch.ones(count)
    )
    wanted = both.flatten() * count
    often = wanted > 5
    observed = [*counts[often].tolist(), float(counts[~often].sum())]
    expected = [*wanted[often].tolist(), float(wanted[~often].sum())]
    assert len(expected) > 10
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_rows_that_a_token_has_are_no_padding():
    target, draft = pair(LARGE, SMALL)
    target.tokenizer = draft.tokenizer = Tokenizer(tokens=SMALL + 1, eos_token_id=None)
    with pytest.raises(specwb.LoadError, match=r"vocabulary mismatch: .* rows that no token"):
        specwb.method("sps", target, draft=draft)
    target.tokenizer = None
    with pytest.raises(specwb.LoadError, match=r"vocabulary mismatch: .* rows that no token"):
        specwb.method("sps", target, draft=draft)
    draft.tokenizer = None
    unknown = r"vocabulary mismatch: .* no tokenizer is known .* specwb.hf\(.., tokenizer=..\)"
    with pytest.raises(specwb.LoadError, match=unknown):
        specwb.method("sps", target, draft=draft)


@pytest.mark.parametrize("rows", [(LARGE, SMALL), (SMALL, LARGE)], ids=["fewer", "more"])
def test_generate_of_the_library(rows):
    """With the draft's tokenizer, or the model's own; without one the message says what to give."""
    target, draft = pair(*rows)
    ids, known = torch.tensor(PROMPTS[:1]), draft.tokenizer
    right = target.model.generate(ids, max_new_tokens=20, do_sample=False)
    for custom in (
        specwb.hf("sps:gamma=3", draft=draft),
        specwb.hf("mcsd:tree=2-2", draft=draft.model, tokenizer=known),
        specwb.hf("sps", draft=specwb.load(draft.model), tokenizer=known),
    ):
        text = target.model.generate(ids, max_new_tokens=20, custom_generate=custom)
        assert text.tolist() == right.tolist()
    custom = specwb.hf("sps", draft=draft.model)
    with pytest.raises(specwb.LoadError, match=r"no tokenizer is known .* draft=specwb.load"):
        target.model.generate(ids, max_new_tokens=20, custom_generate=custom)
