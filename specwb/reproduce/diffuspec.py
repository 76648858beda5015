"""DiffuSpec (Li et al. 2510.02358): its tables and figures beside the same comparisons here, and what the paper leaves out, measured and judged.

Everything is decoded in one run with one diffusion model, with two sets of constants for the draft length: the paper's (20 to 30 tokens) and the
method's own defaults, which suit a small target and whose n-gram also reads the text at hand. Where the paper's rows without ADL do not say their
length, :data:`FIXED` stands for it.

Differs from the paper in: models, machine and prompts; texts go on past an end of text. A fixed number of rounds a prompt. Times and tokens of a
speedup are those of all rounds but the first, which processes the prompt; times are means and not medians, since rounds of an adaptive draft differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from specwb.analysis.diffusion import adl_trace
from specwb.evaluation.prompts import Question
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.reproduce import grid
from specwb.reproduce.grid import PARTS, Cell
from specwb.reproduce.grid import split_row as row
from specwb.reproduce.grid import split_values as values
from specwb.reproduce.store import Store, with_commit
from specwb.reproduce.verdicts import ENOUGH, RULE, Claim, bootstrap, judge, said

PAPER = "papers/diffuspec.json"
HEADS = ("medusa", "eagle", "ngram", "diffusion")
HERE = {"SPS": "sps", "PLD": "pld", "Lookahead": "lookahead", "Medusa": "medusa", "EAGLE": "eagle", "EAGLE2": "eagle2"}
ROOM = 512  # new tokens behind a prompt: a draft of 100 tokens is seldom kept whole
LONG, SHORT = "k_min=20,k_max=30,delta=10,share=1", ""  # the paper's draft lengths, and the method's defaults
RELAXED = {LONG: (LONG.replace("share=1", "share=0.8"), LONG), SHORT: (SHORT, "share=1")}  # growing at .8, and as in the paper
NAMES = {LONG: "20 to 30 tokens", SHORT: "4 to 8 tokens"}
FIXED = {LONG: "k=20", SHORT: "k=6"}  # of what has no ADL
SIZES = {LONG: (10, 20, 30, 50, 100), SHORT: (2, 3, 4, 6, 8, 12)}
ARGMAX = "beams=1,lam=1"
LAMS = (0, 0.3, 0.7, 0.9, 1)
USUAL = {LONG: "ngram=own", SHORT: "ngram=both"}  # the paper's n-gram is counted beforehand
NGRAMS = {"ngram=none": "none", "ngram=own": "counted beforehand", "ngram=online": "of the text so far", "ngram=both": "both", "order=1": "order 1",
          "order=2": "order 2", "smoothing=kn": "Kneser-Ney"}  # fmt: skip
ROUNDED = 0.0101  # how far a mean of numbers with two digits can be from the mean that is stated with two
BLOCKS = (5, 10, 15, 20, 30, 50, 100)  # figure 5
HOT = ("", ARGMAX, "tree=true", "draw=sample", "draw=sample,rule=block", "draw=sample,paths=2", "draw=sample,paths=4")
OURS = (
    "Medusa, EAGLE and EAGLE2 count as copied, since the paper ran them on another target. It does not say whether its MAT counts the closing token: "
    "of table 2 it is compared with both, accepted (without) and tau (with), of others with tau, whose ratios are nearer to 1. Rows without a draft "
    "length are compared at k = 20, or 6; CPS with an n-gram counted beforehand, as there. Of values read off a figure only differences larger than "
    "the reading error are judged."
)
SHARE_RULE = (
    "Of the search's share of the time the paper's is an upper bound: reproduced if the interval ends below twice the paper's, "
    f"not comparable with fewer than {ENOUGH} prompts."
)


def diffuspec(*options: str, temperature: float = 0.0) -> Cell:
    """The cell of DiffuSpec with these options, length first; the paper's lengths with its n-gram unless another is named."""
    theirs = options[0] in (*RELAXED[LONG], *(f"k={k}" for k in SIZES[LONG])) if options else False
    named = any(option.startswith("ngram=") for option in options)
    written = ",".join(filter(None, [*options, USUAL[LONG] if theirs and not named else ""]))
    return Cell(f"diffuspec:{written}" if written else "diffuspec", temperature=temperature)


