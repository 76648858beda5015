"""The server with OpenAI's own client: completions and chats, whole and streamed."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import tiny
from terminal import call
from test_conversation import TEMPLATE

import specwb

openai, uvicorn = pytest.importorskip("openai"), pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
MODEL = "LlamaForCausalLM"
CHAT = [
    {"role": "system", "content": "w40 w41"},
    {"role": "user", "content": [{"type": "text", "text": "w5 w6"}]},
]


@contextmanager
def serving(target, method):
    """A server on a free port of this machine, a client of it, and the target and method."""
    from specwb.serve import Server, listening

    place = listening("127.0.0.1", 0)
    app = Server(target, method, "served.example")
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    address = place.getsockname()
    url = f"http://127.0.0.1:{address[1]}/v1"
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    yield SimpleNamespace(client=client, target=target, method=method, url=url, address=address)
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def served():
    words = tiny.tokenizer(tiny.WORDS)
    words.chat_template = TEMPLATE
    model = tiny.build("llama", seed=3, dtype=tiny.EXACT)
    target = specwb.load(model, tokenizer=words)
    method = specwb.method("sps", target, draft=specwb.load(tiny.perturbed(model, 0.02)), gamma=3)
    with serving(target, method) as found:
        yield found


def test_the_model_is_listed(served):
    assert [model.id for model in served.client.models.list()] == [served.target.name] == [MODEL]
    assert served.client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_completion_is_what_decode_writes(served, temperature):
    how = {"temperature": temperature, "seed": 5}
    wanted = specwb.decode(served.target, "w5 w6 w7", served.method, max_new_tokens=20, **how)
    given = {"model": MODEL, "prompt": "w5 w6 w7", "max_tokens": 20, **how}
    answer = served.client.completions.create(**given)
    assert answer.choices[0].text == wanted.text
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
    assert wanted.text.startswith(" ")
    assert said == wanted.text.removeprefix(" ")  # which belongs to the prompt, in a chat
    messages = [*plain, {"role": "assistant", "content": said}, {"role": "user", "content": "w9"}]
    stream = ask(messages=messages, stream=True, stream_options={"include_usage": True}, **how)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    wanted = specwb.decode(served.target, messages, "ar", max_new_tokens=12)
    assert text == wanted.text.removeprefix(" ")
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 8
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize("text", ["", "  ", " a\n\n b ", "a", "\n a  b\tc\n\n"])
def test_a_message_has_no_spaces_around_it_wherever_pieces_end(text):
    from specwb.serve.server import _message

    for cut in range(len(text) + 1):
        for other in range(cut, len(text) + 1):
            pieces = list(_message([text[:cut], text[cut:other], text[other:]]))
            assert "".join(pieces) == text.strip()
            assert "" not in pieces


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
        (
            {"stop": ["x"] * 33},
            "stop may have 32 texts of at most 500 characters, got 33 of up to 1",
        ),
        ({"stop": "x" * 501}, "stop may have 32 texts .*, got 1 of up to 501"),
        ({"extra_body": {"prompt": [CHAT]}}, "prompt must be a text or token ids, got"),
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
        (
            {"role": "wizard", "content": "w1"},
            "role must be system, developer, user, assistant; got 'wizard'",
        ),
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


JSON = {"Content-Type": "application/json"}


def refused(served, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
    """The status and message with which a request is refused."""
    request = urllib.request.Request(f"{served.url}/{path}", body, headers)
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, timeout=60)
    problem = json.load(answer.value)["error"]
    assert problem["type"] == "invalid_request_error"
    return answer.value.code, problem["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("nowhere", b"{}", 404, "POST /v1/nowhere: Not Found"),
        ("models", b"{}", 405, "POST /v1/models: Method Not Allowed"),
        ("completions", b"{", 400, "the request is not JSON: Expecting"),
        ("completions", b"\xff\xfe\xff", 400, "the request is not JSON: "),
        ("completions", b"[]", 400, "a request is a JSON object"),
        ("completions", b"[" * 10**4, 400, "brackets are nested too deep"),
        ("completions", b'{"x": ' + b"[" * 10**4 + b"]" * 10**4 + b"}", 400, "nested too deep"),
        ("completions", b'{"x": "' + b"y" * 10**4 + b'"}', 400, "x='yyyy"),
    ],
)
def test_every_refusal_is_an_error_that_clients_read(served, path, body, status, named):
    code, message = refused(served, path, body, JSON)
    assert (code, named in message) == (status, True)
    assert len(message) <= 1000


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_request_says_that_it_is_json(served, kind):
    """A page of another site cannot send that without being allowed to."""
    body = json.dumps({"prompt": "w1", "max_tokens": 1}).encode()
    named = (415, f"the content type must be application/json, got {kind!r}")
    assert refused(served, "completions", body, {"Content-Type": kind}) == named
    spaced = {"Content-Type": "Application/JSON; charset=utf-8"}
    request = urllib.request.Request(f"{served.url}/completions", body, spaced)
    assert urllib.request.urlopen(request, timeout=60).status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "["])
def test_a_host_that_is_none_of_the_servers(served, host):
    """As a page of another site would name it whose own name leads to this machine."""
    wanted = (400, f"host {host!r} is none of this server's")
    assert refused(served, "models", None, {"Host": host}) == wanted
    for own in ("localhost", "LOCALHOST:80", "[::1]:8000", "served.example", socket.gethostname()):
        request = urllib.request.Request(f"{served.url}/models", headers={"Host": own})
        assert urllib.request.urlopen(request, timeout=60).status == 200


def test_the_address_that_a_request_came_to_is_the_servers(served):
    """Where it listens at all addresses of its machine, it has no other name for this one."""
    from specwb.serve import Server

    app = Server(served.target, served.method, "0.0.0.0")
    statuses = []

    async def send(message):
        statuses.append(message.get("status"))

    for host in (b"192.0.2.7:80", b"192.0.2.8:80"):
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b""}
        asyncio.run(
            app({**scope, "headers": [(b"host", host)], "server": ("192.0.2.7", 80)}, None, send)
        )
    assert statuses[::2] == [200, 400]


def exchange(served, head: str, *parts: bytes) -> tuple[int, str]:
    """The answer to these bytes, of which the last need not be the request's last."""
    with socket.create_connection(served.address, timeout=20) as line:
        start = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        line.sendall(f"{start}Content-Type: application/json\r\n{head}\r\n\r\n".encode())
        for part in parts:
            line.sendall(part)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status, answer.read().decode()


