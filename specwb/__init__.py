"""A workbench for speculative decoding of language models.

```python
target = specwb.load("lab")
out = specwb.decode(target, "def fib(n):", method="mcsd", tree=(4, 2, 2), temperature=1.0, seed=0)
out.text, out.mean_tokens_per_step
```

Names and modules (``specwb.show.figures``, ``specwb.lab.evaluation``, ..) are imported when they
are first
used: ``import specwb`` and ``specwb --help`` need no torch.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specwb import certificate as certificate
    from specwb import cli as cli
    from specwb import core as core
    from specwb import drafters as drafters
    from specwb import engine as engine
    from specwb import lab as lab
    from specwb import models as models
    from specwb import rules as rules
    from specwb import rules as verify
    from specwb import show as show
    from specwb import theory as theory
    from specwb import training as training
    from specwb.certificate.certify import certify
    from specwb.core.errors import ArgumentError, SpecwbError
    from specwb.core.extras import MissingExtra
    from specwb.core.flow import (
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
    from specwb.core.noise import Noise
    from specwb.core.probability import Sampling
    from specwb.core.tree import Tree
    from specwb.drafters.base import Drafter
    from specwb.engine.custom_generate import UnsupportedGeneration, hf
    from specwb.engine.decoding import Output, decode, rounds
    from specwb.engine.loop import Clock, DraftError
    from specwb.engine.methods import (
        METHODS,
        Method,
        MethodError,
        citation,
        method,
        register,
        unregister,
    )
    from specwb.engine.trace import explain
    from specwb.lab.bench.compare import compare
    from specwb.lab.evaluation.check import check
    from specwb.lab.sweeps.run import sweep
    from specwb.models.architectures import UnsupportedModel
    from specwb.models.load import LoadError, load
    from specwb.models.prompts import PromptError
    from specwb.models.target import Target
    from specwb.rules import RULES, NodeRule, Rule
    from specwb.show.scope import record
    from specwb.show.widgets.dials import dials
    from specwb.show.widgets.microscope import microscope

__version__ = "0.2.0"

# where each public name is defined; no module right below the package may have the name of one,
# because importing it would put the module in that name's place
_PLACES = {
    "lab.bench.compare": ("compare",),
    "engine.custom_generate": ("UnsupportedGeneration", "hf"),
    "drafters.base": ("Drafter",),
    "engine.decoding": ("Output", "decode", "rounds"),
    "engine.loop": ("Clock", "DraftError"),
    "core.errors": ("ArgumentError", "SpecwbError"),
    "lab.evaluation.check": ("check",),
    "core.extras": ("MissingExtra",),
    "core.flow": (
        *("Draft", "Exactness", "InvalidDistribution", "RuleMismatch", "Scheme"),
        *("Scores", "State", "Step", "Verdict"),
    ),
    "engine.methods": (
        "METHODS",
        "Method",
        "MethodError",
        "citation",
        "method",
        "register",
        "unregister",
    ),
    "models.architectures": ("UnsupportedModel",),
    "models.load": ("LoadError", "load"),
    "models.prompts": ("PromptError",),
    "models.target": ("Target",),
    "core.noise": ("Noise",),
    "core.probability": ("Sampling",),
    "show.scope": ("record",),
    "lab.sweeps.run": ("sweep",),
    "engine.trace": ("explain",),
    "core.tree": ("Tree",),
    "rules": ("RULES", "NodeRule", "Rule"),
    "certificate.certify": ("certify",),
    "show.widgets.dials": ("dials",),
    "show.widgets.microscope": ("microscope",),
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
    *("certificate", "cli", "core", "drafters", "engine", "lab"),
    *("models", "rules", "show", "theory", "training"),
)


def modules_of(room: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports its modules when they are first used."""

    def module(name: str) -> Any:
        if not name.startswith("_") and find_spec(f"{room}.{name}") is not None:
            return import_module(f"{room}.{name}")
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return module


def __getattr__(name: str) -> Any:
    """A public name, or a room of the package (``specwb.show``)."""
    if name not in _PLACE_OF:
        return modules_of("specwb")(name)
    value = getattr(import_module(f"specwb.{_PLACE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
