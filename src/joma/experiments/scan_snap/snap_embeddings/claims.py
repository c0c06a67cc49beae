"""What the reparametrisation keeps, and what it hides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from scipy.stats import spearmanr

from joma.core.claim import Claim, Statement, above, below, equal, statements, within_error
from joma.core.tables import rows
from joma.experiments.scan_snap.snap_embeddings import FREE, NULL, ONE_MATRIX, SnapEmbeddings

STATEMENTS = statements(
    {
        "snap_embeddings.exact": "Scan&Snap, reparametrisation | For fixed orthonormal embeddings and one "
        "matrix in place of W_Q W_K', training Y and Z is the same as training the weights.",
        "snap_embeddings.independent": "Scan&Snap, reparametrisation (independent variables Y and Z) | With "
        "W_Q and W_K, too, only attention between tokens seen together is trained.",
        "snap_embeddings.distinct_rise": "Scan&Snap Thm 2a, with embeddings | Every distinct token's logit "
        "rises, in the ordinary parametrisation too.",
        "snap_embeddings.distinct_gain": "Scan&Snap Thm 2, with embeddings | Every distinct token gains on "
        "the common token, in the ordinary parametrisation too.",
        "snap_embeddings.common_falls": "Scan&Snap Thm 2b, with embeddings | The common token's logit falls, "
        "in the ordinary parametrisation too.",
        "snap_embeddings.graded": "Scan&Snap, winners-emergence (c), with embeddings | z_ml grows faster "
        "with larger P(l|m,n), in the ordinary parametrisation too.",
    },
    exact=("snap_embeddings.exact",),
)


def claims(settings: SnapEmbeddings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What the reparametrisation keeps, and what it hides."""
    course, tokens = (rows(table, data="real") for table in (tables["course"], tables["tokens"]))
    factored = tables["tokens"][~tables["tokens"]["model"].isin([FREE, ONE_MATRIX])]
    real, null = (rows(factored, data=data).reset_index(drop=True) for data in ("real", NULL))
    return [
        _exact(tokens),
        _independent(course),
        _share(_rises, real, null, STATEMENTS["snap_embeddings.distinct_rise"], "whose logit z rises"),
        _share(_gains, real, null, STATEMENTS["snap_embeddings.distinct_gain"], "whose z - z_common rises"),
        _share(_falls, real, null, STATEMENTS["snap_embeddings.common_falls"], "whose logit z falls"),
        _judge_order(real, null),
    ]


def _exact(tokens: pd.DataFrame) -> Claim:
    free = rows(tokens, model=FREE).set_index(["next_token", "token"])["value"]
    fixed = rows(tokens, model=ONE_MATRIX)
    keys = list(zip(fixed["next_token"], fixed["token"], strict=True))
    error = (fixed["value"].to_numpy() - free.loc[keys].to_numpy()).__abs__().max()
    other = rows(tokens, model="fixed U, W_Q W_K")
    keys = list(zip(other["next_token"], other["token"], strict=True))
    with_two = (other["value"].to_numpy() - free.loc[keys].to_numpy()).__abs__().max()
    return STATEMENTS["snap_embeddings.exact"].judge(
        within_error(1e-9, error),
        evidence=f"largest difference of any logit z at the end; the logits moved by up to "
        f"{free.abs().max():.2f} nats",
        null=float(with_two),
        null_description="the same with W_Q and W_K apart",
    )


def _independent(course: pd.DataFrame) -> Claim:
    end = course[course["time"] == course["time"].max()]
    shares = rows(end, metric=["other rows", "unseen tokens"])
    by_model = shares.groupby(["model", "metric"])["value"].mean().unstack("metric")
    embedded = by_model.drop(index=[FREE, ONE_MATRIX])
    listed = "; ".join(
        f"{model}: {row['other rows']:.2f} and {row['unseen tokens']:.2f}"
        for model, row in embedded.iterrows()
    )
    return STATEMENTS["snap_embeddings.independent"].judge(
        below(
            0.01,
            embedded.to_numpy().max(),
            of="share of Z's squared change in other rows or on unseen tokens",
        ),
        null=float(by_model.loc[FREE].max()),
        null_description="free Y and Z",
        evidence=f"shares in other rows and on unseen tokens, mean over seeds: {listed}",
    )


def _share(
    hits: Callable[[pd.DataFrame], pd.Series],
    real: pd.DataFrame,
    null: pd.DataFrame,
    statement: Statement,
    change: str,
) -> Claim:
    """All tokens are hits, and not all are where there is nothing to predict."""
    hit, by_chance = hits(real), float(hits(null).mean())
    by_model = hit.groupby(real["model"]).mean()
    return statement.judge(
        equal(1, hit.mean(), of=f"share of the tokens {change}")
        & below(1, by_chance, of="share in the null"),
        null=by_chance,
        null_description="the same share where the context says nothing of the next token",
        evidence=f"share of {len(hit)}: "
        + "; ".join(f"{model} {share:.2f}" for model, share in by_model.items()),
    )


def _rises(tokens: pd.DataFrame) -> pd.Series:
    return rows(tokens, kind="distinct")["value"] > 0


def _falls(tokens: pd.DataFrame) -> pd.Series:
    return rows(tokens, kind="common")["value"] < 0


def _gains(tokens: pd.DataFrame) -> pd.Series:
    """Distinct above common: blind to a constant on a row of Z, which attention does not see."""
    keys = ["model", "seed", "next_token"]
    common = rows(tokens, kind="common").groupby(keys)["value"].max().rename("common")
    distinct = rows(tokens, kind="distinct").join(common, on=keys)
    return distinct["value"] > distinct["common"]


def _judge_order(real: pd.DataFrame, null: pd.DataFrame) -> Claim:
    def correlations(tokens: pd.DataFrame) -> pd.Series:
        """By model, the mean over seeds and classes."""
        distinct = rows(tokens, kind="distinct")
        groups = distinct.groupby(["model", "seed", "next_token"])
        each = groups[["value", "probability"]].apply(
            lambda t: spearmanr(t["value"], t["probability"]).statistic
        )
        return each.groupby("model").mean()

    means, by_chance = correlations(real), correlations(null)
    of = "mean rank correlation of the change of z with P(l|n)"
    return STATEMENTS["snap_embeddings.graded"].judge(
        above(0.9, means, of=of, across="in every model")
        & above(by_chance.min(), means, of=of, than="the null", across="in every model"),
        null=by_chance.min(),
        null_description="the least of the models where the context says nothing of the next token",
        evidence="; ".join(f"{model} {value:.2f}" for model, value in means.items()),
    )
