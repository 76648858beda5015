"""Conversations that a chat model has with itself: what its drafters meet, and so what they should
be trained on. No data set is needed.

The user's turn begins with an opening of some kind of request ("Write a letter to", "Translate into
French:"), and the model, which was tuned on conversations, writes on until the turn ends. Then the
answer is sampled as ever. Without an opening this is Magpie (Xu et al. 2024, arXiv 2406.08464),
whose requests are of few kinds: of 48 that SmolLM2 wrote, 42 began with the same four phrases, and
heads that were trained on their answers were right at .75 of the places of such answers and at .46
of those of answers to letters, tables, translations and code.

A block of conversations is a function of (target, seed, its number) and is written when it is
complete, so that an interrupted run resumes with nothing lost. All blocks together are a .jsonl
file with ``messages``, which ``specwb train KIND --corpus FILE --text read`` reads.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specwb.core import files
from specwb.core.files import TALKS, DataError, claim, document, home
from specwb.core.probability import Sampling
from specwb.core.progress import progress
from specwb.engine.loop import Decoding
from specwb.engine.methods import method
from specwb.engine.work import check_work
from specwb.models.load import data_dir
from specwb.models.questions import load_prompts
from specwb.models.target import Target
from specwb.training.fit import TrainingError, say
from specwb.training.reading import trained_on

ROWS = 64  # conversations of a block, which are decoded together; a GPU has room for more
QUESTION, ANSWER = 64, 256  # tokens of a turn at most
LOOK = 16  # steps after which what has ended or loops leaves the batch
ASKING = (0.7, 0.85, 1.0)  # temperatures of users' turns, with top_p = TOP_P
ANSWERING = (0.0, 0.7, 0.0, 1.0)  # of answers
TOP_P = 0.95
SHORT = 8  # letters; a request of fewer is left out
MARK = "QXZJQ"  # stands for the user's words in a template
FEW = 0.05  # of requests with the same first four words
PARAGRAPH = 200, 700  # letters of a paragraph of an answer that stands for TEXT
TEXT = "{text}"
BLOCK = {"type": "array", "items": {"required": ["messages", "tokens", "ended"], **files.OBJECT}}
"""The schema of a block's file."""


def openings(path: Path) -> dict[str, list[str]]:
    """The openings of requests by kind, from a TOML file like ``data/requests.toml``: a table
    ``kinds`` whose entries are lists of texts.

    Raises:
        DataError: it has another field, or a kind is no list of texts, or not one opening is
            without ``{text}``, which the first requests need.
    """
    content, _ = files.toml(path)
    for name in content:
        if name != "kinds":
            raise DataError(f"{path}: unknown field {name!r}; known: kinds")
    kinds = content.get("kinds")
    if not isinstance(kinds, dict) or not kinds:
        raise DataError(f"{path}: kinds must be a table of kinds of requests")
    for kind, texts in kinds.items():
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            raise DataError(f"{path}: kinds.{kind} must be a list of texts")
    if not any(TEXT not in text for texts in kinds.values() for text in texts):
        raise DataError(f"{path}: an opening without {TEXT} is needed, for the first requests")
    return kinds


def frame(tokenizer: Any) -> tuple[str, str]:
    """What a chat template writes before and behind a user's first words, up to the answer."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise TrainingError("the target's tokenizer has no chat template to write requests in")
    message = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, found, behind = text.partition(MARK)
    if not found or not tokenizer.encode(behind, add_special_tokens=False):
        raise TrainingError("the chat template does not write a user's words as they are")
    return before, behind


def temperatures(number: int) -> tuple[float, float]:
    """Of a block's requests and of its answers. Half of the answers are greedy, as most decoding
    is; twelve blocks have all pairs."""
    return ASKING[number % 3], ANSWERING[number % 4]


def block(
    target: Target,
    number: int,
    seed: int,
    given: Sequence[str] = (),
    rows: int = ROWS,
    kinds: Mapping[str, Sequence[str]] | None = None,
    texts: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One block of conversations, each as a line of the file; temperatures follow from its number.

    ``given`` are its requests; otherwise ``rows`` are sampled behind openings of all ``kinds``
    (default: none), with paragraphs of ``texts`` in those that take one."""
    tokenizer = target.tokenizer
    before, behind = frame(tokenizer)
    asking, answering = temperatures(number)
    first = seed * 2**32 + 2 * number * rows  # of the seeds of a block's rows
    requests: dict[str, str | None] = dict.fromkeys(given)
    if not given:
        drawn = _drawn(kinds or {"own": [""]}, texts, rows, first)
        requests = _sampled(target, before, behind, asking, drawn, first)
    if not requests:
        return []
    asked = [before + request + behind for request in requests]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in asked]
    answers = _written(target, prompts, ANSWER, first + rows, target.ends, temperature=answering)
    return [
        {
            "messages": [
                {"role": "user", "content": request},
                {"role": "assistant", "content": tokenizer.decode(row, skip_special_tokens=True)},
            ],
            "kind": kind,
            "temperatures": [None if given else asking, answering],
            "tokens": len(row),
            "ended": row[-1] in target.ends,
        }
        for (request, kind), row in zip(requests.items(), answers, strict=True)
        if row
    ]


