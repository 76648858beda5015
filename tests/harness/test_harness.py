"""Benchmarks on a tiny model: whole conversations, going on, stop strings, the command's table."""

from __future__ import annotations

import copy
import json
import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

import specwb
from specwb.core.errors import ArgumentError
from specwb.drafters.diffuspec_parts.ngram import NGram
from specwb.lab.bench import measure as measuring
from specwb.lab.bench.store import StoreError
from specwb.lab.harness import answers as files
from specwb.lab.harness import run, summary
from specwb.lab.harness.answers import Turn
from specwb.models.questions import PromptSetError, Question
from specwb.models.templates import TEMPLATES, TemplateError, use_template

QUESTIONS = [
    Question(7, "coding", ("w1 w2 w3", "w4 w5"), subtask="mt_bench"),
    Question(9, "qa", ("w6 w7",)),
    Question(11, "text", ("w1 w9",), "text"),
]
SHORT = {"max_new_tokens": 10}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The fixed step takes as long every time, so that nothing is measured again."""
    monkeypatch.setattr(run, "one_step", lambda target: lambda: 1.0)


@pytest.fixture(scope="module")
def target() -> specwb.Target:
    words = tiny.tokenizer([f"w{i}" for i in range(tiny.VOCABULARY)])
    words.chat_template = (
        "{% for m in messages %}{{ 'w20 ' if m['role'] == 'user' else 'w21 ' }}"
        "{{ m['content'] + ' ' }}{% endfor %}{% if add_generation_prompt %}{{ 'w21' }}{% endif %}"
    )
    return specwb.load(tiny.build("llama", seed=0), tokenizer=words)


def read(folder, name: str) -> list[Turn]:
    """The turns of a method's file of answers."""
    lines = files.answers_path(folder, name).read_text().splitlines()
    return [turn for line in lines for turn in files.turns_of(json.loads(line))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def answers(target, folder):
    return run.evaluate(target, QUESTIONS, ["pld:gamma=3"], folder, **SHORT)


def test_all_turns_are_answered_with_the_methods_own_answers(target, answers):
    assert list(answers) == ["ar", "pld:gamma=3", "hf_greedy"]
    for turns in answers.values():
        assert [(t.question_id, t.turn) for t in turns] == [(7, 0), (7, 1), (9, 0), (11, 0)]
    first, second, *_ = answers["ar"]
    chat = [
        {"role": "user", "content": "w1 w2 w3"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "w4 w5"},
    ]
    wanted = specwb.decode(target, [chat], "ar", max_new_tokens=10)
    assert list(second.tokens) == wanted.tokens[0]
    assert answers["ar"][3].tokens == tuple(
        specwb.decode(target, "w1 w9", "ar", max_new_tokens=10).tokens[0]
    )
    for name in ("pld:gamma=3", "hf_greedy"):
        assert [t.tokens for t in answers[name]] == [t.tokens for t in answers["ar"]]


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """The keys of the jobs that are decoded."""
    keys, real = [], measuring._decode
    monkeypatch.setattr(
        measuring, "_decode", lambda t, job, *a: keys.append(job.key) or real(t, job, *a)
    )
    return keys


def test_the_same_call_goes_on_and_decodes_nothing_again(target, answers, folder, decoded):
    for count in (2, 3):  # fewer questions, and all of them again
        again = run.evaluate(target, QUESTIONS[:count], ["pld:gamma=3"], folder, **SHORT)
        assert not decoded
        assert again["pld:gamma=3"] == answers["pld:gamma=3"][: count + 1]
        assert read(folder, "pld:gamma=3") == again["pld:gamma=3"]
    run.evaluate(target, QUESTIONS, ["pld:gamma=3", "lookahead"], folder, **SHORT)
    turns = sum(len(q.turns) for q in QUESTIONS)
    assert decoded == ["lookahead"] * (1 + turns)  # and one to warm up


def test_an_interrupt_keeps_what_was_answered(target, tmp_path):
    def stop(done: float, text: str) -> None:
        if "question 9, ar" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.evaluate(target, QUESTIONS, ["pld"], tmp_path, **SHORT, progress=stop)
    for name, numbers in (("ar", [7, 7]), ("pld", [7, 7, 9])):
        assert [t.question_id for t in read(tmp_path, name)] == numbers


def test_a_folder_keeps_the_settings_it_began_with(target, tmp_path):
    def answered(questions, **changes) -> list[Turn]:
        turns = run.evaluate(target, questions, [], tmp_path, **SHORT | changes)["ar"]
        assert read(tmp_path, "ar") == turns
        return turns

    first = answered(QUESTIONS[:1])
    for other in ({"max_new_tokens": 5}, {"stop": ["w63"]}):
        (named,) = other
        with pytest.raises(StoreError, match=f"answers of another run .*{named} = "):
            answered(QUESTIONS[:1], **other)
        assert read(tmp_path, "ar") == first
    # another question 7 is answered anew, and the first one's answer is still there
    assert answered([replace(QUESTIONS[0], turns=("w9 w9",))]) != first
    assert answered(QUESTIONS[:1]) == first


def in_memory(folder, second):
    """A method whose head is handed over, of either weights."""
    head = copy.deepcopy(tiny.head("medusa"))
    with torch.no_grad():
        next(head.parameters()).add_(0.01 * second)
    return "medusa:nodes=4", {"head": head}


def searched(folder, second):
    """With n-grams that are counted anew."""
    text = np.random.default_rng(second).integers(0, tiny.VOCABULARY, 200)
    place = folder / "ngram"
    place.mkdir(exist_ok=True)
    NGram.count([text], tiny.VOCABULARY).save(place / "ngram.npz")
    return "diffuspec:k=3", {"head": tiny.head("diffusion"), "ngram": str(place)}


@pytest.mark.parametrize("method", [searched, in_memory])
def test_answers_by_another_model_are_not_taken_over(target, tmp_path, decoded, method):
    """Under one key and path; what the others answered is taken over."""
    keys = set()
    for second, is_new in ((False, True), (False, False), (True, True), (False, False)):
        decoded.clear()
        one, options = method(tmp_path, second)
        one = specwb.method(one, target, **options) if options else one
        keys.add(one.key)
        run.evaluate(target, QUESTIONS[1:2], [one], tmp_path / "out", **SHORT)
        assert (one.key in decoded) == is_new
        assert "ar" not in decoded or not second
    assert len(keys) == 1


def test_what_cannot_be_is_refused_before_the_first_answer(target, tmp_path):
    with pytest.raises(ArgumentError, match="leaves no room"):
        run.evaluate(target, QUESTIONS, ["pld"], tmp_path, max_new_tokens=target.context)
    with pytest.raises(PromptSetError, match="one number occurs twice"):
        run.evaluate(target, [QUESTIONS[0]] * 2, ["pld"], tmp_path, **SHORT)
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers/ar.jsonl").write_text("{}\n")
    with pytest.raises(ArgumentError, match="answers is there and not a file of specwb eval"):
        run.evaluate(target, QUESTIONS, ["pld"], tmp_path, **SHORT)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"--out: .*out cannot be written, Not a directory"):
        run.evaluate(target, QUESTIONS, ["pld"], tmp_path / "file/out", **SHORT)