def test_a_request_that_no_context_needs_is_refused_before_it_is_read(served):
    most = 2**16 + 32 * 512
    status, content = exchange(served, f"Content-Length: {most + 1}")
    assert status == 413
    assert f"a request may have {most} bytes with a context of 512 tokens" in content
    # one that does not say how long it is is read as far as the limit, and never ends here
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    assert exchange(served, "Transfer-Encoding: chunked", chunk, chunk, chunk)[0] == 413
    body = json.dumps({"prompt": "w1", "max_tokens": 1}).encode().ljust(most)
    assert exchange(served, f"Content-Length: {most}", body)[0] == 200


ASKING_FOR_NOTHING = {
    **{"logit_bias": {}, "tools": [], "functions": [], "store": False, "metadata": {}},
    **{"service_tier": "auto", "modalities": ["text"], "top_logprobs": 0, "min_p": 0},
    **{"repetition_penalty": 1.0, "min_tokens": 0, "ignore_eos": False, "suffix": ""},
}


def test_values_that_ask_for_nothing_are_taken(served):
    given = {"model": MODEL, "prompt": "w5 w6 w7", "max_tokens": 4, "temperature": 0}
    wanted = served.client.completions.create(**given).choices[0].text
    answer = served.client.completions.create(**given, extra_body=ASKING_FOR_NOTHING)
    assert answer.choices[0].text == wanted
    asking = {
        "logit_bias": {"1": 5},
        "tools": [{}],
        "min_p": 0.1,
        "ignore_eos": True,
        "suffix": "x",
    }
    for name, value in asking.items():
        with pytest.raises(openai.BadRequestError, match=f"{name}=.* is not offered"):
            served.client.completions.create(**given, extra_body={name: value})


