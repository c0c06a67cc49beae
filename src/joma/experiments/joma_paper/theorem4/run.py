"""Every flow integrated, and exp attention solved exactly for Lambda."""

from __future__ import annotations

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.joma_paper.theorem4 import Theorem4
from joma.experiments.joma_paper.theorem4.laws import kinds
from joma.theory.salience import convergence_ratio, needed_convergence, needed_convergence_printed


def run(settings: Theorem4, progress: Progress) -> dict[str, pd.DataFrame]:
    """Integrate every flow; solve exp attention exactly for Lambda."""
    times = np.geomspace(0.05, settings.longest, 80)
    rows, limits = [], []
    for name, kind in progress.track(kinds(settings).items(), "theorem4"):
        reached = kind.log_inverse_delta(times)
        for component in range(len(settings.critical_points) - 1):
            ratio = reached[:, component] / reached[:, -1]
            gain = reached[-1] - reached[-8]
            rows.append(
                pd.DataFrame(
                    {
                        "run": name,
                        "step": times,
                        "component": component,
                        "metric": "ratio of ln 1/delta",
                        "value": ratio,
                        "log_inverse_delta_k": reached[:, -1],
                    }
                )
            )
            law = kind.law(component)
            speed = float(gain[component] / gain[-1])
            numbers = {"law": law, "ratio of speeds": speed, "relative error": abs(speed / law - 1)}
            limits += [
                {"run": name, "component": component, "metric": m, "value": v} for m, v in numbers.items()
            ]
    return {
        "ratio": pd.concat(rows, ignore_index=True),
        "limits": pd.DataFrame(limits),
        "deviation": deviation(settings),
    }


def deviation(settings: Theorem4) -> pd.DataFrame:
    """Lambda and lambda of the most salient component, and how far each condition is met."""
    j, k = settings.critical_points[0], settings.critical_points[-1]
    reached = np.geomspace(0.02, 1e5, 120)
    ratio, deviation, bounded = convergence_ratio(j, k, reached)
    needed = float(needed_convergence(k))
    table = pd.DataFrame(
        {
            "log_inverse_delta_k": reached,
            "ratio": ratio,
            "Lambda": deviation,
            "lambda": bounded,
            "bound on Lambda": needed / reached,
            "times the printed condition": reached / float(needed_convergence_printed(k)),
            "times the corrected condition": reached / needed,
        }
    )
    return table.melt("log_inverse_delta_k", var_name="metric", value_name="value").assign(run="exp")
