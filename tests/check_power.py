"""Which wrong rules and drafters are found by ``check_rule`` and ``specwb.check``, and how often.

    python tests/check_power.py --anew verify check right    all of it, a quarter of an hour
    python tests/check_power.py --anew verify                that column alone
    python tests/check_power.py                              the page, of what is stored

What is measured is kept in tests/check_power.json, and docs/check.md is made from it. The wrong
rules and drafters are ``tests/biased.py``'s. ``check`` is run at its defaults on that file's pair
of models over 64 tokens, once a seed; a share is that of the seeds at which a test fails.
"""

from __future__ import annotations

import argparse
import json
import logging
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import biased
import torch

import specwb
from specwb.certificate.rules import check_rule
from specwb.lab.evaluation.joint import FALSE_ALARM

STORE = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "check.md"
SEEDS = 20
"""How often every case is checked."""
RIGHT = ("sps:gamma=3", "mcsd:tree=3-2-1")
"""Methods of which false alarms are counted."""
CHECKS = 200
"""How often each of them is checked."""
Store = dict[str, dict[str, str]]
"""By column (``verify``, ``check``, ``right``) and case: what ``check_rule`` says; an outcome of
:func:`checked` for every seed; and how many checks of a right method fail."""
TEXT = """\
# What finds which fault

`specwb.certificate.rules.check_rule` (`specwb certify package.module:Rule`) enumerates the output
of a *rule* on small trees and models. `specwb check` (`specwb.check`) decodes with a whole *method*
on a real target and applies three tests to the output. A correct method fails with probability
{alarm:g}, of which each test has a third:

- **first**: the joint distribution of the first three tokens, by Pearson's chi-square or the
  likelihood ratio, whichever is smaller.
- **later**: the same for three tokens after four others.
- **longer**: a martingale test on texts of 24 tokens. For every token y after a text, and a
  function f that depends on that text alone, `f(y) - E_p f` has mean 0 if the method is lossless.
  The functions are `1[p(y) < q(y)]`, `log q/p` (cut at 3), `log p`, p cumulated in the order of the
  ids, and the first times its own value one token earlier. p-values below .001 come from a bound
  that holds for any number of tokens. q is the draft model's distribution, or the one that the
  root's children were drawn from.

A test with a p-value below .01 that decides nothing is repeated with four times the rows. A fault
that passes changes the distribution little, and finding it takes enumeration or more `rows`.

The tables below apply both to every wrong rule and drafter of
[tests/biased.py](../tests/biased.py). `rule`: found, with the largest total variation over its
small instances; *passed*; or *not checked* where it cannot follow the rule. `check`: the share of
{seeds} seeds at which it fails, with its defaults, on a pair of models over 64 tokens (tau 1.7 to
2.9; 1,024 texts); then the tests that fail, each with its share.
"""


def verified(case: biased.Case) -> str:
    """What ``check_rule`` says of a case's rule."""
    outcome = check_rule(case.rule)
    if outcome.worst:
        return f"found, {outcome.tv:.2g}"
    return "passed" if outcome else "not checked"


def report_of(name: str, seed: int) -> specwb.Check:
    """The check of a case or of a right method."""
    torch.set_num_threads(1)
    target, draft = biased.pair()
    if name in biased.CASES:
        method = biased.CASES[name].method(target, draft)
    else:
        method = specwb.method(name, target, draft=draft)
    return specwb.check(target, method, biased.PROMPTS, seed=seed)


def checked(name: str, seed: int) -> str:
    """Whether a check fails, and each of its three tests, 1 or 0 each."""
    report = report_of(name, seed)
    tests = (report.joint, report.later, report.martingale)
    return "".join(str(int(bad)) for bad in (not report.passed, *(test.failed for test in tests)))


def measure(columns: list[str]) -> Store:
    """What is asked for, in the order of the tables."""
    names = {
        "verify": [case.name for case in biased.RULES],
        "check": list(biased.CASES),
        "right": list(RIGHT),
    }
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:

        def runs(column: str, name: str) -> list[Future]:
            if column == "verify":
                return [pool.submit(verified, biased.CASES[name])]
            if column == "check":
                return [pool.submit(checked, name, 100 + seed) for seed in range(SEEDS)]
            return [pool.submit(checked, name, 1000 + 17 * i) for i in range(CHECKS)]

        waiting = {x: {name: runs(x, name) for name in names[x]} for x in columns}
        store: Store = {}
        for column, cells in waiting.items():
            for name, many in cells.items():
                results = [run.result() for run in many]
                if column == "right":
                    results = [f"{sum(x[0] == '1' for x in results)} of {len(results)}"]

                store.setdefault(column, {})[name] = " ".join(results)
                print(f"{column} {name}: {store[column][name]}", flush=True)
    return store


def shares(outcomes: str) -> list[float]:
    """The share of seeds at which the check and each of its tests fails."""
    seeds = outcomes.split()
    return [sum(map(int, column)) / len(seeds) for column in zip(*seeds, strict=True)]


def page(store: Store) -> str:
    """The page of what is stored."""
    seeds = max(len(outcomes.split()) for outcomes in store["check"].values())
    parts = [TEXT.format(alarm=FALSE_ALARM, seeds=seeds)]
    for title, cases, right in (
        ("Wrong rules", biased.RULES, False),
        ("Wrong drafters", biased.DRAFTERS, False),
        ("What looks wrong and is right", [*biased.RULES, *biased.DRAFTERS], True),
    ):
        rows = [row(case, store) for case in cases if case.right == right]
        head = "| what it does | method | rule | check | by test |"
        line = "|---" * 5 + "|"
        parts.append("\n".join([f"## {title}\n", head, line, *rows, ""]))
    alarms = ", ".join(f"{count} with `{name}`" for name, count in store["right"].items())
    parts.append(
        "A rule that draws its own uniforms fails because a row alone differs from the row in a\n"
        "batch: its texts are not determined by their seeds.\n\n"
        "## False alarms\n\n"
        f"Correct methods, checked at other seeds, fail in {alarms}.\n"
        f"The expected share is at most {FALSE_ALARM:g}.\n\n"
        "This page is written by `python tests/check_power.py`.\n"
    )
    return "\n".join(parts)


def row(case: biased.Case, store: Store) -> str:
    """A case's row of the table."""
    whole, *parts = shares(store["check"][case.name])
    tests = zip(("first", "later", "longer"), parts)
    shown = [
        f"{whole:.2f}",
        ", ".join(f"{test} {share:.2f}" for test, share in tests if share),
    ]
    says = case.says.removesuffix(" (Right.)").replace("|", "\\|")
    # the project's own rules belong to the method; a wrong rule is what the row is about
    named = f",rule={case.rule.name}" if case.rule and case.drafter else ""
    columns = [says, f"`{case.spec}{named}`", store["verify"].get(case.name, "–"), *shown]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--anew", choices=("verify", "check", "right"), nargs="+", default=[])
    columns = parser.parse_args().anew
    logging.disable(logging.WARNING)
    store = json.loads(STORE.read_text())
    if columns:
        store |= measure(columns)
        STORE.write_text(json.dumps(store, indent=1) + "\n")
    PAGE.write_text(page(store), encoding="utf-8")


if __name__ == "__main__":
    main()
