"""Curves that others recorded: attention entropy of each layer and validation loss, a row a moment."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from joma.core.claim import Claim, Statement, above
from joma.core.errors import InputError, first_line
from joma.core.files import regular, user_path
from joma.experiments.shared.curve_settings import CurveSettings
from joma.experiments.shared.curves import COLUMNS, FEWEST_POINTS, REAL
from joma.experiments.shared.decoder_settings import rate_name, run_name

_ENTROPY = "entropy_layer"
_KEYS = ["layers", "lr", "seed", "minibatch"]
_SHUFFLES = 500
_ALIKE = 0.5


def read_record(path: str, *, learning_rates: Iterable[float] = ()) -> pd.DataFrame:
    """The curves of a CSV file: ``layers, lr, seed, minibatch, validation_loss, entropy_layer0, ...``.

    Returns the columns of the curves that ``joma.experiments.shared.curves`` trains.

    Args:
        path: CSV, or CSV in gzip.
        learning_rates: the only ones that are kept (none: all).

    Raises:
        InputError: no such file or columns, values that are no numbers, or no curve at these rates.
    """
    try:
        wide = pd.read_csv(regular(user_path(path)))
        entropies = [name for name in wide.columns if name.startswith(_ENTROPY)]
        missing = sorted({*_KEYS, "validation_loss", f"{_ENTROPY}0"} - set(wide.columns))
        if missing:
            raise InputError(
                f"recorded curves {path!r} have no column {missing[0]!r}; give {', '.join(_KEYS)}, "
                f"validation_loss, {_ENTROPY}0, {_ENTROPY}1, ..."
            )
        wide = wide[[*_KEYS, "validation_loss", *entropies]].astype(float)
    except (OSError, ValueError, UnicodeDecodeError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"recorded curves {path!r} cannot be read as a table ({first_line(error)})."
        ) from error
    wanted = list(learning_rates)
    if wanted:
        wide = wide[np.isclose(wide["lr"].to_numpy()[:, None], wanted, rtol=1e-6).any(axis=1)]
    if wide.empty:
        rates = f" at the learning rate {', '.join(f'{rate:g}' for rate in wanted)}" if wanted else ""
        raise InputError(f"recorded curves {path!r} hold no row{rates}; give others.")
    if wide[_KEYS].isna().any(axis=None) or wide.duplicated(_KEYS).any():
        raise InputError(f"recorded curves {path!r} have a row twice, or one without its run or minibatch.")
    long = wide.melt(_KEYS, var_name="name", value_name="value").dropna(subset="value")
    layer = pd.to_numeric(long["name"].str.removeprefix(_ENTROPY), errors="coerce").astype("Int64")
    found = pd.DataFrame(
        {
            "depth": long["layers"].astype(int),
            "seed": long["seed"].astype(int),
            "learning_rate": long["lr"],
            "variant": REAL,
            "step": long["minibatch"].astype(int),
            "layer": layer,
            "head": 0,
            "metric": np.where(layer.isna(), "validation_loss", "attention_entropy"),
            "value": long["value"],
            "unit": "nats",
            "dtype": "float32",
        }
    )
    found = found[found["layer"].isna() | (found["layer"] < found["depth"])]
    names = [
        run_name(depth, seed, rate_name(rate))
        for depth, seed, rate in found[["depth", "seed", "learning_rate"]].itertuples(index=False)
    ]
    found.insert(0, "run", names)
    return found[COLUMNS].sort_values(["run", "step", "metric", "layer"], ignore_index=True)


def compare(curves: pd.DataFrame, record: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Our top layers' curves beside the recorded ones, one row for each depth and learning rate of both.

    ``correlation``: of ranks over the recorded moments (``FEWEST_POINTS`` of them at least) that lie
    within our curve; ``null``: what 1 in 20 of our curves with shuffled time exceeds; ``difference``: mean
    absolute difference of the means over seeds, ``spread``: the recorded seeds' standard deviation, in nats.
    """
    random = np.random.default_rng(seed)
    rows = []
    ours, theirs = (_top(table) for table in (curves, record))
    for (depth, rate), own in ours.groupby(["depth", "learning_rate"]):
        near = np.isclose(theirs["learning_rate"], rate, rtol=1e-6) & (theirs["depth"] == depth)
        reference = theirs[near].groupby("step")["value"].agg(["mean", "std"])
        mean = own.groupby("step")["value"].mean()
        reference = reference[reference.index <= mean.index.max()]
        if len(reference) < FEWEST_POINTS:
            continue
        at = np.interp(reference.index, mean.index, mean.to_numpy())
        shuffled = [spearmanr(random.permutation(at), reference["mean"]).statistic for _ in range(_SHUFFLES)]
        rows.append(
            {
                "depth": depth,
                "learning_rate": rate,
                "moments": len(reference),
                "correlation": float(spearmanr(at, reference["mean"]).statistic),
                "null": float(np.quantile(shuffled, 0.95)),
                "difference": float(np.abs(at - reference["mean"]).mean()),
                "spread": float(reference["std"].mean()),
            }
        )
    columns = ["depth", "learning_rate", "moments", "correlation", "null", "difference", "spread"]
    return pd.DataFrame(rows, columns=columns)


def agrees(settings: CurveSettings, compared: pd.DataFrame, statement: Statement) -> Claim:
    """Whether our curves have the shape of the recorded ones, at every depth and rate of both."""
    if settings.recorded:
        return statement.not_tested("these are the authors' own curves")
    if "wikitext-2" not in settings.corpus.replace("_", "-").lower():
        return statement.not_tested(f"the corpus is {settings.corpus}, not WikiText-2")
    if not settings.authors_curves:
        return statement.not_tested("no file of the authors' curves was given (setting authors_curves)")
    if compared.empty:
        return statement.not_tested(
            f"no curve of theirs has these depths and rates and {FEWEST_POINTS} common steps"
        )
    worst = compared.loc[compared["correlation"].idxmin()]
    ours, what = compared["correlation"], "rank correlation over the common steps"
    return statement.judge(
        above(_ALIKE, ours, of=what, across="in every cell")
        & above(compared["null"], ours, of=what, than="the null", across="in every cell"),
        null=compared["null"].max(),
        null_description="correlation that 1 in 20 time-shuffled curves exceeds",
        evidence=f"smallest of {len(compared)} depths and rates ({worst['depth']:.0f} layers, rate "
        f"{worst['learning_rate']:g}), median {compared['correlation'].median():.2f}; mean difference "
        f"{compared['difference'].median():.2f} nats (median), their seeds' spread "
        f"{compared['spread'].median():.2f}",
    )


def _top(curves: pd.DataFrame) -> pd.DataFrame:
    return curves[(curves["metric"] == "attention_entropy") & (curves["layer"] == curves["depth"] - 1)]