def test_a_store_that_no_evaluation_has_written(target, tmp_path):
    run.evaluate(target, QUESTIONS[:1], [], tmp_path, **SHORT)
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE runs SET record = '{}'")
    with pytest.raises(StoreError, match=r"store\.sqlite holds what no evaluation .* no 'choi"):
        run.evaluate(target, QUESTIONS[:1], [], tmp_path, **SHORT)


def test_a_stop_string_ends_an_answer_and_the_decoding(target, answers, tmp_path):
    first = answers["ar"][0]
    words = first.text.split()
    stop = words[4]
    stopped = run.evaluate(target, QUESTIONS[:1], ["pld:gamma=3"], tmp_path, stop=[stop], **SHORT)
    assert "hf_greedy" not in stopped  # the library would write on
    wanted = " ".join(words[: words.index(stop)])
    for turns in stopped.values():
        assert turns[0].text == wanted
        assert turns[0].tokens == first.tokens[: words.index(stop) + 1]
        assert sum(a + 1 for a in turns[0].accepted) == len(turns[0].tokens)


def test_seeds_are_of_question_and_turn(target, tmp_path):
    settings = {"temperature": 1.0, "max_new_tokens": 8, "seed": 3}
    whole = run.evaluate(target, QUESTIONS, ["pld"], tmp_path / "a", **settings)
    last = run.evaluate(target, QUESTIONS[2:], ["pld"], tmp_path / "b", **settings)
    assert last["pld"][0].tokens == whole["pld"][3].tokens
    assert last["hf_sample"][0].tokens == whole["hf_sample"][3].tokens
    other = run.evaluate(target, QUESTIONS[2:], ["pld"], tmp_path / "c", **settings | {"seed": 4})
    assert other["pld"][0].tokens != whole["pld"][3].tokens
    places = [(seed, question, turn) for seed in (0, 1) for question in (1, 11) for turn in (0, 1)]
    assert len({run.turn_seed(*place) for place in places}) == 8


