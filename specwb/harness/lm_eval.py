"""A target with a method as a model of lm-evaluation-harness, under the name ``specwb``::

    python -m specwb.harness.lm_eval --model specwb \\
        --model_args target=FOLDER,method=eagle --tasks gsm8k

The command is the harness' own, with this model known to it. Texts are decoded by the method;
likelihoods are the target's, which no lossless method changes. Options of a method are parted by
``;``, since the harness parts its own by ``,``: ``method=mcsd:tree=4-2-2;draw=with``.

The harness comes with the extra ``lm-eval``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specwb.decoding import decode
from specwb.errors import ArgumentError, SpecwbError
from specwb.extras import require
from specwb.inputs import integer, real
from specwb.methods import METHODS, method
from specwb.models.generation import NEUTRAL, SERVERS, is_neutral
from specwb.models.load import draft_model, load
from specwb.models.prompts import encode
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.stops import stop_texts

TemplateLM: Any = object
try:
    from lm_eval.api.model import TemplateLM  # type: ignore[no-redef]
    from lm_eval.api.registry import register_model
except ImportError:  # the harness is not here: the class can be read, and nothing registers it

    def register_model(*names: str) -> Any:
        return lambda kind: kind


NEW_TOKENS = 256
"""Tokens of an answer where the task does not say, as in the harness."""
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the number of new tokens; of several the first counts, as in the harness."""
READ = {"until", "do_sample", "temperature", "top_k", "top_p", "seed", *LENGTHS}
"""Generation settings that are read."""
ASKS_NOTHING: dict[str, Any] = {
    **NEUTRAL,
    **SERVERS,
    "early_stopping": False,
    "length_penalty": 1.0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "remove_invalid_values": False,
    "renormalize_logits": False,
    "skip_special_tokens": True,
    "use_cache": True,
}
"""Other settings, of the library and of servers, that are taken with these values or None."""


ARGUMENTS = ("target", "method", "draft", "head", "device", "dtype", "seed")