def sweeps() -> dict[str, dict[Any, tuple[Cell, dict[str, Any]]]]:
    """Figure 7: by option and value the cell here and the paper's row."""
    usual = paper()["constants"]
    return {
        name: {r["value"]: (diffuspec(LONG, "" if r["value"] == usual[name] else f"{name}={r['value']:g}"), r) for r in figure(7)[name]}
        for name in ("steps", "beams", "top", "mass")
    }


def cells() -> list[Cell]:
    """All that is measured."""
    found = [Cell(name) for name in ("ar", *HERE.values())]
    for constants in (LONG, SHORT):
        found += [diffuspec(a, b) for a in (constants, *(f"k={k}" for k in SIZES[constants])) for b in ("", ARGMAX) if not b or a in
                  (constants, FIXED[constants])]  # fmt: skip
        found += [diffuspec(constants, f"lam={lam}") for lam in LAMS] + [diffuspec(constants, name) for name in NGRAMS if name != USUAL[constants]]
        found += [diffuspec(constants, "tree=true"), diffuspec(constants, "beams=15"), *map(diffuspec, RELAXED[constants])]
        found += [diffuspec(FIXED[constants], "ngram=own")]
    found += [cell for rows in sweeps().values() for cell, _ in rows.values()]
    found += [diffuspec(f"k={k}", ARGMAX) for k in BLOCKS]
    found += [diffuspec("steps=2"), diffuspec("beams=1"), diffuspec("k=12,chunk=4,confidence=0.5"), diffuspec("k=3", ARGMAX)]
    found += [diffuspec("k_min=4,k_max=32,delta=4"), diffuspec("k_min=4,k_max=32,delta=4,share=1")]
    found += [diffuspec(f"k={k}", "ngram=online") for k in (3, 4)]
    found += [Cell(name, temperature=1.0) for name in ("ar", "sps", "eagle")] + [diffuspec(option, temperature=1.0) for option in HOT]
    return list(dict.fromkeys(found))


def run(
    target: Target, questions: Sequence[Question], store: Store, cells: Sequence[Cell], *, draft: Any = None, rounds_each: int = 16,
    seconds: float | None = None, seed: int = 0, progress: Callable[[float, str], None] | None = None, most: int = ROOM,
) -> bool:  # fmt: skip
    """:func:`specwb.reproduce.grid.run` of the cells; ``draft``: the diffusion model or its folder, default the target's own. Returns whether it was
    interrupted."""
    grid.check(questions, cells, rounds_each)
    methods = {cell: cell.method(target, draft if cell.kind == "diffuspec" else None) for cell in cells}
    store.document["shapes"] = {cell.key: grid.shape(made) for cell, made in methods.items()}
    return grid.run(target, questions, store, methods, rounds_each=rounds_each, seconds=seconds, seed=seed, progress=progress, most=most, split=True)


# --------------------------------------------------------------------------------------------------------------------- the paper's numbers


def paper() -> dict[str, Any]:
    """The published tables and figures, as data."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def figure(number: int) -> dict[str, Any]:
    return paper()["figures"][str(number)]


def rows_of(number: int, *names: str) -> dict[Any, dict[str, Any]]:
    """A table's rows by what stands in these columns."""
    rows = paper()["tables"][str(number)]["rows"]
    return {tuple(r[name] for name in names) if len(names) > 1 else r[names[0]]: r for r in rows}


