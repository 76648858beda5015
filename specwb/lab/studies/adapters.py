"""Kangaroo's adapters, by training budget: parts of the adapter, and the exit that it stands at.

The paper compares adapters by speed after one training (a table), exits also by tokens (a figure).
Here draft tokens are counted, of a chain that never stops early: a better adapter has more of them
accepted, whatever its passes cost. Attention and a whole layer begin as the target's own layer
behind the exit; an MLP, which is no part of one, begins at random but for its norm. Exits are in
twelfths of the target's layers; where none is named, it is 3.
"""

from __future__ import annotations

from specwb.lab.studies.budget import Arm, Comparison
from specwb.lab.studies.kangaroo.cells import PARTS

ADAPTERS = Comparison(
    name="adapters",
    title="Kangaroo's adapters",
    head="kangaroo",
    arms={
        "own_head": Arm("own head", {"own_head": 1}),
        "layer": Arm("layer", {"adapter": "layer"}),
        "mlp": Arm("MLP", {"adapter": "mlp"}),
        "exit1": Arm("exit 1", {"exit": f"1/{PARTS}"}),
        "exit6": Arm("exit 6", {"exit": f"6/{PARTS}"}),
        "attention": Arm("attention at 3"),
    },
    drafts={"chain of 6": "kangaroo:gamma=6,eta=0"},
    common={"exit": f"3/{PARTS}"},
)
STUDY = ADAPTERS.study()
