"""Views for notebooks: what is shown comes from the library, a widget only chooses what to show."""

from specwb.widgets.display import show
from specwb.widgets.explorer import RoundExplorer

__all__ = ["RoundExplorer", "show"]
