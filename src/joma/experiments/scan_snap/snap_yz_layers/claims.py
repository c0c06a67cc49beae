"""The claims of ``joma.experiments.scan_snap.snap_yz_layers``, from its tables alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Statement, above, below, statements
from joma.experiments.scan_snap.snap_yz_layers import SnapYzLayers

SOURCE = "Scan&Snap slides, more ongoing experiments"
DEEP = 3
"""The number of layers beyond which the slides say that performance drops."""
STANDARD_ERRORS = 3.0
"""A difference of two means counts from so many of its standard errors on."""
STATEMENTS = statements(
    {
        "snap_yz_layers.works": f"{SOURCE} | The YZ parametrisation works on real text.",
        "snap_yz_layers.works_in_layers": f"{SOURCE} | It works even in several layers (2 to {DEEP}).",
        "snap_yz_layers.drops": f"{SOURCE} | Performance drops if more than {DEEP} layers are stacked.",
        "snap_yz_layers.start": "why performance drops (not in the slides) | Deep YZ models are worse "
        "because of their random start: from identity they are better.",
        "snap_yz_layers.residual": f"{SOURCE} | The residual connection is important: without it the loss is "
        "higher, at every depth.",
        "snap_yz_layers.above_decoder": f"{SOURCE} | Its perplexity is higher than the ordinary "
        "transformer's, at every depth.",
        "snap_yz_layers.embedding": f"{SOURCE} | The embedding is what the YZ model lacks: factors of low "
        "rank lower the loss.",
    }
)


def claims(settings: SnapYzLayers, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The slides' sentences, each a difference of mean losses against its standard error."""
    losses = tables["losses"][tables["losses"]["chosen"]]
    compared = _Comparison(losses)
    baselines = tables["baselines"].set_index("model")["value"]
    late = _late_falls(tables["curves"], losses)
    return [
        _works(compared, baselines),
        _works_in_layers(compared, baselines, late),
        _drops(compared, losses, late),
        *_start_is_not_why(compared),
        _higher(compared, "YZ, no residual", "YZ", STATEMENTS["snap_yz_layers.residual"]),
        _higher(compared, "YZ", "decoder", STATEMENTS["snap_yz_layers.above_decoder"]),
        _higher(compared, "YZ", "YZ, low rank", STATEMENTS["snap_yz_layers.embedding"]),
    ]


def _late_falls(curves: pd.DataFrame, losses: pd.DataFrame) -> pd.Series:
    """Depth -> by how much the YZ model's loss still fell in the last interval between measurements."""
    runs = losses.loc[losses["model"] == "YZ", "run"]
    held_out = curves[curves["run"].isin(runs) & (curves["metric"] == "validation_loss")]
    by_depth = held_out.groupby(["depth", "step"])["value"].mean()
    return by_depth.groupby("depth").agg(lambda loss: loss.iloc[-2] - loss.iloc[-1] if len(loss) > 1 else 0.0)


def _still_learning(late: pd.Series, compared: _Comparison, deep: pd.Series) -> str:
    """Why these depths cannot be called worse yet; empty if they have been trained out."""
    falls = late.reindex(deep.index).max()
    if not falls > compared.chance:
        return ""
    return (
        f"the loss of {deep.index[-1]} layers ({deep.iloc[-1]:.3f}) still fell by {falls:.3f} nats in the "
        "last interval, more than chance: deep models may only be slower (train longer: setting steps)"
    )


class _Comparison:
    """Mean losses by model and depth, and what a difference of two of them may be by chance."""

    def __init__(self, losses: pd.DataFrame) -> None:
        by_cell = losses.groupby(["model", "depth"])["loss"]
        self.mean, self.runs = by_cell.mean(), int(by_cell.size().min())
        self.largest_gap = float((by_cell.max() - by_cell.min()).max())
        freedom = len(losses) - len(self.mean)
        # One deviation pooled over all cells: two or three seeds a cell cannot give one each.
        self.deviation = (
            float(((losses["loss"] - by_cell.transform("mean")) ** 2).sum() / freedom) ** 0.5
            if freedom
            else float("nan")
        )

    @property
    def chance(self) -> float:
        """So many standard errors of a difference of two cells; NaN with one seed."""
        return float(STANDARD_ERRORS * self.deviation * (2 / self.runs) ** 0.5)

    def of(self, model: str) -> pd.Series:
        """Depth -> mean loss; empty if the model was not trained."""
        known = model in self.mean.index.get_level_values("model")
        return self.mean[model] if known else self.mean.iloc[:0].droplevel("model")

    def why_missing(self, *models: str) -> str:
        """Why a comparison of these models cannot be made; empty if it can."""
        absent = [model for model in models if self.of(model).empty]
        if absent:
            return f"{' and '.join(absent)} not trained (setting models)"
        return "" if self.deviation == self.deviation else "one seed gives no standard error (setting seeds)"


