"""``specwb.hf``: the transformers library's ``generate`` with the decoding of this package.

::

    model.generate(**inputs, custom_generate=specwb.hf("sps", draft="lab-draft"))
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any, cast
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor, nn
from transformers import (
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import GenerateDecoderOnlyOutput, MaxLengthCriteria

from specwb.core.errors import SpecwbError
from specwb.core.flow import Draft, Scores, State, Step
from specwb.core.probability import Sampling
from specwb.engine.decoding import rounds
from specwb.engine.methods import Method, read_spec
from specwb.engine.methods import method as make_method
from specwb.models.architectures import UnsupportedModel
from specwb.models.target import Target

FILTERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
"""The library's processors that the engine applies itself, in their order."""
PROCESSORS = (
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "ExponentialDecayLengthPenalty"),
    *("ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization"),
    *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper"),
    *("NoBadWordsLogitsProcessor", "NoRepeatNGramLogitsProcessor", "TemperatureLogitsWarper"),
    *("RepetitionPenaltyLogitsProcessor", "SequenceBiasLogitsProcessor", "TopKLogitsWarper"),
    *("SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor", "TopPLogitsWarper"),
    "TypicalLogitsWarper",
)
"""The logits processors that can be applied to the nodes of a draft: pure functions of a row's
``(input_ids, scores)``, defined for any text."""


class UnsupportedGeneration(SpecwbError, ValueError):
    """An argument of ``generate`` that this decoding does not support, by name; raised before any
    work is done."""


def hf(
    method: str = "sps",
    draft: str | nn.Module | Target | None = None,
    *,
    exact_text: bool = False,
    **options,
) -> Callable[..., Any]:
    """Returns a ``custom_generate`` for the transformers library.

    With it, ``generate`` returns the same tokens as without it at T = 0, and tokens of the same
    distribution at T > 0.

    It supports batches with left padding, greedy decoding and sampling with all settings of the
    generation config that are :data:`PROCESSORS` (the library's default top_k = 50 too),
    ``max_new_tokens``, ``num_return_sequences``, stopping criteria (without scores), a streamer,
    and ``return_dict_in_generate`` with ``output_scores`` and ``output_logits``: one ``[rows, V]``
    for every new token, float32. Where a row has stopped before the others they are 0 at
    ``pad_token_id`` and -inf elsewhere: padding is certain, and adds nothing to the sums of
    ``compute_transition_scores``. Everything else is refused by name.

    Processors other than temperature, top-k and top-p are applied to every node's path, with the
    row's padding in front as the library would have it; these decodings run without CUDA graphs.
    Stopping criteria are evaluated at every token, and a row is cut where the first one stops it.

    Args:
        method: a method's spec, such as ``"mcsd:tree=4-2-2"``.
        draft: the draft model, for methods that have one: a name, folder, hub id or loaded model;
            where its vocabulary has another number of rows of padding than the model's, what
            ``specwb.load(.., tokenizer=..)`` returned.
        exact_text: at T > 0 write plain decoding's text, as in :func:`specwb.rounds`: what method
            ``"ar"`` writes after the same ``torch.manual_seed``.
        options: the method's other options, as in :func:`specwb.method`.

    Raises:
        MethodError: the method, an option or its rule does not exist.
        UnsupportedGeneration, UnsupportedModel, MethodError, LoadError, PromptError: when
            ``generate`` is called, before any work.

    Differs from the library in: the noise comes from row seeds, themselves one draw from torch's
    default (CPU) generator, so that ``torch.manual_seed`` makes texts repeatable but not equal to
    the library's; the KV cache is the decoding's own and not returned. Stop strings are given as a
    ``StopStringCriteria``, because ``generate`` keeps its ``tokenizer`` from any callable.
    """
    all_options = options if draft is None else {**options, "draft": draft}
    without_rule = {name: value for name, value in all_options.items() if name != "rule"}
    read_spec(method, all_options.get("rule"), without_rule)
    Sampling(1.0, exact_text=exact_text)
    return _CustomGenerate(method, draft, exact_text, options)