def _written(
    target: Target,
    prompts: Sequence[list[int]],
    most: int,
    seed: int,
    eos: Sequence[int],
    **sampling: Any,
) -> list[list[int]]:
    """What follows prompts, ``most`` tokens at most; row i is decoded with ``seed + i``. What has
    ended, or loops, soon leaves the batch: most texts do so much earlier than the longest."""
    texts: list[list[int]] = [[] for _ in prompts]
    room = [min(most, target.context - len(prompt)) for prompt in prompts]
    going = [i for i in range(len(prompts)) if room[i] > 0]
    if not going:
        return texts
    decoding = Decoding(
        target,
        method("ar", target),
        Sampling(**sampling),
        [prompts[i] for i in going],
        [room[i] for i in going],
        torch.tensor([seed + i for i in going], device=target.device),
        eos,
    )
    for step in decoding:
        state = decoding.state
        if step.index % LOOK < LOOK - 1 and not state.finished:
            continue
        bounds = zip(state.start.tolist(), state.length.tolist(), strict=True)
        for i, row, (first, last) in zip(going, state.tokens.tolist(), bounds, strict=True):
            texts[i] = row[first:last]
        done = state.done.tolist()
        lasting = [
            row
            for row, i in enumerate(going)
            if not done[row] and before_loop(texts[i]) == len(texts[i])
        ]
        if len(lasting) < len(going):
            going = [going[row] for row in lasting]
            decoding.keep(lasting)
    return texts


def _drawn(
    kinds: Mapping[str, Sequence[str]], texts: Sequence[str], rows: int, seed: int
) -> list[tuple[str, str, bool]]:
    """A kind and an opening of it for every row, all kinds as likely, and whether it is whole: one
    with a paragraph of ``texts`` is."""
    generator = random.Random(seed)
    low, high = PARAGRAPH
    paragraphs = [p.strip() for text in texts for p in text.split("\n\n")]
    paragraphs = [p for p in paragraphs if low <= len(p) <= high]
    if not paragraphs:
        some = {kind: [o for o in of_kind if TEXT not in o] for kind, of_kind in kinds.items()}
        kinds = {kind: of_kind for kind, of_kind in some.items() if of_kind}
    drawn = []
    for _ in range(rows):
        kind = generator.choice(list(kinds))
        opening = generator.choice(kinds[kind])
        is_whole = TEXT in opening
        if is_whole:
            opening = opening.replace(TEXT, generator.choice(paragraphs))
        drawn.append((kind, opening, is_whole))
    return drawn


def _sampled(
    target: Target,
    before: str,
    behind: str,
    temperature: float,
    drawn: Sequence[tuple[str, str, bool]],
    seed: int,
) -> dict[str, str | None]:
    """Requests and their kinds: openings as the model writes on, and those that are whole."""
    tokenizer = target.tokenizer
    end = tokenizer.encode(behind, add_special_tokens=False)[0]
    special = set(tokenizer.all_special_ids)
    begun = [(kind, opening) for kind, opening, is_whole in drawn if not is_whole]
    written = _written(
        target,
        [tokenizer.encode(before + opening, add_special_tokens=False) for _, opening in begun],
        QUESTION,
        seed,
        [end, *target.ends],
        temperature=temperature,
        top_p=TOP_P,
    )
    requests: dict[str, str | None] = {o: kind for kind, o, is_whole in drawn if is_whole}
    for (kind, opening), row in zip(begun, written, strict=True):
        if row[-1:] == [end] and not special & set(row[:-1]):
            requests[(opening + tokenizer.decode(row[:-1])).strip()] = kind
    return {text: kind for text, kind in requests.items() if len(text) >= SHORT}


