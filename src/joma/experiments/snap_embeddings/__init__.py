"""What Scan&Snap's free Y and Z hide: the same data learned through embeddings and W_Q, W_K, W_V."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.models.one_layer import OneLayer
    from joma.progress import Progress

FREE, ONE_MATRIX = "free Y and Z", "fixed U, one matrix"
# How Y and Z are made: (factored W_Q W_K, embeddings trained, as wide as there are tokens).
EMBEDDED = {
    ONE_MATRIX: (False, False, True),
    "fixed U, W_Q W_K": (True, False, True),
    "trained U, W_Q W_K": (True, True, True),
    "trained narrow U": (True, True, False),
}


@dataclass(frozen=True, kw_only=True)
class SnapEmbeddings(Experiment):
    """Theorem 2's fates and the independence of Z's rows when Z = U W_Q W_K' U' and Y = U W_V' U'.

    Scan&Snap trains Y and Z as independent variables. Five models that are the same function of Y and Z
    are trained by small steps of gradient descent in the limit of long sequences (float64), on graded
    distinct tokens and one common token, where Theorem 2 applies: free Y and Z; fixed orthonormal
    embeddings with A in place of W_Q W_K'; with W_Q and W_K; with trained embeddings; and with trained
    embeddings fewer than tokens. Measured, from the change of Z since the start: which tokens rise and
    fall; the share of the change that is in rows of tokens that are never last ("other rows") or, within
    the rows of last tokens, on tokens that never occur before them ("unseen tokens"). For free Y and Z
    both are zero exactly: what is not seen together never moves.

    Tables: ``course`` (loss, attention mass on the common token, shares, over time), ``tokens`` (change of
    each logit that Theorem 2 speaks of, at the end).
    """

    title = "the one-layer data with ordinary embeddings: what free Y and Z hide"
    reproduces = "Scan&Snap slides, reparametrisation (Y and Z as independent variables)"
    cost: ClassVar[Mapping[str, str]] = {"quick": "10 s", "paper": "3 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"distinct": 10, "seeds": 10, "end": 300.0, "width": 16},
    }

    last_tokens: int = setting(2, "number of last tokens", at_least=2)
    next_per_last: int = setting(2, "next tokens for each last token", at_least=1)
    distinct: int = setting(6, "distinct tokens of each next token", at_least=3)
    common_weight: float = setting(3.0, "weight of the common token; the distinct ones' is 0.1 to 1", above=0)
    width: int = setting(12, "size of the narrow embeddings", at_least=2)
    scale: float = setting(0.5**0.5, "entries of W_Q and W_K start at about scale / sqrt(d)", above=0)
    seeds: int = setting(3, "random starts", at_least=1)
    rate: float = setting(0.2, "step of gradient descent", above=0)
    end: float = setting(100.0, "training time: steps times rate", above=0)
    moments: int = setting(26, "moments that are recorded", at_least=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end / self.rate < self.moments - 1:
            raise InputError(
                f"snap_embeddings: end = {self.end} at rate = {self.rate} makes {self.end / self.rate:g} "
                f"steps, fewer than moments = {self.moments} to record; train longer or record less."
            )

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every model and seed; the free model starts from zero and has one run."""
        import pandas as pd

        cells = [(FREE, self.seed)]
        cells += [(model, self.seed + k) for model in EMBEDDED for k in range(self.seeds)]
        parts = []
        for model, seed in progress.track(cells, "snap_embeddings"):
            name = f"{model}_{seed}".replace(" ", "_").replace(",", "")
            parts.append(progress.part(name, partial(_train_one, self, model, seed)))
        everything = pd.concat(parts, ignore_index=True)
        is_token = everything["token"].notna()
        of_token = ["token", "next_token", "kind", "probability"]
        tokens = everything[is_token].reset_index(drop=True)
        return {
            "course": everything[~is_token].drop(columns=of_token).reset_index(drop=True),
            "tokens": tokens.astype({"token": int, "next_token": int}),
        }

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Loss, mass on the common token, change of unseen logits over time; final change by probability."""
        from joma.reporting.figures import PALETTE, ink, panels

        course, tokens = tables["course"], tables["tokens"]
        figure, axes = panels(2, 2, width=4.8, height=3.2)
        labels = {
            "loss": "loss (nats)",
            "common mass": "attention on the common token",
            "unseen tokens": "share of Z's change\non unseen tokens",
        }
        colours = dict(zip([FREE, *EMBEDDED], (ink(), *PALETTE), strict=False))
        # The one-matrix model lies upon the free one: dots on a line.
        lines = {FREE: "-", ONE_MATRIX: ":"}
        for axis, (metric, label) in zip(axes.ravel(), labels.items(), strict=False):
            for model, colour in colours.items():
                part = course[(course["model"] == model) & (course["metric"] == metric)]
                mean = part.groupby("time")["value"].mean()
                width = 3.0 if model == ONE_MATRIX else 1.6
                axis.plot(mean.index, mean, lines.get(model, "-"), color=colour, lw=width, label=model)
            axis.set_xlabel("training time")
            axis.set_ylabel(label)
        axis = axes[1, 1]
        for model, colour in colours.items():
            part = tokens[(tokens["model"] == model) & (tokens["seed"] == tokens["seed"].min())]
            distinct, common = (part[part["kind"] == kind] for kind in ("distinct", "common"))
            ring = model == ONE_MATRIX
            axis.scatter(
                distinct["probability"],
                distinct["value"],
                s=44 if ring else 14,
                edgecolors=colour,
                facecolors="none" if ring else colour,
                linewidths=0.9,
            )
            axis.scatter(common["probability"], common["value"], s=30, marker="x", color=colour, lw=1.2)
        axis.axhline(0, color=ink(), lw=0.8)
        axis.set_xlabel("P(l | n)   (dots: distinct tokens, crosses: common)")
        axis.set_ylabel("change of the logit z (nats)")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """What the reparametrisation keeps, and what it hides."""
        course, tokens = tables["course"], tables["tokens"]
        with_factors = tokens[~tokens["model"].isin([FREE, ONE_MATRIX])]
        return [
            _exact(tokens),
            _independent(course),
            _distinct_rise(with_factors),
            _distinct_gain(with_factors),
            _common_falls(with_factors),
            _graded(with_factors, self.seed),
        ]


def _train_one(experiment: SnapEmbeddings, model_name: str, seed: int) -> pandas.DataFrame:
    import numpy as np
    import pandas as pd
    import torch

    from joma.data.next_token import graded_tokens
    from joma.models.one_layer import Embedded, FreePairs, Population
    from joma.training.loop import reproducible

    data = graded_tokens(
        last_tokens=experiment.last_tokens,
        next_per_last=experiment.next_per_last,
        common=1,
        distinct=experiment.distinct,
        common_weight=experiment.common_weight,
    )
    population = Population(data)
    steps = round(experiment.end / experiment.rate)
    recorded = set(np.linspace(0, steps, experiment.moments).round().astype(int).tolist())
    ids = {"run": f"{model_name}, seed {seed}", "model": model_name, "seed": seed, "dtype": "float64"}
    rows: list[dict[str, Any]] = []
    with reproducible(seed):
        model: OneLayer
        if model_name == FREE:
            model = FreePairs(population.tokens)
        else:
            factored, learns, wide = EMBEDDED[model_name]
            width = population.tokens if wide else experiment.width
            model = Embedded(
                population.tokens, width, factored=factored, train_embeddings=learns, scale=experiment.scale
            )
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(learned, lr=experiment.rate)
        start = model.attention_matrix().detach().clone()
        for step in range(steps + 1):
            loss = population.loss(model)
            if not bool(torch.isfinite(loss)):
                from joma.errors import DivergenceError

                raise DivergenceError(
                    f"snap_embeddings: the loss of '{model_name}' became {loss.item()} at step {step} (rate "
                    f"{experiment.rate:g}); lower the rate."
                )
            if step in recorded:
                time = step * experiment.rate
                with torch.no_grad():
                    change = model.attention_matrix() - start
                    measured = _measures(population, model, change) | {"loss": float(loss)}
                rows += [
                    ids | {"time": time, "metric": name, "value": value, "unit": "nats" * (name == "loss")}
                    for name, value in measured.items()
                ]
            if step < steps:
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    rows += [ids | {"time": experiment.end} | row for row in _token_rows(data, change)]
    return pd.DataFrame(rows)


def _measures(population: Any, model: OneLayer, change: Any) -> dict[str, float]:
    """Mass on the common token (number 0), and where Z has changed: shares of its squared change."""
    import torch

    mass = model.mass(population.frequencies, population.last)
    lasts = population.last.unique()
    own = change[lasts]
    seen = (population.last[:, None] == lasts[None, :]).double().T @ (population.frequencies > 0).double()
    never_last = torch.ones(len(change), dtype=torch.bool)
    never_last[lasts] = False
    in_rows, elsewhere = float((own**2).sum()), float((change[never_last] ** 2).sum())
    total = in_rows + elsewhere
    unseen = float((own[seen == 0] ** 2).sum())
    return {
        "common mass": float(population.prior @ mass[:, 0]),
        # Before anything has changed there is nothing to share.
        "other rows": elsewhere / total if total > 0 else 0.0,
        "unseen tokens": unseen / in_rows if in_rows > 0 else 0.0,
    }


def _token_rows(data: Any, change: Any) -> list[dict[str, Any]]:
    """The change of z_ml for every class and token that occurs in it."""
    import numpy as np

    rows = []
    for n, token in np.argwhere(data.conditional > 0).tolist():
        last = data.contextual_tokens + int(data.last_of_next[n])
        rows.append(
            {
                "next_token": n,
                "token": token,
                "kind": "common" if data.common[token] else "distinct",
                "probability": float(data.conditional[n, token]),
                "metric": "logit change",
                "value": float(change[last, token]),
                "unit": "nats",
            }
        )
    return rows


def _exact(tokens: pandas.DataFrame) -> Claim:
    from joma.claim import within

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


def _independent(course: pandas.DataFrame) -> Claim:
    from joma.claim import judge

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


def _by_model(hit: pandas.Series, tokens: pandas.DataFrame) -> str:
    return "; ".join(f"{model} {share:.2f}" for model, share in hit.groupby(tokens["model"]).mean().items())


def _distinct_rise(tokens: pandas.DataFrame) -> Claim:
    from joma.claim import judge

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


def _distinct_gain(tokens: pandas.DataFrame) -> Claim:
    """The same, blind to a constant on a row of Z, which attention does not see."""
    from joma.claim import judge

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


def _common_falls(tokens: pandas.DataFrame) -> Claim:
    from joma.claim import judge

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


def _graded(tokens: pandas.DataFrame, seed: int) -> Claim:
    import numpy as np
    from scipy.stats import spearmanr

    from joma.claim import judge

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
