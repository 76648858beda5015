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

import json
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from specwb.analysis.diffusion import AdlRound, adl_trace
from specwb.evaluation.prompts import Question
from specwb.models.load import data_dir
from specwb.models.target import Target
from specwb.reproduce import grid
from specwb.reproduce.grid import PARTS, Cell
from specwb.reproduce.grid import split_row as row
from specwb.reproduce.grid import split_values as values
from specwb.reproduce.store import Store, with_commit
from specwb.reproduce.verdicts import ENOUGH, RULE, Claim, bootstrap, judge, sentence

PAPER = "papers/diffuspec.json"
HEADS = ("medusa", "eagle", "ngram", "diffusion")
HERE = {
    "SPS": "sps",
    "PLD": "pld",
    "Lookahead": "lookahead",
    "Medusa": "medusa",
    "EAGLE": "eagle",
    "EAGLE2": "eagle2",
}
"""The paper's name of a method -> its spec here."""
ROOM = 512
"""New tokens that there is room for behind a prompt: drafts of 100 tokens are seldom accepted."""
LONG, SHORT = "k_min=20,k_max=30,delta=10,share=1", ""
"""The paper's draft lengths, and the method's defaults."""
RELAXED = {LONG: (LONG.replace("share=1", "share=0.8"), LONG), SHORT: (SHORT, "share=1")}
"""Draft lengths that grow at .8, and as in the paper."""
NAMES = {LONG: "20 to 30 tokens", SHORT: "4 to 8 tokens"}
FIXED = {LONG: "k=20", SHORT: "k=6"}
"""The length of drafts without ADL."""
SIZES = {LONG: (10, 20, 30, 50, 100), SHORT: (2, 3, 4, 6, 8, 12)}
"""Fixed lengths that ADL is compared with."""
ARGMAX = "beams=1,lam=1"
"""The path of the best token at every position."""
LAMS = (0, 0.3, 0.7, 0.9, 1)
USUAL = {LONG: "ngram=own", SHORT: "ngram=both"}
"""The usual n-gram; the paper's is counted beforehand."""
NGRAMS = {
    "ngram=none": "none",
    "ngram=own": "counted beforehand",
    "ngram=online": "of the text so far",
    "ngram=both": "both",
    "order=1": "order 1",
    "order=2": "order 2",
    "smoothing=kn": "Kneser-Ney",
}
ROUNDING = 0.0101
"""How far a mean of numbers with two digits can be from the mean that is stated with two."""
BLOCKS = (5, 10, 15, 20, 30, 50, 100)
"""Draft lengths of figure 5."""
SAMPLED = (
    "",
    ARGMAX,
    "tree=true",
    "draw=sample",
    "draw=sample,rule=block",
    "draw=sample,paths=2",
    "draw=sample,paths=4",
)
"""Options that are measured at T = 1."""
OURS = (
    "Medusa, EAGLE and EAGLE2 count as copied, since the paper ran them on another target. It does "
    "not say whether its MAT counts the bonus token: of table 2 it is compared with both, accepted "
    "(without) and tau (with), of others with tau, whose ratios are nearer to 1. Rows without a "
    "draft length are compared at k = 20, or 6; CPS with an n-gram counted beforehand, as there. "
    "Of values read off a figure only differences larger than the reading error are judged."
)
SHARE_RULE = (
    "Of the search's share of the time the paper's is an upper bound: reproduced if the interval "
    "ends below twice the paper's, "
    f"not comparable with fewer than {ENOUGH} prompts."
)


def diffuspec(*options: str, temperature: float = 0.0) -> Cell:
    """Make the cell of DiffuSpec with these options, the draft length first.

    The paper's lengths go with the paper's n-gram, unless another is named.
    """
    long = [*RELAXED[LONG], *(f"k={k}" for k in SIZES[LONG])]
    names_ngram = any(option.startswith("ngram=") for option in options)
    ngram = ""
    if options and options[0] in long and not names_ngram:
        ngram = USUAL[LONG]
    text = ",".join(filter(None, [*options, ngram]))
    return Cell(f"diffuspec:{text}" if text else "diffuspec", temperature=temperature)


