"""Which method, gamma or tree is fastest for a pair of models on this machine.

Speedups are predicted from a calibration and then measured side by side. For that the questions are
split: of every category one in three calibrates, the others measure. The result is a plain
dictionary, kept as JSON. The next run with the same arguments uses a finished calibration in it
again.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from specwb.bench import machine, report
from specwb.bench.compare import compare
from specwb.bench.conditions import conditions
from specwb.bench.prompts import Question, interleave
from specwb.cost.calibrate import calibrate
from specwb.cost.head_cost import HeadCost, calibrate_head
from specwb.cost.model import CostError, CostModel
from specwb.cost.settings import GAMMA, TOPS, WIDE, Setting, others, settings, target_heads
from specwb.errors import SpecwbError
from specwb.files import check_path, from_json, home, write
from specwb.methods import Method
from specwb.methods import method as make_method
from specwb.models.load import draft_model
from specwb.models.target import Target
from specwb.probability import Sampling

ROUNDS = 24
"""Decoding steps that each time of the calibration is a median of."""
MISS = 0.15
"""A prediction further off than this is listed by name."""

Progress = Callable[[float, str], None]


class TuneError(SpecwbError, ValueError):
    """Too few prompts, or a file that holds no result of this kind."""


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
    progress: Progress | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Calibrate, predict and measure chains, trees and heads, and measure all other methods.

    What is predicted is tokens/s over this engine's plain decoding (``ar``), as a ratio of totals,
    and it is judged by the same ratio measured on the same prompts in one interleaved run. A
    ``speedup`` is :func:`specwb.compare`'s, the median over prompts, over the fastest plain
    decoding of that run, and it decides what is called best.

    The trees are a few of different shapes and, of each kind, the one with the largest predicted
    speedup. For draws without replacement that is the best of all trees
    (:func:`specwb.analysis.choose_tree`), for top tokens and one draw the best of those with equal
    numbers of children on a level. After ``seconds`` no more acceptance is counted, and after as
    many again nothing more measured. A calibration in ``path`` by the same arguments is used again.

    Returns:
        A dict: command and commit; arguments (also models, device and versions); resumed (whether
        the calibration is from the file); calibrated and calibrated_heads, the cost models;
        left_out, methods and why; rows, one a setting, predicted and measured over ar and speedup
        over the reference; interrupted, reference and machine, as :func:`specwb.compare` has them;
        prompts, how many were calibrated and measured on; median_error of the predictions; misses,
        those off by more than ``MISS``; best, the fastest chain, tree and method.
    Raises:
        ValueError: nodes < 2, there are too few questions, the file is no result or cannot be
            written, or as :func:`specwb.compare`.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 2:
        raise TuneError(f"nodes, the root included, must be an integer >= 2, got {nodes!r}")
    temperature = Sampling(temperature).temperature
    room = target.context - max_new_tokens
    if max_new_tokens < 1 or room < 1:
        raise TuneError(
            "max_new_tokens must be >= 1 and leave room for a prompt in the context of "
            f"{target.name!r} ({target.context}), got {max_new_tokens}"
        )
    if path is not None:  # before the minutes of work whose result it is to hold
        path = home(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        check_path(path, "--out")
    drafting = None  # what chains and trees are drafted with
    if draft is not None or target.draft is not None:
        drafting = draft_model(target, draft)
    more, left_out = others(target, draft)
    head_hashes = target_heads(target)
    calibrating, measuring = split_questions(questions)
    made_on = conditions(target, draft=drafting)
    result: dict[str, Any] = {
        "command": command,
        "commit": made_on["commit"],
        "arguments": {
            **{role: made_on["models"].get(role) for role in ("target", "draft")},
            **{name: made_on[name] for name in ("device", "dtype", "versions")},
            "temperature": float(temperature),
            "nodes": nodes,
            "heads": head_hashes,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "questions": [q.question_id for q in questions],
        },
    }
    tell = progress or (lambda done, text: None)
    saved = _read(path)
    arguments = json.loads(json.dumps(result["arguments"]))
    result["resumed"] = bool(saved) and saved["arguments"] == arguments
    if result["resumed"]:
        model = CostModel.from_json(saved["calibrated"])
        heads = {kind: HeadCost.from_json(cost) for kind, cost in saved["calibrated_heads"].items()}
    else:
        rows = [q.fit(target.tokenizer, room)[0] for q in calibrating]
        run: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "rounds": ROUNDS,
            "seed": seed,
        }
        model = calibrate(
            target,
            drafting,
            rows,
            gamma=min(GAMMA, nodes - 1),
            tree=WIDE,
            top=tuple(sorted({k for ks in TOPS for k in ks if k > 1} | {3})),
            seconds=seconds,
            progress=lambda done, text: tell(done / 4, f"calibrating, {text}"),
            **run,
        )
        # the draft model's acceptance was counted on as many prompts as there is time
        count = max(len(head_hashes), 1)
        limit = seconds / count if seconds is not None and drafting is None else None

        def progress_of(i: int, done: float, text: str) -> None:
            tell(0.25 + (i + done) / count / 12, f"calibrating, {text}")

        heads = {
            kind: calibrate_head(
                target,
                kind,
                rows[: model.prompts],
                model,
                seconds=limit,
                progress=partial(progress_of, i),
                **run,
            )
            for i, kind in enumerate(head_hashes)
        }
    result["calibrated"] = asdict(model)
    result["calibrated_heads"] = {kind: asdict(cost) for kind, cost in heads.items()}
    chosen = settings(model, nodes, max_new_tokens, temperature, heads)
    built = {s.spec: _build(s, target, drafting) for s in chosen}
    keys = {method.key for method in built.values()}
    more = {setting: method for setting, method in more.items() if method.key not in keys}
    chosen += more
    built |= {setting.spec: method for setting, method in more.items()}
    result["left_out"] = left_out
    result["rows"] = [_prediction(model, s, max_new_tokens, heads) for s in chosen]
    _write(result, path)

    measured_prompts, result["interrupted"] = 0, False
    try:
        frame = compare(
            target,
            measuring,
            ["ar", *built.values()],
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seconds=seconds,
            seed=seed,
            library=False,
            progress=lambda done, text: tell((1 + 2 * done) / 3, f"measuring, {text}"),
        )
        measured_prompts = frame.attrs["prompts"]
        result["interrupted"] = frame.attrs["interrupted"]
        result |= {name: frame.attrs[name] for name in ("reference", "machine")}
        result["left_out"] = left_out | frame.attrs["left_out"]
        _add_measurements(result["rows"], frame.set_index("method"), built)
    except KeyboardInterrupt:
        result["interrupted"] = True
    result["prompts"] = {"calibrated": model.prompts, "measured": measured_prompts}
    errors = {
        row["method"]: abs(row["error"]) for row in result["rows"] if row.get("error") is not None
    }
    result["median_error"] = round(median(errors.values()), 4) if errors else None
    result["misses"] = [method for method, error in errors.items() if error > MISS]
    result["best"] = _best(result["rows"])
    _write(result, path)
    return result


def split_questions(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Split into the questions that calibrate, one in three of every category, and the others."""
    if len(questions) < 2:
        raise TuneError(
            "tune needs at least two prompts, one to calibrate and one to measure on; "
            f"got {len(questions)}"
        )
    counts: dict[str, int] = {}
    calibrating: list[Question] = []
    measuring: list[Question] = []
    for question in interleave(list(questions)):
        index = counts.get(question.subtask, 0)
        counts[question.subtask] = index + 1
        (calibrating if index % 3 == 0 else measuring).append(question)
    if not measuring:  # there is one question a category
        measuring.append(calibrating.pop())
    return calibrating, measuring