def contradictions() -> list[str]:
    """What does not fit together in the paper: the words of the data file, the arithmetic done here."""
    published = paper()
    one, two, four, five = rows_of(1, "method"), rows_of(2, "cps", "adl"), rows_of(4, "cps", "adl"), rows_of(5, "k")
    full, usual = one["DiffuSpec"], published["constants"]
    tasks = list(four[True, True]["speedup"])
    lengths = sorted(r["k"] for r in five.values() if r["speedup"] == two[True, False]["speedup"])

    def listed(numbers: Sequence[float]) -> str:
        return ", ".join(f"{x:.2f}" for x in numbers)

    bars = {r["method"]: r for r in figure(6)["rows"]}
    time = {name: sum(r[part] for part in ("draft", "search", "verify")) for name, r in bars.items()}
    plain = {name: [one[name]["speedup"] * time[name] / (one[name]["mat"] + more) for more in (0, 1)] for name in bars}
    apart = [abs(plain["DiffuSpec"][i] / plain["SPS"][i] - 1) for i in (0, 1)]
    at = np.array([[r["from"], r["low"]] for r in figure(5)["generated"]]).T
    generated: list[Any] = []
    for _ in range(6):
        trace = adl_trace(generated, [full["mat"]] * len(generated), usual["k_min"], usual["k_max"], usual["delta"], usual["rho"])
        generated.append(float(np.interp(trace[-1].next if trace else usual["k_max"], *at)))
    ks = [r.k for r in adl_trace(generated, [full["mat"]] * len(generated), usual["k_min"], usual["k_max"], usual["delta"], usual["rho"])]
    rows = {name: (r["speedup"], fmean(r[t] for t in tasks)) for name, r in one.items()}
    off = [f"{name} {stated:.2f}, its tasks {mean:.2f}" for name, (stated, mean) in rows.items() if abs(stated - mean) > ROUNDED]
    means = {what: [fmean(r[what].values()) for r in four.values()] for what in ("mat", "speedup")}
    said = {
        "means": {"mat": listed(means["mat"]), "speedup": listed(means["speedup"]), "stated_mat": listed([two[key]["mat"] for key in four]),
                  "stated_speedup": listed([two[key]["speedup"] for key in four])},
        "tasks": {"different": sum(full[t] != four[True, True]["speedup"][t] for t in tasks), "tasks": len(tasks),
                  "first": listed([fmean(full[t] for t in tasks)]), "second": listed(means["speedup"][:1]), "stated": full["speedup"]},
        "rows": {"rows": "; ".join(off)},
        "fixed": {"speedup": two[True, False]["speedup"], "ks": " and ".join(map(str, lengths)), "mat": two[True, False]["mat"],
                  "mats": " and ".join(f"{five[k]['mat']:.2f}" for k in lengths)},
        "length": {"figure": max(r["high"] for r in figure(5)["accepted"]), "table": full["mat"]},
        "peak": {"mean": full["speedup"], "first": max(full[t] for t in tasks), "second": max(four[True, True]["speedup"].values())},
        "share": {"text": f"{usual['search_share']:.1%}", "figure": f"{bars['DiffuSpec']['search'] / time['DiffuSpec']:.1%}"},
        "closing": {"with_ours": listed(plain["DiffuSpec"][:1]), "with_sps": listed(plain["SPS"][:1]), "without_ours": listed(plain["DiffuSpec"][1:]),
                    "without_sps": listed(plain["SPS"][1:]), "better": ("first", "second")[int(np.argmin(apart))]},
        "adl": {"mat": full["mat"], "ks": ", ".join(map(str, ks)), "k": ks[-1], "fixed": five[ks[-1]]["mat"], "adl": five["adl"]["mat"]},
    }  # fmt: skip
    return [text.format(**said[name]) for name, text in published["contradictions"].items()]


# --------------------------------------------------------------------------------------------------------------------- what was measured


def claims() -> list[Claim]:
    """What the paper says in its tables 1, 2 and 5 and in figure 7, and the comparisons that it lacks."""
    one, two, five = rows_of(1, "method"), rows_of(2, "cps", "adl"), rows_of(5, "k")
    out: list[Claim] = []

    def add(text: str, table: str, first: Cell, second: Cell, a: dict[str, Any], b: dict[str, Any], *whats: str) -> None:
        out.extend(Claim(f"{text}: {what}", table, what, first, second, _ratio(a, b, what)) for what in whats or ("accepted", "tau", "speedup"))

    for constants, name in NAMES.items():
        # the paper's search has an n-gram that was counted beforehand; one that reads along is another method, compared below
        search, fixed = diffuspec(constants, "ngram=own"), diffuspec(FIXED[constants], "ngram=own")
        on, off = diffuspec(constants), diffuspec(FIXED[constants])
        row_on, row_off = diffuspec(constants, ARGMAX), diffuspec(FIXED[constants], ARGMAX)
        add(f"CPS over the argmax row, ADL of {name}", "table 2", search, row_on, two[True, True], two[False, True])
        add(f"CPS over the argmax row, {FIXED[constants]}", "table 2", fixed, row_off, two[True, False], two[False, False])
        if constants == LONG:
            add(f"ADL of {name} over {FIXED[constants]}", "table 2", on, off, two[True, True], two[True, False])
            add(f"ADL of {name} over {FIXED[constants]}, argmax rows", "table 2", row_on, row_off, two[False, True], two[False, False])
            for k in SIZES[constants]:
                add(f"ADL of {name} over k = {k}", "table 5", on, diffuspec(f"k={k}"), five["adl"], five[k], "tau", "speedup")
        for theirs, key in HERE.items():
            sign = one[theirs]["target"] != one["DiffuSpec"]["target"]
            said = f"DiffuSpec ({name})"
            ratio = _ratio(one["DiffuSpec"], one[theirs], "speedup")
            out.append(Claim(f"{said} is faster than {theirs}", "table 1", "speedup", on, Cell(key), ratio, sign=sign))
            if not sign:
                out.append(Claim(f"{said} over {theirs}: tau", "table 1", "tau", on, Cell(key), _ratio(one["DiffuSpec"], one[theirs], "tau")))
    return [*out, *_swept(), *_lacking()]


