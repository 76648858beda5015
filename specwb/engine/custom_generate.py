"""``specwb.hf``: the transformers library's ``generate`` with the decoding of this package.

::

    model.generate(**inputs, custom_generate=specwb.hf("sps", draft="lab-draft"))
"""

from __future__ import annotations

import copy
import inspect
import sys
import typing
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessorList,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    MaxLengthCriteria,
)

from specwb.core.errors import SpecwbError
from specwb.core.flow import Scores, State, Step
from specwb.core.probability import Sampling
from specwb.engine.decoding import rounds
from specwb.engine.methods import Method, read_spec
from specwb.engine.methods import method as make_method
from specwb.engine.processors import Processors, impure
from specwb.models.architectures import UnsupportedModel
from specwb.models.target import Target

# Arguments of a forward that say nothing about the text, or that have no meaning here (the cache is
# our own).
_IGNORED = {
    "attention_mask",
    "cache_position",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "past_key_values",
    "position_ids",
    "return_dict",
    "use_cache",
}


class UnsupportedGeneration(SpecwbError, ValueError):
    """``generate`` was asked for something that this decoding does not do.

    It is refused by name before any work.
    """


def hf(
    method: str = "sps",
    draft: str | nn.Module | Target | None = None,
    tokenizer: Any = None,
    **options,
) -> Callable[..., Any]:
    """Returns a ``custom_generate`` for the transformers library.

    With it, ``generate`` returns the same tokens as without it at T = 0, and tokens of the same
    distribution at T > 0.

    The model's weights are wrapped once, whatever number of calls and instances uses them, and
    again when they have changed. Batches are left-padded as always.
    Everything ``generate`` prepares is obeyed: sampling settings (the library's default top_k = 50
    too), logits processors, stopping criteria (without scores), ``num_return_sequences``, a
    streamer, ``return_dict_in_generate`` with ``output_scores`` and ``output_logits``: one
    ``[rows, V]`` for every new token, float32. Where a row has stopped before the others they are 0
    at ``pad_token_id`` and -inf elsewhere: padding is certain, and adds nothing to the sums of
    ``compute_transition_scores``.

    Logits processors are applied to every visited node's own path, with the row's padding in front
    as the library would have it, so that a history-dependent one changes p and never what p means.
    They run row by row without CUDA graphs. One that is not known to be a pure function of a row's
    (input_ids, scores) is refused; a processor of your own says that it is by an attribute
    ``specwb_pure = True``. Stopping criteria see every token prefix, in step over the batch, and a
    row is cut where the first one says stop.

    So the text has the distribution of plain sampling with these processors: p masked and
    renormalised at each position. For a grammar's mask that is not the model's distribution given
    that the whole text obeys the grammar, neither here nor in the library
    (theory/01_single_draft.md, after theorem 1.3).

    Args:
        method: a method's spec, such as ``"mcsd:tree=4-2-2"``.
        draft: the draft model, for methods that have one: a name, folder, hub id or loaded model.
        tokenizer: the model's, where the draft model's vocabulary has another number of rows of
            padding; none is needed if the draft was loaded with its own.
        options: the method's other options, as in :func:`specwb.method`.

    Raises:
        MethodError: the method, an option or its rule does not exist.
        UnsupportedGeneration, UnsupportedModel, MethodError, LoadError, PromptError: when
            ``generate`` is called, before any work.

    Differs from the library in: noise comes from row seeds, themselves one draw from torch's
    default (CPU) generator, so that ``torch.manual_seed`` makes texts repeatable but not equal to
    the library's; a ``past_key_values`` that is passed is left as it is, empty if it was, and the
    result's is None: the cache is this decoding's own, so the next turn of a chat is given its
    whole text. Stop strings are given as a ``StopStringCriteria``, because ``generate`` keeps its
    ``tokenizer`` from any callable.
    """
    all_options = options if draft is None else {**options, "draft": draft}
    without_rule = {name: value for name, value in all_options.items() if name != "rule"}
    read_spec(method, all_options.get("rule"), without_rule)
    return _CustomGenerate(method, draft, options, tokenizer)


