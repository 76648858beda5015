"""The front of the one loop: ``rounds`` yields its steps, ``decode`` runs it to its end."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specwb.core.errors import ArgumentError
from specwb.core.flow import Scheme, Step
from specwb.core.inputs import as_int, eos_ids, is_many, to_python
from specwb.core.noise import row_seeds
from specwb.core.probability import Sampling
from specwb.core.stops import Stops
from specwb.engine.graphs import RECORDERS
from specwb.engine.loop import Clock, Decoding, Rescore
from specwb.engine.methods import Method
from specwb.engine.methods import method as make_method
from specwb.models.layout import LAYOUTS
from specwb.models.prompts import PromptError, Prompts, prompt_name, read_prompts
from specwb.models.target import Target, check_target

__all__ = ["Output", "check_target", "decode", "rounds"]


def rounds(
    target: Target,
    prompts: Prompts,
    method: str | Method = "ar",
    *,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    exact_text: bool = False,
    seed: int | Sequence[int] | torch.Generator = 0,
    eos: int | Sequence[int] | None = None,
    trace: bool = False,
    clock: Clock | None = None,
    graphs: bool | None = None,
    rescore: Rescore | None = None,
    layout: str = "tree",
    until: str | Sequence[str] = (),
    **options,
) -> Iterator[Step]:
    """Yields the decoding steps of a decoding, each one cycle of draft, score, verify and commit
    with one forward pass of the target.

    Args:
        target: what :func:`specwb.load` returned.
        prompts: a text, token ids or a chat's messages, or a batch of them (rows of different
            lengths are fine); what a tokenizer or ``apply_chat_template`` returned is taken by its
            ``input_ids`` without their padding, see :func:`specwb.models.prompts.read_prompts`.
        method: ``"mcsd"``, ``"mcsd:tree=4-2-2"``, or what :func:`specwb.method` returned.
        max_new_tokens: for all rows, or one per row.
        temperature: 0 is greedy, and so is anything below 1e-4.
        top_k: only so many most probable tokens; 0 is all of them.
        top_p: the smallest set of tokens with so much probability; 1 is all of them.
        exact_text: at T > 0 write plain decoding's text: that of ``"ar"`` with the same seed and
            ``exact_text``, whatever drafts (theorem 7.7). Every place of the text owns Gumbel
            noise G, with which target and drafts are decided: the next token is the argmax of
            ``log p + G``, and a node's candidates are the largest of ``log q + G``. Its
            distribution is that of sampling. Drafters of your own may use the noise
            (:meth:`State.perturbed`); the text is the same if they do not.
        seed: an integer, or one per row. A row's uniforms depend on its own seed and on positions
            only, so a row with its own seed has the same distribution alone and in a batch, and the
            same text up to rounding: logits of another batch shape differ in their last bits, which
            decides where a uniform lies that close to a boundary of a CDF or of a test, or two
            logits tie that closely. In float32 that happens now and then, in float64 the tests
            compare for equality.
        eos: ids that end a row; default the target's own, ``()`` for none.
        trace: keep scores and uniforms in every step, for :func:`specwb.explain`.
        clock: measures the parts of every step.
        graphs: run steps as CUDA graphs (see :mod:`specwb.engine.graphs`); default where the device
            and the drafter allow it, ``False`` is eager. Traced, clocked and rescored decodings are
            always eager.
        rescore: puts other scores in the place of the target's, every step
            (:mod:`specwb.engine.custom_generate` applies logits processors so). The decoding is
            lossless for the distribution they describe.
        layout: how the target is run over a draft, ``"tree"`` or ``"batch"``, see
            :meth:`Target.score`; what is decided is the same. ``"batch"`` is always eager.
        until: texts that end a row with the token that completes one of them (a special token's
            text too), at the same token for every method; costs a host read a step. What has ended
            a row is in each step's ``stops``.
        options: the method's own, where it is named by its key.
    Raises:
        PromptError, MethodError, RuleMismatch, ArgumentError: before any work is done. Of
            ``exact_text``: a lossy method, and a rule that was asked for by name.
        UnsupportedModel: a hook or a patched forward on one of the target's modules, or another
            module or weight than when it was loaded.
    """
    check_target(target)
    target.check_hooks()  # after loading hooks may have been put on it, or weights replaced
    sampling = Sampling(temperature, top_k, top_p, exact_text)
    if not isinstance(method, Method):
        method = make_method(method, target, **options)
    elif options:
        names = ", ".join(options)
        raise ArgumentError(
            f"options {names} belong to specwb.method(...), not beside a finished method"
        )
    method.rule_for(sampling)
    rows, _ = read_prompts(target, prompts)
    budgets = _budgets(max_new_tokens, len(rows))
    for i, (row, budget) in enumerate(zip(rows, budgets, strict=True)):
        if len(row) + budget > target.context:
            raise PromptError(
                f"{prompt_name(i, len(rows))} has {len(row)} tokens; with max_new_tokens={budget} "
                f"it exceeds the context of {target.name!r} ({target.context})"
            )
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout must be {' or '.join(LAYOUTS)}, got {layout!r}")
    if rescore is not None and method.drafter.scheme(sampling) is Scheme.ROOTS:
        raise ArgumentError(
            f"{method.key}: several roots are drawn before their scores could be changed;"
            " decode without logits processors, or with roots=1"
        )
    eager = trace or clock is not None or rescore is not None or layout != "tree"
    stops = Stops(until, target.tokenizer, rows)
    if clock is not None and not isinstance(clock, Clock):
        raise ArgumentError(f"clock must be a specwb.Clock, got {clock!r}")
    if rescore is not None and not callable(rescore):
        raise ArgumentError(f"rescore must be a function, got {rescore!r}")
    decoding = Decoding(
        target,
        method,
        sampling,
        rows,
        budgets,
        row_seeds(seed, len(rows), target.device),
        target.ends if eos is None else eos_ids(eos, target.vocabulary),
        static=_static(target, method, graphs, eager),
        trace=trace,
        clock=clock,
        rescore=rescore,
        layout=layout,
        stops=stops,
    )
    return iter(decoding)


def _static(target: Target, method: Method, graphs: bool | None, eager: bool) -> bool:
    """Whether steps are recorded: where nothing forbids it, unless ``graphs`` is False."""
    recorder = target.device.type in RECORDERS
    if graphs and not recorder:
        raise ArgumentError(
            f"graphs=True needs a CUDA device, the target is on {target.device}; leave it out to"
            " run eagerly"
        )
    drafts = getattr(method.drafter, "backbone", target.backbone)  # of a draft model, or its own
    captured = method.drafter.captured and target.backbone.captured and drafts.captured
    static = graphs is not False and not eager and recorder and captured
    if graphs and not static:
        raise ArgumentError(
            f"graphs=True: {method.key} or a model of it cannot be captured, or is traced, clocked,"
            " rescored or laid out as a batch; leave it out to run eagerly"
        )
    return static


def _budgets(max_new_tokens: int | Sequence[int], rows: int) -> list[int]:
    """How many tokens each row may write."""
    several = to_python(max_new_tokens) if is_many(max_new_tokens) else [max_new_tokens] * rows
    budgets = [as_int(one) for one in several]
    if len(budgets) != rows or any(one is None or one < 1 for one in budgets):
        wanted = "max_new_tokens must be an integer >= 1, one for all or one per prompt"
        raise PromptError(f"{wanted}; got {max_new_tokens!r}")
    return budgets  # type: ignore[return-value]


@dataclass
class Output:
    """What :func:`decode` returns. Every list has one entry a prompt, for a single prompt too.

    Attributes:
        tokens: new token ids.
        texts: the same as they go on from the prompts, so that one may begin with a space; without
            special tokens, and up to a text of ``until``. None without a tokenizer.
        step_counts: target forwards that wrote something.
        seconds: of the whole decoding.
        accepted_lengths: draft tokens kept, by step.
        tested_lengths: depths at which candidates were put to the test, by step. Of the steps with
            tested >= d those with accepted >= d are the share accepted at depth d.
        steps: with ``trace=True`` every :class:`Step` of the batch.
        finish_reasons: what ended each row: ``"eos"``, ``"stop"`` (a text of ``until``) or
            ``"length"``.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    step_counts: list[int]
    seconds: float = field(repr=False)  # all else is the same in every run
    accepted_lengths: list[list[int]]
    tested_lengths: list[list[int]]
    steps: list[Step] = field(default_factory=list, repr=False)
    finish_reasons: list[str] = field(default_factory=list)

    @property
    def text(self) -> str | None:
        """The text of the one prompt; None without a tokenizer.

        Raises:
            ArgumentError: there were several prompts, whose texts are in ``texts``.
        """
        if self.texts is None:
            return None
        if len(self.texts) != 1:
            raise ArgumentError(
                f"the output has {len(self.texts)} texts, one per prompt: see .texts"
            )
        return self.texts[0]

    @property
    def mean_tokens_per_step(self) -> float:
        """tau: tokens per step, the bonus token included; 1 for plain decoding."""
        return sum(map(len, self.tokens)) / max(1, sum(self.step_counts))

    @property
    def accepted_per_step(self) -> float:
        """tau - 1: draft tokens kept a step."""
        return self.mean_tokens_per_step - 1

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def decode(
    target: Target,
    prompts: Prompts,
    method: str | Method = "ar",
    *,
    on_tokens: Callable[[int, list[int], int], None] | None = None,
    trace: bool = False,
    **settings: Any,
) -> Output:
    """Decode to the end: :func:`rounds`, exhausted. Takes the same arguments::

        target = specwb.load("lab")
        specwb.decode(target, "def fib(n):", "mcsd", tree=(4, 2, 2), temperature=1.0, seed=0).text
        specwb.decode(target, [{"role": "user", "content": "What is 2 + 3?"}], "sps").text

    Args:
        target, prompts, method: as in :func:`rounds`.
        on_tokens: called every step for every unfinished row with (row, new ids, how many of them
            were drafted); costs one more device read a step.
        trace: keep every :class:`Step` in ``steps``.
        settings: ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``exact_text``,
            ``seed``, ``eos``, ``until``, .. and the method's own options, as in :func:`rounds`.
    Raises:
        PromptError, MethodError, RuleMismatch, ArgumentError, UnsupportedModel: as :func:`rounds`,
            before any work is done.
    """
    check_target(target)
    if on_tokens is not None and not callable(on_tokens):
        raise ArgumentError(f"on_tokens must be a function, got {on_tokens!r}")
    loop = rounds(target, prompts, method, trace=trace, **settings)
    began = time.perf_counter()
    counts, offers, steps, state, stops = [], [], [], None, None
    for step in loop:
        state, stops = step.state, step.stops
        counts.append(step.verdict.count)
        offers.append(step.offered)
        if trace:
            steps.append(step)
        if on_tokens is not None:
            _report(step, on_tokens)
    assert state is not None
    assert stops is not None
    starts, ends, table = state.start.tolist(), state.length.tolist(), state.tokens.tolist()
    tokens = [row[a:b] for row, a, b in zip(table, starts, ends, strict=True)]
    per_step = torch.stack(counts, 1).tolist()
    accepted = [[n - 1 for n in row if n > 0] for row in per_step]
    # the end of text or the limit may have cut a row's last step short: what it would have tested
    # next is not known
    offered = torch.stack(offers, 1).tolist()
    tested = [
        [a + m for a, m in zip(row[:-1], more, strict=False)] + row[-1:]
        for row, more in zip(accepted, offered, strict=True)
    ]
    seconds = time.perf_counter() - began
    reasons = stops.reasons(tokens, state.eos.tolist())
    step_counts = [len(row) for row in accepted]
    texts = stops.texts(tokens)
    return Output(tokens, texts, step_counts, seconds, accepted, tested, steps, reasons)


def _report(step: Step, on_tokens: Callable[[int, list[int], int], None]) -> None:
    assert step.verdict.emitted is not None
    counts, emitted = step.verdict.count.tolist(), step.verdict.emitted.tolist()
    for row, (n, ids) in enumerate(zip(counts, emitted, strict=True)):
        if n:
            on_tokens(row, ids[:n], n - 1)


# help() and editors show the settings of both
*_shared, _options = inspect.signature(rounds).parameters.values()
_on_tokens = inspect.signature(decode).parameters["on_tokens"]
decode.__signature__ = inspect.Signature([*_shared, _on_tokens, _options])  # type: ignore[attr-defined]
