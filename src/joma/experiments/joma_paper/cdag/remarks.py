"""What the draft remarks beside its theorem: which latents come first, residual connections, nonlinearity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, above, statements
from joma.core.tables import rows

STATEMENTS = statements(
    {
        "cdag.lower_first": "JoMA, CDAG: once the lowest layer is learned, the same repeats for higher "
        "layers | Lower latents are learned in the layer near the input before upper ones in the next.",
        "cdag.residual_helps": "JoMA, CDAG: residual connections make the requirement of Theorem 1 easier to "
        "meet | With a residual connection more of the quadruples meet the theorem's condition.",
        "cdag.nonlinearity_helps": "JoMA, CDAG: without nonlinearity f_j may not replicate z_alpha | Nodes "
        "of a network with ReLU come to follow the upper latents more closely than those of a linear "
        "network.",
    }
)


def remarks(tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Three claims, each in every seed."""
    return [
        _lower_first(tables["alignment"]),
        _residual(tables["quadruples"], tables["variants"]),
        _nonlinearity(tables["alignment"], tables["variants"]),
    ]


def _half_rise(alignment: pd.DataFrame, level: str, layer: str) -> pd.Series:
    """Step at which the best correlation has made half of its way to its largest value, by seed."""
    chosen = rows(alignment, metric="activation", level=level, layer=layer)
    found = {}
    for seed, curve in chosen.sort_values("step").groupby("seed"):
        value, step = curve["value"].to_numpy(), curve["step"].to_numpy(dtype=float)
        half = 0.5 * (value[0] + value.max())
        after = int((value >= half).argmax())
        if after:
            share = (half - value[after - 1]) / (value[after] - value[after - 1])
            found[seed] = float(step[after - 1] + share * (step[after] - step[after - 1]))
        else:
            found[seed] = 0.0
    return pd.Series(found)


def _lower_first(alignment: pd.DataFrame) -> Claim:
    ratio = {}
    for name in ("true", "permuted"):
        part = rows(alignment, latents=name)
        lower = _half_rise(part, "lower latents", "hidden 1")
        ratio[name] = _half_rise(part, "upper latents", "hidden 2") / lower.clip(lower=1.0)
    real, null = ratio["true"], ratio["permuted"]
    of = "half-rise step of upper latents in layer 2 over that of lower ones in layer 1"
    return STATEMENTS["cdag.lower_first"].judge(
        above(1, real, of=of, across="in every seed")
        & above(null, real, of=of, than="that of permuted latents", across="in every seed"),
        null=float(null.max()),
        null_description="the same of latents permuted over the samples, largest",
        evidence=f"{len(real)} seeds: " + ", ".join(f"{value:.2f}" for value in real),
    )


def _residual(quadruples: pd.DataFrame, variants: pd.DataFrame) -> Claim:
    def share_met(table: pd.DataFrame) -> pd.Series:
        chosen = rows(table[table["step"] > 0], metric="meets the condition", latents="true")
        return chosen.fillna({"value": 0.0}).groupby(["layer", "seed"])["value"].mean()

    plain, residual = share_met(quadruples), share_met(rows(variants, network="residual"))
    gain = residual - plain
    return STATEMENTS["cdag.residual_helps"].judge(
        above(
            0,
            gain,
            of="mean share over the measured steps less that without a residual connection",
            across="in every layer and seed",
        ),
        measured=float(residual.min()),
        null=float(plain.max()),
        null_description="without residual connection, largest",
        evidence="mean over seeds, with (without): "
        + ", ".join(
            f"from {layer}: {value:.2g} ({plain[layer].mean():.2g})"
            for layer, value in residual.groupby("layer").mean().items()
        ),
    )


def _nonlinearity(alignment: pd.DataFrame, variants: pd.DataFrame) -> Claim:
    def best(table: pd.DataFrame, step: int) -> pd.Series:
        hidden = rows(table, metric="activation", latents="true", layer="hidden 2", level="upper latents")
        return rows(hidden, step=step).set_index("seed")["value"]

    last = int(alignment["step"].max())
    linear = rows(variants, network="linear")
    ends, starts = (best(alignment, step) - best(linear, step) for step in (last, 0))
    of = "best correlation at the end less that of the linear network"
    return STATEMENTS["cdag.nonlinearity_helps"].judge(
        above(0, ends, of=of, across="in every seed")
        & above(starts, ends, of=of, than="that of the untrained networks", across="in every seed"),
        null=float(starts.max()),
        null_description="the same difference of the untrained networks, largest",
        evidence=f"hidden layer 2; ReLU {best(alignment, last).mean():.3f}, linear "
        f"{np.mean(best(linear, last)):.3f}",
    )
