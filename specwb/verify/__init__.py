"""Verification: from a draft and the target's scores to the accepted path and the closing token, without changing the target's law."""

from specwb.verify.greedy import Greedy
from specwb.verify.point import Naive, PointMass
from specwb.verify.rejection import Rejection
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule, Rule
from specwb.verify.top import TopAndSample

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Rejection, RRS, RRSw, TopAndSample, PointMass, Naive)}

__all__ = ["RRS", "RULES", "Greedy", "Naive", "NodeRule", "PointMass", "RRSw", "Rejection", "Rule", "TopAndSample"]
