"""specwb: a workbench for speculative decoding of language models.

target = specwb.load("lab")
out = specwb.decode(target, "def fib(n):", method="mcsd", tree=(4, 2, 2), temperature=1.0, seed=0)
out.text, out.mean_tokens_per_round
"""

from specwb.drafters.base import Drafter
from specwb.engine import Clock, Output, PromptError, decode, rounds
from specwb.flow import Draft, Exactness, Law, LawMismatch, State, Step
from specwb.hf import UnsupportedGeneration, hf
from specwb.methods import METHODS, Method, MethodError, citation, method, register, unregister
from specwb.models.backbone import UnsupportedModel
from specwb.models.load import LoadError, load
from specwb.models.target import Target
from specwb.noise import Noise
from specwb.probability import Sampling
from specwb.trace import explain
from specwb.tree import Tree

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Clock",
    "Draft",
    "Drafter",
    "Exactness",
    "Law",
    "LawMismatch",
    "LoadError",
    "Method",
    "MethodError",
    "Noise",
    "Output",
    "PromptError",
    "Sampling",
    "State",
    "Step",
    "Target",
    "Tree",
    "UnsupportedGeneration",
    "UnsupportedModel",
    "check",
    "citation",
    "compare",
    "decode",
    "explain",
    "hf",
    "load",
    "method",
    "register",
    "rounds",
    "unregister",
]


def __getattr__(name: str):
    # compare brings pandas; decoding does not need it
    if name == "compare":
        from specwb.evaluation.compare import compare

        return compare
    if name == "check":
        from specwb.evaluation.check import check

        return check
    raise AttributeError(f"module 'specwb' has no attribute {name!r}")
