"""The plug for the transformers library: its ``generate`` with the decoding of this package.

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
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, logits_process

from specwb.engine import rounds
from specwb.errors import SpecwbError
from specwb.flow import Draft, Scores, State
from specwb.methods import Method, read_spec
from specwb.methods import method as make_method
from specwb.models.backbone import UnsupportedModel
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.tree import Tree

# what these give for a row depends on that row's (input_ids, scores) alone, and calling them leaves no trace
PURE = {
    getattr(logits_process, name)
    for name in (
        "EpsilonLogitsWarper", "EtaLogitsWarper", "ExponentialDecayLengthPenalty", "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor", "LogitNormalization", "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor", "NoRepeatNGramLogitsProcessor", "PrefixConstrainedLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor", "TemperatureLogitsWarper",
        "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper",
    )
}  # fmt: skip
# arguments of a forward that say nothing about the text, or that have no meaning here (the cache is our own)
_IGNORED = {
    "attention_mask", "cache_position", "logits_to_keep", "output_attentions", "output_hidden_states", "past_key_values", "position_ids",
    "return_dict", "use_cache",
}  # fmt: skip


class UnsupportedGeneration(SpecwbError, ValueError):
    """Something asked of ``generate`` that this decoding does not do, refused by name before any work."""


def hf(method: str = "sps", draft: str | nn.Module | Target | None = None, **options) -> Callable[..., Any]:
    """A ``custom_generate`` for the transformers library: the same tokens at T = 0 and the same law at T > 0 as ``generate`` without it.

    The model's weights are wrapped once, whatever number of calls and plugs uses it, and again when they have changed; its tokenizer is
    not needed. Batches are left-padded as always. Everything ``generate`` prepares is obeyed: sampling settings (the library's default
    top_k = 50 too), logits processors, stopping criteria, ``num_return_sequences``, a streamer, ``return_dict_in_generate``.

    Logits processors are applied to every visited node's own path, with the row's padding in front as the library would have it, so that
    a history-dependent one changes p and never what p means. They run row by row without CUDA graphs. One that is not known to be a pure
    function of a row's (input_ids, scores) is refused; a processor of your own says that it is by an attribute ``specwb_pure = True``.
    Stopping criteria see every token prefix, in step over the batch, and a row is cut where the first one says stop.

    So the text has the distribution of plain sampling with these processors: p masked and
    renormalised at each place. For a grammar's mask that is not the model's distribution given that
    the whole text obeys the grammar, neither here nor in the library (theory/01_single_draft.md,
    after theorem 1.3).

    Args:
        method: a method's spec, such as ``"mcsd:tree=4-2-2"``; ``options`` and ``draft`` (a name, folder, hub id or loaded model) are its
            options, as in :func:`specwb.method`.
    Raises:
        MethodError: the method, an option or its rule does not exist.
        UnsupportedGeneration, UnsupportedModel, MethodError, LoadError, PromptError: when ``generate`` is called, before any work.
    Differs from the library in: noise comes from row seeds, themselves one draw from torch's default (CPU) generator, so that
    ``torch.manual_seed`` makes texts repeatable but not equal to the library's; a ``past_key_values``
    that is passed is left alone, empty if it was, and the result's is None: the cache is this
    decoding's own, so the next turn of a chat is given its whole text. Stop strings are given as a
    ``StopStringCriteria``, because ``generate`` keeps its ``tokenizer`` from any callable.
    """
    named = options if draft is None else {**options, "draft": draft}
    own = {name: value for name, value in named.items() if name != "rule"}
    read_spec(method, named.get("rule"), own)
    return _Plug(method, draft, options)


class _Plug:
    def __init__(self, method: str, draft: str | nn.Module | Target | None, options: dict) -> None:
        self.method, self.draft, self.options = method, draft, options
        self._built: WeakKeyDictionary[nn.Module, tuple[Target, object, Method]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        given = self.options if self.draft is None else {"draft": self.draft, **self.options}
        named = [f"{name}={value!r}" for name, value in given.items()]
        return f"specwb.hf({', '.join([repr(self.method), *named])})"

    @property
    def __signature__(self) -> inspect.Signature:
        """What ``generate`` asks for before anything else. It would next refuse stop strings for
        want of a tokenizer, which it keeps from callables even where it was given one."""
        given = _locals_of_generate()
        model = given.get("self")
        settings = given.get("generation_config") or getattr(model, "generation_config", None)
        if given.get("kwargs", {}).get("stop_strings") or getattr(settings, "stop_strings", None):
            instead = "stopping_criteria=[transformers.StopStringCriteria(tokenizer, stop_strings)]"
            refused = "stop_strings is not supported by specwb.hf"
            raise UnsupportedGeneration(f"{refused}; give {instead}")
        return inspect.signature(self.__call__)

    def __getstate__(self) -> dict[str, Any]:
        # what was built belongs to models of this process
        return {"method": self.method, "draft": self.draft, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # attention_mask stays among the model's arguments: named here, generate would pass it twice
    def __call__(
        self, model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None, streamer=None, synced_gpus=None, **model_kwargs
    ):
        settings = generation_config
        given = _locals_of_generate()
        streamer = given.get("streamer") if streamer is None else streamer
        criteria = stopping_criteria if stopping_criteria is not None else StoppingCriteriaList()
        processors = logits_processor if logits_processor is not None else LogitsProcessorList()
        _check(settings, model_kwargs, given.get("assistant_model"), synced_gpus or given.get("synced_gpus"))
        starts = _starts(input_ids, settings, model_kwargs)
        width = input_ids.shape[1]
        sampling = Sampling()
        if settings.do_sample:
            heat = _or(settings.temperature, 1.0)
            sampling = Sampling(heat, _or(settings.top_k, 0), _or(settings.top_p, 1.0))
        _check_processors(processors)
        # generate's own temperature, top-k and top-p alone are what the engine does anyway
        usual = {TemperatureLogitsWarper: sampling.temperature not in (0, 1), TopKLogitsWarper: sampling.top_k, TopPLogitsWarper: sampling.top_p < 1}
        plain = [type(one) for one in processors] == [kind for kind, on in usual.items() if on]
        pad = settings._pad_token_tensor
        pads = any(hasattr(one, "eos_token_id") for one in criteria)
        if pads and pad is None:
            raise UnsupportedGeneration("rows that end at an eos_token_id are padded: pad_token_id must be set")
        limits = [one.max_length for one in criteria if type(one) is MaxLengthCriteria]
        if not limits:
            raise UnsupportedGeneration("max_length or max_new_tokens must be set: memory for the text is reserved in advance")
        longest = max(min(limits), width + 1)
        ends = [x for one in criteria if type(one) is EosTokenCriteria for x in one.eos_token_id.tolist()]

        target, method = self._for(model)
        steps = rounds(
            target,
            [row[start:] for row, start in zip(input_ids.tolist(), starts, strict=True)],
            method,
            max_new_tokens=longest - width,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=torch.default_generator if settings.do_sample else 0,
            eos=ends,
            rescore=None if plain else _Rescore(processors, input_ids, starts, ends, longest),
        )
        text = _Text(input_ids, criteria, streamer, pad if pads else None)
        followed = streamer is not None or any(type(one) not in (EosTokenCriteria, MaxLengthCriteria) for one in criteria)
        for step in steps:
            state = typing.cast(State, step.state)
            if followed and text.follow(state):
                break
        if streamer is not None:
            streamer.end()
        sequences: Any = text.ids if followed else text.whole(state)
        if not settings.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)

    def _for(self, model: nn.Module) -> tuple[Target, Method]:
        target = wrap(model)
        draft = wrap(self.draft) if isinstance(self.draft, nn.Module) else self.draft
        held = self._built.get(model)
        if held is None or held[0] is not target or held[1] is not draft:
            options = self.options if draft is None else {**self.options, "draft": draft}
            held = self._built[model] = target, draft, make_method(self.method, target, **options)
        return target, held[2]


_wrapped: WeakKeyDictionary[nn.Module, tuple[tuple, Target]] = WeakKeyDictionary()


def wrap(model: nn.Module) -> Target:
    """The model as a :class:`Target` without a tokenizer, one for as long as its weights are the same; it does not keep the model alive.

    Raises:
        UnsupportedModel: an architecture or layers the backbone does not run, or weights that are not all on one device.
    """
    held = _wrapped.get(model)
    if held is None or held[0] != _fingerprint(model):
        places = {p.device for p in model.parameters()}
        if len(places) != 1 or next(iter(places)).type == "meta":
            raise UnsupportedModel(
                f"{type(model).__name__} must have all its weights on one device, they are on {', '.join(sorted(map(str, places)))}"
            )
        target = Target(model, name=type(model).__name__)
        target.model = proxy(model)
        held = _wrapped[model] = _fingerprint(model), target
    return held[1]


def _fingerprint(model: nn.Module) -> tuple:
    """Changes when weights are moved, cast, replaced or trained: the backbone's fused products would not follow all of these."""
    return tuple((p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in model.parameters())


def _locals_of_generate() -> dict[str, Any]:
    """The arguments of the ``generate`` that is running: it does not hand streamer, assistant_model and synced_gpus to a callable, and
    a streamer that is never ended leaves its reader waiting. Empty where none is."""
    from transformers import GenerationMixin

    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def _or(value, default):
    return default if value is None else value


def _check(settings, model_kwargs: dict, assistant, synced) -> None:
    """Raises UnsupportedGeneration for what is neither greedy decoding nor sampling from one model and one text a row."""
    mode = settings.get_generation_mode(assistant)
    if mode not in ("greedy_search", "sample"):
        raise UnsupportedGeneration(f"generation mode {str(mode.value)!r} is not supported by specwb.hf, only greedy_search and sample are")
    if synced:
        raise UnsupportedGeneration("synced_gpus is not supported by specwb.hf: the weights must be on one device")
    if settings.return_dict_in_generate:
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
            if getattr(settings, name, None):
                raise UnsupportedGeneration(f"{name}=True is not supported by specwb.hf: rounds of several tokens have no such tuple")
    for name, value in model_kwargs.items():
        if name not in _IGNORED and value is not None and value is not False:
            raise UnsupportedGeneration(f"argument {name!r} is not supported by specwb.hf; the prompt is input_ids and attention_mask")


def _starts(input_ids: Tensor, settings, model_kwargs: dict) -> list[int]:
    """Where each row's text begins after its left padding. Raises UnsupportedGeneration for any other mask or other positions."""
    mask, shape = model_kwargs.get("attention_mask"), tuple(input_ids.shape)
    seen = getattr(settings, "_mask_length", shape[1]) if mask is None else mask.shape[1]
    if seen != shape[1]:
        raise UnsupportedGeneration(f"input_ids must hold the whole text: it has {shape[1]} columns and attention_mask {seen}")
    mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
    inside = mask != 0
    if bool((inside[:, 1:] < inside[:, :-1]).any()):
        raise UnsupportedGeneration("attention_mask must be left padding, zeros and then ones: set padding_side='left' on the tokenizer")
    if not bool(inside.any(1).all()):
        raise UnsupportedGeneration(f"prompt {inside.any(1).tolist().index(False)} is empty; it needs at least one token")
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        usual = inside.long().cumsum(1) - 1
        if positions.shape[-1] != shape[1] or bool(((positions.to(usual.device) != usual) & inside).any()):
            raise UnsupportedGeneration("position_ids must count each row's tokens from 0; leave them out")
    return inside.int().argmax(1).tolist()


def _check_processors(processors) -> None:
    for one in processors:
        if type(one) not in PURE and not getattr(one, "specwb_pure", False):
            name = getattr(one, "__name__", type(one).__name__)
            raise UnsupportedGeneration(
                f"logits processor {name} cannot be applied to the nodes of a draft: it is not known to be a pure function of a row's "
                f"(input_ids, scores); if it is, set {name}.specwb_pure = True"
            )


class _Text:
    """The text as ``generate`` would have it: grown by one column for all rows together, its criteria asked after each.

    pad: what rows that have stopped go on with; None where they go on as they are (the library pads only where a criterion has an
    ``eos_token_id``).
    """

    def __init__(self, input_ids: Tensor, criteria: StoppingCriteriaList, streamer, pad: Tensor | None) -> None:
        self.ids, self.criteria, self.streamer, self.pad = input_ids, criteria, streamer, pad
        self.width = input_ids.shape[1]
        self.open = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def follow(self, state: State) -> bool:
        """Take the columns that all rows have come to; has every row stopped?"""
        counts, new = self._new(state)
        while bool(self.open.any()):
            column = self.ids.shape[1] - self.width
            waited = self.open if self.pad is not None else torch.ones_like(self.open)
            if bool((waited & (counts <= column)).any()):
                break
            token = new[:, column]
            if self.pad is not None:
                token = torch.where(self.open, token, self.pad.to(token))
            self.ids = torch.cat([self.ids, token[:, None]], 1)
            self.open = self.open & ~self.criteria(self.ids, None)
            if self.streamer is not None:
                self.streamer.put(token.cpu())
        if self.pad is not None:
            with torch.inference_mode():
                state.done |= ~self.open.to(state.done.device)
        return not bool(self.open.any())

    def whole(self, state: State) -> Tensor:
        """The finished text, where nothing but the end of text and the limit stop a row."""
        counts, new = self._new(state)
        if self.pad is not None:
            beyond = torch.arange(new.shape[1], device=new.device) >= counts[:, None]
            new = torch.where(beyond, self.pad.to(new), new)
        return torch.cat([self.ids, new], 1)

    def _new(self, state: State) -> tuple[Tensor, Tensor]:
        """How many new tokens every row has ``[B]``, and the tokens ``[B, most]``."""
        counts = state.known - state.start
        place = torch.arange(int(counts.max()), device=counts.device)
        return counts.to(self.ids.device), state.tokens.gather(1, state.start[:, None] + place).to(self.ids.device)


class _Rescore:
    """Makes a round's scores those after the logits processors; texts that hold one of ``ends`` or ``limit`` columns are complete."""

    def __init__(self, processors, input_ids: Tensor, starts: list[int], ends: list[int], limit: int) -> None:
        self.ends, self.limit = torch.tensor(ends, dtype=torch.long, device=input_ids.device), limit
        self.padding = [row[:start] for row, start in zip(input_ids, starts, strict=True)]
        self.processors = [LogitsProcessorList([_of_row(one, row) for one in processors]) for row in range(len(starts))]

    def __call__(self, state: State, draft: Draft, scores: Scores) -> Scores:
        return _Processed(self, state, draft, scores)


def _of_row(processor, row: int):
    """The processor as it is for one row alone: some tell rows apart by their place in the batch."""
    if type(processor) is RepetitionPenaltyLogitsProcessor and isinstance(ignored := getattr(processor, "prompt_ignore_length", None), Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = int(ignored[row])
    elif type(processor) is PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        processor = copy.copy(processor)
        processor._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
    return processor


class _Processed(Scores):
    """Scores whose p and argmax are those after the processors, made for the nodes that are asked for.

    Only nodes that a walk comes to are: their paths have been accepted, so no processor is shown a text that it has forbidden. Nor is it
    shown one that goes on behind its end, which a walk does before the block is trimmed. A processor that follows a grammar may fail on
    either. Rules for whole trees look at other nodes too. ``logits`` stay the target's own.
    """

    first = 0  # which row of the batch row 0 is, see alone

    def __init__(self, rescore: _Rescore, state: State, draft: Draft, scores: Scores) -> None:
        super().__init__(scores.logits, scores.sampling, scores.features)
        self.rescore, self.draft, self.text = rescore, draft, state.tokens
        self.known, self.done = torch.stack((state.known, state.done.long())).tolist()
        self.made: dict[tuple[int, int], Tensor] = {}

    def alone(self, i: int) -> Scores:
        one = copy.copy(self)
        one.logits, one.first = self.logits[i : i + 1], self.first + i
        return one

    def at(self, row: int, node: int) -> Tensor:
        """``[V]`` float32: what the library's processors make of the node's logits."""
        place = row + self.first
        if (place, node) not in self.made:
            logits = self.logits[row, node].to(torch.float32, copy=True)
            self.made[place, node] = logits if self.done[place] else self._processed(place, node, logits)
        return self.made[place, node]

    def _processed(self, row: int, node: int, logits: Tensor) -> Tensor:
        padding, parents = self.rescore.padding[row], self.draft.tree.host[row if self.draft.tree.R > 1 else 0]
        path: list[int] = []
        while node > 0:
            path.insert(0, node)
            node = parents[node]
        drafted = self.draft.tokens[row, path].to(padding.device)
        ids: Any = torch.cat([padding, self.text[row, : self.known[row]].to(padding.device), drafted])[None]
        if ids.shape[1] >= self.rescore.limit or bool(torch.isin(drafted, self.rescore.ends).any()):
            return logits
        return self.rescore.processors[row](ids, logits[None].to(padding.device))[0].to(logits.device)

    def row(self, i: int, node: int) -> Tensor:
        # the processors end with temperature and filters
        return Sampling().probabilities(self.at(i, node)) if self.sampling.greedy else self.at(i, node).softmax(-1)

    def p(self, node: Tensor) -> Tensor:
        return torch.stack([self.row(i, one) for i, one in enumerate(node.tolist())])

    def laws(self, tree: Tree) -> Tensor:
        return torch.stack([torch.stack([self.row(i, node) for node in range(tree.v)]) for i in range(len(self.logits))])

    def best(self, tree: Tree) -> Tensor:
        """As for plain scores at the nodes whose path agrees with the target's argmax; 0 at the others, which are not asked about."""
        tokens, valid = self.draft.tokens.tolist(), self.draft.valid.tolist()
        found = [[0] * tree.v for _ in tokens]
        for row, best in enumerate(found):
            parents = tree.host[row if tree.R > 1 else 0]
            level = [] if self.done[row] else [0]
            while level:
                # nodes of one level that agree carry the same text
                token = int(self.at(row, level[0]).argmax())
                for node in level:
                    best[node] = token
                level = [i for i in range(1, tree.v) if parents[i] in level and valid[row][i] and tokens[row][i] == token]
        return torch.tensor(found, device=self.logits.device)
