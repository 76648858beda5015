"""Models, heads and caches that are wrong on purpose."""

from __future__ import annotations

from mutants.patch import killed_by
from specwb.engine import custom_generate
from specwb.models import (
    architectures,
    compiled,
    device,
    diffusion,
    eagle,
    eagle_config,
    folder,
    fuzzy,
    gguf,
    hooks,
    layers,
    layout,
    load,
    products,
    reading,
    smol,
    target,
    words,
)
from specwb.models.backbone import Backbone, Stack
from specwb.models.borrowed import Spread
from specwb.models.cache import KVCache, SpreadCache
from specwb.models.decision import summary
from specwb.models.diffusion import DiffusionModel
from specwb.models.eagle import Eagle3Head
from specwb.models.falcon import FalconHead
from specwb.models.fuzzy import FusedGroups, StreamGroups
from specwb.models.generic import GenericBackbone
from specwb.models.kangaroo import KangarooAdapter
from specwb.models.masked import Blocks
from specwb.models.medusa import MedusaHeads
from specwb.models.ranks import RankGroups
from specwb.models.target import Target

# ------------------------------------------------------------------------------ caches and layouts


@killed_by("models/test_architectures.py: every_node llama")
def rows_overlap_in_the_cache(patch):
    """A row's slots begin one before the row above ends."""
    patch.edit(KVCache.__init__, "[:, None] * capacity", "[:, None] * (capacity - 1)")


@killed_by("models/test_placement.py: cache_in_parts tree")
def accepted_path_moved_on_one_device(patch):
    """Of a cache on several devices only the first one's entries move to the accepted path."""
    patch.edit(SpreadCache.keep, "in self._parts:", "in self._parts[:1]:")


@killed_by("models/test_fuzzy.py: streams_are_ordered")
def streams_make_what_others_read(patch):
    """What all layers share is made on the stream of the first that needs it."""
    patch.edit(StreamGroups.attend, "stack.share_rotation(at, x.dtype)", "pass")


@killed_by("models/test_fuzzy.py: streams_are_ordered")
def streams_make_what_windows_share(patch):
    """So is what layers of other kinds than the first share."""
    patch.edit(Stack.share_rotation, "(at, *at.others.values())", "(at,)")


@killed_by("models/test_fuzzy.py: streams_are_ordered")
def streams_are_not_joined(patch):
    """The stream that goes on does not wait for the others."""
    patch.edit(StreamGroups.attend, "here.wait_stream(stream)", "pass")


@killed_by("models/test_layout.py: any_tree")
def batch_layout_mixes_rows(patch):
    """The paths of the batch layout take the positions of the rows in turn, not row by row."""
    patch.edit(layout.run_paths, "base.repeat_interleave(paths, 0)", "base.repeat(paths, 1)")


@killed_by("models/test_target.py: long_prompts sps")
def parts_of_a_prompt_begin_at_0(patch):
    """Every part of a long prompt has the positions and slots of the first one."""
    real = "torch.arange(first, last, device=backbone.device)"
    patch.edit(target.prefill, real, "torch.arange(last - first, device=backbone.device)")


@killed_by("models/test_folders.py: settings_that_decoding_has_itself")
def ends_of_the_tokenizer_only(patch):
    """A text ends with the tokenizer's one end of text, not with those of the generation_config."""
    patch.edit(Target.__init__, "eos if eos is not None else getattr(", "getattr(")


# --------------------------------------------------------------------------- layers and attention


@killed_by("models/test_architectures.py: every_node gemma2")
def cap_not_multiplied_back(patch):
    """A soft cap is tanh(x / c), without the c before it."""
    patch.edit(layers.capped, ".tanh() * cap", ".tanh()")


@killed_by("models/test_architectures.py: every_node gpt_oss")
def sinks_of_other_heads(patch):
    """Sinks go round the heads, where each head's queries lie one behind the other."""
    repeats = "queries * kv // len(layer.sinks)"
    patch.edit(layers.attend, f".repeat_interleave({repeats}, 1)", f".repeat(1, {repeats})")


