"""Figures and explorers that are wrong on purpose."""

from __future__ import annotations

from mutants.patch import killed_by
from specwb.lab.evaluation.exits import Simulation
from specwb.show.figures.diffuspec import adaptive
from specwb.show.figures.easyspec import round_on_devices
from specwb.show.figures.falcon import block_designer, ratios
from specwb.show.figures.kangaroo import densities
from specwb.show.figures.kit import whiskers
from specwb.show.figures.mcsd_ti import bin_of
from specwb.show.figures.measuring import bars, estimates
from specwb.show.figures.methods import comparison, speedup, tried
from specwb.show.figures.rules import acceptance, rule_rates
from specwb.show.figures.sweeps import by_parameter
from specwb.show.figures.tree import _mask, designer, draft_tree
from specwb.show.widgets.acceptance import SpeedExplorer, shaped
from specwb.show.widgets.controls import Explorer
from specwb.show.widgets.designer import TreeDesigner
from specwb.show.widgets.dials import Dials
from specwb.show.widgets.diffuspec import LengthExplorer
from specwb.show.widgets.easyspec import DevicesExplorer
from specwb.show.widgets.falcon import GlancingExplorer
from specwb.show.widgets.kangaroo import StopExplorer
from specwb.show.widgets.microscope import Microscope
from specwb.show.widgets.papers import show_ledger
from specwb.show.widgets.rules import pair

# ----------------------------------------------------------------------- methods side by side


@killed_by("notebooks/test_figures.py: intervals_begin")
def quartiles_as_lengths(patch):
    """An error bar is as long as the upper quartile, not as it is above the median."""
    patch.edit(
        comparison, "(speed, low, high)", "(speed, low, [s + h for s, h in zip(speed, high)])"
    )


@killed_by("notebooks/test_figures.py: intervals_begin")
def intervals_as_lengths(patch):
    """An error bar is as long as the interval's upper end is high."""
    patch.edit(whiskers, "top - v for v, _, top", "top for v, _, top")


@killed_by("notebooks/test_figures.py: heat_map")
def heat_map_transposed(patch):
    """The cells of a heat map are transposed, its axes are not."""
    patch.edit(by_parameter, "x, y, cells.to_numpy()", "x, y, cells.to_numpy().T")


@killed_by("notebooks/test_figures.py: span_the_middle")
def span_from_the_smallest(patch):
    """The line over the middle of the estimates begins at the smallest of them."""
    patch.edit(estimates, "[(1 - MIDDLE) / 2, 0.5,", "[0.0, 0.5,")


@killed_by("notebooks/test_figures.py: bars_say_their_values")
def bars_by_place(patch):
    """A series that lacks a group has its other bars one group too far to the left."""
    patch.edit(
        bars,
        "[by_group.get(g) for g in groups]",
        "[*by_group.values(), *[None] * (len(groups) - len(by_group))]",
    )


@killed_by("notebooks/test_figures.py: speedups_stand_at_their_gamma")
def measured_from_gamma_0(patch):
    """Measured speedups are drawn at gamma 0, 1, .. as if there were one of every gamma."""
    patch.edit(speedup, '"measured", measured,', '"measured", range(len(measured)),')


# ------------------------------------------------------------------------ distributions and rules


@killed_by("notebooks/test_figures.py: acceptance_figure_adds_up")
def residual_drawn_normalised(patch):
    """The residual's bars are its distribution, not the mass that p has beyond q."""
    patch.edit(acceptance, ", target - both,", ", (target - both) / (1 - alpha),")


@killed_by("notebooks/test_explorer_numbers.py: shaped_distributions")
def draft_is_not_heated(patch):
    """The draft's distribution is at temperature 1 whatever the target's is at."""
    patch.edit(shaped, "(place - shift) ** 2 / 4 / temperature", "(place - shift) ** 2 / 4")


