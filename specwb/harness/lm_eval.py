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
from typing import Any

import torch

from specwb.decoding import decode
from specwb.errors import ArgumentError, SpecwbError
from specwb.extras import require
from specwb.inputs import encode
from specwb.methods import METHODS, method
from specwb.models.load import draft_model, load
from specwb.models.target import Target

TemplateLM: Any = object
try:
    from lm_eval.api.model import TemplateLM  # type: ignore[no-redef]
    from lm_eval.api.registry import register_model
except ImportError:  # the harness is not here: the class can be read, and nothing registers it

    def register_model(*names: str) -> Any:
        return lambda kind: kind


NEW_TOKENS = 256
"""Tokens of an answer where the task does not say, as in the harness."""


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
        return self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"]

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
        """Sum up the target's logarithms of a continuation's probabilities.

        Args:
            requests: (texts, token ids of the context, of the continuation).
            disable_tqdm: taken, as the harness gives it.
        Returns:
            The sum, and whether the continuation is what the target writes at temperature 0. What
            is longer than the context loses its beginning.
        """
        out = []
        for _texts, context, continuation in requests:
            ids = [*context, *continuation][-(self.max_length + 1) :]
            rows = torch.tensor([ids[:-1]], device=self.target.device)
            with torch.no_grad():
                logits = self.target.model(rows).logits[0, -len(continuation) :]
            wanted = torch.tensor(ids[-len(continuation) :], device=logits.device)
            logs = logits.float().log_softmax(-1)
            chosen = logs.gather(1, wanted[:, None])
            out.append((float(chosen.sum()), bool((logs.argmax(-1) == wanted).all())))
        return out

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Sum up the logarithms of whole texts' probabilities, window after window."""
        out = []
        for request in requests:
            (text,) = request.args
            ids, total = self.tok_encode(text, add_special_tokens=False), 0.0
            size = self.max_length - 1
            for start in range(0, len(ids), size):
                # as much before a window as there is room for; the first has the end of text
                window = ids[start : start + size]
                before = ids[max(0, start + len(window) - self.max_length) : start]
                end = self.eot_token_id
                context = before or ([] if end is None else [end])
                if not context:  # without one the text's own first token begins it
                    context, window = window[:1], window[1:]
                if window:
                    total += self._loglikelihood_tokens([(None, context, window)])[0][0]
            out.append(total)
        return out

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Decode a text for every request, up to the first of its stop strings."""
        return [self._text(i, *request.args) for i, request in enumerate(requests)]

    def _text(self, index: int, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        stop = [until] if isinstance(until, str) else [text for text in until if text]
        most = int(settings.get("max_gen_toks", settings.get("max_new_tokens", NEW_TOKENS)))
        sampled = settings.get("do_sample", bool(settings.get("temperature")))
        temperature = float(settings.get("temperature") or 1.0) if sampled else 0.0
        room = self.max_length - most
        if room < 1:
            raise ArgumentError(
                f"max_gen_toks={most} leaves no room in a context of {self.max_length}"
            )
        ids = encode(self.tokenizer, context, f"request {index}")[-room:]
        output = decode(
            self.target,
            [ids],
            self.method,
            max_new_tokens=most,
            temperature=temperature,
            top_k=int(settings.get("top_k") or 0) if sampled else 0,
            top_p=float(settings.get("top_p") or 1.0) if sampled else 1.0,
            seed=[self.seed + index],
            until=stop,
        )
        self.steps += sum(output.step_counts)
        self.written += sum(map(len, output.tokens))
        # the harness' own models decode the new tokens alone, where some tokenizers drop a space
        alone = self.tokenizer.decode(output.tokens[0], skip_special_tokens=True)
        text = output.text or ""
        return text if alone.startswith(" ") else text.removeprefix(" ")


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
