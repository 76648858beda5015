"""The figures by name, on steps counted by hand; files of Spec-Bench and vLLM, there and back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from specwb.lab.harness import record, spec_bench
from specwb.lab.harness.record import CONVENTIONS, Turn
from specwb.lab.harness.spec_bench import AnswersError
from specwb.models.questions import Question


def turn(question: int, accepted, drafted, seconds: float = 1.0, number: int = 0) -> Turn:
    tokens = tuple(range(sum(accepted) + len(accepted)))
    tested = tuple(min(d, a + 1) for a, d in zip(accepted, drafted, strict=True))
    text = " ".join(map(str, tokens))
    return Turn(
        question, "qa", "qa", number, text, tokens, seconds, tuple(accepted), tested, tuple(drafted)
    )


# six steps, five of them drafts: 3 + 0 + 1 and 2 + 2 + (nothing drafted)
TURNS = [turn(1, (3, 0, 1), (3, 3, 3)), turn(2, (2, 2, 0), (3, 2, 0), 3.0)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean_accept_length", 14 / 6),
        ("mean_accept_length_per_request", ((4 / 3 + 1) + (4 / 3 + 1)) / 2),
        ("accepted_drafts_per_step", 8 / 6),
        ("accepted_drafts_per_request", 4 / 3),
        ("mean_acceptance_length", 1 + 8 / 5),
        ("draft_acceptance_rate", 8 / 14),
    ],
)
def test_conventions(name, value):
    assert CONVENTIONS[name].compute(TURNS) == pytest.approx(value)


def test_acceptance_by_position():
    assert record.marginal(TURNS) == pytest.approx([4 / 5, 3 / 5, 1 / 5])
    # tested: 3, 1, 2, 3, 2, 0
    assert record.conditional(TURNS) == pytest.approx([4 / 5, 3 / 4, 1 / 2])
    product = 1.0
    for share in record.conditional([turn(1, (3, 0, 1), (3, 3, 3))]):
        product *= share
    assert product == pytest.approx(record.marginal(TURNS[:1])[-1])  # all drafts of one length


def test_answers_there_and_back(tmp_path):
    path = tmp_path / "m.jsonl"
    two = [turn(5, (1, 0), (2, 2)), turn(5, (2,), (2,), number=1)]
    line = spec_bench.line(two, "lab", Question(5, "qa", ("a", "b")))
    path.write_text(json.dumps(line))
    assert spec_bench.read(path) == two
    choice = line["choices"][0]
    assert choice["accept_lengths"] == [2, 1, 3]
    assert choice["decoding_steps"] == [2, 1]
    assert choice["new_tokens"] == [3, 3]
    assert set(line) >= {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}


def test_spec_benchs_own_files_are_read(tmp_path):
    path = tmp_path / "m.jsonl"
    choice = {
        "index": 0,
        "turns": ["a b", "c"],
        "idxs": [2, 1],
        "new_tokens": [5, 2],
        "wall_time": [1.0, 1.0],
        "accept_lengths": [3, 2, 2],
    }
    old = {"question_id": 1, "category": "qa", "choices": [{**choice, "new_tokens": [9, 9]}]}
    new = {"question_id": 1, "category": "qa", "choices": [choice]}
    path.write_text(json.dumps(old) + "\n" + json.dumps(new) + "\n")
    turns = spec_bench.read(path)  # the last answer to a question counts
    assert [t.accepted for t in turns] == [(2, 1), (1,)]
    assert [len(t.tokens) for t in turns] == [5, 2]
    assert CONVENTIONS["mean_accept_length"].compute(turns) == pytest.approx(7 / 3)
    rate = CONVENTIONS["draft_acceptance_rate"].compute(turns)
    assert rate != rate  # nobody said what was drafted
    with pytest.raises(ValueError, match="do not say what was drafted"):
        record.counters(turns)
    tokenizer = lambda text: SimpleNamespace(input_ids=["<s>", *text.split()])  # noqa: E731
    own = spec_bench.metrics(turns, turns, tokenizer)
    assert own["mean_accepted_tokens"] == pytest.approx(7 / 3)
    assert own["tokens_per_second"] == pytest.approx(3.5)
    assert own["speedup"] == pytest.approx(3.5 / 1.5)  # the baseline's tokens are counted anew


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "line 1 is no answer"),
        ("no json\n", "line 1 is no answer"),
        ('{"question_id": 1}\n', "answer 1 is not in Spec-Bench's form"),
        (
            '{"question_id": 1, "category": "qa", "choices": [{"turns": ["a"], "idxs": [5], '
            '"new_tokens": [5], "wall_time": [1], "accept_lengths": [1]}]}\n',
            "1 accept_lengths for 5 decoding_steps",
        ),
    ],
)
def test_files_in_another_form_are_refused(tmp_path, content, message):
    path = tmp_path / "m.jsonl"
    path.write_text(content)
    with pytest.raises(AnswersError, match=message):
        spec_bench.read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AnswersError, match="No such file"):
        spec_bench.read(tmp_path / "none.jsonl")
