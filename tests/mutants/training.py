"""Losses, recipes, loops and cards of training that are wrong on purpose."""

from __future__ import annotations

from mutants.patch import killed_by
from specwb.training import (
    card,
    chats,
    fit,
    generate,
    heads,
    loop,
    losses,
    markov,
    ngram,
    optim,
    reading,
    recipe,
    run,
    settings,
    talks,
    together,
)
from specwb.training.corpus import Corpus
from specwb.training.decision import DecisionRecipe
from specwb.training.deep import DeepRecipe
from specwb.training.diffusion import DiffusionRecipe
from specwb.training.falcon import FalconRecipe
from specwb.training.fit import Log, Plan, Training
from specwb.training.markov import MarkovSource
from specwb.training.optim import Muon
from specwb.training.path import PathRecipe
from specwb.training.recipe import Moment

# ----------------------------------------------------------------------- the loop and what it saves


@killed_by("test_settings.py: schedules")
def warm_up_one_step_late(patch):
    """The first step of the warm-up has a learning rate of nothing."""
    patch.edit(Plan.scale, "(step + 1) / self.warmup", "step / self.warmup")


@killed_by("test_fit.py: interrupted_training_resumes 17")
def moments_forgotten_on_resume(patch):
    """A resumed run begins with empty moments in its optimisers."""
    patch.edit(Training.resume, "optimiser.load_state_dict(saved)", "pass")


@killed_by("test_fit.py: interrupted_training_resumes 20")
def measured_twice_on_resume(patch):
    """A resumed run writes down the measurement of the step that it begins at once more."""
    patch.edit(Training.measure_where_due, "and measured != [self.done]", "")


@killed_by("test_fit.py: interrupt_between_two_optimisers")
def half_a_step_is_saved(patch):
    """An interrupt saves though one of two optimisers has stepped and the other has not."""
    patch.edit(Training.stop, "if self.is_updating:", "if not self.done:")


@killed_by("test_fit.py: norm_or_value norm-")
def norm_clipped_as_values(patch):
    """Gradients are clipped number by number, whatever was asked for."""
    patch.edit(Training.clip, 'self.plan.clip_by == "value"', "self.plan.clip_by")


@killed_by("test_fit.py: seconds_are_the_median")
def seconds_of_the_mean_step(patch):
    """A step's seconds are a mean, with those of the first step, which compiles."""
    patch.edit(Log.step_seconds.fget, "statistics.median(", "statistics.fmean(")


@killed_by("test_heads.py: processes_divide_a_batch")
def every_process_the_first_rows(patch):
    """All processes take the same rows of a batch."""
    first = "rows[: len(rows) // state.num_processes]"
    patch.edit(fit.process_rows, "rows[state.process_index :: state.num_processes]", first)


@killed_by("test_heads.py: batch_in_parts_is_the_batch")
def parts_are_added_up(patch):
    """The loss of a batch in parts is the sum of their means."""
    old = "step_loss(self.recipe, self.head, outputs, moment, objective) / parts"
    patch.edit(loop.Learner.loss, old, old.removesuffix(" / parts"))


# ----------------------------------------------------------------------------------- optimisers


@killed_by("test_fit.py: muon_agrees")
def muons_rate_of_the_rows(patch):
    """Muon's rate goes by the number of a matrix's rows, not by the larger side."""
    patch.edit(Muon.step, "math.sqrt(max(shape))", "math.sqrt(shape[-2])")


@killed_by("test_fit.py: nothing_else_is_shrunk")
def norms_are_shrunk(patch):
    """Weight decay is also of the norms and words that AdamW trains beside Muon."""
    old = 'plan.weight_decay if plan.optimiser == "adamw" else 0.0'
    patch.edit(optim.optimisers, old, "plan.weight_decay")


# --------------------------------------------------------------------------------------- losses


@killed_by("test_losses.py: is_its_definition lk")
def lk_weighs_by_position(patch):
    """The weight of ``lk`` goes by every position's own alpha, not by the mean."""
    patch.edit(
        losses.loss_by_position, "torch.exp(-eta * mean)", "torch.exp(-eta * alpha.detach())"
    )


@killed_by("test_falcon_training.py: the_loss_by_position")
def mean_over_what_counts(patch):
    """The loss is a mean over the predictions that count, not over all positions."""
    mean = "counts / counts.sum().clamp_min(1.0)"
    patch.edit(heads.step_loss, "counts / counts.numel()", mean)


@killed_by("test_falcon_training.py: the_loss_by_position")
def levels_weigh_alike(patch):
    """All levels weigh as much as the first one."""
    patch.edit(heads.step_loss, "total + scale * value", "total + value")


@killed_by("test_heads.py: direct_count eagle- vocabulary")
def overlap_among_the_words(patch):
    """Measured overlaps leave out that the target may say what is none of the head's words."""
    patch.edit(heads._measure_levels, "if wanted.mass is not None:", "if wanted.mass is None:")


