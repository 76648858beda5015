"""Closed forms of speculative decoding: acceptance, tokens per decoding step, speedup.

Nothing here needs a model or the engine. Which numbers a function takes and returns depends on
its file:

* ``acceptance``, ``cost`` (one draft token, speed) and ``trees`` take floats, arrays, tensors or
  fractions. Fractions stay fractions, tensors stay tensors, and lists come back as arrays.
* ``rules`` and ``transport`` (several candidates at a node) compute in float64.
* ``diffusion`` (blocks drafted in one pass) takes tables of fractions.
* ``layer_parallel`` (layers side by side) gives times and bounds.
* ``timing`` draws machines whose speed is disturbed, to see what ways of measuring make of it.

The proofs are in theory/.
"""

from specwb.theory.analysis.acceptance import (
    acceptance_rate,
    acceptance_under_temperature,
    output_distribution,
    residual,
    simulate,
)
from specwb.theory.analysis.cost import (
    batch_speedups,
    best_gamma,
    expected_tokens,
    reach,
    roofline,
    speedup,
    tree_reach,
)
from specwb.theory.analysis.diffusion import (
    adl_trace,
    argmax_row,
    best_path,
    drawn_accepted,
    expected_accepted,
    greedy_path,
    marginals,
)
from specwb.theory.analysis.layer_parallel import (
    Span,
    apart,
    attention_error,
    attention_rounds,
    break_even,
    exchange_limit,
    fuzzy_ratio,
    gained_cosine,
    implied_share,
    largest_stage_speedup,
    needed_tokens,
    round_exchange_limit,
    stage_speedup,
    step_time,
    timeline,
)
from specwb.theory.analysis.rules import (
    DRAWN,
    RATES,
    coupling_bound,
    exact_text_rate,
    kseq_rate,
    kseq_rho,
    naive_rate,
    point_rate,
    race_rate,
    rejection_rate,
    rrs_rate,
    rrsw_estimate,
    rrsw_rate,
    top_and_sample_rate,
)
from specwb.theory.analysis.timing import DESIGNS, measured_speedups
from specwb.theory.analysis.transport import optimum, optimum_lp, tree_optimum
from specwb.theory.analysis.trees import (
    best_tree,
    choose_tree,
    dynamic_tree,
    expected_point,
    frontier,
    grow_tree,
    path_values,
)
