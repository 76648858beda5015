"""Which method, gamma or tree is fastest for a pair of models on this machine: predicted from a calibration, then measured side by side.

Questions are parted: of every category one in three calibrates, the others measure. The result is a plain dictionary, kept as JSON. A
finished calibration in it is used again by the next run with the same arguments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from specwb.analysis import choose_tree
from specwb.errors import SpecwbError
from specwb.evaluation import machine, report
from specwb.evaluation.compare import compare, describe, describe_device, versions
from specwb.evaluation.cost import CostError, CostModel, calibrate
from specwb.evaluation.head_cost import WIDE as HEADS
from specwb.evaluation.head_cost import HeadCost, calibrate_head
from specwb.evaluation.prompts import Question, interleave
from specwb.files import from_json, weights_hash
from specwb.methods import Method, draft_model, spell
from specwb.methods import method as make_method
from specwb.models.target import Target
from specwb.probability import Sampling
from specwb.tree import Tree

GAMMA = 8  # longest chain
WIDE = (4, 4, 4)  # the calibration's tree: no tree predicted is deeper or has more children a node
TREES = [(2, 1), (2, 2), (3, 1, 1), (2, 2, 2), (4, 2), (4, 2, 2)]
TOPS = [(2, 1), (2, 2), (3, 1, 1), (4, 2)]
MISS = 0.15
"""A prediction further off than this is listed by name."""


class TuneError(SpecwbError, ValueError):
    """Too few prompts, or a file that holds no result of this kind."""


@dataclass(frozen=True)
class Setting:
    """One row: its spec, and what is predicted of it (nothing, where there is no tree)."""

    spec: str
    family: str
    tree: Tree | None = None
    top: bool = False
    head: str = ""  # of a trained head: its method


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
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Calibrate, predict, measure: the cost model's forecast of chains and trees beside what :func:`specwb.compare` then finds.

    What is predicted is tokens/s over this engine's plain decoding (``ar``), as a ratio of totals, and it is judged by the same ratio
    measured on the same prompts in one interleaved run. A ``speedup`` is over the fastest plain decoding of that run, this engine's or the
    library's, and so is what is called best.

    Trees are a few of different shapes and, of each kind, the one with the largest predicted speedup: for draws without
    replacement of all trees (:func:`specwb.analysis.choose_tree`), for top tokens and one draw of those with equal numbers of children on a level.

    Args:
        questions: of every category one in three calibrates, the others measure.
        nodes: of the largest tree, its root included, >= 2.
        seconds: about how long acceptance is counted at most, and how long to measure at most; None is all prompts.
        path: where the result is kept: read first, for a calibration made with the same arguments, and written when the calibration and
            when the measurement is done.
        progress: called with (fraction done, text).
    Returns: arguments, device, models, versions, calibrated, rows (of each predicted and measured, over ar, and speedup, over the
        reference), reference and machine (as :func:`specwb.compare` has them), median_error, misses, best, prompts measured, interrupted
        (the measurement was, by Ctrl-C: what was measured until then counts), resumed.
    Raises:
        ValueError: nodes < 2, too few questions, a file that is no result or cannot be written, or as :func:`specwb.compare`.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 2:
        raise TuneError(f"nodes, the root included, must be an integer >= 2, got {nodes!r}")
    Sampling(temperature)
    room = target.context - max_new_tokens
    if max_new_tokens < 1 or room < 1:
        raise TuneError(
            f"max_new_tokens must be >= 1 and leave room for a prompt in the context of {target.name!r} ({target.context}), got {max_new_tokens}"
        )
    if path is not None:  # before the minutes whose result it is to hold
        path = path.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        report.check_path(path, "--out")
    helper = draft_model(target, draft)
    if path is not None:  # before minutes of work
        path.parent.mkdir(parents=True, exist_ok=True)
        report.check_path(path, "--out")
    kinds = own_heads(target)
    calibrating, measuring = part(questions)
    result: dict[str, Any] = {
        "arguments": {
            "target": describe(target),
            "draft": describe(helper),
            "device": describe_device(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            "temperature": float(temperature),
            "nodes": nodes,
            "heads": kinds,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "questions": [q.question_id for q in questions],
            "versions": versions(),
        },
    }
    say = progress or (lambda done, text: None)
    saved = _read(path)
    result["resumed"] = bool(saved) and saved["arguments"] == json.loads(
        json.dumps(result["arguments"])
    )
    heads: dict[str, HeadCost]
    if result["resumed"]:
        model = CostModel.from_json(saved["calibrated"])
        heads = {
            kind: HeadCost.from_json(found) for kind, found in saved["calibrated_heads"].items()
        }
    else:
        rows = [q.fit(target.tokenizer, room)[0] for q in calibrating]
        tops = tuple(sorted({k for ks in TOPS for k in ks if k > 1} | {3}))
        model = calibrate(
            target,
            helper,
            rows,
            gamma=min(GAMMA, nodes - 1),
            tree=WIDE,
            top=tops,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            rounds=24,
            seed=seed,
            seconds=seconds,
            progress=lambda done, text: say(done / 4, f"calibrating, {text}"),
        )
        shared: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "rounds": 24,
            "seed": seed,
        }
        heads = {
            kind: calibrate_head(
                target,
                kind,
                rows[: model.prompts],
                model,
                progress=partial(_told, say, i, len(kinds)),
                **shared,
            )
            for i, kind in enumerate(kinds)
        }
    result["calibrated"], result["calibrated_heads"] = (
        asdict(model),
        {kind: asdict(found) for kind, found in heads.items()},
    )
    chosen = settings(model, nodes, max_new_tokens, temperature, heads)
    result["rows"] = [_predicted(model, s, max_new_tokens, heads) for s in chosen]
    _write(result, path)

    built = {
        s.spec: make_method(s.spec, target, draft=helper)
        if s.tree and not s.head
        else make_method(s.spec, target)
        for s in chosen
    }
    used, result["interrupted"] = 0, False
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
            progress=lambda done, text: say((1 + 2 * done) / 3, f"measuring, {text}"),
        )
        used, result["interrupted"] = frame.attrs["prompts"], frame.attrs["interrupted"]
        result |= {name: frame.attrs[name] for name in ("reference", "machine")}
        _measured(result["rows"], frame.set_index("method"), built, result["reference"]["method"])
    except KeyboardInterrupt:
        result["interrupted"] = True
    result["prompts"] = {"calibrated": model.prompts, "measured": used}
    errors = [abs(row["error"]) for row in result["rows"] if row.get("error") is not None]
    result["median_error"] = round(median(errors), 4) if errors else None
    result["misses"] = [
        row["method"] for row in result["rows"] if abs(row.get("error") or 0) > MISS
    ]
    result["best"] = _best(result["rows"])
    _write(result, path)
    return result


def _told(say: Callable[[float, str], None], i: int, count: int, done: float, text: str) -> None:
    """Heads take the second half of a calibration's share."""
    say(0.25 + (i + done) / count / 12, f"calibrating, {text}")


