"""The claims of ``joma.experiments.scan_snap.snap_yz_layers``, from its tables alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Stated, judge, not_tested
from joma.experiments.scan_snap.snap_yz_layers import SnapYzLayers

SOURCE = "Scan&Snap slides, more ongoing experiments"
DEEP = 3
"""The number of layers beyond which the slides say that performance drops."""
STANDARD_ERRORS = 3.0
"""A difference of two means counts from so many of its standard errors on."""


def claims(settings: SnapYzLayers, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The slides' sentences, each a difference of mean losses against its standard error."""
    losses = tables["losses"][tables["losses"]["chosen"]]
    compared = _Compared(losses)
    baselines = tables["baselines"].set_index("model")["value"]
    late = _late_falls(tables["curves"], losses)
    return [
        _works(compared, baselines),
        _works_in_layers(compared, baselines, late),
        _drops(compared, losses, late),
        *_start_is_not_why(compared),
        _residual(compared),
        _above_decoder(compared),
        _low_rank(compared),
    ]


def _late_falls(curves: pd.DataFrame, losses: pd.DataFrame) -> pd.Series:
    """Depth -> by how much the YZ model's loss still fell in the last interval between measurements."""
    runs = losses.loc[losses["model"] == "YZ", "run"]
    held_out = curves[curves["run"].isin(runs) & (curves["metric"] == "validation_loss")]
    by_depth = held_out.groupby(["depth", "step"])["value"].mean()
    return by_depth.groupby("depth").agg(lambda loss: loss.iloc[-2] - loss.iloc[-1] if len(loss) > 1 else 0.0)


def _still_learning(late: pd.Series, compared: _Compared, deep: pd.Series) -> str:
    """Why these depths cannot be called worse yet; empty if they have been trained out."""
    falls = late.reindex(deep.index).max()
    if not falls > compared.chance:
        return ""
    return (
        f"the loss of {deep.index[-1]} layers ({deep.iloc[-1]:.3f}) still fell by {falls:.3f} nats in the "
        "last interval, more than chance: deep models may only be slower (train longer: setting steps)"
    )


class _Compared:
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

    def missing(self, *models: str) -> str:
        """Why a comparison of these models cannot be made; empty if it can."""
        absent = [model for model in models if self.of(model).empty]
        if absent:
            return f"{' and '.join(absent)} not trained (setting models)"
        return "" if self.deviation == self.deviation else "one seed gives no standard error (setting seeds)"


def _judged(compared: _Compared, difference: pd.Series, facts: Stated, *, sign: str = "above") -> Claim:
    """The smallest of ``difference`` over depths must be above chance (or the largest not above it)."""
    above = sign == "above"
    measured = float(difference.min() if above else difference.max())
    listed = ", ".join(f"{depth}: {value:+.3f}" for depth, value in difference.items())
    return judge(
        bool(measured > compared.chance if above else measured <= compared.chance),
        expected=f"{'more' if above else 'at most'} {'than ' if above else ''}{STANDARD_ERRORS:g} standard "
        "errors of a difference of two means",
        measured=measured,
        tolerance=compared.chance,
        null=compared.largest_gap,
        null_description="the largest difference of two runs that differ in their seed alone",
        evidence=f"nats, by number of layers: {listed}",
        **facts,
    )


def _works(compared: _Compared, baselines: pd.Series) -> Claim:
    facts: Stated = {
        "id": "snap_yz_layers.works",
        "source": SOURCE,
        "statement": "The YZ parametrisation works on real text.",
    }
    of_yz = compared.of("YZ")
    if 1 not in of_yz.index:
        return not_tested(**facts, reason="no YZ model of one layer was trained")
    return judge(
        bool(of_yz[1] < baselines["bigram"]),
        expected="one layer has a lower held-out loss than counting pairs of neighbours",
        measured=of_yz[1],
        tolerance=baselines["bigram"],
        null=baselines["bigram"],
        null_description=f"bigram model (unigram: {baselines['unigram']:.3f})",
        evidence="nats a token",
        **facts,
    )


