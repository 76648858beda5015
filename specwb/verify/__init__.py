"""Verification: from a draft and the target's scores to the accepted path and the closing token, without changing the target's law."""

from specwb.verify.greedy import Greedy
from specwb.verify.point import PointMass
from specwb.verify.rejection import Rejection
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule, Rule

RULES: dict[str, type[NodeRule]] = {"rejection": Rejection, "rrs": RRS, "rrsw": RRSw, "point": PointMass}

__all__ = ["RRS", "RULES", "Greedy", "NodeRule", "PointMass", "RRSw", "Rejection", "Rule"]
