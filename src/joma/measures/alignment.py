"""Do hidden neurons stand for latent variables? The normalised correlation of JoMA Table 1.

Each choice that the paper leaves open has a name: ``latent_neuron_alignment``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from joma.core.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Alignment:
    """What ``latent_neuron_alignment`` found."""

    mean: float
    """NCorr: the mean over the latents that count."""
    of_latent: Array
    """(latents,): the correlation of each latent with its neuron; 0 where the latent does not vary."""
    neuron: NDArray[np.int64]
    """(latents,): that neuron, or -1 where the latent does not vary."""
    varying: NDArray[np.bool_]
    """(latents,): which latents vary over the samples (are not all zero, if not centred)."""
    null: Array
    """(permutations,): ``mean`` with the samples of the latents shuffled against those of the neurons."""

    @property
    def probability(self) -> float:
        """p-value: share of shuffles (the observation among them) whose mean is at least the observed.

        Raises InputError where no permutation was asked for.
        """
        if not self.null.size:
            raise InputError("Alignment.probability: no permutations were drawn; ask for some.")
        return float((1 + np.sum(self.null >= self.mean)) / (1 + self.null.size))


def latent_neuron_alignment(
    latents: ArrayLike,
    activations: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    centred: bool = True,
    sign: Literal["largest", "absolute"] = "largest",
    matching: Literal["best", "one_to_one"] = "best",
    unused: Literal["drop", "zero"] = "drop",
    permutations: int = 0,
    random: np.random.Generator | None = None,
) -> Alignment:
    """Normalised correlation (NCorr) of each latent with its best neuron, averaged (JoMA Table 1, Sec. 6).

    Args:
        latents: (samples, latents), any real values.
        activations: (samples, neurons), or (samples, positions, neurons), of which the maximum over
            positions is taken, as in the paper.
        weights: (samples,), how much each sample counts; equal where None.
        centred: subtract the mean over samples first (the paper); else the cosine of raw values.
        sign: the largest correlation (the authors), or the largest absolute one.
        matching: ``best``: each latent takes its best neuron, and latents may share one (the paper);
            ``one_to_one``: the assignment of different neurons with the largest sum.
        unused: latents that do not vary have no correlation: leave them out, or count them as 0.
        permutations: how many shuffles of the samples to draw for the null.
        random: generator of the shuffles; required with ``permutations``.

    Raises:
        InputError: shapes that do not match, values that are not finite, bad weights or options, no
            latent that varies, or fewer neurons than latents where they are matched one to one.
    """
    z, a, w = _check(latents, activations, weights)
    for name, value, known in (
        ("sign", sign, ("largest", "absolute")),
        ("matching", matching, ("best", "one_to_one")),
        ("unused", unused, ("drop", "zero")),
    ):
        if value not in known:
            raise InputError(f"latent_neuron_alignment: {name} = {value!r} is none of {known}.")
    if permutations < 0 or (permutations and random is None):
        raise InputError(
            f"latent_neuron_alignment: permutations = {permutations} with random = {random!r}; give a number "
            "of at least 0, and a generator with it."
        )
    # Float32 activations that are equal but for rounding must not pass for a neuron that varies.
    rounding = float(np.finfo(np.asarray(activations).dtype).eps) if _is_float(activations) else 2.2e-16
    unit_a, _ = _unit_columns(a, w, centred, rounding)
    unit_z, varying = _unit_columns(z, w, centred, 2.2e-16)
    if not varying.any():
        raise InputError(
            "latent_neuron_alignment: no latent varies over the samples, so nothing can be correlated; "
            "give samples of different classes."
        )
    if matching == "one_to_one" and a.shape[1] < varying.sum():
        raise InputError(
            f"latent_neuron_alignment: {a.shape[1]} neurons cannot be matched one to one with "
            f"{varying.sum()} latents; use matching='best'."
        )
    counted = varying.sum() if unused == "drop" else varying.size
    scores = _scores(unit_z[:, varying], unit_a, sign)
    columns = _match(scores, matching)
    chosen = np.take_along_axis(scores, columns[:, None], axis=1)[:, 0]
    of_latent, neuron = np.zeros(varying.size), np.full(varying.size, -1, dtype=np.int64)
    of_latent[varying], neuron[varying] = chosen, columns

    null = np.zeros(permutations)
    for draw in range(permutations):
        assert random is not None
        shuffled, still = _unit_columns(z[random.permutation(len(z))], w, centred, 2.2e-16)
        shuffled_scores = _scores(shuffled[:, varying & still], unit_a, sign)
        columns = _match(shuffled_scores, matching)
        null[draw] = np.take_along_axis(shuffled_scores, columns[:, None], axis=1).sum() / counted
    return Alignment(float(chosen.sum() / counted), of_latent, neuron, varying, null)


def _scores(unit_z: Array, unit_a: Array, sign: str) -> Array:
    correlation = unit_z.T @ unit_a
    return np.abs(correlation) if sign == "absolute" else correlation


def _match(scores: Array, matching: str) -> NDArray[np.int64]:
    """The neuron of each latent (rows of ``scores``)."""
    if matching == "best":
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)
    return np.asarray(linear_sum_assignment(scores, maximize=True)[1], dtype=np.int64)


def _unit_columns(
    x: Array, weights: Array, centred: bool, rounding: float
) -> tuple[Array, NDArray[np.bool_]]:
    """Columns of ``sqrt(w) (x - mean)`` with norm 1, or 0 where the column does not vary; and which vary."""
    size = np.sqrt(weights @ x**2)
    shifted = x - weights @ x if centred else x
    scaled = np.sqrt(weights)[:, None] * shifted
    norm = np.linalg.norm(scaled, axis=0)
    varies = norm > 16 * rounding * size
    return scaled / np.where(varies, norm, 1.0) * varies, varies


def _is_float(values: ArrayLike) -> bool:
    return bool(np.issubdtype(np.asarray(values).dtype, np.floating))


def _check(
    latents: ArrayLike, activations: ArrayLike, weights: ArrayLike | None
) -> tuple[Array, Array, Array]:
    where = "latent_neuron_alignment"
    z, a = np.asarray(latents, dtype=np.float64), np.asarray(activations, dtype=np.float64)
    if a.ndim == 3:
        a = a.max(axis=1)
    if z.ndim != 2 or a.ndim != 2 or len(z) != len(a) or not z.size or not a.size:
        raise InputError(
            f"{where}: latents {np.shape(latents)} and activations {np.shape(activations)}; give "
            "(samples, latents) and (samples, neurons) or (samples, positions, neurons)."
        )
    if not (np.isfinite(z).all() and np.isfinite(a).all()):
        raise InputError(f"{where}: latents or activations hold NaN or infinity; remove those samples.")
    w = np.ones(len(z)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(z),) or not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise InputError(
            f"{where}: weights of shape {w.shape} for {len(z)} samples; give one finite non-negative number "
            "each, not all zero."
        )
    return z, a, w / w.sum()
