"""Measurements, studies, sweeps and evaluations that are wrong on purpose."""

from __future__ import annotations

from mutants.patch import killed_by
from specwb.engine import machine
from specwb.lab.bench import compare, conditions, library, measure, report, runs, statistics, ties
from specwb.lab.bench import results as figures
from specwb.lab.bench import store as run_store
from specwb.lab.cost import calibrate, tune
from specwb.lab.evaluation import (
    acceptance,
    alarm,
    caches,
    check,
    dependence,
    distributions,
    exits,
    fuzzy,
    joint,
    lattices,
    martingale,
    roots,
)
from specwb.lab.harness import record, spec_bench, stored, summary
from specwb.lab.harness import run as answering
from specwb.lab.studies import acceptance as acceptance_study
from specwb.lab.studies import (
    claim,
    curves,
    falcon,
    grid,
    intervals,
    mcsd,
    run,
    store,
    trained,
    verdicts,
)
from specwb.lab.studies.kangaroo import cells as kangaroo
from specwb.lab.studies.mcsd_ti import study as mcsd_ti
from specwb.lab.studies.study import Study
from specwb.lab.sweeps import heads, results, space
from specwb.models import questions as prompts
from specwb.theory import analysis

# ---------------------------------------------------------- comparisons, and what is made of runs


@killed_by("test_compare.py: reference_is_the_faster")
def speedup_by_the_mean(patch):
    """A speedup is the mean of the pairs, which one disturbed run decides."""
    patch.edit(figures.speedup, "np.median(ratios)", "np.mean(ratios)")


@killed_by("test_compare.py: acceptance_by_depth_by_hand")
def tested_as_if_every_draft_were_full(patch):
    """At every depth acceptance is over all steps, also over those that were not tested there."""
    patch.edit(runs.acceptance_by_depth, "sum(t >= d for t in tested)", "len(tested)")


@killed_by("test_compare.py: the_order_of_runs")
def turns_do_not_rotate(patch):
    """Every group is decoded in one order, so that a machine that slows down favours the first."""
    patch.edit(compare._jobs, "first = index % len(names)", "first = 0")


@killed_by("bench/test_measure.py: quieter_attempt_counts")
def faster_attempt_counts(patch):
    """Of two attempts the faster one counts, whatever the machine did beside them."""
    patch.edit(measure.measure, "key=lambda one: one.probe", "key=lambda one: one.seconds")


@killed_by("test_compare.py: batches_and_sampling")
def padding_is_attended_to(patch):
    """In the library's batches short rows also attend to their padding."""
    patch.edit(
        library.Library.generate, "[0] * (width - len(r)) + [1]", "[1] * (width - len(r)) + [1]"
    )


@killed_by("test_compare.py: hashes_are_of_each_model")
def draft_has_the_hash_of_the_target(patch):
    """Under the draft model's hash stands the target's."""
    patch.edit(conditions.weights, "role: model.fingerprint", "role: target.fingerprint")


@killed_by("test_harness.py: another_model_are_not_taken_over")
def n_grams_of_any_text(patch):
    """Results are taken over though the n-grams were counted anew."""
    patch.edit(conditions._drafted_with, 'getattr(drafter, "files", ())', "()")


@killed_by("test_harness.py: another_model_are_not_taken_over")
def any_head_that_is_handed_over(patch):
    """Results are taken over though another head was handed over."""
    patch.edit(conditions._modules, "isinstance(value, nn.Module)", "False")


@killed_by("test_compare.py: another_number_type")
def other_number_type_by_the_same_model(patch):
    """Plain decoding in another number type is decoded by the target itself."""
    patch.edit(measure.measure, "job.target or target", "target")


@killed_by("test_report.py: ordered_otherwise")
def fastest_first_by_rate(patch):
    """The table is sorted by tokens/s over all runs, while its column is the paired speedup."""
    patch.edit(report.ranked, '"speedup", ascending', '"tokens_per_second", ascending')


