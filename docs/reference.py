"""The API reference: pages made from the docstrings by pdoc, in build/reference or the folder
named.

A warning of pdoc's (a name that does not resolve, an annotation it cannot read) ends it with an
error, so that what is made is whole.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path

import pdoc

import specwb


def modules() -> list[str]:
    """Names of all modules of the package, imported; what they import lazily is in its place."""
    names = ["specwb"]
    for module in pkgutil.walk_packages(specwb.__path__, "specwb."):
        if not module.name.endswith("__main__"):  # that one would run the command line
            names.append(module.name)
    for name in names:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            getattr(module, public)
    return names


def build(folder: Path) -> None:
    """Write the pages to ``folder``; ``index.html`` leads to those of ``specwb``."""
    pdoc.render.configure(docformat="google", show_source=False, search=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # the modules of a package without __all__ are named twice: by it and by the list
        warnings.filterwarnings("ignore", "The module specification")
        # Python makes these signatures (NamedTuple, a dataclass's child elsewhere) without the
        # names of the module they stand in; pdoc then prints the annotation as it is written
        warnings.filterwarnings("ignore", r"Error parsing type annotation .*\.__init__\.")
        pdoc.pdoc(*modules(), output_directory=folder)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build") / "reference"
    build(place)
    print(f"{place / 'index.html'}")
