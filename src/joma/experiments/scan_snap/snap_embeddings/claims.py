"""What the reparametrisation keeps, and what it hides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from scipy.stats import spearmanr

from joma.core.claim import Claim, judge, within
from joma.experiments.scan_snap.snap_embeddings import FREE, NULL, ONE_MATRIX, SnapEmbeddings


def claims(settings: SnapEmbeddings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What the reparametrisation keeps, and what it hides."""
    course, tokens = (table[table["data"] == "real"] for table in (tables["course"], tables["tokens"]))
    factored = tables["tokens"][~tables["tokens"]["model"].isin([FREE, ONE_MATRIX])]
    real, null = (factored[factored["data"] == data].reset_index(drop=True) for data in ("real", NULL))
    where = "in the ordinary parametrisation too."
    return [
        _exact(tokens),
        _independent(course),
        _share(
            _rises,
            real,
            null,
            id="distinct_rise",
            source="Scan&Snap Thm 2a, with embeddings",
            statement=f"Every distinct token's logit rises, {where}",
            expected="the logit z is higher at the end than at the start for all of them",
        ),
        _share(
            _gains,
            real,
            null,
            id="distinct_gain",
            source="Scan&Snap Thm 2, with embeddings",
            statement=f"Every distinct token gains on the common token, {where}",
            expected="z_distinct - z_common is higher at the end than at the start for all of them",
        ),
        _share(
            _falls,
            real,
            null,
            id="common_falls",
            source="Scan&Snap Thm 2b, with embeddings",
            statement=f"The common token's logit falls, {where}",
            expected="the logit z is lower at the end than at the start, for every last token and seed",
        ),
        _graded(real, null),
    ]


def _exact(tokens: pd.DataFrame) -> Claim:
    free = tokens[tokens["model"] == FREE].set_index(["next_token", "token"])["value"]
    fixed = tokens[tokens["model"] == ONE_MATRIX]
    keys = list(zip(fixed["next_token"], fixed["token"], strict=True))
    error = (fixed["value"].to_numpy() - free.loc[keys].to_numpy()).__abs__().max()
    other = tokens[tokens["model"] == "fixed U, W_Q W_K"]
    keys = list(zip(other["next_token"], other["token"], strict=True))
    with_two = (other["value"].to_numpy() - free.loc[keys].to_numpy()).__abs__().max()
    return within(
        float(error),
        1e-9,
        id="snap_embeddings.exact",
        source="Scan&Snap, reparametrisation",
        statement="For fixed orthonormal embeddings and one matrix in place of W_Q W_K', training Y and Z is "
        "the same as training the weights.",
        evidence=f"largest difference of any logit z at the end; the logits moved by up to "
        f"{free.abs().max():.2f} nats",
        null=float(with_two),
        null_description="the same with W_Q and W_K apart",
    )


def _independent(course: pd.DataFrame) -> Claim:
    end = course[course["time"] == course["time"].max()]
    shares = end[end["metric"].isin(["other rows", "unseen tokens"])]
    by_model = shares.groupby(["model", "metric"])["value"].mean().unstack("metric")
    embedded = by_model.drop(index=[FREE, ONE_MATRIX])
    listed = "; ".join(
        f"{model}: {row['other rows']:.2f} and {row['unseen tokens']:.2f}"
        for model, row in embedded.iterrows()
    )
    worst = float(embedded.to_numpy().max())
    return judge(
        worst < 0.01,
        id="snap_embeddings.independent",
        source="Scan&Snap, reparametrisation (independent variables Y and Z)",
        statement="With W_Q and W_K, too, only attention between tokens seen together is trained.",
        expected="less than a hundredth of Z's squared change is in other rows or on unseen tokens",
        measured=worst,
        tolerance=0.01,
        null=float(by_model.loc[FREE].max()),
        null_description="free Y and Z",
        evidence=f"shares in other rows and on unseen tokens, mean over seeds: {listed}",
    )


def _share(
    hits: Callable[[pd.DataFrame], pd.Series],
    real: pd.DataFrame,
    null: pd.DataFrame,
    *,
    id: str,
    source: str,
    statement: str,
    expected: str,
) -> Claim:
    """All tokens are hits, and not all are where there is nothing to predict."""
    hit, by_chance = hits(real), float(hits(null).mean())
    by_model = hit.groupby(real["model"]).mean()
    return judge(
        bool(hit.all()) and by_chance < 1,
        id=f"snap_embeddings.{id}",
        source=source,
        statement=statement,
        expected=f"{expected}; not so in the null",
        measured=float(hit.mean()),
        null=by_chance,
        null_description="the same share where the context says nothing of the next token",
        evidence=f"share of {len(hit)}: "
        + "; ".join(f"{model} {share:.2f}" for model, share in by_model.items()),
    )


def _rises(tokens: pd.DataFrame) -> pd.Series:
    return tokens[tokens["kind"] == "distinct"]["value"] > 0


def _falls(tokens: pd.DataFrame) -> pd.Series:
    return tokens[tokens["kind"] == "common"]["value"] < 0


def _gains(tokens: pd.DataFrame) -> pd.Series:
    """Distinct above common: blind to a constant on a row of Z, which attention does not see."""
    keys = ["model", "seed", "next_token"]
    common = tokens[tokens["kind"] == "common"].groupby(keys)["value"].max().rename("common")
    distinct = tokens[tokens["kind"] == "distinct"].join(common, on=keys)
    return distinct["value"] > distinct["common"]


def _graded(real: pd.DataFrame, null: pd.DataFrame) -> Claim:
    def correlations(tokens: pd.DataFrame) -> pd.Series:
        """By model, the mean over seeds and classes."""
        distinct = tokens[tokens["kind"] == "distinct"]
        groups = distinct.groupby(["model", "seed", "next_token"])
        each = groups[["value", "probability"]].apply(
            lambda t: spearmanr(t["value"], t["probability"]).statistic
        )
        return each.groupby("model").mean()

    means, by_chance = correlations(real), correlations(null)
    return judge(
        bool(means.min() > max(0.9, by_chance.min())),
        id="snap_embeddings.graded",
        source="Scan&Snap, winners-emergence (c), with embeddings",
        statement="z_ml grows faster with larger P(l|m,n), in the ordinary parametrisation too.",
        expected="mean rank correlation of the change of z with P(l|n) above 0.9 in every model, and "
        "above the null",
        measured=means.min(),
        tolerance=0.9,
        null=by_chance.min(),
        null_description="the least of the models where the context says nothing of the next token",
        evidence="; ".join(f"{model} {value:.2f}" for model, value in means.items()),
    )
