"""DiffuSpec (Li et al. 2510.02358).

Its tables and figures stand beside the same comparisons here; comparisons that the paper leaves out
are measured and judged too. Everything is decoded in one run with one diffusion model, with two
sets of constants for the draft length: the paper's (20 to 30 tokens) and the method's own defaults,
which suit a small target and whose n-gram also reads the text at hand. Where the paper's rows
without ADL do not say their length, :data:`FIXED` stands for it.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. The number
of decoding steps a prompt is fixed. Times and tokens of a speedup are those of all steps but the
first, which processes the prompt; times are means and not medians, since steps of an adaptive draft
differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specwb.lab.studies import grid
from specwb.lab.studies.diffuspec.cells import (
    ARGMAX,
    BLOCKS,
    FIXED,
    HERE,
    LAMS,
    LONG,
    NAMES,
    NGRAMS,
    ROOM,
    SAMPLED,
    SIZES,
    USUAL,
    cells,
    diffuspec,
    figure,
    options,
    rows_of,
    sweeps,
)
from specwb.lab.studies.diffuspec.claims import bars, claims
from specwb.lab.studies.diffuspec.figures import FIGURES
from specwb.lab.studies.grid import PARTS, Cell, values
from specwb.lab.studies.intervals import bootstrap
from specwb.lab.studies.study import (
    Document,
    Labelled,
    Lines,
    Row,
    Rows,
    Study,
    Tables,
    digits,
    every,
    lines,
    published,
    theirs,
)
from specwb.lab.studies.verdicts import ENOUGH

OURS = (
    "The paper ran Medusa, EAGLE and EAGLE2 on another target. It does not say whether its MAT "
    "counts the bonus token: it is compared with tau, whose ratios are nearer to 1. Rows without a "
    "draft length are compared at k = 20, or 6; CPS with an n-gram counted beforehand, as there. "
    "Of values read off a figure only differences larger than the reading error are judged."
)
SHARE_RULE = (
    "Of the search's share of the time the paper's is an upper bound: reproduced if the interval "
    "ends below twice the paper's, contradicted if it begins above, inconclusive otherwise and "
    f"with fewer than {ENOUGH} prompts; on other hardware not comparable."
)


def share(document: Document, constants: str) -> dict[str, Any] | None:
    """The search's share of the time of a step with its interval and its verdict by
    :data:`SHARE_RULE`; None where it was not measured."""
    cell, most = diffuspec(constants), published("diffuspec")["constants"]["search_share"]
    pairs = np.array([values(document["cells"], cell, what) for what in ("search", "ms")])
    if pairs.shape[1] < grid.MIN_PROMPTS:
        return None
    ratio, low, high = bootstrap(pairs)
    verdict = "inconclusive"
    if document.get("kind", "cpu") != "cuda":
        verdict = "not comparable"
    elif pairs.shape[1] >= ENOUGH and not low < 2 * most < high:
        verdict = "reproduced" if high < 2 * most else "contradicted"
    return {
        "claim": f"search takes little of a step's time, {NAMES[constants]}",
        "verdict": verdict,
        "paper": most,
        "share": round(ratio, 5),
        "low": round(low, 5),
        "high": round(high, 5),
        "ms": round(float(pairs[0].mean()), 4),
        "prompts": pairs.shape[1],
        "cell": cell.key,
    }


def shares(document: Document, _: Any = ()) -> Document:
    """The search's share of the time, for both draft lengths."""
    both = [share(document, constants) for constants in NAMES]
    return {"shares": [result for result in both if result]}


# ----------------------------------------------------------------------------------------- tables

SHOWN = ("drafted", "accepted", "tau", "ms/step", grid.SHOWN["speedup"])


def tables(document: Document, own: Rows, _: Rows) -> Tables:
    """Make the printed tables."""
    titled: list[tuple[str, Labelled]] = [
        ("Table 1: speedup at T = 0, no prompt processing here", _table_1()),
        (
            "Tables 2 and 4: CPS and ADL; accepted and steady speedup by domain",
            _tables_2_and_4(own),
        ),
        ("Table 5: fixed draft length against ADL, with CPS", _table_5()),
        (f"Figure 7: one setting changed at a time, {NAMES[LONG]}", _figure_7()),
        ("What the paper leaves out: lambda, and order and source of the n-gram", _search()),
        ("Figure 5: drafted and accepted tokens by k, argmax rows", _figure_5()),
        ("Sampling at T = 1", _sampled()),
    ]
    return [
        *((title, lines(own, labelled, SHOWN)) for title, labelled in titled),
        ("Where a step's time goes", _split(own)),
        ("CPS and ADL by domain: ratio and 95 % interval", _by_domain(document["verdicts"])),
        ("Every setting", every(own, SHOWN)),
    ]


def _numbers(r: Row) -> dict[str, str]:
    """The paper's figures; ``{}`` where it does not have this setting."""
    return theirs(MAT=r.get("mat"), speedup=r.get("speedup"))


def _table_1() -> Labelled:
    one = rows_of(1, "method")
    for name, key in HERE.items():
        yield Cell(key), {"method": name, **_numbers(one[name])}
    for constants, name in NAMES.items():
        yield diffuspec(constants), {"method": f"DiffuSpec, {name}", **_numbers(one["DiffuSpec"])}


