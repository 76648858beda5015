"""The drafter's part of a decoding step, and the registry entry of a method."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specwb.core.errors import ArgumentError
from specwb.core.flow import Draft, Exactness, Scheme, Scores, State, Verdict
from specwb.core.noise import Noise
from specwb.core.options import MethodError, Option, options_of
from specwb.core.probability import Sampling
from specwb.core.tree import Limits, Tree

if TYPE_CHECKING:
    from specwb.models.target import Target


chain = lru_cache(maxsize=256)(Tree.chain)
"""The tree of a draft that was cut short, made once."""


def by_name(**lists: Iterable[Tensor | None]) -> dict[str, Tensor]:
    """Names the tensors of lists ``list[0]``, ``list[1]``, ..; None is left out."""
    return {
        f"{name}[{i}]": tensor
        for name, tensors in lists.items()
        for i, tensor in enumerate(tensors)
        if tensor is not None
    }


class Drafter:
    """Proposes a tree of draft tokens in every decoding step.

    Subclass it and ``specwb.register`` the subclass: it can then be decoded with, compared and
    tested.

    An instance is a description and may be shared: the engine copies it and calls ``open`` once for
    every decoding, so whatever ``open`` and ``propose`` set on ``self`` belongs to that decoding.

    Attributes:
        tree: the largest tree that is proposed (its root is the pending token), if the tree is
            static.
        limits: the largest size of its drafts; default that of ``tree``.
        window: number of text positions that are processed again at the start of a step.
        slots: number of slots of the target's cache, from the pending token on, that drafting
            writes to, if there are more of them than nodes of ``tree``.
        host_reads: upper bound on tensor-to-Python conversions per step, beyond the engine's one.
        captured: whether steps may be recorded as CUDA graphs: while ``state.static`` all shapes
            depend on ``state.horizon`` alone, and there are no host reads. Whatever outlives a step
            is a tensor made in ``open``, of a shape that does not depend on the prompts, listed by
            :meth:`tensors` and changed in place.
        staged: whether its steps are recorded in parts, the stages named with ``state.stage``,
            between which the host decides whether to go on. A stage reads only the decoding's
            tensors and the results of earlier stages of the same step.
        independent: whether the children of different nodes are drawn independently, given their
            paths; False where siblings share one list.
        features: the target's layers whose hidden states it reads from ``state.features``.
        files: other files that its drafts depend on, besides models and trained heads, such as
            n-grams; stored measurements are identified by their content too.
        confident: whether its drafts carry their ``confidence``; whoever needs it sets this.
        exactness: whether it keeps the target's distribution.
        rule: key of its default verification rule; None for the default of its sampling scheme.
    """

    tree: Tree
    window = 1
    slots = 0
    host_reads = 0
    captured = False
    staged = False
    independent = True
    features: tuple[int, ...] = ()
    files: tuple[Path, ...] = ()
    confident = False
    exactness = Exactness.LOSSLESS
    rule: str | None = None

    @cached_property  # which a subclass may set instead
    def limits(self) -> Limits:
        """The largest numbers of nodes, levels and children per node of its drafts."""
        return self.tree.limits

    def scheme(self, sampling: Sampling) -> Scheme:
        """The sampling scheme of its candidates under these sampling settings."""
        return Scheme.POINT

    def uniforms(self, sampling: Sampling) -> int:
        """The number of uniforms per row that drafting uses in one step."""
        return 0

    def open(self, state: State, target: Target) -> None:
        """Called once, before the first step."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that :meth:`open` made and the drafter holds, by name; for a cache, its
        ``data``.

        A ``captured`` drafter lists all of them, and those of its base class with
        ``super().tensors()``. Recorded steps read and write this memory, so the next decoding's
        contents are copied into it. A tensor that is not listed is refused when a step is to be
        recorded. Trees and models, which all decodings share, are not listed.
        """
        return {}

    def adopt(self, fresh: Drafter) -> None:
        """Takes over from ``fresh``, which was opened for another decoding, the state that is not
        in :meth:`tensors`, such as a text on the host: recorded steps continue with that decoding.
        """

    def propose(self, state: State, noise: Noise) -> Draft:
        """The draft of one step, computed from the text and the uniforms of the drafting stream."""
        raise NotImplementedError

    def observe(self, state: State, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        """Called after the target's commit and before the text grows; caches are moved here."""

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        """The number of entries of the caches made in ``open`` that depend on the text alone.

        Later entries are computed again before they are used; tests compare the earlier ones with a
        recomputation.

        Args:
            before: ``[B]`` sequence lengths before a step.
            length: ``[B]`` sequence lengths after it.

        Returns:
            ``[B]``.
        """
        return length - self.window

    def largest(self, state: State, count: Tensor, most: int) -> int:
        """The largest of ``count [B]``, at most ``most``: how much of a draft any row can use.

        This is a host read, to be declared in ``host_reads``. Where the step is recorded as one
        graph, the result is ``most`` and nothing is read.
        """
        return most if state.static and state.stages is None else int(count.max())

    def candidates(
        self,
        state: State,
        tokens: Tensor,
        valid: Tensor | None = None,
        tree: Tree | None = None,
    ) -> Draft:
        """A draft of point masses.

        Args:
            state: of the decoding.
            tokens: ``[B,n-1]`` ids of the nodes 1..n-1.
            valid: ``[B,n-1]`` which of them may be accepted; default all.
            tree: of n nodes, default ``self.tree``.

        Raises:
            ValueError: tokens have another shape, or are not integers.
        """
        tree = tree or self.tree
        if tokens.shape != (state.rows, tree.n - 1):
            wanted = f"[rows, nodes - 1] = {[state.rows, tree.n - 1]} tokens"
            raise ArgumentError(f"candidates must be {wanted}, got {list(tokens.shape)}")
        pending = state.pending
        if tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
            raise ArgumentError(f"candidates must be token ids, integers, got {tokens.dtype}")
        tokens = torch.cat([pending, tokens.long()], 1)
        root = torch.ones_like(pending, dtype=torch.bool)
        if valid is None:
            valid = root.expand(-1, tree.n - 1)
        return Draft(tree, tokens, torch.cat([root, valid], 1), Scheme.POINT)