def _ratio(a: dict[str, Any], b: dict[str, Any], what: str) -> float:
    name = "speedup" if what == "speedup" else "mat"
    return a[name] / b[name]


def _swept() -> list[Claim]:
    """Figure 7: its best setting over every other one by speed, and of any two by MAT the larger over the smaller one, if they differ by more than
    what was read off may be wrong."""
    out: list[Claim] = []
    wrong = 2 * figure(7)["error"] + 1e-9
    for name, rows in sweeps().items():
        usual = paper()["constants"][name]
        best, theirs = rows[usual]
        for value, (cell, there) in rows.items():
            if value == usual:
                continue
            if theirs["speedup"] - there["speedup"] > wrong:
                out.append(Claim(f"{name} = {usual} is faster than {value}", "figure 7", "speedup", best, cell, _ratio(theirs, there, "speedup")))
            if abs(theirs["mat"] - there["mat"]) > wrong:
                (a, x, r), (b, y, s) = ((best, usual, theirs), (cell, value, there))[:: 1 if theirs["mat"] > there["mat"] else -1]
                out.append(Claim(f"{name} = {x} over {y}: tau", "figure 7", "tau", a, b, _ratio(r, s, "tau")))
    return out


def _lacking() -> list[Claim]:
    """Comparisons that the paper does not have."""
    out: list[Claim] = []

    def add(text: str, first: Cell, second: Cell, *whats: str) -> None:
        out.extend(Claim(f"{text}: {what}", "not in the paper", what, first, second) for what in whats or ("accepted",))

    for constants, name in NAMES.items():
        usual = diffuspec(constants)
        for lam in LAMS:
            add(f"lam = 0.5 over {lam}, {name}", usual, diffuspec(constants, f"lam={lam}"))
        for option, text in NGRAMS.items():
            if option != USUAL[constants]:
                add(f"the n-gram of order 3 ({NGRAMS[USUAL[constants]]}) over {text}, {name}", usual, diffuspec(constants, option))
        add(f"a beam of 15 over 3, {name}", diffuspec(constants, "beams=15"), usual)
        add(f"the beam's paths as one tree over the best path, {name}", diffuspec(constants, "tree=true"), usual, "accepted", "speedup")
        relaxed, strict = map(diffuspec, RELAXED[constants])
        add(f"ADL that grows at 0.8 over 1, {name}", relaxed, strict, "accepted", "speedup")
        if USUAL[constants] != "ngram=own":
            add(f"CPS with an n-gram that reads along too over the argmax row, {name}", usual, diffuspec(constants, ARGMAX), "accepted", "speedup")
    for k in SIZES[SHORT]:
        add(f"ADL of {NAMES[SHORT]} over k = {k}", diffuspec(SHORT), diffuspec(f"k={k}"), "accepted", "speedup")
    add("one denoising step over two, 4 to 8 tokens", diffuspec(SHORT), diffuspec("steps=2"), "accepted", "speedup")
    add("chunks of 4 while confident over ADL", diffuspec("k=12,chunk=4,confidence=0.5"), diffuspec(SHORT), "accepted", "speedup")
    searched = diffuspec(SHORT, temperature=1.0)
    for option, text in (
        (ARGMAX, "the argmax row"), ("draw=sample", "independent draws by the ratio rule"),
        ("draw=sample,rule=block", "independent draws verified as a block"), ("draw=sample,paths=4", "four sequences of draws"),
    ):  # fmt: skip
        add(f"the searched path over {text}, T = 1", searched, diffuspec(option, temperature=1.0))
    return out


