"""A benchmark's conversations answered by several methods, kept on disk answer by answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from specwb.bench.compare import build_methods
from specwb.bench.conditions import describe, describe_device, versions
from specwb.bench.library import Library, plain_row
from specwb.bench.machine import Watch, one_step
from specwb.bench.measure import Job, Run, measure
from specwb.bench.prompts import PromptSetError, Question
from specwb.errors import SpecwbError
from specwb.files import home, weights_hash, whole_file
from specwb.harness import spec_bench
from specwb.harness.record import Turn
from specwb.inputs import integer
from specwb.methods import METHODS, Method
from specwb.models.prompts import chat, encode
from specwb.models.target import Target
from specwb.probability import Sampling

TURNS = 8  # of a question, at most, by default


class HarnessError(SpecwbError, ValueError):
    """A folder of another run, or answers in it that cannot be read."""


@dataclass(frozen=True)
class Settings:
    """How questions are answered.

    Attributes:
        sampling: temperature and filters.
        max_new_tokens: for every turn.
        stop: texts that end an answer; they are not part of it.
        seed: of the sampling; every turn of every question has a seed of its own made of it.
        turns: how many turns of a question are put, at most.
    """

    sampling: Sampling = Sampling()  # noqa: RUF009
    max_new_tokens: int = 1024
    stop: tuple[str, ...] = ()
    seed: int = 0
    turns: int = TURNS


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
    earlier answers. An answer is written when it is there; the same call goes on after an
    interrupt.

    Args:
        target: the target model.
        questions: with distinct numbers.
        methods: specs or built methods.
        out: a folder; the answers are in ``out/answers``, a file a method, in Spec-Bench's schema.
        settings: how they are answered.
        draft: the draft model of methods that take one, default the target's own.
        progress: called with (fraction done, text).

    Raises:
        HarnessError: ``out`` holds another run, or one is at work there.
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
    out = home(out)
    with _alone(out):
        _claim(out, target, settings)
        files = {key: spec_bench.answers_path(out, key) for key in built}
        asked = {key: _asked(target, method, questions) for key, method in built.items()}
        done = {key: spec_bench.answered(path, asked[key]) for key, path in files.items()}
        missing = {key: [n for n in numbers if n not in done[key]] for key in built}
        total = sum(map(len, missing.values()))
        watch, latest = Watch(one_step(target)), list[Run]()

        def jobs() -> Iterator[Job]:
            """Each method answers a question before the next one, in rotating order."""
            count, keys = 0, list(built)
            for i, question in enumerate(questions):
                number = question.question_id
                for key in keys[i % len(keys) :] + keys[: i % len(keys)]:
                    if number in done[key]:
                        continue
                    if progress:
                        progress(count / total, f"question {number}, {key}")
                    turns = yield from _conversation(
                        target, question, key, built[key], settings, latest, watch
                    )
                    spec_bench.append(files[key], turns, target.name, question, asked[key][number])
                    count += 1

        for _, run in measure(target, jobs(), until=settings.stop, watch=watch):
            latest[:] = [run]
        if progress:
            progress(1.0, "done")
        return {
            key: [turn for turn in spec_bench.read(path) if turn.question_id in set(numbers)]
            for key, path in files.items()
        }


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps other evaluations out of the folder; the system opens the lock of one that ends.

    Raises:
        HarnessError: another is at work there, or it cannot be written.
    """
    lock = FileLock(out / "run.lock")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise HarnessError(f"another evaluation is writing to {out}; name another --out") from error
    except OSError as error:
        raise HarnessError(f"cannot keep answers in {out}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _claim(out: Path, target: Target, settings: Settings) -> None:
    """Writes what the answers depend on, or checks that it is the same.

    Raises:
        HarnessError: it is not, or ``out`` cannot be written.
    """
    template = getattr(target.tokenizer, "chat_template", None) or ""
    facts = {
        "target": {"name": describe(target), "fingerprint": target.fingerprint},
        "temperature": settings.sampling.temperature,
        "top_k": settings.sampling.top_k,
        "top_p": settings.sampling.top_p,
        "max_new_tokens": settings.max_new_tokens,
        "stop": list(settings.stop),
        "seed": settings.seed,
        "turns": settings.turns,
        "device": describe_device(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "chat_template": hashlib.sha256(template.encode()).hexdigest()[:12],
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
    content = json.dumps(facts, indent=1) + "\n"
    marker = out / "run.json"
    try:
        answered = any((out / "answers").glob("*.jsonl"))
        if marker.exists() and answered:
            before = json.loads(marker.read_text("utf-8"))
            now = json.loads(content)
            if differing := [key for key in now if now[key] != before.get(key)]:
                raise HarnessError(
                    f"{out} holds answers of another run ({', '.join(differing)} differ); name "
                    "another --out, or delete it"
                )
            return
        if answered:
            raise HarnessError(f"{out} has answers, but no run.json that says how they were given")
        (out / "answers").mkdir(parents=True, exist_ok=True)
        with whole_file(marker) as part:
            part.write_text(content, "utf-8")
    except (OSError, json.JSONDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise HarnessError(f"cannot keep answers in {out}: {why}") from error


def _asked(
    target: Target, method: Method | Library, questions: Sequence[Question]
) -> dict[int, str]:
    """A hash by question of what its answer depends on beside the run's settings: the question's
    text, and the method with the weights that it drafts with."""
    weights: list[str | None] = []
    if isinstance(method, Method):
        draft = getattr(method.drafter, "draft", None)
        weights.append(draft.fingerprint if isinstance(draft, Target) else None)
        kind = METHODS[method.key.partition(":")[0]].head
        given = re.search(r"head=([^,]+)", method.key)
        folder = Path(given[1]) if given else target.own_head(kind) if kind else None
        weights.append(weights_hash(folder) if folder is not None and folder.is_dir() else None)
    return {
        q.question_id: hashlib.sha256(
            json.dumps([method.key, weights, q.format, q.turns]).encode()
        ).hexdigest()[:16]
        for q in questions
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
