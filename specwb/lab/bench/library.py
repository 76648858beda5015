"""The transformers library's own decoding, as rows of a comparison.

The same weights run through ``model.generate``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from specwb.core.options import MethodError, Option, parse_value, spell
from specwb.core.probability import Sampling
from specwb.models.attention import backends
from specwb.models.target import Target

GAMMA = Option(name="gamma", low=1, types=(int,))
SCHEDULES = ("constant", "heuristic", "heuristic_transient")
ASSISTED = {
    "gamma": ("num_assistant_tokens", GAMMA),
    "schedule": (
        "num_assistant_tokens_schedule",
        Option(name="schedule", choices=SCHEDULES, types=(str,)),
    ),
    "confidence": (
        "assistant_confidence_threshold",
        Option(name="confidence", within="[0,1)", types=(float,)),
    ),
}
LOOKUP = {
    "gamma": ("prompt_lookup_num_tokens", GAMMA),
    "ngram": ("max_matching_ngram_size", Option(name="ngram", low=1, types=(int,))),
}
ROWS: dict[str, dict[str, tuple[str, Option]]] = {
    "hf_greedy": {},
    "hf_sample": {},
    "hf_assisted": ASSISTED,
    "hf_prompt_lookup": LOOKUP,
}
"""Row -> its options, each with the library's own name of it."""
DEFAULTS: dict[str, dict[str, Any]] = {"hf_prompt_lookup": {"gamma": 10, "ngram": 3}}
"""Of options for which the library has none."""


def plain_row(sampling: Sampling) -> str:
    """Name the library's plain decoding: ``hf_greedy``, at T > 0 ``hf_sample``."""
    return "hf_sample" if sampling.temperature else "hf_greedy"


def usual_rows(sampling: Sampling, alone: bool, draft: Target | None) -> list[str]:
    """List the library's decodings that can run with these settings.

    Its assisted decoding and its prompt lookup take prompts ``alone``, and assisted decoding needs
    a draft model.
    """
    speculative = ["hf_assisted"] * (draft is not None) + ["hf_prompt_lookup"]
    return [plain_row(sampling), *speculative * alone]