@killed_by("models/test_architectures.py: every_node mistral-window")
def window_of_a_prompt_one_wide(patch):
    """A window of W positions has the W before its own, and its own."""
    patch.edit(Stack.shared, "last_seen(seen, window)", "last_seen(seen, window + 1)")


@killed_by("models/test_architectures.py: single_token mistral-window")
def single_token_without_a_window(patch):
    """A single token of one row, which needs no mask, sees the whole text."""
    patch.edit(Stack.shared, "k, v = k[:, :, :, -window:], v[:, :, :, -window:]", "pass")


@killed_by("models/test_architectures.py: every_node gemma3_text")
def rotations_share_a_table(patch):
    """The rotary tables are kept for a model, not for each of its rotations."""
    patch.edit(Stack._table, "setdefault(rotation, [])", "setdefault(None, [])")


@killed_by("models/test_architectures.py: no_longer_than_the_rotation")
def context_beyond_the_rotation(patch):
    """A context is as long as the positions, though the rotation changes before their end."""
    patch.edit(architectures.context, "min(longest, unchanged_below(config))", "longest")


@killed_by("models/test_architectures.py: every_node llama")
def last_feature_without_its_norm(patch):
    """Feature -1 is what the last layer puts out, before the final norm."""
    patch.edit(Stack.selected, "rms(x, self.norm)", "x")


@killed_by("models/test_architectures.py: every_node granite")
def logits_multiplied_by_their_divisor(patch):
    """Granite's logits are multiplied by logits_scaling: greedy text stays, probabilities do
    not."""
    patch.edit(Backbone._scaled, "logits / self._divisor", "logits * self._divisor")


@killed_by("models/test_architectures.py: every_node gpt2")
def generic_feature_one_layer_on(patch):
    """By the library's forward feature i is what layer i + 1 puts out."""
    behind = "self.layers[min(f, len(self.layers) - 1)]"
    patch.edit(GenericBackbone._recorded, "self.layers[f - 1]", behind)


@killed_by("test_backbone.py: see_their_siblings")
def trial_of_the_root_only(patch):
    """The trial of a model compares the root's logits, which no mask and no position moves."""
    patch.edit(
        GenericBackbone._off, "(logits - expected).abs()", "(logits - expected)[:, :1].abs()"
    )


@killed_by("models/test_hooks.py: refused_by_name pre-hook")
def hooks_before_a_module_unseen(patch):
    """A hook on what a module is given is not looked for, and so is ignored."""
    patch.edit(hooks._addition, '["_forward_pre_hooks"]', '["_forward_hooks"]')


# ------------------------------------------------------------------------------------------- heads


@killed_by("drafters/test_eagle.py: training_unrolls")
def unrolled_step_sees_its_text(patch):
    """In EAGLE's training a step j levels below the text sees the text up to its own place."""
    patch.edit(eagle.sight, "c <= i - j", "c <= i")


@killed_by("models/test_checkpoints.py: eagle_3_1")
def eagle_output_normed_twice(patch):
    """A head that puts out normed states has them normed once more before its output layer."""
    patch.edit(Eagle3Head.last, "hidden if self.normed_output else rms(", "rms(")


@killed_by("models/test_checkpoints.py: conventions_of_layer_ids")
def layer_ids_taken_as_they_are(patch):
    """Feature layers that a file counts from 0 by their outputs are read as ours, one before."""
    patch.edit(eagle_config.layer_numbers, "ids[0] == 1", "ids[0] == 0")


@killed_by("models/test_falcon_head.py: recurrent_fusion")
def lstm_without_its_second_bias(patch):
    """Falcon's LSTM adds the input's bias and forgets the state's."""
    patch.edit(FalconHead._cells, "b_ih + b_hh", "b_ih")


@killed_by("training/test_falcon_training.py: measured_depths 2-lstm")
def state_after_a_blocks_first_pair(patch):
    """In Falcon's training a block goes on from the LSTM's state behind the first pair above."""
    patch.edit(FalconHead.unroll, "k, -1)[:, :, -1]", "k, -1)[:, :, 0]")


@killed_by("models/test_kangaroo_adapter.py: begins_as_the_layer")
def adapter_begins_a_layer_late(patch):
    """Kangaroo's adapter begins as the second layer behind its exit."""
    patch.edit(KangarooAdapter.start_from, "min(self.exit + i,", "min(self.exit + i + 1,")


