"""The public face: what is found where, what importing it costs, and what its exceptions are."""

from __future__ import annotations

import ast
import builtins
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import specwb


def test_the_package_alone_imports_nothing():
    script = "import sys, specwb; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {"torch", "transformers", "numpy", "pandas", "plotly", "ipywidgets"}
    assert {name for name in loaded if name.startswith("specwb")} == {"specwb"}


@pytest.mark.parametrize("name", specwb._MODULES)
def test_modules_are_attributes_and_listed(monkeypatch, name):
    monkeypatch.delattr(specwb, name, raising=False)  # as if nothing had imported it yet
    assert getattr(specwb, name).__name__ == f"specwb.{name}"
    assert name in dir(specwb)


def test_a_class_name_means_one_thing():
    """No other module has a class or an alias of that name. ``Options`` is the name of the options
    of every method, each in the module of its method."""
    places: dict[str, list[tuple[Path, bool]]] = {}
    for path in sorted(Path(specwb.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            is_class = isinstance(node, ast.ClassDef)
            targets = [node.name] if is_class else []
            if isinstance(node, ast.Assign):
                targets = [name.id for name in node.targets if isinstance(name, ast.Name)]
            for name in targets:
                places.setdefault(name, []).append((path, is_class))
    places.pop("Options")
    twice = {k: v for k, v in places.items() if len(v) > 1 and any(is_class for _, is_class in v)}
    assert not {name for name in twice if not name.startswith("_")}


def test_every_exception_has_one_base_and_a_built_in_one():
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(specwb.__path__, "specwb.")
        if not found.name.endswith("__main__")
    ]
    kinds = {
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, BaseException)
        and thing.__module__.startswith("specwb")
    }
    assert len(kinds) > 15
    for kind in kinds - {specwb.SpecwbError}:
        assert issubclass(kind, specwb.SpecwbError), kind
        ours = (specwb.SpecwbError, Exception, BaseException, object)
        assert any(
            vars(builtins).get(base.__name__) is base for base in kind.__mro__ if base not in ours
        )


def test_what_is_raised_is_one_of_ours():
    """Bare built-in exceptions are raised only by the command line, which prints them, and where
    Python's own protocols ask for them."""
    package, found = Path(specwb.__file__).parent, set()
    protocol = {
        ("NotImplementedError", None),
        ("AttributeError", None),
        ("KeyboardInterrupt", None),
        ("ImportError", "models/kernels.py"),  # of importing
        ("TypeError", "models/target.py"),  # of pickling
        ("TypeError", "theory/exact/basics.py"),  # of an operator
    }
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith("cli/"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            raised = getattr(node, "exc", None) if isinstance(node, ast.Raise) else None
            raised = raised.func if isinstance(raised, ast.Call) else raised
            kind = getattr(builtins, getattr(raised, "id", ""), None)
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                continue
            if not {(kind.__name__, None), (kind.__name__, name)} & protocol:
                found.add(f"{name}:{node.lineno} raises {kind.__name__}")
    assert not found, f"{found}: raise specwb.ArgumentError, or an exception of the module's own"
