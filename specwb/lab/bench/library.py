"""The transformers library's own decoding, as rows of a comparison.

The same weights run through ``model.generate``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch

from specwb.core.options import MethodError, parse_value, spell
from specwb.core.probability import Sampling
from specwb.models.attention import backends
from specwb.models.target import Target

SCHEDULES = ("constant", "heuristic", "heuristic_transient")

# row -> its options with their defaults, where None is the library's own default
ROWS: dict[str, dict[str, Any]] = {
    "hf_greedy": {},
    "hf_sample": {},
    "hf_assisted": {"gamma": None, "schedule": None, "confidence": None},
    "hf_prompt_lookup": {"gamma": 10, "ngram": 3},
}


def plain_row(sampling: Sampling) -> str:
    """Name the library's plain decoding: ``hf_greedy``, at T > 0 ``hf_sample``."""
    return "hf_greedy" if sampling.greedy else "hf_sample"


def default_rows(sampling: Sampling, batch: int, draft: bool) -> list[str]:
    """List the library's decodings that can run with these settings.

    The library's assisted decoding and its prompt lookup take one row at a time, and assisted
    decoding needs a draft model.
    """
    rows = [plain_row(sampling)]
    if batch == 1:
        rows += ["hf_assisted", "hf_prompt_lookup"] if draft else ["hf_prompt_lookup"]
    return rows


class Library:
    """One row of a comparison that the library decodes.

    Its spec is ``hf_greedy``, ``hf_sample``, ``hf_assisted:gamma=3,schedule=constant,confidence=0``
    or ``hf_prompt_lookup:gamma=10,ngram=3``. The options stand for the library's own settings:

    - ``gamma``: ``num_assistant_tokens``, in prompt lookup ``prompt_lookup_num_tokens``.
    - ``schedule``: ``num_assistant_tokens_schedule``.
    - ``confidence``: ``assistant_confidence_threshold``; 0 switches it off.
    - ``ngram``: ``max_matching_ngram_size``.

    ``hf_assisted`` without options runs with the library's defaults.
    """

    def __init__(
        self, spec: str, target: Target, draft: Target | None, sampling: Sampling, batch: int
    ) -> None:
        self.name, _, text = spec.partition(":")
        if self.name not in ROWS:
            raise MethodError(f"unknown library row {self.name!r}; known: {', '.join(ROWS)}")
        self.options = self._parse(text)
        changed = [f"{n}={spell(v)}" for n, v in self.options.items() if v != ROWS[self.name][n]]
        self.key = f"{self.name}:{','.join(changed)}" if changed else self.name
        self.assisted = self.name in ("hf_assisted", "hf_prompt_lookup")
        self.target, self.draft, self.sampling = target, draft, sampling
        self._check(batch)
        if self.name == "hf_assisted":
            self.assistant_config = self._assistant_config()

    def _check(self, batch: int) -> None:
        """Refuse a row that does not fit the sampling, the batch or the models."""
        plain = plain_row(self.sampling)
        if self.name in ("hf_greedy", "hf_sample") and self.name != plain:
            temperature = f"{self.sampling.temperature:g}"
            raise MethodError(
                f"{self.name} is not what the library does at temperature {temperature}; "
                f"use {plain}"
            )
        if self.assisted and batch > 1:
            raise MethodError(
                f"{self.name} decodes one row at a time in the library; use batch 1, not {batch}"
            )
        if self.name == "hf_assisted" and self.draft is None:
            raise MethodError(
                f"hf_assisted needs a draft model and {self.target.name!r} has none of its own; "
                "name one with draft= (--draft on the command line)"
            )

    def _assistant_config(self) -> Any:
        """The draft model's generation settings with this row's options.

        Every row has a copy of its own: the library reads these settings from the draft model, and
        its "heuristic" schedule writes to them.
        """
        assert self.draft is not None
        config = copy.deepcopy(self.draft.model.generation_config)
        names = {
            "gamma": "num_assistant_tokens",
            "schedule": "num_assistant_tokens_schedule",
            "confidence": "assistant_confidence_threshold",
        }
        for option, field in names.items():
            if self.options[option] is not None:
                setattr(config, field, self.options[option])
        return config

    def _parse(self, text: str) -> dict[str, Any]:
        """Read ``name=value,name=value``; options that are not named have their defaults."""
        options = dict(ROWS[self.name])
        for item in filter(None, text.split(",")):
            option, equals, written = item.partition("=")
            if option not in options:
                names = ", ".join(options) or "none"
                raise MethodError(f"{self.name} has no option {option!r}; its options: {names}")
            if not equals:
                raise MethodError(f"{self.name}: option {item!r} must be written name=value")
            value = options[option] = parse_value(written)
            if option in ("gamma", "ngram") and (type(value) is not int or value < 1):
                raise MethodError(f"{self.name}: {option} must be an integer >= 1, got {written!r}")
            if option == "schedule" and value not in SCHEDULES:
                raise MethodError(
                    f"{self.name}: schedule must be one of {', '.join(SCHEDULES)}, got {written!r}"
                )
            if option == "confidence" and (type(value) not in (int, float) or not 0 <= value < 1):
                raise MethodError(
                    f"{self.name}: confidence must be at least 0 and below 1, got {written!r}"
                )
        return options

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
        ids = torch.tensor([[pad] * (width - len(r)) + r for r in rows], device=target.device)
        attention_mask = torch.tensor(
            [[0] * (width - len(r)) + [1] * len(r) for r in rows], device=target.device
        )
        settings = self._settings(pad, max_new_tokens)
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        from transformers.utils import logging

        level = logging.get_verbosity()
        logging.set_verbosity_error()  # the library warns about arguments it passes to itself
        hook = target.model.register_forward_pre_hook(count)
        restore = self._swap()
        try:
            began = time.perf_counter()
            with backends(target.device):  # the same choice of kernels as in our rows
                out = target.model.generate(
                    input_ids=ids, attention_mask=attention_mask, **settings
                )
            new_tokens = out[:, width:].tolist()
            seconds = time.perf_counter() - began
        finally:
            restore()
            hook.remove()
            logging.set_verbosity(level)
        tokens = []
        for row in new_tokens:
            end = next((i + 1 for i, t in enumerate(row) if t in target.eos), len(row))
            tokens.append(row[:end])
        # A row that ends early still rides along in the library's batch. It took part in as many
        # forwards as it has tokens.
        return tokens, calls if self.assisted else sum(map(len, tokens)), seconds

    def _settings(self, pad: int, max_new_tokens: int) -> dict[str, Any]:
        """What ``model.generate`` is called with, besides the prompts."""
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "pad_token_id": pad,
            "do_sample": not self.sampling.greedy,
        }
        # Footgun: a checkpoint's own generation settings would make this another algorithm.
        settings |= {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1}
        if not self.sampling.greedy:
            settings |= {
                "temperature": self.sampling.temperature,
                "top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
            }
        if self.name == "hf_assisted":
            assert self.draft is not None
            settings["assistant_model"] = self.draft.model
        if self.name == "hf_prompt_lookup":
            settings |= {
                "prompt_lookup_num_tokens": self.options["gamma"],
                "max_matching_ngram_size": self.options["ngram"],
            }
        return settings

    def _swap(self) -> Callable[[], None]:
        """Give the draft model this row's settings; return a function that undoes it."""
        if self.name != "hf_assisted":
            return lambda: None
        assert self.draft is not None
        model, before = self.draft.model, self.draft.model.generation_config
        model.generation_config = self.assistant_config
        return lambda: setattr(model, "generation_config", before)
