"""What the draft remarks beside its theorem: which latents come first, residual connections, nonlinearity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, judge


def remarks(tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Three claims, each in every seed."""
    return [
        _lower_first(tables["alignment"]),
        _residual(tables["quadruples"], tables["variants"]),
        _nonlinearity(tables["alignment"], tables["variants"]),
    ]


def _half_rise(alignment: pd.DataFrame, level: str, layer: str) -> pd.Series:
    """Step at which the best correlation has made half of its way to its largest value, by seed."""
    chosen = alignment[
        (alignment["metric"] == "activation") & (alignment["level"] == level) & (alignment["layer"] == layer)
    ]
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
        part = alignment[alignment["latents"] == name]
        lower = _half_rise(part, "lower latents", "hidden 1")
        ratio[name] = _half_rise(part, "upper latents", "hidden 2") / lower.clip(lower=1.0)
    real, null = ratio["true"], ratio["permuted"]
    return judge(
        bool(real.min() > 1 and (real > null).all()),
        id="cdag.lower_first",
        source="JoMA, CDAG: once the lowest layer is learned, the same repeats for higher layers",
        statement="Lower latents are learned in the layer near the input before upper ones in the next.",
        expected="step of half the rise of the upper latents in hidden layer 2 over that of the lower ones "
        "in layer 1 above 1, and above that of permuted latents, in every seed",
        measured=float(real.min()),
        null=float(null.max()),
        null_description="the same of latents permuted over the samples, largest",
        evidence=f"{len(real)} seeds: " + ", ".join(f"{value:.2f}" for value in real),
    )


def _residual(quadruples: pd.DataFrame, variants: pd.DataFrame) -> Claim:
    def met(table: pd.DataFrame) -> pd.Series:
        chosen = table[
            (table["metric"] == "meets the condition") & (table["latents"] == "true") & (table["step"] > 0)
        ]
        return chosen.fillna({"value": 0.0}).groupby(["layer", "seed"])["value"].mean()

    plain, residual = met(quadruples), met(variants[variants["network"] == "residual"])
    gain = residual - plain
    return judge(
        bool((gain > 0).all()),
        id="cdag.residual_helps",
        source="JoMA, CDAG: residual connections make the requirement of Theorem 1 easier to meet",
        statement="With a residual connection more of the quadruples meet the theorem's condition.",
        expected="a larger share, mean over the measured steps, in every layer and seed",
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
        chosen = table[
            (table["metric"] == "activation")
            & (table["latents"] == "true")
            & (table["step"] == step)
            & (table["layer"] == "hidden 2")
            & (table["level"] == "upper latents")
        ]
        return chosen.set_index("seed")["value"]

    last = int(alignment["step"].max())
    linear = variants[variants["network"] == "linear"]
    ends, starts = (best(alignment, step) - best(linear, step) for step in (last, 0))
    return judge(
        bool(ends.min() > 0 and (ends > starts).all()),
        id="cdag.nonlinearity_helps",
        source="JoMA, CDAG: without nonlinearity f_j may not replicate z_alpha",
        statement="Nodes of a network with ReLU come to follow the upper latents more closely than those of "
        "a linear network.",
        expected="best correlation at the end higher, by more than untrained, in every seed",
        measured=float(ends.min()),
        null=float(starts.max()),
        null_description="the same difference of the untrained networks, largest",
        evidence=f"hidden layer 2; ReLU {best(alignment, last).mean():.3f}, linear "
        f"{np.mean(best(linear, last)):.3f}",
    )