@killed_by("test_machine.py: one_fast_probe")
def one_probe_sets_the_measure(patch):
    """A run is disturbed where it is slower than 1.5 times the one fastest probe."""
    patch.edit(
        machine.Watch.fastest.fget,
        "sorted(self.probes)[len(self.probes) // 10]",
        "min(self.probes)",
    )


@killed_by("test_ties.py: not_finite")
def nan_is_no_difference(patch):
    """Texts that part where logits are NaN are counted neither as ties nor as errors."""
    patch.edit(ties.same_texts, "not gap <= margin", "gap > margin")


@killed_by("test_prompts.py: fair_mix")
def prompts_category_by_category(patch):
    """The first prompts are all of one category."""
    patch.edit(prompts._in_turn, "for row in zip_longest(*groups)", "for row in groups")


# ------------------------------------------------------------------------- calibration and tuning


@killed_by("test_cost_model.py: prompt_is_in_the_first")
def prompt_timed_as_a_step(patch):
    """The first step, which processes the prompt, is among the steps whose median is taken."""
    patch.edit(calibrate.step_seconds, "median(later or [first])", "median([first, *later])")


@killed_by("test_cost_model.py: rates_reproduce_tau")
def cut_steps_counted_in_rates(patch):
    """Acceptance counts the last step of a row too, which the limit may have cut."""
    patch.edit(calibrate.accepted_by_rank, "if bool(step.state.done[0]):", "if False:")


@killed_by("test_tune.py: without_a_run")
def measured_over_the_fastest(patch):
    """What is measured over this engine's plain decoding is measured over the fastest method."""
    patch.edit(
        tune._add_measurements,
        'frame.tokens_per_second["ar"]',
        "frame.tokens_per_second.max()",
    )


@killed_by("test_exits.py: lower_threshold")
def steps_keep_what_was_not_drafted(patch):
    """A simulated step keeps all that the full draft would have kept, however early it stopped."""
    patch.edit(exits.Rounds.simulate, "np.minimum(self.kept, drafted)", "self.kept")


@killed_by("test_fuzzy_measured.py: milliseconds")
def times_in_seconds(patch):
    """The times of a draft model's parts are seconds under the name of milliseconds."""
    patch.edit(fuzzy.layer_times, "1000 * s for", "s for")


@killed_by("test_fuzzy_measured.py: own_seeds")
def drift_of_one_seed(patch):
    """All prompts are sampled with one seed."""
    patch.edit(fuzzy.drift, "temperature, seed + i", "temperature, seed")


# ------------------------------------------------------------------- checks of the distribution


@killed_by("test_check.py: in_doubt")
def second_run_with_the_same_seed(patch):
    """A test in doubt is made again with the seed of the first run, so that it agrees with it."""
    patch.edit(alarm.decided, "seed + 2**31", "seed")


@killed_by("test_check.py: three_tests")
def check_without_correction(patch):
    """The p-value of a check is the smallest of its three, uncorrected."""
    patch.edit(check.Check.pvalue.fget, "TESTS * min(", "min(")


@killed_by("test_check.py: last_cell_is_not_free")
def every_cell_is_free(patch):
    """The chi-square test has as many degrees of freedom as cells."""
    patch.edit(joint.joint, "max(0, len(expected) - 1)", "len(expected)")


@killed_by("test_martingale.py: both_sides")
def drift_seen_upwards_only(patch):
    """Texts that fall below their expectation are never found: the test is one-sided."""
    patch.edit(martingale.Sum.approximate.fget, "if z > 0 else (-z, -skew)", "")


@killed_by("test_measured_dependence.py: near_the_truth")
def correlation_summed_over_contexts(patch):
    """The total correlation of a context goes on from that of the context before it."""
    patch.edit(dependence._table, 'table.groupby("context").information', "table.information")


@killed_by("test_distributions.py: are_the_models")
def distribution_one_token_early(patch):
    """The distribution after a prefix is the one before its last token."""
    patch.edit(
        distributions.distributions_after,
        "last = torch.tensor([len(prefix)]",
        "last = torch.tensor([max(len(prefix) - 1, 0)]",
    )