@killed_by("models/test_checkpoints.py: medusa_1_with")
def medusa_heads_share_blocks(patch):
    """All Medusa heads read the first one's residual blocks."""
    patch.edit(MedusaHeads.forward, "self.last(i, x)", "self.last(0, x)")


@killed_by("models/test_kangaroo_adapter.py: decision_model_by_hand")
def entropy_in_bits(patch):
    """The net that stops drafting reads entropies in bits; it was trained on nats."""
    patch.edit(summary, "entropy(logq)[..., None]", "entropy(logq)[..., None] / 0.693147")


@killed_by("models/test_words.py: made_once_and_anew")
def rows_by_the_number_of_words(patch):
    """The rows of an output layer are kept by how many words there are, not by which."""
    patch.edit(words.rows_of, "words.cpu().numpy().tobytes()", "bytes(len(words))")


@killed_by("models/test_borrowed.py: between_the_targets")
def other_tokens_have_logit_0(patch):
    """Tokens that are no words of a draft model have the logit 0, and so a probability."""
    patch.edit(Spread.forward, "-torch.inf", "0.0")


# ----------------------------------------------------------------------- masked-diffusion models


@killed_by("models/test_diffusion_models.py: block_is_the_librarys dream")
def dream_takes_a_mask_less(patch):
    """Every model whose outputs are shifted takes one mask less than tokens, Dream too."""
    patch.edit(DiffusionModel.spared.fget, "self.shift and self.causal", "self.shift")


@killed_by("models/test_diffusion_models.py: denoising_step")
def surest_places_rounded_down(patch):
    """A denoising step fills floor(k / S) places, and the last one all that is left."""
    patch.edit(Blocks.say, "(k[:, None] + steps - 1).div(", "k[:, None].div(")


@killed_by("models/test_diffusion_models.py: rounds_with_a_cache 1-ours")
def masks_of_the_row_that_asks_most(patch):
    """A row that asks for few tokens sees as many masks as the one that asks for most."""
    patch.edit(Blocks.say, "(k - model.spared).clamp_min(0)", "torch.full_like(k, m)")


@killed_by("models/test_diffusion_models.py: published_llada")
def llada_gate_and_up_swapped(patch):
    """LLaDA's ff_proj is read as the MLP's up_proj, and its up_proj as the gate."""
    real = '{_LLADA[parts[2]]}.{parts[3]}"] = weight'
    swapped = "{'ff_proj': 'up_proj', 'up_proj': 'ff_proj'}.get(parts[2], parts[2])"
    patch.edit(diffusion._llada_keys, real, "{_LLADA[" + swapped + ']}.{parts[3]}"] = weight')


# -------------------------------------------------------------------------------- layers in groups


@killed_by("models/test_fuzzy.py: by_hand")
def groups_counted_from_the_second_layer(patch):
    """EasySpec's groups begin at multiples of n behind the first layer, not at those of n."""
    patch.edit(fuzzy.grouping, "in range(0, layers, n)", "in range(int(first), layers, n)")


@killed_by("models/test_fuzzy.py: executions_are_the_algorithm pairs biases-")
def stacked_weights_by_size(patch):
    """Stacked weights are kept by the size of a group: the first pair's serve all pairs."""

    @patch.method(FusedGroups, "weights")
    def weights(real, self, stack, group):
        kept = self.__dict__.setdefault("_by_size", {})
        return kept.setdefault((stack, len(group)), real(self, stack, group))


@killed_by("models/test_ranks.py: who_runs_what")
def attentions_dealt_out(patch):
    """The attentions of a group go to the ranks in turn, though outputs are gathered in order."""
    patch.edit(RankGroups.__init__, "g // -(-len(group) // size)", "g % size")


# ------------------------------------------------------------------------------ files and loading


@killed_by("models/test_checkpoints.py: rounding_to_int8")
def int8_cut_off(patch):
    """Weights are cut off to integers on their way into int8, not rounded."""
    patch.edit(products.quantized, ".round().to(", ".to(")