def share(document: dict[str, Any], constants: str) -> dict[str, Any] | None:
    """The search's share of the time of a round, with its interval and verdict by :data:`SHARE_RULE`; None where it was not measured."""
    cell, theirs = diffuspec(constants), paper()["constants"]["search_share"]
    pairs = np.array([values(document["cells"], cell, what) for what in ("search", "ms")])
    if pairs.shape[1] < grid.FEWEST:
        return None
    ratio, low, high = bootstrap(pairs)
    verdict = "not comparable" if pairs.shape[1] < ENOUGH else "reproduced" if high < 2 * theirs else "not reproduced"
    return {
        "claim": f"search takes little of a round's time, {NAMES[constants]}", "verdict": verdict, "paper": theirs, "share": round(ratio, 5),
        "low": round(low, 5), "high": round(high, 5), "ms": round(float(pairs[0].mean()), 4), "prompts": pairs.shape[1], "cell": cell.key,
    }  # fmt: skip


def report(store: Store) -> dict[str, Any]:
    """``store.document`` with ``rows``, ``verdicts``, ``shares`` and the rules they are by."""
    document = store.document
    document["commit"] = with_commit(document)
    document |= {
        "rule": f"{RULE} {OURS} {SHARE_RULE}",
        "rows": [row(document, cell) for cell in cells() if grid.measured(document["cells"], cell.key)["ms"]],
        "verdicts": [found for claim in claims() if (found := judge(document, claim, values))],
        "shares": [found for constants in NAMES if (found := share(document, constants))],
    }
    return document


# ------------------------------------------------------------------------------------------------------------------------- how it is shown


def tables(document: dict[str, Any]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, rows of text), those without a row left out."""
    own = {r["cell"]: r for r in document["rows"]}
    one, two, four, five = rows_of(1, "method"), rows_of(2, "cps", "adl"), rows_of(4, "cps", "adl"), rows_of(5, "k")

    def line(cell: Cell, theirs: dict[str, Any] | None, **named: str) -> list[dict[str, str]]:
        """``theirs``: the paper's row, {} of a setting that it does not have; None in a table that it does not have."""
        if cell.key not in own:
            return []
        there = {} if theirs is None else {"paper: MAT": _two(theirs.get("mat")), "speedup": _two(theirs.get("speedup"), "x")}
        return [{**named, **there, **_line(own[cell.key])}]

    first = [x for name, key in HERE.items() for x in line(Cell(key), one[name], method=name)]
    first += [x for constants, name in NAMES.items() for x in line(diffuspec(constants), one["DiffuSpec"], method=f"DiffuSpec, {name}")]
    grids, fixed, other = [], [], []
    for constants, name in NAMES.items():
        for cps, adl in two:
            cell = diffuspec(constants if adl else FIXED[constants], "ngram=own" if cps else ARGMAX)
            theirs = two[cps, adl] if constants == LONG else {}
            named = {"setting": name if adl else FIXED[constants], "CPS": "yes" if cps else "no", "ADL": "yes" if adl else "no"}
            maths = f"{four[cps, adl]['mat']['Math']:.2f} / {four[cps, adl]['speedup']['Math']:.2f}x" if theirs else ""
            grids += [{**x, **_domains(own[cell.key]), "paper: math": maths} for x in line(cell, theirs, **named)]
        for k in (*SIZES[constants], "adl"):
            cell = diffuspec(constants if k == "adl" else f"k={k}")
            fixed += line(cell, five.get(k, {}) if constants == LONG else {}, setting=name if k == "adl" else f"k = {k}")
    swept = [x for name, rows in sweeps().items() for value, (cell, theirs) in rows.items() for x in line(cell, theirs, setting=f"{name} = {value}")]
    for constants, name in NAMES.items():
        grams = {option: f"n-gram: {text}" for option, text in NGRAMS.items() if option != USUAL[constants]}
        settings = {f"lam={lam}": f"lam = {lam}" for lam in LAMS} | grams
        for option, text in {"": f"lam = 0.5, n-gram of order 3, {NGRAMS[USUAL[constants]]}", **settings}.items():
            other += line(diffuspec(constants, option), None, setting=text, length=name)
    blocks = [{**_fifth(k), **x} for k in BLOCKS for x in line(diffuspec(f"k={k}", ARGMAX), None)]
    hot = [x for name in ("ar", "sps", "eagle") for x in line(Cell(name, temperature=1.0), None, setting=name)]
    hot += [x for option in HOT for x in line(diffuspec(option, temperature=1.0), None, setting=f"diffuspec {option}".strip())]
    shown = [
        ("Table 1: speedup at T = 0, no prompt processing", first),
        ("Tables 2 and 4: CPS and ADL; accepted and speedup by domain", grids),
        ("Table 5: fixed draft length against ADL, with CPS", fixed),
        (f"Figure 7: one setting changed at a time, {NAMES[LONG]}", swept),
        ("What the paper leaves out: lambda, and order and source of the n-gram", other),
        ("Figure 5: drafted and accepted tokens by k, argmax rows", blocks),
        ("Sampling at T = 1", hot),
        ("Where a round's time goes", _split(own)),
        ("CPS and ADL by domain: ratio and 95 % interval", _by_domain(document["verdicts"])),
        ("Every setting", [{"setting": name, **_line(r)} for name, r in own.items()]),
    ]
    return [(title, rows) for title, rows in shown if rows]


