"""Do several runs rise again together? Some curves choose where to look, the others tell what is there.

Each curve in turn chooses a pair of places: its own lowest point and the highest one after it. The other
curves' rises between the two are then independent, of one law, and without a rise in the common trend
their mean is at most zero, whatever the noise within a curve: white, slow, or a random walk, growing or
shrinking along training. Student's t tests that (the rises are taken for normal). The choosers' p-values
depend on each other; twice their median is a p-value all the same (Meinshausen, Meier, Buehlmann,
"p-Values for High-Dimensional Regression", JASA 104 (2009), Thm 3.1 with gamma 1/2).
"""

from __future__ import annotations

import numpy as np
from scipy.stats import t as student

from joma.core.arguments import Array
from joma.measures.bounce.slow_noise import LEVEL, Chance


def rise_together(levels: Array) -> Chance:
    """How likely noise alone lets the smoothed curves (runs, points), at least 3, rise so far.

    ``likely`` is the median itself, which holds its level where the choosers disagree as in the
    simulated table; ``null`` the mean rise from which ``probability`` would be below 0.05.
    """
    probabilities, needed = [], []
    for chooser in range(len(levels)):
        low = int(np.argmin(levels[chooser]))
        high = low + int(np.argmax(levels[chooser, low:]))
        others = np.delete(levels, chooser, axis=0)
        rises = others[:, high] - others[:, low]
        freedom = rises.size - 1
        error = float(rises.std(ddof=1)) / np.sqrt(rises.size)
        needed.append(float(student.isf(LEVEL / 2, freedom)) * error)
        mean = float(rises.mean())
        if error > 0:
            probabilities.append(float(student.sf(mean / error, freedom)))
        else:
            # Rises that agree exactly have no spread to judge by; that all are upward has this probability.
            probabilities.append(0.5**rises.size if mean > 0 else 1.0)
    median = float(np.median(probabilities))
    return Chance(min(1.0, 2 * median), median, float(np.median(needed)))