@register_model("specwb")
class SpecwbLM(TemplateLM):
    """Answers the harness' requests.

    Args:
        target: lab, a folder, a hub id or a :class:`specwb.Target`.
        method: a spec, its options parted by ``;``.
        draft: the draft model, default the target's own.
        head: a trained head or its folder, default the target's own.
        device: auto, cpu, cuda. The harness asks for cuda:0 where nothing was said; without one
            the processor is taken, as by the harness' own models.
        dtype: auto, float32, bfloat16, float16.
        seed: of the sampling; request i has ``seed + i``.
        batch_size, max_batch_size: taken, as the harness gives them; requests are answered one
            after another.
    """

    backend = "causal"

    def __init__(
        self,
        target: str | Target = "lab",
        method: str = "ar",
        draft: str | None = None,
        head: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise ArgumentError(
                f"unknown in --model_args: {', '.join(unknown)}; there are {', '.join(ARGUMENTS)}"
            )
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"
        given = isinstance(target, Target)
        self.target: Target = target if given else load(target, device=device, dtype=dtype)  # type: ignore[assignment, arg-type]
        self.seed, self.tokenizer = seed, self.target.tokenizer
        spec = method.replace(";", ",")
        self.method = _built(self.target, spec, draft, head)
        self.steps = self.written = 0

    @property
    def eot_token_id(self) -> int | None:  # type: ignore[override]
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int | None:  # type: ignore[override]
        """What a text without a context begins with: the beginning of a text where the tokenizer
        has one, else the end of a text; None where it has neither."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "")).replace("/", "__")

    @property
    def max_length(self) -> int:
        """Tokens of the context."""
        return self.target.context

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Encode a text, by default with the tokenizer's special tokens, once."""
        if add_special_tokens is None:
            begin = self.tokenizer.bos_token
            add_special_tokens = not (begin and string.startswith(begin))
        return encode(self.tokenizer, string, "text", special=add_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Writes a conversation as the tokenizer's template has it."""
        return self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Sum up the target's logarithms of a continuation's probabilities."""
        out = []
        for _texts, context, continuation in requests:
            count = len(continuation)
            if not 1 <= count <= self.max_length:
                raise ArgumentError(
                    f"a continuation must have 1 to {self.max_length} tokens, as many as the "
                    f"target's context has, got {count}"
                )
            if not context or None in context:
                raise ArgumentError(
                    "a continuation without context follows the tokenizer's BOS or end of text, "
                    "and it has neither"
                )
            ids = [*context, *continuation][-(self.max_length + 1) :]
            rows = torch.tensor([ids[:-1]], device=self.target.device)
            with torch.no_grad():
                logits = self.target.model(rows).logits[0, -count:]
            wanted = torch.tensor(ids[-count:], device=logits.device)
            logs = logits.float().log_softmax(-1)
            chosen = logs.gather(1, wanted[:, None])
            out.append((float(chosen.sum()), bool((logs.argmax(-1) == wanted).all())))
        return out

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Sum up the logarithms of whole texts' probabilities, by the harness' own windows.

        Differs from the harness' ``hf`` in: a tokenizer that adds BOS by itself does not add it
        here, since the first window has it already (``hf`` with ``add_bos_token=False`` agrees).
        """
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        out = []
        for request in requests:
            (text,) = request.args
            ids = self.tok_encode(text, add_special_tokens=False)
            if self.prefix_token_id is not None:
                ids.insert(0, self.prefix_token_id)  # else the text's own first token begins it
            begin, *rest = ids or [0]  # of an empty text there is no window
            windows = get_rolling_token_windows(rest, begin, self.max_length, context_len=1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            out.append(sum(total for total, _ in self._loglikelihood_tokens(pairs)))
        return out

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Decode a text for every request, up to the first of its stop strings.

        The end of text is the target's own ends and the tokenizer's, as in the harness.
        """
        every = [_generation(request.args[1], self.max_length) for request in requests]
        return [
            self._text(i, request.args[0], settings)
            for i, (request, settings) in enumerate(zip(requests, every, strict=True))
        ]

    def _text(self, index: int, context: str, settings: _Generation) -> str:
        room = self.max_length - settings.new_tokens
        end = self.eot_token_id
        ends = self.target.ends + ([] if end is None else [end])
        seed = self.seed if settings.seed is None else settings.seed
        output = decode(
            self.target,
            [self.tok_encode(context)[-room:]],
            self.method,
            max_new_tokens=settings.new_tokens,
            temperature=settings.sampling.temperature,
            top_k=settings.sampling.top_k,
            top_p=settings.sampling.top_p,
            seed=[seed + index],
            eos=ends,
            until=settings.until,
        )
        self.steps += sum(output.step_counts)
        self.written += sum(map(len, output.tokens))
        # the harness' own models decode the new tokens alone, where some tokenizers drop a space
        alone = self.tokenizer.decode(output.tokens[0], skip_special_tokens=True)
        text = output.text or ""
        return text if alone.startswith(" ") else text.removeprefix(" ")


@dataclass
class _Generation:
    """Generation settings of a request."""

    until: tuple[str, ...]
    new_tokens: int
    sampling: Sampling
    seed: int | None


def _generation(settings: dict[str, Any], context: int) -> _Generation:
    """Read the generation settings of a request, by all names that the harness knows.

    Sampling without a temperature is at 1; at temperature 0 it is greedy, whatever ``do_sample``
    says.
    """
    for name, value in settings.items():
        if name not in READ and not is_neutral(value, ASKS_NOTHING.get(name)):
            raise ArgumentError(
                f"generation setting {name}={value!r} is not supported by --model specwb; leave it "
                f"out, there are {', '.join(sorted(READ))}"
            )
    given = {name: value for name, value in settings.items() if value is not None}
    until = given.get("until", [])
    texts = [until] if isinstance(until, str) else [text for text in until if text != ""]
    name = next((name for name in LENGTHS if name in given), LENGTHS[0])
    most = integer(name, given.get(name, NEW_TOKENS), 1)
    if most >= context:
        raise ArgumentError(f"{name}={most} leaves no room in a context of {context}")
    sampled = given.get("do_sample", bool(given.get("temperature")))
    temperature = real("temperature", given.get("temperature", 1.0)) if sampled else 0.0
    sampling = Sampling(temperature, given.get("top_k", 0), given.get("top_p", 1.0))
    sampling = Sampling() if sampling.greedy else sampling
    seed = integer("seed", given["seed"]) if "seed" in given else None
    return _Generation(stop_texts(texts), most, sampling, seed)


def _built(target: Target, spec: str, draft: str | None, head: str | None) -> Any:
    """Build the method with what is named."""
    entry = METHODS.get(spec.partition(":")[0])
    options = {"head": head} if head is not None else {}
    if draft is not None and entry is not None and "draft" in entry.options:
        options["draft"] = draft_model(target, draft)  # type: ignore[assignment]
    return method(spec, target, **options)


def main() -> None:
    """Run the harness' command; what cannot be used is one line and exit code 2."""
    try:
        require("specwb.harness.lm_eval", "lm-eval", "lm_eval")
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except SpecwbError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
