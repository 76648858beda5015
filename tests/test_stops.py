"""The text of new tokens, and texts that end a row: at which token, however many a step writes."""

from __future__ import annotations

import itertools
import random
from functools import cache, partial
from types import SimpleNamespace

import pytest
import tiny
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

import specwb
from specwb.core.stops import CONTEXT, Stops, Text, overlap
from specwb.engine.streaming import Stream
from specwb.models.load import data_dir

# ------------------------------------------------------------------------------- real tokenizers


def sentencepiece(words: list[str], special: str) -> PreTrainedTokenizerFast:
    """Words with the space before them, which is dropped at the beginning of a text; word i is
    token i, and ``special`` a special token."""
    ids = {word if word == special else f"\u2581{word}": i for i, word in enumerate(words)}
    made = Tokenizer(WordLevel(ids, unk_token=next(iter(ids))))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(special, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made)


@cache
def scripted():
    """A target with a tokenizer like Llama 2's whose fifth new token is the special token
    <turn>, a draft model, the prompt and the answer without a stop."""
    model = tiny.build("llama", seed=tiny.SEEDS["llama"], dtype=tiny.EXACT)
    prompt = [7, 8, 9, 10]
    free = specwb.decode(specwb.load(model), prompt, "ar", max_new_tokens=16).tokens[0]
    assert free.index(free[4]) == 4
    assert free[4] not in prompt
    words = ["<turn>" if i == free[4] else f"w{i}" for i in range(tiny.VOCABULARY)]
    target = specwb.load(model, tokenizer=sentencepiece(words, "<turn>"))
    return target, specwb.load(tiny.perturbed(model, 0.02)), prompt, free


@pytest.fixture(scope="module")
def written():
    return scripted()


def _keep(pieces: list[tuple[str, bool]], text: str, drafted: bool) -> None:
    pieces.append((text, drafted))


def answers(written, **how):
    """The answer by every method, and the pieces as they are streamed."""
    target, draft, prompt, _ = written
    tree = specwb.method("mcsd", target, draft=draft, tree=(2, 2, 1))
    for method in ("ar", "pld:gamma=4", tree):
        pieces: list[tuple[str, bool]] = []
        stream = Stream(partial(_keep, pieces))
        for step in specwb.rounds(target, prompt, method, max_new_tokens=16, **how):
            stream(step)
        stream.close()
        out = specwb.decode(target, prompt, method, max_new_tokens=16, **how)
        assert stream.ids == out.tokens[0]
        yield out, "".join(text for text, _ in pieces)


@pytest.mark.parametrize(
    ("stop", "tokens", "printed"),
    [("<turn>", 5, 4), ("turn", 5, 4), ("{0}<turn>", 5, 3), ("urn>{1}", 6, 4)],
)
def test_a_special_token_is_a_stop_text(written, stop, tokens, printed):
    """It is looked for as it is written, and not printed, nor is any part of it."""
    words = [f" w{i}" for i in written[3]]
    for out, streamed in answers(written, until=[stop.format(words[3], words[5])], eos=()):
        assert out.tokens == [written[3][:tokens]]
        assert out.text == streamed == "".join(words[:printed])
        assert out.finish_reasons == ["stop"]


def test_a_stop_text_with_a_space_at_the_beginning_of_an_answer(written):
    first = f" w{written[3][0]}"
    assert written[0].tokenizer.decode(written[3][:1]) == first.lstrip()  # alone without the space
    for out, streamed in answers(written, until=[first], eos=()):
        assert (out.tokens, out.text, streamed) == ([written[3][:1]], "", "")
        assert out.finish_reasons == ["stop"]


def test_a_text_goes_on_from_its_prompt_and_hides_special_tokens(written):
    target, _, prompt, free = written
    whole = target.tokenizer.decode(prompt + free, skip_special_tokens=True)
    for until in ((), ("never",), None):
        out = specwb.decode(target, prompt, "ar", max_new_tokens=16, until=until)
        assert target.tokenizer.decode(prompt) + out.text == whole
        assert "turn" not in out.text


def test_what_ended_a_row(written):
    target, draft, prompt, free = written
    method = specwb.method("sps", target, draft=draft, gamma=4)
    for eos, until, reason, count in (
        ((), (), "length", 16),
        (free[4], (), "eos", 5),
        (free[4], "never", "eos", 5),
        (free[4], f"w{free[2]}", "stop", 3),
    ):
        out = specwb.decode(target, prompt, method, max_new_tokens=16, eos=eos, until=until)
        assert (out.finish_reasons, out.tokens) == ([reason], [free[:count]])
    rows = [prompt, prompt[:2]]
    out = specwb.decode(target, rows, method, max_new_tokens=[3, 5], eos=(), until="<turn>")
    assert out.finish_reasons[0] == "length"


# --------------------------------------------------------------------------------- linear in time


@pytest.fixture(scope="module")
def bytelevel():
    return AutoTokenizer.from_pretrained(data_dir() / "lab" / "target")


def fallback() -> PreTrainedTokenizerFast:
    """Bytes for what has no token, as Llama 2's tokenizer has them."""
    words = [*(f"<0x{b:02X}>" for b in range(256)), "\u2581Hello", "\u2581world", "!"]
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="!"))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made)


