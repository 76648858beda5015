"""Draft models of the target's tokens with more rows that no token has, or fewer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch

import specwb

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


def test_rows_that_a_token_has_are_no_padding():
    target, draft = padded(LARGE, SMALL)
    target.tokenizer = draft.tokenizer = Known(tokens=SMALL + 1)
    for word in ("more than unused rows", "more than unused rows", "without a tokenizer"):
        with pytest.raises(specwb.LoadError, match=word):
            specwb.method("sps", target, draft=draft)
        target.tokenizer, draft.tokenizer = None, target.tokenizer


def test_with_other_rows_in_generate_of_the_library():
    """With a draft that has a tokenizer; without one the message says what to give."""
    target, draft = padded(LARGE, SMALL)
    ids = torch.tensor(PROMPTS[:1])
    right = target.model.generate(ids, max_new_tokens=20, do_sample=False)
    custom = specwb.hf("sps:gamma=3", draft=draft)
    text = target.model.generate(ids, max_new_tokens=20, custom_generate=custom)
    assert text.tolist() == right.tolist()
    custom = specwb.hf("sps", draft=draft.model)
    with pytest.raises(specwb.LoadError, match="without a tokenizer"):
        target.model.generate(ids, max_new_tokens=20, custom_generate=custom)
