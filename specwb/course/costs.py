"""The shipped cost model, for lessons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specwb.course.measure import stored

if TYPE_CHECKING:
    from specwb.evaluation.cost import CostModel


def shipped_costs(name: str = "tune-lab-cpu") -> CostModel:
    """What ``specwb tune`` measured of the lab's target and draft model, as a
    :class:`specwb.evaluation.cost.CostModel`.

    Its times are put in order (:func:`specwb.evaluation.cost.in_order`), and a level whose own
    cost came out below that of its draft forward costs as much as that.

    Args:
        name: the result, ``data/results/NAME.json``.
    Raises:
        MeasuredError: there is none of that name.
    """
    from specwb.evaluation.cost import CostModel, in_order

    saved = dict(stored(name)["calibrated"])
    for side in ("target", "draft"):
        saved[side] = in_order({int(n): seconds for n, seconds in saved[side].items()})
    saved["rest"] = max(0.0, saved["rest"])
    return CostModel.from_json(saved)
