"""Sphinx's settings of the site; ``docs/site/make.py`` calls Sphinx with them on staged pages."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import plotly
from sphinx.application import Sphinx

HERE = Path(__file__).parent

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
html_static_path = [str(HERE / "site.css"), str(HERE / "site.js")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
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
suppress_warnings = ["docutils", "ref.python", "mystnb.unknown_mime_type", "myst.header", "autodoc"]


def copy_libraries(app: Sphinx, failure: Exception | None) -> None:
    """MathJax's one file with its fonts, and plotly's, once for all pages."""
    if failure:
        return
    static = Path(app.outdir) / "_static"
    (mathjax,) = find_spec("sphinx-mathjax-offline").submodule_search_locations
    source = Path(mathjax) / "static" / "mathjax"
    fonts = Path("output", "chtml", "fonts", "woff-v2")
    shutil.copytree(source / fonts, static / "mathjax" / fonts, dirs_exist_ok=True)
    shutil.copy(source / "tex-chtml.js", static / "mathjax")
    bundle = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    shutil.copy(bundle, static)


def setup(app: Sphinx) -> None:
    app.connect("build-finished", copy_libraries)
