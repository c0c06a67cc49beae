"""The numbers that JoMA prints in Table 1: mean and deviation over 5 seeds."""

from __future__ import annotations

import pandas as pd

# (C, N_ch, N_0, N_1): NCorr at s = 0, its deviation, NCorr at s = 1, its deviation.
PRINTED = {
    (20, 2, 10, 20): (0.99, 0.01, 0.81, 0.05),
    (20, 2, 20, 30): (0.97, 0.02, 0.80, 0.05),
    (20, 3, 10, 20): (1.00, 0.00, 0.69, 0.05),
    (20, 3, 20, 30): (0.96, 0.02, 0.68, 0.04),
    (30, 2, 10, 20): (0.99, 0.01, 0.73, 0.08),
    (30, 2, 20, 30): (0.94, 0.04, 0.74, 0.03),
    (30, 3, 10, 20): (0.99, 0.01, 0.72, 0.04),
    (30, 3, 20, 30): (0.95, 0.03, 0.66, 0.02),
    (50, 2, 10, 20): (0.99, 0.01, 0.58, 0.02),
    (50, 2, 20, 30): (0.95, 0.03, 0.55, 0.01),
    (50, 3, 10, 20): (0.99, 0.01, 0.64, 0.02),
    (50, 3, 20, 30): (0.95, 0.03, 0.61, 0.04),
}


def paper_table() -> pd.DataFrame:
    """Tidy: columns ``classes, children, latents_s0, latents_s1, layer, value, deviation``."""
    rows = [
        (*cell, layer, numbers[2 * layer], numbers[2 * layer + 1])
        for layer in (0, 1)
        for cell, numbers in PRINTED.items()
    ]
    cell_columns = ["classes", "children", "latents_s0", "latents_s1"]
    return pd.DataFrame(rows, columns=[*cell_columns, "layer", "value", "deviation"])