class _CustomGenerate:
    """The callable that :func:`hf` returns."""

    def __init__(
        self,
        method: str,
        draft: str | nn.Module | Target | None,
        exact_text: bool,
        options: dict[str, Any],
    ) -> None:
        self.method, self.draft, self.exact_text = method, draft, exact_text
        self.options = options
        # by model: its target, the draft and the method over them
        self._built: WeakKeyDictionary[nn.Module, tuple[Target, object, Method]]
        self._built = WeakKeyDictionary()

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of a call; refuses stop strings. ``generate`` asks for the signature before
        anything else, and would next refuse stop strings for want of a tokenizer, which it keeps
        from callables even where it was given one."""
        arguments = _arguments_of_generate()
        settings = arguments.get("generation_config") or getattr(
            arguments.get("self"), "generation_config", None
        )
        given = arguments.get("kwargs", {}).get("stop_strings")
        if given or getattr(settings, "stop_strings", None):
            raise UnsupportedGeneration(
                "stop_strings is not supported by specwb.hf; give stopping_criteria="
                "[transformers.StopStringCriteria(tokenizer, stop_strings)]"
            )
        return inspect.signature(self.__call__)

    # attention_mask stays among the model's arguments: named here, generate would pass it twice
    def __call__(
        self,
        model,
        input_ids,
        logits_processor=None,
        stopping_criteria=None,
        generation_config=None,
        **model_kwargs,
    ):
        arguments, settings = _arguments_of_generate(), generation_config
        processors = logits_processor or LogitsProcessorList()
        criteria = stopping_criteria or StoppingCriteriaList()
        _check(arguments, settings, processors)
        starts = _starts(input_ids, model_kwargs.get("attention_mask"))
        sampling = Sampling()
        if settings.do_sample:
            temperature = 1.0 if settings.temperature is None else settings.temperature
            top_p = 1.0 if settings.top_p is None else settings.top_p
            sampling = Sampling(temperature, settings.top_k or 0, top_p, self.exact_text)
        processed = None
        if not _are_filters(processors, settings):
            padding = [row[:start] for row, start in zip(input_ids, starts, strict=True)]
            processed = _Processed(processors, padding, sampling)
        width = input_ids.shape[1]
        streamer = arguments.get("streamer")
        text = _Text(input_ids, criteria, streamer, _pad(settings, criteria))
        tables = []
        if settings.return_dict_in_generate:
            wanted = (("scores", settings.output_scores), ("logits", settings.output_logits))
            tables = [_Table(name, len(input_ids)) for name, is_wanted in wanted if is_wanted]
        target, method = self._for(model)
        steps = rounds(
            target,
            [row[start:] for row, start in zip(input_ids.tolist(), starts, strict=True)],
            method,
            max_new_tokens=_limit(criteria, width) - width,
            **asdict(sampling),
            seed=torch.default_generator if settings.do_sample else 0,
            eos=(),  # a criterion's matter, as every other end
            rescore=processed,
            trace=bool(tables),
        )
        for step in steps:
            for table in tables:
                table.take(step, processed)
            if text.follow(cast(State, step.state)):
                break
        if streamer is not None:
            streamer.end()
        if not settings.return_dict_in_generate:
            return text.ids
        columns: dict[str, Any] = {table.name: table.columns(text) for table in tables}
        return GenerateDecoderOnlyOutput(**{"sequences": text.ids, **columns})

    def _for(self, model: nn.Module) -> tuple[Target, Method]:
        """The target and the method for a model, built anew where either has changed."""
        target = wrap(model)
        draft = wrap(self.draft) if isinstance(self.draft, nn.Module) else self.draft
        built = self._built.get(model)
        if built is None or built[0] is not target or built[1] is not draft:
            options = self.options if draft is None else {**self.options, "draft": draft}
            built = target, draft, make_method(self.method, target, **options)
            self._built[model] = built
        return target, built[2]


_targets: WeakKeyDictionary[nn.Module, tuple[tuple, Target]] = WeakKeyDictionary()


def wrap(model: nn.Module) -> Target:
    """The model as a :class:`Target` without a tokenizer: one target for as long as the model's
    weights are the same, which does not keep the model alive."""
    known = _targets.get(model)
    if known is not None and known[0] == _fingerprint(model):
        return known[1]
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        names = ", ".join(sorted(map(str, devices)))
        raise UnsupportedModel(
            f"{type(model).__name__} must have all its weights on one device, they are on {names}"
        )
    target = Target(model, name=type(model).__name__)
    target.model = proxy(model)
    _targets[model] = _fingerprint(model), target  # the target's fused products replace weights
    return target


def _fingerprint(model: nn.Module) -> tuple:
    """Changes when weights are moved, cast, replaced or trained; the backbone's fused products
    would not follow all of these changes."""
    return tuple(
        (p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in model.parameters()
    )


def _arguments_of_generate() -> dict[str, Any]:
    """The local variables of the ``generate`` that is running. It does not hand streamer,
    assistant_model and synced_gpus to a callable, and a streamer that is never ended leaves its
    reader waiting."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def _check(arguments: dict[str, Any], settings: Any, processors: Sequence[Any]) -> None:
    """Checks that this is greedy decoding or sampling, from one model and of one text per row."""
    mode = settings.get_generation_mode(arguments.get("assistant_model"))
    if mode not in ("greedy_search", "sample"):
        raise UnsupportedGeneration(
            f"generation mode {str(mode.value)!r} is not supported by specwb.hf, "
            "only greedy_search and sample are"
        )
    given = {
        name
        for name, value in arguments.get("kwargs", {}).items()
        if value is not None and value is not False and not hasattr(settings, name)
    }
    given -= {"input_ids", "attention_mask", "tokenizer"}
    if arguments.get("synced_gpus"):
        given.add("synced_gpus")
    if settings.return_dict_in_generate:
        tables = ("output_attentions", "output_hidden_states")
        given.update(name for name in tables if getattr(settings, name, None))
    if given:
        raise UnsupportedGeneration(
            f"argument {min(given)!r} is not supported by specwb.hf; the prompt is input_ids and "
            "attention_mask"
        )
    for processor in processors:
        name = getattr(processor, "__name__", type(processor).__name__)
        if name not in PROCESSORS:
            raise UnsupportedGeneration(
                f"logits processor {name} is not supported by specwb.hf: it is not known to be a "
                "function of the text alone that can be applied to the nodes of a draft"
            )


