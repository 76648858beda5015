"""What a head's measurement says is what decoding with it accepts; and what is refused."""

from __future__ import annotations

import json

import pytest
import torch

import specwb
from specwb.models.load import data_dir
from specwb.training import fit, why

TEXTS = ("def area(width, height):\n    ", "It was a bright cold day in April, and")
TOKENS = 12
SPECS = {
    "eagle": "eagle:tree=1-1-1-1-1-1",
    "medusa": "medusa:tree=1-1-1",
    "eagle3": "eagle3:top=1,depth=6,nodes=7",
    "falcon": "falcon:tree=1-1-1-1-1-1-1-1",
    "kangaroo": "kangaroo:gamma=6,eta=0",
    "draft": "sps:gamma=6",
    "deep": "sps:gamma=6,draft=" + str(data_dir() / "lab" / "deep"),
    "diffusion": "diffuspec:k=8,score=none",
}


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    return specwb.load("lab", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def answers(target) -> list[tuple[list[int], list[int]]]:
    prompts = [target.tokenizer.encode(text) for text in TEXTS]
    return why.write_answers(target, prompts, TOKENS, 0.0, 0)


@pytest.mark.parametrize("kind", SPECS)
def test_chains_are_accepted_as_decoding_accepts_them(target, answers, kind):
    """One decoding step from every place of the answers: its accepted tokens are counted."""
    place = data_dir() / "lab" / kind
    measured = why.load_measured(place, target)
    assert measured.kind == kind
    k = getattr(measured.head, "k", 1) if kind == "falcon" else 1
    counts = {True: 0, False: 0}
    for prompt, answer in answers:
        found = why.guesses(target, measured, prompt, answer, 1.0)
        depth, n = found["right"].shape
        assert n == len(answer) == TOKENS
        texts = [prompt + answer[:i] for i in range(n)]
        settings = {"max_new_tokens": depth + 1, "eos": (), "trace": True}
        step = specwb.decode(target, texts, SPECS[kind], **settings).steps[0]
        for i in range(n):
            if (
                len(texts[i]) - 1
            ) % k:  # here a block of Falcon's begins with the text's first pair
                continue
            accepted = int(step.verdict.count[i]) - 1
            for d, value in enumerate(found["chain"][:, i].tolist()):
                if i + d < n:
                    assert value == (accepted > d), (i, d)
                    counts[accepted > d] += 1
                else:
                    assert value != value  # no place of the answer
    assert min(counts.values()) > 0


@pytest.mark.parametrize(("kind", "spec"), [("eagle", "eagle:tree=1"), ("draft", "sps:gamma=1")])
def test_figures_against_the_drafters_distributions(target, answers, kind, spec):
    """Overlap, certainty and right first guesses from p and q of decoding steps at T = 0.7."""
    measured = why.load_measured(kind, target)
    result = why.measure_answers(target, measured, answers, temperature=0.7)
    texts = [prompt + answer[:i] for prompt, answer in answers for i in range(len(answer))]
    settings = {"max_new_tokens": 2, "eos": (), "trace": True, "temperature": 0.7, "seed": 0}
    step = specwb.decode(target, texts, spec, **settings).steps[0]
    p, q = step.scores.p(torch.zeros(len(texts), dtype=torch.long)), step.draft.q[:, 0]
    is_right, overlap = p.argmax(-1) == q.argmax(-1), torch.minimum(p, q).sum(-1)
    bins = [sum(float(x) > bound for bound in why.BOUNDS) for x in p.amax(-1)]
    first = result["depths"][0]
    assert first["places"] == len(texts) == sum(row["places"] for row in result["tokens"])
    assert (
        first["right"] == first["chain"] == pytest.approx(float(is_right.float().mean()), abs=1e-3)
    )
    assert first["overlap"] == pytest.approx(float(overlap.mean()), abs=1e-3)
    for number, row in enumerate(result["certainty"]):
        chosen = torch.tensor([b == number for b in bins])
        assert row["places"] == int(chosen.sum())
        if row["places"]:
            assert row["right"] == pytest.approx(float(is_right[chosen].float().mean()), abs=1e-3)
            assert row["overlap"] == pytest.approx(float(overlap[chosen].mean()), abs=1e-3)
    assert sum(row["places"] > 0 for row in result["certainty"]) > 2
    per_answer = torch.stack(is_right.float().split([len(answer) for _, answer in answers])).sum(-1)
    assert result["by_answer"] == [[TOKENS, int(count)] for count in per_answer]


def test_words_that_a_head_cannot_say(target, answers):
    measured = why.load_measured("eagle3", target)
    words = set(measured.words.tolist())
    wanted = [token for _, answer in answers for token in answer]
    covered = [token in words for token in wanted]
    first = why.measure_answers(target, measured, answers, 0.0)["depths"][0]
    assert first["covered"] == pytest.approx(sum(covered) / len(covered), abs=1e-3)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The width, twi", "continues a word"),
        ("It was", "word"),
        ("\n", "line break"),
        ("a = 3", "digit"),
        ("a (b),", "punctuation"),
        ("It is<|endoftext|>", "end of text"),
    ],
)
def test_kinds_of_tokens(target, text, kind):
    before, last = target.tokenizer.encode("w " + text, add_special_tokens=False)[-2:]
    assert why.token_kind(target, before, last) == kind


def test_the_command_prints_and_writes(call, tmp_path):
    path = tmp_path / "why.json"
    options = ["--limit", "2", "--tokens", "8", "--json", str(path)]
    code, out, err = call("measure", "medusa", *options)
    assert code == 0, err
    written = json.loads(path.read_text())
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    card = json.loads((data_dir() / "lab" / "medusa" / "card.json").read_text())["held_out"]
    for depth, row in enumerate(written["depths"]):
        ranks = [domain["rank"][depth][0] for domain in card.values()]
        assert row["card_right"] == pytest.approx(sum(ranks) / len(ranks), abs=1e-4)
        shown = rows[row["name"]]
        assert shown[2:5] == [str(row["places"]), f"{row['right']:.3f}", f"{row['overlap']:.3f}"]
    assert written["depths"][0]["places"] == sum(places for places, _ in written["by_answer"])
    assert "users' turns and template too" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "folder nowhere does not exist"),
        ([str(data_dir() / "smol" / "eagle")], "trained for the target with sha256"),
        ([str(data_dir() / "lab" / "decision")], "decision, which drafts no tokens"),
        (["falcon", "--target", str(data_dir() / "lab" / "draft")], "has no falcon of its own"),
        (["eagle", "--limit", "0"], "'--limit': Input should be greater than or equal to 1"),
        (["eagle", "--prompts", "none.jsonl"], "prompt file none.jsonl does not exist"),
        (["eagle", "--tokens", "100000"], "leaves no room for a prompt in the context"),
    ],
    ids=str,
)
def test_bad_input_is_refused(refused, arguments, message):
    assert message in refused("measure", *arguments)


def test_prompts_without_answers_are_refused(monkeypatch, target):
    """All that the target says first ends a text."""
    monkeypatch.setattr(target, "eos", list(range(target.vocabulary)))
    with pytest.raises(fit.TrainingError, match="'lab' answers none of 2 prompts"):
        why.write_answers(target, [[1, 2], [3]], TOKENS, 0.0, 0)
