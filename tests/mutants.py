"""Engines, drafters and rules that are wrong on purpose: each is killed by the tests that it names.

Each mutant is one mistake as a developer would make it, put into the code in memory: no file is
changed. In tests/verify and tests/test_decoding_distribution.py wrong *rules* are tried inside
single tests; here the suite itself is asked whether it would notice.

    python tests/mutants.py                    all of them, after the same tests without any mistake
    python tests/mutants.py keep_off_by_one    these only
    PYTHONPATH=tests SPECWB_MUTANT=keep_off_by_one python -m pytest -p mutants tests/...
                                               any tests, with the mistake

As a plugin of pytest (``-p mutants``) this file applies the mutant that ``SPECWB_MUTANT`` names.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import tiny
import torch

from specwb import decoding, engine, mask, tree
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.easyspec import EasyDrafter
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.drafters.length import Heuristic
from specwb.drafters.level import LevelDrafter, Levels
from specwb.flow import Scores, State
from specwb.models import layout
from specwb.models.cache import KVCache
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.probability import draw_without_replacement
from specwb.tree import Tree
from specwb.verify.greedy import Greedy
from specwb.verify.rejection import Rejection
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule

TESTS = Path(__file__).parent


class Stale(Exception):
    """A mutant is about code that is not there any more: it must be written again."""


class Patch:
    """Changes of the code in memory that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def edit(self, function: Callable, old: str, new: str) -> None:
        """``function`` with the one ``old`` in its source replaced by ``new``, wherever it was
        imported to.

        Raises:
            Stale: ``old`` does not occur exactly once.
        """
        target = inspect.unwrap(function)
        assert isinstance(target, FunctionType)
        source = textwrap.dedent(inspect.getsource(target))
        if source.count(old) != 1:
            times = source.count(old)
            raise Stale(f"{target.__qualname__} has {old!r} {times} times, not once")
        source = source[source.index(f"def {target.__name__}") :].replace(old, new)
        # as an inner function, so that super() and whatever else it closes over stay what they are
        around = f"def around({', '.join(target.__code__.co_freevars)}):\n"
        text = f"{around}{textwrap.indent(source, '    ')}\n    return {target.__name__}"
        made: dict[str, Any] = {}
        exec(compile(text, f"<mutant of {target.__qualname__}>", "exec"), target.__globals__, made)
        free = (None,) * len(target.__code__.co_freevars)
        self._set(target, "__code__", made["around"](*free).__code__)

    def method(self, owner: type, name: str) -> Callable[[Callable], None]:
        """Decorator: the method of ``owner`` is called through ``wrong(real, self, ...)``.

        Raises:
            Stale: ``owner`` has no such method.
        """
        real = getattr(owner, name, None)
        if real is None:
            raise Stale(f"{owner.__name__} has no {name}")

        def decorate(wrong: Callable) -> None:
            def method(self, *args, **kwargs):
                return wrong(real, self, *args, **kwargs)

            self._set(owner, name, method)

        return decorate

    def value(self, owner: type, name: str, value: object) -> None:
        """A class attribute.

        Raises:
            Stale: there is none, or it has that value already.
        """
        if getattr(owner, name, value) == value:
            raise Stale(f"{owner.__name__}.{name} is not there or already {value!r}")
        self._set(owner, name, value)

    def _set(self, owner: Any, name: str, value: object) -> None:
        own = name in vars(owner) or isinstance(owner, FunctionType)
        old = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, old) if own else delattr(owner, name))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


@dataclass(frozen=True)
class Mutant:
    """``tests``: "file.py: words" are the tests of that file with all these words in their names;
    one of them must fail."""

    name: str
    apply: Callable[[Patch], None]
    tests: tuple[str, ...]

    @property
    def mistake(self) -> str:
        return inspect.getdoc(self.apply) or ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        patch = Patch()
        try:
            self.apply(patch)
            yield
        finally:
            patch.undo()


MUTANTS: dict[str, Mutant] = {}