def _build(setting: Setting, target: Target, draft: Target | None) -> Method:
    """Build a setting's method; chains and trees without a head take the draft model."""
    if setting.tree and not setting.head:
        return make_method(setting.spec, target, draft=draft)
    return make_method(setting.spec, target)


def _prediction(
    model: CostModel, setting: Setting, tokens: int, heads: dict[str, HeadCost]
) -> dict[str, Any]:
    """A row of the result, before anything is measured."""
    row: dict[str, Any] = {
        "method": setting.spec,
        "family": setting.family,
        "nodes": None,
        "tau_predicted": None,
        "predicted": None,
    }
    tree = setting.tree
    if tree is None:
        return row
    cost = heads[setting.head] if setting.head else model
    return row | {
        "nodes": tree.n,
        "tau_predicted": round(sum(cost.reach(tree, setting.top)), 4),
        "predicted": round(cost.speedup(tree, tokens, setting.top), 4),
    }


def _add_measurements(rows: list[dict[str, Any]], frame: Any, built: dict[str, Method]) -> None:
    """Put what was measured into the rows of the result; for some the time may have been up."""
    speeds = frame.tokens_per_second
    for row in rows:
        if built[row["method"]].key not in frame.index:
            continue
        measured = frame.loc[built[row["method"]].key]
        row["tau_measured"] = float(measured.tau)
        row["measured"] = round(float(measured.tokens_per_second / speeds["ar"]), 4)
        row["speedup"] = float(measured.speedup)
        row["error"] = None
        if row["predicted"] is not None:
            row["error"] = round(row["predicted"] / row["measured"] - 1, 4)


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest chain, tree and method, by the speedup measured, or where nothing was by the
    prediction (over ar); ``ar`` where nothing is faster than plain decoding."""
    by = "speedup" if any("speedup" in row for row in rows) else "predicted"

    def fastest(*families: str) -> dict[str, Any] | None:
        comparable = [row for row in rows if row["family"] in families and row.get(by) is not None]
        return max(comparable, key=lambda row: row[by], default=None)

    chain, tree = fastest("chain"), fastest("tree", "top tree")
    method = fastest(*{row["family"] for row in rows})
    if method is not None and method[by] <= 1:
        method = None
    return {
        "by": "measured" if by == "speedup" else by,
        "gamma": chain and int(chain["method"].partition("=")[2]),
        "tree": tree and tree["method"],
        "method": method["method"] if method else "ar",
        "speedup": method[by] if method else 1.0,
    }


# ------------------------------------------------------------------------------ files and printing


def default_path(target: Target, temperature: float) -> Path:
    """Return ``build/tune/<target>-<device>-T<temperature>.json``."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.name).strip("-.")
    return Path("build/tune") / f"{name}-{target.device.type}-T{temperature:g}.json"