def sweeps() -> dict[str, dict[Any, tuple[Cell, dict[str, Any]]]]:
    """Return figure 7: option -> value -> the cell here and the paper's row."""
    usual = paper()["constants"]

    def cell(name: str, value: float) -> Cell:
        return diffuspec(LONG, "" if value == usual[name] else f"{name}={value:g}")

    return {
        name: {r["value"]: (cell(name, r["value"]), r) for r in figure(7)[name]}
        for name in ("steps", "beams", "top", "mass")
    }


def cells() -> list[Cell]:
    """List all settings that are measured."""
    out = [Cell(name) for name in ("ar", *HERE.values())]
    for constants in (LONG, SHORT):
        out += [
            diffuspec(a, b)
            for a in (constants, *(f"k={k}" for k in SIZES[constants]))
            for b in ("", ARGMAX)
            if not b or a in (constants, FIXED[constants])
        ]
        out += [diffuspec(constants, f"lam={lam}") for lam in LAMS]
        out += [diffuspec(constants, name) for name in NGRAMS if name != USUAL[constants]]
        out += [diffuspec(constants, "tree=true"), diffuspec(constants, "beams=15")]
        out += map(diffuspec, RELAXED[constants])
        out += [diffuspec(FIXED[constants], "ngram=own")]
    out += [cell for rows in sweeps().values() for cell, _ in rows.values()]
    out += [diffuspec(f"k={k}", ARGMAX) for k in BLOCKS]
    out += [
        diffuspec("steps=2"),
        diffuspec("beams=1"),
        diffuspec("k=12,chunk=4,confidence=0.5"),
        diffuspec("k=3", ARGMAX),
    ]
    out += [diffuspec("k_min=4,k_max=32,delta=4"), diffuspec("k_min=4,k_max=32,delta=4,share=1")]
    out += [diffuspec(f"k={k}", "ngram=online") for k in (3, 4)]
    out += [Cell(name, temperature=1.0) for name in ("ar", "sps", "eagle")]
    out += [diffuspec(option, temperature=1.0) for option in SAMPLED]
    return list(dict.fromkeys(out))


def run(
    target: Target,
    questions: Sequence[Question],
    store: Store,
    cells: Sequence[Cell],
    *,
    draft: Any = None,
    rounds_each: int = 16,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
    most: int = ROOM,
) -> bool:
    """Measure the cells with :func:`specwb.reproduce.grid.run`; return whether it was interrupted.

    Args:
        target: the target model.
        questions: the prompts.
        store: of the results.
        cells: the settings.
        draft: the diffusion model or its folder, default the target's own.
        rounds_each: decoding steps of each prompt and cell.
        seconds: about how long to measure in all.
        seed: of the sampling.
        progress: called with (fraction done, text).
        most: new tokens that there is room for behind a prompt.
    """
    grid.check(questions, cells, rounds_each)
    methods = {
        cell: cell.method(target, draft if cell.kind == "diffuspec" else None) for cell in cells
    }
    store.document["shapes"] = {cell.key: grid.shape(method) for cell, method in methods.items()}
    return grid.run(
        target,
        questions,
        store,
        methods,
        rounds_each=rounds_each,
        seconds=seconds,
        seed=seed,
        progress=progress,
        most=most,
        split=True,
    )


# ----------------------------------------------------------------------------- the paper's numbers


def paper() -> dict[str, Any]:
    """Load the published tables and figures."""
    return json.loads((data_dir() / PAPER).read_text("utf-8"))


def figure(number: int) -> dict[str, Any]:
    """Load one published figure."""
    return paper()["figures"][str(number)]


def rows_of(number: int, *names: str) -> dict[Any, dict[str, Any]]:
    """Return a table's rows by the values in these columns."""
    rows = paper()["tables"][str(number)]["rows"]
    return {tuple(r[name] for name in names) if len(names) > 1 else r[names[0]]: r for r in rows}


