"""What smol's heads were trained on: no prompt of an evaluation is in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.train_heads import fingerprint, requests
from specwb.core import files
from specwb.models.load import data_dir
from specwb.models.questions import OFFICIAL, load_prompts

SEEN = data_dir() / "smol" / "requests.txt"


def test_requests_of_a_file(tmp_path):
    talk = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two?"},
        {"role": "user", "content": "Three?"},
        {"role": "assistant", "content": "Four"},
    ]
    lines = [{"messages": talk}, {"messages": talk[:2]}, {"text": "Five?"}]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert requests(path) == sorted(map(fingerprint, ["One?", "Three?"]))


@pytest.mark.skipif(not SEEN.is_file(), reason="no heads of smol are shipped yet")
@pytest.mark.parametrize("name", ["chat", "lab", "tune", *OFFICIAL])
def test_no_prompt_of_an_evaluation_was_trained_on(name):
    if name in OFFICIAL and not Path(os.environ.get("SPECWB_DATA", "")).is_dir():
        pytest.skip("the official prompts are not at hand (SPECWB_DATA)")
    try:
        questions = load_prompts(name)
    except files.DataError as error:
        pytest.skip(str(error))
    seen = set(SEEN.read_text().split())
    assert len(seen) > 500
    assert not [q.question_id for q in questions if {fingerprint(t) for t in q.turns} & seen]
