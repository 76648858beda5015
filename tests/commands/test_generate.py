"""Text as it is decoded, and the command line that prints it.

Pieces add up to the text whatever characters the tokens split.
"""

from __future__ import annotations

import random
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from test_stops import fallback
from transformers import AutoTokenizer

import specwb
from specwb.core.stops import Stops
from specwb.engine.streaming import Stream
from specwb.models.load import data_dir

TEXT = "naïve — 日本 🙂 café\tx\n  y 👩‍👩‍👧 ends"


@pytest.fixture(scope="module")
def bytelevel():
    return AutoTokenizer.from_pretrained(data_dir() / "lab" / "target")


def run_stream(tokenizer, prompt, blocks):
    """Streams the tokens of steps; returns the stream and the pieces that it showed."""
    pieces = []
    stream = Stream(lambda text, drafted: pieces.append((text, drafted)))
    stops = Stops((), tokenizer, [prompt])
    for ids in blocks:
        verdict = SimpleNamespace(count=[len(ids)], emitted=torch.tensor([[*ids, 0]]))
        stream(SimpleNamespace(verdict=verdict, stops=stops))
    stream.close()
    return stream, pieces


def test_pieces_add_up_to_the_text_and_no_character_is_split(bytelevel):
    rng = random.Random(0)
    left = ids = bytelevel(TEXT)["input_ids"]
    blocks = []
    while left:
        n = rng.randint(1, 5)
        blocks.append(left[:n])
        left = left[n:]
    stream, pieces = run_stream(bytelevel, bytelevel("Say: ")["input_ids"], blocks)
    assert "".join(text for text, _ in pieces) == TEXT
    assert not any("\ufffd" in text for text, _ in pieces)
    assert stream.ids == ids
    assert stream.rounds == len(blocks)
    assert stream.mean_tokens_per_step == len(ids) / len(blocks)


def test_a_piece_belongs_to_the_token_that_completed_it(bytelevel):
    ids = bytelevel("a日b")["input_ids"]
    assert len(ids) == 5  # the character in the middle is three tokens
    _, pieces = run_stream(bytelevel, [5], [ids[:4], ids[4:]])
    assert pieces == [("a", True), ("日", False), ("b", False)]


def test_speed_counts_neither_the_first_step_nor_its_tokens(bytelevel, monkeypatch):
    """The first step, with all that is done once, ends after 40 s; 3 tokens follow in 1.5 s."""
    times = iter([40.0, 41.0, 41.5])
    monkeypatch.setattr("specwb.engine.streaming.time.perf_counter", lambda: next(times))
    ids = bytelevel("a b c d e")["input_ids"][:5]
    stream, _ = run_stream(bytelevel, [5], [ids[:2], ids[2:4], ids[4:]])
    assert stream.tokens_per_second == 2.0


def test_leading_spaces_and_bytes_of_a_fallback():
    tokenizer = fallback()
    hello, world, mark = tokenizer.convert_tokens_to_ids(["▁Hello", "▁world", "!"])
    assert tokenizer.decode([world]) == "world"  # alone it has no space
    _, pieces = run_stream(tokenizer, [hello], [[world], [mark]])
    assert pieces == [(" world", False), ("!", False)]
    # The second character's first byte makes the decoder give up on the first character, which
    # was shown already.
    two = list("éà".encode())
    assert tokenizer.decode([hello, *two[:3]]) == "Hello\ufffd\ufffd\ufffd"
    _, pieces = run_stream(tokenizer, [hello], [[b] for b in two])
    assert [text for text, _ in pieces] == ["é", "à"]


def test_a_character_that_is_never_complete_is_shown_at_the_end(bytelevel):
    ids = bytelevel("a日")["input_ids"][:-1]
    _, pieces = run_stream(bytelevel, [5], [ids])
    assert "".join(text for text, _ in pieces) == bytelevel.decode(ids)
    assert pieces[-1][0].strip("\ufffd") == ""


@pytest.fixture
def generate(call):
    return partial(call, "generate")


@pytest.fixture(scope="module")
def lab():
    return specwb.load("lab")