def killed_by(*tests: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        assert name not in MUTANTS, f"two mutants are called {name}"
        MUTANTS[name] = Mutant(name, apply, tests)
        return apply

    return register


# ----------------------------------------------------------------------- the engine and its state


@killed_by("test_flow.py: trim_is_closed")
def end_inside_a_block(patch):
    """The end of text is looked for in the bonus token only, not among the accepted ones."""
    patch.edit(engine.trim, "(place < count[:, None])", "(place == accepted[:, None])")


@killed_by("test_flow.py: trim_is_closed")
def limit_one_late(patch):
    """A row may be one token longer than its limit."""
    room = "state.limit - state.length)"
    patch.edit(
        engine.trim,
        f"torch.minimum(accepted + 1, {room}",
        f"torch.minimum(accepted + 1, 1 + {room}",
    )


@killed_by("test_protocol.py: done_row sps 0.0")
def finished_rows_go_on(patch):
    """What a finished row drafts is still appended to its text."""
    patch.edit(engine.trim, "count = torch.where(state.done, 0, count)", "pass")


@killed_by("test_protocol.py: reported_once sps")
def counted_before_the_cut(patch):
    """A decoding step reports what was accepted, not what was left of it at the limit."""
    raw = "Verdict(raw.path, raw.accepted, raw.bonus, raw.distribution, verdict.emitted)"
    patch.edit(engine.Decoding._settle, "0, length, draft, verdict,", f"0, length, draft, {raw},")


@killed_by("test_protocol.py: reported_once sps")
def bonus_token_counted_as_accepted(patch):
    """Accepted lengths count the bonus token."""
    patch.edit(decoding.decode, "accepted = [[n - 1 for n", "accepted = [[n for n")


@killed_by("test_protocol.py: can_be_shared sps")
def drafter_shared_between_decodings(patch):
    """Decodings open the method's drafter itself, not a copy of it."""
    patch.edit(engine.Decoding._open, "copy.copy(self.method.drafter)", "self.method.drafter")


@killed_by("test_graphs.py: two_decodings_at_once")
def arena_shared_between_decodings(patch):
    """A captured decoding uses an arena that another one, not yet finished, is using."""
    patch.edit(engine.Decoding._borrow, "arenas.pop(self._key(), None)", "arenas.get(self._key())")


@killed_by("test_flow.py: masks_are_made_once")
def mask_of_the_step_before(patch):
    """Tree attention masks are not made anew when the text has grown."""
    patch.edit(State.advance, "self._masks.clear()", "pass")


@killed_by("test_invalid_distribution.py: one_message")
def nan_row_ignored(patch):
    """A bonus token drawn from NaN is written down like any other."""

    @patch.method(State, "advance")
    def advance(real, self, verdict, done, fault=None):
        real(self, verdict, done)


@killed_by("test_flow.py: window_is_the_last")
def window_of_the_longest_row(patch):
    """The catch-up window ends where the longest row ends, in all rows."""
    longest = "(self.length.max() - w).clamp_min(0).expand_as(self.length)"
    patch.edit(State.window, "(self.length - w).clamp_min(0)", longest)


@killed_by("test_flow.py: window_is_the_last")
def window_of_the_first_row(patch):
    """Every row is fed the first row's tokens again."""
    first = "self.tokens[:1].expand_as(self.tokens).gather("
    patch.edit(State.window, "self.tokens.gather(", first)


# ------------------------------------------------------------------------------------- randomness


@killed_by("test_noise.py: computed_ahead")
def streams_share_noise(patch):
    """Drafting, acceptance and the bonus token are given the same uniforms."""
    patch.edit(Noise._read_block, "values[:, offset : offset + width]", "values[:, :width]")


@killed_by("test_protocol.py: row_alone sps", "test_noise.py: depend_on_seed")
def noise_by_place_in_the_batch(patch):
    """A row's noise depends on which row of the batch it is, beside its seed."""
    place = "torch.arange(len(seeds), device=seeds.device)"
    patch.edit(Noise.__init__, "self.seeds = seeds", f"self.seeds = seeds + {place}")


@killed_by("test_decoding_distribution.py: of_the_text_is mcsd-plain")
def levels_share_draws(patch):
    """All levels of a draft tree are drawn with the first level's uniforms."""
    patch.edit(Levels._children_of, "levels[:d]", "levels[:0]")


@killed_by("test_decoding_distribution.py: of_the_text_is replacement-plain")
def siblings_share_a_draw(patch):
    """All children of a node are drawn with one uniform, so that they are one token."""
    patch.edit(Levels._children, "columns[..., j]", "columns[..., 0]")


@killed_by("test_decoding_distribution.py: of_the_text_is sps-plain")
def depths_share_a_test(patch):
    """The acceptance tests of all depths are made with the first depth's uniforms."""
    patch.edit(NodeRule.visits, "u[:, d, : self.draws", "u[:, 0, : self.draws")


@killed_by("test_probability.py: without_replacement_follow")
def drawn_tokens_stay(patch):
    """Draws without replacement leave in q what has been drawn."""
    patch.edit(draw_without_replacement, "left.scatter_(-1, x.unsqueeze(-1), 0.0)", "pass")


# ---------------------------------------------------------------------------------- distributions


@killed_by("test_decoding_distribution.py: of_the_text_is sps-top_p")
def temperature_on_the_draft_only(patch):
    """p is the target's distribution at temperature 1, whatever was asked for."""
    cold = "replace(self.sampling, temperature=1.0).probabilities(self.logits[row, node])"
    _with_replace(patch, Scores.p, "self.sampling.probabilities(self.logits[row, node])", cold)


@killed_by("test_ar_oracle.py: sampling_follows")
def filters_on_the_draft_only(patch):
    """top-k and top-p are not applied to p where single rows are verified on the host."""
    plain = "replace(self.sampling, top_k=0, top_p=1.0).probabilities(self.logits[i, node])"
    _with_replace(patch, Scores.row, "self.sampling.probabilities(self.logits[i, node])", plain)


def _with_replace(patch: Patch, function: Callable, old: str, new: str) -> None:
    patch.edit(function, old, new.replace("replace(", "__import__('dataclasses').replace(", 1))


@killed_by("test_decoding_distribution.py: of_the_text_is mcsd-top_p")
def q_of_another_temperature(patch):
    """q is recorded at temperature 1, and the draft tokens were drawn at the decoding's own."""
    patch.edit(Levels._children, "q.append(distribution)", "q.append(logits.float().softmax(-1))")


@killed_by("test_decoding_distribution.py: of_the_text_is mcsd-plain")
def q_of_the_node_itself(patch):
    """A node's children are tested against the q that the node itself was drawn from."""
    patch.edit(
        Levels.lay_out,
        "self.q_row = torch.arange(self.tree.n, device=device)[None]",
        "self.q_row = self.tree.parent.clamp_min(0)",
    )


@killed_by("test_decoding_distribution.py: of_the_text_is sps-plain")
def drafter_peeks(patch):
    """Draft tokens that the target finds improbable are dropped before they are tested."""

    @patch.method(NodeRule, "verify")
    def verify(real, self, draft, scores, u, start=None):
        parent = draft.tree.parent.clamp_min(0).expand_as(draft.tokens)
        p = scores.sampling.probabilities(scores.logits)
        own = p[torch.arange(len(p))[:, None], parent, draft.tokens]
        draft.valid = draft.valid & (own >= 0.1)
        return real(self, draft, scores, u, start)


@killed_by("test_decoding_distribution.py: of_the_text_is confidence-plain")
def unsure_tokens_dropped(patch):
    """A draft token that the draft model is not sure of is left out, instead of being the last."""

    @patch.method(LevelDrafter, "propose")
    def propose(real, self, state, noise):
        draft = real(self, state, noise)
        if self.length is not None and self.length.confidence and draft.q is not None:
            own = draft.q.gather(2, draft.tokens[:, 1 : draft.q.shape[1] + 1, None])[..., 0]
            draft.valid[:, 1:] &= own >= self.length.confidence
        return draft


@killed_by("test_seen_by_mutants.py: length_of_one_row")
def draft_length_of_the_batch(patch):
    """Drafts grow only after a step in which every row of the batch accepted all."""
    patch.edit(Heuristic.observe, "accepted == drafted,", "(accepted == drafted).all(),")


# ------------------------------------------------------------------------------------------ rules


@killed_by("test_kernels.py: kernel_is_the_exact_rule rejection")
def bonus_token_from_p(patch):
    """After a rejection the bonus token is drawn from p."""

    @patch.method(Rejection, "node")
    def node(real, self, p, q, tokens, ok, u):
        return real(self, p, q, tokens, ok, u)[0], p


@killed_by("test_kernels.py: kernel_is_the_exact_rule rejection")
def residual_not_clamped(patch):
    """The residual is |p - q|, not the positive part of p - q."""
    patch.edit(Rejection.node, "torch.sub(p, q).relu_()", "torch.sub(p, q).abs_()")


@killed_by("test_kernels.py: kernel_is_the_exact_rule rrs-")
def residual_not_renormalised(patch):
    """Recursive rejection tests the second candidate against a residual of less mass than q."""
    patch.edit(RRS.node, "torch.where(moved, left, mass)", "mass")


@killed_by("test_kernels.py: kernel_is_the_exact_rule rrsw-")
def rejected_token_stays(patch):
    """A rejected token stays in q."""
    patch.edit(RRSw.node, "left_q.scatter_(1, x,", "left_q.scatter(1, x,")


@killed_by("test_flow.py: not_valid_is_not_accepted")
def invalid_tokens_accepted(patch):
    """The greedy walk accepts tokens that were drafted as not valid."""
    patch.edit(
        Greedy.verify,
        "(tokens[:, 1:] == best[:, :-1]) & valid[:, 1:]",
        "tokens[:, 1:] == best[:, :-1]",
    )


# --------------------------------------------------------------------- trees, masks and positions


@killed_by("test_tree.py: tables_agree")
def siblings_in_sight(patch):
    """The tree attention mask is causal: a node sees every node before it."""
    patch.edit(tree._ancestors, "rows[p].copy() if p >= 0", "rows[i - 1].copy() if i")


@killed_by("test_tree.py: tables_agree")
def children_reversed(patch):
    """Children are tested from the last drawn to the first."""
    patch.edit(tree._levels, "below[p].append(i)", "below[p].insert(0, i)")


@killed_by("test_tree.py: prefix_is_the_tree")
def prefix_of_the_wrong_end(patch):
    """A tree that is cut keeps the last rows of the mask, not the first."""
    patch.edit(Tree.prefix, "self.mask[:, :n, :n]", "self.mask[:, -n:, -n:]")


@killed_by("test_tree.py: causal_mask")
def causal_mask_one_slot_wide(patch):
    """A token sees the one behind it."""
    patch.edit(mask.sight_mask, "> ends[:, :, None]", "> ends[:, :, None] + 1")


@killed_by("test_tree.py: every_node_sees")
def tree_mask_one_slot_narrow(patch):
    """The nodes of a tree do not see the last committed slot."""
    patch.edit(mask.table_mask, "(length[:, None] - 1)", "(length[:, None] - 2)")


@killed_by("test_flow.py: row_may_have_its_own_tree")
def target_positions_from_slots(patch):
    """The target numbers the nodes of a tree by slot, not by depth."""
    by_slot = "base + torch.arange(tree.n, device=base.device)[None]"
    patch.edit(Target.score, "positions = base + tree.depth", f"positions = {by_slot}")


@killed_by("test_protocol.py: caches mcsd 1.0")
def draft_positions_from_slots(patch):
    """The draft model numbers the nodes of a tree by slot, not by depth."""
    patch.edit(Levels._below, "base + depth[start:stop]", "base + index[start:stop]")


# ----------------------------------------------------------------------------- caches and windows


@killed_by("test_flow.py: row_may_have_its_own_tree", "test_protocol.py: caches mcsd 1.0")
def keep_off_by_one(patch):
    """Accepted entries move one slot too far, as if the root were not on the path."""
    patch.edit(KVCache.keep, "torch.arange(path.shape[1]", "1 + torch.arange(path.shape[1]")


@killed_by("test_protocol.py: caches mcsd 1.0")
def draft_cache_not_moved(patch):
    """The draft model's cache keeps the first path of a tree whichever was accepted."""
    patch.edit(LevelDrafter.observe, "if not draft.tree.is_chain:", "if draft.tree.is_chain:")


@killed_by("test_protocol.py: features mcsd")
def features_not_moved(patch):
    """Features stay in the slots of their nodes, while keys and values are moved."""
    scored = "scores.features[:, :width] + 0 * scores.features.gather("
    patch.edit(Target.commit, "scores.features.gather(", scored)


@killed_by("models/test_layout.py: any_tree")
def batch_layout_of_the_first_path(patch):
    """In the batch layout every node's entries are taken from the first path of its row."""
    patch.edit(layout.run_paths, "* paths + where // width", "* paths")


@killed_by("test_seen_by_mutants.py: function_of_the_text sps")
def window_short_level(patch):
    """A draft model's catch-up window is one token: after full acceptance one entry is missing."""
    patch.value(LevelDrafter, "window", 1)


@killed_by("test_seen_by_mutants.py: function_of_the_text eagle")
def window_short_eagle(patch):
    """EAGLE's catch-up window is D pairs: the bonus token's is new too."""
    _window_less(patch, EagleDrafter, "__init__")


@killed_by("test_seen_by_mutants.py: function_of_the_text kangaroo")
def window_short_kangaroo(patch):
    """Kangaroo's adapter is fed the last known token only."""
    _window_less(patch, KangarooDrafter, "__init__")


@killed_by("test_seen_by_mutants.py: function_of_the_text easyspec")
def window_short_easyspec(patch):
    """EasySpec's calibration is over D tokens: one that was drafted fuzzily stays."""
    _window_less(patch, EasyDrafter, "__init__")


@killed_by("drafters/test_falcon_drafts.py: cached_drafting lstm-right-q")
def window_short_falcon(patch):
    """Falcon's catch-up window is one pair less than its blocks can need."""
    _window_less(patch, FalconDrafter, "plan")


def _window_less(patch: Patch, owner: type, name: str) -> None:
    @patch.method(owner, name)
    def shorter(real, self, *args, **kwargs):
        real(self, *args, **kwargs)
        self.window = max(1, self.window - 1)


@killed_by("test_protocol.py: caches diffuspec 1.0")
def window_short_diffusion(patch):
    """A diffusion model is fed all new tokens but the first of them."""
    patch.edit(DiffusionDrafter._sizes, "max(fresh, 1)", "max(fresh - 1, 1)")


@killed_by("drafters/test_eagle.py: cached_drafting")
def eagle_pairs_off_by_one(patch):
    """EAGLE pairs a token with its own hidden state, not with the one it was drawn from."""
    patch.edit(
        EagleDrafter.begin,
        "state.features.gather(1, positions[:, :, None]",
        "state.features.gather(1, (positions[:, :, None] + 1)",
    )


@killed_by("test_protocol.py: plain_decoding kangaroo gamma=4")
def kangaroo_runs_a_layer_twice(patch):
    """The layers before the exit are counted from 1, those behind it from 0."""
    patch.edit(KangarooDrafter.shallow, "last=self.exit", "last=self.exit + 1")


# ----------------------------------------------------------------------------- as a pytest plugin


def matches(selection: str, nodeid: str) -> bool:
    file, _, words = selection.partition(": ")
    path, _, name = nodeid.partition("::")
    return path.endswith("/" + file) and all(word in name for word in words.split())


@dataclass
class Plugin:
    """Applies ``mutant`` (None: none of them) while tests run; of these only what ``selections``
    say, if there are any."""

    mutant: Mutant | None
    selections: list[str]
    patch: Patch = field(default_factory=Patch)
    failed: list[tuple[str, str]] = field(default_factory=list)
    passed: int = 0

    def pytest_configure(self, config: pytest.Config) -> None:
        if self.mutant is None:
            return
        self.mutant.apply(self.patch)
        trained = tiny.trained

        def by_right_code(*args, **kwargs):
            # heads are trained on texts of the engine: a mutant is to be seen in what it decodes
            self.patch.undo()
            try:
                return trained(*args, **kwargs)
            finally:
                self.mutant.apply(self.patch)

        tiny.trained = by_right_code

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list) -> None:
        if not self.selections:
            return
        for selection in self.selections:
            if not any(matches(selection, item.nodeid) for item in items):
                raise pytest.UsageError(f"no test is {selection!r}")
        kept = [x for x in items if any(matches(s, x.nodeid) for s in self.selections)]
        config.hook.pytest_deselected(items=[x for x in items if x not in kept])
        items[:] = kept

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when == "call" and report.failed:
            self.failed.append((item.nodeid, call.excinfo.typename))
        self.passed += report.when == "call" and report.passed

    def pytest_terminal_summary(self, terminalreporter) -> None:
        seen = {"failed": self.failed, "passed": self.passed}
        terminalreporter.write_line(REPORT + json.dumps(seen))


