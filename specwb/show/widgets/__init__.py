"""Views for notebooks: what is shown comes from the library, a widget only chooses what to show."""

from specwb.core.extras import require

require("specwb.show.widgets", "notebooks", "plotly", "ipywidgets", "anywidget")

from specwb.show.widgets.acceptance import AcceptanceExplorer, BatchExplorer, SpeedExplorer
from specwb.show.widgets.designer import TreeDesigner
from specwb.show.widgets.dials import Dials
from specwb.show.widgets.diffuspec import LatticeExplorer, LengthExplorer
from specwb.show.widgets.display import show
from specwb.show.widgets.easyspec import FuzzyExplorer
from specwb.show.widgets.falcon import BlockDesigner, DependenceExplorer
from specwb.show.widgets.kangaroo import StopExplorer
from specwb.show.widgets.mcsd_ti import RootsExplorer
from specwb.show.widgets.microscope import Microscope
from specwb.show.widgets.rules import RulesExplorer
