"""Whether CSGD's gain lasts: Falcon's head with and without it, by training budget.

The head is that of :data:`specwb.lab.studies.falcon.FIRST`, trained by our objective and by the
published one. The paper has one such comparison, of another budget (its table 4).
"""

from __future__ import annotations

from specwb.lab.studies.budget import Arm, Comparison
from specwb.lab.studies.falcon import CHAIN4, FIRST

PUBLISHED = {"unroll": 1, "regression": 10, "noise": 0.1, "count_glanced": 1, "loss": "kl"}
"""The objective of paper and code: KL divergence, one pass, features' regression at ten times our
weight, noise on the features, and the predictions of replaced pairs counted. Text, optimiser and
rates are the same for both; what else differs from the code is in
:class:`specwb.training.falcon.FalconRecipe`."""
CSGD = Comparison(
    name="csgd",
    title="CSGD",
    head="falcon",
    arms={"csgd": Arm("CSGD"), "plain": Arm("no CSGD", {"glance": 0})},
    drafts={"chain of 4": f"falcon:{CHAIN4}", "26 nodes": "falcon:nodes=26"},
    common=FIRST,
    objectives={"": Arm(""), "-paper": Arm("the published objective", PUBLISHED)},
)
STUDY = CSGD.study()
