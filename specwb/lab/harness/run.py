"""A benchmark's conversations answered by several methods, stored answer by answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import EVALUATION, OBJECT, claim, document, foreign, home, write
from specwb.core.inputs import integer
from specwb.core.probability import Sampling
from specwb.core.progress import Report, unseen
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import Method
from specwb.lab.bench.compare import build
from specwb.lab.bench.conditions import conditions, weights
from specwb.lab.bench.library import Library, plain_row
from specwb.lab.bench.measure import Job, Run, measure, rotated
from specwb.lab.bench.store import RunStore, StoreError, digest
from specwb.lab.harness.answers import Turn, answers_path, line, turns_of
from specwb.models.prompts import chat, encode
from specwb.models.questions import PromptSetError, Question
from specwb.models.target import Target

TURNS = 8
"""The largest number of turns of a question, by default."""


def evaluate(
    target: Target,
    questions: Sequence[Question],
    methods: Sequence[str | Method],
    out: Path,
    *,
    draft: Target | str | None = None,
    temperature: float = 0.0,
    max_new_tokens: int = 1024,
    turns: int = TURNS,
    stop: Sequence[str] = (),
    seed: int = 0,
    progress: Report = unseen,
) -> dict[str, list[Turn]]:
    """Answer every question by every method, one at a time; return the answers by method.

    Plain decoding is always among them, by this engine (``ar``) and, where no text stops it, by the
    transformers library (``hf_greedy``, at T > 0 ``hf_sample``). Each method answers a question
    before the next one is put, in rotating order, and a later turn is asked with the method's own
    earlier answers. An answer is stored when it is there; the same call goes on after an interrupt.
    Answers under other conditions stay in the store.

    Args:
        target: the target model.
        questions: with distinct numbers.
        methods: specs or built methods.
        out: a folder; the answers are in ``out/store.sqlite``, and those to these questions, when
            this call ends, in ``out/answers``, one file per method in Spec-Bench's schema, with
            settings and conditions in ``out/run.json``.
        draft: the draft model of methods that take one, default the target's own.
        temperature: 0 is greedy.
        max_new_tokens: of every turn.
        turns: largest number of turns of a question.
        stop: texts that end an answer; they are not part of it.
        seed: of the sampling; every turn of every question has a seed of its own made of it.
        progress: called with (fraction done, text).

    Raises:
        ArgumentError: max_new_tokens leaves no room.
        StoreError: ``out`` holds answers under other settings, or another program answers into
            it; as :class:`specwb.lab.bench.store.RunStore`.
        PromptSetError: a question's number occurs twice, or a first turn cannot be shortened to
            fit.
        MethodError: a method cannot be built or is named twice.
    """
    integer("max_new_tokens", max_new_tokens, 1)
    integer("turns", turns, 1)
    if len({question.question_id for question in questions}) < len(questions) or not questions:
        raise PromptSetError("there are no questions, or one number occurs twice")
    if max_new_tokens >= target.context:
        context = f"the context of {target.name!r} ({target.context})"
        raise ArgumentError(f"max_new_tokens={max_new_tokens} leaves no room in {context}")
    out = home(out)
    claim({"--out": (out, EVALUATION)})
    sampling = Sampling(temperature)
    decoders = build(target, list(methods), draft, sampling)
    if not stop:
        row = plain_row(sampling)
        decoders.setdefault(row, Library(row, target, None, sampling, 1))
    for question in questions:  # all of them, before the first is answered
        question.fit(target.tokenizer, target.context - max_new_tokens)
    settings = {
        **asdict(sampling),
        "max_new_tokens": max_new_tokens,
        "stop": list(stop),
        "seed": seed,
        "turns": turns,
        "chat_template": digest(getattr(target.tokenizer, "chat_template", None) or ""),
    }
    made_on = conditions(target, decoders.values())
    # answers of an earlier commit stay: a text that changed is what other tests look for
    same = {key: value for key, value in made_on.items() if key != "commit"}
    out.mkdir(parents=True, exist_ok=True)
    with RunStore(out / "store.sqlite", kind="evaluation") as store, store.measuring():
        _check_settings(out / "run.json", settings)
        places = {
            (key, question.question_id): (
                store.add_settings({"method": key, **settings}, same | weights(target, [decoder])),
                digest([*asdict(question).values()][:5]),
            )
            for key, decoder in decoders.items()
            for question in questions
        }
        missing = set(places.values()) - store.done()
        watch, warmed, count = Watch(one_step(target)), set[str](), 0

        def decoded(key: str, ids: list[int], seed: int) -> Run:
            job = Job(key, decoders[key], [ids], max_new_tokens, sampling, seed)
            how: dict[str, Any] = {"until": tuple(stop), "watch": watch, "warm": key not in warmed}
            warmed.add(key)
            ((_, run),) = measure(target, [job], **how)
            return run

        try:
            for i, question in enumerate(questions):
                for key in rotated(list(decoders), i):
                    place = places[key, question.question_id]
                    if place not in missing:
                        continue
                    progress(count / len(missing), f"question {question.question_id}, {key}")
                    decode = partial(decoded, key)
                    answered = _conversation(target, question, decode, settings, watch)
                    seconds = sum(turn.seconds for turn in answered)
                    store.add(*place, line(answered, target.name, question), seconds)
                    count += 1
        finally:
            answers = _written(store, out, places)
            write(json.dumps({**settings, **made_on}, indent=1) + "\n", out / "run.json")
    progress(1.0, "done")
    return answers


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Check that a folder has no answers under other settings, which files would be mixed with."""
    if not path.exists():
        return
    schema = {**OBJECT, "required": [*settings]}
    before = document(path, schema, StoreError, "delete it, or name another --out")
    if other := [name for name, value in settings.items() if before[name] != value]:
        was = ", ".join(f"{name} = {before[name]!r}" for name in other)
        raise StoreError(f"{path.parent} holds answers of another run ({was}); name another --out")