def _starts(input_ids: Tensor, mask: Tensor | None) -> list[int]:
    """The column at which each row's text begins, after its left padding."""
    inside = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    inside = inside != 0
    if inside.shape != input_ids.shape or bool((inside[:, 1:] < inside[:, :-1]).any()):
        raise UnsupportedGeneration(
            "attention_mask must be left padding, zeros and then ones: "
            "set padding_side='left' on the tokenizer"
        )
    if not bool(inside.any(1).all()):
        empty = inside.any(1).tolist().index(False)
        raise UnsupportedGeneration(f"prompt {empty} is empty; it needs at least one token")
    return inside.int().argmax(1).tolist()


def _are_filters(processors: Sequence[Any], settings: Any) -> bool:
    """Whether the processors are the settings' temperature, top-k and top-p and nothing else."""
    is_set = (
        settings.temperature not in (None, 1),
        bool(settings.top_k),
        settings.top_p is not None and settings.top_p < 1,
    )
    kinds = [kind for kind, on in zip(FILTERS, is_set, strict=True) if settings.do_sample and on]
    return [type(processor) for processor in processors] == kinds


def _pad(settings: Any, criteria: StoppingCriteriaList) -> Tensor | None:
    """The token that rows are padded with after they stop, None where they are not: the library
    pads only where a criterion has an ``eos_token_id``."""
    if not any(hasattr(criterion, "eos_token_id") for criterion in criteria):
        return None
    if settings._pad_token_tensor is None:
        raise UnsupportedGeneration(
            "pad_token_id must be set: rows that end at an eos_token_id are padded"
        )
    return settings._pad_token_tensor


def _limit(criteria: StoppingCriteriaList, width: int) -> int:
    """The number of columns that the text may have, of which the prompt takes ``width``."""
    limits = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
    if not limits:
        raise UnsupportedGeneration(
            "max_length or max_new_tokens must be set: memory is reserved for the text"
        )
    return max(min(limits), width + 1)