def test_a_conversation_that_outgrows_the_context_ends(target, tmp_path):
    room = target.context - 10
    long = Question(1, "qa", (" ".join(["w5"] * (room - 6)), "w1 w2 w3 w4"))
    turns = run.evaluate(target, [long], [], tmp_path, **SHORT)["ar"]
    assert len(turns) == 1
    assert not turns[0].cut
    longer = replace(long, question_id=2, turns=(long.turns[0] + " w6" * 20,))
    cut = run.evaluate(target, [longer], [], tmp_path, **SHORT)["ar"][0]
    assert cut.cut


def test_the_table_has_every_method_by_subtask_and_overall(target, answers):
    frame = summary.frame(answers, target.tokenizer)
    assert set(frame.subtask) == {"mt_bench", "qa", "text", "overall"}
    assert len(frame) == 3 * 4
    over = frame.attrs["reference"]
    assert (frame[frame.method == over].speedup == 1).all()
    assert (frame.identical == 1).all()
    assert frame[frame.subtask == "qa"].low.isna().all()  # one question has no spread


def test_a_summary_by_hand():
    """Two questions at 1 and 2 tokens/s by this engine, at 2 and 4 by the library's plain decoding,
    and at 4 both by the method."""

    def answers(*seconds: float) -> list[Turn]:
        steps = (0,) * 8
        return [
            Turn(i, "qa", "qa", 0, "w " * 9, tuple(range(8)), s, steps, steps)
            for i, s in enumerate(seconds)
        ]

    told = {"ar": answers(8, 4), "hf_greedy": answers(4, 2), "pld": answers(2, 2)}
    tokenizer = lambda text: SimpleNamespace(input_ids=text.split())  # noqa: E731
    frame = summary.frame(told, tokenizer)
    assert frame.attrs["reference"] == "hf_greedy"
    rows = frame[frame.subtask == "overall"].set_index("method")
    assert rows.tokens_per_second.to_dict() == {"ar": 1.5, "hf_greedy": 3, "pld": 4}
    assert rows.speedup.to_dict() == {"ar": 0.5, "hf_greedy": 1, "pld": 1.5}  # of 2 and 1
    assert rows["speedup.mean_rate"]["pld"] == pytest.approx(4 / 3)


def test_templates_write_fastchats_forms():
    words = tiny.tokenizer(["<unk>", "a"])
    words.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Who?"},
    ]

    def written(name: str, messages=chat) -> str:
        use_template(words, name)
        return words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    vicuna = written("vicuna")
    assert vicuna.startswith("<s>A chat between a curious user and an artificial intelligence")
    assert vicuna.endswith("user's questions. USER: Hi ASSISTANT: Hello</s>USER: Who? ASSISTANT:")
    assert written("llama-2") == "<s>[INST] Hi [/INST] Hello </s><s>[INST] Who? [/INST]"
    # what the model wrote behind "ASSISTANT:" begins with the space that the form has there
    spaced = [chat[0], {"role": "assistant", "content": " Hello"}, chat[2]]
    assert (written("vicuna", spaced), written("llama-2", spaced)) == (vicuna, written("llama-2"))
    system = [{"role": "system", "content": "Be brief."}, *chat[:1]]
    assert written("vicuna", system) == "<s>Be brief. USER: Hi ASSISTANT:"
    wanted = "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]"
    assert written("llama-2", system) == wanted
    with pytest.raises(TemplateError, match="unknown chat template 'alpaca'; known: vicuna"):
        use_template(words, "alpaca")
    with pytest.raises(TemplateError, match="needs a tokenizer"):
        use_template(None, next(iter(TEMPLATES)))


def test_the_command_prints_and_keeps_everything(call, refused, target, tmp_path, monkeypatch):
    file = tmp_path / "q.jsonl"
    kinds = {1: "qa", 2: "qa", 3: "math"}  # one question of a kind has no interval
    rows = [{"question_id": i, "category": x, "turns": [f"w{i} w2"]} for i, x in kinds.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(specwb, "load", lambda *a, **k: target)
    csv = tmp_path / "f.csv"
    arguments = ["evaluate", "--bench", str(file), "--methods", "pld", "--max-new-tokens", "6"]
    records = tmp_path / "requests.json"
    arguments += ["--out", str(tmp_path / "out"), "--csv", str(csv), "--json", str(records)]
    code, printed, said = call(*arguments)
    assert code == 0, said
    assert "overall" in printed
    assert "the faster plain decoding" in printed
    assert "nan" not in printed
    assert len(csv.read_text().splitlines()) == 1 + 3 * 3
    for request in json.loads(records.read_text()):
        assert sum(request["accepted_lengths"].values()) == request["steps"]
    assert len((tmp_path / "out/answers/pld.jsonl").read_text().splitlines()) == 3
    said = refused("evaluate", "--template", "chatml")
    assert "unknown chat template 'chatml'" in said