# -------------------------------------------------------------------------------------- recipes


@killed_by("test_falcon_training.py: two_processes_replace")
def noise_of_one_stream(patch):
    """Every use of a step's noise has the same numbers."""
    patch.edit(Moment._random, "self.seed * 64 + stream", "self.seed * 64")


@killed_by("test_heads.py: whichever_part")
def noise_of_other_rows(patch):
    """A part of a batch has the noise of the rows that lie together, and not of its own rows."""
    old = "process_rows(self._random(stream, (self.rows, columns)))[self.part :: self.parts]"
    parts = f"np.split({old.removesuffix('[self.part :: self.parts]')}, self.parts)"
    patch.edit(Moment.uniforms, old, f"{parts}[self.part]")


@killed_by("test_heads.py: chosen_by_the_mixture")
def frequency_in_larger_domains(patch):
    """Words are chosen by how often a domain has them, and not by its share in the mixture."""
    patch.edit(recipe._by_frequency, " / max(1, len(ids))", "")


@killed_by("test_heads.py: chosen_by_the_mixture")
def frequency_of_users_words(patch):
    """Words are chosen by what users say in conversations, too."""
    patch.edit(recipe._by_frequency, "data.counted is not None", "False")


@killed_by("test_falcon_training.py: test_lambda")
def glancing_grows(patch):
    """lambda goes from its last value to its first."""
    patch.edit(FalconRecipe.ratio, "first, last =", "last, first =")


@killed_by("test_falcon_training.py: replaced_pairs_do_not_count 3")
def glancing_blocks_below_themselves(patch):
    """In the second pass the block that glanced does not count, and the one below it does."""
    old = "torch.cat([torch.ones_like(unglanced[:, :k]), unglanced[:, :-k]], 1)"
    patch.edit(FalconRecipe._below, old, "unglanced")


@killed_by("test_diffusion_training.py: weigh_one_over_the_share")
def masked_positions_weigh_alike(patch):
    """A masked position does not weigh one over the share of its block that is masked."""
    patch.edit(DiffusionRecipe._weights, "predicts_masked / share", "predicts_masked / 1.0")


@killed_by("test_diffusion_training.py: masked_blocks_predict_what 7-5")
def block_sees_its_first_token(patch):
    """A masked block sees one position of the text too many, which is its own first token."""
    patch.edit(DiffusionRecipe.states, "first + block * k - 1)", "first + block * k)")


@killed_by("test_diffusion_training.py: masked_blocks_predict_what 7-5")
def text_reads_its_own_state(patch):
    """A token of the text is given the target's state at its place, which drafting has not yet."""
    real = "F.pad(outputs.features[:, :-1], (0, 0, 1, 0))"
    patch.edit(DiffusionRecipe.states, real, "outputs.features")


@killed_by("test_deep_training.py: begins_with_the_targets_embeddings")
def least_principal_directions(patch):
    """The embeddings begin in the directions that keep least of the target's."""
    patch.edit(DeepRecipe.make, "eigenvectors.flip(1)[:,", "eigenvectors[:,")


@killed_by("test_kangaroo_training.py: labels_by_hand pair")
def labels_of_the_targets_tokens(patch):
    """The soft net's labels are of tokens that were drawn from p, not from q."""
    patch.edit(DecisionRecipe.inputs, "inverse_cdf(q, uniforms)", "inverse_cdf(p, uniforms)")


@killed_by("test_kangaroo_training.py: compared_with_the_mean_label")
def baseline_of_a_coin(patch):
    """A decision net's loss is compared with that of one half, not of the mean label."""
    patch.edit(DecisionRecipe.measure, "label.mean().expand_as(label)", "0.5 + 0 * label")


# ----------------------------------------------------------------------------------------- text


@killed_by("test_chats.py: only_what_the_assistant_says")
def turn_that_asks_for_an_answer_counts(patch):
    """What the template writes before an answer counts as the assistant's."""
    patch.edit(chats.tokens, "(messages[:i], True, False)", "(messages[:i], True, True)")


@killed_by("test_chats.py: file_of_conversations")
def counted_one_token_late(patch):
    """Which tokens of a row count is read one place further on."""
    old = "self.counted[domain][start : start + length + 1]"
    new = "self.counted[domain][start + 1 : start + length + 2]"
    patch.edit(Corpus.batch_counted, old, new)


@killed_by("test_heads.py: windows_of_the_held_out_text")
def domains_alike(patch):
    """Rows are of all domains alike, whatever the mixture."""
    patch.edit(
        Corpus.batch_counted, "[mixture[d] for d in domains]", "[1 / len(domains)] * len(domains)"
    )


@killed_by("test_heads.py: windows_of_the_held_out_text")
def measured_on_training_text(patch):
    """Held-out windows are windows of the training text."""
    patch.edit(Corpus.windows, "self.held_out[domain]", "self.train[domain]")


