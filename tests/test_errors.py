"""Every mistake is refused before any work, by an exception of its own kind that names what was
given."""

from __future__ import annotations

from functools import partial

import pytest
import tiny

import specwb
from specwb import LoadError, MethodError, PromptError, RuleMismatch
from specwb.models.target import Target


@pytest.fixture
def target() -> Target:
    return tiny.target()


@pytest.fixture
def draft() -> Target:
    return tiny.draft()


# ---------------------------------------------------------------------------------------- methods


@pytest.mark.parametrize(
    ("spec", "options", "named"),
    [
        ("nope", {}, "unknown method 'nope'; known: ar, sps, mcsd"),
        ("", {}, "unknown method ''"),
        (
            "sps",
            {"gama": 3},
            "sps has no option 'gama'; its options: draft, gamma, schedule, ",
        ),
        ("sps:gama=3", {}, "sps has no option 'gama'"),
        ("ar", {"gamma": 3}, "ar has no option 'gamma'; its options: rule"),
        ("sps:gamma", {}, "option 'gamma' must be written name=value"),
        ("sps:gamma=2,gamma=3", {}, "option 'gamma' is given twice"),
        ("sps:gamma=2", {"gamma": 2}, "option 'gamma' is given twice"),
        ("sps:rule=rrsw", {"rule": "rrsw"}, "option 'rule' is given twice"),
        ("sps", {"rule": "nope"}, "unknown rule 'nope'; known: rejection, rrs, rrsw, "),
        ("sps:rule=nope", {}, "unknown rule 'nope'"),
        ("sps:gamma=0", {}, "gamma must be an integer >= 1, got 0"),
        # no option asks for more memory or time than there is before a tree's size is looked at
        ("pld:ngram=999999999", {}, "pld: ngram must be an integer in 1..4096, got 999999999"),
        ("lookahead:window=999999999", {}, "window must be an integer in 1..4096, got 999999999"),
        ("lookahead:level=999999999", {}, "level must be an integer in 3..4096, got 999999999"),
        ("lookahead:guesses=999999999", {}, "guesses must be an integer in 1..4096, got 9"),
        ("diffuspec:steps=999999999", {}, "steps must be an integer in 1..4096, got 999999999"),
        ("diffuspec:beams=999999999", {}, "beams must be an integer in 1..4096, got 999999999"),
        ("sps", {"gamma": -2}, "gamma .* got -2"),
        ("sps:gamma=2.5", {}, "gamma .* got 2.5"),
        ("sps:gamma=many", {}, "gamma .* got 'many'"),
        ("sps:gamma=true", {}, "gamma .* got True"),
        ("mcsd:tree=4-0-2", {}, "mcsd: .* got 4-0-2"),
        ("mcsd", {"tree": (4, 0, 2)}, "mcsd: .* got 4-0-2"),
        ("mcsd", {"tree": (2, 1.5)}, "mcsd: .* got 2-1.5"),
        ("mcsd", {"tree": None}, "mcsd: tree must be children a node by level, .* got None"),
        ("mcsd", {"tree": True}, "mcsd: tree must be a tree, got True"),
        ("mcsd:tree=65", {}, "mcsd: 65 children a node but the vocabulary has 64 tokens"),
        ("mcsd:tree=999999", {}, "mcsd: a tree has at most 4096 nodes"),
        (
            "mcsd:tree=2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2-2",
            {},
            "mcsd: a tree has at most 4096 nodes",
        ),
        (
            "mcsd:draw=maybe",
            {},
            "mcsd: draw must be one of without, with, top, coupled, greedy, got 'maybe'",
        ),
        ("mcsd:draw=coupled", {}, "couples whole paths; give a tree such as 4-1-1"),
    ],
)
def test_wrong_methods_and_options(target, draft, spec, options, named):
    own = {"draft": draft} if spec[:3] in ("sps", "mcs") else {}
    with pytest.raises(MethodError, match=named):
        specwb.method(spec, target, **own, **options)
    with pytest.raises(MethodError, match=named):
        specwb.decode(target, [1, 2], spec, **own, **options)


