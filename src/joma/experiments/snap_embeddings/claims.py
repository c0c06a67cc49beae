"""What the reparametrisation keeps, and what it hides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from joma.claim import Claim, judge, within
from joma.experiments.snap_embeddings import FREE, ONE_MATRIX, SnapEmbeddings


def claims(settings: SnapEmbeddings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What the reparametrisation keeps, and what it hides."""
    course, tokens = tables["course"], tables["tokens"]
    with_factors = tokens[~tokens["model"].isin([FREE, ONE_MATRIX])]
    return [
        _exact(tokens),
        _independent(course),
        _distinct_rise(with_factors),
        _distinct_gain(with_factors),
        _common_falls(with_factors),
        _graded(with_factors, settings.seed),
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


def _by_model(hit: pd.Series, tokens: pd.DataFrame) -> str:
    return "; ".join(f"{model} {share:.2f}" for model, share in hit.groupby(tokens["model"]).mean().items())


def _distinct_rise(tokens: pd.DataFrame) -> Claim:
    distinct = tokens[tokens["kind"] == "distinct"]
    rises = distinct["value"] > 0
    return judge(
        bool(rises.all()),
        id="snap_embeddings.distinct_rise",
        source="Scan&Snap Thm 2a, with embeddings",
        statement="Every distinct token's logit rises, in the ordinary parametrisation too.",
        expected="the logit z is higher at the end than at the start for all of them",
        measured=float(rises.mean()),
        null=0.0,
        null_description="before training",
        evidence=f"share of {len(distinct)} that rise: {_by_model(rises, distinct)}",
    )


def _distinct_gain(tokens: pd.DataFrame) -> Claim:
    """The same, blind to a constant on a row of Z, which attention does not see."""
    keys = ["model", "seed", "next_token"]
    common = tokens[tokens["kind"] == "common"].groupby(keys)["value"].max().rename("common")
    distinct = tokens[tokens["kind"] == "distinct"].join(common, on=keys)
    gains = distinct["value"] > distinct["common"]
    return judge(
        bool(gains.all()),
        id="snap_embeddings.distinct_gain",
        source="Scan&Snap Thm 2, with embeddings",
        statement="Every distinct token gains on the common token, in the ordinary parametrisation too.",
        expected="z_distinct - z_common is higher at the end than at the start for all of them",
        measured=float(gains.mean()),
        null=0.0,
        null_description="before training",
        evidence=f"share of {len(distinct)} that gain: {_by_model(gains, distinct)}",
    )


def _common_falls(tokens: pd.DataFrame) -> Claim:
    common = tokens[tokens["kind"] == "common"]
    falls = common["value"] < 0
    return judge(
        bool(falls.all()),
        id="snap_embeddings.common_falls",
        source="Scan&Snap Thm 2b, with embeddings",
        statement="The common token's logit falls, in the ordinary parametrisation too.",
        expected="the logit z is lower at the end than at the start, for every last token and seed",
        measured=float(falls.mean()),
        null=0.0,
        null_description="before training",
        evidence=f"share that fall: {_by_model(falls, common)}",
    )


def _graded(tokens: pd.DataFrame, seed: int) -> Claim:
    random = np.random.default_rng([seed, 11])
    distinct = tokens[tokens["kind"] == "distinct"]
    real: dict[str, list[float]] = {}
    null: list[float] = []
    for (model, _, _), part in distinct.groupby(["model", "seed", "next_token"], sort=True):
        z, probability = part["value"].to_numpy(), part["probability"].to_numpy()
        real.setdefault(str(model), []).append(float(spearmanr(z, probability).statistic))
        null.append(float(spearmanr(z, random.permutation(probability)).statistic))
    means = {model: float(np.mean(values)) for model, values in real.items()}
    return judge(
        min(means.values()) > 0.9,
        id="snap_embeddings.graded",
        source="Scan&Snap, winners-emergence (c), with embeddings",
        statement="z_ml grows faster with larger P(l|m,n), in the ordinary parametrisation too.",
        expected="mean rank correlation of the change of z with P(l|n) above 0.9 in every model",
        measured=min(means.values()),
        tolerance=0.9,
        null=float(np.mean(null)),
        null_description="the same with the tokens' probabilities shuffled",
        evidence="; ".join(f"{model} {value:.2f}" for model, value in means.items()),
    )