def _read(path: Path | None) -> dict[str, Any]:
    """The arguments and the calibration in a file of results; empty where there is no file."""
    if path is None or not path.exists():
        return {}
    try:
        saved = from_json(path.read_bytes())
        CostModel.from_json(saved["calibrated"])
        heads = saved.get("calibrated_heads", {})
        for cost in heads.values():
            HeadCost.from_json(cost)
        return {
            "arguments": saved["arguments"],
            "calibrated": saved["calibrated"],
            "calibrated_heads": heads,
        }
    except CostError as error:
        raise TuneError(
            f"the calibration in {path} cannot be used ({error}); delete it, or name another file"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TuneError(
            f"{path} is no result of specwb tune; delete it, or name another file"
        ) from error


def _write(result: dict[str, Any], path: Path | None) -> None:
    """Write the result, but for whether it was resumed."""
    if path is not None:
        document = {key: value for key, value in result.items() if key != "resumed"}
        write(json.dumps(document, indent=1) + "\n", path)


def cells(result: dict[str, Any]) -> list[dict[str, str]]:
    """Make the table as it is printed: one row a setting, column -> text."""

    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    over = result.get("reference", {}).get("method")
    table = []
    for row in result["rows"]:
        line = {
            "setting": row["method"],
            "tau predicted": text(row["tau_predicted"], ".2f"),
            "tau measured": text(row.get("tau_measured"), ".2f"),
            "over ar predicted": text(row["predicted"], ".2f"),
            "over ar measured": text(row.get("measured"), ".2f"),
            "error": text(row.get("error"), "+.1%"),
        }
        if over:
            speedup = text(row.get("speedup"), ".2f")
            line[f"speedup over {over}"] = speedup + "x" * ("speedup" in row)
        table.append(line)
    return table


def notes(result: dict[str, Any], options: Sequence[str] = ()) -> list[str]:
    """List what has to be known beside the table, and last the command that uses the result."""
    model, best = CostModel.from_json(result["calibrated"]), result["best"]
    reference = result.get("reference")
    lines = [
        *(machine.notes(result["machine"]) if reference else []),
        *model.doubts,
        *([report.over(result)] if reference else []),
        *_setting_notes(result),
        *_calibration_notes(model, result.get("calibrated_heads", {})),
    ]
    if result["median_error"] is not None:
        count = sum(row.get("error") is not None for row in result["rows"])
        misses = ", ".join(result["misses"]) or "none"
        lines.append(
            f"median error {result['median_error']:.1%} over {count} settings; "
            f"off by more than {MISS:.0%}: {misses}"
        )
    over = reference["method"] if reference else "ar"
    fastest = f"nothing is faster than {over}"
    if best["method"] != "ar":
        fastest = f"of all {best['method']}, {best['speedup']:.2f}x over {over}"
    tree = best["tree"] or "no tree"
    drafted = f"gamma {best['gamma']}; {tree}; " if model.draft else ""
    lines.append(f"best as {best['by']}: {drafted}{fastest}")
    methods = " ".join(dict.fromkeys(["ar", best["method"]]))
    return [*lines, shlex.join(["specwb", "compare", "--methods", methods, *options])]


def _setting_notes(result: dict[str, Any]) -> list[str]:
    """The notes on models, settings and prompts."""
    arguments, prompts = result["arguments"], result["prompts"]
    resumed = " (taken from the file)" if result["resumed"] else ""
    interrupted = ", interrupted" if result["interrupted"] else ""
    left = result["left_out"]
    return [
        f"{arguments['device']}; target {arguments['target']}; "
        f"draft {arguments['draft'] or 'none'}; "
        f"{arguments['dtype']}, temperature {arguments['temperature']:g}",
        f"calibrated on {prompts['calibrated']} prompts{resumed}, "
        f"measured on {prompts['measured']} others{interrupted}, "
        f"{arguments['max_new_tokens']} new tokens; predicted and measured over ar "
        f"({report.PLAIN['ar']}), all ratios of total tokens/s in one interleaved run",
        *report.left_out(left),
    ]


def _calibration_notes(model: CostModel, heads: dict[str, Any]) -> list[str]:
    """The notes on the calibrated times and acceptance rates."""

    def by_rank(rates: list[list[float]]) -> str:
        return "; ".join(" ".join(f"{rate:.2f}" for rate in row) for row in rates)

    lines = []
    for side, tables in model.contexts.items():
        for length, seconds in tables.items():
            times = ", ".join(
                f"{n}: {1e3 * seconds[n]:.2f}" for n in (1, 2, 4, 9, 21) if n in seconds
            )
            lines.append(f"{side}, ms to score n tokens after {length}: {times}")
    if model.draft:
        chain = " ".join(f"{row[0]:.2f}" for row in model.chain)
        lines.append(f"c = {model.c:.3f}; acceptance by depth of a chain: {chain}")
        lines.append(f"acceptance by rank and depth without replacement: {by_rank(model.tree)}")
    for kind, saved in heads.items():
        a, b, c = (1e3 * seconds for seconds in HeadCost.from_json(saved).fit)
        lines.append(
            f"{kind}: drafting takes {a:.2f} ms + {b:.2f} a pass + {c:.2f} a pair; "
            f"acceptance by rank and depth: {by_rank(saved['rates'])}"
        )
    return lines
