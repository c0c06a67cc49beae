"""The forecast: the whole course of attention from the MLP weights' reduced flow, beside training itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.reporting.figures import PALETTE
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.dynamics.reduced_flow import Forecast as Cast
    from joma.progress import Progress

DATA = ("smooth", "random")
EXACT = ("linear", "exp")
CLOSURES = ("signed", "corrected", "moving")
NAMES = {
    "exact": "Theorem 1",
    "signed": "softmax: Eq. 18",
    "corrected": "softmax: Eq. 18 corrected",
    "moving": "softmax: corrected, moving mean",
}
# A closure looks alike in every panel; Eq. 18 corrected lies upon Eq. 18.
LOOKS: dict[str, dict[str, Any]] = {
    "signed": {"color": PALETTE[0], "ls": "-"},
    "corrected": {"color": PALETTE[1], "ls": (0, (4, 4))},
    "moving": {"color": PALETTE[2], "ls": "-"},
    "linear": {"color": PALETTE[3], "ls": ":"},
    "exp": {"color": PALETTE[4], "ls": "-."},
}
METRICS = ("logit_error", "logit_correlation", "attention_gap", "attention_moved")


@dataclass(frozen=True, kw_only=True)
class Forecast(Experiment):
    """Attention predicted without training it, for the data of Fig. 2 and all three kinds of attention.

    "We don't need to explicitly update self-attention" (JoMA Sec. 3): Theorem 1 closes the flow on the
    MLP weights. Here that reduced flow alone, given the data, predicts attention from start to end, and the
    full gradient flow of weights and logits says whether it was right. The data, the cross-entropy
    gradient, the sizes and T = 1/2 are those of Fig. 2, whose 2000 steps of 0.1 are 200 units of time. There
    the formula is given the *trained* weights at each moment; here it gets nothing.

    For softmax attention three closures compete: Eq. 18 ("signed"), the leading-order formula with the
    term that Eq. 17 drops ("corrected"), both around the initial mean attention, and the latter around the
    mean as it moves ("moving"). Null: the forecast made for another data set of the same kind.

    Tables: ``curves`` (relative error and correlation of the logits, largest total variation distance of the
    attention, how far training moved it), ``courses`` (mean attention of each token, one seed).
    """

    title = "Attention forecast from the data by the reduced flow, against training"
    reproduces = "JoMA Sec. 3 (Theorem 1 put to use), on the data of Fig. 2"
    cost: ClassVar[Mapping[str, str]] = {"quick": "20 s", "paper": "2 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"seeds": 20}}

    seeds: int = setting(3, "data sets of each kind", at_least=1, at_most=1000)
    classes: int = setting(20, "classes, and MLP nodes", at_least=2, at_most=200)
    tokens: int = setting(
        20, "contextual tokens, half of them common to all classes", at_least=4, at_most=400
    )
    temperature: float = setting(0.5, "T of the attention logits", above=0.0)
    end: float = setting(200.0, "training time, linear and softmax attention", above=0.0)
    exp_end: float = setting(75.0, "training time, exp attention (which runs away)", above=0.0)
    moments: int = setting(101, "moments at which the two are compared", at_least=5, at_most=10_000)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every data set, kind of attention and closure."""
        import pandas as pd

        curves, courses = [], []
        cells = [(data, attention) for data in DATA for attention in (*EXACT, "softmax")]
        for data, attention in progress.track(cells, "forecast"):
            table = progress.part(f"{data}_{attention}", partial(self._cell, data, attention))
            is_curve = table["table"] == "curves"
            curves.append(table[is_curve].drop(columns=["table", "token"]))
            courses.append(table[~is_curve].drop(columns="table"))
        tables = {"curves": pd.concat(curves), "courses": pd.concat(courses)}
        return {name: table.reset_index(drop=True) for name, table in tables.items()}

    def _cell(self, data: str, attention: str) -> pandas.DataFrame:
        import pandas as pd

        parts = []
        for run in range(self.seeds):
            other: Cast | None = None
            for closure in CLOSURES if attention == "softmax" else ("exact",):
                cast = self._forecast(data, attention, closure, self.seed + run)
                labels = {"data": data, "attention": attention, "closure": closure, "run": run}
                parts.append(_curves(cast, cast.predicted.logits, cast.predicted_shares).assign(**labels))
                if run == 0:
                    parts.append(_courses(cast, closure == "exact" or closure == "moving").assign(**labels))
                if closure in ("exact", "moving"):
                    other = self._forecast(data, attention, closure, self.seed + 1000 + run)
                    labels["closure"] = "another data set"
                    parts.append(
                        _curves(cast, other.predicted.logits, other.predicted_shares).assign(**labels)
                    )
        return pd.concat(parts, ignore_index=True).assign(dtype="float64")

    def _forecast(self, data: str, attention: Any, closure: Any, seed: int) -> Cast:
        import numpy as np

        from joma.data.frequencies import random_classes, smooth_classes
        from joma.dynamics import reduced_flow
        from joma.theory.attention import Attention
        from joma.theory.block import Block, CrossEntropyGradient, Embeddings

        common = self.tokens // 2
        if data == "smooth":
            x = smooth_classes(self.classes, distinct=self.tokens - common, common=common, seed=seed)
        else:
            x = random_classes(self.classes, tokens=self.tokens, seed=seed)
        end = self.exp_end if attention == "exp" else self.end
        return reduced_flow.forecast(
            Block(
                Embeddings.orthonormal(self.tokens), Attention(kind=attention, temperature=self.temperature)
            ),
            x,
            CrossEntropyGradient(tuple(range(self.classes))),
            weights=np.zeros((self.classes, self.tokens + 1)),
            # Linear attention from zero logits would never move.
            logits=np.full(self.tokens, self.temperature if attention == "linear" else 0.0),
            times=np.linspace(0.0, end, self.moments),
            softmax="moving" if closure == "exact" else closure,
            rtol=1e-10,
        )

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Top: mean attention of four tokens, trained and forecast. Bottom: the error of each closure."""
        import numpy as np

        from joma.reporting.figures import ink, panels

        figure: Figure
        figure, axes = panels(2, 2, width=5.4, height=3.6, sharex=True)
        curves = tables["curves"]
        for axis, data in zip(axes[0], DATA, strict=True):
            courses = tables["courses"].query("data == @data and attention == 'softmax'")
            for k, token in enumerate(_most_moved(courses)):
                one = courses[courses["token"] == token]
                trained = one[one["metric"] == "trained"]
                marker: dict[str, Any] = {"marker": "osD^"[k], "markevery": (3 * k, 13)}
                grey: dict[str, Any] = {"marker": marker["marker"], "ms": 9, "markevery": [-1]}
                axis.plot(trained["step"], trained["value"], color=ink(), lw=5, alpha=0.3, **grey)
                for closure in ("signed", "moving"):
                    cast = one[(one["metric"] == "forecast") & (one["closure"] == closure)]
                    axis.plot(cast["step"], cast["value"], ms=5, lw=1.3, **LOOKS[closure], **marker)
                axis.plot([], [], color=ink(), ls="", label=f"token {token}", **marker)
            axis.set(ylabel="mean attention to a token")
            axis.set_title(
                f"softmax attention, {data} classes:\nthe four tokens that move most, seed {self.seed}"
            )
            axis.legend(loc="upper left")
        shown = {}
        for axis, data in zip(axes[1], DATA, strict=True):
            for attention, closure in _lines():
                curve = _median(curves, data, attention, closure, "logit_error")
                curve = shown[data, attention, closure] = curve[curve > 0]
                softmax = attention == "softmax"
                name = NAMES[closure] if softmax else f"{attention}: {NAMES[closure]}, exact"
                axis.plot(curve, **LOOKS[closure if softmax else attention], label=name)
            axis.set(xlabel="training time (unit: 1/learning rate)", ylabel="relative error of the logits")
            axis.set(
                yscale="log",
                title=f"|forecast − trained| / |moved|, {data} classes,\n"
                f"median of {curves['run'].nunique()} seeds",
            )
        least = min(curve.min() for curve in shown.values() if len(curve))
        for axis in axes[1]:
            axis.set_ylim(bottom=10.0 ** np.floor(np.log10(least)))
        handles, labels = axes[1, 0].get_legend_handles_labels()
        trained_line = axes[0, 0].plot([], [], color=ink(), lw=5, alpha=0.3)
        names = ["trained (top panels)", *labels]
        figure.legend([*trained_line, *handles], names, loc="outside lower center", ncols=3)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Exact for linear and exp; for softmax, Eq. 18 loses the scale and the moving mean keeps it."""
        from joma.claim import correct, judge, within

        curves = tables["curves"]
        found = []
        for attention in EXACT:
            worst = max(_worst(curves, data, attention, "exact", "logit_error") for data in DATA)
            null = min(_end(curves, data, attention, "another data set", "logit_error") for data in DATA)
            moved = min(_end(curves, data, attention, "exact", "attention_moved") for data in DATA)
            found.append(
                within(
                    worst,
                    1e-5,
                    id=f"forecast.{attention}",
                    source="JoMA Sec. 3, Thm 1",
                    statement=f"{attention} attention need not be trained: the reduced flow predicts "
                    "its whole "
                    "course.",
                    null=null,
                    null_description="the forecast made for another data set of the same kind",
                    evidence="Largest relative error of the logits over all moments, data sets and seeds; "
                    f"training moved attention by {moved:.2g} (total variation) at least.",
                )
            )
        for data in DATA:
            printed, right = (
                _end(curves, data, "softmax", closure, "logit_error") for closure in ("signed", "moving")
            )
            middle = _end(curves, data, "softmax", "corrected", "logit_error")
            found.append(
                correct(
                    id=f"forecast.softmax_{data}",
                    source="JoMA Eq. 18 (Thm 1, softmax)",
                    printed="z = 1/2 sum_k (v_k^2 - |v_k|^2 bbar), bbar constant: the reduced flow forecasts "
                    "softmax attention.",
                    right="The corrected formula around the mean attention as it moves does; around "
                    "the initial "
                    "mean the scale of the logits is lost.",
                    printed_error=printed,
                    error=right,
                    tolerance=0.35,
                    evidence=f"Relative error of the logits at the end, median of the seeds, {data} classes; "
                    f"corrected but around the initial mean: {middle:.3g}.",
                )
            )
            correlation, null = (
                _end(curves, data, "softmax", closure, "logit_correlation")
                for closure in ("signed", "another data set")
            )
            found.append(
                judge(
                    correlation >= 0.8 and correlation > null + 0.05,
                    id=f"forecast.correlation_{data}",
                    source="JoMA Sec. 3",
                    statement="For softmax attention, even with the assumption, the invariance still "
                    "predicts z_m(t) "
                    "fairly well.",
                    expected="normalised correlation at the end of at least 0.8 by the flow of Eq. 18, 0.05 "
                    "above what another data set's forecast has",
                    measured=correlation,
                    tolerance=0.8,
                    null=null,
                    null_description="the forecast (moving mean) made for another data set of the same kind",
                    evidence=f"Median of the seeds, {data} classes. A correlation hides the scale: see "
                    f"forecast.softmax_{data}.",
                )
            )
        return found


