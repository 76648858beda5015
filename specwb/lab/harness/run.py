"""A benchmark's conversations answered by several methods, stored answer by answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specwb.core.errors import SpecwbError
from specwb.core.files import EVALUATION, OBJECT, claim, document, foreign, home, write
from specwb.core.inputs import integer
from specwb.core.probability import Sampling
from specwb.engine.machine import Watch, one_step
from specwb.engine.methods import Method
from specwb.lab.bench.compare import build_methods
from specwb.lab.bench.conditions import conditions, weights
from specwb.lab.bench.library import Library, plain_row
from specwb.lab.bench.measure import Job, Run, measure
from specwb.lab.bench.store import Store, digest
from specwb.lab.harness import spec_bench
from specwb.lab.harness.record import Turn
from specwb.models.prompts import chat, encode
from specwb.models.questions import PromptSetError, Question
from specwb.models.target import Target

TURNS = 8  # of a question, at most, by default


class HarnessError(SpecwbError, ValueError):
    """A folder whose answers cannot be used, or settings that leave no room."""


@dataclass(frozen=True)
class Settings:
    """How questions are answered."""

    sampling: Sampling = Sampling()  # noqa: RUF009  # temperature and filters
    max_new_tokens: int = 1024  # for every turn
    stop: tuple[str, ...] = ()  # texts that end an answer; they are not part of it
    seed: int = 0  # of the sampling; every turn of every question has a seed of its own made of it
    turns: int = TURNS  # how many turns of a question are put, at most


def evaluate(
    target: Target,
    questions: Sequence[Question],
    methods: Sequence[str | Method],
    out: Path,
    settings: Settings = Settings(),
    *,
    draft: Target | str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, list[Turn]]:
    """Answers every question by every method, one at a time, and returns the answers by method.

    Plain decoding is always among them, by this engine (``ar``) and, where no text stops it, by the
    transformers library (``hf_greedy``, at T > 0 ``hf_sample``). Each method answers a question
    before the next one is put, in rotating order, and a later turn is asked with the method's own
    earlier answers. An answer is stored when it is there; the same call goes on after an interrupt.
    Answers under other settings or conditions stay in the store.

    Args:
        target: the target model.
        questions: with distinct numbers.
        methods: specs or built methods.
        out: a folder; the answers are in ``out/store.sqlite``, and those to these questions, when
            this call ends, in ``out/answers``, one file per method in Spec-Bench's schema, with
            settings and conditions in ``out/run.json``.
        settings: how they are answered.
        draft: the draft model of methods that take one, default the target's own.
        progress: called with (fraction done, text).

    Raises:
        HarnessError: ``out`` holds an earlier version's answers, or cannot be made.
        StoreError: as :class:`specwb.lab.bench.store.Store`, or another program answers into
        ``out``.
        PromptSetError: a question's number occurs twice, or a first turn cannot be shortened to
            fit.
        MethodError: a method cannot be built or is named twice.
    """
    integer("max_new_tokens", settings.max_new_tokens, 1)
    integer("turns", settings.turns, 1)
    numbers = [question.question_id for question in questions]
    if len(set(numbers)) < len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise PromptSetError(f"question {twice} occurs twice; answers are told apart by it")
    if not questions:
        raise PromptSetError("there are no questions")
    out = home(out)
    claim({"--out": (out, EVALUATION)})
    sampling = settings.sampling
    built: dict[str, Method | Library] = {}
    built |= build_methods(target, list(methods), draft, sampling)
    if not settings.stop:
        built[plain_row(sampling)] = Library(plain_row(sampling), target, None, sampling, 1)
    if settings.max_new_tokens >= target.context:
        context = f"the context of {target.name!r} ({target.context})"
        raise HarnessError(f"max_new_tokens={settings.max_new_tokens} leaves no room in {context}")
    for question in questions:  # all of them, before the first is answered
        question.fit(target.tokenizer, target.context - settings.max_new_tokens)
    made_on = conditions(target, built.values())
    asked = _asked(target, settings)
    # answers of an earlier commit stay: a text that changed is what other tests look for
    same = {key: value for key, value in made_on.items() if key != "commit"}
    with _store(out) as store, store.measuring():
        _check_asked(out, asked)
        ids = {
            key: store.add_settings({"method": key, **asked}, same | weights(target, [method]))
            for key, method in built.items()
        }
        prompts = {
            q.question_id: digest([q.question_id, q.category, q.subtask, q.format, q.turns])
            for q in questions
        }
        done = store.done()
        total = sum((id, prompt) not in done for id in ids.values() for prompt in prompts.values())
        watch, latest = Watch(one_step(target)), list[Run]()

        def jobs() -> Iterator[Job]:
            """Each method answers a question before the next one, in rotating order."""
            count, keys = 0, list(built)
            for i, question in enumerate(questions):
                for key in keys[i % len(keys) :] + keys[: i % len(keys)]:
                    place = ids[key], prompts[question.question_id]
                    if place in done:
                        continue
                    if progress:
                        progress(count / total, f"question {question.question_id}, {key}")
                    turns = yield from _conversation(
                        target, question, key, built[key], settings, latest, watch
                    )
                    seconds = sum(turn.seconds for turn in turns)
                    store.add(*place, spec_bench.line(turns, target.name, question), seconds)
                    count += 1

        try:
            for _, run in measure(target, jobs(), until=settings.stop, watch=watch):
                latest[:] = [run]
        finally:
            answers = _written(store, out, ids, prompts.values())
            facts = {**asked, **made_on}
            write(json.dumps(facts, indent=1) + "\n", out / "run.json")
    if progress:
        progress(1.0, "done")
    return answers


def _check_asked(out: Path, asked: Mapping[str, Any]) -> None:
    """Checks that a folder has no answers under other settings, which files would be mixed with."""
    path = out / "run.json"
    if not path.exists():
        return
    schema = {**OBJECT, "required": [*asked]}
    before = document(path, schema, HarnessError, "delete it, or name another --out")
    if other := [name for name, value in asked.items() if before[name] != value]:
        was = ", ".join(f"{name} = {before[name]!r}" for name in other)
        raise HarnessError(f"{out} holds answers of another run ({was}); name another --out")


def _store(out: Path) -> Store:
    """The store of a folder, which may be missing."""
    out.mkdir(parents=True, exist_ok=True)
    return Store(out / "store.sqlite", kind="evaluation")


def _written(
    store: Store, out: Path, ids: Mapping[str, str], prompts: Iterable[str]
) -> dict[str, list[Turn]]:
    """Writes a file of answers for every method; returns the answers."""
    answers: dict[str, list[Turn]] = {}
    for key, id in ids.items():
        with foreign(f"{store.path} holds what no evaluation has written", HarnessError):
            lines = {prompt: line for other, prompt, _, line in store.runs() if other == id}
            rows = [lines[prompt] for prompt in prompts if prompt in lines]
            answers[key] = [turn for row in rows for turn in spec_bench.turns_of(row)]
        path = spec_bench.answers_path(out, key)
        if rows:
            write("".join(json.dumps(row) + "\n" for row in rows), path)
    return answers


def _asked(target: Target, settings: Settings) -> dict[str, Any]:
    """What answers depend on besides the method, the question and the conditions."""
    template = getattr(target.tokenizer, "chat_template", None) or ""
    return {
        **asdict(settings.sampling),
        "max_new_tokens": settings.max_new_tokens,
        "stop": list(settings.stop),
        "seed": settings.seed,
        "turns": settings.turns,
        "chat_template": digest(template),
    }


def _conversation(
    target: Target,
    question: Question,
    key: str,
    method: Method | Library,
    settings: Settings,
    latest: list[Run],
    watch: Watch,
) -> Generator[Job, None, list[Turn]]:
    """Yields a question's turns as jobs, each made of the answers before it; returns the answers.

    There are at most so many turns as the settings say, and none once the conversation has outgrown
    the context. ``latest`` has the run of the last job.
    """
    room = target.context - settings.max_new_tokens
    messages: list[dict[str, str]] = []
    turns: list[Turn] = []
    for number, asked in enumerate(question.turns[: settings.turns]):
        messages.append({"role": "user", "content": asked})
        if number == 0:
            ids, cut = question.fit(target.tokenizer, room)
        else:
            ids, cut = _later_ids(target, messages, question), False
            if len(ids) > room:
                break
        seed = _seed(settings.seed, question.question_id, number)
        yield Job(key, method, [ids], settings.max_new_tokens, settings.sampling, seed)
        (run,) = latest
        turns.append(_turn(question, number, run, len(ids), cut, watch.slow(run.probe)))
        messages.append({"role": "assistant", "content": turns[-1].text})
    return turns


def _turn(
    question: Question, number: int, run: Run, prompt: int, cut: bool, disturbed: bool
) -> Turn:
    assert run.texts is not None  # questions are text, so there is a tokenizer
    (text,) = run.texts
    nothing = [0] * run.forwards  # of the library's steps it is only known how many there were
    accepted, tested, drafted = (
        tuple(rows[0] if rows else nothing) for rows in (run.accepted, run.tested, run.drafted)
    )
    return Turn(
        question.question_id,
        question.category,
        question.subtask,
        number,
        text.strip() if question.format == "chat" else text,
        tuple(run.tokens[0]),
        run.seconds,
        accepted,
        tested,
        drafted,
        prompt,
        cut,
        disturbed,
    )


def _later_ids(target: Target, messages: list[dict[str, str]], question: Question) -> list[int]:
    name = f"question {question.question_id}"
    if question.format == "chat" and getattr(target.tokenizer, "chat_template", None):
        return chat(target.tokenizer, messages, name)
    return encode(target.tokenizer, "\n\n".join(m["content"] for m in messages), name)


def _seed(seed: int, question: int, turn: int) -> int:
    """A seed for every turn: the same for all methods, and whatever questions there are beside."""
    content = f"{seed}/{question}/{turn}".encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "little")