@killed_by("test_heads.py: text_is_read_once")
def text_by_its_name_alone(patch):
    """A file that was written anew is not read again."""
    old = "return (*words, corpus, state.st_mtime_ns, state.st_size)"
    patch.edit(reading._text_key, old, "return (*words, corpus)")


@killed_by("test_heads.py: written_text_is_that_of_its_corpus")
def blocks_of_the_same_prompts(patch):
    """Every block of the target's own text continues the first block's prompts."""
    patch.edit(generate.generated_text, "1_000_000, block, ROWS", "1_000_000, 0, ROWS")


@killed_by("test_heads.py: written_text_is_that_of_its_corpus")
def written_text_of_another_seed(patch):
    """Text that the target wrote for one seed is taken for any other."""
    patch.edit(generate.generated_text, "length, seed, mixture, ROWS", "length, mixture, ROWS")


@killed_by("test_heads.py: three_of_four_rows")
def a_quarter_is_the_targets_own(patch):
    """One row of four is text that the target wrote, not three."""
    patch.edit(loop.Learner.rows, "batch.rows - batch.rows // 4", "batch.rows // 4")


@killed_by("test_talks.py: loop_begins_where")
def overlapping_loops(patch):
    """What repeats itself is also counted where it lies over itself."""
    patch.edit(talks.before_loop, "i >= places[-1] + n", "i > places[-1]")


@killed_by("test_talks.py: share_their_draws")
def conversations_share_seeds(patch):
    """The seeds of a block begin one behind those of the block before."""
    patch.edit(talks.block, "number * 2 * rows", "number")


@killed_by("test_talks.py: another_seed_has_other")
def conversations_of_another_seed(patch):
    """Conversations that were written for one seed are taken for any other."""
    patch.edit(talks.write, "str(model.dtype), seed, before", "str(model.dtype), before")


@killed_by("test_ngram_counted.py: what_is_counted generated")
def held_out_rows_counted(patch):
    """n-grams are counted in the rows that are held out, too."""
    patch.edit(ngram.count_ngram, "rows[first:, PROMPT:]", "rows[:, PROMPT:]")


# ------------------------------------------------------------------------------- the known source


@killed_by("test_markov.py: test_the_source")
def entropy_with_nothing_shown(patch):
    """The entropy of a token does not go down by what is shown before it."""
    patch.edit(MarkovSource.entropy, "self.transition, j - shown", "self.transition, j")


@killed_by("test_markov.py: units_of_a_standard_error")
def positions_as_independent(patch):
    """The standard error takes all positions of a text for independent of each other."""
    patch.edit(markov._mean, "((value - mean) * weights).sum(1)", "(value - mean) * weights")


# ------------------------------------------------------------------ runs, their settings and cards


@killed_by("test_heads.py: finished_head_is_left_alone")
def run_of_any_seed(patch):
    """A head of another seed passes for the one that was asked for."""
    patch.edit(run._Run.identity.func, "[self.seed, self.text_seed]", "[]")


@killed_by("test_together.py: before_the_rounding")
def acceptance_before_rounding_is_after(patch):
    """What a card says of a head before it was rounded is measured when it was."""
    old = "before = run.acceptance()\n        round_to_int8(run.head)"
    patch.edit(run._finish, old, "; ".join(x.strip() for x in old.split("\n")[::-1]))


@killed_by("test_heads.py: curves_lie_over")
def acceptance_drawn_by_number(patch):
    """The curve of acceptance lies over the number of a measurement and not over its step."""
    patch.edit(run.draw_loss, "bottom.plot(steps,", "bottom.plot(range(len(steps)),")


@killed_by("test_together.py: heads_of_a_file")
def settings_of_all_heads_win(patch):
    """What a recipe sets for all heads wins over what it sets for one of them."""
    patch.edit(
        together.train_together, "{**common, **own, **changes}", "{**own, **common, **changes}"
    )


@killed_by("test_together.py: requests_of_earlier")
def requests_of_the_last_text_only(patch):
    """The fingerprints of what other heads there were trained on are lost."""
    patch.edit(together.train_together, "{*before, *requests(corpus)}", "{*requests(corpus)}")


@killed_by("test_settings.py: says_how_it_differs")
def published_settings_for_ones_own(patch):
    """Of a setting that differs, the recipe's value is said to be the head's."""
    old = "{name} {settings[name]} ({value})"
    patch.edit(settings.differences, old, "{name} {value} ({settings[name]})")


@killed_by("test_together.py: numbers_of_a_card")
def mebibytes_as_megabytes(patch):
    """The sizes of files are in units of 2^20 bytes and are called MB."""
    patch.edit(card.megabytes, "/ 1e6", "/ 2**20")


@killed_by("drafters/test_path_scores.py: lattices_are_those_of_drafting")
def lattices_a_place_late(patch):
    """A path scorer learns the target's distribution of the place behind its own."""
    patch.edit(PathRecipe._lattices, "-1), first - 1)", "-1), first)")