def contradictions() -> list[str]:
    """Say what does not fit together in the paper.

    The sentences are in the data file; the arithmetic is done here.
    """
    published = paper()
    one, two = rows_of(1, "method"), rows_of(2, "cps", "adl")
    four, five = rows_of(4, "cps", "adl"), rows_of(5, "k")
    full, constants = one["DiffuSpec"], published["constants"]
    tasks = list(four[True, True]["speedup"])
    lengths = sorted(r["k"] for r in five.values() if r["speedup"] == two[True, False]["speedup"])

    def listed(numbers: Sequence[float]) -> str:
        return ", ".join(f"{x:.2f}" for x in numbers)

    bars = {r["method"]: r for r in figure(6)["rows"]}
    time = {
        name: sum(r[part] for part in ("draft", "search", "verify")) for name, r in bars.items()
    }
    # a plain step's time if MAT counts the bonus token, and if it does not
    plain = {
        name: [one[name]["speedup"] * time[name] / (one[name]["mat"] + bonus) for bonus in (0, 1)]
        for name in bars
    }
    differences = [abs(plain["DiffuSpec"][i] / plain["SPS"][i] - 1) for i in (0, 1)]
    ks = _draft_lengths(full["mat"], constants)
    rows = {name: (r["speedup"], fmean(r[t] for t in tasks)) for name, r in one.items()}
    wrong_means = [
        f"{name} {stated:.2f}, its tasks {mean:.2f}"
        for name, (stated, mean) in rows.items()
        if abs(stated - mean) > ROUNDING
    ]
    means = {what: [fmean(r[what].values()) for r in four.values()] for what in ("mat", "speedup")}
    words = {
        "means": {
            "mat": listed(means["mat"]),
            "speedup": listed(means["speedup"]),
            "stated_mat": listed([two[key]["mat"] for key in four]),
            "stated_speedup": listed([two[key]["speedup"] for key in four]),
        },
        "tasks": {
            "different": sum(full[t] != four[True, True]["speedup"][t] for t in tasks),
            "tasks": len(tasks),
            "first": listed([fmean(full[t] for t in tasks)]),
            "second": listed(means["speedup"][:1]),
            "stated": full["speedup"],
        },
        "rows": {"rows": "; ".join(wrong_means)},
        "fixed": {
            "speedup": two[True, False]["speedup"],
            "ks": " and ".join(map(str, lengths)),
            "mat": two[True, False]["mat"],
            "mats": " and ".join(f"{five[k]['mat']:.2f}" for k in lengths),
        },
        "length": {"figure": max(r["high"] for r in figure(5)["accepted"]), "table": full["mat"]},
        "peak": {
            "mean": full["speedup"],
            "first": max(full[t] for t in tasks),
            "second": max(four[True, True]["speedup"].values()),
        },
        "share": {
            "text": f"{constants['search_share']:.1%}",
            "figure": f"{bars['DiffuSpec']['search'] / time['DiffuSpec']:.1%}",
        },
        "closing": {
            "with_ours": listed(plain["DiffuSpec"][:1]),
            "with_sps": listed(plain["SPS"][:1]),
            "without_ours": listed(plain["DiffuSpec"][1:]),
            "without_sps": listed(plain["SPS"][1:]),
            "better": ("first", "second")[int(np.argmin(differences))],
        },
        "adl": {
            "mat": full["mat"],
            "ks": ", ".join(map(str, ks)),
            "k": ks[-1],
            "fixed": five[ks[-1]]["mat"],
            "adl": five["adl"]["mat"],
        },
    }
    return [text.format(**words[name]) for name, text in published["contradictions"].items()]


def _draft_lengths(mat: Any, constants: dict[str, Any]) -> list[int]:
    """The draft lengths that the paper's ADL would choose in the first steps.

    Taken are the accepted length ``mat`` in every step and the generated lengths of figure 5.
    """
    curve = np.array([[r["from"], r["low"]] for r in figure(5)["generated"]]).T
    k_max = constants["k_max"]
    generated: list[Any] = []

    def trace() -> list[AdlRound]:
        accepted = [mat] * len(generated)
        k_min, delta, rho = (constants[name] for name in ("k_min", "delta", "rho"))
        return adl_trace(generated, accepted, k_min, k_max, delta, rho)

    for _ in range(6):
        steps = trace()
        k = steps[-1].next if steps else k_max
        generated.append(float(np.interp(k, *curve)))
    return [step.k for step in trace()]


# ---------------------------------------------------------------------------------------- results


def claims() -> list[Claim]:
    """List the claims of the paper's tables 1, 2 and 5 and figure 7, and comparisons it lacks."""
    return [*_table_claims(), *_sweep_claims(), *_other_claims()]