def _curves(cast: Cast, logits: np.ndarray, shares: np.ndarray) -> pandas.DataFrame:
    """The four metrics of a prediction (``logits``, ``shares``) of what ``cast`` trained."""
    import dataclasses

    import pandas as pd

    moments = min(len(cast.times), len(logits))
    judged = dataclasses.replace(
        cast,
        predicted=dataclasses.replace(cast.trained, logits=logits[:moments], times=cast.times[:moments]),
        trained=dataclasses.replace(
            cast.trained, logits=cast.trained.logits[:moments], times=cast.times[:moments]
        ),
        predicted_shares=shares[:moments],
        trained_shares=cast.trained_shares[:moments],
    )
    units = {
        "logit_error": "relative",
        "logit_correlation": "",
        "attention_gap": "TV",
        "attention_moved": "TV",
    }
    return pd.concat(
        pd.DataFrame(
            {
                "table": "curves",
                "step": judged.times,
                "metric": metric,
                "value": getattr(judged, metric),
                "unit": units[metric],
            }
        )
        for metric in METRICS
    )


def _courses(cast: Cast, with_trained: bool) -> pandas.DataFrame:
    import pandas as pd

    pairs = [
        ("forecast", cast.predicted_shares),
        *([("trained", cast.trained_shares)] if with_trained else []),
    ]
    frames = []
    for name, shares in pairs:
        mean = shares.mean(axis=-2)
        for token in range(mean.shape[-1]):
            frames.append(
                pd.DataFrame({"step": cast.times, "token": token, "metric": name, "value": mean[:, token]})
            )
    return pd.concat(frames).assign(table="courses", unit="share of the attention")