class Library:
    """One row of a comparison that the library decodes.

    Its spec is ``hf_greedy``, ``hf_sample``, ``hf_assisted:gamma=3,schedule=constant,confidence=0``
    or ``hf_prompt_lookup:gamma=10,ngram=3``. The options stand for the library's own settings:

    - ``gamma``: ``num_assistant_tokens``, in prompt lookup ``prompt_lookup_num_tokens``.
    - ``schedule``: ``num_assistant_tokens_schedule``.
    - ``confidence``: ``assistant_confidence_threshold``; 0 switches it off.
    - ``ngram``: ``max_matching_ngram_size``.

    ``hf_assisted`` without options runs with the library's defaults.

    Args:
        spec: the row.
        target: the model that decodes.
        draft: the assistant of ``hf_assisted``.
        sampling: temperature and filters.
        batch: prompts that are decoded together.
    Raises:
        MethodError: an unknown row or option, or a row that does not fit sampling, batch or models.
    """

    def __init__(
        self, spec: str, target: Target, draft: Target | None, sampling: Sampling, batch: int
    ) -> None:
        self.name, _, text = spec.partition(":")
        if self.name not in ROWS:
            raise MethodError(f"unknown library row {self.name!r}; known: {', '.join(ROWS)}")
        defaults = DEFAULTS.get(self.name, {})
        self.options = defaults | self._parse(text)
        changed = [f"{n}={spell(v)}" for n, v in self.options.items() if v != defaults.get(n)]
        self.key = f"{self.name}:{','.join(changed)}" if changed else self.name
        self.assisted = self.name in ("hf_assisted", "hf_prompt_lookup")
        self.target, self.draft, self.sampling = target, draft, sampling
        plain = plain_row(sampling)
        if not self.assisted and self.name != plain:
            temperature = f"temperature {sampling.temperature:g}"
            raise MethodError(f"{self.name} is not for {temperature}; use {plain}")
        if self.assisted and batch > 1:
            raise MethodError(f"{self.name} decodes one row at a time; use batch 1, not {batch}")
        if self.name == "hf_assisted":
            if draft is None:
                raise MethodError(
                    f"hf_assisted needs a draft model and {target.name!r} has none of its own; "
                    "name one with draft= (--draft on the command line)"
                )
            # Footgun: the library reads these settings from the draft model, and its "heuristic"
            # schedule writes to them, so every row has a copy of its own.
            self.assistant_config = copy.deepcopy(draft.model.generation_config)
            self.assistant_config.update(**self._named())

    def _parse(self, text: str) -> dict[str, Any]:
        """Read ``name=value,name=value``."""
        known, options = ROWS[self.name], {}
        for item in filter(None, text.split(",")):
            option, _, written = item.partition("=")
            if option not in known:
                names = ", ".join(f"{name}=.." for name in known) or "none"
                raise MethodError(f"{self.name} has no option {item!r}; its options: {names}")
            options[option] = parse_value(written)
            known[option][1].check(self.name, options[option])
        return options

    def _named(self) -> dict[str, Any]:
        """The options by the library's names."""
        return {ROWS[self.name][option][0]: value for option, value in self.options.items()}

    def generate(
        self, rows: list[list[int]], max_new_tokens: int
    ) -> tuple[list[list[int]], int, float]:
        """Generate with the library.

        Rows are left-padded. Tokens are counted as this engine counts them: the end of text is
        included, padding is not.

        Returns:
            The new tokens of every row, the target's forwards summed over rows, and the seconds.
        """
        target, width = self.target, max(map(len, rows))
        pad = target.eos[0] if target.eos else 0
        ids = [[pad] * (width - len(row)) + row for row in rows]
        seen = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        settings = {"pad_token_id": pad, "max_new_tokens": max_new_tokens, **self._settings()}
        forwards = 0

        def count(*_: object) -> None:
            nonlocal forwards
            forwards += 1

        hook = target.model.register_forward_pre_hook(count)
        try:
            with self._own_settings(), backends(target.device):  # the same kernels as in our rows
                began = time.perf_counter()
                out = target.model.generate(
                    input_ids=torch.tensor(ids, device=target.device),
                    attention_mask=torch.tensor(seen, device=target.device),
                    **settings,
                )
                written = out[:, width:].tolist()
                seconds = time.perf_counter() - began
        finally:
            hook.remove()
        tokens = []
        for row in written:
            end = next((i + 1 for i, token in enumerate(row) if token in target.eos), None)
            tokens.append(row[:end])
        if not self.assisted:
            # A row that ends early still rides along in the library's batch. It took part in as
            # many forwards as it has tokens.
            forwards = sum(map(len, tokens))
        return tokens, forwards, seconds

    def _settings(self) -> dict[str, Any]:
        """The arguments of ``model.generate`` for this row."""
        # Footgun: a checkpoint's own generation settings would make this another algorithm.
        settings: dict[str, Any] = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
        settings |= {"num_beams": 1, "do_sample": self.sampling.temperature > 0}
        if self.sampling.temperature:
            settings["temperature"] = self.sampling.temperature
            settings |= {"top_k": self.sampling.top_k, "top_p": self.sampling.top_p}
        if self.name == "hf_assisted":
            assert self.draft is not None
            settings["assistant_model"] = self.draft.model
        elif self.name == "hf_prompt_lookup":
            settings |= self._named()
        return settings

    @contextmanager
    def _own_settings(self) -> Iterator[None]:
        """Give the draft model this row's settings; silence the library, which warns about
        arguments that it passes to itself."""
        from transformers.utils import logging

        level = logging.get_verbosity()
        logging.set_verbosity_error()
        model = self.draft.model if self.name == "hf_assisted" and self.draft else None
        if model is not None:
            usual, model.generation_config = model.generation_config, self.assistant_config
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if model is not None:
                model.generation_config = usual
