"""The positive control of the joint-dynamics index: blocks in which Theorem 1 holds, and softmax beside."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import torch

from joma.core.arguments import Array
from joma.dynamics import block_flow
from joma.experiments.beyond.joint_dynamics import JointDynamics
from joma.measures.joint_dynamics import joint_dynamics_index
from joma.theory.activation import LINEAR
from joma.theory.attention import Attention, AttentionKind
from joma.theory.block import Block, Embeddings

KINDS: tuple[AttentionKind, ...] = ("exp", "softmax")
COLUMNS = ["start", "attention", "run", "time", "progress", "metric", "draw", "value", "unit", "dtype"]
_MOMENTS = 25
_LONGEST = 40.0
_SHARE_OF_LIFE = 0.98
"""Exp attention blows up in finite time; up to this share of it the flow is followed."""


def block_flows(settings: JointDynamics) -> pd.DataFrame:
    """The index along gradient flows of the block: ``attention, start, run, time, progress, metric, value``.

    The frequencies of twice as many samples as tokens are drawn from a flat Dirichlet law, the
    back-propagated gradients normal and constant, activation linear. The logits start at zero; the weights
    at zero (``start`` is ``zero``: then ``c`` of Theorem 1 is 0), or normal with deviation 0.1 (``random``:
    ``c`` is not, and fades). ``progress`` is time over that of the last moment, shortly before a blow-up
    where there is one.
    """
    tokens, neurons = settings.block_tokens, settings.block_neurons
    rng = np.random.default_rng(settings.seed)
    parts = []
    for run in range(settings.block_runs):
        data = rng.dirichlet(np.ones(tokens), 2 * tokens)
        gradient = rng.normal(size=(2 * tokens, neurons))
        weights = 0.1 * rng.normal(size=(neurons, tokens + 1))
        for kind in KINDS:
            for start, initial in (("zero", 0.0 * weights), ("random", weights)):
                flow = _one(kind, data, gradient, initial, draws=settings.draws, seed=settings.seed + run)
                parts.append(flow.assign(start=start, attention=kind, run=run, unit="", dtype="float64"))
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def _one(
    kind: AttentionKind, data: Array, gradient: Array, weights: Array, *, draws: int, seed: int
) -> pd.DataFrame:
    tokens = data.shape[1]
    block = Block(
        attention=Attention(kind=kind), embeddings=Embeddings.orthonormal(tokens), activation=LINEAR
    )
    solve = partial(block_flow.solve, block, data, gradient, weights=weights, logits=np.zeros(tokens))
    end = _LONGEST
    first = solve(times=[0.0, end], rtol=1e-8, atol=1e-10)
    if first.blow_up_time is not None:
        end = _SHARE_OF_LIFE * first.blow_up_time
    course = solve(times=np.linspace(0.0, end, _MOMENTS))
    v = torch.from_numpy(course.context_weights)
    found = joint_dynamics_index(
        torch.from_numpy(course.logits)[:, None, None],
        v.square().sum(1)[:, None] / 2,
        queries=1,
        draws=draws,
        seed=seed,
        rank_every=0,
    )
    return pd.concat(
        pd.DataFrame(
            {
                "time": course.times,
                "progress": course.times / course.times[-1],
                "metric": variant.metric,
                "draw": variant.draw,
                "value": values.flatten(),
            }
        )
        for variant, values in found.items()
        if variant.metric in ("index", "null")
        and (variant.scale, variant.given, variant.sink) == ("linear", "nothing", "in")
    )
