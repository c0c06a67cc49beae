"""Theorem 1 with trained position biases, and with positions that rotate the content."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.claim import Claim, statements, within_error
from joma.dynamics import position_flow
from joma.theory import positions
from joma.theory.activation import activation
from joma.theory.attention import Array

RATES = {"weight_rate": 0.7, "attention_rate": 1.6, "position_rate": 0.4}

STATEMENTS = statements(
    {
        "theorem1.positions_{name}": "JoMA poster, future work (positional encoding) | Exp attention with a "
        "trained additive position bias conserves {formula}, exactly.",
    },
    exact=True,
)


def drifts(seed: int, name: str, *, rotate: bool = False) -> tuple[float, float, float]:
    """Relative drift of both invariants, and how far the logits moved, on random data."""
    rng = np.random.default_rng(seed)
    samples, offsets, tokens, units = 6, 4, 5, 3
    x = rng.dirichlet(np.ones(offsets * tokens), samples).reshape(samples, offsets, tokens)
    amplitude, phase = rng.normal(size=(2, samples, units))

    def gradient(time: float) -> Array:
        return np.asarray(0.4 * amplitude * np.cos(2 * time + phase))

    flow = position_flow.solve(
        activation(name),
        x,
        gradient,
        weights=0.7 * rng.normal(size=(units, tokens + 1)),
        logits=0.5 * rng.normal(size=tokens),
        positions=0.5 * rng.normal(size=offsets),
        times=np.linspace(0.0, 1.0, 5),
        angles=rng.uniform(0.3, 1.2, offsets) if rotate else None,
        **RATES,
    )
    found = positions.invariants(flow.weights, flow.logits, flow.positions, **RATES)
    content, balance = (
        float(np.abs(one - one[0]).max() / max(1.0, float(np.abs(one).max()))) for one in found
    )
    return content, balance, float(np.abs(flow.logits - flow.logits[0]).max())


def theorem1_positions() -> list[Claim]:
    """Both invariants with an additive bias, and neither with a rotation."""
    names = ("gelu", "softplus", "tanh")
    kept = [drifts(seed, name) for seed, name in enumerate(names)]
    broken = [drifts(seed, name, rotate=True) for seed, name in enumerate(names)]
    moved = min(one[2] for one in kept)
    evidence = f"3 activations, unequal rates, g(t) arbitrary; the logits move by at least {moved:.2g}"
    return [
        STATEMENTS["theorem1.positions_{name}"]
        .fill(name=name, formula=formula)
        .judge(
            within_error(1e-9, max(one[index] for one in kept)),
            null=min(one[index] for one in broken),
            null_description="the least drift where the position rotates the content instead",
            evidence=evidence,
        )
        for index, (name, formula) in enumerate(
            (
                ("content", "z - eta_z/(2 eta_w) sum_k v_k^2"),
                ("balance", "sum_l z_l/eta_z - sum_r p_r/eta_p"),
            )
        )
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"theorem1_positions": theorem1_positions}
