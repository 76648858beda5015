"""Sphinx's settings of the site; ``docs/site/make.py`` calls Sphinx with them on staged pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import libraries  # noqa: E402, these lie beside this file
from docstrings import rewritten  # noqa: E402

project = "specwb"
author = "The specwb authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
]
html_theme = "furo"
html_title = "specwb"
SHARED = ROOT / "specwb" / "show" / "widgets" / "question"  # with notebooks
html_static_path = [f"{name}.{kind}" for name in (HERE / "site", SHARED) for kind in ("css", "js")]
html_static_path.append(str(HERE / "explorers.js"))
html_css_files = ["question.css", "site.css"]
html_js_files = ["question.js", "site.js", "explorers.js"]
html_show_copyright = False
html_copy_source = False

# formulas: MathJax with its fonts from this site, nothing from a network
mathjax_path = "mathjax/tex-chtml.js"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 4
# notebooks are shown as they are stored
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
# a name's source is linked where it is defined; followed from packages that import it, the sources'
# pages would link back to anchors that there are not
viewcode_follow_imported_members = False
# attributes as a list: those that are properties are described once
napoleon_use_ivar = True
napoleon_custom_sections = [("Settings", "params_style")]
suppress_warnings = [
    "mystnb.unknown_mime_type",  # of widgets and stills, beside which there is HTML or a PNG
    "myst.header",  # a cell may begin with any heading; a notebook is many small documents
    "ref.python",  # a class is documented where it is defined and where it is imported from
]

THEOREMS = {
    number
    for page in sorted((ROOT / "theory").glob("*.md"))
    for number in re.findall(r"^## Theorem (\d+\.\d+)", page.read_text("utf-8"), re.MULTILINE)
}
PAGES = {
    f"{folder}/{page.stem}" for folder in ("docs", "theory") for page in ROOT.glob(f"{folder}/*.md")
}


def link_docstrings(
    app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]
) -> None:
    """Theorems and pages that a docstring names become links."""
    lines[:] = rewritten(lines, THEOREMS, PAGES)


def copy_libraries(app: Sphinx, failure: Exception | None) -> None:
    """MathJax's one file with its fonts, and plotly's, once for all pages."""
    if failure:
        return
    static = Path(app.outdir) / "_static"
    libraries.mathjax(static)
    libraries.plotly(static)


def setup(app: Sphinx) -> None:
    app.connect("build-finished", copy_libraries)
    for field in PyObject.doc_field_types:
        if field.name == "variable":  # as napoleon's list of attributes is called
            field.label = "Attributes"
    # before napoleon, which reads the sections of the docstring
    app.connect("autodoc-process-docstring", link_docstrings, priority=400)