def test_the_same_option_as_text_and_as_keyword_are_the_same_method(target, draft):
    text = specwb.method("mcsd:tree=3-2,draw=with,rule=rrs", target, draft=draft)
    keyword = specwb.method("mcsd", target, draft=draft, tree=(3, 2), draw="with", rule="rrs")
    assert text.drafter.tree.host == keyword.drafter.tree.host == specwb.Tree.branching(3, 2).host
    assert text.drafter.draw == keyword.drafter.draw == "with"
    assert type(text.rule) is type(keyword.rule) is specwb.rules.RRS
    assert (
        specwb.method("mcsd", target, draft=draft, draw="with", rule=specwb.rules.RRS).key
        == "mcsd:draw=with,rule=rrs"
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (
            "mcsd:draw=top,rule=rrsw",
            "rule 'rrsw' is lossless for .*WITHOUT_REPLACEMENT .* are TOP_AND_SAMPLE",
        ),
        (
            "mcsd:rule=rrs",
            "rule 'rrs' is lossless for IID .* are WITHOUT_REPLACEMENT .*; what fits them: rrsw, "
            "point, naive, traversal",
        ),
        (
            "mcsd:rule=rejection",
            "rule 'rejection' decides about one candidate a node, this tree has up to 4; what "
            "fits them: rrsw, ",
        ),
        ("ar:rule=rrs", "rule 'rrs' is lossless for IID .* are POINT"),
    ],
)
def test_a_rule_that_would_not_be_lossless_is_refused(target, draft, spec, named, temperature):
    """At T = 0 too, where it would not show."""
    own = {} if spec.startswith("ar") else {"draft": draft}
    with pytest.raises(RuleMismatch, match=named):
        specwb.method(spec, target, **own)
    with pytest.raises(RuleMismatch, match=named):
        specwb.decode(target, [1], spec, temperature=temperature, **own)


def test_options_beside_a_finished_method(target, draft):
    made = specwb.method("sps", target, draft=draft)
    with pytest.raises(ValueError, match=r"options gamma belong to specwb\.method"):
        specwb.decode(target, [1], made, gamma=2)


# --------------------------------------------------------------------------------------- registry


class Repeat(specwb.Drafter):
    """Guesses that the pending token comes again."""

    def __init__(self, times: int = 2) -> None:
        self.tree = specwb.Tree.chain(times)

    def propose(self, state, noise):
        return self.candidates(
            state, state.tokens.gather(1, (state.length - 1)[:, None]).expand(-1, self.tree.D)
        )


@pytest.fixture
def repeat():
    specwb.register("repeat", Repeat, paper="none", bibtex="@misc{repeat}")
    yield
    specwb.unregister("repeat")


def test_a_registered_class_is_a_method(target, repeat):
    assert list(specwb.METHODS["repeat"].options) == ["times"]
    out = specwb.decode(target, tiny.PROMPTS, "repeat:times=3", max_new_tokens=10)
    assert out.tokens == specwb.decode(target, tiny.PROMPTS, "ar", max_new_tokens=10).tokens
    assert specwb.decode(target, [5], "repeat", max_new_tokens=10, temperature=1.0).tokens
    assert specwb.citation("repeat") == "@misc{repeat}"
    with pytest.raises(MethodError, match="repeat has no option 'gamma'; its options: times, rule"):
        specwb.method("repeat", target, gamma=1)


def test_registering_twice_is_refused(repeat):
    with pytest.raises(
        MethodError, match=r"'repeat' is registered already; specwb.unregister\('repeat'\)"
    ):
        specwb.register("repeat", Repeat)
    specwb.unregister("repeat")
    specwb.register("repeat", Repeat)


@pytest.mark.parametrize("key", ["", "two words", "a:b", "a-b", "1st"])
def test_a_key_that_cannot_be_written_on_a_command_line(key):
    with pytest.raises(MethodError, match="must be a plain name"):
        specwb.register(key, Repeat)
    assert key not in specwb.METHODS


def test_a_missing_option_is_named(target):
    def needy(target, *, head):
        return Repeat()

    specwb.register("needy", needy)
    try:
        with pytest.raises(MethodError, match=r"needy: .*'head'"):
            specwb.method("needy", target)
    finally:
        specwb.unregister("needy")
    with pytest.raises(MethodError, match="unknown method 'needy'"):
        specwb.method("needy", target)


