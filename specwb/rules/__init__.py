"""Verification: from a draft and the target's scores to the accepted path and the bonus token,
without changing the target's distribution."""

from specwb.rules.block import Block
from specwb.rules.gbv import GBV
from specwb.rules.greedy import Greedy
from specwb.rules.independent import Independent
from specwb.rules.kseq import KSeq
from specwb.rules.longest import Longest
from specwb.rules.point import Naive, PointMass
from specwb.rules.race import WeightedRace
from specwb.rules.rejection import Rejection
from specwb.rules.rrs import RRS
from specwb.rules.rrsw import RRSw
from specwb.rules.rule import NodeRule, Rule
from specwb.rules.top import TopAndSample
from specwb.rules.traversal import Traversal
from specwb.rules.typical import Typical

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Rejection,
        RRS,
        RRSw,
        KSeq,
        WeightedRace,
        TopAndSample,
        PointMass,
        Naive,
        Block,
        Traversal,
        GBV,
        Typical,
        Longest,
        Independent,
    )
}
