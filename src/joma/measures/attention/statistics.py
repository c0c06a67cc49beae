"""The statistics of an attention row that can be asked for by name.

Notation: row i has scores s_j, probabilities p = softmax(s) over the n keys it sees, entropy H.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from joma.errors import InputError, nearest
from joma.measures.attention.scores import Moments, Scores, Wanted

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

_POSITIONAL = {"self_mass", "previous_key_mass", "mean_distance", "distance_spread"}
_RENYI = re.compile(r"renyi_(\d+(?:\.\d+)?)")


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


def wanted(statistics: Sequence[str]) -> Wanted:
    """Which moments the statistics are made of."""
    orders = (renyi_order(name) for name in statistics)
    return Wanted(
        powers=tuple(order for order in orders if order is not None),
        mean_key="mean_distance" in statistics,
        key_spread="distance_spread" in statistics,
        largest=bool({"largest_probability", "largest_logit", "min_entropy"} & set(statistics)),
    )


def finish(
    scores: Scores, moments: Moments, statistics: Sequence[str], sinks: Tensor | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Statistics by name, and the entropy's error estimate; (batch, heads, rows) each.

    With ``sinks`` (heads,) the sink is one more outcome with probability m. By the chain rule
    H = h(m) + (1 - m) H_keys with h the entropy of a coin, so that it needs no column of its own.
    """
    entropy, error, lse = moments.entropy, moments.error, moments.log_normaliser
    among_keys = entropy
    offset = (
        scores.offset() if sinks is not None or {"largest_logit", "log_normaliser"} & set(statistics) else 0.0
    )
    count = scores.visible.counts
    outcomes = count
    # Added to the log-probability of a key: log(1 - m).
    kept: Tensor | float = 0.0
    sink = torch.zeros_like(lse)
    if sinks is not None:
        gap = sinks.to(lse.dtype)[:, None] - (lse + offset)
        kept, log_sink = torch.nn.functional.logsigmoid(-gap), torch.nn.functional.logsigmoid(gap)
        sink = log_sink.exp()
        # Far on either side one term is 0 times something large: finite, since gap is.
        entropy = -sink * log_sink - kept.exp() * kept + kept.exp() * entropy
        epsilon = torch.finfo(lse.dtype).eps
        doubt = 4 * epsilon * (gap.abs() + lse.abs() + (lse + offset).abs()) + error
        error = error + (sink * (1 - sink) * (gap.abs() + among_keys.abs())) * doubt + 2 * epsilon
        outcomes = count + 1
    values = {"entropy": entropy, "sink_mass": sink, "entropy_among_keys": among_keys}
    for name in statistics:
        order = renyi_order(name)
        if order is not None:
            values[name] = _renyi(
                order, lse, moments.powers[order], kept, sink if sinks is not None else None
            )
        elif name not in values:
            values[name] = _one(name, scores, moments, entropy, offset, kept, outcomes)
    # Rows that see nothing have no distribution.
    empty = (count == 0).expand(lse.shape)
    return {name: values[name].masked_fill(empty, torch.nan) for name in statistics}, error.masked_fill(
        empty, torch.nan
    )


def _one(
    name: str,
    scores: Scores,
    moments: Moments,
    entropy: Tensor,
    offset: Tensor | float,
    kept: Tensor | float,
    outcomes: Tensor,
) -> Tensor:
    lse = moments.log_normaliser
    match name:
        case "normalised_entropy":
            return (entropy / outcomes.to(lse.dtype).log()).masked_fill(outcomes == 1, torch.nan)
        case "entropy_over_log_length":
            length = (scores.visible.end - scores.visible.begin).to(lse.dtype)[:, None, None]
            return (entropy / length.log()).masked_fill(length == 1, torch.nan)
        case "effective_support":
            return entropy.exp()
        case "log_normaliser":
            return lse + offset - kept
        case "largest_logit":
            assert moments.largest is not None
            return moments.largest + offset
        case "largest_probability" | "min_entropy":
            assert moments.largest is not None
            log_largest = (moments.largest - lse).clamp_max(0.0) + kept
            return log_largest.exp() if name == "largest_probability" else -log_largest
        case "mean_distance":
            assert moments.mean_key is not None
            return -moments.mean_key
        case "distance_spread":
            assert moments.key_spread is not None
            return moments.key_spread
        case "first_key_mass":
            keys = scores.visible.begin[:, None].expand(-1, lse.shape[-1])
        case "self_mass":
            keys = scores.positions[None]
        case "previous_key_mass":
            keys = scores.positions[None] - 1
        case _:
            raise AssertionError(name)
    mass = (scores.at(keys) - lse + kept).exp().clamp_max(1.0)
    if name == "first_key_mass":
        return mass
    exists = (keys >= scores.visible.begin[:, None]) & (keys < scores.key.shape[2])
    return mass.masked_fill(~exists[:, None], torch.nan)


def _renyi(order: float, lse: Tensor, power: Tensor, kept: Tensor | float, sink: Tensor | None) -> Tensor:
    log_sum = power - order * lse
    if sink is not None:
        log_sum = torch.logaddexp(log_sum + order * kept, order * sink.log())
    return log_sum / (1 - order)
