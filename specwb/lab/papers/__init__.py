"""What the papers claim, measured here.

``data/papers/NAME.toml`` says what a paper claims and what is measured for it, as tables that
:mod:`specwb.lab.papers.paper` reads. :mod:`specwb.lab.papers.run` measures its cells into a file of
results, :mod:`specwb.lab.papers.judge` holds each claim against them, and
:mod:`specwb.show.ledger` puts all claims on one page.
"""

from specwb import modules_of

NAMES = ("mcsd", "mcsd_ti", "falcon", "kangaroo", "diffuspec", "easyspec")
"""The papers, by their names in ``data/papers``."""
OTHERS = ("acceptance", "csgd", "hass", "adapters", "losses")
"""Comparisons of ours that are described in the same form."""
FAMILIES = ("lab", "smol")
"""Families of models that results are shipped of."""

__getattr__ = modules_of(__name__)
