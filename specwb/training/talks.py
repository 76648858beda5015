"""Conversations that a chat model has with itself: what its drafters meet, and so what they should
be trained on. No data set is needed.

The user's turn is sampled from the bare template, up to where the user's words begin: a model that
was tuned on conversations goes on with a request. Then the answer is sampled as ever. The idea is
that of Magpie (Xu et al. 2024, arXiv 2406.08464).

A block of conversations is a function of (target, seed, its number) and is written when it is
complete, so that an interrupted run resumes with nothing lost. All blocks together are a .jsonl
file with ``messages``, which ``specwb train KIND --corpus FILE --text read`` reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specwb.core import files
from specwb.core.files import TALKS, claim, document, home
from specwb.core.progress import progress
from specwb.engine.decoding import decode
from specwb.engine.methods import method
from specwb.engine.work import check_work
from specwb.models.questions import load_prompts
from specwb.models.target import Target
from specwb.training.fit import TrainingError, say
from specwb.training.reading import trained_on

ROWS = 64  # conversations of a block, which are decoded together; a GPU has room for more
QUESTION, ANSWER = 96, 384  # tokens of a turn at most; a block takes as long as its longest row
ASKING = (0.6, 0.8, 1.0)  # temperatures of users' turns, with top_p = TOP_P
ANSWERING = (0.0, 0.7, 1.0)  # of answers
TOP_P = 0.95
SHORT = 8  # letters; a request of fewer is left out
MARK = "QXZJQ"  # stands for the user's words in a template
BLOCK = {"type": "array", "items": {"required": ["messages", "tokens", "ended"], **files.OBJECT}}
"""The schema of a block's file."""


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
    """Of a block's requests and of its answers. Three blocks have three of each, and nine blocks
    all pairs: with a thousand rows, a few blocks are the whole text."""
    return ASKING[number % 3], ANSWERING[(number + number // 3) % 3]


def block(
    target: Target, plain: Any, number: int, seed: int, given: Sequence[str] = (), rows: int = ROWS
) -> list[dict[str, Any]]:
    """One block of conversations, each as a line of the file; temperatures follow from its number.
    ``given`` are its requests; otherwise ``rows`` are sampled."""
    tokenizer = target.tokenizer
    before, behind = frame(tokenizer)
    first = seed * 2**32 + number * 2 * rows
    asking, answering = temperatures(number)
    requests = list(given) or _sampled(
        target, plain, before, behind, asking, range(first, first + rows)
    )
    if not requests:
        return []
    answers = decode(
        target,
        [tokenizer.encode(before + text + behind, add_special_tokens=False) for text in requests],
        plain,
        max_new_tokens=ANSWER,
        temperature=answering,
        seed=[first + rows + i for i in range(len(requests))],
        eos=target.ends,
    ).tokens
    return [
        {
            "messages": [
                {"role": "user", "content": request},
                {"role": "assistant", "content": tokenizer.decode(row, skip_special_tokens=True)},
            ],
            "temperatures": [None if given else asking, answering],
            "tokens": len(row),
            "ended": row[-1] in target.ends,
        }
        for request, row in zip(requests, answers, strict=True)
        if row
    ]


def _sampled(
    target: Target, plain: Any, before: str, behind: str, temperature: float, seeds: range
) -> list[str]:
    """Requests that the model writes from its bare template, one for each seed."""
    tokenizer = target.tokenizer
    end = tokenizer.encode(behind, add_special_tokens=False)[0]
    asked = decode(
        target,
        [tokenizer.encode(before, add_special_tokens=False)] * len(seeds),
        plain,
        max_new_tokens=QUESTION,
        temperature=temperature,
        top_p=TOP_P,
        seed=list(seeds),
        eos=[end, *target.ends],
    ).tokens
    special = set(tokenizer.all_special_ids)
    whole = [row[:-1] for row in asked if row[-1] == end and not special & set(row[:-1])]
    requests = [tokenizer.decode(row).strip() for row in whole]
    return [text for text in dict.fromkeys(requests) if len(text) >= SHORT]


def write(
    target: str | Target,
    out: Path,
    tokens: int,
    *,
    given: str | Path | None = None,
    rows: int = ROWS,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
) -> Path:
    """Writes conversations with about so many tokens of answers to a .jsonl file.

    Complete blocks lie in the folder ``out`` + ``.blocks``, where a later call, for more tokens
    too, goes on. ``given`` is a prompt set or file (:func:`specwb.models.questions.load_prompts`)
    whose questions are answered, instead of requests that the model writes; fewer tokens come if
    they end.

    Raises:
        TrainingError: the tokenizer has no template to write in, or no requests come.
    """
    claim({"--out": (out, TALKS)})
    questions = [] if given is None else [q.turns[0] for q in load_prompts(given)]
    questions = list(dict.fromkeys(questions))
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
    order = [temperatures(number) for number in range(9)]
    made_by = model.fingerprint, str(model.dtype), seed, *frame(model.tokenizer)
    contents = [*made_by, rows, QUESTION, ANSWER, order, TOP_P, SHORT, questions]
    key = hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:12]
    folder = out.with_name(out.name + ".blocks") / key
    lines: list[dict[str, Any]] = []
    with progress("conversations", lasting=True) as move:
        try:
            for number, fresh in enumerate(_blocks(model, folder, questions, seed, rows)):
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
    model: Target, folder: Path, questions: list[str], seed: int, rows: int
) -> Iterator[list[dict[str, Any]]]:
    """Yields what is new in every block, which is read, or made and written to the folder."""
    seen: set[str] = set()
    number = 0
    while not questions or number * rows < len(questions):
        path = folder / f"{number:05}.json"
        if path.is_file():
            talks = document(path, BLOCK, TrainingError, "delete it, and it is written anew")
        else:
            some = questions[number * rows : (number + 1) * rows]
            # a method of its own: graphs of a thousand rows, and caches, go with the block
            talks = block(model, method("ar", model), number, seed, some, rows)
            files.write(json.dumps(talks), path)
        fresh = [talk for talk in talks if talk["messages"][0]["content"] not in seen]
        seen |= {talk["messages"][0]["content"] for talk in fresh}
        yield [cut(talk, model.tokenizer) for talk in fresh]
        number += 1


def _save(lines: list[dict[str, Any]], out: Path) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    files.write(text, out)
    answers, ended = (sum(line[key] for line in lines) for key in ("tokens", "ended"))
    say(
        f"{len(lines)} conversations, {answers} tokens of answers, "
        f"{ended / max(1, len(lines)):.0%} of which end by themselves"
    )


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