class InFront(Drafter):
    """A drafter in front of another one, ``behind``, which need not run in every step: what it has
    missed it processes with its next draft, with a longer catch-up window."""

    missed = 0  # tokens that the drafter behind may not have processed

    def __init__(self, behind: Drafter) -> None:
        self.behind, self.limits = behind, behind.limits
        self.own_window, self.stride = behind.window, getattr(behind, "k", 1)  # of blocks of k
        self.window, self.slots, self.host_reads = behind.window, behind.slots, behind.host_reads
        self.captured, self.staged = behind.captured, behind.staged
        self.independent, self.features = behind.independent, behind.features
        self.files, self.exactness, self.rule = behind.files, behind.exactness, behind.rule

    @property
    def draft(self) -> Target:
        """The draft model of the drafter behind, where it has one."""
        return self.behind.draft  # type: ignore[attr-defined]

    def longer(self, tokens: int) -> int:
        """The catch-up window of the drafter behind, so many tokens longer."""
        return self.own_window + -(-tokens // self.stride) * self.stride

    def scheme(self, sampling: Sampling) -> Scheme:
        return self.behind.scheme(sampling)

    def uniforms(self, sampling: Sampling) -> int:
        return self.behind.uniforms(sampling)

    def open(self, state: State, target: Target) -> None:
        self.behind = copy.copy(self.behind)
        self.behind.open(state, target)
        if hasattr(self.behind, "unseen"):  # its first draft may come in a later step
            self.behind.fed = state.horizon - 1  # type: ignore[attr-defined]

    def tensors(self) -> dict[str, Tensor]:
        return self.behind.tensors()

    def adopt(self, fresh: Drafter) -> None:
        assert isinstance(fresh, InFront)
        self.behind.adopt(fresh.behind)

    def exact_until(self, before: Tensor, length: Tensor) -> Tensor:
        return self.behind.exact_until(before, length) - self.missed


@dataclass(frozen=True)
class Preset:
    """Published settings of a method (``rule`` is its verification rule), and their source."""

    options: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class Entry:
    """The registry entry of a method: its options, its builder, and its properties.

    Every method's file ends with its entry; :mod:`specwb.engine.methods` collects them.

    Attributes:
        key: its name in specs.
        build: ``build(target, options) -> Drafter``, with an instance of ``settings``; without
            ``settings`` it is ``build(target, **options)``.
        settings: the frozen dataclass of its options, see :class:`specwb.core.options.Option`; None
        if
            they are the keyword arguments of ``build``.
        paper: its source.
        needs: what it needs besides the target.
        exactness: whether it keeps the target's distribution.
        bibtex: its BibTeX entry.
        head: the kind of the target's own trained head that is used by default, "" for none.
        presets: name -> settings of a paper or its code, selected by ``preset=NAME``.
    """

    key: str
    build: Callable[..., Drafter]
    settings: type | None = None
    paper: str = ""
    needs: str = "nothing"
    exactness: Exactness = Exactness.LOSSLESS
    bibtex: str = ""
    head: str = ""
    presets: Mapping[str, Preset] = field(default_factory=dict)

    @cached_property
    def options(self) -> dict[str, Option]:
        return options_of(self.build, self.settings)

    @property
    def about(self) -> str:
        """The method's description: the docstring of its builder."""
        return inspect.getdoc(self.build) or ""

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of all options, with defaults for the missing ones; without ``settings`` the
        given values unchanged.

        Raises:
            MethodError: a value is not what its option expects.
        """
        if self.settings is None:
            return dict(values)
        return {
            name: option.check(self.key, values.get(name, option.default))
            for name, option in self.options.items()
        }

    def drafter(self, target: Target, values: Mapping[str, Any]) -> Drafter:
        """The drafter that these options describe.

        Raises:
            MethodError: the options do not go together, or do not fit the target; the message
                begins with the method's key.
        """
        checked = self.check(values)
        if self.settings is None:
            return self.build(target, **checked)
        try:
            return self.build(target, self.settings(**checked))
        except (ArgumentError, MethodError) as error:
            raise MethodError(f"{self.key}: {error}") from error