def _most_moved(courses: pandas.DataFrame, count: int = 4) -> list[int]:
    """The tokens whose trained attention moved most: ever up or down."""
    trained = courses[courses["metric"] == "trained"]
    span = trained.groupby("token")["value"].agg(lambda v: v.max() - v.min())
    return sorted(int(token) for token in span.nlargest(count).index)


def _lines() -> Iterator[tuple[str, str]]:
    yield from (("softmax", closure) for closure in CLOSURES)
    yield from ((attention, "exact") for attention in EXACT)


def _select(
    curves: pandas.DataFrame, data: str, attention: str, closure: str, metric: str
) -> pandas.DataFrame:
    return curves[
        (curves["data"] == data)
        & (curves["attention"] == attention)
        & (curves["closure"] == closure)
        & (curves["metric"] == metric)
    ]


def _median(curves: pandas.DataFrame, *key: str) -> pandas.Series[float]:
    return _select(curves, *key).groupby("step")["value"].median()


def _end(curves: pandas.DataFrame, *key: str) -> float:
    """The value at the last moment of each seed, median over the seeds."""
    last = _select(curves, *key).sort_values("step").groupby("run")["value"].last()
    return float(last.median())


def _worst(curves: pandas.DataFrame, *key: str) -> float:
    return float(_select(curves, *key)["value"].max())