@killed_by("test_acceptance_measured.py: table_by_hand")
def errors_over_positions(patch):
    """The standard error of a rule takes the positions of one text for independent."""
    patch.edit(
        acceptance._compared,
        "mean, error = mean_and_error(prompts[name])",
        "mean, error = mean_and_error(cell[name])",
    )


@killed_by("test_acceptance_measured.py: noise_of_positions")
def positions_share_noise(patch):
    """The rate that is estimated has the same noise at every position."""
    patch.edit(
        analysis.rrsw_estimate,
        "_rejected(x, y, check_children(k), samples, generator)",
        "_rejected(x, y, check_children(k), samples, torch.Generator().manual_seed(seed))",
    )


@killed_by("test_acceptance_measured.py: errors_by_hand")
def error_of_the_population(patch):
    """Standard errors divide by n, not by n - 1."""
    patch.edit(statistics.mean_and_error, "x.std(ddof=1)", "x.std()")


@killed_by("test_cache_moments.py: later_step")
def step_begins_before_the_bonus_token(patch):
    """A later step's caches are compared as if the steps before had written no bonus tokens."""
    patch.edit(caches.cache_moments, "sum(kept + 1 for kept", "sum(kept for kept")


@killed_by("test_lattices.py: last_token_is_the_bonus")
def bonus_token_drafted_in_a_replay(patch):
    """A replay's last step accepts the text's last token, and writes one more."""
    patch.edit(
        lattices.Replay._draft, "min(_common(path, rest), len(rest) - 1)", "_common(path, rest)"
    )


@killed_by("test_roots_measured.py: first_drawn_stays")
def last_of_equal_roots_stays(patch):
    """Of roots with equally many accepted tokens the last drawn stays, not the first."""
    patch.edit(
        roots.RootDistributions.kept_root,
        "below[:, :w].prod(1), at_most[:, w + 1 :].prod(1)",
        "at_most[:, :w].prod(1), below[:, w + 1 :].prod(1)",
    )


# ---------------------------------------------------------------------- studies and their verdicts


@killed_by("test_mcsd_study.py: first_step_has_the_prompt")
def prompt_in_the_times_of_a_cell(patch):
    """The milliseconds of a cell's steps have the first step among them."""
    patch.edit(grid.results, "run.step_seconds[1:]", "run.step_seconds")


@killed_by("test_mcsd_study.py: seed_of_its_own")
def prompts_share_a_seed(patch):
    """All prompts of a cell are sampled with one seed."""
    patch.edit(grid.run, "list(range(seed + begin, seed + end))", "[seed] * (end - begin)")


@killed_by("test_shipped_results.py: rows_follow kangaroo")
def depth_tested_where_nothing_was_drafted(patch):
    """Acceptance at a depth is also over the drafts that ended before it."""
    patch.edit(
        grid.row,
        "sum(a >= d - 1 and n >= d for a, n in steps)",
        "sum(a >= d - 1 for a, n in steps)",
    )


@killed_by("test_mcsd_study.py: continued_where_it_was_interrupted")
def prompt_measured_again_after_an_interrupt(patch):
    """A run that goes on measures the interrupted prompt again by cells that have it already."""
    patch.edit(grid.run, "begin, end = len(store.cells[cell.key][last]),", "begin, end = index,")


@killed_by("test_mcsd_study.py: acceptance_is_continued")
def temperatures_share_a_key(patch):
    """A prompt that was measured at one temperature counts as measured at all."""
    patch.edit(acceptance_study.probe, 'f"T={temperature:g} prompt', 'f"prompt')


@killed_by("test_mcsd_study.py: noise_of_prompts")
def prompts_share_noise(patch):
    """The rate that is estimated has the same noise in all prompts."""
    patch.edit(acceptance_study.probe, "SAMPLES, seed=seed + i", "SAMPLES, seed=seed")


