"""A server with OpenAI's completions and chat endpoints, to try a method with clients that exist.

One request is decoded at a time and others wait; nobody is asked who they are. It is for trying
things out on one's own machine and no production server.

Source: the API reference of OpenAI, "Completions" and "Chat Completions". Differs from it in: what
is not offered is refused and not ignored, and answers have a field ``specwb``.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specwb.decoding import rounds
from specwb.drafters.past import Past
from specwb.errors import SpecwbError
from specwb.extras import require
from specwb.flow import Step
from specwb.inputs import integer, read_prompts, real
from specwb.methods import Method
from specwb.models.target import Target
from specwb.stops import stop_texts
from specwb.streaming import Stream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

READ = {
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "user",
}
"""Fields of a request that are read, or that change no answer."""
NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "echo": False,
    "logprobs": False,
    "parallel_tool_calls": True,
    "tool_choice": "none",
    "response_format": {"type": "text"},
}
"""Fields that are taken with these values, which ask for nothing, or with null."""
ROLES = ("system", "user", "assistant")
"""Of the messages that are understood; there are no tools."""


class RequestError(SpecwbError, ValueError):
    """A request that is not understood or asks for what is not offered."""


class UnknownModel(RequestError):
    """A request for another model than the one that is served."""


class AddressError(SpecwbError, ValueError):
    """An address that cannot be listened at."""


@dataclass
class Job:
    """A request that has been checked.

    Attributes:
        ids: the prompt's token ids.
        steps: its decoding, not begun yet.
        stop: texts that end the answer.
        seed: of the sampling.
        is_chat: it came to the chat endpoint.
        streamed: the answer is sent while it is decoded.
        counted: a streamed answer ends with its token counts.
    """

    ids: list[int]
    steps: Iterator[Step]
    stop: tuple[str, ...]
    seed: int
    is_chat: bool
    streamed: bool
    counted: bool


class Server:
    """Answers requests with a target and a method, one at a time.

    What the last request left in the caches is used by one that begins with the same tokens, as
    the next turn of a chat does.

    Args:
        target: with a tokenizer.
        method: built for the target.

    Attributes:
        app: the ASGI application.

    Raises:
        MissingExtra: the extra ``serve`` is not installed.
        RequestError: the target has no tokenizer.
    """

    def __init__(self, target: Target, method: Method) -> None:
        require("specwb.serve", "serve", "starlette", "uvicorn")
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        if target.tokenizer is None:
            raise RequestError(f"{target.name!r} has no tokenizer; requests are text")
        self.target, self.method = target, method
        # all decodings are in one thread, in the order in which they came: those that wait hold
        # none of the threads that the one whose turn it is needs
        self._decoding = ThreadPoolExecutor(1, "specwb-serve")
        self._past, self._began = Past(), int(time.time())
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {HTTPException: _no_route, Exception: _broken}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def _card(self) -> dict[str, Any]:
        one = {"id": self.target.name, "object": "model", "created": self._began}
        return {**one, "owned_by": "specwb"}

    async def _models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            self._check_model(request.path_params["model"])
        except UnknownModel as error:
            return _refusal(str(error), 404, "model_not_found", "model")
        return JSONResponse(self._card())

    def _check_model(self, name: object) -> None:
        """Checks that a request means the model that is served.

        Raises:
            UnknownModel: it means another one.
        """
        if name is not None and name != self.target.name:
            raise UnknownModel(f"model {name!r} is not served here, {self.target.name!r} is")

    async def _completions(self, request: Request) -> Response:
        return await self._respond(request, False)

    async def _chat(self, request: Request) -> Response:
        return await self._respond(request, True)

    async def _respond(self, request: Request, is_chat: bool) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse, StreamingResponse

        try:
            body = await request.json()
            job = await run_in_threadpool(self.job, body, is_chat)
            if job.streamed:
                return StreamingResponse(self._sent(job), media_type="text/event-stream")
            loop = asyncio.get_running_loop()
            return JSONResponse(await loop.run_in_executor(self._decoding, self._whole, job))
        except UnknownModel as error:
            return _refusal(str(error), 404, "model_not_found", "model")
        except SpecwbError as error:
            return _refusal(str(error), 400)
        except ValueError as error:  # of the JSON's reader, which may also meet wrong bytes
            return _refusal(f"the request is no JSON: {error}", 400)

    def job(self, body: Any, is_chat: bool) -> Job:
        """Checks a request.

        Raises:
            UnknownModel: another model than the one that is served.
            RequestError: a field that is unknown, or asks for what is not offered.
            SpecwbError: a value that cannot be decoded with.
        """
        if not isinstance(body, dict):
            raise RequestError("a request is a JSON object")
        self._check_model(body.get("model"))
        other = "prompt" if is_chat else "messages"
        for name, value in body.items():
            unread = name not in READ or name == other
            if unread and value is not None and value != NEUTRAL.get(name):
                raise RequestError(f"{name}={value!r} is not offered by this server")
        prompt = self._messages(body.get("messages")) if is_chat else body.get("prompt")
        is_prompt = isinstance(prompt, list) and not any(isinstance(x, dict) for x in prompt)
        if not (is_chat or is_prompt or isinstance(prompt, str)):
            raise RequestError(f"prompt must be a text or token ids, got {prompt!r}")
        rows, single = read_prompts(self.target, prompt)  # type: ignore[arg-type]
        if not single and len(rows) > 1:
            raise RequestError(f"{len(rows)} prompts in one request; this server takes one")
        (ids,) = rows
        room = self.target.context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, which leaves no room in a context of "
                f"{self.target.context}"
            )
        limit = room if is_chat else min(16, room)
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name) is not None:
                limit = integer(name, body[name], 1)
        if limit > room:
            raise RequestError(
                f"max_tokens={limit} after {len(ids)} tokens of the prompt exceeds the context, "
                f"{self.target.context}"
            )
        seed = body.get("seed")
        seed = random.getrandbits(60) if seed is None else integer("seed", seed, 0)
        stop = stop_texts(body.get("stop"), "stop", "a text or texts")
        steps = rounds(
            self.target,
            [ids],
            self.method,
            max_new_tokens=limit,
            temperature=real("temperature", _given(body, "temperature", 1.0)),
            top_p=real("top_p", _given(body, "top_p", 1.0)),
            top_k=integer("top_k", _given(body, "top_k", 0), 0),
            seed=seed,
            until=stop,
            past=self._past,
        )
        extra = _given(body, "stream_options", {})
        if not isinstance(extra, dict) or set(extra) - {"include_usage", "include_obfuscation"}:
            raise RequestError(f"stream_options can have include_usage, got {extra!r}")
        counted = _switch("include_usage", extra.get("include_usage"))
        return Job(ids, steps, stop, seed, is_chat, _switch("stream", body.get("stream")), counted)

    def _messages(self, messages: Any) -> list[dict[str, Any]]:
        """Messages whose content is text, also where it came in parts."""
        if not isinstance(messages, list) or not messages:
            raise RequestError("messages must be a list of messages")
        read = []
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list):
                texts = [
                    part.get("text")
                    for part in content
                    if isinstance(part, dict) and part.get("type") == "text"
                ]
                if len(texts) < len(content):
                    raise RequestError("only text can be read, no images, sound or files")
                read_texts = [text for text in texts if isinstance(text, str)]
                content = "".join(read_texts) if len(read_texts) == len(texts) else None
            if not isinstance(content, str):
                raise RequestError(f"a message needs a role and text as content, got {message!r}")
            role = message.get("role")
            if role not in ROLES:
                raise RequestError(f"a message's role must be {', '.join(ROLES)}; got {role!r}")
            for name, value in message.items():
                if name not in ("role", "content") and value:  # clients send back empty ones
                    raise RequestError(f"{name}={value!r} of a message is not offered")
            read.append({"role": role, "content": content})
        return read

    def _pieces(self, job: Job, report: dict[str, Any]) -> Iterator[str]:
        """The answer's text, piece by piece; fills in what is told of it when it is complete."""
        fresh: list[str] = []
        tokenizer = self.target.tokenizer
        stream = Stream(tokenizer, job.ids, lambda piece, _: fresh.append(piece), job.stop)
        accepted: list[int] = []
        state = None
        for step in job.steps:
            state, n = step.state, int(step.verdict.count[0])
            assert step.verdict.emitted is not None
            accepted.append(n - 1)
            stream(0, step.verdict.emitted[0, :n].tolist(), n - 1)
            yield from fresh
            fresh.clear()
        stream.close()
        yield from fresh
        reused = self._past.reused
        assert state is not None
        count = len(stream.ids)
        ended = stream.ids[-1] in self.target.eos or count < int(state.limit[0] - state.start[0])
        stopped = any(one in tokenizer.decode(stream.ids) for one in job.stop)
        report["finish_reason"] = "stop" if ended or stopped else "length"
        report["usage"] = {
            "prompt_tokens": len(job.ids),
            "completion_tokens": count,
            "total_tokens": len(job.ids) + count,
            "prompt_tokens_details": {"cached_tokens": reused},
        }
        report["specwb"] = {
            "method": self.method.key,
            "exactness": self.method.exactness.value,
            "steps": len(accepted),
            "mean_tokens_per_step": count / len(accepted),
            "accepted_lengths": accepted,
            "seed": job.seed,
        }

    def _whole(self, job: Job) -> dict[str, Any]:
        report: dict[str, Any] = {}
        text = "".join(self._pieces(job, report))
        choice: dict[str, Any] = {"index": 0, "finish_reason": report.pop("finish_reason")}
        said = (
            {"message": {"role": "assistant", "content": text}} if job.is_chat else {"text": text}
        )
        return {**self._head(job), "choices": [{**choice, **said, "logprobs": None}], **report}

    async def _sent(self, job: Job) -> AsyncIterator[str]:
        """The events as they come from the thread that decodes; a reader that goes away ends it."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        gone = threading.Event()

        def decode() -> None:
            try:
                with closing(self._events(job)) as made:  # type: ignore[type-var]
                    while not gone.is_set() and (event := next(made, None)) is not None:
                        loop.call_soon_threadsafe(events.put_nowait, event)
            finally:
                loop.call_soon_threadsafe(events.put_nowait, None)

        done = loop.run_in_executor(self._decoding, decode)
        try:
            while (event := await events.get()) is not None:
                yield event
            await done
        finally:
            gone.set()

    def _events(self, job: Job) -> Iterator[str]:
        """The answer as server-sent events."""
        report: dict[str, Any] = {}
        head = self._head(job, ".chunk" if job.is_chat else "")

        def event(content: dict[str, Any], reason: str | None = None, **more: Any) -> str:
            choice = {"index": 0, "finish_reason": reason, "logprobs": None, **content}
            return f"data: {json.dumps({**head, 'choices': [choice], **more})}\n\n"

        if job.is_chat:
            yield event({"delta": {"role": "assistant", "content": ""}})
        try:
            for piece in self._pieces(job, report):
                if piece:
                    yield event({"delta": {"content": piece}} if job.is_chat else {"text": piece})
        except SpecwbError as error:  # the answer has begun: its status cannot be changed any more
            problem = {"message": str(error), "type": "server_error"}
            yield f"data: {json.dumps({'error': problem})}\n\n"
            return
        usage = report.pop("usage")
        last: dict[str, Any] = {"delta": {}} if job.is_chat else {"text": ""}
        yield event(last, report["finish_reason"], specwb=report["specwb"])
        if job.counted:
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    def _head(self, job: Job, chunk: str = "") -> dict[str, Any]:
        kind = f"chat.completion{chunk}" if job.is_chat else "text_completion"
        name = f"{'chatcmpl' if job.is_chat else 'cmpl'}-{uuid.uuid4().hex[:24]}"
        model = self.target.name
        return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address: whoever asks before the server runs, waits.

    Args:
        host: a name or address of this machine.
        port: 0 is any that is free.

    Raises:
        AddressError: the address is taken or none of this machine's.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:  # a name that is none is an error of its encoding
        why = getattr(error, "strerror", None) or error
        raise AddressError(f"cannot listen at {host!r}, port {port}: {why}") from error


def _refusal(message: str, status: int, code: str | None = None, param: str | None = None) -> Any:
    """An error in the form that OpenAI's clients read."""
    from starlette.responses import JSONResponse

    kind = "invalid_request_error" if status < 500 else "server_error"
    problem = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": problem}, status)


def _no_route(request: Request, error: Any) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _refusal(message, error.status_code)


def _broken(request: Request, error: Exception) -> Response:
    return _refusal(f"{type(error).__name__}: {error}", 500)


def _switch(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {value!r}")
    return bool(value)


def _given(body: dict[str, Any], name: str, default: Any) -> Any:
    value = body.get(name)
    return default if value is None else value
