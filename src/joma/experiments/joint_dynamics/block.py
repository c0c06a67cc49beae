"""The positive control of the joint-dynamics index: blocks in which Theorem 1 holds, and softmax beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_MOMENTS = 25
_LONGEST = 40.0
_SHARE_OF_LIFE = 0.98
"""Exp attention blows up in finite time; up to this share of it the flow is followed."""


def block_flows(*, tokens: int, neurons: int, runs: int, draws: int, seed: int) -> pandas.DataFrame:
    """The index along gradient flows of the block: ``attention, start, run, time, progress, metric, value``.

    The frequencies of 2 ``tokens`` samples are drawn from a flat Dirichlet law, the back-propagated gradients
    normal and constant, activation linear. The logits start at zero; the weights at zero (``start`` is
    ``zero``: then ``c`` of Theorem 1 is 0), or normal with deviation 0.1 (``random``: ``c`` is not, and
    fades). ``progress`` is time over that of the last moment, shortly before a blow-up where there is one.
    """
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(seed)
    rows = []
    for run in range(runs):
        data = rng.dirichlet(np.ones(tokens), 2 * tokens)
        gradient = rng.normal(size=(2 * tokens, neurons))
        weights = 0.1 * rng.normal(size=(neurons, tokens + 1))
        for kind in ("exp", "softmax"):
            for start, initial in (("zero", 0.0 * weights), ("random", weights)):
                of_flow = _one(kind, run, data, gradient, initial, draws, seed)
                rows += [{"start": start, **row} for row in of_flow]
    return pd.DataFrame(rows)


def _one(
    kind: Any, run: int, data: Any, gradient: Any, weights: Any, draws: int, seed: int
) -> list[dict[str, Any]]:
    import numpy as np
    import torch

    from joma.dynamics import block_flow
    from joma.measures.joint_dynamics import Variant, joint_dynamics_index
    from joma.theory.activation import LINEAR
    from joma.theory.attention import Attention
    from joma.theory.block import Block, Embeddings

    tokens = data.shape[1]
    block = Block(
        attention=Attention(kind=kind), embeddings=Embeddings.orthonormal(tokens), activation=LINEAR
    )
    start = {"weights": weights, "logits": np.zeros(tokens)}
    end = _LONGEST
    first = block_flow.solve(block, data, gradient, times=[0.0, end], rtol=1e-8, atol=1e-10, **start)
    if first.blow_up_time is not None:
        end = _SHARE_OF_LIFE * first.blow_up_time
    course = block_flow.solve(block, data, gradient, times=np.linspace(0.0, end, _MOMENTS), **start)
    v = torch.from_numpy(course.context_weights)
    found = joint_dynamics_index(
        torch.from_numpy(course.logits)[:, None, None],
        v.square().sum(1)[:, None] / 2,
        queries=1,
        draws=draws,
        seed=seed + run,
        rank_every=0,
    )
    rows = []
    for variant, values in found.items():
        wanted = variant.scale == "linear" and variant.given == "nothing" and variant.sink == "in"
        if wanted and variant.metric in ("index", "null"):
            for time, value in zip(course.times, values.flatten().tolist(), strict=True):
                rows.append(
                    {
                        "attention": kind,
                        "run": run,
                        "time": float(time),
                        "progress": float(time / course.times[-1]),
                        "metric": Variant(*variant).metric,
                        "draw": variant.draw,
                        "value": value,
                        "unit": "",
                        "dtype": "float64",
                    }
                )
    return rows