def _tables_2_and_4(own: Rows) -> Labelled:
    two, four = rows_of(2, "cps", "adl"), rows_of(4, "cps", "adl")
    for constants, name in NAMES.items():
        for cps, adl in two:
            cell = diffuspec(constants if adl else FIXED[constants], "ngram=own" if cps else ARGMAX)
            r, math = {}, ""
            if constants == LONG:
                r, tasks = two[cps, adl], four[cps, adl]
                math = f"{tasks['mat']['Math']:.2f} / {tasks['speedup']['Math']:.2f}x"
            if cell.key in own:
                length = name if adl else FIXED[constants]
                chosen = {"CPS": "yes" if cps else "no", "ADL": "yes" if adl else "no"}
                label = {"setting": length, **chosen, **_numbers(r), "paper: math": math}
                yield cell, {**label, **_domains(own[cell.key])}


def _table_5() -> Labelled:
    five = rows_of(5, "k")
    for constants, name in NAMES.items():
        for k in (*SIZES[constants], "adl"):
            cell = diffuspec(constants if k == "adl" else f"k={k}")
            r = five.get(k, {}) if constants == LONG else {}
            yield cell, {"setting": name if k == "adl" else f"k = {k}", **_numbers(r)}


def _figure_7() -> Labelled:
    for name, rows in sweeps().items():
        for value, (cell, r) in rows.items():
            yield cell, {"setting": f"{name} = {value}", **_numbers(r)}


def _search() -> Labelled:
    """Lambda, and order and source of the n-gram."""
    for constants, name in NAMES.items():
        usual = USUAL[constants]
        settings = {"": f"lam = 0.5, n-gram of order 3, {NGRAMS[usual]}"}
        settings |= {f"lam={lam}": f"lam = {lam}" for lam in LAMS}
        settings |= {
            option: f"n-gram: {text}" for option, text in NGRAMS.items() if option != usual
        }
        for option, text in settings.items():
            yield diffuspec(constants, option), {"setting": text, "length": name}


def _figure_5() -> Labelled:
    for k in BLOCKS:
        label = {"k": str(k)}
        for what in ("generated", "accepted"):
            inside = (r for r in figure(5)[what] if r["from"] <= k <= r["to"])
            ends = next(((r["low"], r["high"]) for r in inside), ())
            label[f"paper: {what}"] = "-".join(dict.fromkeys(f"{x:g}" for x in ends))
        yield diffuspec(f"k={k}", ARGMAX), label


def _sampled() -> Labelled:
    for name in ("ar", "sps", "eagle"):
        yield Cell(name, temperature=1.0), {"setting": name}
    for option in SAMPLED:
        yield diffuspec(option, temperature=1.0), {"setting": f"diffuspec {option}".strip()}


def _domains(r: dict[str, Any]) -> dict[str, str]:
    """Accepted tokens and speedup by domain."""
    return {
        d: f"{accepted:.2f} / {digits(r['speedup_by_domain'].get(d), 'x')}"
        for d, accepted in r["by_domain"].items()
    }


def _split(own: Rows) -> Lines:
    """The parts of a step: the paper's bars, then what was clocked of the methods here."""
    bars, here = [], []
    for r in figure(6)["rows"]:
        total = sum(r[part] for part in PARTS[:3])
        shares = {part: f"{r[part] / total:.1%}" if part in r else "" for part in PARTS}
        bars.append({"setting": f"paper: {r['method']}", **shares, "ms/step": ""})
    cells = [Cell(key) for key in ("ar", *HERE.values())]
    cells += [diffuspec(c, o) for c in NAMES for o in ("", ARGMAX, "tree=true")]
    for cell in (*cells, diffuspec("draw=sample", temperature=1.0)):
        if cell.key in own and (parts := own[cell.key]["parts"]):
            total = sum(parts.values())
            shares = {part: f"{ms / total:.1%}" for part, ms in parts.items()}
            here.append({"setting": cell.key, **shares, "ms/step": f"{total:.2f}"})
    return [*bars, *here] if here else []


def _by_domain(verdicts: list[dict[str, Any]]) -> Lines:
    """The ratios of table 2 by domain."""
    lines = []
    for v in verdicts:
        if v["table"] == "table 2" and v["of"] in ("tau", "speedup") and v["by_domain"]:
            intervals = {
                domain: "{} ({}-{})".format(*(digits(x) or "-" for x in numbers))
                for domain, numbers in v["by_domain"].items()
            }
            lines.append({"setting": v["claim"], **intervals})
    return lines


def notes(document: Document) -> list[str]:
    """Say which share of a step the search takes, and which setting was fastest."""
    out = [
        f"{v['verdict'].upper()}: {v['claim']}: "
        f"{v['share']:.1%} ({v['low']:.1%}-{v['high']:.1%}), {v['ms']:.2f} ms; "
        f"the paper's {v['paper']:.1%}"
        for v in document["shares"]
    ]
    trained = published("diffuspec")["conventions"]["trained"]
    return [*out, *grid.fastest(document["rows"], "diffuspec", "DiffuSpec"), f"{trained}."]


STUDY = Study(
    name="diffuspec",
    bars=bars,
    cells=cells,
    claims=claims,
    tables=tables,
    notes=notes,
    options=options,
    extra=shares,
    heads=("medusa", "eagle", "ngram", "diffusion"),
    given="diffusion",
    rules=f"{OURS} {SHARE_RULE}",
    rounds=16,
    figures=FIGURES,
    most=ROOM,
)