PROMPT = "def fib(n):"


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_pipe_gets_the_text_and_nothing_else(generate, lab, temperature):
    spec = "mcsd:tree=4-2-2"
    options = ("--method", spec, "--max-new-tokens", "24", "--temperature", temperature)
    code, out, err = generate(PROMPT, *options)
    wanted = specwb.decode(lab, PROMPT, spec, max_new_tokens=24, temperature=float(temperature))
    assert code == 0
    assert out == wanted.text + "\n"
    tau = wanted.mean_tokens_per_step
    count = f"{len(wanted.tokens[0])} tokens in {wanted.step_counts[0]} steps"
    assert f"mcsd: {count}, tau {tau:.2f} ({tau - 1:.2f} accepted/step)" in err
    speed = r"accepted/step\); first step [\d.]+ s, then [\d.]+ tokens/s$"
    assert re.search(speed, err, re.MULTILINE)
    assert "speedup" not in err  # nothing was measured against


def test_a_lossy_rule_is_labelled(generate):
    for rule, label in (("typical", "mcsd:rule=typical (LOSSY): "), ("naive", "mcsd:rule=naive: ")):
        options = ("--max-new-tokens", "4", "--temperature", "1")
        method = f"mcsd:rule={rule}"
        code, _, err = generate(PROMPT, "--method", method, *options)
        assert (code, err.splitlines()[-1].startswith(label)) == (0, True)


def test_a_terminal_tells_draft_tokens_from_bonus_tokens(generate, monkeypatch, lab):
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, out, err = generate(PROMPT, "--max-new-tokens", "24", terminal=True)
    wanted = specwb.decode(lab, PROMPT, "sps", max_new_tokens=24)
    assert "bonus tokens" in err
    pieces = re.findall(r"\x1b\[38;5;(\d+)m(\x1b\[4m)?(.*?)\x1b\[0m", out, re.DOTALL)
    assert "".join(text for *_, text in pieces) == wanted.text
    tokens = iter(wanted.tokens[0])
    drafted = [
        (lab.tokenizer.decode([next(tokens)]), i < accepted)
        for accepted in wanted.accepted_lengths[0]
        for i in range(accepted + 1)
    ]
    assert len(set(drafted)) > 2
    assert [(text, colour == "36") for colour, _, text in pieces] == drafted
    assert all(bool(line) is (colour == "32") for colour, line, _ in pieces)


def test_chat_applies_the_template(generate, lab):
    _, out, _ = generate("What is 2 + 2?", "--chat", "--max-new-tokens", "8")
    ids = lab.tokenizer("<|user|>What is 2 + 2?<|assistant|>")["input_ids"]
    wanted = specwb.decode(lab, ids, "sps", max_new_tokens=8).text
    assert out.rstrip("\n") == wanted.rstrip("\n")
    assert out != generate("What is 2 + 2?", "--max-new-tokens", "8")[1]


def test_a_stop_text_is_not_printed(generate):
    free = generate(PROMPT, "--max-new-tokens", "24")[1]
    stop = free.strip()[8:11]
    out = generate(PROMPT, "--max-new-tokens", "24", "--stop", stop)[1]
    assert out.rstrip("\n") == free[: free.index(stop)].rstrip("\n")


def test_an_interrupt_leaves_the_text_and_a_summary(generate, monkeypatch):
    steps = 0
    stream_step = Stream.__call__

    def interrupt(self, *arguments):
        nonlocal steps
        stream_step(self, *arguments)
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Stream, "__call__", interrupt)
    code, out, err = generate(PROMPT)
    assert code == 130
    assert out.strip()
    assert "tokens in 3 steps" in err
    assert err.rstrip().endswith("interrupted")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the prompt is empty; give a text"),
        (["-"], "the prompt is empty; give a text"),
        ([PROMPT, "--chat", "--system", ""], "--system is empty; give a text"),
        ([PROMPT, "--template", "vicuna"], "--system and --template are of a chat; give --chat"),
        ([PROMPT, "--stop", ""], "--stop has an empty text"),
        ([PROMPT, "--target", ""], "a folder or a hub id OWNER/NAME is needed, got ''"),
        (
            [PROMPT, "--method", "sps:draft=lab-draft", "--draft", "lab-draft"],
            "'draft' is given twice",
        ),
        # what bytes that are no UTF-8 become
        (["a\udcffb"], "the prompt is not valid Unicode text (UTF-8)"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(refused, arguments, message):
    assert message in refused("generate", *arguments)


def test_chat_without_a_template(refused, monkeypatch, lab):
    monkeypatch.setattr(lab.tokenizer, "chat_template", None)
    monkeypatch.setattr(specwb, "load", lambda *_, **__: lab)
    assert "has no chat template" in refused("generate", PROMPT, "--chat")