@killed_by("notebooks/test_figures.py: rules_stand_by_scheme")
def rules_under_others_names(patch):
    """Bars are in the order of the rates, and their labels in the order of the schemes."""
    patch.edit(rule_rates, " [rates[rule] for rule in order]", " list(rates.values())")


@killed_by("notebooks/test_explorer_numbers.py: errors_of_a_draft")
def errors_of_the_targets_seed(patch):
    """The draft's errors are drawn from the seed anew: they are the target's logits."""
    patch.edit(
        pair,
        "np.random.default_rng(seed).normal(size=(2, vocabulary))",
        "(np.random.default_rng(seed).normal(size=vocabulary) for _ in range(2))",
    )


@killed_by("notebooks/test_explorer_numbers.py: test_speed")
def curve_at_one_price(patch):
    """Every draft length is scored for the price of the chosen one."""
    patch.edit(SpeedExplorer.draw, "speedup(alpha, g, c, v(g))", "speedup(alpha, g, c, v(gamma))")


@killed_by("notebooks/test_figures.py: bin_they_lie_in")
def shares_for_densities(patch):
    """A density is the share of a bin, not over the bin's width."""
    patch.edit(densities, "n * bins / sum(count)", "n / sum(count)")


@killed_by("notebooks/test_figures.py: bin_they_lie_in")
def groups_by_rounding(patch):
    """What was said is put into the nearest group, not into the one that it lies in."""
    patch.edit(bin_of, "min(int(value * bins), bins - 1)", "round(value * bins)")


# ----------------------------------------------------------------------------------------- trees


@killed_by("notebooks/test_figures.py: draft_tree_of_each_rows_own")
def tree_of_the_first_row(patch):
    """Every row's tokens are drawn on the first row's tree."""
    patch.edit(draft_tree, "tree.host[row if tree.R > 1 else 0]", "tree.host[0]")


@killed_by("notebooks/test_figures.py: mask_is_the_trees")
def position_of_the_one_that_looks(patch):
    """A cell of the mask has the position of the node that looks, not of the one that is seen."""
    patch.edit(_mask, "(depth[j] if j in seen[i] else None", "(depth[i] if j in seen[i] else None")


@killed_by("notebooks/test_figures.py: curves_begin_at_one_node")
def best_trees_unsorted(patch):
    """The sizes of the best trees are sorted, their speeds are not."""
    patch.edit(designer, "[best[m] for m in sizes]", "list(best.values())")


@killed_by("notebooks/test_explorer_numbers.py: best_trees_are")
def root_is_paid_for(patch):
    """A roofline counts the root among the drafted nodes."""
    patch.edit(TreeDesigner._price, "roofline(len(tree) - 1,", "roofline(len(tree),")


@killed_by("notebooks/test_figures.py: blocks_by_their_passes")
def block_trees_from_0_nodes(patch):
    """The curves of block trees begin at 0 nodes, so that the tree shown stands beside its own."""
    patch.edit(block_designer, "range(1, len(curve) + 1)", "range(len(curve))")


@killed_by("notebooks/test_figures.py: blocks_by_their_passes")
def one_error_for_two(patch):
    """The bars of trainings are one standard error, not two."""
    patch.edit(ratios, "2 * v", "v")


@killed_by("notebooks/test_explorer_numbers.py: pairs_glance")
def glances_share_noise(patch):
    """Which blocks glance and how far they do is drawn from the same uniforms."""
    patch.edit(
        GlancingExplorer.draw,
        "order, lengths = torch.from_numpy(made.random((2, self.TEXTS, self.BLOCKS)))",
        "order = lengths = torch.from_numpy(made.random((self.TEXTS, self.BLOCKS)))",
    )


# ------------------------------------------------------------------------------- rounds and costs


@killed_by("notebooks/test_figures.py: lengths_drafted")
def star_at_the_round_after(patch):
    """That delta is added is shown at the round whose length has grown by it."""
    patch.edit(adaptive, "[xs[i] for i in grows]", "[xs[i] + 1 for i in grows]")


