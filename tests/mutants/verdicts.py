"""Wrong certificates."""

from __future__ import annotations

from mutants.patch import killed_by
from specwb.certificate import certify, forking, instances, measure, symbols


@killed_by("certificate/test_certify.py: compared_twice")
def intervals_forgotten(patch):
    """What a comparison says of a uniform is forgotten by the next one."""
    patch.edit(symbols.Run.below, "self.bounds[number] = low, threshold", "pass")


@killed_by("certificate/test_certify.py: compared_twice")
def chance_of_the_whole_interval(patch):
    """A uniform that is known to lie in (a, b) is below t with probability t."""
    patch.edit(symbols.Run.below, "(threshold - low) / (high - low)", "threshold")


@killed_by("certificate/test_certify.py: without_replacement")
def drawn_again(patch):
    """A draw without replacement leaves its token."""
    patch.edit(symbols.Run.tokens, "if not replacement:", "if False:")


@killed_by("certificate/test_certify.py: rows_that_share")
def noise_raced_twice(patch):
    """The same exponential variables may decide twice, as if they were drawn anew."""
    patch.edit(symbols.Run.start, "again or any(", "False and any(")


@killed_by("certificate/test_certify.py: in_a_second_run")
def one_run_is_enough(patch):
    """Runs are not made a second time."""
    patch.edit(forking.distribution, "in reversed(leaves)", "in []")


@killed_by("certificate/test_certify.py: handed_over caught_json")
def refusal_that_was_caught(patch):
    """A refusal that the function caught is forgotten."""
    patch.edit(forking._once, "if run.fault:  # also", "if False:  # also")


@killed_by("certificate/test_certify.py: inputs_are_copies")
def inputs_shared(patch):
    """The verifier is handed the same tensors again and again."""
    patch.edit(measure._texts, "verifier(p.clone(), q.clone(),", "verifier(p, q,")


@killed_by("certificate/test_certify.py: known_verifiers residual_is_p")
def texts_of_their_own_lengths(patch):
    """A text that ends early is not continued by the target."""
    patch.edit(measure._texts, "depth + 1):", "len(tokens)):")


@killed_by("certificate/test_certify.py: known_verifiers wrong_draws")
def independent_draws_for_all(patch):
    """Candidates without replacement are enumerated as independent ones."""
    patch.edit(instances.drafts, 'if draw == "without":', "if False:")


@killed_by("certificate/test_certify.py: known_verifiers bonus_without_temperature")
def temperature_of_the_probabilities_only(patch):
    """Verifiers of logits are tried at T = 1 only."""
    patch.edit(certify.certify, "OTHERS if logits else ()", "()")
