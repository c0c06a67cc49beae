"""Eq. 6 and the block on the exact contexts of one tree, and when each token is associated."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import entr, expit, softmax

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.dynamics.block_flow import Trajectory, solve
from joma.dynamics.salience_flow import integrate
from joma.dynamics.sgd import train
from joma.experiments.joma_paper.fig5 import RUNS, Fig5, rate_ratios
from joma.experiments.shared.trees import ancestor_heights, enumerate_states, tree_below_classes
from joma.theory.activation import Activation, activation
from joma.theory.attention import Attention
from joma.theory.block import Activity, Block, Embeddings

STEP = 0.01


def run(settings: Fig5, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``curves``, ``entropy``, ``order``, ``uniform``, ``gradients`` and ``rate_ratios``."""
    parts = [progress.part(name, partial(_one_run, settings, name)) for name in progress.track(RUNS, "fig5")]
    curves = pd.concat(parts, ignore_index=True)
    return {
        "curves": curves,
        "entropy": _entropy(curves),
        "order": _order(curves, settings.level),
        "uniform": progress.part("uniform", partial(_uniform, settings)),
        "gradients": progress.part("gradients", partial(_gradients, settings)),
        "rate_ratios": progress.part("rate_ratios", partial(_rate_ratios, settings)),
    }


def contexts(settings: Fig5) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """All contexts of token m, exactly: y (2N, M), whether m is there (2N,), probability (2N,), heights (M,).

    Contexts with m and without it weigh one half each.
    """
    tree = tree_below_classes(
        classes=settings.classes, depth=settings.depth, edge_correlation=settings.edge_correlation
    )
    states, probability = enumerate_states(tree)
    size = len(tree.leaves)
    codes = states[:, tree.leaves].astype(np.int64) @ (1 << np.arange(size))
    weights = np.bincount(codes, weights=probability, minlength=2**size).astype(np.float64)
    patterns = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    present = patterns[:, 0].astype(np.float64)
    for value in (0, 1):
        weights[present == value] /= 2 * weights[present == value].sum()
    return patterns[:, 1:].astype(np.float64), present, weights, ancestor_heights(size)[0, 1:]


def _one_run(settings: Fig5, name: str) -> pd.DataFrame:
    """One flow as a table: time, token, height, v, z, attention."""
    times = np.concatenate([[0.0], np.geomspace(settings.time / 1e4, settings.time, settings.moments)])
    heights = contexts(settings)[3]
    if name == "eq6":
        v, z = _equation_6(settings, times)
    else:
        kind, feedback = name.split("-")
        course = _constant if feedback == "constant" else _feedback
        times, v, z = course(settings, activation(kind), times)
    attention = softmax(z, axis=-1)
    steps, token = np.meshgrid(np.arange(len(times)), np.arange(len(heights)), indexing="ij")
    return pd.DataFrame(
        {
            "run": name,
            "time": times[steps.ravel()],
            "token": token.ravel(),
            "height": heights[token.ravel()],
            "weight": v.ravel(),
            "logit": z.ravel(),
            "attention": attention.ravel(),
        }
    )


def _gradients(settings: Fig5) -> pd.DataFrame:
    """Assumption 1: how far g = y - sigma(h) of the ReLU block is from what it was."""
    present, is_there, sample_weights, heights = contexts(settings)
    found, block = _steps(settings, activation("relu"))
    times = np.concatenate([[0.0], np.geomspace(STEP, settings.time, 100)])
    chosen = np.unique((times / STEP).round().astype(int))
    order = np.random.default_rng(0).permutation(len(is_there))
    rows = []
    first: Array | None = None
    for step in chosen:
        hidden = block.forward(present, found.weights[step], found.logits[step]).hidden[..., 0]
        g = is_there - np.asarray(expit(hidden))
        first = g if first is None else first
        size = np.sqrt(sample_weights @ first**2)
        numbers = {
            "change": np.sqrt(sample_weights @ (g - first) ** 2) / size,
            "change, contexts shuffled": np.sqrt(sample_weights @ (g[order] - first) ** 2) / size,
            "sibling": found.context_weights[step, 0, heights.argmin()],
        }
        rows += [{"time": step * STEP, "metric": metric, "value": float(v)} for metric, v in numbers.items()]
    return pd.DataFrame(rows)


def _rate_ratios(settings: Fig5) -> pd.DataFrame:
    """Rebounds of the ReLU block with feedback at other eta_z/eta_w, and what the laws make of them."""
    present, is_there, sample_weights, _ = contexts(settings)
    return rate_ratios.table(
        (present, is_there, sample_weights),
        np.array(settings.rate_ratios),
        start=settings.start,
        time=settings.time,
        step=STEP,
    )