def _judge_difference(compared: _Comparison, difference: pd.Series, statement: Statement) -> Claim:
    """The smallest of ``difference`` over depths must be above chance."""
    listed = ", ".join(f"{depth}: {value:+.3f}" for depth, value in difference.items())
    return statement.judge(
        above(
            compared.chance,
            difference.min(),
            of="difference of mean losses",
            than=f"{STANDARD_ERRORS:g} of its standard errors",
            across="at every depth",
            unit="nats",
        )
        & above(
            compared.largest_gap,
            difference.min(),
            of="difference of mean losses",
            than="any of two runs that differ in their seed alone",
            across="at every depth",
            unit="nats",
        ),
        null=compared.largest_gap,
        null_description="the largest difference of two runs that differ in their seed alone",
        evidence=f"nats, by number of layers: {listed}",
    )


def _higher(compared: _Comparison, model: str, other: str, statement: Statement) -> Claim:
    """Whether one model has a higher loss than another, at every depth."""
    if reason := compared.why_missing("YZ", *({model, other} - {"YZ"})):
        return statement.not_tested(reason)
    return _judge_difference(compared, compared.of(model) - compared.of(other), statement)


def _works(compared: _Comparison, baselines: pd.Series) -> Claim:
    statement = STATEMENTS["snap_yz_layers.works"]
    of_yz = compared.of("YZ")
    if 1 not in of_yz.index:
        return statement.not_tested("no YZ model of one layer was trained")
    bigram = baselines["bigram"]
    return statement.judge(
        below(bigram, of_yz[1], of="held-out loss of one layer", than="the bigram model's", unit="nats"),
        null=bigram,
        null_description=f"bigram model (unigram: {baselines['unigram']:.3f})",
        evidence="nats a token",
    )


def _works_in_layers(compared: _Comparison, baselines: pd.Series, late: pd.Series) -> Claim:
    statement, bigram = STATEMENTS["snap_yz_layers.works_in_layers"], baselines["bigram"]
    of_yz = compared.of("YZ")
    several = of_yz[(of_yz.index > 1) & (of_yz.index <= DEEP)]
    if several.empty:
        return statement.not_tested(f"no YZ model of 2 to {DEEP} layers was trained")
    worse = several[several >= bigram]
    if not worse.empty and (reason := _still_learning(late, compared, worse)):
        return statement.not_tested(f"{reason}; bigram model {bigram:.3f}")
    return statement.judge(
        below(
            bigram,
            several,
            of="held-out loss",
            than="the bigram model's",
            across="at each depth",
            unit="nats",
        ),
        null=bigram,
        null_description=f"bigram model (unigram: {baselines['unigram']:.3f})",
        evidence="nats a token; "
        + ", ".join(f"{depth} layers {loss:.3f}" for depth, loss in several.items()),
    )


def _drops(compared: _Comparison, losses: pd.DataFrame, late: pd.Series) -> Claim:
    statement = STATEMENTS["snap_yz_layers.drops"]
    of_yz = compared.of("YZ")
    deep, shallow = of_yz[of_yz.index > DEEP], of_yz[of_yz.index <= DEEP]
    reason = compared.why_missing("YZ")
    if not reason and (deep.empty or shallow.empty):
        reason = f"no YZ models of both at most {DEEP} and more layers (setting depths)"
    if reason:
        return statement.not_tested(reason)
    claim = _judge_difference(compared, deep - shallow.min(), statement)
    if claim.verdict == "holds" and (reason := _still_learning(late, compared, deep)):
        return statement.not_tested(f"{reason}; so far {claim.evidence}, over the best of the others")
    first = of_yz.index[(of_yz.diff() > compared.chance).to_numpy()]
    where = (
        f"the first drop is at {first[0]} layers" if len(first) else "no depth is worse than the one before"
    )
    of_runs = losses[losses["model"] == "YZ"].groupby("depth")["learning_rate"].first()
    rates = ", ".join(f"{depth}: {rate:g}" for depth, rate in of_runs.items())
    return dataclasses.replace(
        claim, evidence=f"{claim.evidence}, over the best of the others; {where}; rates {rates}"
    )


def _start_is_not_why(compared: _Comparison) -> list[Claim]:
    """Only where the start from identity was trained: not a sentence of the slides, but its cause."""
    if compared.of("YZ, identity start").empty:
        return []
    statement = STATEMENTS["snap_yz_layers.start"]
    reason = compared.why_missing("YZ", "YZ, identity start")
    both = (compared.of("YZ") - compared.of("YZ, identity start")).dropna()
    both = both[both.index > DEEP]
    if reason or both.empty:
        return [statement.not_tested(reason or f"no depth above {DEEP}")]
    return [_judge_difference(compared, both, statement)]
