"""The statistics of an attention row that can be asked for by name.

Notation: row i has scores s_j, probabilities p = softmax(s) over the n keys it sees, entropy H.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from joma.core.errors import InputError, nearest
from joma.measures.attention.scores import Moments, Scores, WantedMoments

STATISTICS: dict[str, tuple[str, str]] = {
    "entropy": ("nats", "H = -sum p_j log p_j"),
    "normalised_entropy": ("", "H / log n, n the keys that the row sees; NaN where n = 1"),
    "entropy_over_log_length": ("", "H / log T, T the keys that any row of the sample sees"),
    "effective_support": ("keys", "exp H: as many keys, attended to equally, have the same entropy"),
    "renyi_A": ("nats", "Renyi entropy log(sum p_j^A) / (1 - A), for A > 0 such as renyi_2 or renyi_0.5"),
    "min_entropy": ("nats", "-log max p_j, the Renyi entropy of order infinity"),
    "largest_probability": ("", "max p_j"),
    "largest_logit": ("nats", "max s_j, with scale, soft cap and bias, as the softmax sees it"),
    "log_normaliser": ("nats", "log sum exp s_j, the sink included where there is one"),
    "first_key_mass": ("", "p of the first key that any row of the sample sees, after left padding"),
    "self_mass": ("", "p of the key at the query's own position"),
    "previous_key_mass": ("", "p of the key before the query's own position; NaN where there is none"),
    "mean_distance": ("keys", "E[i - j], how far back the row looks; negative when it looks ahead"),
    "distance_spread": ("keys", "standard deviation of i - j under p"),
    "sink_mass": ("", "p of the learned sink"),
    "entropy_among_keys": ("nats", "the entropy of p over the keys alone, the sink left out"),
}
"""name -> (unit, definition)"""
ATTENTION_ENTROPY = "attention_entropy"
"""The name of attention's entropy in every table: of a training, a watch, a probe, a series, a monitor."""

_POSITIONAL = {"self_mass", "previous_key_mass", "mean_distance", "distance_spread"}
_RENYI = re.compile(r"renyi_(\d+(?:\.\d+)?)")


def metric_of(statistic: str) -> str:
    """A statistic's name in a table, where other things than attention have an entropy too."""
    return ATTENTION_ENTROPY if statistic == "entropy" else statistic


def renyi_order(name: str) -> float | None:
    """2.0 for "renyi_2", None for what is no Renyi entropy of a usable order."""
    match = _RENYI.fullmatch(name)
    order = float(match[1]) if match else 0.0
    return order if order > 0 and order != 1 else None


def check_names(statistics: Sequence[str], *, sinks: bool) -> tuple[str, ...]:
    """The names, once each, "entropy" among them.

    Raises:
        InputError: an unknown name, or one that needs sinks where there are none.
    """
    if isinstance(statistics, str):
        statistics = (statistics,)
    for name in statistics:
        if (name in STATISTICS and name != "renyi_A") or renyi_order(name) is not None:
            if name == "sink_mass" and not sinks:
                raise InputError("attention_entropy: 'sink_mass' needs sinks, one learned logit per head.")
            continue
        names = [*(known for known in STATISTICS if known != "renyi_A"), "renyi_2"]
        raise InputError(f"attention_entropy: unknown statistic {name!r}; {nearest(name, names)}")
    return tuple(dict.fromkeys(("entropy", *statistics)))


def needs_positions(statistics: Sequence[str]) -> str | None:
    """The first of the statistics that depends on where the queries stand."""
    return next((name for name in statistics if name in _POSITIONAL), None)


def wanted_moments(statistics: Sequence[str]) -> WantedMoments:
    """Which moments the statistics are made of."""
    orders = (renyi_order(name) for name in statistics)
    return WantedMoments(
        powers=tuple(order for order in orders if order is not None),
        mean_key="mean_distance" in statistics,
        key_spread="distance_spread" in statistics,
        largest=bool({"largest_probability", "largest_logit", "min_entropy"} & set(statistics)),
    )