@killed_by("test_mcsd_study.py: refuses_results_of_other_arguments")
def results_of_other_arguments_continued(patch):
    """A run goes on from a file that lacks one of its arguments."""
    patch.edit(
        store.Store._read,
        "differing and now.get(name) != before.get(name):",
        "differing and name in before and now.get(name) != before[name]:",
    )


@killed_by("test_mcsd_study.py: results_of_another_target")
def results_of_any_target(patch):
    """Shipped results are shown for a target that they are not of."""
    patch.edit(run.shipped, '.get("sha256") == target.sha256', '.get("sha256")')


@killed_by("test_mcsd_study.py: rows_by_hand")
def depth_counted_with_the_root(patch):
    """The share of a tree's depth that is accepted counts the bonus token."""
    patch.edit(mcsd.row, "round((tau - 1) / depth, 4)", "round(tau / depth, 4)")


@killed_by("test_shipped_results.py: rows_follow mcsd_ti")
def roots_counted_as_drafted(patch):
    """Acceptance of several roots is over the level of the roots too."""
    patch.edit(mcsd_ti.values, "[n - 1 for n in", "[n for n in")


@killed_by("test_kangaroo_study.py: thresholds_decide_alike")
def trace_rounded_to_the_nearest(patch):
    """A confidence just below a threshold is shipped as one that reaches it."""
    patch.edit(kangaroo.trace_to_json, "np.floor(", "np.round(")


@killed_by("test_falcon_study.py: numbers_of_the_tables")
def bonus_token_counted_twice(patch):
    """A bonus token is added to the one published value that has it already."""
    patch.edit(falcon._tau, '((r["target"], r["method"]) != ("Vicuna 7B", "Eagle"))', "1")


@killed_by("test_falcon_study.py: trained_again")
def training_runs_share_a_seed(patch):
    """Every training run of a variant has the first one's seed."""
    patch.edit(trained.train, "seed=seed + run,", "seed=seed,")


@killed_by("test_verdicts.py: chosen_on_the_other_prompts")
def tuned_on_the_prompt_itself(patch):
    """A tuned setting is the best on all prompts, the one it is judged on among them."""
    patch.edit(
        claim.Tuned.series,
        "(scores.sum(1, keepdims=True) - scores)",
        "(scores.sum(1, keepdims=True) + 0 * scores)",
    )


@killed_by("test_verdicts.py: quantiles_by_hand")
def interval_of_ninety_percent(patch):
    """The 95 % interval of a ratio leaves out 5 % on either side."""
    patch.edit(intervals.bootstrap, "[0.025, 0.975]", "[0.05, 0.95]")


@killed_by("test_verdicts.py: quantiles_by_hand")
def interval_one_sided(patch):
    """A joint interval misses the ratio with twice the probability that is stated."""
    patch.edit(intervals.Estimate.within, "1 - alpha / 2", "1 - alpha")


@killed_by("test_verdicts.py: every_measurement_counts_once")
def claims_judged_one_by_one(patch):
    """The many claims of a paper are judged as if each were the only one."""
    patch.edit(verdicts.judge, "ALPHA / max(len(family), 1)", "ALPHA")


@killed_by("test_verdicts.py: drafter_below_the_bar_decides")
def drafters_as_good_as_half_are_not_enough(patch):
    """A drafter must accept all that the paper's does."""
    patch.edit(verdicts.weakness, "BAR * bar.paper", "bar.paper")


@killed_by("test_verdicts.py: stand_with_their_results")
def verdicts_of_the_other_heads(patch):
    """The ablation's verdicts stand under the target's own heads, and the other way round."""
    patch.edit(Study.report, "verdicts[part is ablation]", "verdicts[part is not ablation]")


@killed_by("test_pictures.py: no_cells_figure")
def curve_upside_down(patch):
    """A figure draws the second cell over the first."""
    patch.edit(curves.over, "for cell in (first, second)", "for cell in (second, first)")


@killed_by("sweeps/test_run.py: of_the_same_machine")
def plain_decoding_of_another_machine(patch):
    """Where stores of two machines are merged, a speedup is over whichever stands first."""
    patch.edit(
        results._over_plain, 'for name in (*CONDITIONS, "machine")', "for name in CONDITIONS"
    )


