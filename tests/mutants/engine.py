"""Engines, drafters and rules that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mutants.patch import Patch, killed_by
from specwb.core import mask, tree
from specwb.core.flow import Scores, State
from specwb.core.noise import Noise
from specwb.core.probability import draw_without_replacement
from specwb.core.tree import Tree
from specwb.drafters.diffusion import DiffusionDrafter
from specwb.drafters.eagle import EagleDrafter
from specwb.drafters.easyspec import EasyDrafter
from specwb.drafters.falcon import FalconDrafter
from specwb.drafters.kangaroo import KangarooDrafter
from specwb.drafters.length import Heuristic
from specwb.drafters.level import LevelDrafter, Levels
from specwb.engine import decoding, graphs
from specwb.engine import loop as engine
from specwb.models import layout, path
from specwb.models.cache import KVCache
from specwb.models.target import Target
from specwb.rules.greedy import Greedy
from specwb.rules.rejection import Rejection
from specwb.rules.rrs import RRS
from specwb.rules.rrsw import RRSw
from specwb.rules.rule import NodeRule

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


@killed_by("test_protocol.py: plain_decoding sps")
def finished_rows_go_on(patch):
    """What a finished row drafts is still appended to its text."""
    patch.edit(engine.trim, "count = torch.where(state.done, 0, count)", "pass")


@killed_by("test_protocol.py: reported_once sps")
def counted_before_the_cut(patch):
    """A decoding step reports what was accepted, not what was left of it at the limit."""
    raw = "Verdict(raw.path, raw.accepted, raw.bonus, raw.distribution, verdict.emitted)"
    patch.edit(engine.Decoding.settle, "= length, draft, verdict,", f"= length, draft, {raw},")


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
    patch.edit(graphs.borrowed, "free.pop(key, None)", "free.get(key)")


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
    patch.edit(Levels.columns, "sizes[:d]", "sizes[:0]")


@killed_by("test_decoding_distribution.py: of_the_text_is replacement-plain")
def siblings_share_a_draw(patch):
    """All children of a node are drawn with one uniform, so that they are one token."""
    patch.edit(Levels.drawn, "u[..., j]", "u[..., 0]")


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
    cold = "replace(self.sampling, temperature=1.0).probabilities(self.deciding[row, node])"
    _with_replace(patch, Scores.p, "self.sampling.probabilities(self.deciding[row, node])", cold)


@killed_by("test_ar_oracle.py: sampling_follows")
def filters_on_the_draft_only(patch):
    """top-k and top-p are not applied to p where single rows are verified on the host."""
    plain = "replace(self.sampling, top_k=0, top_p=1.0).probabilities(self.deciding[i, node])"
    _with_replace(patch, Scores.row, "self.sampling.probabilities(self.deciding[i, node])", plain)


def _with_replace(patch: Patch, function: Callable, old: str, new: str) -> None:
    patch.edit(function, old, new.replace("replace(", "__import__('dataclasses').replace(", 1))


@killed_by("test_decoding_distribution.py: of_the_text_is mcsd-top_p")
def q_of_another_temperature(patch):
    """q is recorded at temperature 1, and the draft tokens were drawn at the decoding's own."""
    patch.edit(
        Levels.drawn, "q.append(self.spread(own, 0.0))", "q.append(logits.float().softmax(-1))"
    )


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
    patch.edit(
        tree._tables, "mask.scatter_(2, above, True)", "mask | (node[:, :, None] >= node[:, None])"
    )


@killed_by("test_tree.py: tables_agree")
def children_reversed(patch):
    """Children are tested from the last drawn to the first."""
    patch.edit(tree._tables, "siblings.tril(-1)", "siblings.triu(1)")


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
    patch.edit(Target.score, "Place(base + tree.depth, slots,", "Place(slots, slots,")


@killed_by("test_protocol.py: caches mcsd")
def draft_positions_from_slots(patch):
    """The draft model numbers the nodes of a tree by slot, not by depth."""
    patch.edit(Levels.place, "base + depth[start:stop]", "base + index[start:stop]")


# ----------------------------------------------------------------------------- caches and windows


@killed_by("test_flow.py: row_may_have_its_own_tree", "test_protocol.py: caches mcsd")
def keep_off_by_one(patch):
    """Accepted entries move one slot too far, as if the root were not on the path."""
    patch.edit(KVCache.keep, "torch.arange(path.shape[1]", "1 + torch.arange(path.shape[1]")


@killed_by("test_protocol.py: caches mcsd")
def draft_cache_not_moved(patch):
    """The draft model's cache keeps the first path of a tree whichever was accepted."""
    patch.edit(LevelDrafter.observe, "if not draft.tree.is_chain:", "if draft.tree.is_chain:")


@killed_by("test_protocol.py: features mcsd")
def features_not_moved(patch):
    """Features stay in the slots of their nodes, while keys and values are moved."""
    moved = "taken(scores.features, verdict.path)"
    patch.edit(Target.commit, moved, "scores.features[:, : verdict.path.shape[1]]")


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


@killed_by("test_protocol.py: caches diffuspec")
def window_short_diffusion(patch):
    """A diffusion model is fed all new tokens but the first of them."""
    patch.edit(DiffusionDrafter._sizes, "max(fresh, 1)", "max(fresh - 1, 1)")


@killed_by("drafters/test_eagle.py: cached_drafting")
def eagle_pairs_off_by_one(patch):
    """EAGLE pairs a token with its own hidden state, not with the one it was drawn from."""
    patch.edit(
        EagleDrafter.begin,
        "taken(state.features, positions)",
        "taken(state.features, positions + 1)",
    )


@killed_by("test_protocol.py: plain_decoding kangaroo gamma")
def kangaroo_runs_a_layer_twice(patch):
    """The layers before the exit are counted from 1, those behind it from 0."""
    patch.edit(KangarooDrafter.shallow, "last=self.exit", "last=self.exit + 1")


@killed_by("drafters/test_path_scores.py: distribution_of_the_text options0-plain")
def walk_tested_with_the_place_before(patch):
    """A drawn walk's token is tested with the distribution of the place before its own."""
    old = "row = torch.arange(tree.n, device=tokens.device)"
    patch.edit(DiffusionDrafter._drawn, old, f"{old}.sub(1).clamp_min(0)")


@killed_by("drafters/test_path_scores.py: walk_is_drawn_from_what_it_says")
def walk_ignores_its_last_token(patch):
    """A drawn walk always goes on behind the first candidate."""
    patch.edit(path.sampled_walk, "is_before.int().argmax(-1))", "0 * is_before.int().argmax(-1))")