def _works_in_layers(compared: _Compared, baselines: pd.Series, late: pd.Series) -> Claim:
    facts: Stated = {
        "id": "snap_yz_layers.works_in_layers",
        "source": SOURCE,
        "statement": f"It works even in several layers (2 to {DEEP}).",
    }
    of_yz = compared.of("YZ")
    several = of_yz[(of_yz.index > 1) & (of_yz.index <= DEEP)]
    if several.empty:
        return not_tested(**facts, reason=f"no YZ model of 2 to {DEEP} layers was trained")
    worse = several[several >= baselines["bigram"]]
    if not worse.empty and (reason := _still_learning(late, compared, worse)):
        return not_tested(**facts, reason=f"{reason}; bigram model {baselines['bigram']:.3f}")
    return judge(
        bool(several.max() < baselines["bigram"]),
        expected="lower held-out loss than the bigram model at each of these depths",
        measured=several.max(),
        tolerance=baselines["bigram"],
        null=baselines["bigram"],
        null_description=f"bigram model (unigram: {baselines['unigram']:.3f})",
        evidence="nats a token; "
        + ", ".join(f"{depth} layers {loss:.3f}" for depth, loss in several.items()),
        **facts,
    )


def _drops(compared: _Compared, losses: pd.DataFrame, late: pd.Series) -> Claim:
    facts: Stated = {
        "id": "snap_yz_layers.drops",
        "source": SOURCE,
        "statement": f"Performance drops if more than {DEEP} layers are stacked.",
    }
    of_yz = compared.of("YZ")
    deep, shallow = of_yz[of_yz.index > DEEP], of_yz[of_yz.index <= DEEP]
    reason = compared.missing("YZ")
    if not reason and (deep.empty or shallow.empty):
        reason = f"no YZ models of both at most {DEEP} and more layers (setting depths)"
    if reason:
        return not_tested(**facts, reason=reason)
    claim = _judged(compared, deep - shallow.min(), facts)
    if claim.verdict == "holds" and (reason := _still_learning(late, compared, deep)):
        return not_tested(**facts, reason=f"{reason}; so far {claim.evidence}, over the best of the others")
    first = of_yz.index[(of_yz.diff() > compared.chance).to_numpy()]
    where = (
        f"the first drop is at {first[0]} layers" if len(first) else "no depth is worse than the one before"
    )
    of_runs = losses[losses["model"] == "YZ"].groupby("depth")["learning_rate"].first()
    rates = ", ".join(f"{depth}: {rate:g}" for depth, rate in of_runs.items())
    return dataclasses.replace(
        claim, evidence=f"{claim.evidence}, over the best of the others; {where}; rates {rates}"
    )


def _start_is_not_why(compared: _Compared) -> list[Claim]:
    """Only where the start from identity was trained: not a sentence of the slides, but its cause."""
    if compared.of("YZ, identity start").empty:
        return []
    facts: Stated = {
        "id": "snap_yz_layers.start",
        "source": "why performance drops (not in the slides)",
        "statement": "Deep YZ models are worse because of their random start: from identity they are better.",
    }
    reason = compared.missing("YZ", "YZ, identity start")
    both = (compared.of("YZ") - compared.of("YZ, identity start")).dropna()
    both = both[both.index > DEEP]
    if reason or both.empty:
        return [not_tested(**facts, reason=reason or f"no depth above {DEEP}")]
    return [_judged(compared, both, facts)]


def _residual(compared: _Compared) -> Claim:
    facts: Stated = {
        "id": "snap_yz_layers.residual",
        "source": SOURCE,
        "statement": "The residual connection is important: without it the loss is higher, at every depth.",
    }
    if reason := compared.missing("YZ", "YZ, no residual"):
        return not_tested(**facts, reason=reason)
    return _judged(compared, compared.of("YZ, no residual") - compared.of("YZ"), facts)


def _above_decoder(compared: _Compared) -> Claim:
    facts: Stated = {
        "id": "snap_yz_layers.above_decoder",
        "source": SOURCE,
        "statement": "Its perplexity is higher than the ordinary transformer's, at every depth.",
    }
    if reason := compared.missing("YZ", "decoder"):
        return not_tested(**facts, reason=reason)
    return _judged(compared, compared.of("YZ") - compared.of("decoder"), facts)


def _low_rank(compared: _Compared) -> Claim:
    facts: Stated = {
        "id": "snap_yz_layers.embedding",
        "source": SOURCE,
        "statement": "The embedding is what the YZ model lacks: factors of low rank lower the loss.",
    }
    if reason := compared.missing("YZ", "YZ, low rank"):
        return not_tested(**facts, reason=reason)
    return _judged(compared, compared.of("YZ") - compared.of("YZ, low rank"), facts)