class _Processed:
    """Replaces a step's scores by those after the logits processors; ``raw`` are the target's own
    logits of the last step. ``padding`` is each row's, in front of its text."""

    def __init__(
        self, processors: Sequence[Any], padding: list[Tensor], sampling: Sampling
    ) -> None:
        if sampling.temperature == 0:  # filters leave the best token, and T near 0 divides
            processors = [p for p in processors if not type(p).__name__.endswith("LogitsWarper")]
        self.processors = [
            LogitsProcessorList([_of_row(processor, row) for processor in processors])
            for row in range(len(padding))
        ]
        self.padding = padding
        # the processors end with temperature and filters
        self.sampling = Sampling(float(sampling.temperature > 0), exact_text=sampling.exact_text)

    def __call__(self, state: State, draft: Draft, scores: Scores) -> Scores:
        self.raw, tree = scores.logits, draft.tree
        logits = self.raw.to(torch.float32, copy=True)
        ids: Any
        for row, length in enumerate(state.length.tolist()):
            shape = row if tree.R > 1 else 0
            text = torch.cat([self.padding[row].to(logits.device), state.tokens[row, :length]])
            depth = tree.depth[shape, : tree.v]
            for d in range(tree.D + 1):
                nodes = (depth == d).nonzero()[:, 0]
                path = draft.tokens[row, tree.trail[shape, nodes, 1 : d + 1]]
                ids = torch.cat([text.expand(len(nodes), -1), path], 1)
                logits[row, nodes] = self.processors[row](ids, logits[row, nodes])
        return Scores(logits, self.sampling, scores.features)


def _of_row(processor: Any, row: int) -> Any:
    """The processor for one row alone: the repetition penalty knows each row's padding by its
    place in the batch."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = int(ignored[row])
    return processor


class _Text:
    """The text as ``generate`` would have it: it grows by one column for all rows together, and the
    stopping criteria are asked after each. The streamer is given every column; rows that have
    stopped go on with ``pad``, or as they are where it is None. ``padded [B, columns]`` says of the
    new columns where they do so with ``pad``."""

    def __init__(
        self, input_ids: Tensor, criteria: StoppingCriteriaList, streamer: Any, pad: Tensor | None
    ) -> None:
        self.ids, self.criteria, self.streamer, self.pad = input_ids, criteria, streamer, pad
        self.width = input_ids.shape[1]
        self.open = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        self.padded = self.open[:, None][:, :0]

    def follow(self, state: State) -> bool:
        """Takes the columns that all rows have reached; returns whether every row has stopped."""
        counts = (state.length - state.start).to(self.ids.device)
        index = torch.arange(int(counts.max()), device=state.start.device)
        new = state.tokens.gather(1, state.start[:, None] + index).to(self.ids.device)
        while bool(self.open.any()):
            column = self.ids.shape[1] - self.width
            awaited = self.open if self.pad is not None else torch.ones_like(self.open)
            if bool((awaited & (counts <= column)).any()):
                break
            tokens, padded = new[:, column], torch.zeros_like(self.open)
            if self.pad is not None:
                padded = ~self.open
                tokens = torch.where(padded, self.pad.to(new), tokens)
            self.ids = torch.cat([self.ids, tokens[:, None]], 1)
            self.padded = torch.cat([self.padded, padded[:, None]], 1)
            self.open = self.open & ~self.criteria(self.ids, None)
            if self.streamer is not None:
                self.streamer.put(self.ids[:, -1].cpu())
        if self.pad is not None:
            with torch.inference_mode():
                state.done |= ~self.open.to(state.done.device)
        return not bool(self.open.any())


class _Table:
    """The ``scores`` or ``logits`` of ``generate``: of each new token the row ``[V]`` that it was
    taken from, after the processors or the target's own. Padding counts as certain: its row is 0 at
    ``pad`` and -inf elsewhere."""

    def __init__(self, name: str, rows: int) -> None:
        self.name = name
        self.rows: list[list[Tensor]] = [[] for _ in range(rows)]

    def take(self, step: Step, processed: _Processed | None) -> None:
        """Takes the rows of a step's tokens: token j follows node j of the accepted path."""
        scores = cast(Scores, step.scores)
        raw = scores.logits if processed is None else processed.raw
        paths, counts = step.verdict.path.tolist(), step.verdict.count.tolist()
        for i, (path, count) in enumerate(zip(paths, counts, strict=True)):
            for node in path[: max(count, 0)]:
                row = raw[i, node] if self.name == "logits" else scores.at(i, node)
                # a copy, since a view would keep the scores of the whole draft
                self.rows[i].append(row.to(torch.float32, copy=True))

    def columns(self, text: _Text) -> tuple[Tensor, ...]:
        """One ``[B, V]`` for each new column."""
        certain = torch.full_like(self.rows[0][0], -torch.inf)
        if text.pad is not None:
            certain[text.pad] = 0.0
        return tuple(
            torch.stack([certain if padded else row[j] for row, padded in zip(self.rows, column)])
            for j, column in enumerate(text.padded.T.tolist())
        )
