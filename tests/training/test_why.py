"""What a head's measurement says is what decoding with it accepts; and what is refused."""

from __future__ import annotations

import json

import pytest
import torch

import specwb
from specwb.models.load import data_dir
from specwb.training import why

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


def test_figures_against_the_drafters_distributions(target, answers):
    """Overlap, certainty and right first guesses from p and q of decoding steps at T = 0.7."""
    measured, spec = why.load_measured("eagle", target), "eagle:tree=1"
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
    assert [row["places"] for row in result["certainty"]] == [
        bins.count(number) for number in range(len(result["certainty"]))
    ]
    assert sum(row["places"] > 0 for row in result["certainty"]) > 2


def test_the_command_prints_and_writes(call, tmp_path):
    path = tmp_path / "why.json"
    options = ["--limit", "2", "--tokens", "8", "--json", str(path)]
    code, out, err = call("measure", "medusa", *options)
    assert code == 0, err
    written = json.loads(path.read_text())
    card = json.loads((data_dir() / "lab" / "medusa" / "card.json").read_text())["held_out"]
    for depth, row in enumerate(written["depths"]):
        ranks = [domain["rank"][depth][0] for domain in card.values()]
        assert row["card_right"] == pytest.approx(sum(ranks) / len(ranks), abs=1e-4)
        assert f"{row['right']:.3f}" in out
    assert written["depths"][0]["places"] == sum(places for places, _ in written["by_answer"])
    assert "users' turns and template too" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "folder nowhere does not exist"),
        ([str(data_dir() / "smol" / "eagle")], "trained for the target with sha256"),
        ([str(data_dir() / "lab" / "decision")], "decision, which drafts no tokens"),
        (["falcon", "--target", str(data_dir() / "lab" / "draft")], "has no falcon of its own"),
        (["eagle", "--tokens", "100000"], "leaves no room for a prompt in the context"),
    ],
    ids=str,
)
def test_bad_input_is_refused(refused, arguments, message):
    assert message in refused("measure", *arguments)
