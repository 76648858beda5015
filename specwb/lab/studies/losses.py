"""What Medusa's heads learn, by training budget: the text's token, or the target's distribution.

Medusa's published training takes the cross-entropy of the token that the text has at each place.
Three of four rows of our text are a few tokens of it that the target continued, at temperatures 1,
.7 and 0 in turn, so that there the token is the target's own choice, and at T = 1 a draw from its
distribution. That distribution, which the target's pass over the text computes anyway, says more
about every place. It is learned by its Kullback-Leibler divergence, or by LK
(:mod:`specwb.training.losses`), which turns from that to the overlap as more is accepted. The
target wrote 250,000 tokens; longer trainings read them several times.

Differs from Medusa in all that ``data/recipes/medusa1.toml`` has otherwise than the lab's recipe:
weights of the levels, optimiser and rates; and in the text.
"""

from __future__ import annotations

from specwb.lab.studies.budget import Arm, Comparison

LOSSES = Comparison(
    name="losses",
    title="What Medusa learns",
    head="medusa",
    arms={
        "lk": Arm("LK of the distribution", {"loss": "lk"}),
        "kl": Arm("KL of the distribution", {"loss": "kl"}),
        "token": Arm("the text's token", {"loss": "token"}),
    },
    drafts={"chain of 3": "medusa:tree=1-1-1", "26 nodes": "medusa:nodes=26"},
    common={"heads": 3},
)
STUDY = LOSSES.study()
