"""The server: routes, the one thread that decodes, and what is refused before a request is read."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specwb.drafters.past import Past
from specwb.errors import SpecwbError
from specwb.extras import require
from specwb.files import from_json
from specwb.methods import Method
from specwb.models.target import Target
from specwb.serve.jobs import Job, RequestError, check_model, job
from specwb.streaming import Stream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

BYTES, TOKEN_BYTES = 2**16, 32
"""Bytes that a request may have, and those that each token of the context adds. A token of English
has about four; one of another script seldom has more than five characters, of six bytes each where
JSON escapes them."""
MESSAGE_SIZE = 1000  # characters of an error: what was sent is not sent back whole


class AddressError(SpecwbError, ValueError):
    """An address that cannot be listened at."""


class Abandoned(SpecwbError, ConnectionError):
    """Nobody waits for the answer any more."""


class Server:
    """An ASGI application that answers requests with a target and a method, one at a time.

    The caches that the last request left are used by one that begins with the same tokens, as the
    next turn of a chat does.

    A page in a browser can send requests to this machine too, so they must name a host that is this
    one's (``host``, a name of the local host, or the address that they came to) and say that they
    are JSON, which a page of another site cannot.
    """

    def __init__(self, target: Target, method: Method, host: str = "localhost") -> None:
        require("specwb.serve", "serve", "starlette", "uvicorn")
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        if target.tokenizer is None:
            raise RequestError(f"{target.name!r} has no tokenizer; requests are text")
        self.target, self.method = target, method
        self.most = BYTES + TOKEN_BYTES * target.context
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
        self._routed = Starlette(routes=routes, exception_handlers=handlers)
        self.hosts = {"localhost", "127.0.0.1", "::1", socket.gethostname().lower(), host.lower()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Routes a request, and refuses one to a host that is none of this server's.

        A page of another site can let its own name lead to this machine's address, and would then
        read the answers as its own.
        """
        answer: Any = self._routed
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            try:
                name = urlsplit(f"//{given}").hostname
            except ValueError:
                name = None
            if name not in self.hosts | {(scope.get("server") or [None])[0]}:
                answer = _refusal(RequestError(f"host {given!r} is none of this server's"))
        await answer(scope, receive, send)

    def _card(self) -> dict[str, Any]:
        one = {"id": self.target.name, "object": "model", "created": self._began}
        return {**one, "owned_by": "specwb"}

    async def _models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            check_model(self.target, request.path_params["model"])
        except RequestError as error:
            return _refusal(error)
        return JSONResponse(self._card())

    async def _completions(self, request: Request) -> Response:
        return await self._respond(request, False)

    async def _chat(self, request: Request) -> Response:
        return await self._respond(request, True)

    async def _respond(self, request: Request, is_chat: bool) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response, StreamingResponse

        try:
            body = await self._body(request)
            job = await run_in_threadpool(self._job, body, is_chat)
            if job.streamed:
                return StreamingResponse(self._sent(job), media_type="text/event-stream")
            return await self._answered(request, job)
        except (ClientDisconnect, Abandoned):
            return Response(status_code=499)  # which nobody reads
        except SpecwbError as error:
            return _refusal(error)
        except ValueError as error:  # of the JSON's reader, which may also meet wrong bytes
            return _refusal(RequestError(f"the request is not JSON: {error}"))

    async def _body(self, request: Request) -> bytes:
        """The request's bytes; not more of them are read than any request needs."""
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise RequestError(f"the content type must be application/json, got {kind!r}", 415)
        size, parts = int(request.headers.get("content-length", 0)), []
        if size <= self.most:
            size = 0
            async for part in request.stream():
                parts.append(part)
                if (size := size + len(part)) > self.most:
                    break
        if size > self.most:
            raise RequestError(
                f"a request may have {self.most} bytes with a context of {self.target.context}"
                " tokens, this one has more",
                413,
            )
        return b"".join(parts)

    def _job(self, body: bytes, is_chat: bool) -> Job:
        return job(from_json(body), self.target, self.method, self._past, is_chat)

    def _pieces(self, job: Job, report: dict[str, Any]) -> Iterator[str]:
        """The answer's text, piece by piece; fills in the report on it when it is complete."""
        pieces = self._decoded(job, report)
        return _message(pieces) if job.is_chat else pieces

    def _decoded(self, job: Job, report: dict[str, Any]) -> Iterator[str]:
        """The same with the spaces around it."""
        fresh: list[str] = []
        stream = Stream(lambda piece, _: fresh.append(piece))
        accepted: list[int] = []
        last = None
        with closing(job.steps):  # type: ignore[type-var]
            while not job.gone.is_set() and (step := next(job.steps, None)) is not None:
                last = step
                accepted.append(int(step.verdict.accepted[0]))
                stream(step)
                yield from fresh
                fresh.clear()
        if job.gone.is_set():
            raise Abandoned
        stream.close()
        yield from fresh
        assert last is not None
        assert last.state is not None
        assert last.stops is not None
        count = len(stream.ids)
        (reason,) = last.stops.reasons([stream.ids], last.state.eos.tolist())
        report["finish_reason"] = "length" if reason == "length" else "stop"
        report["usage"] = {
            "prompt_tokens": len(job.ids),
            "completion_tokens": count,
            "total_tokens": len(job.ids) + count,
            "prompt_tokens_details": {"cached_tokens": self._past.reused},
        }
        report["specwb"] = {
            "method": self.method.key,
            "exactness": self.method.exactness.value,
            "steps": len(accepted),
            "mean_tokens_per_step": count / len(accepted),
            "accepted_lengths": accepted,
            "seed": job.seed,
        }

    async def _answered(self, request: Request, job: Job) -> Response:
        """The whole answer; a reader that goes away ends it."""
        from starlette.responses import JSONResponse

        work = asyncio.get_running_loop().run_in_executor(self._decoding, self._whole, job)
        watch = asyncio.create_task(_departure(request, job))
        try:
            return JSONResponse(await work)
        finally:
            watch.cancel()
            job.gone.set()

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

        def decode() -> None:
            try:
                for event in self._events(job):
                    loop.call_soon_threadsafe(events.put_nowait, event)
            except Abandoned:
                pass
            finally:
                loop.call_soon_threadsafe(events.put_nowait, None)

        done = loop.run_in_executor(self._decoding, decode)
        try:
            while (event := await events.get()) is not None:
                yield event
            await done
        finally:
            job.gone.set()

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
                yield event({"delta": {"content": piece}} if job.is_chat else {"text": piece})
        except Abandoned:
            raise
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


