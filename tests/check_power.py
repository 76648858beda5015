"""Which wrong rules and drafters are found by ``check_rule`` and ``specwb.check``, and how often.

    python tests/check_power.py --right 200 --out docs/check.md    all of it, and the page
    python tests/check_power.py --only Stale sorted --seeds 40     these only, at more seeds
    python tests/check_power.py --anew verify --out docs/check.md  that column once more

What is measured is kept in tests/check_power.json and not measured again unless it is asked for
anew; the page is made from it. The wrong rules and
drafters are ``tests/biased.py``'s. ``check`` is run at its defaults on that file's pair of models
over 64 tokens, once a seed; a share is that of the seeds at which a test fails. Right methods are
checked at other seeds, ``--right`` times each.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import biased
import torch

import specwb
from specwb.evaluation.alarm import FALSE_ALARM
from specwb.verify.production import TOLERANCE, check_rule

STORE = Path(__file__).with_suffix(".json")
SEEDS = 20
RIGHT = ("sps:gamma=3", "mcsd:tree=3-2-1")
"""Methods of which false alarms are counted."""
TEXT = """\
# What finds which fault

`specwb verify --rule` (`specwb.verify.check_rule`) enumerates the output of a *rule* on small trees
and models. `specwb check` (`specwb.check`) decodes with a whole *method* on a real target and puts
what comes out to three tests. Each has a third of the {alarm:g} that a right method may fail with:

- **first**: the joint distribution of the first three tokens, by chi-square.
- **later**: the same of three tokens after four others.
- **longer**: a martingale test of texts of 24 tokens. For every token y after a text, and a
  function f that depends on that text alone, `f(y) - E_p f` has the mean 0 if the method is
  lossless; its sum over the root of the sum of variances is normal. The functions are
  `1[p(y) < q(y)]`, `log q/p` (cut at 3), `log p`, the cumulated p in the order of the ids, and the
  first times its own value one token before. q is the draft model's distribution, or what the
  root's children were drawn from.

A test whose p-value is small and decides nothing (below .01) is made again with four times the
rows.

None of them finds everything. Below, every wrong rule and drafter of
[tests/biased.py](../tests/biased.py) is put to both. `verify`: found, with the largest total
variation over its small instances, or *passed*, or *not checked* where it cannot follow. `check`:
the share of seeds at which it fails, with its defaults, on a pair of models over 64 tokens
(tau 1.7 to 2.9; 1,024 texts); then the same of each of the three tests. A larger `rows` finds more.

What passes both, or nearly so, moves the distribution little there, and takes enumeration or more
rows than the default: a test of that size can tell that the bias is below what it says it sees, and
no more.
"""


def verified(case: biased.Case) -> str:
    """What ``check_rule`` says of a case's rule."""
    outcome = check_rule(case.rule)
    if outcome.worst >= TOLERANCE:
        return f"found, {outcome.worst:.2g}"
    return "passed" if outcome.lossless else "not checked"


def checked(name: str, seed: int) -> str:
    """Whether a check fails, and each of its three tests, 1 or 0 each; or "refused"."""
    torch.set_num_threads(1)
    target, draft = biased.pair()
    try:
        if name in biased.CASES:
            method = biased.CASES[name].method(target, draft)
        else:
            method = specwb.method(name, target, draft=draft)
        report = specwb.check(target, method, biased.PROMPTS, seed=seed)
    except specwb.RuleMismatch:
        return "refused"
    tests = (report.joint, report.later, report.martingale)
    return "".join(str(int(bad)) for bad in (not report.passed, *(test.failed for test in tests)))


