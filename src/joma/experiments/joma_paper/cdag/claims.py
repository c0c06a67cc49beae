"""The draft's theorem, its corrected condition, and layers near input and loss."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Facts, judge, not_tested
from joma.experiments.joma_paper.cdag import Cdag
from joma.experiments.joma_paper.cdag.remarks import remarks

ZERO = 1e-9


def claims(settings: Cdag, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The draft's theorem, its corrected condition, and what it says of layers near input and loss."""
    shares = tables["quadruples"]
    true, permuted = (shares[shares["latents"] == latents] for latents in ("true", "permuted"))
    fails = true[true["metric"] == "draft fails"]["value"]
    trained = true[true["step"] > 0].groupby(["metric", "layer", "step"])["value"].mean()
    meets, meets_permuted = (
        part[(part["metric"] == "meets the condition") & (part["step"] > 0)]
        .fillna(0.0)
        .groupby(["layer", "seed"])["value"]
        .max()
        for part in (true, permuted)
    )
    claims = [
        judge(
            bool(fails.max() <= ZERO),
            id="cdag.theorem",
            source="JoMA, CDAG Theorem 1",
            statement="In a network, where corr(z_alpha, s_j), corr(z_beta, f_k) and |corr(z_alpha, z_beta)| "
            "are above C > 0, corr(z_beta, g_jk) > 0.",
            expected="no quadruple that meets the hypotheses misses the conclusion, at any step, in any "
            "layer and seed",
            measured=float(fails.max()),
            tolerance=ZERO,
            null=float(permuted[permuted["metric"] == "draft fails"]["value"].mean()),
            null_description="mean share of latents permuted over the samples",
            evidence=f"largest share that misses it; mean {fails.mean():.3f}. Under the corrected condition "
            "(joma check cdag proves it) none does, which needs no network",
        ),
        judge(
            bool((meets > 0).all() and meets.min() > meets_permuted.max()),
            id="cdag.condition_is_met",
            source="JoMA, CDAG: both cases can validate the condition of Theorem 1",
            statement="During training some quadruples of every layer meet the condition "
            "(else the theorem says nothing about it).",
            expected="a share above that of permuted latents of those that meet the hypotheses, in every "
            "layer and seed, at some step",
            measured=float(meets.min()),
            tolerance=0.0,
            null=float(meets_permuted.max()),
            null_description="the largest of latents permuted over the samples",
            evidence="largest share along training, smallest of the seeds, "
            + ", ".join(f"from {layer}: {v:.2g}" for layer, v in meets.groupby("layer").min().items())
            + f"; untrained {_first(true, 'meets the condition').min():.2g}",
        ),
    ]
    own = trained["condition fails, own weight"].dropna().groupby("layer").mean()
    facts: Facts = {
        "id": "cdag.own_weights",
        "source": "JoMA, CDAG: w_jk should be a function of time",
        "statement": "Under the condition, the gradient passed with the network's own weight correlates "
        "with the latent too, during training.",
    }
    if own.empty:
        claims.append(not_tested(**facts, reason="no quadruple meets the condition during training"))
    else:
        before = _first(true, "condition fails, own weight").dropna()
        claims.append(
            judge(
                bool(own.max() < 0.05),
                **facts,
                expected="fewer than one in twenty fail, mean over the measured steps",
                measured=float(own.max()),
                tolerance=0.05,
                null=float(before.max()) if len(before) else None,
                null_description="the same in the untrained network" if len(before) else "",
                evidence="share of those that meet the condition, by layer: "
                + ", ".join(f"from {layer}: {share:.3f}" for layer, share in own.items()),
            )
        )
    return [*claims, *_alignment_claims(tables["alignment"]), *remarks(tables)]


def _first(shares: pd.DataFrame, metric: str) -> pd.Series[float]:
    chosen = shares[(shares["step"] == 0) & (shares["metric"] == metric)]
    return chosen.groupby("layer")["value"].mean()


def _alignment_claims(alignment: pd.DataFrame) -> list[Claim]:
    """What the draft says around its theorem, along training and at its end, against the first step."""
    by_seed = alignment.pivot_table(
        index=["latents", "step", "metric", "layer", "level"], columns="seed", values="value"
    )
    true, permuted = by_seed.loc["true"], by_seed.loc["permuted"]
    last = alignment["step"].max()
    along, by_chance = (
        t.loc[1:].groupby(level=["metric", "layer", "level"]).mean() for t in (true, permuted)
    )
    loss, start_loss, chance_loss = (
        _gap(t, "gradient", "class", "hidden 2") for t in (along, true.loc[0], by_chance)
    )
    near, start_near = (_gap(true.loc[s], "activation", "lower latents", "hidden 1") for s in (last, 0))
    gains, chance = (t.loc[last].loc["activation"] - t.loc[0].loc["activation"] for t in (true, permuted))
    learned = near - start_near
    seeds = f"smallest of {len(loss)} seeds"
    return [
        judge(
            bool(loss.min() > max(0.0, chance_loss.max())),
            id="cdag.near_loss",
            source='JoMA, CDAG: "closer to the loss function, its C1 should be very high"',
            statement="The class correlates more with gradients near the loss than near the input.",
            expected="best correlation in hidden layer 2 above that in hidden layer 1, mean over the steps, "
            "in every seed by more than that of any permuted latents",
            measured=float(loss.min()),
            tolerance=0.0,
            null=float(chance_loss.max()),
            null_description="the same of latents permuted over the samples, largest of the seeds",
            evidence=f"{seeds}; it is none of learning: {start_loss.mean():.3f} in the untrained network, "
            f"{_gap(true.loc[last], 'gradient', 'class', 'hidden 2').mean():.3f} at the end",
        ),
        judge(
            bool(near.min() > 0 and learned.min() > 0),
            id="cdag.near_input",
            source='JoMA, CDAG: "closer to the input, its C2 should be very high"',
            statement="Lower latents correlate more with activations near the input than near the loss, "
            "by learning.",
            expected="best correlation in hidden layer 1 above that in layer 2, by more than untrained, in "
            "every seed",
            measured=float(near.min()),
            tolerance=0.0,
            null=float(start_near.max()),
            null_description="the same difference in the untrained network, largest of the seeds",
            evidence=f"{seeds}; mean {near.mean():.3f}, untrained {start_near.mean():.3f}",
        ),
        judge(
            bool(gains.min(axis=None) > chance.max(axis=None)),
            id="cdag.latents_are_learned",
            source="JoMA Sec. 5, CDAG: nodes come to stand for latents",
            statement="Training raises the best correlation of the latents of every level with the nodes of "
            "every layer.",
            expected="a gain over the untrained network above that of any permuted latents, for every level, "
            "layer and seed",
            measured=float(gains.min(axis=None)),
            tolerance=0.0,
            null=float(chance.max(axis=None)),
            null_description="largest gain of latents permuted over the samples",
            evidence="smallest of the seeds: "
            + "; ".join(f"{layer}, {level}: {v:+.3f}" for (layer, level), v in gains.min(axis=1).items()),
        ),
    ]


def _gap(table: pd.DataFrame, metric: str, level: str, above: str) -> pd.Series[float]:
    """How much more a level correlates with layer ``above`` than with the other hidden layer, by seed."""
    other = "hidden 1" if above == "hidden 2" else "hidden 2"
    difference: pd.Series[float] = table.loc[(metric, above, level)] - table.loc[(metric, other, level)]
    return difference
