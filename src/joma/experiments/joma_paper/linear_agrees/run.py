"""Three flows from the same start for each data set and rate, and the null without information."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from scipy.special import entr

from joma.core.progress import Progress
from joma.data.next_token import NextTokenData, graded_tokens
from joma.dynamics import block_flow
from joma.dynamics.token_flow import TokenTrajectory, strongest_distinct, token_flow
from joma.experiments.joma_paper.linear_agrees import JOMA, NORMALISED, PLAIN, LinearAgrees
from joma.experiments.shared.tables import Rows, by_table
from joma.theory.block import Block, CrossEntropyGradient, Embeddings
from joma.theory.scan_snap.equations import attended_mass


def run(settings: LinearAgrees, progress: Progress) -> dict[str, pd.DataFrame]:
    """Three flows for each data set and rate."""
    cells = [(k, w, z) for k in settings.next_tokens for w in settings.common_weights for z in settings.eta_z]
    parts = []
    for k, w, z in progress.track(cells, "data sets and rates"):
        compute = partial(_cell, _data(settings, k, w), z, settings.horizon)
        cell = progress.part(f"flows-{k}-{w:g}-{z:g}", compute)
        parts.append(cell.assign(next_tokens=k, common_weight=w, eta_z=z))
    return by_table(parts)


def _data(settings: LinearAgrees, classes: int, weight: float) -> NextTokenData:
    return graded_tokens(next_per_last=classes, common=1, distinct=settings.distinct, common_weight=weight)


def _cell(data: NextTokenData, eta_z: float, horizon: float) -> pd.DataFrame:
    """All tables' rows of one data set and rate, told apart by the column ``table``."""
    times = np.concatenate([[0.0], np.geomspace(0.1, horizon, 61)])
    flows = {
        name: token_flow(data, eta_y=1.0, eta_z=eta_z, times=times, normalised=name == NORMALISED)
        for name in (PLAIN, NORMALISED)
    }
    logits = {
        JOMA: block_logits(data, eta_z, times),
        **{name: flow.logits[:, 0] for name, flow in flows.items()},
    }
    own, strongest = np.flatnonzero(data.distinct[0]), int(strongest_distinct(data)[0])
    common = int(np.flatnonzero(data.common)[0])
    share = {name: _share(data, z) for name, z in logits.items()}
    rows: Rows = []
    for name, z in logits.items():
        entropies = {
            "entropy": _entropy(share[name]),
            "entropy of distinct tokens": _entropy(share[name][:, own]),
        }
        flow = flows[NORMALISED if name == NORMALISED else PLAIN]
        moved = np.abs(share[name] - share[JOMA]).sum(axis=1).max() / 2
        numbers = {
            "logits, difference to Y/Z": np.abs(z - logits[PLAIN]).max(),
            "attention moved against the block": moved,
            "sum of logits, drift": np.abs(z.sum(axis=1)).max(),
            "integral, residual": integral_residual(flow),
            "integral without correction, residual": integral_residual(flow, corrected=False),
            "common falls and distinct rise": z[-1, common] < 0 and z[-1, own].min() > 0,
            "strongest token gains most": own[z[-1, own].argmax()] == strongest,
            **{f"{metric}, change": curve[-1] - curve[0] for metric, curve in entropies.items()},
        }
        rows += [
            {"table": "agreement", "run": name, "metric": metric, "value": float(value)}
            for metric, value in numbers.items()
        ]
        for metric, curve in {**entropies, "common share": share[name][:, common]}.items():
            unit = "nats" if "entropy" in metric else "1"
            label = {"table": "curves", "run": name, "metric": metric, "unit": unit}
            points = zip(times.tolist(), curve.tolist(), strict=True)
            rows += [{**label, "time": t, "value": v} for t, v in points]
        for token in (common, *own.tolist()):
            rows.append(
                {
                    "table": "logits",
                    "run": name,
                    "token": token,
                    "kind": "common" if token == common else "distinct",
                    "probability": float(data.conditional[0, token]),
                    "value": float(z[-1, token]),
                }
            )
    alike = token_flow(
        data.uninformative(),
        eta_y=1.0,
        eta_z=eta_z,
        times=times[[0, -1]],
        normalised=False,
        rtol=1e-6,
        atol=1e-9,
    )
    mass, last = alike.mass[:, 0], alike.logits[-1, 0]
    changes = {
        "entropy, change": _entropy(mass),
        "entropy of distinct tokens, change": _entropy(mass[:, own]),
    }
    nothing = {metric: float(entropy[1] - entropy[0]) for metric, entropy in changes.items()}
    nothing["strongest token gains most"] = float(own[last[own].argmax()] == strongest)
    rows += [
        {"table": "uninformative", "run": PLAIN, "metric": metric, "value": value}
        for metric, value in nothing.items()
    ]
    return pd.DataFrame(rows)


def block_logits(data: NextTokenData, eta_z: float, times: np.ndarray) -> np.ndarray:
    """z(t) (times, C) of JoMA's block: linear activation, softmax attention, a node for every logit."""
    embeddings = Embeddings.orthonormal(data.contextual_tokens, residual=False)
    trajectory = block_flow.solve(
        Block(embeddings),
        data.conditional,
        CrossEntropyGradient(tuple(range(data.classes))),
        weights=np.zeros((data.logits, embeddings.dimension)),
        logits=np.zeros(data.contextual_tokens),
        times=times,
        sample_weights=data.prior,
        attention_rate=eta_z,
        rtol=1e-9,
        atol=1e-12,
    )
    return np.asarray(trajectory.logits)


def _share(data: NextTokenData, logits: np.ndarray) -> np.ndarray:
    """c_0(t) (times, C): the attention of next token 0."""
    return attended_mass(data.conditional[0], logits)


def _entropy(share: np.ndarray) -> np.ndarray:
    """Entropy in nats of the shares along the last axis, scaled to sum one."""
    total = share.sum(axis=-1, keepdims=True)
    return np.asarray(entr(share / total).sum(axis=-1))


def integral_residual(flow: TokenTrajectory, *, corrected: bool = True) -> float:
    """How far z'/eta_Z is from JoMA's Theorem 1, sum_k Y_k Y_k'/eta_Y - E[correction], relative.

    ``corrected=False`` leaves the correction out, as exp attention would have it.
    """
    worst = 0.0
    for index in range(1, flow.times.size):
        v = flow.at(index)
        along = (v.features * v.backpropagated).sum(axis=1, keepdims=True)
        dropped = flow.data.prior @ (v.features**2 * along if flow.normalised else v.features * along)
        gathered = (flow.decoder[index] * v.decoder * flow.multiplicity).sum(axis=1) / flow.eta_y
        gap = np.abs(v.logits[0] / flow.eta_z - (gathered - corrected * dropped)).max()
        worst = max(worst, float(gap / max(np.abs(gathered).max(), np.abs(dropped).max())))
    return worst