def _written(
    store: RunStore, out: Path, places: Mapping[tuple[str, int], tuple[str, str]]
) -> dict[str, list[Turn]]:
    """Write a file of answers for every method; return the answers."""
    stored = {(id, prompt): record for id, prompt, _, record in store.runs()}
    rows: dict[str, list[dict[str, Any]]] = {key: [] for key, _ in places}
    for (key, _), place in places.items():
        if place in stored:
            rows[key].append(stored[place])
    for key, lines in rows.items():
        if lines:
            write("".join(json.dumps(row) + "\n" for row in lines), answers_path(out, key))
    with foreign(f"{store.path} holds what no evaluation has written", StoreError):
        return {key: [t for row in lines for t in turns_of(row)] for key, lines in rows.items()}


def _conversation(
    target: Target,
    question: Question,
    decode: Callable[[list[int], int], Run],
    settings: Mapping[str, Any],
    watch: Watch,
) -> list[Turn]:
    """Answer a question's turns, each asked with the answers before it.

    There are at most as many turns as the settings say, and none once the conversation has outgrown
    the context. ``decode`` takes token ids and a seed.
    """
    room = target.context - settings["max_new_tokens"]
    messages: list[dict[str, str]] = []
    turns: list[Turn] = []
    for number, text in enumerate(question.turns[: settings["turns"]]):
        messages.append({"role": "user", "content": text})
        if number == 0:
            ids, cut = question.fit(target.tokenizer, room)
        else:
            ids, cut = _later_ids(target, messages, question), False
            if len(ids) > room:
                break
        seed = turn_seed(settings["seed"], question.question_id, number)
        run = decode(ids, seed)
        turns.append(_turn(question, number, run, cut, watch.slow(run.probe)))
        messages.append({"role": "assistant", "content": turns[-1].text})
    return turns


def _turn(question: Question, number: int, run: Run, cut: bool, disturbed: bool) -> Turn:
    assert run.texts is not None  # questions are text, so there is a tokenizer
    (text,) = run.texts
    # of the library's steps only their number is known
    nothing = [[0] * run.forwards]
    (accepted,), (drafted,) = run.accepted or nothing, run.drafted or nothing
    return Turn(
        question.question_id,
        question.category,
        question.subtask,
        number,
        text.strip() if question.format == "chat" else text,
        tuple(run.tokens[0]),
        run.seconds,
        tuple(accepted),
        tuple(drafted),
        cut,
        disturbed,
    )


def _later_ids(target: Target, messages: list[dict[str, str]], question: Question) -> list[int]:
    """The token ids of a conversation whose last message is the user's."""
    name = f"question {question.question_id}"
    if question.format == "chat" and getattr(target.tokenizer, "chat_template", None):
        return chat(target.tokenizer, messages, name)
    return encode(target.tokenizer, "\n\n".join(m["content"] for m in messages), name)


def turn_seed(seed: int, question: int, turn: int) -> int:
    """Return the seed of a turn: the same for all methods, whatever other questions there are."""
    content = f"{seed}/{question}/{turn}".encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "little")
