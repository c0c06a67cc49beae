"""JoMA Fig. 4: salient components are learned first, and attention entropy dips and bounces back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.experiments.fig4.claims import ACTING, CAPTION, VARIANTS, extremes_of
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

DYNAMICS = ("script", "equation 6")


@dataclass(frozen=True, kw_only=True)
class Fig4(Experiment):
    """Components of ``v`` on their way to critical points ``mu`` of unlike size, with attention.

    Two dynamics, because the paper's figure is not its equation: the authors' script iterates
    w += eta (mu - w) softmax(w^2/3), and the text and caption speak of Eq. 6,
    v' = (mu - v) exp(v^2/2), and of entropy(softmax(v^2)). Eq. 6 is solved exactly. Each is also run
    where the effect must vanish: all ``mu`` equal (nothing to be salient), and attention removed.

    Tables: ``components`` (mu), ``weights`` (courses of v), ``entropy`` (curves), ``extremes`` (start,
    minimum, where it lies, end and rebound of each curve, from all steps), ``acting`` (entropy of the
    attention read off Eq. 6's courses), ``half_times`` (when each
    component reaches half its mu), ``clocks`` (the time of Eq. 6 that each component of the script
    tells, for the paper's exponent and for the script's).
    """

    title = "Salient components first; entropy dips and rebounds (two dynamics)"
    reproduces = "JoMA Fig. 4"
    cost: ClassVar[Mapping[str, str]] = {"quick": "3 s", "paper": "3 s"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}

    components: int = setting(10, "number of components of v", at_least=2, at_most=1000)
    smallest_mu: float = setting(1.0, "mu is drawn uniformly from here", above=0.0, at_most=7.0)
    largest_mu: float = setting(4.0, "to here", above=0.0, at_most=7.0)
    initial: float = setting(0.05, "v at the start, every component", at_least=0.0, below=1.0)
    iterations: int = setting(5000, "iterations of the script", at_least=100, at_most=1_000_000)
    learning_rate: float = setting(0.02, "learning rate of the script", above=0.0, at_most=0.5)
    temperature: float = setting(3.0, "T of the script's softmax(w^2/T)", above=0.0)

    def __post_init__(self) -> None:
        from joma.errors import InputError

        super().__post_init__()
        if self.largest_mu <= self.smallest_mu:
            raise InputError(
                f"fig4: setting largest_mu = {self.largest_mu:g} is not above smallest_mu = "
                f"{self.smallest_mu:g}; without a spread of mu nothing is salient."
            )
        if self.initial >= self.smallest_mu:
            raise InputError(
                f"fig4: setting initial = {self.initial:g} is not below smallest_mu = "
                f"{self.smallest_mu:g}; components must start below their critical points."
            )

    def critical_points(self) -> np.ndarray:
        """``mu`` as the authors draw it: low + (high - low) torch.rand after their seeding, sorted."""
        import numpy as np
        import torch

        uniform = torch.rand(self.components, generator=torch.Generator().manual_seed(self.seed))
        mu = self.smallest_mu + (self.largest_mu - self.smallest_mu) * uniform
        return np.asarray(np.sort(mu.numpy()), dtype=np.float64)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Both dynamics, each with its two nulls."""
        import numpy as np
        import pandas as pd

        mu = self.critical_points()
        tables: dict[str, list[pd.DataFrame]] = {
            name: [] for name in ("weights", "entropy", "extremes", "half_times")
        }
        for dynamics in DYNAMICS:
            for variant in VARIANTS:
                target = np.full_like(mu, mu.mean()) if variant == "equal mu" else mu
                course = self._script if dynamics == "script" else self._equation_6
                times, weights, drawn = course(target, variant != "no attention")
                labels = {"run": dynamics, "variant": variant}
                for temperature in sorted({self.temperature, ACTING, CAPTION}):
                    curve, extremes = _entropies(times, weights, drawn, temperature)
                    tables["entropy"].append(curve.assign(**labels))
                    tables["extremes"].append(extremes.assign(**labels))
                tables["half_times"].append(_half_times(times, weights, target).assign(**labels))
                if variant == "attention" and dynamics == "equation 6":
                    tables["acting"] = [self._acting(mu, times[drawn])]
                if variant == "attention":
                    tables["weights"].append(_weights(times, weights, drawn, target).assign(**labels))
        return {
            "components": pd.DataFrame(
                {"component": np.arange(mu.size), "metric": "mu", "value": mu, "dtype": "float64"}
            ),
            **{name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()},
            "clocks": self._clocks(mu),
        }

    def _script(self, mu: np.ndarray, attention: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Iterations, weights at each, and which of them to draw."""
        import numpy as np

        from joma.dynamics.salience_flow import script_dynamics

        weights = script_dynamics(
            mu,
            steps=self.iterations,
            learning_rate=self.learning_rate,
            w0=self.initial,
            temperature=self.temperature,
            attention=attention,
        )
        times = np.arange(self.iterations, dtype=np.float64)
        return times, weights, np.unique(np.linspace(0, self.iterations - 1, 500).astype(int))

    def _equation_6(self, mu: np.ndarray, attention: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Times (dense where the entropy is least), weights at each, and which of them to draw."""
        import numpy as np

        from joma.dynamics.salience_flow import attention_entropy
        from joma.theory.salience import elapsed_time, solve

        def weights(times: np.ndarray) -> np.ndarray:
            if attention:
                return solve(mu, times, v0=self.initial).v
            return np.asarray(mu - (mu - self.initial) * np.exp(-times[:, None]))

        # Until the slowest component of the real run is within e^-12 of its end, for every variant.
        end = elapsed_time(self.critical_points(), 12.0, v0=self.initial).max()
        times = np.concatenate([[0.0], np.geomspace(1e-3 * end, end, 4000)])
        coarse = weights(times)
        for temperature in (ACTING, CAPTION):
            least = int(np.argmin(attention_entropy(coarse, temperature)))
            near = times[max(least - 2, 0)], times[min(least + 2, times.size - 1)]
            times = np.union1d(times, np.linspace(*near, 801))
            coarse = weights(times)
        drawn = np.unique(np.searchsorted(times, np.geomspace(1e-3 * end, end, 1200)).clip(0, times.size - 1))
        return times, coarse, np.union1d([0], drawn)

    def _acting(self, mu: np.ndarray, times: np.ndarray) -> pandas.DataFrame:
        """Entropy of (dv/dt)/(mu - v), normalised over components, from neighbouring exact solutions."""
        import pandas as pd
        from scipy.special import entr

        from joma.theory.salience import solve

        before, after = (
            solve(mu, times * f, v0=self.initial).log_inverse_delta for f in (1 - 1e-6, 1 + 1e-6)
        )
        moving = times > 0
        speed = (after - before)[moving]
        entropy = entr(speed / speed.sum(axis=1, keepdims=True)).sum(axis=1)
        return pd.DataFrame({"step": times[moving], "value": entropy}).assign(
            run="equation 6", metric="entropy of the acting attention", unit="nats"
        )

    def _clocks(self, mu: np.ndarray) -> pandas.DataFrame:
        """The time of Eq. 6 that each component of the script tells: equal for all if it *is* Eq. 6."""
        import numpy as np
        import pandas as pd

        from joma.theory.salience import elapsed_time

        iterations, weights, _ = self._script(mu, True)
        rows = []
        for at in np.unique(np.linspace(0, self.iterations - 1, 21)[1:].astype(int)):
            gap = 1.0 - weights[at] / mu
            moving = np.flatnonzero(gap > 1e-6)  # beyond, 1 - v/mu is rounding
            if moving.size < 2:
                continue
            for exponent, kappa in (("v^2/2", 1.0), ("v^2/T", 2.0 / self.temperature)):
                told = elapsed_time(mu[moving], -np.log(gap[moving]), v0=self.initial, kappa=kappa)
                rows.append(
                    pd.DataFrame(
                        {
                            "step": int(iterations[at]),
                            "component": moving,
                            "exponent": exponent,
                            "value": told,
                        }
                    )
                )
        table = pd.concat(rows, ignore_index=True)
        return table.assign(run="script", metric="time of Eq. 6", unit="time", dtype="float64")

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Left: courses of v, coloured by mu. Right: entropies, with dip and end marked, and the null."""
        import matplotlib as mpl
        import numpy as np

        from joma.reporting.figures import panels

        figure: Figure
        figure, axes = panels(2, 2, width=5.2, height=3.5)
        figure.set_layout_engine("constrained", wspace=0.06)
        mu = tables["components"]["value"]
        shades = mpl.colormaps["viridis"](np.linspace(0.2, 0.93, 256))  # seen on light and on dark paper
        colours = mpl.cm.ScalarMappable(
            mpl.colors.Normalize(mu.min(), mu.max()), mpl.colors.ListedColormap(shades)
        )
        for (left, right), dynamics in zip(axes, DYNAMICS, strict=True):
            courses = tables["weights"].query("run == @dynamics")
            for _, one in courses.groupby("component"):
                left.plot(one["step"], one["value"], color=colours.to_rgba(one["mu"].iloc[0]))
            left.set(ylabel=f"weight {'w' if dynamics == 'script' else 'v'}", title=self._formula(dynamics))
            _draw_entropies(right, tables, dynamics, self.temperature)
            for axis in (left, right):
                if dynamics == "script":
                    axis.set_xlabel("iteration")
                else:
                    axis.set(xscale="log", xlabel="time (unit: 1/learning rate)")
                    axis.set_xlim(left=0.01 * courses["step"].max())
            figure.colorbar(colours, ax=left, label="critical point μ", pad=0.02)
        return figure

    def _formula(self, dynamics: str) -> str:
        if dynamics == "script":
            return f"authors' script: w += {self.learning_rate:g} (μ − w) softmax(w²/{self.temperature:g})"
        return "Eq. 6: v′ = (μ − v) exp(v²/2)"

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Dip, rebound and order for both dynamics; what the figure and its caption really show."""
        from joma.experiments.fig4.claims import judge_all

        return judge_all(tables, self.temperature, self.learning_rate)


def _entropies(
    times: np.ndarray, weights: np.ndarray, drawn: np.ndarray, temperature: float
) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    import numpy as np
    import pandas as pd

    from joma.dynamics.salience_flow import attention_entropy

    values = attention_entropy(weights, temperature)
    least = int(np.argmin(values))
    shown = np.union1d(drawn, [least])
    curve = pd.DataFrame({"step": times[shown], "value": values[shown]}).assign(metric="entropy", unit="nats")
    numbers = {
        "start": values[0],
        "minimum": values[least],
        "argmin": times[least],
        "end": values[-1],
        "drop": values[0] - values[least],
        "rebound": values[-1] - values[least],
    }
    extremes = pd.DataFrame({"metric": list(numbers), "value": list(numbers.values())})
    extremes["unit"] = np.where(extremes["metric"] == "argmin", "step", "nats")
    return curve.assign(temperature=temperature), extremes.assign(temperature=temperature)


def _half_times(times: np.ndarray, weights: np.ndarray, mu: np.ndarray) -> pandas.DataFrame:
    """When each component first reaches half its mu, linear between steps; missing where it does not."""
    import numpy as np
    import pandas as pd

    when = [float(np.interp(0.5, weights[:, k] / mu[k], times, right=np.nan)) for k in range(mu.size)]
    return pd.DataFrame({"component": np.arange(mu.size), "mu": mu, "metric": "half time", "value": when})


def _weights(times: np.ndarray, weights: np.ndarray, drawn: np.ndarray, mu: np.ndarray) -> pandas.DataFrame:
    import numpy as np
    import pandas as pd

    steps, components = drawn.size, mu.size
    return pd.DataFrame(
        {
            "step": np.repeat(times[drawn], components),
            "component": np.tile(np.arange(components), steps),
            "mu": np.tile(mu, steps),
            "metric": "v",
            "value": weights[drawn].ravel(),
        }
    )


def _draw_entropies(
    axis: Axes, tables: Mapping[str, pandas.DataFrame], dynamics: str, temperature: float
) -> None:
    from joma.reporting.figures import PALETTE, ink

    exponents = [(temperature, f"softmax(w²/{temperature:g}), as plotted by the script")]
    if dynamics == "equation 6":
        exponents = [
            (ACTING, "softmax(v²/2), the attention of Eq. 6"),
            (CAPTION, "softmax(v²), the caption's"),
        ]
    curves = tables["entropy"].query("run == @dynamics")
    for colour, (exponent, label) in zip(PALETTE, exponents, strict=False):
        one = curves.query("variant == 'attention' and temperature == @exponent")
        axis.plot(one["step"], one["value"], color=colour, label=label)
        ends = extremes_of(tables, dynamics, "attention", exponent)
        axis.plot(ends["argmin"], ends["minimum"], "v", color=colour, ms=7, zorder=4)
        axis.plot(one["step"].iloc[-1], ends["end"], "^", color=colour, ms=7, clip_on=False)
    main = exponents[0][0]
    curves = curves[curves["temperature"] == main]
    for variant, dashes, label in (
        ("no attention", ":", "no attention"),
        ("equal mu", "--", "all μ equal"),
    ):
        one = curves[curves["variant"] == variant]
        axis.plot(one["step"], one["value"], dashes, color=ink(), lw=1.1, alpha=0.75, label=label)
    ends = extremes_of(tables, dynamics, "attention", main)
    for marker, label in (("v", "minimum"), ("^", "end")):
        axis.plot([], [], marker, color=ink(), ms=7, label=label)
    axis.set(
        ylabel="attention entropy (nats)",
        title=f"dip to {ends['minimum']:.3f}, end at {ends['end']:.3f} nats",
    )
    top = ends["start"]
    axis.set_ylim(-0.06 * top, 1.98 * top)  # room for the legend
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= 1.02 * top])
    axis.legend(loc="upper left")