class _CustomGenerate:
    """What :func:`hf` returns."""

    def __init__(
        self,
        method: str,
        draft: str | nn.Module | Target | None,
        options: dict,
        tokenizer: Any = None,
    ) -> None:
        self.method, self.draft, self.options = method, draft, options
        self.tokenizer = tokenizer
        # by model: its target, the draft, the target with the tokenizer and the method over them
        self._built: WeakKeyDictionary[nn.Module, tuple[Target, object, Target, Method]]
        self._built = WeakKeyDictionary()

    def __repr__(self) -> str:
        options = self.options if self.draft is None else {"draft": self.draft, **self.options}
        if self.tokenizer is not None:
            options = {"tokenizer": type(self.tokenizer), **options}
        arguments = [f"{name}={value!r}" for name, value in options.items()]
        return f"specwb.hf({', '.join([repr(self.method), *arguments])})"

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of a call; refuses stop strings. ``generate`` asks for the signature before
        anything else, and would next refuse stop strings for want of a tokenizer, which it keeps
        from callables even where it was given one."""
        arguments = _arguments_of_generate()
        model = arguments.get("self")
        settings = arguments.get("generation_config") or getattr(model, "generation_config", None)
        stop_strings = arguments.get("kwargs", {}).get("stop_strings")
        if stop_strings or getattr(settings, "stop_strings", None):
            instead = "stopping_criteria=[transformers.StopStringCriteria(tokenizer, stop_strings)]"
            message = f"stop_strings is not supported by specwb.hf; give {instead}"
            raise UnsupportedGeneration(message)
        return inspect.signature(self.__call__)

    def __reduce__(self) -> tuple[Any, ...]:
        # what was built belongs to models of this process
        return type(self), (self.method, self.draft, self.options, self.tokenizer)

    # attention_mask stays among the model's arguments: named here, generate would pass it twice
    def __call__(
        self,
        model,
        input_ids,
        logits_processor=None,
        stopping_criteria=None,
        generation_config=None,
        streamer=None,
        synced_gpus=None,
        **model_kwargs,
    ):
        settings = generation_config
        arguments = _arguments_of_generate()
        streamer = streamer or arguments.get("streamer")
        criteria = stopping_criteria or StoppingCriteriaList()
        processors = logits_processor or LogitsProcessorList()
        synced = synced_gpus or arguments.get("synced_gpus")
        _check(settings, model_kwargs, arguments.get("assistant_model"), synced)
        starts = _starts(input_ids, settings, model_kwargs)
        sampling = _sampling(settings)
        if name := impure(processors):
            raise UnsupportedGeneration(
                f"logits processor {name} cannot be applied to the nodes of a draft: "
                "it is not known to be a pure function of a row's (input_ids, scores); "
                f"if it is, set {name}.specwb_pure = True"
            )
        pad = _pad(settings, criteria)
        width = input_ids.shape[1]
        limit = _limit(criteria, width)
        ends = [
            token
            for criterion in criteria
            if type(criterion) is EosTokenCriteria
            for token in criterion.eos_token_id.tolist()
        ]
        rescore = None
        if not _is_plain_sampling(processors, settings):
            rescore = Processors(processors, input_ids, starts, ends, limit)

        tables = {}
        if settings.return_dict_in_generate:
            asked = {"scores": settings.output_scores, "logits": settings.output_logits}
            tables = {name: _Table(name, len(input_ids)) for name, on in asked.items() if on}
        target, method = self._for(model)
        steps = rounds(
            target,
            [row[start:] for row, start in zip(input_ids.tolist(), starts, strict=True)],
            method,
            max_new_tokens=limit - width,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=torch.default_generator if settings.do_sample else 0,
            eos=ends,
            rescore=rescore,
            trace=bool(tables),
        )
        text = _Text(input_ids, criteria, streamer, pad)
        own_stops = (EosTokenCriteria, MaxLengthCriteria)  # the engine obeys these itself
        by_column = streamer is not None or any(type(c) not in own_stops for c in criteria)
        for step in steps:
            state = typing.cast(State, step.state)
            for table in tables.values():
                table.take(step)
            if by_column and text.follow(state):
                break
        if streamer is not None:
            streamer.end()
        if not by_column:
            text.complete(state)
        if not settings.return_dict_in_generate:
            return text.ids
        found: dict[str, Any] = {name: table.columns(text) for name, table in tables.items()}
        return GenerateDecoderOnlyOutput(**{"sequences": text.ids, **found})

    def _for(self, model: nn.Module) -> tuple[Target, Method]:
        """The target and the method for a model, built anew where either has changed."""
        target = wrap(model)
        draft = wrap(self.draft) if isinstance(self.draft, nn.Module) else self.draft
        built = self._built.get(model)
        if built is None or built[0] is not target or built[1] is not draft:
            options = self.options if draft is None else {**self.options, "draft": draft}
            known = target
            if self.tokenizer is not None:  # the target itself is every instance's
                known = copy.copy(target)
                known.tokenizer = self.tokenizer
            built = target, draft, known, make_method(self.method, known, **options)
            self._built[model] = built
        return built[2], built[3]


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
        wanted = f"{type(model).__name__} must have all its weights on one device"
        raise UnsupportedModel(f"{wanted}, they are on {names}")
    target = Target(model, name=type(model).__name__)
    target.model = proxy(model)
    _targets[model] = _fingerprint(model), target
    return target


def _fingerprint(model: nn.Module) -> tuple:
    """Changes when weights are moved, cast, replaced or trained; the backbone's fused products
    would not follow all of these changes."""
    return tuple(
        (p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in model.parameters()
    )


def _arguments_of_generate() -> dict[str, Any]:
    """The local variables of the ``generate`` that is running, none where none is. It does not hand
    streamer, assistant_model and synced_gpus to a callable, and a streamer that is never ended
    leaves its reader waiting."""
    from transformers import GenerationMixin

    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def _or(value, default):
    return default if value is None else value


def _sampling(settings) -> Sampling:
    if not settings.do_sample:
        return Sampling()
    top_k, top_p = _or(settings.top_k, 0), _or(settings.top_p, 1.0)
    return Sampling(_or(settings.temperature, 1.0), top_k, top_p)


def _is_plain_sampling(processors, settings) -> bool:
    """Whether the processors are just temperature, top-k and top-p, as the engine has them."""
    usual = {
        TemperatureLogitsWarper: settings.temperature not in (None, 1),
        TopKLogitsWarper: settings.top_k,
        TopPLogitsWarper: _or(settings.top_p, 1.0) < 1,
    }
    kinds = [kind for kind, is_on in usual.items() if settings.do_sample and is_on]
    return [type(processor) for processor in processors] == kinds


def _pad(settings, criteria) -> Tensor | None:
    """The token that rows are padded with after they stop, None where they are not: the library
    pads only where a criterion has an ``eos_token_id``."""
    if not any(hasattr(criterion, "eos_token_id") for criterion in criteria):
        return None
    if settings._pad_token_tensor is None:
        reason = "rows that end at an eos_token_id are padded"
        raise UnsupportedGeneration(f"{reason}: pad_token_id must be set")
    return settings._pad_token_tensor


def _limit(criteria, width: int) -> int:
    """The number of columns that the text may have, of which the prompt takes ``width``."""
    limits = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
    if not limits:
        reason = "memory for the text is reserved in advance"
        raise UnsupportedGeneration(f"max_length or max_new_tokens must be set: {reason}")
    return max(min(limits), width + 1)


def _check(settings, model_kwargs: dict, assistant, synced) -> None:
    """Checks that this is greedy decoding or sampling, from one model and of one text per row."""
    mode = settings.get_generation_mode(assistant)
    if mode not in ("greedy_search", "sample"):
        raise UnsupportedGeneration(
            f"generation mode {str(mode.value)!r} is not supported by specwb.hf, "
            "only greedy_search and sample are"
        )
    if synced:
        reason = "the weights must be on one device"
        raise UnsupportedGeneration(f"synced_gpus is not supported by specwb.hf: {reason}")
    if settings.return_dict_in_generate:
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(settings, name, None):
                reason = "decoding steps of several tokens have no such tuple"
                message = f"{name}=True is not supported by specwb.hf: {reason}"
                raise UnsupportedGeneration(message)
    for name, value in model_kwargs.items():
        if name not in _IGNORED and value is not None and value is not False:
            problem = f"argument {name!r} is not supported by specwb.hf"
            raise UnsupportedGeneration(f"{problem}; the prompt is input_ids and attention_mask")


def _starts(input_ids: Tensor, settings, model_kwargs: dict) -> list[int]:
    """The column at which each row's text begins, after its left padding."""
    mask, columns = model_kwargs.get("attention_mask"), input_ids.shape[1]
    past_columns = getattr(settings, "_mask_length", columns)
    mask_columns = past_columns if mask is None else mask.shape[1]
    if mask_columns != columns:
        raise UnsupportedGeneration(
            f"input_ids must hold the whole text: it has {columns} columns "
            f"and attention_mask {mask_columns}"
        )
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    inside = mask != 0
    if bool((inside[:, 1:] < inside[:, :-1]).any()):
        raise UnsupportedGeneration(
            "attention_mask must be left padding, zeros and then ones: "
            "set padding_side='left' on the tokenizer"
        )
    if not bool(inside.any(1).all()):
        empty = inside.any(1).tolist().index(False)
        raise UnsupportedGeneration(f"prompt {empty} is empty; it needs at least one token")
    positions = model_kwargs.get("position_ids")
    if positions is not None and not _count_from_zero(positions, inside):
        message = "position_ids must count each row's tokens from 0; leave them out"
        raise UnsupportedGeneration(message)
    return inside.int().argmax(1).tolist()


