"""Curves, the test of Eq. 58 and the search for critical points, law by law."""

from __future__ import annotations

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.joma_paper.fig9 import Fig9
from joma.experiments.joma_paper.fig9.laws import laws
from joma.theory.critical_points import G, equation_58, find_critical_points, partner


def run(settings: Fig9, progress: Progress) -> dict[str, pd.DataFrame]:
    """Curves, the test of Eq. 58 and the search, law by law."""
    y = np.linspace(0.0, 1.0, settings.points + 2)[1:-1]
    curves, rows, pairs = [], [], []
    for law in progress.track(laws(settings), "fig9"):
        rho = law.theta_1_inverse(y)
        g = G(law, y)
        curves.append(pd.DataFrame({"run": law.name, "y": y, "rho": rho, "G": g, "H": g / y}))
        search = find_critical_points(law, settings.distance)
        h = law.mean_excess(np.linspace(max(-40.0, -0.999 * law.support), 10.0, 2001))
        slope = np.sign(np.where(np.abs(np.diff(h)) < 1e-12 * h[1:], 0.0, np.diff(h)))
        numbers = {
            "theta_2(0) p(0)": equation_58(law),
            "log-concave": float(bool(law.log_concave)),
            "critical points": float(len(search.points)),
            "continuum of critical points": float(search.continuum is not None),
            "least rise of ln H": search.least_rise,
            "turns of H": float(np.count_nonzero(np.diff(slope[slope != 0]))),
        }
        rows += [{"run": law.name, "metric": m, "value": v} for m, v in numbers.items()]
        for rho_minus in (-0.5, -1.0, -2.0, -4.0) if not law.log_concave else ():
            pair = partner(law, rho_minus)
            if pair is not None:
                quotient = float(law.F(pair.rho_plus) / law.F(rho_minus))
                pairs.append(
                    {
                        "run": law.name,
                        "rho_minus": rho_minus,
                        "rho_plus": pair.rho_plus,
                        "metric": "a_-/a_+",
                        "value": pair.amplitude_ratio,
                        "residual": abs(quotient / pair.amplitude_ratio - 1),
                    }
                )
    wide = pd.concat(curves, ignore_index=True)
    curve = wide.melt(["run", "y", "rho"], ["G", "H"], var_name="metric", value_name="value")
    columns = ["run", "rho_minus", "rho_plus", "metric", "value", "residual"]
    return {"curve": curve, "laws": pd.DataFrame(rows), "pairs": pd.DataFrame(pairs, columns=columns)}