@killed_by("sweeps/test_run.py: quantiles_by_hand")
def sweep_interval_one_sided(patch):
    """The interval of a mean leaves out twice what is stated."""
    patch.edit(figures.interval, "tail = (1 - confidence) / 2", "tail = 1 - confidence")


@killed_by("bench/test_store.py: written_once")
def run_replaces_the_one_that_is_there(patch):
    """A run that two processes measured is the later one's."""
    edited = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)"
    patch.edit(run_store.Store.add, "INSERT INTO runs VALUES (?, ?, ?, ?) {UNLESS_KNOWN}", edited)


@killed_by("test_harness.py: second_evaluation_at_once", "sweeps/test_run.py: second_sweep_at_once")
def two_programs_measure_at_once(patch):
    """A second program measures the same runs into the same file."""
    patch.edit(run_store.Store.measuring, "lock.acquire(timeout=0)", "lock.lock_file")


@killed_by("bench/test_store.py: what_results_depend_on")
def settings_of_any_machine(patch):
    """What was measured on another machine or by another commit counts as measured."""
    patch.edit(run_store.Store.add_settings, "digest([settings, conditions])", "digest(settings)")


@killed_by("sweeps/test_run.py: times_are_noted")
def run_without_a_time_is_done(patch):
    """A run that was stored without a time is not measured when times are asked for."""
    patch.edit(run_store.Store.done, '" WHERE seconds IS NOT NULL" if timed else ""', '""')


@killed_by("sweeps/test_space.py: draws_are_different")
def upper_end_never_drawn(patch):
    """Of a range of integers the upper end is never drawn."""
    patch.edit(space.Range.draw, "float(self.high) + self.is_whole", "float(self.high)")


@killed_by("sweeps/test_run.py: corpus_by_its_content")
def head_of_another_corpus(patch):
    """A head is found by its corpus' path, though the file has changed since."""
    patch.edit(heads.Heads.trained, "content_hash(value) or value", "value")


# --------------------------------------------------------------------------------------- benchmarks


@killed_by("test_harness.py: summary_by_hand")
def speedup_over_the_slower_plain_decoding(patch):
    """A benchmark's speedups are over the slower of the two plain decodings."""
    patch.edit(summary.reference, "first)) > 1", "first)) < 1")


@killed_by("test_harness.py: summary_by_hand")
def speedup_as_the_ratio_of_means(patch):
    """A benchmark's speedup is the ratio of the means over questions, not the median of pairs."""
    patch.edit(summary._row, '"speedup": speedup(pairs)', '"speedup": mean_rate(pairs)')


@killed_by("test_harness.py: seeds_are_of_question")
def turns_share_a_seed(patch):
    """All turns of a question are sampled with one seed."""
    patch.edit(answering._seed, '{question}/{turn}"', '{question}"')


@killed_by("test_record.py: acceptance_by_position")
def tested_counted_as_drafted(patch):
    """Acceptance at a position is over all steps, also those that ended before it."""
    patch.edit(record.conditional, "sum(t >= d for t in tested)", "len(tested)")


@killed_by("test_record.py: spec_benchs_own_files")
def baseline_tokens_as_recorded(patch):
    """Spec-Bench's speedup takes the baseline's recorded tokens, not those counted anew."""
    patch.edit(spec_bench.metrics, "speeds(baseline, again)", "speeds(baseline)")


@killed_by("test_record.py: spec_benchs_own_files")
def both_answers_count(patch):
    """Of a question that was answered twice both answers count."""
    patch.edit(spec_bench._lines, 'lines[row["question_id"]] = row', "lines[number] = row")


@killed_by("test_stored.py: by_hand")
def seconds_of_one_step(patch):
    """An answer that is made of a stored cell takes the time of one step."""
    patch.edit(
        stored.shipped_turns, 'found["mean"][i] * len(accepted) / 1e3', 'found["mean"][i] / 1e3'
    )