def _uniform(settings: Fig5) -> pd.DataFrame:
    """mu: where the weights of the ReLU block with feedback end if attention stays uniform."""
    _, v, _ = _feedback(settings, activation("relu"), np.array([0.0, settings.time]), attention_rate=0.0)
    heights = contexts(settings)[3]
    token = np.arange(len(heights))
    return pd.DataFrame({"token": token, "height": heights, "metric": "mu", "value": v[-1]})


def _equation_6(settings: Fig5, times: Array) -> tuple[Array, Array]:
    """v and z = v^2/2 (T, M) under Eq. 6, mu proportional to the contrast."""
    present, is_there, weights, _ = contexts(settings)
    contrast = (weights * (2.0 * is_there - 1)) @ present
    mu = settings.largest_target * contrast / contrast.max()
    # Past the convergence of the slowest component nothing changes any more.
    course = integrate(mu, times, v0=settings.start)
    v = np.asarray(mu * (1 - course.side * np.exp(-course.log_inverse_delta)))
    return v, v**2 / 2


def _block(settings: Fig5, activation: Activation, tokens: int) -> tuple[Block, Array, Array]:
    """The block with its initial weights and logits."""
    weights = np.full((1, tokens + 1), settings.start)
    # The bias starts at zero: it is the query's own component.
    weights[0, -1] = 0.0
    block = Block(Embeddings.orthonormal(tokens), Attention(kind="exp"), activation)
    return block, weights, np.full(tokens, settings.start**2 / 2)


def _constant(settings: Fig5, activation: Activation, times: Array) -> tuple[Array, Array, Array]:
    """Times, v and z of the block's flow under g = +1 and -1."""
    present, is_there, sample_weights, heights = contexts(settings)
    block, weights, logits = _block(settings, activation, len(heights))
    course = partial(
        solve,
        block,
        present,
        2.0 * is_there[:, None] - 1,
        weights=weights,
        logits=logits,
        sample_weights=sample_weights,
    )
    ended = course(times=times).blow_up_time
    if ended is not None:
        # The winner takes all in the last instants.
        near = ended - np.geomspace(0.1 * ended, 1e-9 * ended, 60)
        times = np.union1d(times[times < ended], near)
    found = course(times=times)
    return found.times, found.context_weights[:, 0], found.logits


def _feedback(
    settings: Fig5, activation: Activation, times: Array, *, attention_rate: float = STEP
) -> tuple[Array, Array, Array]:
    """Times, v and z of the block under g = y - sigma(h), at the moments nearest to ``times``."""
    found, _ = _steps(settings, activation, attention_rate=attention_rate)
    chosen = np.unique((times / STEP).round().astype(int))
    return found.times[chosen] * STEP, found.context_weights[chosen, 0], found.logits[chosen]


def _steps(
    settings: Fig5, activation: Activation, *, attention_rate: float = STEP
) -> tuple[Trajectory, Block]:
    """The block under g = y - sigma(h), in steps: the flow slides along ReLU's kink."""
    present, is_there, sample_weights, heights = contexts(settings)
    block, weights, logits = _block(settings, activation, len(heights))

    def gradient(_: float, activity: Activity) -> Array:
        return is_there[:, None] - np.asarray(expit(activity.hidden))

    found = train(
        block,
        present,
        gradient,
        weights=weights,
        logits=logits,
        steps=round(settings.time / STEP),
        weight_rate=STEP,
        attention_rate=attention_rate,
        sample_weights=sample_weights,
    )
    return found, block


def _entropy(curves: pd.DataFrame) -> pd.DataFrame:
    """Attention entropy (nats) over time."""
    terms = curves.assign(value=entr(curves["attention"]))
    return terms.groupby(["run", "time"], sort=False)["value"].sum().reset_index().assign(unit="nats")


def _order(curves: pd.DataFrame, level: float) -> pd.DataFrame:
    """When each token's weight first passes the level, between moments linearly; missing if never."""
    rows = []
    for (run, token), part in curves.groupby(["run", "token"], sort=False):
        v, t = part["weight"].to_numpy(), part["time"].to_numpy()
        above = np.flatnonzero(v >= level)
        when = None
        if len(above) and above[0] > 0:
            i = above[0]
            when = t[i - 1] + (t[i] - t[i - 1]) * (level - v[i - 1]) / (v[i] - v[i - 1])
        rows.append({"run": run, "token": token, "height": part["height"].iloc[0], "time": when})
    return pd.DataFrame(rows).astype({"time": "float64"})