def test_a_developer_is_the_system(served):
    how = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    developer = [{**CHAT[0], "role": "developer"}, CHAT[1]]
    answers = [
        served.client.chat.completions.create(messages=messages, **how)
        for messages in (CHAT, developer, CHAT[1:])
    ]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_client_has_gone_ends(served, monkeypatch, stream):
    """Between two steps, and before the first where others were before it."""
    from specwb.serve import jobs, server

    counts: list[int] = []
    decoded, goes_on = jobs.rounds, threading.Event()

    def gated(*arguments, **settings):
        counts.append(0)
        return counted(len(counts) - 1, decoded(*arguments, **settings))

    def counted(number, steps):
        for step in steps:
            counts[number] += 1
            yield step
            assert goes_on.wait(60)

    def wait_for(condition) -> None:
        deadline = time.monotonic() + 60
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)

    def kept(*arguments):
        made.append(build(*arguments))
        return made[-1]

    made, build = [], server.job
    monkeypatch.setattr(server, "job", kept)
    monkeypatch.setattr(jobs, "rounds", gated)
    fields = {"prompt": "w5 w6 w7", "max_tokens": 400, "stream": stream}
    body = json.dumps(fields).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    lines = []
    for others in range(4):
        lines.append(socket.create_connection(served.address, timeout=60))
        lines[-1].sendall(head + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for(lambda others=others: len(made) > others and counts[0] == 1)
    for line in lines:
        line.close()
    wait_for(lambda: all(job.gone.is_set() for job in made))
    goes_on.set()
    answer = served.client.completions.create(model=MODEL, prompt="w1", max_tokens=2)
    assert answer.usage.completion_tokens == 2
    # the step that was under way when they left is the last
    assert counts[:4] == [2, 0, 0, 0]
    assert len(counts) == 5


def test_a_failure_of_the_server_is_an_error_that_clients_read(served, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("specwb.serve.jobs.rounds", fail)
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


PROGRAM = """
import asyncio, os, signal, socket, time
from concurrent.futures import ThreadPoolExecutor

from specwb.commands.serve import interruptible

pool = ThreadPoolExecutor(1)

async def app(scope, receive, send):
    if scope["type"] == "http":
        print("asked", flush=True)
        while scope["path"] == "/first" and not web.should_exit:
            await asyncio.sleep(0.01)
        if scope["path"] == "/first":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"whole"})
            return
        await asyncio.get_running_loop().run_in_executor(pool, time.sleep, 3600)

place = socket.create_server(("127.0.0.1", 0))
web = interruptible(app)
print(place.getsockname()[1], flush=True)
if INTERRUPTED:
    os.kill(os.getpid(), signal.SIGINT)
web.run(sockets=[place])
"""


@pytest.fixture
def program(request):
    """A server of a request that is answered after an interrupt, and of others that take an
    hour; and its port."""
    source = PROGRAM.replace("INTERRUPTED", str(request.param))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", source], **pipes) as running:
        yield running, int(running.stdout.readline())
        running.kill()


@pytest.mark.parametrize("program", [True], indirect=True)
def test_an_interrupt_right_after_the_address_was_printed(program):
    running, _ = program
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("program", [False], indirect=True)
def test_two_interrupts_end_the_server_whatever_it_does(program):
    running, port = program
    lines = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2)]
    for line, path in zip(lines, (b"first", b"never"), strict=True):
        line.sendall(b"GET /" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert running.stdout.readline() == "asked\n"
    running.send_signal(signal.SIGINT)
    assert "Ctrl-C again ends them" in running.stderr.readline()
    answer = http.client.HTTPResponse(lines[0])  # which still comes
    answer.begin()
    assert answer.read() == b"whole"
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    for line in lines:
        line.close()