def _count_from_zero(positions: Tensor, inside: Tensor) -> bool:
    """Whether the positions ``inside`` the texts count each row's tokens from 0."""
    if positions.shape[-1] != inside.shape[1]:
        return False
    expected = inside.long().cumsum(1) - 1
    return not bool(((positions.to(expected.device) != expected) & inside).any())


class _Text:
    """The text as ``generate`` would have it: it grows by one column for all rows together, and the
    stopping criteria are asked after each. The streamer is given every column; rows that have
    stopped go on with ``pad``, or as they are where it is None. ``padded [B, columns]`` says of the
    new columns where they do so with ``pad``."""

    def __init__(
        self, input_ids: Tensor, criteria: StoppingCriteriaList, streamer, pad: Tensor | None
    ) -> None:
        self.ids, self.criteria, self.streamer, self.pad = input_ids, criteria, streamer, pad
        self.width = input_ids.shape[1]
        self.open = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        self.padded = self.open[:, None][:, :0]

    def follow(self, state: State) -> bool:
        """Takes the columns that all rows have reached; returns whether every row has stopped."""
        counts, new = self._new_tokens(state)
        while bool(self.open.any()):
            column = self.ids.shape[1] - self.width
            awaited = self.open if self.pad is not None else torch.ones_like(self.open)
            if bool((awaited & (counts <= column)).any()):
                break
            self._append(new[:, column, None], ~self.open[:, None])
            self.open = self.open & ~self.criteria(self.ids, None)
            if self.streamer is not None:
                self.streamer.put(self.ids[:, -1].cpu())
        if self.pad is not None:
            with torch.inference_mode():
                state.done |= ~self.open.to(state.done.device)
        return not bool(self.open.any())

    def complete(self, state: State) -> None:
        """Takes the finished text, where only the end of text and the limit stop a row."""
        counts, new = self._new_tokens(state)
        self._append(new, torch.arange(new.shape[1], device=new.device) >= counts[:, None])

    def _append(self, new: Tensor, stopped: Tensor) -> None:
        """Appends columns ``[B, n]``, padded where their rows have ``stopped``."""
        if self.pad is None:
            stopped = torch.zeros_like(stopped)
        else:
            new = torch.where(stopped, self.pad.to(new), new)
        self.ids = torch.cat([self.ids, new], 1)
        self.padded = torch.cat([self.padded, stopped], 1)

    def _new_tokens(self, state: State) -> tuple[Tensor, Tensor]:
        """How many new tokens every row has, ``[B]``, and the tokens, ``[B, longest]``."""
        counts = state.length - state.start
        index = torch.arange(int(counts.max()), device=counts.device)
        tokens = state.tokens.gather(1, state.start[:, None] + index)
        return counts.to(self.ids.device), tokens.to(self.ids.device)


class _Table:
    """The ``scores`` or ``logits`` of ``generate``: of each new token the row ``[V]`` that it was
    taken from, after the processors or the target's own. Padding counts as certain: its row is 0 at
    ``pad`` and -inf elsewhere."""

    def __init__(self, name: str, rows: int) -> None:
        self.of_target = name == "logits"
        self.rows: list[list[Tensor]] = [[] for _ in range(rows)]

    def take(self, step: Step) -> None:
        """Takes the rows of a step's tokens: token j follows node j of the accepted path."""
        scores = typing.cast(Scores, step.scores)
        paths, counts = step.verdict.path.tolist(), step.verdict.count.tolist()
        for i, (path, count) in enumerate(zip(paths, counts, strict=True)):
            for node in path[: max(count, 0)]:
                row = scores.logits[i, node] if self.of_target else scores.at(i, node)
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
