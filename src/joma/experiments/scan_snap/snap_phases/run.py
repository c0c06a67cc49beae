"""The population flow for every pair of rates and data set, and what it says of both theorems."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.data.next_token import NextTokenData, graded_tokens
from joma.dynamics.token_flow import TokenTrajectory, strongest_distinct, token_flow
from joma.experiments.scan_snap.snap_phases import SnapPhases
from joma.experiments.shared.tables import Rows
from joma.theory.scan_snap import decoder, fates, snapping
from joma.theory.scan_snap.equations import unit

RATIOS = (1000.0, 100.0, 10.0, 1.0)
"""eta_Y/eta_Z at which Theorem 3 and the hypothesis of Theorem 4 are looked at, with eta_Y = 1."""


START = 0.01
"""Scanning is looked at up to this part of the decoder's half-speed time."""


def run(settings: SnapPhases, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every pair of rates, and every data set at four ratios."""
    main = _data(settings, settings.next_tokens[0], settings.common_weights[0])
    pairs = [(y, z) for y in settings.eta_y for z in settings.eta_z]
    gain = [
        progress.part(f"rates-{y:g}-{z:g}", partial(_course, main, y, z, settings.horizon))
        for y, z in progress.track(pairs, "pairs of rates")
    ]
    sets = [(k, weight) for k in settings.next_tokens for weight in settings.common_weights]
    laws = [
        progress.part(f"laws-{k}-{w:g}", partial(_laws, _data(settings, k, w), k, w, settings.horizon))
        for k, w in progress.track(sets, "data sets")
    ]
    both = pd.concat(laws, ignore_index=True)
    curves = both["metric"].str.startswith("ln overlap")
    table = pd.concat(gain, ignore_index=True)
    return {
        "gain": table,
        "phases": _phases(main, table, settings.horizon),
        "laws": both[~curves].drop(columns="gain").reset_index(drop=True),
        "overlap": both[curves].reset_index(drop=True),
    }


def _data(settings: SnapPhases, classes: int, weight: float) -> NextTokenData:
    return graded_tokens(next_per_last=classes, common=1, distinct=settings.distinct, common_weight=weight)


def _times(horizon: float) -> np.ndarray:
    """0, then 15 times a decade from 1e-4 on."""
    times: np.ndarray = np.zeros(round(15 * np.log10(horizon / 1e-4)) + 2)
    times[1:] = np.geomspace(1e-4, horizon, times.size - 1)
    return times


def _course(data: NextTokenData, eta_y: float, eta_z: float, horizon: float) -> pd.DataFrame:
    """B of next token 0, its rate, and the common token's share of attention, along one flow."""
    flow = token_flow(data, eta_y=eta_y, eta_z=eta_z, times=_times(horizon))
    columns = {"gain": flow.gain[:, 0], "gain rate": eta_z * drive(flow), "common share": flow.mass[:, 0, 0]}
    wide = pd.DataFrame({"run": f"eta_Y {eta_y:g}, eta_Z {eta_z:g}", "time": flow.times, **columns})
    return wide.melt(["run", "time"], var_name="metric").assign(eta_y=eta_y, eta_z=eta_z, dtype="float64")


def drive(flow: TokenTrajectory) -> np.ndarray:
    """xi_n = z_l'/(eta_Z f_nl^2) of next token 0, read off its strongest distinct token l."""
    token = int(strongest_distinct(flow.data)[0])
    states = [flow.at(index) for index in range(flow.times.size)]
    pull = np.array([state.attention[0, token] / state.features[0, token] ** 2 for state in states])
    return np.asarray(flow.data.prior[0] * pull)


def start_constant(data: NextTokenData) -> float:
    """The C0 with which Theorem 4's B starts along the coupled flow: K M / ((K - 1) f_n(0) . f_n'(0)).

    At first Y = eta_Y t sum_n P(n) f_n (e_n - 1/M)', which makes every gamma beta_nn' equal to
    eta_Y t/(K M), and B = eta_Y eta_Z t^2/(2 K C0).
    """
    f = unit(data.conditional)
    return float(data.classes * data.logits / ((data.classes - 1) * (f[0] @ f[1])))


def _phases(data: NextTokenData, gain: pd.DataFrame, horizon: float) -> pd.DataFrame:
    """What each run of ``gain`` says of the two phases."""
    sizes = {"classes": data.classes, "outputs": data.logits}
    constant = start_constant(data)
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
        around = decoder_time * np.array([0.1, 1, 10])
        onset = np.diff(np.interp(around, time, b))
        onset_clock = np.diff(np.log(decoder.decoder_logit(around, eta_y=y, **sizes)))
        form = snapping.gain(horizon, eta_y=y, eta_z=z, constant=constant, **sizes)
        numbers = {
            "law t^2, error": np.abs(b[early] / law - 1).max(),
            "line in ln t, error": np.abs(line / b[early] - 1).max(),
            "peak time": _peak(time, curve["gain rate"].to_numpy()),
            "decoder time": decoder_time,
            "decades since half the gain": np.log10(horizon / time[np.searchsorted(b, b[-1] / 2)]),
            "early gain": np.interp(common_start, time, b),
            "gain": b[-1],
            "closed form over gain": float(form) / b[-1],
            "slowing in ln t": growth[1] / growth[0],
            "slowing in ln ln t": (growth[1] / clock[1]) / (growth[0] / clock[0]),
            "slowing in ln h around the decoder time": (onset[1] / onset_clock[1])
            / (onset[0] / onset_clock[0]),
        }
        rows += [{"eta_y": y, "eta_z": z, "metric": name, "value": float(v)} for name, v in numbers.items()]
    return pd.DataFrame(rows)


def _peak(time: np.ndarray, rate: np.ndarray) -> float:
    """When the rate is largest: the vertex of the parabola in ln t through the three highest moments."""
    at = int(rate.argmax())
    if at + 1 == time.size or time[at - 1] == 0:
        return float(time[at])
    before, top, after = rate[at - 1 : at + 2]
    shift = (before - after) / (2 * (before - 2 * top + after))
    return float(time[at] * (time[at + 1] / time[at]) ** shift)


def _laws(data: NextTokenData, classes: int, weight: float, horizon: float) -> pd.DataFrame:
    """Theorem 3 and the hypothesis of Theorem 4 for one data set at four ratios of the rates."""
    strongest, own = int(strongest_distinct(data)[0]), np.flatnonzero(data.distinct[0])
    others = own[own != strongest]
    rows: Rows = []
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
        numbers = {
            "theorem 3, error": np.abs((relative / (relative[0] * chi[:, None]))[:, kept] - 1).max(),
            "gain": b[-1],
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