REPORT = "mutants saw "


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """The first thing that pytest calls of ``-p mutants``."""
    name = os.environ.get("SPECWB_MUTANT", "none")
    if name != "none" and name not in MUTANTS:
        there = ", ".join(MUTANTS)
        raise pytest.UsageError(f"SPECWB_MUTANT: no mutant {name!r}; there are {there}")
    selections = os.environ.get("SPECWB_MUTANT_TESTS", "").split("\n")
    pluginmanager.register(Plugin(MUTANTS.get(name), [s for s in selections if s]), "mutant")


# ------------------------------------------------------------------------------------ all of them


@dataclass(frozen=True)
class Outcome:
    """``test``: the first that failed, and with what ``error``; None where none did. ``trouble``:
    why nothing is known."""

    test: str | None
    error: str
    passed: int
    seconds: float
    trouble: str = ""


SECONDS = 600  # a mutant that decodes for ever is ended then


def start(name: str, tests: tuple[str, ...], said: Path) -> int:
    """A copy of this process that runs ``tests`` with a mutant and writes to ``said``; its id.

    A copy, because importing torch takes longer than most of the tests.
    """
    files = dict.fromkeys(file_of(selection) for selection in tests)
    child = os.fork()
    if child:
        return child
    signal.alarm(SECONDS)
    with said.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(TESTS.parent)
    os.environ |= {"SPECWB_MUTANT": name, "SPECWB_MUTANT_TESTS": "\n".join(tests)}
    code = 3
    try:
        options = ["-p", "mutants", "-p", "no:cacheprovider", "-x", "-q", "-m", "", "--tb=short"]
        options += ["-p", "no:nbval", "-p", "no:hypothesispytest"]  # seconds of imports each time
        code = int(pytest.main([*options, *map(str, files)]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def outcome(code: int, said: str, seconds: float) -> Outcome:
    """What a run of pytest with this exit code and output says of a mutant."""
    found = [line for line in said.splitlines() if line.startswith(REPORT)]
    seen = json.loads(found[-1].removeprefix(REPORT)) if found else {"failed": [], "passed": 0}
    test, error = seen["failed"][0] if seen["failed"] else (None, "")
    sound = code == 1 if test else code == 0 and seen["passed"]
    trouble = "" if sound else "\n".join([*said.splitlines()[-15:], f"exit code {code}"])
    return Outcome(test, error, seen["passed"], seconds, trouble)


def run(asked: dict[str, tuple[str, ...]], jobs: int = 1) -> Iterator[tuple[str, Outcome]]:
    """Mutants and the tests that are to kill them, ``jobs`` at once; in the order of their ends."""
    waiting, running = list(asked), {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                child = start(name, asked[name], Path(folder, name))
                running[child] = name, time.perf_counter()
            child, status = os.wait()
            name, began = running.pop(child)
            said = Path(folder, name).read_text("utf-8", "replace")
            seconds = time.perf_counter() - began
            yield name, outcome(os.waitstatus_to_exitcode(status), said, seconds)


def file_of(selection: str) -> Path:
    """The file of a selection. Raises Stale where there is none or more than one."""
    name = selection.partition(": ")[0]
    found = [path for path in TESTS.rglob(Path(name).name) if path.as_posix().endswith(f"/{name}")]
    if len(found) != 1:
        raise Stale(f"{len(found)} files in {TESTS} are called {name}")
    return found[0]


def main() -> int:
    """A line for each mutant; 1 if one survives, or if for one of them nothing is known."""
    parser = argparse.ArgumentParser(description="Which tests kill which mutants.")
    parser.add_argument("names", nargs="*", metavar="name", help="mutants, default all of them")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    without = "do not run the same tests without mutants first"
    parser.add_argument("--no-baseline", action="store_true", help=without)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in MUTANTS]:
        parser.error(f"no mutant {', '.join(unknown)}; there are {', '.join(MUTANTS)}")
    asked = {name: MUTANTS[name].tests for name in given.names or MUTANTS}
    if not given.no_baseline:
        every = tuple(dict.fromkeys(selection for tests in asked.values() for selection in tests))
        ((_, right),) = run({"none": every})
        if right.test or right.trouble:
            print(f"{right.test or 'something'} fails without any mutant\n{right.trouble}")
            return 1
        print(f"without mutants {right.passed} tests pass, {right.seconds:.0f} s", flush=True)
    bad = 0
    for name, seen in run(asked, given.jobs):
        bad += bool(seen.trouble) or seen.test is None
        by = f"killed by {seen.test} ({seen.error})" if seen.test else "SURVIVED"
        by = f"not known:\n{seen.trouble}" if seen.trouble else by
        print(f"{name:34} {by}, {seen.seconds:.0f} s", flush=True)
    print(f"{len(asked) - bad} of {len(asked)} mutants killed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
