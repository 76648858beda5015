"""Requests: what their fields may say, and the decoding that one asks for."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from specwb.decoding import rounds
from specwb.drafters.past import Past
from specwb.errors import SpecwbError
from specwb.flow import Step
from specwb.inputs import integer, real
from specwb.methods import Method
from specwb.models.generation import SERVERS, is_neutral
from specwb.models.prompts import read_prompts
from specwb.models.target import Target
from specwb.stops import stop_texts

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
    **SERVERS,
    "echo": False,
    "suffix": "",
    "logprobs": False,
    "top_logprobs": 0,
    "tools": [],
    "functions": [],
    "parallel_tool_calls": True,
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "metadata": {},
    "store": False,
    "service_tier": "auto",
}
"""Fields that are taken with these values, which ask for nothing, or with null."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of messages, and what chat templates call them; there are no tools."""
STOPS, STOP_SIZE = 32, 500
"""How many stop texts a request may have, and how many characters each."""


class RequestError(SpecwbError, ValueError):
    """A request that is not understood or asks for what is not offered. ``status`` is the HTTP
    answer's; ``code`` and ``field`` are what OpenAI's clients read as the error's code and
    parameter."""

    def __init__(
        self, message: str, status: int = 400, code: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field


@dataclass
class Job:
    """A request that has been checked, and its decoding, not begun yet. A ``counted`` streamed
    answer ends with its token counts; ``gone`` is set when nobody waits for the answer any more."""

    ids: list[int]
    steps: Iterator[Step]
    seed: int
    is_chat: bool
    streamed: bool
    counted: bool
    gone: threading.Event = field(default_factory=threading.Event)


def check_model(target: Target, name: object) -> None:
    """Checks that a request means the model that is served."""
    if name is not None and name != target.name:
        message = f"model {name!r} is not served here, {target.name!r} is"
        raise RequestError(message, 404, "model_not_found", "model")


def job(body: Any, target: Target, method: Method, past: Past, is_chat: bool) -> Job:
    """Checks a request to the chat or the completions endpoint; ``past`` is what the request before
    it left."""
    if not isinstance(body, dict):
        raise RequestError("a request is a JSON object")
    check_model(target, body.get("model"))
    other = "prompt" if is_chat else "messages"
    for name, value in body.items():
        unread = name not in READ or name == other
        if unread and not is_neutral(value, NEUTRAL.get(name)):
            raise RequestError(f"{name}={value!r} is not offered by this server")
    (ids,) = _rows(target, _messages(body.get("messages")) if is_chat else _prompt(body))
    room = target.context - len(ids)
    if room < 1:
        raise RequestError(
            f"the prompt has {len(ids)} tokens, which leaves no room in a context of "
            f"{target.context}"
        )
    limit = room if is_chat else min(16, room)
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            limit = integer(name, body[name], 1)
    if limit > room:
        raise RequestError(
            f"max_tokens={limit} after {len(ids)} tokens of the prompt exceeds the context, "
            f"{target.context}"
        )
    seed = body.get("seed")
    seed = random.getrandbits(60) if seed is None else integer("seed", seed, 0)
    steps = rounds(
        target,
        [ids],
        method,
        max_new_tokens=limit,
        temperature=real("temperature", _given(body, "temperature", 1.0)),
        top_p=real("top_p", _given(body, "top_p", 1.0)),
        top_k=integer("top_k", _given(body, "top_k", 0), 0),
        seed=seed,
        until=_stop(body.get("stop")),
        past=past,
    )
    extra = _given(body, "stream_options", {})
    if not isinstance(extra, dict) or set(extra) - {"include_usage", "include_obfuscation"}:
        raise RequestError(f"stream_options can have include_usage, got {extra!r}")
    counted = _switch("include_usage", extra.get("include_usage"))
    streamed = _switch("stream", body.get("stream"))
    return Job(ids, steps, seed, is_chat, streamed, counted)


def _rows(target: Target, prompt: Any) -> list[list[int]]:
    rows, single = read_prompts(target, prompt)
    if not single and len(rows) > 1:
        raise RequestError(f"{len(rows)} prompts in one request; this server takes one")
    return rows


def _prompt(body: dict[str, Any]) -> str | list[Any]:
    """A text or token ids, or a list of one of these; no messages, at any depth."""
    prompt = body.get("prompt")
    parts = prompt if isinstance(prompt, list) else []
    inner = [x for part in parts for x in (part if isinstance(part, list) else [part])]
    if not isinstance(prompt, str | list) or any(isinstance(x, dict | list) for x in inner):
        raise RequestError(f"prompt must be a text or token ids, got {prompt!r}")
    return prompt


def _stop(stop: object) -> tuple[str, ...]:
    """The texts that end an answer: as many and as long as can be looked for with every token."""
    texts = stop_texts(stop, "stop", "a text or texts")
    longest = max(map(len, texts), default=0)
    if len(texts) > STOPS or longest > STOP_SIZE:
        raise RequestError(
            f"stop may have {STOPS} texts of at most {STOP_SIZE} characters, got {len(texts)} of "
            f"up to {longest}"
        )
    return texts


def _messages(messages: Any) -> list[dict[str, Any]]:
    """Messages whose content is text, also where it came in parts."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, Any]:
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
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"a message's role must be {', '.join(ROLES)}; got {role!r}")
    for name, value in message.items():
        if name not in ("role", "content") and value:  # clients send back empty ones
            raise RequestError(f"{name}={value!r} of a message is not offered")
    return {"role": ROLES[role], "content": content}


def _switch(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {value!r}")
    return bool(value)


def _given(body: dict[str, Any], name: str, default: Any) -> Any:
    value = body.get(name)
    return default if value is None else value
