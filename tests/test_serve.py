"""The server with OpenAI's own client: completions and chats, whole and streamed."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import tiny
from test_conversation import TEMPLATE, WORDS

import specwb

openai, uvicorn = pytest.importorskip("openai"), pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
CHAT = [
    {"role": "system", "content": "w40 w41"},
    {"role": "user", "content": [{"type": "text", "text": "w5 w6"}]},
]


@pytest.fixture(scope="module")
def served():
    """A server on a free port of this machine, a client of it, and the target and method."""
    from specwb.serve import Server

    words = tiny.tokenizer(WORDS)
    words.chat_template = TEMPLATE
    model = tiny.build("llama", seed=3, dtype=tiny.EXACT)
    target = specwb.load(model, tokenizer=words)
    method = specwb.method("sps", target, draft=specwb.load(tiny.perturbed(model, 0.02)), gamma=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"host": "127.0.0.1", "port": port, "log_level": "warning"}
    server = uvicorn.Server(uvicorn.Config(Server(target, method).app, **settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    url = f"http://127.0.0.1:{port}/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    yield SimpleNamespace(client=client, target=target, method=method)
    server.should_exit = True
    thread.join(30)


def test_the_model_is_listed(served):
    assert [model.id for model in served.client.models.list()] == [served.target.name]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_completion_is_what_decode_writes(served, temperature):
    how = {"temperature": temperature, "seed": 5}
    wanted = specwb.decode(served.target, "w5 w6 w7", served.method, max_new_tokens=20, **how)
    given = {"model": "any", "prompt": "w5 w6 w7", "max_tokens": 20, **how}
    answer = served.client.completions.create(**given)
    assert answer.choices[0].text.strip() == wanted.text
    assert answer.usage.completion_tokens == len(wanted.tokens[0])
    assert answer.usage.prompt_tokens == 3
    report = answer.specwb
    assert report["method"] == served.method.key
    assert report["exactness"] == "lossless"
    assert report["accepted_lengths"] == wanted.accepted_lengths[0]
    assert report["mean_tokens_per_step"] == wanted.mean_tokens_per_step
    pieces = list(served.client.completions.create(stream=True, **given))
    assert "".join(p.choices[0].text for p in pieces) == answer.choices[0].text
    assert len(pieces) > 3
    assert pieces[-1].specwb == report
    assert pieces[-1].choices[0].finish_reason == answer.choices[0].finish_reason


def test_a_chat_goes_on_from_what_was_computed(served):
    ask = served.client.chat.completions.create
    how = {"model": "any", "max_completion_tokens": 12, "temperature": 0}
    first = ask(messages=CHAT, **how)
    said = first.choices[0].message.content
    plain = [CHAT[0], {"role": "user", "content": "w5 w6"}]
    wanted = specwb.decode(served.target, plain, "ar", max_new_tokens=12)
    assert said.strip() == wanted.text
    messages = [*plain, {"role": "assistant", "content": said}, {"role": "user", "content": "w9"}]
    stream = ask(messages=messages, stream=True, stream_options={"include_usage": True}, **how)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text.strip() == specwb.decode(served.target, messages, "ar", max_new_tokens=12).text
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 8
    assert chunks[0].choices[0].delta.role == "assistant"


def test_stop_texts_are_not_sent(served):
    given = {"model": "any", "prompt": "w5 w6 w7", "temperature": 0}
    free = served.client.completions.create(max_tokens=20, **given).choices[0]
    assert free.finish_reason == "length"
    words = free.text.split()
    stop = f"{words[3]} {words[4]}"
    wanted = free.text[: free.text.index(stop)]
    answer = served.client.completions.create(max_tokens=20, stop=stop, **given).choices[0]
    assert (answer.text, answer.finish_reason) == (wanted, "stop")
    pieces = served.client.completions.create(max_tokens=20, stop=[stop], stream=True, **given)
    assert "".join(p.choices[0].text for p in pieces) == wanted


def test_requests_that_come_together_are_answered_one_by_one(served):
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        given = {"model": "any", "prompt": f"w{i} w6", "max_tokens": 16, "temperature": 0}
        found[i] = served.client.completions.create(**given).choices[0].text.strip()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, text in found.items():
        assert text == specwb.decode(served.target, f"w{i} w6", "ar", max_new_tokens=16).text
    assert len(found) == 5


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 2}, "n=2 is not offered"),
        ({"logprobs": 3}, "logprobs=3 is not offered"),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5 is not offered"),
        ({"prompt": ["w1", "w2"]}, "2 prompts in one request"),
        ({"prompt": ""}, "prompt 0 is empty"),
        ({"max_tokens": 10**6}, "exceeds the context"),
        ({"temperature": -1}, "temperature must be"),
        ({"stop": [""]}, "stop must be texts"),
    ],
)
def test_what_is_not_offered_is_refused(served, fields, named):
    given = {"model": "any", "prompt": "w1", "max_tokens": 4, **fields}
    with pytest.raises(openai.BadRequestError, match=named):
        served.client.completions.create(**given)