def _fifth(k: int) -> dict[str, str]:
    """Figure 5's values at k."""
    out = {"k": str(k)}
    for what in ("generated", "accepted"):
        at = next((r for r in figure(5)[what] if r["from"] <= k <= r["to"]), None)
        out[f"paper: {what}"] = "" if at is None else f"{at['low']:g}" if at["low"] == at["high"] else f"{at['low']:g}-{at['high']:g}"
    return out


def _two(x: float | None, unit: str = "") -> str:
    return "" if x is None else f"{x:.2f}{unit}"


def _line(r: dict[str, Any]) -> dict[str, str]:
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: drafted": f"{r['drafted']:.1f}", "accepted": f"{r['accepted']:.2f}{error}", "tau": f"{r['tau']:.2f}",
        "ms/round": f"{r['ms_per_round']:.1f}", "speedup ": _two(r["speedup"], "x"),
    }  # fmt: skip


def _domains(r: dict[str, Any]) -> dict[str, str]:
    return {d: f"{accepted:.2f} / {_two(r['speedup_by_domain'].get(d), 'x')}" for d, accepted in r["by_domain"].items()}


def _split(own: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Parts of a round: the paper's bars, then of the methods here what was clocked."""
    out = []
    for r in figure(6)["rows"]:
        whole = sum(r[part] for part in PARTS[:3])
        out.append({"setting": f"paper: {r['method']}", **{part: f"{r[part] / whole:.1%}" if part in r else "" for part in PARTS}, "ms/round": ""})
    paths = [diffuspec(c, o) for c in NAMES for o in ("", ARGMAX, "tree=true")]
    for cell in [Cell("ar"), *(Cell(key) for key in HERE.values()), *paths, diffuspec("draw=sample", temperature=1.0)]:
        if cell.key in own and (parts := own[cell.key]["parts"]):
            whole = sum(parts.values())
            out.append({"setting": cell.key, **{part: f"{ms / whole:.1%}" for part, ms in parts.items()}, "ms/round": f"{whole:.2f}"})
    return out if len(out) > len(figure(6)["rows"]) else []


def _by_domain(verdicts: list[dict[str, Any]]) -> list[dict[str, str]]:
    out = []
    for v in verdicts:
        if v["table"] == "table 2" and v["of"] in ("accepted", "speedup"):
            found = {d: "{} ({}-{})".format(*(_two(x) or "-" for x in numbers)) for d, numbers in v["by_domain"].items()}
            out += [{"setting": v["claim"], **found}] * bool(found)
    return out


def notes(document: dict[str, Any]) -> list[str]:
    """The verdicts, the rules they are by, and what does not fit together in the paper."""
    published, rows = paper(), document["rows"]
    out = [said(v) for v in document["verdicts"]]
    for table in dict.fromkeys(v["table"] for v in document["verdicts"] if v["paper"] is not None):
        mine = Counter(v["verdict"] for v in document["verdicts"] if v["table"] == table)
        out.append(f"Of {table}: {', '.join(f'{n} {verdict}' for verdict, n in mine.items())}.")
    for v in document["shares"]:
        out.append(
            f"{v['verdict'].upper()}: {v['claim']}: {v['share']:.1%} ({v['low']:.1%}-{v['high']:.1%}), {v['ms']:.2f} ms; the paper's {v['paper']:.1%}"
        )
    out += grid.fastest(rows, "diffuspec", "DiffuSpec")
    out += [f"In the paper: {text}" for text in contradictions()]
    out += [document["rule"], f"Paper: {published['source']}; {published['setting']}; {published['conventions']['trained']}."]
    counts = [r["prompts"] for r in rows] or [0]
    return [*out, f"{min(counts)} prompts a cell, {document['spent']:.0f} s of measuring."]