def _message(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces of a text as a message's content: without the spaces around it."""
    is_begun, spaces = False, ""
    for piece in pieces:
        text = spaces + piece if is_begun else piece.lstrip()
        kept = text.rstrip()
        spaces = text[len(kept) :]
        if kept:
            is_begun = True
            yield kept


async def _departure(request: Request, job: Job) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.gone.set()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address (port 0: any that is free): whoever asks before the
    server runs, waits."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:  # a name that is none is an error of its encoding
        why = getattr(error, "strerror", None) or error
        raise AddressError(f"cannot listen at {host!r}, port {port}: {why}") from error


def _refusal(error: SpecwbError) -> Response:
    """What a client did wrong, in the form that OpenAI's clients read."""
    if isinstance(error, RequestError):
        return _error(str(error), error.status, error.code, error.field)
    return _error(str(error), 400)


def _error(
    message: str, status: int, code: str | None = None, field: str | None = None
) -> Response:
    from starlette.responses import JSONResponse

    kind = "invalid_request_error" if status < 500 else "server_error"
    problem = {"message": message[:MESSAGE_SIZE], "type": kind, "param": field, "code": code}
    return JSONResponse({"error": problem}, status)


def _no_route(request: Request, error: Any) -> Response:
    return _error(f"{request.method} {request.url.path}: {error.detail}", error.status_code)


def _broken(request: Request, error: Exception) -> Response:
    return _error(f"{type(error).__name__}: {error}", 500)
