"""The server with OpenAI's own client: completions and chats, whole and streamed."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
import tiny
from terminal import call
from test_conversation import TEMPLATE, WORDS

import specwb

openai, uvicorn = pytest.importorskip("openai"), pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
MODEL = "LlamaForCausalLM"
CHAT = [
    {"role": "system", "content": "w40 w41"},
    {"role": "user", "content": [{"type": "text", "text": "w5 w6"}]},
]


@pytest.fixture(scope="module")
def served():
    """A server on a free port of this machine, a client of it, and the target and method."""
    from specwb.serve import Server, listening

    words = tiny.tokenizer(WORDS)
    words.chat_template = TEMPLATE
    model = tiny.build("llama", seed=3, dtype=tiny.EXACT)
    target = specwb.load(model, tokenizer=words)
    method = specwb.method("sps", target, draft=specwb.load(tiny.perturbed(model, 0.02)), gamma=3)
    place = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(Server(target, method).app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    url = f"http://127.0.0.1:{place.getsockname()[1]}/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    yield SimpleNamespace(client=client, target=target, method=method, url=url)
    server.should_exit = True
    thread.join(30)


def test_the_model_is_listed(served):
    assert [model.id for model in served.client.models.list()] == [served.target.name] == [MODEL]
    assert served.client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_completion_is_what_decode_writes(served, temperature):
    how = {"temperature": temperature, "seed": 5}
    wanted = specwb.decode(served.target, "w5 w6 w7", served.method, max_new_tokens=20, **how)
    given = {"model": MODEL, "prompt": "w5 w6 w7", "max_tokens": 20, **how}
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
    how = {"model": MODEL, "max_completion_tokens": 12, "temperature": 0}
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
    given = {"model": MODEL, "prompt": "w5 w6 w7", "temperature": 0}
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
        given = {"model": MODEL, "prompt": f"w{i} w6", "max_tokens": 16, "temperature": 0}
        found[i] = served.client.completions.create(**given).choices[0].text.strip()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, text in found.items():
        assert text == specwb.decode(served.target, f"w{i} w6", "ar", max_new_tokens=16).text
    assert len(found) == 5


def test_more_streams_at_once_than_the_server_has_threads(served):
    """Those that wait must not use up what the one that is answered needs."""
    found: list[str] = []

    def ask(i: int) -> None:
        given = {"model": MODEL, "prompt": f"w{i % 30} w6", "max_tokens": 3, "temperature": 0}
        pieces = served.client.completions.create(stream=True, **given)
        found.append("".join(piece.choices[0].text for piece in pieces))

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 48


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
        ({"max_tokens": 0}, "max_tokens must be an integer >= 1, got 0"),
        ({"stop": [""]}, "stop has an empty text"),
        ({"stop": 5}, "stop must be a text or texts, got 5"),
        ({"prompt": None}, "prompt must be a text or token ids, got None"),
        ({"prompt": "w1 " * 600}, "600 tokens, which leaves no room in a context of 512"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"stream_options": {"x": 1}}, "stream_options can have include_usage"),
        ({"extra_body": {"stream": "yes"}}, "stream must be true or false, got 'yes'"),
        ({"extra_body": {"messages": CHAT}}, "messages=.* is not offered"),
    ],
)
def test_what_is_not_offered_is_refused(served, fields, named):
    given = {"model": MODEL, "prompt": "w1", "max_tokens": 4, **fields}
    with pytest.raises(openai.BadRequestError, match=named):
        served.client.completions.create(**given)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "wizard", "content": "w1"}, "role must be system, user, assistant; got 'wizard'"),
        ({"role": "tool", "content": "w1"}, "role must be .*; got 'tool'"),
        ({"content": "w1"}, "role must be .*; got None"),
        ({"role": "user"}, "needs a role and text as content"),
        ({"role": "user", "content": [{"type": "text"}]}, "needs a role and text as content"),
        ({"role": "user", "content": ["w1"]}, "only text can be read"),
        (
            {"role": "user", "content": "w1", "name": "Ada"},
            "name='Ada' of a message is not offered",
        ),
    ],
)
def test_a_message_that_is_not_understood_is_refused(served, message, named):
    with pytest.raises(openai.BadRequestError, match=named):
        served.client.chat.completions.create(model=MODEL, messages=[message], max_tokens=2)


def test_another_model_is_none_of_this_server(served):
    for asked in (
        lambda: served.client.completions.create(model="any", prompt="w1", max_tokens=2),
        lambda: served.client.chat.completions.create(model="any", messages=CHAT, max_tokens=2),
        lambda: served.client.models.retrieve("any/thing"),
    ):
        with pytest.raises(openai.NotFoundError, match="is not served here, 'Llama") as refused:
            asked()
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("nowhere", b"{}", 404, "POST /v1/nowhere: Not Found"),
        ("models", b"{}", 405, "POST /v1/models: Method Not Allowed"),
        ("completions", b"{", 400, "the request is no JSON: Expecting"),
        ("completions", b"\xff\xfe\xff", 400, "the request is no JSON: "),
        ("completions", b"[]", 400, "a request is a JSON object"),
    ],
)
def test_every_refusal_is_an_error_that_clients_read(served, path, body, status, named):
    request = urllib.request.Request(f"{served.url}/{path}", body)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    problem = json.load(refused.value)["error"]
    assert (refused.value.code, problem["type"]) == (status, "invalid_request_error")
    assert named in problem["message"]


def test_a_failure_of_the_server_is_an_error_that_clients_read(served, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("specwb.serve.rounds", fail)
    with pytest.raises(openai.InternalServerError, match="RuntimeError: out of luck"):
        served.client.completions.create(model=MODEL, prompt="w1", max_tokens=2)


@pytest.mark.parametrize("host", ["taken", "no.such.host.invalid", "192.0.2.1", "a" * 300])
def test_serve_says_at_once_that_it_cannot_listen(monkeypatch, capsys, host):
    from specwb.serve import listening

    with listening("127.0.0.1", 0) as other:
        port = str(other.getsockname()[1])
        address = "127.0.0.1" if host == "taken" else host
        monkeypatch.setattr(specwb, "load", lambda *_, **__: pytest.fail("it began to load"))
        code, out, err = call(monkeypatch, capsys, "serve", "--host", address, "--port", port)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot listen at '{address}', port {port}: ")
    assert err.count("\n") == 1