def _table_claims() -> list[Claim]:
    """The claims of the paper's tables 1, 2 and 5."""
    one, two, five = rows_of(1, "method"), rows_of(2, "cps", "adl"), rows_of(5, "k")
    out: list[Claim] = []

    def add(
        text: str,
        table: str,
        first: Cell,
        second: Cell,
        a: dict[str, Any],
        b: dict[str, Any],
        *whats: str,
    ) -> None:
        out.extend(
            Claim(f"{text}: {what}", table, what, first, second, _ratio(a, b, what))
            for what in whats or ("accepted", "tau", "speedup")
        )

    for constants, name in NAMES.items():
        # The paper's search has an n-gram that was counted beforehand. One that reads along is
        # another method, compared below.
        search, fixed = diffuspec(constants, "ngram=own"), diffuspec(FIXED[constants], "ngram=own")
        on, off = diffuspec(constants), diffuspec(FIXED[constants])
        row_on, row_off = diffuspec(constants, ARGMAX), diffuspec(FIXED[constants], ARGMAX)
        add(
            f"CPS over the argmax row, ADL of {name}",
            "table 2",
            search,
            row_on,
            two[True, True],
            two[False, True],
        )
        add(
            f"CPS over the argmax row, {FIXED[constants]}",
            "table 2",
            fixed,
            row_off,
            two[True, False],
            two[False, False],
        )
        if constants == LONG:
            add(
                f"ADL of {name} over {FIXED[constants]}",
                "table 2",
                on,
                off,
                two[True, True],
                two[True, False],
            )
            add(
                f"ADL of {name} over {FIXED[constants]}, argmax rows",
                "table 2",
                row_on,
                row_off,
                two[False, True],
                two[False, False],
            )
            for k in SIZES[constants]:
                add(
                    f"ADL of {name} over k = {k}",
                    "table 5",
                    on,
                    diffuspec(f"k={k}"),
                    five["adl"],
                    five[k],
                    "tau",
                    "speedup",
                )
        for other, key in HERE.items():
            copied = one[other]["target"] != one["DiffuSpec"]["target"]
            out.append(
                Claim(
                    f"DiffuSpec ({name}) is faster than {other}",
                    "table 1",
                    "speedup",
                    on,
                    Cell(key),
                    _ratio(one["DiffuSpec"], one[other], "speedup"),
                    sign=copied,
                )
            )
            if not copied:
                out.append(
                    Claim(
                        f"DiffuSpec ({name}) over {other}: tau",
                        "table 1",
                        "tau",
                        on,
                        Cell(key),
                        _ratio(one["DiffuSpec"], one[other], "tau"),
                    )
                )
    return out


def _ratio(a: dict[str, Any], b: dict[str, Any], what: str) -> float:
    name = "speedup" if what == "speedup" else "mat"
    return a[name] / b[name]


def _sweep_claims() -> list[Claim]:
    """The claims of figure 7.

    They are its best setting over every other one by speed, and of any two by MAT the larger over
    the smaller one, if they differ by more than what was read off may be wrong.
    """
    out: list[Claim] = []
    reading_error = 2 * figure(7)["error"] + 1e-9
    for name, rows in sweeps().items():
        usual = paper()["constants"][name]
        best, best_row = rows[usual]
        for value, (cell, published) in rows.items():
            if value == usual:
                continue
            if best_row["speedup"] - published["speedup"] > reading_error:
                out.append(
                    Claim(
                        f"{name} = {usual} is faster than {value}",
                        "figure 7",
                        "speedup",
                        best,
                        cell,
                        _ratio(best_row, published, "speedup"),
                    )
                )
            if abs(best_row["mat"] - published["mat"]) > reading_error:
                larger, smaller = (best, usual, best_row), (cell, value, published)
                if published["mat"] >= best_row["mat"]:
                    larger, smaller = smaller, larger
                (a, x, r), (b, y, s) = larger, smaller
                text = f"{name} = {x} over {y}: tau"
                out.append(Claim(text, "figure 7", "tau", a, b, _ratio(r, s, "tau")))
    return out


