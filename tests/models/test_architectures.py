"""Every architecture of ``families``, saved and made by transformers, against transformers' own
forward and greedy decoding.

In float64, in which the library's norms still compute in float32: logits are equal to 1e-5 of the
largest, and a greedy choice could turn over only where two lie that close.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import families
import pytest
import tiny
import torch
from families import FAST, GENERIC
from torch import Tensor, nn

import specwb
from specwb.core.flow import Draft, Scheme
from specwb.core.probability import Sampling
from specwb.models.fuzzy import Groups
from specwb.models.place import Place
from specwb.training.heads import target_outputs

NAMES = [*FAST, *GENERIC]
every_architecture = pytest.mark.parametrize("name", NAMES)
# one longer than every window, one shorter, one of a single token
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [9], [2, 7, 1, 8]]
TREE = specwb.Tree.parents([-1, 0, 0, 1, 2, 1, 3, 4, 6, 8])
LENGTH = 12
CLOSE = 1e-5
NO_TOKENIZER = SimpleNamespace(eos_token_id=None, get_vocab=dict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def loaded(name: str, folder: Path) -> specwb.Target:
    """The target as it is read from the folder that the library wrote."""
    place = families.stored(name, folder)
    target = specwb.load(place, tokenizer=NO_TOKENIZER, dtype="float64")
    target.tokenizer = None
    return target


@cache
def library(name: str) -> nn.Module:
    """The library's own model, which nothing of ours has touched."""
    return families.build(name)