def in_bytes(text: str) -> list[int]:
    """A text's words and bytes as tokens of :func:`fallback`."""
    known = {"Hello": 256, "world": 257}
    words = [[known[word]] if word in known else list(word.encode()) for word in text.split()]
    return list(itertools.chain(*words))


LONG = " ".join(
    ["Hello world caf\u00e9", "\u65e5\u672c\u8a9e" * 4, "\U0001f642" * 7, "na\u00efve x"] * 6
)


@pytest.mark.parametrize("kind", ["bytes", "fallback", "sentencepiece"])
def test_tokens_one_by_one_are_the_whole_text(kind, bytelevel, monkeypatch):
    """And no more than the last of them are decoded again."""
    if kind == "bytes":
        tokenizer, ids = bytelevel, bytelevel(LONG + "<|user|>" + LONG)["input_ids"]
    elif kind == "fallback":
        tokenizer, ids = fallback(), in_bytes(LONG)
    else:
        tokenizer = sentencepiece([*LONG.split()[:9], "<turn>"], "<turn>")
        ids = [random.Random(0).randrange(10) for _ in range(300)]
    prompt, new = ids[:3], ids[3:]
    skipped = tokenizer.decode(ids, skip_special_tokens=True)
    lead = tokenizer.decode(prompt, skip_special_tokens=True)
    sizes, decode = [], tokenizer.decode

    def counted(ids, **how):
        sizes.append(len(ids))
        return decode(ids, **how)

    monkeypatch.setattr(tokenizer, "decode", counted)
    text = Text(tokenizer, prompt, ["never", "ends"])
    for token in new:
        text.feed([token])
    assert not text.ended
    monkeypatch.undo()
    assert lead + text.printed == skipped
    assert Text(tokenizer, prompt).feed(new).printed == text.printed
    assert len(new) > 150
    assert max(sizes) < 6 * CONTEXT


@pytest.mark.parametrize("stop", [(), ("never",)])
@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_bytes_without_end_are_settled_too(kind, stop, bytelevel, monkeypatch):
    """Of no character, and of characters of two, three and four bytes without a word between."""
    tokenizer = bytelevel if kind == "bytes" else fallback()
    known = bytelevel.get_vocab()
    letters = bytes_to_unicode()

    def tokens(octets: bytes) -> list[int]:
        return [known[letters[b]] if kind == "bytes" else b for b in octets]

    hello = [bytelevel("Hello")["input_ids"][-1] if kind == "bytes" else 256]
    decode, sizes = tokenizer.decode, []

    def counted(ids, **how):
        sizes.append(len(ids))
        return decode(ids, **how)

    monkeypatch.setattr(tokenizer, "decode", counted)
    mixed = "\u00e9\u65e5\U0001f642\u00e9\U0001f642x\u65e5"
    texts = [mixed.encode(), "\u65e5\U0001f642".encode()]  # the latter has no border every 12 bytes
    for octets in (b"\xe6", b"\x80", b"\xe6\x97", b"\xf0\x9f\x99", b"\xc3x", *texts):
        new = hello + tokens(octets * (300 // len(octets)))
        text = Text(tokenizer, hello, stop)
        for token in new:
            text.feed([token])
        assert text.printed == decode(hello + new)[len(decode(hello)) :], octets
    assert max(sizes) < 6 * CONTEXT


def test_a_long_stop_text_is_found_wherever_it_begins():
    words = [f"w{i}" for i in range(120)]
    tokenizer = sentencepiece([*words, "<turn>"], "<turn>")
    for begin in range(1, 60):
        stop = "".join(f" {word}" for word in words[begin : begin + 50])
        stops = Stops(stop, tokenizer, [[0]])
        assert stops.surplus(0, range(1, 120)) == 120 - begin - 50
        assert stops.texts([[]]) == ["".join(f" {word}" for word in words[1:begin])]


def test_the_beginning_of_a_stop_text_at_the_end_of_a_text():
    for size in range(1, 6):
        for letters in itertools.product("ab", repeat=size):
            stop = "".join(letters)
            for text in map("".join, itertools.product("ab", repeat=5)):
                if stop not in text:
                    known = [n for n in range(len(stop)) if text.endswith(stop[:n])]
                    assert overlap(text, stop) == max(known)
    assert overlap("", "ab") == overlap("a", "b") == 0


def test_a_stop_text_of_a_million_letters_holds_nobody_up(bytelevel):
    """Quadratic work would take hours here."""
    pieces: list[str] = []
    (letter,) = bytelevel("a", add_special_tokens=False)["input_ids"]
    stop = "a" * 10**6
    stream = Stream(lambda piece, _: pieces.append(piece))
    stops = Stops(stop, bytelevel, [[5]])
    verdict = SimpleNamespace(count=[1], emitted=torch.tensor([[letter]]))
    for _ in range(50):
        assert stops.surplus(0, [letter]) is None
        stream(SimpleNamespace(verdict=verdict, stops=stops))
    assert pieces == []  # all of it may be the beginning of the stop text
    stream.close()
    assert pieces == ["a" * 50]
