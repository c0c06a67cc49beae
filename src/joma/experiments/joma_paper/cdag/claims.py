"""The draft's theorem, its corrected condition, and layers near input and loss."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, at_most, below, statements
from joma.core.tables import rows
from joma.experiments.joma_paper.cdag import Cdag
from joma.experiments.joma_paper.cdag.remarks import remarks

ZERO = 1e-9
STATEMENTS = statements(
    {
        "cdag.theorem": "JoMA, CDAG Theorem 1 | In a network, where corr(z_alpha, s_j), corr(z_beta, f_k) "
        "and |corr(z_alpha, z_beta)| are above C > 0, corr(z_beta, g_jk) > 0.",
        "cdag.condition_is_met": "JoMA, CDAG: both cases can validate the condition of Theorem 1 | During "
        "training some quadruples of every layer meet the condition (else the theorem says nothing about "
        "it).",
        "cdag.own_weights": "JoMA, CDAG: w_jk should be a function of time | Under the condition, the "
        "gradient passed with the network's own weight correlates with the latent too, during training.",
        "cdag.near_loss": 'JoMA, CDAG: "closer to the loss function, its C1 should be very high" | The class '
        "correlates more with gradients near the loss than near the input.",
        "cdag.near_input": 'JoMA, CDAG: "closer to the input, its C2 should be very high" | Lower latents '
        "correlate more with activations near the input than near the loss, by learning.",
        "cdag.latents_are_learned": "JoMA Sec. 5, CDAG: nodes come to stand for latents | Training raises "
        "the best correlation of the latents of every level with the nodes of every layer.",
    }
)


def claims(settings: Cdag, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The draft's theorem, its corrected condition, and what it says of layers near input and loss."""
    shares = tables["quadruples"]
    true, permuted = (rows(shares, latents=latents) for latents in ("true", "permuted"))
    fails = rows(true, metric="draft fails")["value"]
    trained = true[true["step"] > 0].groupby(["metric", "layer", "step"])["value"].mean()
    meets, meets_permuted = (
        rows(part[part["step"] > 0], metric="meets the condition")
        .fillna(0.0)
        .groupby(["layer", "seed"])["value"]
        .max()
        for part in (true, permuted)
    )
    least, by_chance = float(meets.min()), float(meets_permuted.max())
    share, everywhere = "largest share along training", "in every layer and seed"
    claims = [
        STATEMENTS["cdag.theorem"].judge(
            at_most(ZERO, fails.max(), of="largest share that meets the hypotheses, not the conclusion,"),
            null=float(rows(permuted, metric="draft fails")["value"].mean()),
            null_description="mean share of latents permuted over the samples",
            evidence=f"largest share that misses it; mean {fails.mean():.3f}. Under the corrected condition "
            "(joma check cdag proves it) none does, which needs no network",
        ),
        STATEMENTS["cdag.condition_is_met"].judge(
            above(0, meets, of=share, across=everywhere)
            & above(by_chance, least, of=share, than="any of permuted latents", across=everywhere),
            null=by_chance,
            null_description="the largest of latents permuted over the samples",
            evidence="largest share along training, smallest of the seeds, "
            + ", ".join(f"from {layer}: {v:.2g}" for layer, v in meets.groupby("layer").min().items())
            + f"; untrained {_first(true, 'meets the condition').min():.2g}",
        ),
    ]
    own = trained["condition fails, own weight"].dropna().groupby("layer").mean()
    statement = STATEMENTS["cdag.own_weights"]
    if own.empty:
        claims.append(statement.not_tested("no quadruple meets the condition during training"))
    else:
        before = _first(true, "condition fails, own weight").dropna()
        claims.append(
            statement.judge(
                below(0.05, own, of="mean share that fails", across="in every layer"),
                null=float(before.max()) if len(before) else None,
                null_description="the same in the untrained network" if len(before) else "",
                evidence="share of those that meet the condition, by layer: "
                + ", ".join(f"from {layer}: {share:.3f}" for layer, share in own.items()),
            )
        )
    return [*claims, *_alignment_claims(tables["alignment"]), *remarks(tables)]


def _first(shares: pd.DataFrame, metric: str) -> pd.Series[float]:
    return rows(shares, step=0, metric=metric).groupby("layer")["value"].mean()


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
    least, most = float(gains.min(axis=None)), float(chance.max(axis=None))
    best, any_permuted, seed = "best correlation in layer", "any of permuted latents", "in every seed"
    of, chance_most = f"{best} 2 less that in 1, mean over steps,", float(chance_loss.max())
    seeds = f"smallest of {len(loss)} seeds"
    return [
        STATEMENTS["cdag.near_loss"].judge(
            above(0, loss, of=of, across=seed)
            & above(chance_most, loss, of=of, than=any_permuted, across=seed),
            null=chance_most,
            null_description="the same of latents permuted over the samples, largest of the seeds",
            evidence=f"{seeds}; it is none of learning: {start_loss.mean():.3f} in the untrained network, "
            f"{_gap(true.loc[last], 'gradient', 'class', 'hidden 2').mean():.3f} at the end",
        ),
        STATEMENTS["cdag.near_input"].judge(
            above(0, near, of=f"{best} 1 less that in 2", across=seed)
            & above(0, learned, of="what training adds", across=seed),
            null=float(start_near.max()),
            null_description="the same difference in the untrained network, largest of the seeds",
            evidence=f"{seeds}; mean {near.mean():.3f}, untrained {start_near.mean():.3f}",
        ),
        STATEMENTS["cdag.latents_are_learned"].judge(
            above(most, least, of="least gain over the untrained network", than=any_permuted),
            null=most,
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