@killed_by("models/test_checkpoints.py: rounding_to_int8")
def int8_scale_of_the_matrix(patch):
    """A matrix in int8 has its largest number's scale in every row."""
    rows = "weight.float().abs().amax(1, keepdim=True)"
    patch.edit(products.quantized, rows, "weight.float().abs().amax().expand(len(weight), 1)")


@killed_by("test_backbone.py: constants_are_not_rounded")
def rotary_frequencies_rounded(patch):
    """A model's constants are cast with its weights."""
    patch.edit(load.cast_weights, "module._buffers[name] = buffer", "pass")


@killed_by("test_errors.py: tokenizer")
def tokenizers_compared_by_size(patch):
    """Two tokenizers with as many tokens are taken for the same."""
    patch.edit(load.check_pair, "if a != b:", "if len(a) != len(b):")


@killed_by("models/test_folders.py: looked_at_as_a_folder")
def revision_of_a_hub_id_dropped(patch):
    """Of OWNER/NAME@REVISION the newest revision is loaded."""
    patch.edit(folder.folder_of, "revision or pinned,", "revision,")


@killed_by("models/test_smol.py: another_file")
def any_file_is_smol(patch):
    """Whatever the package holds under smol's name is taken for smol, whose heads would fit it."""
    patch.edit(smol.fetched, "if weights_hash(file) != SHA256:", "if not weights_hash(file):")


@killed_by("models/test_gguf.py: bfloat16_would_not_round")
def norms_keep_a_file_precise(patch):
    """A GGUF file's norms, which are always in float32, count as matrices of so many bits."""
    patch.edit(gguf._matrices, " if len(t.shape) > 1", "")


@killed_by("models/test_gguf.py: one_precise_matrix")
def one_coarse_matrix_is_enough(patch):
    """A GGUF file is coarse where one matrix is: a precise one beside it is rounded."""
    patch.edit(gguf.is_coarse, "PRECISE.isdisjoint(", "not PRECISE.issuperset(")


@killed_by("models/test_folders.py: added_tokens_may")
def added_tokens_need_a_row(patch):
    """Gemma 3 is refused for the last token of its tokenizer."""
    patch.edit(reading.check_words, " - tokenizer.get_added_vocab().keys()", "")


@killed_by("test_hf.py: greedy_is_the_librarys sps plain")
def scores_of_the_root_alone(patch):
    """The scores of a step's tokens are all those of its first one."""
    patch.edit(
        custom_generate._Table.take, "for node in path[: max(count, 0)]", "for node in [0] * count"
    )


@killed_by("models/test_placement.py: device_that_computes")
def offload_is_the_main_device(patch):
    """A map that begins with an offload to the CPU has it as the device that computes."""
    patch.edit(device.main_device, "not in OFFLOADED", '!= "disk"')


# ---------------------------------------------------------------------- what is measured or counted


@killed_by("models/test_compiled.py: bits_of_its_path")
def other_branches_are_seen(patch):
    """A node sees the whole tree."""
    patch.edit(compiled.seen_by, "place.mask == 0", "place.mask <= 0")


@killed_by("models/test_compiled.py: unlike_the_others post epsilon")
def second_norms_with_an_epsilon_of_their_own(patch):
    """Of the layers' epsilons only those before the attention are compared."""
    patch.edit(compiled._epsilons, "(layer.norm1, layer.norm2)", "(layer.norm1,)")


@killed_by("models/test_compiled.py: head_in_int8")
def int8_of_fused_weights_is_kept(patch):
    """An edit of the keys' weights is not seen in the int8 form of q, k and v."""
    patch.edit(products.int8_rows, "form.parts or (weight,)", "(weight,)")


@killed_by("models/test_compiled.py: edited_between qwen3")
def heads_norms_of_the_decoding_before(patch):
    """The gains of queries' and keys' norms are kept when they are edited."""
    patch.edit(Stack.cache, "layer.refresh()", "pass")


@killed_by("models/test_compiled.py: edited_between")
def norms_of_the_decoding_before(patch):
    """What the compiled pass keeps of norms and biases is kept when they are edited."""
    patch.edit(Stack.cache, "self.compiled = None", "pass")