def finish(
    scores: Scores, moments: Moments, statistics: Sequence[str], sinks: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Statistics by name, and the estimate of each one's error; (batch, heads, rows) each.

    With ``sinks`` (heads,) the sink is one more outcome with probability m. By the chain rule
    H = h(m) + (1 - m) H_keys with h the entropy of a coin, so that it needs no column of its own.
    """
    found = _Outcome(scores, moments, sinks)
    both = {name: found.statistic(name) for name in statistics}
    # Rows that see nothing have no distribution.
    empty = (found.count == 0).expand(moments.entropy.shape)
    values, errors = (
        {name: pair[which].masked_fill(empty, torch.nan) for name, pair in both.items()} for which in (0, 1)
    )
    return values, errors


class _Outcome:
    """The distribution of each row over its keys and the sink."""

    def __init__(self, scores: Scores, moments: Moments, sinks: Tensor | None) -> None:
        self.scores, self.moments = scores, moments
        self.lse, self.count = moments.log_normaliser, scores.visible.counts
        self.epsilon = torch.finfo(self.lse.dtype).eps
        self.rounding = scores.rounding
        self.outcomes = self.count + (sinks is not None)
        self.most = self.outcomes.clamp_min(1).to(self.lse.dtype).log()
        # What centring took from the scores: the logits and a sink beside the keys know of it.
        self._offset: tuple[Tensor | float, Tensor | float] | None = None
        self.entropy, self.error = moments.entropy, moments.error
        # log(1 - m), added to the log-probability of a key, and the error of that.
        self.kept: Tensor | float = 0.0
        self.kept_error: Tensor | float = 0.0
        self.sink = self.sink_error = torch.zeros_like(self.lse)
        if sinks is not None:
            self._with_sink(sinks)

    def _with_sink(self, sinks: Tensor) -> None:
        offset, offset_error = self.offset
        among = self.moments.entropy
        gap = sinks.to(self.lse.dtype)[:, None] - (self.lse + offset)
        self.kept, log_sink = torch.nn.functional.logsigmoid(-gap), torch.nn.functional.logsigmoid(gap)
        self.sink = log_sink.exp()
        # Far on either side one term is 0 times something large: finite, since gap is.
        self.entropy = -self.sink * log_sink - self.kept.exp() * self.kept + self.kept.exp() * among
        doubt = 4 * self.epsilon * (gap.abs() + self.lse.abs() + (self.lse + offset).abs())
        doubt = doubt + self.moments.normaliser_error + offset_error
        # The slope m (1 - m) is largest, within the doubt, at the gap nearest to 0.
        nearest = torch.sigmoid(-(gap.abs() - doubt).clamp_min(0.0))
        slope = nearest * (1 - nearest)
        self.error = self.error + slope * (gap.abs() + doubt + among.abs()) * doubt + 2 * self.epsilon
        self.sink_error = slope * doubt + 2 * self.epsilon
        self.kept_error = torch.sigmoid(gap + doubt) * doubt + 2 * self.epsilon * self.kept.abs()

    @property
    def offset(self) -> tuple[Tensor | float, Tensor | float]:
        """scale q . centre, and its error."""
        if self._offset is None:
            self._offset = self.scores.offset(), self.scores.offset_error()
        return self._offset

    def statistic(self, name: str) -> tuple[Tensor, Tensor]:
        """A statistic and the estimate of its error."""
        order = renyi_order(name)
        if order is not None:
            return self._renyi(order)
        match name:
            case "entropy":
                return self.entropy, self.error
            case "entropy_among_keys":
                return self.moments.entropy, self.moments.error
            case "sink_mass":
                return self.sink, self.sink_error
            case "normalised_entropy":
                return self._over(self.most, self.outcomes == 1)
            case "entropy_over_log_length":
                length = (self.scores.visible.end - self.scores.visible.begin).to(self.lse.dtype)
                return self._over(length[:, None, None].log(), (length == 1)[:, None, None])
            case "effective_support":
                support = self.entropy.exp()
                error = support * (self.error.minimum(self.most).expm1() + 4 * self.epsilon)
                return support, error
            case "log_normaliser" | "largest_logit":
                return self._logit(name)
            case "largest_probability" | "min_entropy":
                return self._largest(name)
            case "mean_distance" | "distance_spread":
                return self._distance(name)
        return self._mass(name)

    def _over(self, whole: Tensor, none: Tensor) -> tuple[Tensor, Tensor]:
        value = (self.entropy / whole).masked_fill(none, torch.nan)
        return value, (self.error / whole).masked_fill(none, torch.nan) + 4 * self.epsilon

    def _logit(self, name: str) -> tuple[Tensor, Tensor]:
        offset, error = self.offset
        if name == "log_normaliser":
            value = self.lse + offset - self.kept
            error = error + self.moments.normaliser_error + self.kept_error
        else:
            assert self.moments.largest is not None
            value = self.moments.largest + offset
            error = error + self.moments.score_error
        return value, error + 4 * self.epsilon * (self.lse.abs() + value.abs())

    def _largest(self, name: str) -> tuple[Tensor, Tensor]:
        assert self.moments.largest is not None
        largest = (self.moments.largest - self.lse).clamp_max(0.0)
        doubt = self.moments.score_error + self.moments.normaliser_error
        # Of a key that has the row to itself rounding takes no more than the others have.
        others = -largest.expm1() * (2 * doubt).clamp_max(40.0).expm1() + 4 * self.epsilon * (
            1 + self.lse.abs()
        )
        log_largest = largest + self.kept
        error = doubt.minimum(others / largest.exp()) + self.kept_error
        if name == "largest_probability":
            return log_largest.exp(), (log_largest.exp() * error.expm1()).clamp_max(1.0) + 2 * self.epsilon
        if isinstance(self.kept, Tensor):  # a sink leaves the keys as little as it likes
            return -log_largest, error
        most = self.most.expand_as(log_largest)
        return (-log_largest).clamp_min(0.0).minimum(most), error.minimum(most + self.epsilon)

    def _distance(self, name: str) -> tuple[Tensor, Tensor]:
        doubt = (2 * self.moments.score_error).clamp_max(40.0).expm1()
        reach = (self.scores.visible.stop - self.scores.visible.first)[:, None].to(self.lse.dtype)
        adding = self.rounding * reach * (1 + self.scores.key.shape[2] / 2048)
        if name == "mean_distance":
            assert self.moments.mean_key is not None
            spread = reach / 2 if self.moments.key_spread is None else self.moments.key_spread
            return -self.moments.mean_key, (doubt * spread + adding).minimum(reach + adding)
        assert self.moments.key_spread is not None
        value = self.moments.key_spread
        return value, (doubt * value + adding).minimum(reach + adding)

    def _mass(self, name: str) -> tuple[Tensor, Tensor]:
        match name:
            case "first_key_mass":
                keys = self.scores.visible.begin[:, None].expand(-1, self.lse.shape[-1])
            case "self_mass":
                keys = self.scores.positions[None]
            case "previous_key_mass":
                keys = self.scores.positions[None] - 1
            case _:
                raise AssertionError(name)
        score, length = self.scores.at(keys)
        mass = (score - self.lse + self.kept).exp().clamp_max(1.0)
        size = self.scores.length() * length + score.nan_to_num(neginf=0.0).abs()
        doubt = self.rounding * size + self.moments.normaliser_error + self.kept_error
        doubt = doubt + 4 * self.epsilon * self.lse.abs()
        error = (mass * doubt.clamp_max(40.0).expm1()).clamp_max(1.0) + 4 * self.epsilon
        # What has no weight by its score may have had some, within the doubt.
        error = torch.maximum(error, (doubt - _WEIGHTLESS).exp().clamp_max(1.0))
        error = error.masked_fill(score == -torch.inf, 0.0)
        if name == "first_key_mass":
            return mass, error
        exists = (keys >= self.scores.visible.begin[:, None]) & (keys < self.scores.key.shape[2])
        return tuple(x.masked_fill(~exists[:, None], torch.nan) for x in (mass, error))  # type: ignore[return-value]

    def _renyi(self, order: float) -> tuple[Tensor, Tensor]:
        log_sum = self.moments.powers[order]
        # Of log sum p^a rounding changes a (E_a[ds] - E[ds]); summing, some units.
        sums = log_sum.abs() + order * self.kept_error + 8 + self.scores.key.shape[2] / 2048
        error = order * (self.moments.score_error + self.moments.normaliser_error)
        error = error + self.rounding * (sums + (1 + order) * self.most)
        if isinstance(self.kept, Tensor):
            at = order * self.sink.log()
            log_sum = torch.logaddexp(log_sum + order * self.kept, at)
            error = error + order * self.kept_error + order * self.sink_error
        most = self.most.expand_as(log_sum)
        value = (log_sum / (1 - order)).clamp_min(0.0).minimum(most)
        return value, (error / abs(1 - order)).minimum(most + self.epsilon)


_WEIGHTLESS = 80.0
