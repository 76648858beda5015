"""One visual vocabulary for all figures, widgets and pages: what is the target's, what is the
draft's, and what became of a draft token.

The colours are Okabe and Ito's, which are told apart without colour vision, and none carries a
meaning alone: line dashes, hatching, marker shapes or signs say the same. They are seen on white
and on black.
"""

from __future__ import annotations

TARGET = "#0072B2"  # blue: p, and the bonus token, which the target writes
DRAFT = "#E69F00"  # orange: q, and draft tokens that nobody has judged yet
ACCEPTED = "#009E73"  # green: draft tokens that stay
REJECTED = "#D55E00"  # vermilion: draft tokens that do not
RESIDUAL = "#CC79A7"  # purple: what rejections leave of p
OTHER = "#8C8C8C"  # grey: all the rest

VOCABULARY = {
    "target": TARGET,
    "draft": DRAFT,
    "accepted": ACCEPTED,
    "rejected": REJECTED,
    "residual": RESIDUAL,
    "other": OTHER,
}
"""Name -> colour, as the microscope takes it."""