def _other_claims() -> list[Claim]:
    """The comparisons that the paper lacks."""
    out: list[Claim] = []

    def add(text: str, first: Cell, second: Cell, *whats: str) -> None:
        out.extend(
            Claim(f"{text}: {what}", "not in the paper", what, first, second)
            for what in whats or ("accepted",)
        )

    for constants, name in NAMES.items():
        usual = diffuspec(constants)
        for lam in LAMS:
            add(f"lam = 0.5 over {lam}, {name}", usual, diffuspec(constants, f"lam={lam}"))
        for option, text in NGRAMS.items():
            if option != USUAL[constants]:
                add(
                    f"the n-gram of order 3 ({NGRAMS[USUAL[constants]]}) over {text}, {name}",
                    usual,
                    diffuspec(constants, option),
                )
        add(f"a beam of 15 over 3, {name}", diffuspec(constants, "beams=15"), usual)
        add(
            f"the beam's paths as one tree over the best path, {name}",
            diffuspec(constants, "tree=true"),
            usual,
            "accepted",
            "speedup",
        )
        relaxed, strict = map(diffuspec, RELAXED[constants])
        add(f"ADL that grows at 0.8 over 1, {name}", relaxed, strict, "accepted", "speedup")
        if USUAL[constants] != "ngram=own":
            add(
                f"CPS with an n-gram that reads along too over the argmax row, {name}",
                usual,
                diffuspec(constants, ARGMAX),
                "accepted",
                "speedup",
            )
    for k in SIZES[SHORT]:
        add(
            f"ADL of {NAMES[SHORT]} over k = {k}",
            diffuspec(SHORT),
            diffuspec(f"k={k}"),
            "accepted",
            "speedup",
        )
    add(
        "one denoising step over two, 4 to 8 tokens",
        diffuspec(SHORT),
        diffuspec("steps=2"),
        "accepted",
        "speedup",
    )
    add(
        "chunks of 4 while confident over ADL",
        diffuspec("k=12,chunk=4,confidence=0.5"),
        diffuspec(SHORT),
        "accepted",
        "speedup",
    )
    searched = diffuspec(SHORT, temperature=1.0)
    for option, text in (
        (ARGMAX, "the argmax row"),
        ("draw=sample", "independent draws by the ratio rule"),
        ("draw=sample,rule=block", "independent draws verified as a block"),
        ("draw=sample,paths=4", "four sequences of draws"),
    ):
        add(f"the searched path over {text}, T = 1", searched, diffuspec(option, temperature=1.0))
    return out


def share(document: dict[str, Any], constants: str) -> dict[str, Any] | None:
    """Compute the search's share of the time of a step, with its interval.

    The verdict is by :data:`SHARE_RULE`. The result is None where the share was not measured.
    """
    cell, published = diffuspec(constants), paper()["constants"]["search_share"]
    pairs = np.array([values(document["cells"], cell, what) for what in ("search", "ms")])
    if pairs.shape[1] < grid.MIN_PROMPTS:
        return None
    ratio, low, high = bootstrap(pairs)
    verdict = "not comparable"
    if pairs.shape[1] >= ENOUGH:
        verdict = "reproduced" if high < 2 * published else "not reproduced"
    return {
        "claim": f"search takes little of a round's time, {NAMES[constants]}",
        "verdict": verdict,
        "paper": published,
        "share": round(ratio, 5),
        "low": round(low, 5),
        "high": round(high, 5),
        "ms": round(float(pairs[0].mean()), 4),
        "prompts": pairs.shape[1],
        "cell": cell.key,
    }


def report(store: Store) -> dict[str, Any]:
    """Add ``rows``, ``verdicts`` and ``shares`` with their rules to ``store.document``.

    The document is returned.
    """
    document = store.document
    document["commit"] = with_commit(document)
    verdicts = [judge(document, claim, values) for claim in claims()]
    shares = [share(document, constants) for constants in NAMES]
    document |= {
        "rule": f"{RULE} {OURS} {SHARE_RULE}",
        "rows": [
            row(document, cell)
            for cell in cells()
            if grid.cell_record(document["cells"], cell.key)["ms"]
        ],
        "verdicts": [verdict for verdict in verdicts if verdict],
        "shares": [result for result in shares if result],
    }
    return document


# --------------------------------------------------------------------------------------- printing

Own = dict[str, dict[str, Any]]
"""Key of a cell -> its row."""
Lines = list[dict[str, str]]


