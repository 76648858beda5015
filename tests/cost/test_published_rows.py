"""The ledger of docs/predict.md is what the command writes, and its rows are the published ones."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations
from pathlib import Path
from statistics import mean

import pytest

from specwb.cost import PredictionError, ledger
from specwb.cost.shapes import tables

PAGE = Path(__file__).parents[2] / "docs" / "predict.md"
NUMBER = re.compile(r"-?\+?\d+(?:\.\d+)?")


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    page = tmp_path / "predict.md"
    page.write_text(f"before {ledger.BEGIN} old {ledger.END} after")
    ledger.write(page)
    text = page.read_text()
    assert text.startswith("before ")
    assert text.endswith(" after")

    def own(text: str) -> str:
        return text.partition(ledger.BEGIN)[2].partition(ledger.END)[0]

    stored, new = own(PAGE.read_text("utf-8")), own(text)
    assert NUMBER.sub("", stored) == NUMBER.sub("", new)
    # a last digit may be rounded otherwise elsewhere
    pairs = zip(NUMBER.findall(stored), NUMBER.findall(new), strict=True)
    assert all(abs(float(a) - float(b)) <= (0.011 if "." in a else 1) for a, b in pairs)


def test_a_page_without_a_place_for_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(PredictionError, match="there is no page"):
        ledger.write(page)
    page.write_text("text")
    with pytest.raises(PredictionError, match="needs the lines"):
        ledger.write(page)
    assert page.read_text() == "text"


def test_rows_are_the_published_ones() -> None:
    rows = ledger.rows()
    published = {(row.group, row.what): row.published for row in rows}
    assert len(published) == len(rows)
    assert published["Falcon", "Vicuna 7B, Falcon, MT-Bench"] == 3.1
    assert published["Kangaroo, exit layers", "13b, exit 3"] == 1.44
    own = tables("published")
    assert len(rows) == 4 + len(own["spec_bench"]["rows"]) + 3 + 9 + 30 + 4 + 1 + 12
    for row in rows:
        assert row.low <= row.high
        assert 0.3 < row.predicted / row.published < 3  # no unit is wrong
        assert row.error == pytest.approx(row.predicted / row.published - 1)


def test_no_row_is_judged_by_what_was_fitted_to_its_report() -> None:
    """By hand: of n errors of other reports the ceil(0.9 (n + 1))-th smallest."""
    rows = ledger.rows()
    for row, card_alone in zip(rows, ledger._of_cards(), strict=True):
        own = {"Kangaroo, fixed length", "Kangaroo, exit layers"}
        if row.group not in own:
            own = {"plain decoding", "Spec-Bench"}
        own = own if row.group in own else {row.group}
        errors = sorted(
            abs(math.log(other.predicted / other.published))
            for other in rows
            if other.group not in own
        )
        error = errors[math.ceil(0.9 * (len(errors) + 1)) - 1]
        assert row.low == min(card_alone.low, row.predicted * math.exp(-error))
        assert row.high == max(card_alone.high, row.predicted * math.exp(error))
    assert sum(row.inside for row in rows) >= 0.8 * len(rows)


def _by_hand(without: str, same: bool, scale: float) -> float:
    """The 90 % conformal score of pairs of rows of all reports but one."""
    scores = sorted(
        abs(math.log(a.predicted / b.predicted) - math.log(a.published / b.published))
        / (scale + abs(math.log(a.predicted / a.tau) - math.log(b.predicted / b.tau)))
        for a, b in combinations(ledger.rows(), 2)
        if a.quantity == b.quantity == "speedup"
        and a.report == b.report != without
        and a.method
        and b.method
        and a.place == b.place
        and (a.method == b.method) == same
    )
    assert len(scores) > 20
    return scores[min(math.ceil(0.9 * (len(scores) + 1)), len(scores)) - 1]


def test_the_error_of_a_ratio_is_that_of_pairs_of_other_reports() -> None:
    for without in ("", "Kangaroo", "DiffuSpec"):
        for same in (True, False):
            score = _by_hand(without, same, 0.5)
            for apart in (0.0, 0.1, 2.0):
                error = ledger.ratio_error(without, same, apart)
                assert error == pytest.approx(score * (0.5 + apart))
    # two steps of one paper that differ in nothing but their length cancel much of the error
    assert ledger.ratio_error("DiffuSpec") < ledger.model_error("DiffuSpec")


def test_intervals_of_ratios_hold_the_pairs_of_a_report_left_out() -> None:
    """Errors that grow with the distance of costs give narrower intervals with more pairs inside
    than one error for all pairs, and the constant is the best of a coarse grid."""

    def judged(same: bool, scale: float) -> tuple[float, float]:
        widths, inside = [], []
        for report in {pair.report for pair in ledger.pairs() if pair.same == same}:
            own = [p for p in ledger.pairs() if p.report == report and p.same == same]
            score = _by_hand(report, same, scale)
            ends = [score * (scale + pair.apart) for pair in own]
            widths.append(mean(ends))
            inside.append(mean(pair.error <= end for pair, end in zip(own, ends, strict=True)))
        return mean(widths), mean(inside)

    constant = 1e9
    for same in (True, False):
        width, inside = judged(same, 0.5)
        assert inside > max(0.88, judged(same, constant)[1])
        assert width < 1.01 * judged(same, constant)[0]
    grid = {scale: judged(True, scale) for scale in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)}
    assert min((w, s) for s, (w, inside) in grid.items() if inside >= 0.9)[1] == ledger.SCALE
    assert mean(pair.inside for pair in ledger.pairs() if pair.same) > 0.9


def test_summaries_count_every_row_once() -> None:
    *groups, all_ = ledger.summaries()
    assert sum(own.rows for own in groups) == all_.rows == len(ledger.rows())
    assert sum(own.inside for own in groups) == all_.inside
    assert abs(all_.worst.error) == max(abs(row.error) for row in ledger.rows())
    content = json.loads(json.dumps(ledger.as_json()))
    assert len(content["rows"]) == all_.rows
    assert {row["card"] for row in content["pending"]} == {"h100", "h200"}
