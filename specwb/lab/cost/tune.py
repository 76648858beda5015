"""Which method, gamma or tree is fastest for a pair of models on this machine (``specwb tune``).

Acceptance and costs are measured on some of the questions, one in three of every category. The best
tree of every drafter follows from them (:func:`specwb.theory.analysis.choose_tree`). It is measured
on the other questions, side by side with chains, fixed trees and all other methods.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specwb.core.errors import ArgumentError
from specwb.core.files import TUNED, claim, home, write
from specwb.core.inputs import integer
from specwb.core.options import spell
from specwb.core.probability import Sampling
from specwb.core.progress import Report, unseen
from specwb.core.tree import Tree
from specwb.engine.methods import Method, that_run
from specwb.lab.bench.compare import compare
from specwb.lab.bench.conditions import conditions
from specwb.lab.cost.calibrate import WIDTHS, CostModel, calibrate, forward_seconds, middle
from specwb.models.questions import Question, interleave
from specwb.models.target import Target
from specwb.theory.analysis import choose_tree, tree_reach

GAMMA = 8
"""Length of the longest chain."""
WIDE = {
    "sps": f"gamma={GAMMA}",
    "mcsd": "tree=4-4-4",
    "medusa": "tree=6-4-3",
    "eagle": "tree=4-3-2-1-1-1",
    "falcon": "tree=4-3-2-1-1-1",
}
"""The options of every drafter on whose tree acceptance is counted; chosen trees are no larger."""
FIXED = [
    *("mcsd:tree=2-1", "mcsd:tree=2-2", "mcsd:tree=3-1-1", "mcsd:tree=2-2-2", "mcsd:tree=4-2"),
    *("mcsd:tree=2-1,draw=top", "mcsd:tree=2-2,draw=top", "mcsd:tree=4-2,draw=top"),
    *("medusa", "eagle", "eagle2", "eagle3", "eagle3:nodes=4,depth=3,top=1"),
    *("falcon", "falcon_dynamic", "pld", "pld:gamma=4", "suffix", "recycling", "lookahead"),
    *("lookahead:window=4,level=4,guesses=4", "diffuspec", "diffuspec:k=3", "kangaroo"),
    *("kangaroo:gamma=3,eta=0.6", "mcsd_ti", "mcsd_ti:tree=2-1-1", "easyspec", "easyspec:gamma=2"),
]
"""What is always measured, where the target has the models for it."""


FIXED_IN_BATCHES = [
    *("sps:gamma=1", "sps:gamma=2", "sps", "mcsd:tree=2-1", "mcsd:tree=4-2", "medusa", "eagle"),
    *("eagle2", "eagle3", "eagle3:nodes=4,depth=3,top=1", "falcon:draw=greedy", "kangaroo"),
]
"""The settings that are compared with what ``verify=auto`` makes of the larger ones."""
AUTO = [
    *("sps:verify=auto", "mcsd:tree=4-2,verify=auto", "medusa:verify=auto", "eagle:verify=auto"),
    *("eagle2:verify=auto", "eagle3:verify=auto", "falcon:draw=greedy,verify=auto"),
    "kangaroo:verify=auto",
]


Row = dict[str, Any]
"""What is known of a setting, by name."""


def tune(
    target: Target,
    questions: Sequence[Question],
    *,
    draft: Target | str | None = None,
    temperature: float = 0.0,
    nodes: int = 32,
    max_new_tokens: int = 64,
    seconds: float | None = None,
    seed: int = 0,
    path: Path | None = None,
    progress: Report = unseen,
    command: str = "",
) -> dict[str, Any]:
    """Measure chains, trees, heads and all other methods, and name the fastest.

    Args:
        target: the target model.
        questions: prompts; one in three of every category calibrates.
        draft: the draft model of methods that take one, default the target's own.
        temperature: 0 is greedy.
        nodes: of the largest tree, its root included.
        max_new_tokens: for every prompt.
        seconds: time budget of counting acceptance, and of the comparison; None takes all prompts.
        seed: of the sampling.
        path: the file of the result, JSON, written before the comparison and after it.
        progress: called with (fraction done, text).
        command: the command line, for the file.
    Returns:
        A dict: command and commit; arguments (also models, device and versions); calibrated, the
        :class:`CostModel` of the draft model; rows, one per setting, with its tau, tokens/s over
        plain decoding's by this engine (``measured``) and ``speedup`` over the fastest plain
        decoding, as :func:`specwb.compare` has it, also ``nodes`` and the ``tau_predicted`` of a
        best tree; left_out, methods and why; interrupted, reference, machine and prompts, as of
        compare; best, the fastest setting.
    Raises:
        ValueError: nodes < 2, there are too few questions, the file cannot be written, or as
            :func:`specwb.compare`.
    """
    integer("nodes (the root included)", nodes, 2)
    integer("max_new_tokens", max_new_tokens, 1)
    how: dict[str, Any] = {"temperature": Sampling(temperature).temperature, "seed": seed}
    how["max_new_tokens"] = max_new_tokens
    if max_new_tokens >= target.context:
        raise ArgumentError(
            "max_new_tokens must leave room for a prompt in the context of "
            f"{target.name!r} ({target.context}), got {max_new_tokens}"
        )
    if path is not None:  # before the minutes of work whose result it is to hold
        path = home(path)
        claim({"--out": (path, TUNED)})
    calibrating, measuring = split_questions(questions)
    texts = [q.fit(target.tokenizer, target.context - max_new_tokens)[0] for q in calibrating]
    progress(0.0, "calibrating, forwards")
    forwards = forward_seconds(
        target, WIDTHS, middle(target, texts), temperature=how["temperature"]
    )
    wide, _ = that_run([f"{key}:{options}" for key, options in WIDE.items()], target, draft)
    models: dict[str, CostModel] = {}
    for i, (spec, method) in enumerate(wide.items(), 1):
        progress(i / (1 + len(wide)) / 3, f"calibrating, {spec}")
        models[spec.partition(":")[0]] = calibrate(
            target,
            method,
            texts,
            forwards,
            seconds=seconds and seconds / len(wide),
            **how,
        )
    rows = candidates(models, nodes)
    methods, left_out = that_run([row["method"] for row in rows], target, draft)
    rows = [row for row in rows if row["method"] in methods]
    made_on = conditions(target, methods.values())
    pair = models.pop("mcsd", CostModel(forwards, {}))
    result: dict[str, Any] = {
        "command": command,
        "commit": made_on["commit"],
        "arguments": {
            **{role: made_on["models"].get(role) for role in ("target", "draft")},
            **{name: made_on[name] for name in ("sha256", "device", "dtype", "versions")},
            **how,
            "nodes": nodes,
            "questions": [question.question_id for question in questions],
        },
        "calibrated": asdict(replace(pair, chain=models.pop("sps", pair).tree)),
        "rows": rows,
        "left_out": left_out,
        "interrupted": False,
        "prompts": {"calibrated": len(calibrating), "measured": 0},
    }
    _write(result, path)
    try:
        frame = compare(
            target,
            measuring,
            ["ar", *{method.key: method for method in methods.values()}.values()],
            seconds=seconds,
            library=False,
            progress=lambda done, text, _: progress((1 + 2 * done) / 3, f"measuring, {text}"),
            **how,
        )
    except KeyboardInterrupt:
        result["interrupted"] = True
    else:
        result |= {name: frame.attrs[name] for name in ("reference", "machine", "interrupted")}
        result["left_out"] = left_out | frame.attrs["left_out"]
        result["prompts"]["measured"] = frame.attrs["prompts"]
        _add_measurements(rows, frame.set_index("method"), methods)
    measured = [row for row in rows if row.get("speedup", 0) > 1]
    plain = {"method": "ar", "speedup": 1.0}
    result["best"] = max(measured, key=lambda row: row["speedup"], default=plain)
    _write(result, path)
    return result


def checked_batches(batches: Iterable[Any], questions: Sequence[Question]) -> list[int]:
    """Check numbers of prompts that are decoded together.

    Raises:
        ArgumentError: one is no number of prompts, or larger than there are questions.
    """
    return [integer("batch", batch, 1, len(questions)) for batch in batches]


def by_batch(
    target: Target,
    questions: Sequence[Question],
    batches: Sequence[int],
    *,
    draft: Target | str | None = None,
    seconds: float | None = None,
    progress: Report = unseen,
    **how: Any,
) -> list[Row]:
    """Measure plain decoding, fixed settings and ``verify=auto`` at several batch sizes.

    Args:
        target, draft, progress: as for :func:`tune`.
        questions: prompts, at least as many as the largest batch.
        batches: numbers of prompts that are decoded together.
        seconds: time budget of all of them.
        how: temperature, max_new_tokens and seed, as for :func:`specwb.compare`.
    Returns:
        For every batch a dict: batch; and plain, fixed, auto: ``ar``, the fastest of
        :data:`FIXED_IN_BATCHES` and of :data:`AUTO`, each a method and its tokens/s (None where
        none was measured).
    Raises:
        ValueError: there are fewer questions than rows, or as :func:`specwb.compare`.
    """
    batches = checked_batches(batches, questions)
    fixed, auto = (that_run(specs, target, draft)[0] for specs in (FIXED_IN_BATCHES, AUTO))
    rows: list[Row] = []

    def moved(done: float, text: str, _: object) -> None:
        progress((len(rows) + done) / len(batches), f"batch {batches[len(rows)]}, {text}")

    for batch in batches:
        frame = compare(
            target,
            questions,
            ["ar", *auto.values(), *fixed.values()],
            batch=batch,
            seconds=seconds and seconds / len(batches),
            library=False,
            progress=moved,
            **how,
        )
        speed = frame.set_index("method").tokens_per_second
        row: Row = {"batch": batch, "plain": ("ar", float(speed["ar"]))}
        for name, methods in (("fixed", fixed), ("auto", auto)):
            keys = [method.key for method in methods.values() if method.key in speed.index]
            best = max(keys, key=speed.__getitem__, default=None)
            row[name] = None if best is None else (best, float(speed[best]))
        rows.append(row)
    return rows


def split_questions(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Split into the questions that calibrate, one in three of every category, and the others."""
    if len(questions) < 2:
        raise ArgumentError(
            "tune needs at least two prompts, one to calibrate and one to measure on; "
            f"got {len(questions)}"
        )
    counts: Counter[str] = Counter()
    calibrating: list[Question] = []
    measuring: list[Question] = []
    for question in interleave(list(questions)):
        (measuring if counts[question.subtask] % 3 else calibrating).append(question)
        counts[question.subtask] += 1
    if not measuring:  # there is one question a category
        measuring.append(calibrating.pop())
    return calibrating, measuring


