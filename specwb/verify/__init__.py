"""Verification: from a draft and the target's scores to the accepted path and the bonus token,
without changing the target's distribution."""

from importlib import import_module

from specwb.verify.block import Block
from specwb.verify.coupled import Coupled
from specwb.verify.gbv import GBV
from specwb.verify.greedy import Greedy
from specwb.verify.independent import Independent
from specwb.verify.kseq import KSeq
from specwb.verify.longest import Longest
from specwb.verify.point import Naive, PointMass
from specwb.verify.race import WeightedRace
from specwb.verify.rejection import Rejection
from specwb.verify.rrs import RRS
from specwb.verify.rrsw import RRSw
from specwb.verify.rule import NodeRule, Rule
from specwb.verify.top import TopAndSample
from specwb.verify.traversal import Traversal
from specwb.verify.typical import Typical

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
        Coupled,
        Typical,
        Longest,
        Independent,
    )
}


# decoding needs neither
_LATER = {
    "check_rule": "specwb.verify.production",
    "distribution_of": "specwb.verify.distribution",
}


def __getattr__(name: str):
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'specwb.verify' has no attribute {name!r}")


__all__ = [
    "GBV",
    "RRS",
    "RULES",
    "Block",
    "Coupled",
    "Greedy",
    "Independent",
    "KSeq",
    "Longest",
    "Naive",
    "NodeRule",
    "PointMass",
    "RRSw",
    "Rejection",
    "Rule",
    "TopAndSample",
    "Traversal",
    "Typical",
    "WeightedRace",
    "check_rule",
    "distribution_of",
]