def write(
    target: str | Target,
    out: Path,
    tokens: int,
    *,
    given: str | Path | None = None,
    kinds: str | Path | None = None,
    rows: int = ROWS,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
) -> Path:
    """Writes conversations with about so many tokens of answers to a .jsonl file.

    Complete blocks lie in the folder ``out`` + ``.blocks``, where a later call, for more tokens
    too, goes on. ``given`` is a prompt set or file (:func:`specwb.models.questions.load_prompts`)
    whose questions are answered, instead of requests that the model writes; fewer tokens come if
    they end. ``kinds`` is a file of :func:`openings`, default ``data/requests.toml``.

    Raises:
        TrainingError: the tokenizer has no template to write in, no requests come, or both
            ``given`` and ``kinds`` are named.
        DataError: ``kinds`` is no file of openings.
    """
    if given is not None and kinds is not None:
        raise TrainingError("requests are given or begin with openings: set requests or kinds")
    claim({"--out": (out, TALKS)})
    questions = [] if given is None else [q.turns[0] for q in load_prompts(given)]
    questions = list(dict.fromkeys(questions))
    begun = openings(home(kinds or data_dir() / "requests.toml"))
    out = home(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    model = trained_on(target, device, dtype)
    turns = QUESTION + ANSWER  # of every conversation a request and an answer
    # of a token's keys and values in all layers at least as much as of one hidden state
    state = model.backbone.config.hidden_size * model.dtype.itemsize
    memory = rows * min(turns, model.context) * state
    what = f"{tokens:,} tokens of answers, {rows:,} conversations at a time"
    passes, lower = tokens / rows * turns / ANSWER, "--set tokens or --rows"
    say(check_work(model, what, passes, rows, lower=lower, memory=memory))
    order = [temperatures(number) for number in range(12)]
    made_by = model.fingerprint, str(model.dtype), seed, *frame(model.tokenizer)
    asked: list[Any] = list(questions) or [begun, PARAGRAPH]
    contents = [*made_by, rows, QUESTION, ANSWER, order, TOP_P, SHORT, asked]
    key = hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:12]
    folder = out.with_name(out.name + ".blocks") / key
    lines: list[dict[str, Any]] = []
    with progress("conversations", lasting=True) as move:
        try:
            for number, fresh in enumerate(_blocks(model, folder, questions, begun, seed, rows)):
                lines += fresh
                written = sum(line["tokens"] for line in lines)
                move(written / tokens, f"{written:,} of {tokens:,} tokens of answers")
                if written >= tokens:
                    break
                if written <= number and number >= 16:
                    name = repr(model.name)
                    raise TrainingError(f"{name} writes no requests from its bare template")
        except KeyboardInterrupt:
            if lines:  # otherwise an earlier file is as good
                _save(lines, out)
            say("stopped; the same command goes on from there")
            raise
    _save(lines, out)
    return out


def _blocks(
    model: Target,
    folder: Path,
    questions: list[str],
    kinds: Mapping[str, Sequence[str]],
    seed: int,
    rows: int,
) -> Iterator[list[dict[str, Any]]]:
    """Yields what is new in every block, which is read, or made and written to the folder."""
    seen: set[str] = set()
    texts: list[str] = []  # the answers of the block before
    number = 0
    while not questions or number * rows < len(questions):
        path = folder / f"{number:05}.json"
        if path.is_file():
            talks = document(path, BLOCK, TrainingError, "delete it, and it is written anew")
        else:
            some = questions[number * rows : (number + 1) * rows]
            talks = block(model, number, seed, some, rows, kinds, texts)
            files.write(json.dumps(talks), path)
        fresh = [talk for talk in talks if talk["messages"][0]["content"] not in seen]
        seen |= {talk["messages"][0]["content"] for talk in fresh}
        fresh = [cut(talk, model.tokenizer) for talk in fresh]
        texts = [talk["messages"][1]["content"] for talk in fresh]
        yield fresh
        number += 1


def _save(lines: list[dict[str, Any]], out: Path) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    files.write(text, out)
    answers, ended = (sum(line[key] for line in lines) for key in ("tokens", "ended"))
    say(
        f"{len(lines)} conversations, {answers} tokens of answers, "
        f"{ended / max(1, len(lines)):.0%} of which end by themselves"
    )
    if lines:
        say(variety([line["messages"][0]["content"] for line in lines]))


def variety(requests: Sequence[str]) -> str:
    """In words how varied requests are, by their first four words and their lengths."""
    begun = Counter(" ".join(request.split()[:4]).lower() for request in requests)
    (most, times), *_ = begun.most_common(1)
    share, words = times / len(requests), sorted(len(request.split()) for request in requests)
    said = (
        f"requests of {words[0]} to {words[-1]} words, half of them of at most "
        f"{words[len(words) // 2]}; {len(begun) / len(requests):.0%} begin with four words of "
        f"their own, {share:.1%} with the most frequent ones, {most!r}"
    )
    if share > FEW and times > 1:
        said += (
            f". More than {FEW:.0%} is little variety: a head learns the kinds of requests that it "
            "has seen"
        )
    return said


def cut(line: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A conversation whose answer ends before it says the same for the third time.

    A small model's greedy answers loop, more than half of them. What a drafter learns from loops is
    to repeat, and they would be most of its text.
    """
    request, answer = line["messages"]
    ids = tokenizer.encode(answer["content"], add_special_tokens=False)
    count = before_loop(ids)
    if count == len(ids):
        return line
    said = {**answer, "content": tokenizer.decode(ids[:count])}
    return {**line, "messages": [request, said], "tokens": count, "ended": False}


def before_loop(ids: Sequence[int], n: int = 8, times: int = 3) -> int:
    """How many tokens there are before some ``n`` come for the ``times``-th time, each time behind
    the last one: a row of equal signs is no loop."""
    seen: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(ids) - n + 1):
        places = seen.setdefault(tuple(ids[i : i + n]), [])
        if not places or i >= places[-1] + n:
            places.append(i)
            if len(places) == times:
                return i
    return len(ids)