def tables(document: dict[str, Any]) -> list[tuple[str, Lines]]:
    """Make the printed tables, as (title, rows of text); those without a row are left out."""
    own: Own = {r["cell"]: r for r in document["rows"]}
    sampled = [
        *_lines(
            own,
            [(Cell(name, temperature=1.0), {"setting": name}) for name in ("ar", "sps", "eagle")],
        ),
        *_lines(
            own,
            [
                (
                    diffuspec(option, temperature=1.0),
                    {"setting": f"diffuspec {option}".strip()},
                )
                for option in SAMPLED
            ],
        ),
    ]
    every_table = [
        ("Table 1: speedup at T = 0, no prompt processing", _table_1(own)),
        ("Tables 2 and 4: CPS and ADL; accepted and speedup by domain", _tables_2_and_4(own)),
        ("Table 5: fixed draft length against ADL, with CPS", _table_5(own)),
        (f"Figure 7: one setting changed at a time, {NAMES[LONG]}", _figure_7(own)),
        ("What the paper leaves out: lambda, and order and source of the n-gram", _search(own)),
        ("Figure 5: drafted and accepted tokens by k, argmax rows", _figure_5(own)),
        ("Sampling at T = 1", sampled),
        ("Where a round's time goes", _split(own)),
        ("CPS and ADL by domain: ratio and 95 % interval", _by_domain(document["verdicts"])),
        ("Every setting", [{"setting": name, **_line(r)} for name, r in own.items()]),
    ]
    return [(title, lines) for title, lines in every_table if lines]


def _lines(own: Own, labels: Sequence[tuple[Cell, dict[str, str]]]) -> Lines:
    """The rows of a table that the paper does not have; ``labels``: of every cell."""
    return [{**label, **_line(own[cell.key])} for cell, label in labels if cell.key in own]


def _beside_paper(own: Own, cell: Cell, published: dict[str, Any], **label: str) -> Lines:
    """A row with the paper's figures, in a list; empty where the cell was not measured.

    ``published``: the paper's row, {} where it does not have this setting.
    """
    if cell.key not in own:
        return []
    figures = {
        "paper: MAT": _two(published.get("mat")),
        "speedup": _two(published.get("speedup"), "x"),
    }
    return [{**label, **figures, **_line(own[cell.key])}]


def _table_1(own: Own) -> Lines:
    one, lines = rows_of(1, "method"), []
    for name, key in HERE.items():
        lines += _beside_paper(own, Cell(key), one[name], method=name)
    for constants, name in NAMES.items():
        label = f"DiffuSpec, {name}"
        lines += _beside_paper(own, diffuspec(constants), one["DiffuSpec"], method=label)
    return lines


def _tables_2_and_4(own: Own) -> Lines:
    two, four = rows_of(2, "cps", "adl"), rows_of(4, "cps", "adl")
    lines = []
    for constants, name in NAMES.items():
        for cps, adl in two:
            cell = diffuspec(constants if adl else FIXED[constants], "ngram=own" if cps else ARGMAX)
            published, math = {}, ""
            if constants == LONG:
                published, tasks = two[cps, adl], four[cps, adl]
                math = f"{tasks['mat']['Math']:.2f} / {tasks['speedup']['Math']:.2f}x"
            label = {
                "setting": name if adl else FIXED[constants],
                "CPS": "yes" if cps else "no",
                "ADL": "yes" if adl else "no",
            }
            for line in _beside_paper(own, cell, published, **label):
                lines.append({**line, **_domains(own[cell.key]), "paper: math": math})
    return lines


def _table_5(own: Own) -> Lines:
    five, lines = rows_of(5, "k"), []
    for constants, name in NAMES.items():
        for k in (*SIZES[constants], "adl"):
            cell = diffuspec(constants if k == "adl" else f"k={k}")
            published = five.get(k, {}) if constants == LONG else {}
            label = name if k == "adl" else f"k = {k}"
            lines += _beside_paper(own, cell, published, setting=label)
    return lines


def _figure_7(own: Own) -> Lines:
    lines = []
    for name, rows in sweeps().items():
        for value, (cell, published) in rows.items():
            lines += _beside_paper(own, cell, published, setting=f"{name} = {value}")
    return lines


def _search(own: Own) -> Lines:
    """Lambda, and order and source of the n-gram."""
    lines = []
    for constants, name in NAMES.items():
        usual = USUAL[constants]
        settings = {"": f"lam = 0.5, n-gram of order 3, {NGRAMS[usual]}"}
        settings |= {f"lam={lam}": f"lam = {lam}" for lam in LAMS}
        settings |= {
            option: f"n-gram: {text}" for option, text in NGRAMS.items() if option != usual
        }
        labels = [
            (diffuspec(constants, option), {"setting": text, "length": name})
            for option, text in settings.items()
        ]
        lines += _lines(own, labels)
    return lines