def test_citation_of_what_is_not_there():
    with pytest.raises(MethodError, match="unknown method 'nope'"):
        specwb.citation("sps", "nope")
    assert "leviathan2023fast" in specwb.citation()
    assert specwb.citation("mcsd").startswith("@article{yang2024multi")


# ---------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("prompts", "settings", "named"),
    [
        ([], {}, "no prompt was given"),
        ([[]], {}, "the prompt is empty"),
        ([[1], []], {}, "prompt 1 is empty"),
        ("text", {}, "loaded without a tokenizer"),
        ([1, 64], {}, r"the prompt has token ids outside 0\.\.63"),
        ([[3], [-1]], {}, "prompt 1 has token ids outside"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens must be an integer >= 1.*got 0"),
        ([[1], [2]], {"max_new_tokens": [3]}, r"max_new_tokens .* got \[3\]"),
        ([[1], [2]], {"max_new_tokens": [3, -1]}, r"max_new_tokens .* got \[3, -1\]"),
        (
            [1] * 500,
            {"max_new_tokens": 13},
            r"the prompt has 500 tokens; with max_new_tokens=13 .* 'LlamaForCausalLM' \(512\)",
        ),
        (
            [[1], [1] * 3],
            {"max_new_tokens": [511, 510]},
            "prompt 1 has 3 tokens; with max_new_tokens=510",
        ),
    ],
)
def test_wrong_prompts(target, prompts, settings, named):
    with pytest.raises(PromptError, match=named):
        specwb.rounds(target, prompts, **settings)


def test_the_whole_context_can_be_used(draft):
    """The last token fits exactly, for the deepest draft too; a slot more is what the test above
    refuses."""
    target = tiny.target()
    prompt = [i % 64 for i in range(500)]
    out = specwb.decode(target, [prompt], "sps", draft=draft, max_new_tokens=12)
    assert out.tokens == specwb.decode(target, [prompt], "ar", max_new_tokens=12).tokens
    assert len(out.tokens[0]) == 12


# ------------------------------------------------------------------------------- target and draft


def test_padded_vocabularies_are_told_apart_from_different_ones():
    """What drafting over padding does is in tests/models/test_padded_vocabularies.py."""
    target = specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(tiny.WORDS[:60]))
    build = partial(tiny.build, "llama", vocab_size=65)
    specwb.method("mcsd", target, draft=specwb.load(build(), tokenizer=target.tokenizer))
    more = specwb.load(build(), tokenizer=tiny.tokenizer([*tiny.WORDS, "w64"]))
    with pytest.raises(LoadError, match="65, and more than unused rows differ"):
        specwb.method("mcsd", target, draft=more)


def test_tokenizers_that_disagree():
    """The same number of tokens, two of them exchanged: ids would be verified as if they meant the
    same."""
    target = specwb.load(tiny.target().model, tokenizer=tiny.tokenizer(tiny.WORDS))
    exchanged = [*tiny.WORDS[:7], "w8", "w7", *tiny.WORDS[9:]]
    other = specwb.load(tiny.draft().model, tokenizer=tiny.tokenizer(exchanged))
    with pytest.raises(
        LoadError, match=r"tokenizer mismatch: 'w[78]' is id [78] for target .* and [78] for draft"
    ):
        specwb.method("sps", target, draft=other)
    same = specwb.load(tiny.draft().model, tokenizer=tiny.tokenizer(tiny.WORDS))
    assert specwb.decode(target, "w3 w4", "sps", draft=same, max_new_tokens=3).text.startswith(" w")


# ------------------------------------------------------------------------------- loading a folder


def test_a_drafter_without_a_tree_is_told_what_is_missing():
    class Bare(specwb.Drafter):
        pass

    specwb.register("bare", Bare)
    try:
        with pytest.raises(specwb.MethodError, match="bare: its drafter has no tree"):
            specwb.method("bare", tiny.target())
    finally:
        specwb.unregister("bare")