@cache
def greedy(name: str) -> list[list[int]]:
    def continued(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": LENGTH, "do_sample": False, "pad_token_id": 0}
        out = library(name).generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return out[0, len(prompt) :].tolist()

    return [continued(prompt) for prompt in PROMPTS]


def forward(model: nn.Module, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


@every_architecture
def test_every_node_of_a_tree_has_the_library_s_logits_of_its_path_alone(name, folder):
    target = loaded(name, folder)
    torch.manual_seed(1)
    tokens = torch.randint(families.VOCABULARY, (len(PROMPTS), TREE.n))
    tokens[:, 0] = torch.tensor([prompt[-1] for prompt in PROMPTS])
    assert target.backbone.whole == (name in GENERIC)
    state = target.open(PROMPTS, [9] * len(PROMPTS), TREE.n + 1, Sampling(), (), features=(0, 2))
    draft = Draft(TREE, tokens, torch.ones_like(tokens, dtype=torch.bool), Scheme.POINT)
    with torch.no_grad():
        scores = target.score(state, draft, (0, 2, -1))
    hidden: list[Tensor] = []
    for row, prompt in enumerate(PROMPTS):
        for node in range(TREE.n):
            text = [*prompt, *tiny.path_to(TREE.host[0], tokens[row].tolist(), node)]
            logits = forward(library(name), text)[-1]
            off = float((scores.logits[row, node] - logits).abs().max() / logits.abs().max())
            assert off < CLOSE, f"row {row}, node {node}: off by {off:.1e} of the largest"
            hidden += [states(name, text)[-1]] if node in (0, TREE.n - 1) else []
    ours = scores.features[:, [0, TREE.n - 1]].flatten(0, 1)
    torch.testing.assert_close(ours, torch.stack(hidden), atol=1e-5, rtol=1e-5)
    prefilled = states(name, PROMPTS[0])[:-1, : state.features.shape[-1]]
    torch.testing.assert_close(state.features[0, : len(prefilled)], prefilled, atol=1e-5, rtol=1e-5)


def states(name: str, text: list[int]) -> Tensor:
    """``[m, 3 H]``: the library's states of layers 0 and 2, and what its head reads."""
    with torch.no_grad():
        inner = library(name).base_model
        every = inner(torch.tensor([text]), output_hidden_states=True, use_cache=False)
    return torch.cat([every.hidden_states[i][0] for i in (0, 2, -1)], -1)


@every_architecture
def test_plain_decoding_and_trees_of_a_batch_write_what_the_library_does(name, folder):
    """By a draft that is the target, disturbed: its trees go through the same layers, windows and
    masks, level by level, and are verified path by path; node by node above."""
    target = loaded(name, folder)
    plain = specwb.decode(target, PROMPTS, "ar", max_new_tokens=LENGTH, eos=())
    assert plain.tokens == greedy(name)
    off = specwb.load(tiny.perturbed(families.build(name), 0.01))
    settings = {"max_new_tokens": LENGTH, "layout": "batch", "eos": ()}
    tree = specwb.decode(target, PROMPTS, "mcsd", tree=(2, 2, 1), draft=off, **settings)
    assert tree.tokens == greedy(name)
    assert max(tree.step_counts) < LENGTH, "no draft was accepted: the trees were not tested"


@every_architecture
def test_heads_learn_from_the_library_s_states_and_logits(name, folder):
    target = loaded(name, folder)
    with patch("specwb.training.heads.autocast", tiny._in_float32):
        outputs = target_outputs(target, torch.tensor([PROMPTS[0]]), (2, -1))
    theirs = forward(library(name), PROMPTS[0]).float()
    torch.testing.assert_close(outputs.logits[0], theirs, atol=1e-4, rtol=1e-4)
    expected = states(name, PROMPTS[0]).float().chunk(3, -1)
    ours = outputs.features[0].chunk(2, -1)
    for mine, theirs in zip(ours, expected[1:], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAST)
def test_parts_of_the_layers_one_after_the_other_are_all_of_them(name, folder):
    """What Kangaroo drafts and verifies with; EasySpec's simulation goes through the same parts."""
    target = loaded(name, folder)
    backbone, ids = target.backbone, torch.tensor([PROMPTS[0]])
    assert backbone.captured == ("expert" not in str(FAST[name]))
    place, cache = Place.text(*ids.shape), backbone.cache(1, 20)
    with torch.no_grad():
        early = backbone.run(backbone.embed(ids), place, cache, last=1)[0]
        late = backbone.run(early, place, cache, first=1)[0]
        logits = backbone.head(late)[0]
        groups = Groups(((0,), (1,), (2,)))
        grouped = backbone.head(groups.run(backbone, backbone.embed(ids), place, cache)[0])
    expected = forward(library(name), PROMPTS[0])
    for ours in (logits, grouped[0]):
        assert float((ours - expected).abs().max() / expected.abs().max()) < CLOSE


def test_the_page_names_what_is_tested():
    """Every family stands in one row of docs/matrix.md, with its way to run."""
    page = (Path(__file__).parents[2] / "docs" / "matrix.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*`) \| (fast|generic) \|", page, re.MULTILINE)
    ways = [(name, way) for names, way in rows for name in re.findall("`(.+?)`", names)]
    tested = [(name, "fast") for name in FAST] + [(name, "generic") for name in GENERIC]
    assert sorted(ways) == sorted(tested), "write the page anew: make matrix"


@pytest.mark.parametrize("name", ["mistral-window", "gemma2"])
def test_a_single_token_of_one_row_sees_its_window(name):
    """It needs no mask, and none is made."""
    target, text = specwb.load(families.build(name)), PROMPTS[0]
    step = next(specwb.rounds(target, text, "ar", max_new_tokens=1, eos=(), trace=True))
    wanted = forward(library(name), text)[-1]
    off = float((step.scores.logits[0, 0] - wanted).abs().max() / wanted.abs().max())
    assert off < CLOSE


def test_a_text_is_no_longer_than_the_rotation_it_began_with():
    """Of 128 positions, the first 64 of which have the short factors."""
    assert specwb.load(families.build("phi3-longrope")).context == 64


def test_a_prompt_is_attended_to_in_pieces(monkeypatch):
    """Windows and caps over prompts longer than a piece."""
    monkeypatch.setattr("specwb.models.target.CHUNK", 5)
    for name in ("gemma2", "gpt_oss", "mistral-window"):
        target = specwb.load(families.build(name))
        out = specwb.decode(target, PROMPTS, "ar", max_new_tokens=LENGTH)
        assert out.tokens == greedy(name)


@pytest.mark.parametrize("name", ["gemma2", "smollm3"])
def test_recorded_steps_are_the_eager_ones(name, taped):
    """Windows, caps and layers without rotation in what a graph holds; without a GPU, on a tape."""
    target = specwb.load(families.build(name))
    draft = specwb.load(tiny.perturbed(families.build(name), 0.01))
    method = specwb.method("mcsd", target, tree=(2, 1), draft=draft)
    settings = {"max_new_tokens": 30, "temperature": 1.0, "seed": 3}
    out = specwb.decode(target, PROMPTS, method, **settings)
    (arena,) = method.arenas.values()
    assert any(arena.recordings.values())
    assert out.tokens == specwb.decode(target, PROMPTS, method, graphs=False, **settings).tokens


def test_experts_are_not_captured(taped):
    experts = specwb.load(families.build("gpt_oss"))
    with pytest.raises(ValueError, match="a model of it cannot be captured"):
        specwb.decode(experts, PROMPTS, "ar", graphs=True, max_new_tokens=2)