def _figure_5(own: Own) -> Lines:
    return _lines(own, [(diffuspec(f"k={k}", ARGMAX), _figure_5_values(k)) for k in BLOCKS])


def _figure_5_values(k: int) -> dict[str, str]:
    """The paper's values at k."""
    cells = {"k": str(k)}
    for what in ("generated", "accepted"):
        text = ""
        for r in figure(5)[what]:
            if r["from"] <= k <= r["to"]:
                low, high = r["low"], r["high"]
                text = f"{low:g}" if low == high else f"{low:g}-{high:g}"
                break
        cells[f"paper: {what}"] = text
    return cells


def _two(x: float | None, unit: str = "") -> str:
    """A number with two digits."""
    return "" if x is None else f"{x:.2f}{unit}"


def _line(r: dict[str, Any]) -> dict[str, str]:
    """The figures measured here; a trailing blank tells a column from the paper's of that name."""
    error = f"±{r['tau_error']:.2f}" if r["tau_error"] else ""
    return {
        "here: drafted": f"{r['drafted']:.1f}",
        "accepted": f"{r['accepted']:.2f}{error}",
        "tau": f"{r['tau']:.2f}",
        "ms/round": f"{r['ms_per_round']:.1f}",
        "speedup ": _two(r["speedup"], "x"),
    }


def _domains(r: dict[str, Any]) -> dict[str, str]:
    """Accepted tokens and speedup by domain."""
    return {
        d: f"{accepted:.2f} / {_two(r['speedup_by_domain'].get(d), 'x')}"
        for d, accepted in r["by_domain"].items()
    }


def _split(own: Own) -> Lines:
    """The parts of a step: the paper's bars, then what was clocked of the methods here."""
    bars, lines = [], []
    for r in figure(6)["rows"]:
        total = sum(r[part] for part in PARTS[:3])
        shares = {part: f"{r[part] / total:.1%}" if part in r else "" for part in PARTS}
        bars.append({"setting": f"paper: {r['method']}", **shares, "ms/round": ""})
    paths = [diffuspec(c, o) for c in NAMES for o in ("", ARGMAX, "tree=true")]
    for cell in [
        Cell("ar"),
        *(Cell(key) for key in HERE.values()),
        *paths,
        diffuspec("draw=sample", temperature=1.0),
    ]:
        if cell.key in own and (parts := own[cell.key]["parts"]):
            total = sum(parts.values())
            shares = {part: f"{ms / total:.1%}" for part, ms in parts.items()}
            lines.append({"setting": cell.key, **shares, "ms/round": f"{total:.2f}"})
    return [*bars, *lines] if lines else []


def _by_domain(verdicts: list[dict[str, Any]]) -> Lines:
    """The ratios of table 2 by domain."""
    lines = []
    for v in verdicts:
        if v["table"] == "table 2" and v["of"] in ("accepted", "speedup") and v["by_domain"]:
            intervals = {
                domain: "{} ({}-{})".format(*(_two(x) or "-" for x in numbers))
                for domain, numbers in v["by_domain"].items()
            }
            lines.append({"setting": v["claim"], **intervals})
    return lines


def notes(document: dict[str, Any]) -> list[str]:
    """List the verdicts with their rules, and what does not fit together in the paper."""
    published, rows, verdicts = paper(), document["rows"], document["verdicts"]
    lines = [sentence(v) for v in verdicts]
    for table in dict.fromkeys(v["table"] for v in verdicts if v["paper"] is not None):
        counts = Counter(v["verdict"] for v in verdicts if v["table"] == table)
        lines.append(f"Of {table}: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}.")
    for v in document["shares"]:
        lines.append(
            f"{v['verdict'].upper()}: {v['claim']}: "
            f"{v['share']:.1%} ({v['low']:.1%}-{v['high']:.1%}), {v['ms']:.2f} ms; "
            f"the paper's {v['paper']:.1%}"
        )
    lines += grid.fastest(rows, "diffuspec", "DiffuSpec")
    lines += [f"In the paper: {text}" for text in contradictions()]
    trained = published["conventions"]["trained"]
    lines += [
        document["rule"],
        f"Paper: {published['source']}; {published['setting']}; {trained}.",
    ]
    prompts = [r["prompts"] for r in rows] or [0]
    return [*lines, f"{min(prompts)} prompts a cell, {document['spent']:.0f} s of measuring."]
