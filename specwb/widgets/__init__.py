"""Views for notebooks: what is shown comes from the library, a widget only chooses what to show."""

from specwb.extras import require

require("specwb.widgets", "notebooks", "plotly", "ipywidgets", "anywidget")

from specwb.widgets.acceptance import AcceptanceExplorer, SpeedExplorer
from specwb.widgets.designer import TreeDesigner
from specwb.widgets.dials import Dials
from specwb.widgets.diffuspec import LatticeExplorer, LengthExplorer
from specwb.widgets.display import show
from specwb.widgets.falcon import BlockDesigner, BlockExplorer, DependenceExplorer, GlancingExplorer
from specwb.widgets.kangaroo import StopExplorer
from specwb.widgets.mcsd_ti import MaskExplorer, RootsExplorer
from specwb.widgets.microscope import Microscope
from specwb.widgets.rules import RulesExplorer

__all__ = [
    "AcceptanceExplorer",
    "BlockDesigner",
    "BlockExplorer",
    "DependenceExplorer",
    "Dials",
    "GlancingExplorer",
    "LatticeExplorer",
    "LengthExplorer",
    "MaskExplorer",
    "Microscope",
    "RootsExplorer",
    "RulesExplorer",
    "SpeedExplorer",
    "StopExplorer",
    "TreeDesigner",
    "show",
]
