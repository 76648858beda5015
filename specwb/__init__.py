"""A workbench for speculative decoding of language models.

```python
target = specwb.load("lab")
out = specwb.decode(target, "def fib(n):", method="mcsd", tree=(4, 2, 2), temperature=1.0, seed=0)
out.text, out.mean_tokens_per_step
```

Names and modules (``specwb.figures``, ``specwb.evaluation``, ..) are imported when they are first
used: ``import specwb`` and ``specwb --help`` need no torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specwb import analysis as analysis
    from specwb import course as course
    from specwb import drafters as drafters
    from specwb import evaluation as evaluation
    from specwb import figures as figures
    from specwb import models as models
    from specwb import scope as scope
    from specwb import studies as studies
    from specwb import sweeps as sweeps
    from specwb import training as training
    from specwb import verify as verify
    from specwb import widgets as widgets
    from specwb.bench.compare import compare
    from specwb.certificate.certify import certify
    from specwb.custom_generate import UnsupportedGeneration, hf
    from specwb.decoding import Output, decode, rounds
    from specwb.drafters.base import Drafter
    from specwb.engine import Clock, DraftError
    from specwb.errors import ArgumentError, SpecwbError
    from specwb.evaluation.check import check
    from specwb.extras import MissingExtra
    from specwb.flow import (
        Draft,
        Exactness,
        InvalidDistribution,
        RuleMismatch,
        Scheme,
        Scores,
        State,
        Step,
        Verdict,
    )
    from specwb.methods import METHODS, Method, MethodError, citation, method, register, unregister
    from specwb.models.architectures import UnsupportedModel
    from specwb.models.load import LoadError, load
    from specwb.models.prompts import PromptError
    from specwb.models.target import Target
    from specwb.noise import Noise
    from specwb.probability import Sampling
    from specwb.scope import record
    from specwb.sweeps.run import sweep
    from specwb.trace import explain
    from specwb.tree import Tree
    from specwb.verify import RULES, NodeRule, Rule
    from specwb.widgets.dials import dials
    from specwb.widgets.microscope import microscope

__version__ = "0.2.0"

# where each public name is defined; no module right below the package may have the name of one,
# because importing it would put the module in that name's place
_PLACES = {
    "bench.compare": ("compare",),
    "custom_generate": ("UnsupportedGeneration", "hf"),
    "drafters.base": ("Drafter",),
    "decoding": ("Output", "decode", "rounds"),
    "engine": ("Clock", "DraftError"),
    "errors": ("ArgumentError", "SpecwbError"),
    "evaluation.check": ("check",),
    "extras": ("MissingExtra",),
    "flow": (
        *("Draft", "Exactness", "InvalidDistribution", "RuleMismatch", "Scheme"),
        *("Scores", "State", "Step", "Verdict"),
    ),
    "methods": ("METHODS", "Method", "MethodError", "citation", "method", "register", "unregister"),
    "models.architectures": ("UnsupportedModel",),
    "models.load": ("LoadError", "load"),
    "models.prompts": ("PromptError",),
    "models.target": ("Target",),
    "noise": ("Noise",),
    "probability": ("Sampling",),
    "scope": ("record",),
    "sweeps.run": ("sweep",),
    "trace": ("explain",),
    "tree": ("Tree",),
    "verify": ("RULES", "NodeRule", "Rule"),
    "certificate.certify": ("certify",),
    "widgets.dials": ("dials",),
    "widgets.microscope": ("microscope",),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}
# written out, because type checkers read no other form
__all__ = [
    "METHODS",
    "RULES",
    "ArgumentError",
    "Clock",
    "Draft",
    "DraftError",
    "Drafter",
    "Exactness",
    "InvalidDistribution",
    "LoadError",
    "Method",
    "MethodError",
    "MissingExtra",
    "NodeRule",
    "Noise",
    "Output",
    "PromptError",
    "Rule",
    "RuleMismatch",
    "Sampling",
    "Scheme",
    "Scores",
    "SpecwbError",
    "State",
    "Step",
    "Target",
    "Tree",
    "UnsupportedGeneration",
    "UnsupportedModel",
    "Verdict",
    "certify",
    "check",
    "citation",
    "compare",
    "decode",
    "dials",
    "explain",
    "hf",
    "load",
    "method",
    "microscope",
    "record",
    "register",
    "rounds",
    "sweep",
    "unregister",
]
# what an editor offers beside the names; every other module of the package is found as well
_MODULES = (
    *("analysis", "course", "drafters", "evaluation", "figures", "models"),
    *("scope", "studies", "sweeps", "training", "verify", "widgets"),
)


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package (``specwb.figures``)."""
    if name in _PLACE_OF:
        value = getattr(import_module(f"specwb.{_PLACE_OF[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"specwb.{name}") is not None:
        return import_module(f"specwb.{name}")
    raise AttributeError(f"module 'specwb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
