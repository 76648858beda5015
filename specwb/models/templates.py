"""Chat templates by name, for models whose tokenizer has none.

Source: FastChat's ``vicuna_v1.1`` and ``llama-2`` conversations (lm-sys/FastChat,
``fastchat/conversation.py``), by which Spec-Bench and the papers prompt these models. The sentence
at the head of the former is part of its form. Answers are put in without the spaces around them, as
FastChat keeps them: a model of this kind begins its answer with the space that the form has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from specwb.core.errors import SpecwbError


class TemplateError(SpecwbError, ValueError):
    """An unknown template, or a model without a tokenizer to put one on."""


LETTERS = 4_000_000
"""Of a template, or of a text that it writes, at most; several times what the longest contexts
hold."""
STEPS = 10_000_000
"""Lines of Python that writing one text runs, at most: a few seconds. A template of 70,000
letters takes a third of it when it is compiled."""


def rendered(tokenizer: Any, messages: Sequence[Any], **how: Any) -> str:
    """The text that a tokenizer's chat template makes of messages; ``how`` as for the library's
    ``apply_chat_template``.

    Raises:
        TemplateError: the template does not come to an end within :data:`STEPS`, or it or its text
            is longer than :data:`LETTERS`.
        Exception: whatever else a template raises, which is a program of whoever made it.
    """
    template = tokenizer.chat_template
    if isinstance(template, str):
        _check_length("has", template)
    with _few_steps():
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, **how)
    _check_length("writes", text)
    return text


def _check_length(does: str, text: str) -> None:
    if len(text) > LETTERS:
        raise TemplateError(
            f"the chat template {does} {len(text):,} letters, more than {LETTERS:,}"
        )


@contextmanager
def _few_steps() -> Iterator[None]:
    """Ends a block that runs more than :data:`STEPS` lines of Python. The library's sandbox limits
    one range, and not several within each other."""
    before, count = sys.gettrace(), 0

    def step(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        if count > STEPS:
            raise TemplateError(f"the chat template has not ended after {STEPS:,} steps")
        return step

    sys.settrace(step)
    try:
        yield
    finally:
        sys.settrace(before)


_VICUNA_HEAD = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
TEMPLATES = {
    # the system's sentence, "USER: .. ASSISTANT: ..</s>USER: .. ASSISTANT:"
    "vicuna": (
        "{{ bos_token or '' }}"
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}"
        '{% else %}{{ "' + _VICUNA_HEAD + ' " }}{% endif %}'
        "{% for m in messages %}"
        "{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'] + ' ' }}"
        "{% elif m['role'] == 'assistant' %}"
        "{{ 'ASSISTANT: ' + m['content'] | trim + (eos_token or '') }}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    # every exchange is a text of its own: "<s>[INST] .. [/INST] .. </s>"
    "llama-2": (
        "{% set ns = namespace(head='') %}"
        "{% for m in messages %}"
        "{% if m['role'] == 'system' %}"
        "{% set ns.head = '<<SYS>>\\n' + m['content'] + '\\n<</SYS>>\\n\\n' %}"
        "{% elif m['role'] == 'user' %}"
        "{{ (bos_token or '') + '[INST] ' + ns.head + m['content'] + ' [/INST]' }}"
        "{% set ns.head = '' %}"
        "{% else %}{{ ' ' + m['content'] | trim + ' ' + (eos_token or '') }}{% endif %}{% endfor %}"
    ),
}
"""Jinja templates in the form of ``tokenizer.chat_template``."""


def check_template(name: str | None) -> None:
    """Checks that there is a template of that name; None is no template."""
    if name is not None and not (isinstance(name, str) and name in TEMPLATES):
        raise TemplateError(f"unknown chat template {name!r}; known: {', '.join(TEMPLATES)}")


def use_template(tokenizer: Any, name: str | None) -> None:
    """Puts a template of :data:`TEMPLATES` on a tokenizer; None leaves it as it is."""
    check_template(name)
    if name is None:
        return
    if tokenizer is None:
        raise TemplateError("a chat template needs a tokenizer, the target has none")
    tokenizer.chat_template = TEMPLATES[name]