def part(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """Of every category one in three, and the others: what calibrates and what is measured on.

    Raises:
        TuneError: fewer than two questions.
    """
    if len(questions) < 2:
        raise TuneError(
            f"tune needs at least two prompts, one to calibrate and one to measure on; got {len(questions)}"
        )
    place: dict[str, int] = {}
    ours: tuple[list[Question], list[Question]] = ([], [])
    for q in interleave(list(questions)):
        place[q.subtask] = place.get(q.subtask, -1) + 1
        ours[place[q.subtask] % 3 > 0].append(q)
    if not ours[1]:  # one question a category
        ours[1].append(ours[0].pop())
    return ours


def own_heads(target: Target) -> dict[str, str]:
    """The trained heads that lie beside the target, and their sha256."""
    found = {kind: target.own_head(kind) for kind in HEADS}
    return {kind: weights_hash(place) for kind, place in found.items() if place is not None}


def settings(
    model: CostModel,
    nodes: int,
    tokens: int,
    temperature: float,
    heads: dict[str, HeadCost] | None = None,
) -> list[Setting]:
    """What is measured: chains, trees drawn without replacement, trees of top tokens and one draw (the same thing at T = 0), prompt lookup, and of
    every trained head a few fixed trees and the one with the largest predicted speedup; dynamic trees of as many nodes, not predicted."""
    found = [
        Setting(f"sps:gamma={g}", "chain", Tree.chain(g))
        for g in range(1, min(GAMMA, nodes - 1) + 1)
    ]

    def add(tree: Tree, top: bool) -> None:
        shape = make_spec(tree, top)
        if tree.n <= nodes and not tree.is_chain and shape not in {s.spec for s in found}:
            found.append(Setting(shape, "top tree" if top else "tree", tree, top))

    for ks in TREES:
        add(Tree.branching(*ks), False)
    best, _ = choose_tree(
        model.tree, lambda parents: model.round_seconds(Tree.parents(parents)), nodes
    )
    add(Tree.parents(best), False)
    if model.top:
        for ks in TOPS:
            add(Tree.branching(*ks), True)
        wide = [
            Tree.branching(*ks)
            for d in range(1, len(WIDE) + 1)
            for ks in product(range(1, max(model.top) + 1), repeat=d)
            if max(ks) > 1
        ]
        fitting = [tree for tree in wide if tree.n <= nodes]
        if fitting:
            add(max(fitting, key=lambda tree: model.speedup(tree, tokens, top=True)), True)
    for kind, cost in (heads or {}).items():
        best, _ = choose_tree(
            cost.rates, lambda parents, cost=cost: cost.round_seconds(Tree.parents(parents)), nodes
        )  # type: ignore[misc]
        trees = [Tree.chain(min(2, len(cost.rates))), Tree.branching(3, 2), Tree.parents(best)]
        if cost.k > 1:  # a chain of two whole passes
            trees.insert(1, Tree.chain(min(2 * cost.k, len(cost.rates))))
        for tree in dict.fromkeys(tree.host for tree in trees if 1 < tree.n <= nodes):
            shape = Tree(tree)
            found.append(Setting(f"{kind}:tree={spell(shape)}", kind, shape, head=kind))
        depth = Tree.parents(best).D
        if kind == "eagle" and len(best) > depth + 1:  # a chain follows nothing
            found.append(
                Setting(
                    f"eagle2:nodes={min(len(best), 5 + 16 * (depth - 1))},depth={depth},top=4",
                    "eagle2",
                )
            )
        passes = -(-depth // cost.k)
        if kind == "falcon" and len(best) > cost.k * passes + 1:
            made = sum(4**j for j in range(1, cost.k + 1)) * (1 + (passes - 1) * 4)
            found.append(
                Setting(
                    f"falcon_dynamic:nodes={min(len(best), made + 1)},passes={passes},top=4,beams=4",
                    "falcon_dynamic",
                )
            )
    return [*found, Setting("pld", "prompt lookup")]


def make_spec(tree: Tree, top: bool) -> str:
    """How ``mcsd`` is asked for this tree."""
    return f"mcsd:tree={spell(tree)}" + (",draw=top" if top else "")


def _predicted(
    model: CostModel, setting: Setting, tokens: int, heads: dict[str, HeadCost]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": setting.spec,
        "family": setting.family,
        "nodes": None,
        "tau_predicted": None,
        "predicted": None,
    }
    if setting.tree is not None and setting.head:
        cost = heads[setting.head]
        found = sum(cost.reach(setting.tree)), cost.speedup(setting.tree, tokens)
        row |= {
            "nodes": setting.tree.n,
            "tau_predicted": round(found[0], 4),
            "predicted": round(found[1], 4),
        }
    elif setting.tree is not None:
        row["nodes"] = setting.tree.n
        row["tau_predicted"] = round(sum(model.reach(setting.tree, setting.top)), 4)
        row["predicted"] = round(model.speedup(setting.tree, tokens, setting.top), 4)
    return row


def _measured(rows: list[dict[str, Any]], frame: Any, built: dict[str, Method], over: str) -> None:
    for row in rows:
        found = frame.loc[built[row["method"]].key]
        row["tau_measured"] = float(found.tau)
        row["measured"] = round(float(found.tokens_per_second / frame.tokens_per_second["ar"]), 4)
        row["speedup"] = round(float(found.tokens_per_second / frame.tokens_per_second[over]), 4)
        row["error"] = (
            None if row["predicted"] is None else round(row["predicted"] / row["measured"] - 1, 4)
        )


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest chain, tree and method by the speedup measured, or as predicted (over ar) where nothing was; ``ar`` where nothing is
    faster than plain decoding."""
    by = "speedup" if any("speedup" in row for row in rows) else "predicted"

    def fastest(*families: str) -> dict[str, Any] | None:
        known = [row for row in rows if row["family"] in families and row.get(by) is not None]
        return max(known, key=lambda row: row[by], default=None)

    chain, tree, every = (
        fastest("chain"),
        fastest("tree", "top tree"),
        fastest(*{row["family"] for row in rows}),
    )
    pays = every is not None and every[by] > 1
    return {
        "by": "measured" if by == "speedup" else by,
        "gamma": chain and int(chain["method"].partition("=")[2]),
        "tree": tree and tree["method"],
        "method": every["method"] if pays and every else "ar",
        "speedup": every[by] if pays and every else 1.0,
    }


# ------------------------------------------------------------------------------------------------------------------ files and words


def default_path(target: Target, temperature: float) -> Path:
    """``build/tune/<target>-<device>-T<temperature>.json``."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", target.name).strip("-.")
    return Path("build/tune") / f"{name}-{target.device.type}-T{temperature:g}.json"


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        saved = from_json(path.read_bytes())
        CostModel.from_json(saved["calibrated"])
        heads = saved.get("calibrated_heads", {})
        for found in heads.values():
            HeadCost.from_json(found)
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
    if path is not None:
        report.write(
            json.dumps({k: v for k, v in result.items() if k != "resumed"}, indent=1) + "\n", path
        )


def cells(result: dict[str, Any]) -> list[dict[str, str]]:
    """The table as it is printed: one row a setting, column -> text."""

    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    over = result.get("reference", {}).get("method")
    return [
        {
            "setting": row["method"],
            "tau predicted": text(row["tau_predicted"], ".2f"),
            "tau measured": text(row.get("tau_measured"), ".2f"),
            "over ar predicted": text(row["predicted"], ".2f"),
            "over ar measured": text(row.get("measured"), ".2f"),
            "error": text(row.get("error"), "+.1%"),
            **(
                {f"speedup over {over}": text(row.get("speedup"), ".2f") + "x" * ("speedup" in row)}
                if over
                else {}
            ),
        }
        for row in result["rows"]
    ]


def notes(result: dict[str, Any], options: Sequence[str] = ()) -> list[str]:
    """What has to be known beside the table; ``options`` are added to the command that uses the result."""
    a, model, best, prompts = (
        result["arguments"],
        CostModel.from_json(result["calibrated"]),
        result["best"],
        result["prompts"],
    )
    reference = result.get("reference")
    out = [
        *(machine.notes(result["machine"]) if reference else []),
        *model.doubts,
        *([report.over(result)] if reference else []),
        f"{a['device']}; target {a['target']}; draft {a['draft']}; {a['dtype']}, temperature {a['temperature']:g}",
        f"calibrated on {prompts['calibrated']} prompts{' (taken from the file)' if result['resumed'] else ''}, measured on "
        f"{prompts['measured']} others{', interrupted' if result['interrupted'] else ''}, {a['max_new_tokens']} new tokens; predicted and "
        f"measured over ar ({report.PLAIN['ar']}), all ratios of total tokens/s in one interleaved run",
    ]
    for side, table in model.contexts.items():
        for length, seconds in table.items():
            shown = ", ".join(
                f"{n}: {1e3 * seconds[n]:.2f}" for n in (1, 2, 4, 9, 21) if n in seconds
            )
            out.append(f"{side}, ms to score n tokens after {length}: {shown}")
    out.append(
        f"c = {model.c:.3f}; acceptance by depth of a chain: "
        + " ".join(f"{row[0]:.2f}" for row in model.chain)
    )
    out.append(
        "acceptance by rank and depth without replacement: "
        + "; ".join(" ".join(f"{x:.2f}" for x in row) for row in model.tree)
    )
    for kind, found in result.get("calibrated_heads", {}).items():
        a, b, c = (1e3 * x for x in HeadCost.from_json(found).fit)
        rates = "; ".join(" ".join(f"{x:.2f}" for x in row) for row in found["rates"])
        out.append(
            f"{kind}: drafting takes {a:.2f} ms + {b:.2f} a pass + {c:.2f} a pair; acceptance by rank and depth: {rates}"
        )
    if result["median_error"] is not None:
        count = sum(row.get("error") is not None for row in result["rows"])
        missed = f"; off by more than {MISS:.0%}: {', '.join(result['misses']) or 'none'}"
        out.append(f"median error {result['median_error']:.1%} over {count} settings{missed}")
    over = reference["method"] if reference else "ar"
    every = (
        f"nothing is faster than {over}"
        if best["method"] == "ar"
        else f"of all {best['method']}, {best['speedup']:.2f}x over {over}"
    )
    out.append(f"best as {best['by']}: gamma {best['gamma']}; {best['tree'] or 'no tree'}; {every}")
    command = [
        "specwb",
        "compare",
        "--methods",
        " ".join(dict.fromkeys(["ar", best["method"]])),
        *options,
    ]
    return [*out, shlex.join(command)]
