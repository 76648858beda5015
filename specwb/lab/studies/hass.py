"""EAGLE's head trained on its own states (HASS) and on the target's alone, by training budget.

HASS (Zhang et al. 2408.15766) runs the head three times over a text, the second and third time on
the states that it computed itself, as it does when it drafts; EAGLE's training has the first pass
alone. Equal steps leave out that a step has three passes of the head in place of one.

Differs from HASS in all that ``data/recipes/hass.toml`` has otherwise than the lab's recipe: loss,
weights of the levels (.8 for each further one) and of the regression, no noise, optimiser and
rates; in states that are fed back with their gradient; in one stage, without a loss on the ten most
probable tokens; and in the text.
"""

from __future__ import annotations

from specwb.lab.studies.budget import Arm, Comparison
from specwb.lab.studies.falcon import CHAIN4

HASS = Comparison(
    name="hass",
    title="Training on own states (HASS)",
    head="eagle",
    arms={"hass": Arm("HASS", {"unroll": 3}), "plain": Arm("EAGLE", {"unroll": 1})},
    drafts={"chain of 4": f"eagle:{CHAIN4}", "26 nodes": "eagle:nodes=26"},
)
STUDY = HASS.study()
