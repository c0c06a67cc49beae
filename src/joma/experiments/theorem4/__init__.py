"""JoMA Theorem 4, measured: how much sooner salient components converge, for each kind of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Theorem4(Experiment):
    """(ln 1/delta_j)/(ln 1/delta_k) along integrated flows, against the law for each attention.

    Exp attention at two temperatures (Theorem 4), linear attention (its remark, which gives no formula),
    softmax attention with uniform and with skewed average attention bbar (not in the paper), and no
    attention, where salience must not matter (the null). The flows are integrated in ln 1/delta by
    DOP853 and know nothing of the laws.

    Tables: ``ratio`` (one row per attention, component j and time, against the least salient component
    k), ``limits`` (the law, the ratio of speeds at the end, and their relative difference), ``deviation``
    (Lambda for exp attention, exactly, down to delta_k = 1e-300 and beyond, with the bounds).
    """

    title = "Convergence ratios of salient components, measured against the law"
    reproduces = "JoMA Thm 4"
    cost: ClassVar[Mapping[str, str]] = {"quick": "4 s", "paper": "4 s"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}

    critical_points: tuple[float, ...] = setting(
        (3.0, 2.5, 2.0), "mu of each component; the last is k", above=0.0, at_most=5.0
    )
    temperature: float = setting(1.5, "the second temperature T of exp attention", above=0.5, at_most=10.0)
    logit_square: float = setting(0.04, "z(0)^2 of linear attention", above=0.0, at_most=4.0)
    skew: float = setting(
        0.5,
        "bbar of the first component under skewed softmax; the others share the rest",
        above=0.0,
        below=1.0,
    )
    longest: float = setting(1e4, "time of the longest flow", at_least=100.0, at_most=1e6)

    def __post_init__(self) -> None:
        from joma.errors import InputError

        super().__post_init__()
        if len(self.critical_points) < 2:
            raise InputError(
                f"theorem4: setting critical_points = {self.critical_points!r} has fewer than two members; "
                "a ratio needs two components."
            )

    def flows(self) -> dict[str, dict[str, Any]]:
        """Name -> arguments of :func:`joma.dynamics.salience_flow.integrate`."""
        import numpy as np

        size = len(self.critical_points)
        skewed = np.full(size, (1.0 - self.skew) / (size - 1))
        skewed[0] = self.skew
        return {
            "exp": {"attention": "exp"},
            f"exp, T = {self.temperature:g}": {"attention": "exp", "kappa": self.temperature**-2},
            "linear": {"attention": "linear", "c": self.logit_square},
            "softmax, uniform": {"attention": "softmax"},
            "softmax, skewed": {"attention": "softmax", "bbar": skewed},
            "none": {"attention": "none"},
        }

    def law(self, name: str, component: int) -> float:
        """The limit of the ratio of ``component`` to the last one."""
        import numpy as np

        from joma.theory.salience import asymptotic_ratio
        from joma.theory.salience_variants import linear_attention_ratio, softmax_attention_ratio

        mu = np.array(self.critical_points)
        j, k = mu[component], mu[-1]
        flow = self.flows()[name]
        if flow["attention"] == "none":
            return 1.0
        if flow["attention"] == "linear":
            return float(linear_attention_ratio(j, k, self.logit_square, self.logit_square))
        if flow["attention"] == "softmax":
            bbar = flow.get("bbar", np.full(mu.size, 1 / mu.size))
            return float(
                softmax_attention_ratio(
                    j, k, bbar_j=bbar[component], bbar_k=bbar[-1], squared_norm=float(mu @ mu)
                )
            )
        return float(asymptotic_ratio(j, k, kappa=flow.get("kappa", 1.0)))

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Integrate every flow; solve exp attention exactly for Lambda."""
        import numpy as np
        import pandas as pd

        from joma.dynamics.salience_flow import integrate

        times = np.geomspace(0.05, self.longest, 80)
        rows, limits = [], []
        for name, arguments in progress.track(self.flows().items(), "theorem4"):
            reached = integrate(self.critical_points, times, **arguments).log_inverse_delta
            for component in range(len(self.critical_points) - 1):
                ratio = reached[:, component] / reached[:, -1]
                gain = reached[-1] - reached[-8]
                rows.append(
                    pd.DataFrame(
                        {
                            "run": name,
                            "step": times,
                            "component": component,
                            "metric": "ratio of ln 1/delta",
                            "value": ratio,
                            "log_inverse_delta_k": reached[:, -1],
                        }
                    )
                )
                law = self.law(name, component)
                speed = float(gain[component] / gain[-1])
                numbers = {"law": law, "ratio of speeds": speed, "relative error": abs(speed / law - 1)}
                limits += [
                    {"run": name, "component": component, "metric": m, "value": v} for m, v in numbers.items()
                ]
        return {
            "ratio": pd.concat(rows, ignore_index=True),
            "limits": pd.DataFrame(limits),
            "deviation": self._deviation(),
        }

    def _deviation(self) -> pandas.DataFrame:
        import numpy as np
        import pandas as pd

        from joma.theory.salience import convergence_ratio, needed_convergence, needed_convergence_printed

        j, k = self.critical_points[0], self.critical_points[-1]
        reached = np.geomspace(0.02, 1e5, 120)
        ratio, deviation, bounded = convergence_ratio(j, k, reached)
        needed = float(needed_convergence(k))
        table = pd.DataFrame(
            {
                "log_inverse_delta_k": reached,
                "ratio": ratio,
                "Lambda": deviation,
                "lambda": bounded,
                "bound on Lambda": needed / reached,
                "times the printed condition": reached / float(needed_convergence_printed(k)),
                "times the corrected condition": reached / needed,
            }
        )
        return table.melt("log_inverse_delta_k", var_name="metric", value_name="value").assign(run="exp")

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """A panel of ratios and laws for each salient component (two at most); then Lambda and its bound."""
        from matplotlib.ticker import LogLocator, NullFormatter

        from joma.reporting.figures import PALETTE, ink, panels

        figure: Figure
        mu = self.critical_points
        shown = range(min(2, len(mu) - 1))
        figure, axes = panels(1, len(shown) + 1, width=4.5, height=4.0)
        figure.set_layout_engine("constrained", wspace=0.05)
        for component, axis in zip(shown, axes[0], strict=False):
            runs = tables["ratio"].query("component == @component").groupby("run", sort=False)
            for k, (name, one) in enumerate(runs):
                part = one[one["log_inverse_delta_k"] > 0.02]
                look: dict[str, Any] = {"color": PALETTE[k], "marker": "os^DvX"[k], "ms": 4.5}
                dashes = (0, (5, 4)) if name == "softmax, uniform" else "-"  # lies upon exp
                courses = part["log_inverse_delta_k"], part["value"]
                axis.plot(*courses, ls=dashes, markevery=(2 * k, 12), label=name, **look)
                law = _limit(tables, str(name), component, "law")
                axis.axhline(law, ls="--", lw=1.0, color=PALETTE[k], alpha=0.8)
                # Its marker tells a law's line from the others where colour does not.
                look |= {"ms": 8, "mfc": "none", "mew": 1.3, "clip_on": False}
                axis.plot(1.0, law, transform=axis.get_yaxis_transform(), **look)
            axis.set(xscale="log", yscale="log", xlabel="ln 1/δₖ of the least salient component")
            axis.set(ylabel="ln 1/δⱼ : ln 1/δₖ", title=f"μⱼ = {mu[component]:g}, μₖ = {mu[-1]:g}")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5), numticks=9))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        handles, labels = axes[0, 0].get_legend_handles_labels()
        handles += axes[0, 0].plot([], [], "--", color=ink(), lw=1.0, marker="o", ms=8, mfc="none")
        labels.append("the law of each (marker at the right edge)")
        figure.legend(handles, labels, loc="outside lower left", ncols=4, title="attention")
        right = axes[0, -1]
        exact = tables["deviation"].pivot(index="log_inverse_delta_k", columns="metric", values="value")
        right.plot(exact.index, exact["Lambda"].abs(), color=PALETTE[0], label="|Λ|, exact")
        right.plot(exact.index, exact["bound on Lambda"], "--", color=ink(), lw=1.1, label="sharp bound")
        for colour, which, dashes in ((PALETTE[1], "printed", ":"), (PALETTE[2], "corrected", "-.")):
            at = float((exact.index / exact[f"times the {which} condition"]).iloc[0])
            right.axvline(at, color=colour, ls=dashes, label=f"condition as {which}")
        right.set(xscale="log", yscale="log", xlabel="ln 1/δₖ of the least salient component")
        right.set(ylabel="|Λ|, relative deviation")
        right.set(title=f"exp attention, μⱼ = {mu[0]:g}: from where it holds", ylim=(1e-6, 1e3))
        figure.legend(
            *right.get_legend_handles_labels(), loc="outside lower right", ncols=2, title="right panel"
        )
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Each law; the bound on lambda; the condition."""
        import numpy as np

        from joma.claim import correct, judge, within
        from joma.theory.salience import PRINTED_LAMBDA_BOUND, sharp_bound

        tolerance = 1e-6
        null = _worst(tables, "none", "ratio of speeds") - 1.0
        sources = {
            "exp": ("exp", "JoMA Thm 4, Eq. 7", "exp((mu_j^2 - mu_k^2)/2)"),
            f"exp, T = {self.temperature:g}": ("temperature", "JoMA Thm 4", "exp((mu_j^2 - mu_k^2)/(2 T^2))"),
            "linear": ("linear", "JoMA Thm 4, remarks", "sqrt(mu_j^2 + c)/sqrt(mu_k^2 + c)"),
            "softmax, uniform": ("softmax_uniform", "JoMA Thm 4", "exp((mu_j^2 - mu_k^2)/2)"),
            "softmax, skewed": (
                "softmax_skewed",
                "JoMA Thm 4 (not in the paper)",
                "exp[(mu_j^2 - mu_k^2)/2 - (bbar_j - bbar_k)|mu|^2/2]",
            ),
        }
        claims = [
            within(
                _worst(tables, name, "relative error"),
                tolerance,
                id=f"theorem4.{key}",
                source=source,
                statement=f"The components' ln 1/delta end up growing as {law}.",
                null=null,
                null_description="without attention the ratio of speeds differs from 1 by",
                evidence="relative error of the law, worst component, late in the integrated flow: "
                f"ratio {_limit(tables, name, 0, 'ratio of speeds'):.6g}",
            )
            for name, (key, source, law) in sources.items()
        ]
        exact = tables["deviation"].pivot(index="log_inverse_delta_k", columns="metric", values="value")
        largest = float(exact["lambda"].abs().max())
        sharp = sharp_bound()[1]
        claims.append(
            judge(
                largest <= sharp + 1e-9,
                id="theorem4.bound",
                source="JoMA Thm 4",
                statement=f"|lambda_jk| <= sqrt(2 pi) + 2 = {PRINTED_LAMBDA_BOUND:.4f} (true, loose).",
                expected=f"at most the sharp constant {sharp:.6f}",
                measured=largest,
                tolerance=0.0,
                evidence="all degrees of convergence to ln 1/delta_k = 1e5",
            )
        )
        at = {}
        for which in ("printed", "corrected"):
            times = np.log(exact[f"times the {which} condition"].to_numpy())
            at[which] = float(np.interp(np.log(30.0), times, exact["Lambda"].abs().to_numpy()))
        claims.append(
            correct(
                id="theorem4.condition",
                source="JoMA Thm 4",
                printed="|Lambda| << 1 when delta_k << exp[-(sqrt(2 pi) + 2) exp(-mu_k^2)].",
                right="When delta_k << exp[-C exp(+mu_k^2/2)], C = .8643.",
                printed_error=at["printed"],
                error=at["corrected"],
                tolerance=1.0 / 30.0,
                evidence="|Lambda| where ln 1/delta_k is 30 times what each condition asks",
            )
        )
        return claims


def _limit(tables: Mapping[str, pandas.DataFrame], name: str, component: int, metric: str) -> float:
    rows = tables["limits"]
    chosen = (rows["run"] == name) & (rows["component"] == component) & (rows["metric"] == metric)
    return float(rows[chosen]["value"].iloc[0])


def _worst(tables: Mapping[str, pandas.DataFrame], name: str, metric: str) -> float:
    rows = tables["limits"]
    return float(rows[(rows["run"] == name) & (rows["metric"] == metric)]["value"].max())
