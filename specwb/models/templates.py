"""Chat templates by name, for models whose tokenizer has none.

Source: FastChat's ``vicuna_v1.1`` and ``llama-2`` conversations (lm-sys/FastChat,
``fastchat/conversation.py``), by which Spec-Bench and the papers prompt these models. The sentence
at the head of the former is part of its form. Answers are put in without the spaces around them, as
FastChat keeps them: a model of this kind begins its answer with the space that the form has.
"""

from __future__ import annotations

from typing import Any

from specwb.core.errors import SpecwbError


class TemplateError(SpecwbError, ValueError):
    """An unknown template, or a model without a tokenizer to put one on."""


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
