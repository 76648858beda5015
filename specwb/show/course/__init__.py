"""The parts of lessons: questions, exercises that mark themselves, shipped measurements.

```python
from specwb.show import course

course.ask("2.keep")  # a question of lesson 2; its answer opens at the first click
course.stored("kangaroo-lab-cpu")  # measurements made on an idle machine
course.grade("residual", mine)  # right, or the smallest problem that it gets wrong
course.score()  # of the questions so far
```

Questions and exercises of a lesson are one file of ``specwb/show/course/questions``; the modules
``question`` and ``exercises`` describe it. A solution is run on small problems in exact fractions,
and the answer to a wrong one is the smallest problem that it gets wrong. Distributions are lists of
fractions; a solution may return floats, which are compared to 1e-9. No model takes part.
"""

from specwb.show.course.answers import best, nearest, per_prompt, ratio, with_intervals, within
from specwb.show.course.examples import calibration, lattices, recording, stored
from specwb.show.course.exercises import ExerciseError, Grade, exercises, grade, task
from specwb.show.course.question import MultipleChoice, QuestionError, ask, questions, score