def measure(
    store: dict[str, Any], names: list[str], seeds: int, verify: bool, jobs: int
) -> Iterator[str]:
    """Add to ``store`` what it does not have yet, and say what is new."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        runs: dict[Future, tuple[str, int]] = {}
        for seed in range(seeds):  # all cases at a seed, then the next
            for name in names:
                if str(seed) not in store["cells"].setdefault(name, {}).setdefault("check", {}):
                    runs[pool.submit(checked, name, 100 + seed)] = name, seed
        rules = [name for name in names if biased.CASES[name] in biased.RULES]
        for name in rules if verify else []:
            if "verify" not in store["cells"].setdefault(name, {}):
                runs[pool.submit(verified, biased.CASES[name])] = name, -1
        for run in as_completed(runs):
            name, seed = runs[run]
            if seed < 0:
                store["cells"][name]["verify"] = run.result()
            else:
                store["cells"][name]["check"][str(seed)] = run.result()
            yield f"{name} {seed if seed >= 0 else 'verify'}: {run.result()}"


def shares(cells: dict[str, Any]) -> list[float] | None:
    """The share of seeds at which the check and each of its tests fails; None where refused."""
    outcomes = list(cells["check"].values())
    if "refused" in outcomes:
        return None
    return [sum(map(int, column)) / len(column) for column in zip(*outcomes, strict=True)]


def false_alarms(count: int, jobs: int) -> dict[str, list[int]]:
    """How many of so many checks of right methods fail."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        runs = {n: [pool.submit(checked, n, 1000 + 17 * i) for i in range(count)] for n in RIGHT}
        return {
            name: [sum(run.result()[0] == "1" for run in many), count]
            for name, many in runs.items()
        }


def page(store: dict[str, Any]) -> str:
    """The page of what is stored."""
    cells = store["cells"]
    parts = [TEXT.format(alarm=FALSE_ALARM)]
    for title, cases, right in (
        ("Wrong rules", biased.RULES, False),
        ("Wrong drafters", biased.DRAFTERS, False),
        ("What looks wrong and is right", [*biased.RULES, *biased.DRAFTERS], True),
    ):
        rows = [row(case, cells[case.name]) for case in cases if case.right == right]
        head = "| what it does | method | verify | seeds | check | first | later | longer |"
        line = "|---" * 8 + "|"
        parts.append("\n".join([f"## {title}\n", head, line, *rows, ""]))
    alarms = ", ".join(f"{bad} of {all_} with `{n}`" for n, (bad, all_) in store["right"].items())
    parts.append(
        "A rule with uniforms of its own has the right distribution. It fails because a row alone\n"
        "is not the row in the batch: its texts do not follow from their seeds.\n\n"
        "## False alarms\n\n"
        f"Of right methods checked at other seeds fail {alarms}. At most {FALSE_ALARM:g} of them\n"
        "are expected to.\n\n"
        "This page is written by `python tests/check_power.py --out docs/check.md`.\n"
    )
    return "\n".join(parts)


def row(case: biased.Case, cells: dict[str, Any]) -> str:
    """A case's row of the table."""
    found = shares(cells)
    shown = ["refused", "", "", ""] if found is None else [f"{share:.2f}" for share in found]
    says = case.says.removesuffix(" (Right.)").replace("|", "\\|")
    count = str(len(cells["check"]))
    columns = [says, f"`{case.spec}`", cells.get("verify", "–"), count, *shown]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(biased.CASES), help="names of cases")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="checks of every case")
    parser.add_argument("--right", type=int, default=0, help="checks of every right method")
    parser.add_argument("--anew", choices=("verify", "check"), nargs="*", help="columns")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="the page")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    store = json.loads(STORE.read_text()) if STORE.exists() else {"cells": {}, "right": {}}
    for name, column in product(given.only, given.anew or []):
        store["cells"][name].pop(column, None)
    for line in measure(store, given.only, given.seeds, True, given.jobs):
        print(line, flush=True)
        save(store)
    if given.right:
        store["right"] = false_alarms(given.right, given.jobs)
        print(store["right"])
    save(store)
    if given.out is not None:
        given.out.write_text(page(store), encoding="utf-8")


def save(store: dict[str, Any]) -> None:
    """Keep what was measured, the cases in the order of the tables."""
    cells = {name: store["cells"][name] for name in biased.CASES if name in store["cells"]}
    for cell in cells.values():
        cell["check"] = dict(sorted(cell.get("check", {}).items(), key=lambda one: int(one[0])))
    text = json.dumps({"cells": cells, "right": store["right"]}, indent=1)
    STORE.write_text(text + "\n")


if __name__ == "__main__":
    main()