@killed_by("notebooks/test_explorer_numbers.py: behind_an_end")
def drafted_is_generated(patch):
    """Tokens drafted a round are those before an end of text."""
    patch.edit(LengthExplorer.draw, "sum(r.k for r in", "sum(r.generated for r in")


@killed_by("notebooks/test_figures.py: spans_and_groups")
def spans_begin_with_their_step(patch):
    """What a device does begins where its step does."""
    begin = "min(t.start for t in spans if t.step == s.step)"
    patch.edit(round_on_devices, "base=[round(s.start, 6)", f"base=[round({begin}, 6)")


@killed_by("notebooks/test_explorer_numbers.py: busy_share")
def busy_over_one_device(patch):
    """The time that all devices are busy is over the time of one."""
    patch.edit(DevicesExplorer.draw, "busy / (devices * self.drafting)", "busy / self.drafting")


@killed_by("notebooks/test_figures.py: what_was_tried")
def lengths_of_intervals_as_ends(patch):
    """The error bars of tau are as long as the interval's ends, not as they are from tau."""
    patch.edit(tried, "whiskers([middle], [low], [top])", "{'array': [top], 'arrayminus': [low]}")


@killed_by("notebooks/test_dials.py: heads_are_not_mixed")
def decodings_by_settings_alone(patch):
    """What was decoded with one head is shown for another one with the same options."""
    patch.edit(Dials.prepare, "setdefault(own, {})", "setdefault(None, {})")


@killed_by("notebooks/test_dials.py: every_method")
def tau_from_draft_tokens(patch):
    """tau is over the draft tokens, not over the steps."""
    patch.edit(Dials._show, "[[TOKENS] * len(runs), steps]", "[[TOKENS] * len(runs), drafted]")


@killed_by("notebooks/test_explorer_numbers.py: curves_and_points")
def rounds_of_another_adapter(patch):
    """Rounds are kept by gamma alone: another adapter's are shown where they were made first."""

    @patch.method(StopExplorer, "curve")
    def curve(real, self, name, gamma):
        return vars(self).setdefault("_by_gamma", {}).setdefault(gamma, real(self, name, gamma))


@killed_by("notebooks/test_explorer_numbers.py: reproduce_has_stored")
def costs_of_the_own_adapter(patch):
    """Every adapter's rounds are priced as those of the target's own."""
    patch.edit(StopExplorer.of.__func__, 'document["costs"][variant]', 'document["costs"][""]')


@killed_by("test_exits.py: tokens_over_seconds")
def mean_of_the_rounds_speedups(patch):
    """A speedup is the mean of the rounds' own, not all tokens over all costs."""
    patch.edit(
        Simulation.speedup,
        "self.cr * plain * steps.total() / spent",
        "plain * fmean((k + 1) / seconds(d) for k, d in zip(self.kept, self.drafted))",
    )


# -------------------------------------------------------------------- what is kept and taken back


@killed_by("notebooks/test_widgets.py: leaves_the_explorer_where_it_was")
def a_look_is_not_taken_back(patch):
    """After a look at other settings controls are set to where they then stand."""
    patch.edit(
        Explorer.at,
        "for control, value in before:",
        "for control, value in [(control, control.value) for control, _ in before]:",
    )


@killed_by("scope/test_microscope.py: another_recording")
def seed_of_the_page_unheard(patch):
    """The page's recordings are all made with seed 0."""

    @patch.method(Microscope, "record")
    def record(real, self, *args, **settings):
        real(self, *args, **{**settings, "seed": 0})


@killed_by("notebooks/test_papers.py: ledger_counts")
def verdicts_of_the_rows_shown(patch):
    """Only the verdicts that are not folded away are counted."""
    patch.edit(
        show_ledger, "(row[verdict]) for row in rows)", "(row[verdict]) for row in rows[:SHOWN])"
    )
