"""What a method's step takes on a machine that is not at hand, from shapes and a machine card.

    shapes (config.json)  ->  a step's products, attentions and small kernels   (steps, work)
    a card's ranges       ->  time of every part, captured or eager             (cards, forecast)
    acceptance            ->  tokens a step, speedup                             (forecast)
    published rows        ->  the error of each, and with it every interval      (ledger)

None of these measures this machine (``calibrate``, ``head_cost``, ``passes`` and ``tune`` do), and
no card has been fitted to a published row.
"""

from specwb.cost.cards import card
from specwb.cost.forecast import Forecast, seconds
from specwb.cost.ledger import forecast, forecast_of
from specwb.cost.shapes import PredictionError, Shape, shape
from specwb.cost.steps import Step, step
from specwb.cost.work import Setting

__all__ = ["Forecast", "PredictionError", "Setting", "Shape", "Step"]
__all__ += ["card", "forecast", "forecast_of", "seconds", "shape", "step"]