def candidates(models: Mapping[str, CostModel], nodes: int) -> list[Row]:
    """What is measured: chains, every drafter's best tree of at most ``nodes``, and
    :data:`FIXED`; the first two with the tau and the speed over plain decoding that follow from
    the cost model."""
    trees = []
    for key, model in models.items():
        if key == "sps":
            chains = range(1, min(GAMMA, nodes - 1) + 1)
            trees += [(f"sps:gamma={gamma}", model, Tree.chain(gamma)) for gamma in chains]
        elif (tree := best_tree(model, nodes)).n > 1:
            trees.append((f"{key}:tree={spell(tree)}", model, tree))
    rows = {}
    for spec, model, tree in trees:
        tau = sum(tree_reach(model.tree, tree.host[0]))
        speed = tau * model.target[1] / model.round_seconds(tree)
        row = {"method": spec, "nodes": tree.n, "tau_predicted": tau, "predicted": speed}
        rows[spec] = row
    return [*rows.values(), *({"method": spec} for spec in FIXED if spec not in rows)]


def best_tree(model: CostModel, nodes: int) -> Tree:
    """The tree with the most tokens a second, by the cost model; the root alone where none pays."""

    def seconds(parents: list[int]) -> float:
        return model.round_seconds(Tree.parents(parents))

    return Tree.parents(choose_tree(model.tree, seconds, nodes)[0])


def _add_measurements(rows: list[Row], frame: Any, methods: Mapping[str, Method]) -> None:
    """Put what was measured into the rows; for some the time may have been up."""
    for row in rows:
        if (key := methods[row["method"]].key) in frame.index:
            one = frame.loc[key]
            row["tau_measured"] = float(one.tau)
            row["measured"] = float(one.tokens_per_second / frame.tokens_per_second["ar"])
            row["speedup"] = float(one.speedup)


def _write(result: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        write(json.dumps(result, indent=1) + "\n", path)
