"""What the papers claim, measured here.

Every paper has one :class:`specwb.lab.studies.study.Study`, which says what is decoded, what is
claimed and what is printed, as data. :mod:`specwb.lab.studies.run` measures it,
:mod:`specwb.lab.studies.verdicts` judges it by one stated rule, :mod:`specwb.lab.studies.store`
keeps it, and :mod:`specwb.show.ledger` puts all papers on one page.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specwb.lab.studies.study import Study

PLACES = {
    "mcsd": "mcsd",
    "mcsd_ti": "mcsd_ti.study",
    "falcon": "falcon",
    "kangaroo": "kangaroo.study",
    "diffuspec": "diffuspec.study",
    "easyspec": "easyspec.study",
}
"""Name of a paper here -> the module with its ``STUDY``."""
OTHERS = ("acceptance", "csgd", "hass", "adapters", "losses")
"""Studies that are no paper's, which have modules of the same names."""


def study_of(name: str) -> Study:
    """Return the study of a paper, or of :data:`OTHERS`."""
    place = name if name in OTHERS else PLACES[name]
    return import_module(f"specwb.lab.studies.{place}").STUDY
