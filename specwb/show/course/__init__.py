"""What lessons are made of: questions, drawings, measured figures, self-marking exercises.

```python
from specwb.show import course

course.ask("2.keep")  # a question of lesson 2; its answer opens at the first click
course.measured(shipped, "speedup", measure=mine)  # what was measured in calm, and a button
course.grade("residual", mine)  # right, or the smallest problem that it gets wrong
course.score()  # of the questions so far
```

**Exercises.** A solution is run on all small problems and a few large ones, in exact fractions, and
the answer to a wrong one is the smallest problem that it gets wrong. Distributions are lists of
fractions; a solution may return floats, which are compared to 1e-9. No model takes part. Every
exercise belongs to one of :data:`LESSONS`.

**Drawings** are SVG in the colours of :mod:`specwb.show.palette`, seen on white and on black.
"""

from specwb.show.course import scenes
from specwb.show.course.answers import best, nearest, per_prompt, ratio, with_intervals, within
from specwb.show.course.architectures import architecture
from specwb.show.course.drawing import Drawing, bars, chain, flow, lanes, tree
from specwb.show.course.exercises import EXERCISES, LESSONS, grade, task
from specwb.show.course.grading import Exercise, ExerciseError, Grade
from specwb.show.course.measure import (
    Measured,
    calibration,
    lattices,
    measured,
    paths_kept,
    recording,
    scorer,
    stored,
)
from specwb.show.course.question import Question, Score, ask, questions, score

__all__ = [
    "EXERCISES",
    "LESSONS",
    "Drawing",
    "Exercise",
    "ExerciseError",
    "Grade",
    "Measured",
    "Question",
    "Score",
    "architecture",
    "ask",
    "bars",
    "best",
    "calibration",
    "chain",
    "flow",
    "grade",
    "lanes",
    "lattices",
    "measured",
    "nearest",
    "paths_kept",
    "per_prompt",
    "questions",
    "ratio",
    "recording",
    "scenes",
    "score",
    "scorer",
    "stored",
    "task",
    "tree",
    "with_intervals",
    "within",
]
