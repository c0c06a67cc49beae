"""Scan&Snap's two phases: how the gain B_n(t) scans, snaps and freezes, and what both rates do to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.data.next_token import NextTokenData
    from joma.dynamics.token_flow import TokenTrajectory
    from joma.progress import Progress

RATIOS = (1000.0, 100.0, 10.0, 1.0)
"""eta_Y/eta_Z at which Theorem 3 and the hypothesis of Theorem 4 are looked at, with eta_Y = 1."""
START = 0.01
"""Scanning is looked at up to this part of the decoder's half-speed time."""


@dataclass(frozen=True, kw_only=True)
class SnapPhases(Experiment):
    """The gain B_n(t) of Scan&Snap's Theorems 3 and 4 along the population flow (T -> infinity).

    One last token, K next tokens, one common token (Theorem 2's condition), graded distinct tokens, from
    Y(0) = Z(0) = 0. The common token of the main data set has about the share that the ten common tokens of
    Fig. 6 have together.

    Tables: ``gain`` (B, its rate and the common token's share over time, for each pair of rates),
    ``phases`` (what each of these runs says of scanning and snapping), ``laws`` (Theorem 3, and the
    hypothesis behind Theorem 4, for several data sets and eta_Y/eta_Z), ``overlap`` (the courses of
    ln f_n . f_n' behind that), ``bounds`` (Theorem 3's bounds on random data sets).
    """

    title = "Scanning and snapping: B(t), both learning rates, Theorems 3 and 4"
    reproduces = "Scan&Snap Thm 3, Thm 4"
    cost: ClassVar[Mapping[str, str]] = {"quick": "25 s", "paper": "2 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {"random_data_sets": 1000}}

    next_tokens: tuple[int, ...] = setting(
        (2, 3, 5), "K of each data set; the first is the main one", at_least=2
    )
    common_weights: tuple[float, ...] = setting(
        (5.0, 1.0), "weight of the common token before normalisation; the first is the main one", above=0.0
    )
    distinct: int = setting(10, "distinct tokens of each next token, weights 0.1 to 1", at_least=2)
    eta_y: tuple[float, ...] = setting((0.1, 1.0, 10.0), "learning rates of the decoder", above=0.0)
    eta_z: tuple[float, ...] = setting((0.001, 0.01, 0.1, 1.0), "learning rates of attention", above=0.0)
    horizon: float = setting(1e5, "time at the end", at_least=1e3)
    random_data_sets: int = setting(200, "random data sets for the bounds of Theorem 3", at_least=1)

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every pair of rates, every data set at four ratios, and the random data sets."""
        from functools import partial

        import pandas as pd

        main = self._data(self.next_tokens[0], self.common_weights[0])
        pairs = [(y, z) for y in self.eta_y for z in self.eta_z]
        gain = [
            progress.part(f"rates-{y:g}-{z:g}", partial(_course, main, y, z, self.horizon))
            for y, z in progress.track(pairs, "pairs of rates")
        ]
        sets = [(k, weight) for k in self.next_tokens for weight in self.common_weights]
        laws = [
            progress.part(f"laws-{k}-{w:g}", partial(_laws, self._data(k, w), k, w, self.horizon))
            for k, w in progress.track(sets, "data sets")
        ]
        blocks = [range(a, min(a + 50, self.random_data_sets)) for a in range(0, self.random_data_sets, 50)]
        bounds = [
            progress.part(f"bounds-{block[0]}", partial(_bounds, block, self.seed))
            for block in progress.track(blocks, "random data sets")
        ]
        both = pd.concat(laws, ignore_index=True)
        curves = both["metric"].str.startswith("ln overlap")
        table = pd.concat(gain, ignore_index=True)
        return {
            "gain": table,
            "phases": _phases(main, table, self.horizon),
            "laws": both[~curves].drop(columns="gain").reset_index(drop=True),
            "overlap": both[curves].reset_index(drop=True),
            "bounds": pd.concat(bounds, ignore_index=True),
        }

    def _data(self, classes: int, weight: float) -> NextTokenData:
        from joma.data.next_token import graded_tokens

        return graded_tokens(next_per_last=classes, common=1, distinct=self.distinct, common_weight=weight)

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """B(t); B at the end over both rates; Theorem 3's error; the hypothesis of Theorem 4."""
        from joma.reporting.figures import panels

        figure, axes = panels(2, 2, width=4.8, height=3.6)
        _draw_gain(axes[0, 0], tables["gain"], tables["phases"])
        _draw_rates(axes[0, 1], tables["phases"])
        _draw_theorem_3(axes[1, 0], tables["laws"])
        _draw_hypothesis(axes[1, 1], tables["overlap"])
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Theorem 3, the two phases of Theorem 4, its hypothesis, and the remarks on the rates."""
        from joma.experiments.snap_phases.claims import judge_all

        return judge_all(tables)


def _times(horizon: float) -> np.ndarray:
    """0, then 15 times a decade from 1e-4 on."""
    import numpy as np

    times: np.ndarray = np.zeros(round(15 * np.log10(horizon / 1e-4)) + 2)
    times[1:] = np.geomspace(1e-4, horizon, times.size - 1)
    return times


def _course(data: NextTokenData, eta_y: float, eta_z: float, horizon: float) -> pandas.DataFrame:
    """B of next token 0, its rate, and the common token's share of attention, along one flow."""
    import pandas as pd

    from joma.dynamics.token_flow import token_flow

    flow = token_flow(data, eta_y=eta_y, eta_z=eta_z, times=_times(horizon))
    columns = {
        "gain": flow.gain[:, 0],
        "gain rate": eta_z * _drive(flow),
        "common share": flow.mass[:, 0, 0],
    }
    wide = pd.DataFrame({"run": f"eta_Y {eta_y:g}, eta_Z {eta_z:g}", "time": flow.times, **columns})
    return wide.melt(["run", "time"], var_name="metric").assign(eta_y=eta_y, eta_z=eta_z, dtype="float64")


def _drive(flow: TokenTrajectory) -> np.ndarray:
    """xi_n = z_l'/(eta_Z f_nl^2) of next token 0, read off its strongest distinct token l."""
    import numpy as np

    from joma.dynamics.token_flow import strongest_distinct

    token = int(strongest_distinct(flow.data)[0])
    states = [flow.at(index) for index in range(flow.times.size)]
    pull = np.array([state.attention[0, token] / state.features[0, token] ** 2 for state in states])
    return np.asarray(flow.data.prior[0] * pull)


def _start_constant(data: NextTokenData) -> float:
    """The C0 with which Theorem 4's B starts along the coupled flow: K M / ((K - 1) f_n(0) . f_n'(0)).

    At first Y = eta_Y t sum_n P(n) f_n (e_n - 1/M)', which makes every gamma beta_nn' equal to
    eta_Y t/(K M), and B = eta_Y eta_Z t^2/(2 K C0).
    """
    from joma.theory.scan_snap.equations import unit

    f = unit(data.conditional)
    return float(data.classes * data.logits / ((data.classes - 1) * (f[0] @ f[1])))


def _phases(data: NextTokenData, gain: pandas.DataFrame, horizon: float) -> pandas.DataFrame:
    """What each run of ``gain`` says of the two phases."""
    import numpy as np
    import pandas as pd

    from joma.theory.scan_snap import decoder, snapping

    sizes = {"classes": data.classes, "outputs": data.logits}
    constant = _start_constant(data)
    common_start = START * decoder.half_speed_time(eta_y=gain["eta_y"].max(), **sizes)
    rows = []
    for (y, z), run in gain.groupby(["eta_y", "eta_z"]):
        curve = run.pivot_table(index="time", columns="metric", values="value")
        time, b = curve.index.to_numpy(), curve["gain"].to_numpy()
        decoder_time = decoder.half_speed_time(eta_y=y, **sizes)
        early = (time > 0) & (time <= START * decoder_time) & (time >= START / 10 * decoder_time)
        law = (y * z * time**2 / (2 * data.classes * constant))[early]
        line = np.polyval(np.polyfit(np.log(time[early]), b[early], 1), np.log(time[early]))
        decades = horizon / np.array([100, 10, 1])
        growth = np.diff(np.interp(decades, time, b))
        clock = np.diff(np.log(decoder.decoder_logit_late(decades, eta_y=y, **sizes)))
        onset = np.diff(np.interp(decoder_time * np.array([0.1, 1, 10]), time, b))
        form = snapping.gain(horizon, eta_y=y, eta_z=z, constant=constant, **sizes)
        numbers = {
            "law t^2, error": np.abs(b[early] / law - 1).max(),
            "line in ln t, error": np.abs(line / b[early] - 1).max(),
            "peak time": time[curve["gain rate"].argmax()],
            "decoder time": decoder_time,
            "decades since half the gain": np.log10(horizon / time[np.searchsorted(b, b[-1] / 2)]),
            "early gain": np.interp(common_start, time, b),
            "gain": b[-1],
            "closed form over gain": float(form) / b[-1],
            "slowing in ln t": growth[1] / growth[0],
            "slowing in ln ln t": (growth[1] / clock[1]) / (growth[0] / clock[0]),
            "slowing in ln t around the decoder time": onset[1] / onset[0],
        }
        rows += [{"eta_y": y, "eta_z": z, "metric": name, "value": float(v)} for name, v in numbers.items()]
    return pd.DataFrame(rows)


def _laws(data: NextTokenData, classes: int, weight: float, horizon: float) -> pandas.DataFrame:
    """Theorem 3 and the hypothesis of Theorem 4 for one data set at four ratios of the rates."""
    import numpy as np
    import pandas as pd

    from joma.dynamics.token_flow import strongest_distinct, token_flow
    from joma.theory.scan_snap import decoder, fates, snapping

    strongest, own = int(strongest_distinct(data)[0]), np.flatnonzero(data.distinct[0])
    others = own[own != strongest]
    late_from = decoder.half_speed_time(eta_y=1.0, classes=classes, outputs=data.logits)
    rows: list[dict[str, Any]] = []
    for ratio in RATIOS:
        flow = token_flow(data, eta_y=1.0, eta_z=1 / ratio, times=_times(horizon))
        mass, f, b = flow.mass[:, 0], flow.features[:, 0], flow.gain[:, 0]
        chi = fates.gain_factor(flow.logits[:, 0, strongest])
        relative = fates.relative_gain(mass[:, [strongest]], mass[:, others])
        kept = np.abs(relative[0]) > 0  # ties with the strongest stay ties; they have no relative error
        fall = np.log((f * flow.features[:, 1]).sum(axis=-1))
        fall -= fall[0]
        exponent = snapping.overlap_exponent(f[:, 0], f[:, own], classes)
        law = np.concatenate([[0], np.cumsum((exponent[1:] + exponent[:-1]) / 2 * np.diff(b))])
        late = flow.times >= late_from
        right = np.array([flow.at(index).predictions[0, 0] for index in np.flatnonzero(late).tolist()])
        gamma = np.einsum("tc,tc->t", f, flow.decoder[:, :, 0])[late] * (1 - right)
        numbers = {
            "theorem 3, error": np.abs((relative / (relative[0] * chi[:, None]))[:, kept] - 1).max(),
            "gain": b[-1],
            "exponent of xi/gamma": snapping.fitted_exponent(_drive(flow)[late] / gamma, b[late]),
            "exponent of the overlap": fall[-1] / b[-1],
            "overlap, error of the law": abs(law[-1] / fall[-1] - 1),
            "overlap, error of the hypothesis": abs(snapping.HYPOTHESISED_EXPONENT * b[-1] / fall[-1] - 1),
        }
        label = {"next_tokens": classes, "common_weight": weight, "rate_ratio": ratio}
        rows += [{**label, "metric": name, "value": float(v)} for name, v in numbers.items()]
        if ratio == RATIOS[0]:
            for name, curve in (("ln overlap", fall), ("ln overlap, law", law)):
                points = zip(b[::3].tolist(), curve[::3].tolist(), strict=True)
                rows += [{**label, "metric": name, "gain": x, "value": v} for x, v in points]
    return pd.DataFrame(rows)


def _bounds(block: range, seed: int) -> pandas.DataFrame:
    """Theorem 3's two bounds on random data sets with one common token: the least room left, in ln chi."""
    import numpy as np
    import pandas as pd

    from joma.data.next_token import NextTokenData
    from joma.dynamics.token_flow import strongest_distinct, token_flow
    from joma.theory.scan_snap.fates import gain_bounds, gain_factor

    rows: list[dict[str, Any]] = []
    times = np.concatenate([[0.0], np.geomspace(0.1, 300, 12)])
    for number in block:
        random = np.random.default_rng([seed, number])
        classes, distinct = int(random.integers(2, 5)), int(random.integers(2, 5))
        lasts = int(random.integers(1, classes + 1))
        weights = np.zeros((classes, 1 + classes * distinct))
        weights[:, 0] = random.uniform(0.2, 5, classes)
        for n in range(classes):
            weights[n, 1 + n * distinct : 1 + (n + 1) * distinct] = random.uniform(0.1, 1, distinct)
        last_of_next = np.sort(np.concatenate([np.arange(lasts), random.integers(0, lasts, classes - lasts)]))
        data = NextTokenData(weights / weights.sum(axis=1, keepdims=True), last_of_next)
        eta_z = float(10 ** -random.uniform(0, 3))
        flow = token_flow(data, eta_y=1.0, eta_z=eta_z, times=times, rtol=1e-8)
        own, strongest = np.arange(classes), strongest_distinct(data)
        rise = np.log(gain_factor(flow.logits[:, data.last_of_next][:, own, strongest]))[1:]
        lower, upper = (np.log(x)[1:] for x in gain_bounds(flow.features[0][own, strongest], flow.gain))
        numbers = {
            "room above the lower bound": (rise - lower).min(),
            "room below the upper bound": (upper - rise).min(),
            "smallest step of B": np.diff(flow.gain, axis=0).min(),
        }
        label = {"run": number, "rate_ratio": 1 / eta_z}
        rows += [{**label, "metric": name, "value": float(v)} for name, v in numbers.items()]
    return pd.DataFrame(rows)


def _draw_gain(axes: Axes, gain: pandas.DataFrame, phases: pandas.DataFrame) -> None:
    from joma.reporting.figures import PALETTE, ink

    middle = sorted(gain["eta_y"].unique())[len(gain["eta_y"].unique()) // 2]
    curves = gain[(gain["metric"] == "gain") & (gain["eta_y"] == middle) & (gain["time"] > 0)]
    for colour, (z, run) in zip(PALETTE, curves.groupby("eta_z"), strict=False):
        axes.loglog(run["time"], run["value"], color=colour, label=f"$\\eta_Z$ = {z:g}")
    first = curves[curves["eta_z"] == curves["eta_z"].max()]
    early = first[first["value"] < 0.3 * first["value"].max()]
    law = early["value"].iloc[0] * (early["time"] / early["time"].iloc[0]) ** 2
    axes.loglog(early["time"], law, ":", color=ink(), linewidth=1.2, label="law $t^2$ of scanning")
    decoder = phases[(phases["metric"] == "decoder time") & (phases["eta_y"] == middle)]["value"].iloc[0]
    axes.axvline(decoder, color=ink(), linewidth=0.8, linestyle="--")
    axes.annotate(
        "decoder at\nhalf speed",
        (decoder, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8,
    )
    axes.set(
        xlabel="time $t$", ylabel="gain $B_n(t)$", title=f"Scanning, then snapping ($\\eta_Y$ = {middle:g})"
    )
    axes.set_ylim(1e-9, 10)
    axes.legend(loc="upper left")


def _draw_rates(axes: Axes, phases: pandas.DataFrame) -> None:
    from joma.reporting.figures import PALETTE, ink

    runs = phases.pivot_table(index=["eta_z", "eta_y"], columns="metric", values="value")
    for colour, (z, line) in zip(PALETTE, runs.groupby("eta_z"), strict=False):
        y = line.index.get_level_values("eta_y")
        gain = line["gain"] / line["gain"].iloc[0]
        axes.loglog(y, gain, "o-", color=colour, markersize=4, label=f"end, $\\eta_Z$ = {z:g}")
    early = line["early gain"] / line["early gain"].iloc[0]
    axes.loglog(y, early, "s--", color=ink(), markersize=4, label="early, all $\\eta_Z$")
    axes.set(
        xlabel="decoder's rate $\\eta_Y$",
        ylabel="gain, relative to the smallest $\\eta_Y$",
        title="A faster decoder: more gain early, not at the end",
    )
    axes.legend(loc="upper left")


def _draw_theorem_3(axes: Axes, laws: pandas.DataFrame) -> None:
    from joma.reporting.figures import PALETTE, ink

    errors = laws[laws["metric"] == "theorem 3, error"]
    shapes: dict[str, str] = {}
    for colour, (classes, sets) in zip(PALETTE, errors.groupby("next_tokens"), strict=False):
        for style, (weight, line) in zip(("o-", "s--", "^:"), sets.groupby("common_weight"), strict=False):
            axes.loglog(line["rate_ratio"], line["value"], style, color=colour, markersize=4)
            shapes[style] = f"common token's weight {weight:g}"
        axes.plot([], [], color=colour, label=f"K = {classes} next tokens")
    for style, label in shapes.items():
        axes.plot([], [], style, color=ink(), markersize=4, label=label)
    axes.axhline(1e-3, color=ink(), linewidth=0.8, linestyle="-.", label="the claim's tolerance, 0.001")
    axes.set(
        xlabel="$\\eta_Y/\\eta_Z$",
        ylabel="largest $|r/(r_0\\chi) - 1|$",
        title="Theorem 3 as $\\eta_Y/\\eta_Z$ grows",
    )
    axes.legend(loc="lower left", fontsize=8, handlelength=2.8)


def _draw_hypothesis(axes: Axes, overlap: pandas.DataFrame) -> None:
    import numpy as np

    from joma.reporting.figures import PALETTE, ink

    weight = overlap["common_weight"].max()
    shown = overlap[overlap["common_weight"] == weight]
    for colour, (classes, sets) in zip(PALETTE, shown.groupby("next_tokens"), strict=False):
        for metric, style in (("ln overlap", "-"), ("ln overlap, law", "--")):
            line = sets[sets["metric"] == metric]
            label = f"K = {classes}" if style == "-" else None
            axes.plot(
                line["gain"], line["value"], style, color=ink() if style == "--" else colour, label=label
            )
    reach = shown["gain"].max()
    floor = 1.6 * shown["value"].min()
    b = np.linspace(0, min(reach, -floor / 4), 20)
    axes.plot(b, -4 * b, ":", color=ink(), label="hypothesis $e^{-4B}$")
    axes.plot([], [], "--", color=ink(), label="law from the state")
    axes.set(
        xlabel="gain $B_n$",
        ylabel="$\\ln\\ f_n\\cdot f_{n'}$, less its start",
        title=f"The gain lowers the overlap (common weight {weight:g})",
    )
    axes.legend(loc="lower right")
