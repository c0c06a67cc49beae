"""Scan&Snap's Y/Z dynamics, simulated: the population flow, and SGD on finite sequences.

:func:`token_flow` integrates :func:`joma.theory.scan_snap.equations.velocities` in float64 (T -> infinity,
continuous time) and carries, as quadratures, the gain B_n of each class (Theorems 3 and 4).
:func:`token_sgd` takes SGD steps with momentum at finite T, many seeds and rates at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

from joma.data.next_token import NextTokenData
from joma.errors import DivergenceError, InputError
from joma.theory.scan_snap.equations import Velocities, attended, lumped_multiplicity, unit, velocities

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TokenTrajectory:
    """Y and Z along a population flow; S times, C contextual tokens, K next and L last tokens."""

    data: NextTokenData
    eta_y: float
    eta_z: float
    times: Floats
    """Shape (S,)."""
    decoder: Floats
    """Y, shape (S, C, V): column n < K for next token n; see ``multiplicity`` for the last one."""
    logits: Floats
    """z, shape (S, L, C)."""
    gain: Floats
    """B_n(t) = integral of z_l'/f_nl^2 for the strongest distinct token l of n, shape (S, K).

    NaN for next tokens that have no distinct token: they have no gain.
    """
    multiplicity: Floats
    """Shape (V,): the number of equal logits that each column of Y stands for."""
    normalised: bool

    @cached_property
    def mass(self) -> Floats:
        """c_n(t), shape (S, K, C): where attention looks; sums to one."""
        return attended(self.data.conditional, self.logits[:, self.data.last_of_next])

    @cached_property
    def features(self) -> Floats:
        """f_n(t), shape (S, K, C): what the decoder reads (c_n/|c_n|, or c_n where not normalised)."""
        return unit(self.mass) if self.normalised else self.mass

    def at(self, index: int) -> Velocities:
        """The velocities, and what they are made of, at ``times[index]``."""
        return velocities(
            self.decoder[index],
            self.logits[index],
            conditional=self.data.conditional,
            last_of_next=self.data.last_of_next,
            class_probability=self.data.prior,
            eta_y=self.eta_y,
            eta_z=self.eta_z,
            multiplicity=self.multiplicity,
            normalised=self.normalised,
        )


def token_flow(
    data: NextTokenData,
    *,
    eta_y: float,
    eta_z: float,
    times: ArrayLike,
    logits: ArrayLike | None = None,
    decoder: ArrayLike | None = None,
    normalised: bool = True,
    rtol: float = 1e-9,
    atol: float = 1e-12,
    method: Literal["LSODA", "DOP853", "Radau"] = "LSODA",
) -> TokenTrajectory:
    """Integrate the population flow of Y and Z over ``times`` (increasing, the first is the start).

    ``logits`` z(0) (L, C) and ``decoder`` Y(0) (C, M) default to zero. From Y(0) = 0 the M - K columns
    of tokens that never come next are carried as one (V = K + 1 columns); a given Y(0) has all M.
    ``normalised=False`` leaves out the division by |c_n|_2. ``eta_z=0`` freezes attention.
    Raises InputError for shapes or rates that make no sense and DivergenceError, with the time, where
    the integration leaves the finite numbers or cannot go on.
    """
    times = _checked_times(times)
    for name, rate in (("eta_y", eta_y), ("eta_z", eta_z)):
        if not (np.isfinite(rate) and rate >= 0):
            raise InputError(f"token_flow: {name} = {rate} must be finite and at least 0.")
    tokens, lasts, classes = data.contextual_tokens, data.last_tokens, data.classes
    z_start = _start(logits, (lasts, tokens), "logits")
    if decoder is None:
        multiplicity = lumped_multiplicity(classes, data.logits)
        y_start = np.zeros((tokens, multiplicity.size))
    else:
        multiplicity = np.ones(data.logits)
        y_start = _start(decoder, (tokens, data.logits), "decoder")
    strongest = strongest_distinct(data, z_start)
    has_gain = strongest >= 0
    columns = multiplicity.size

    def unpack(state: Floats) -> tuple[Floats, Floats]:
        split = tokens * columns
        return state[:split].reshape(tokens, columns), state[split : split + lasts * tokens].reshape(
            lasts, tokens
        )

    def slope(time: float, state: Floats) -> Floats:
        if not np.isfinite(state).all():
            raise DivergenceError(
                f"token_flow: the state left the finite numbers at t = {time:.6g} (eta_y = {eta_y}, eta_z = "
                f"{eta_z}); shorten the times or lower the rates."
            )
        y, z = unpack(state)
        v = velocities(
            y,
            z,
            conditional=data.conditional,
            last_of_next=data.last_of_next,
            class_probability=data.prior,
            eta_y=eta_y,
            eta_z=eta_z,
            multiplicity=multiplicity,
            normalised=normalised,
        )
        own = np.flatnonzero(has_gain)
        where = strongest[own]
        gains = np.zeros(classes)
        gains[own] = v.logits[data.last_of_next[own], where] / v.features[own, where] ** 2
        return np.concatenate([v.decoder.ravel(), v.logits.ravel(), gains])

    state = np.concatenate([y_start.ravel(), z_start.ravel(), np.zeros(classes)])
    if times.size == 1:
        states = state[None]
    else:
        solution = solve_ivp(
            slope,
            (float(times[0]), float(times[-1])),
            state,
            method=method,
            t_eval=times,
            rtol=rtol,
            atol=atol,
        )
        if solution.status != 0 or not np.isfinite(solution.y).all():
            reached = solution.t[-1] if solution.t.size else times[0]
            raise DivergenceError(
                f"token_flow: integration stopped at t = {reached:.6g} ({solution.message}); shorten the "
                "times or lower the rates."
            )
        states = solution.y.T
    split = tokens * columns
    gain = states[:, split + lasts * tokens :].copy()
    gain[:, ~has_gain] = np.nan
    return TokenTrajectory(
        data=data,
        eta_y=float(eta_y),
        eta_z=float(eta_z),
        times=times,
        decoder=states[:, :split].reshape(-1, tokens, columns),
        logits=states[:, split : split + lasts * tokens].reshape(-1, lasts, tokens),
        gain=gain,
        multiplicity=multiplicity,
        normalised=normalised,
    )


def strongest_distinct(data: NextTokenData, logits: ArrayLike | None = None) -> NDArray[np.int64]:
    """Theorem 3's l_0: each next token's distinct token of largest P(l|n) exp(z_ml), shape (K,).

    ``logits`` z (L, C) default to zero; -1 where a next token has no distinct token.
    """
    z = np.zeros((data.last_tokens, 1)) if logits is None else np.asarray(logits, dtype=np.float64)
    weight = np.where(data.distinct, attended(data.conditional, z[data.last_of_next]), -1.0)
    return np.where(data.distinct.any(axis=1), weight.argmax(axis=1), -1)


def _checked_times(times: ArrayLike) -> Floats:
    array = np.atleast_1d(np.asarray(times, dtype=np.float64))
    if array.ndim != 1 or not np.isfinite(array).all() or (np.diff(array) <= 0).any():
        raise InputError("token_flow: times must be finite, one-dimensional and increasing.")
    return array


def _start(values: ArrayLike | None, shape: tuple[int, int], name: str) -> Floats:
    array = np.zeros(shape) if values is None else np.asarray(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(
            f"token_flow: {name} must be finite with shape {shape}; got shape {array.shape} (the largest "
            f"value is {np.max(array) if array.size else 'none'})."
        )
    return array


@dataclass(frozen=True, eq=False)
class TokenRuns:
    """SGD runs of Y and Z: S seeds times R pairs of rates, C contextual, K next and L last tokens."""

    data: NextTokenData
    seeds: NDArray[np.int64]
    """Shape (S,)."""
    eta_y: Floats
    """Shape (R,)."""
    eta_z: Floats
    """Shape (R,)."""
    steps: NDArray[np.int64]
    """The steps at which ``logits`` were kept, shape (N,); 0 is the start."""
    logits: NDArray[np.floating]
    """z, shape (N, S, R, L, C)."""
    decoder: NDArray[np.floating]
    """Y after the last step, shape (S, R, C, M)."""
    loss: NDArray[np.floating]
    """Cross-entropy of each batch before its update, nats, shape (steps, S, R)."""
    diverged_at: NDArray[np.int64]
    """Shape (S, R): the step from which a run's numbers are not finite; -1 where all are."""

    def mass(self, index: int = -1) -> Floats:
        """c_n of the limit T -> infinity at ``steps[index]``, shape (S, R, K, C), float64.

        Raises DivergenceError if a run's logits are not finite there.
        """
        logits = self.logits[index]
        if not np.isfinite(logits).all():
            raise DivergenceError(_divergence(self.diverged_at, self.seeds, self.eta_y, self.eta_z))
        return attended(self.data.conditional, logits[..., self.data.last_of_next, :])


def token_sgd(
    data: NextTokenData,
    *,
    eta_y: ArrayLike,
    eta_z: ArrayLike,
    seeds: Sequence[int],
    steps: int = 100,
    batch: int = 128,
    length: int | None = 128,
    momentum: float = 0.9,
    uniform_start: bool = True,
    normalised: bool = True,
    record: Sequence[int] = (),
    dtype: Literal["float32", "float64"] = "float32",
    keep_going: bool = False,
) -> TokenRuns:
    """SGD with momentum on Y and Z for every seed and every pair (eta_y[r], eta_z[r]) at once.

    A sequence of length T enters by its token counts alone (Lemma 2's identity holds at every T), so no
    sequence is ever made; ``length=None`` is the limit T -> infinity. Runs of one seed share their
    initial weights and their batches, whatever the rates, and a run comes out the same whichever other
    seeds it is computed beside. The weights start uniform in +-1/sqrt(M) (``uniform_start``) or at zero.
    ``record`` names the steps (0 is the start) at which Z is kept; the last one always is.
    Raises InputError for sizes and rates that make no sense, and DivergenceError, naming the run and the
    step, when a run leaves the finite numbers; with ``keep_going`` such a run is reported in
    ``diverged_at`` instead and its numbers are NaN from there on.
    """
    rates_y, rates_z = _rates(eta_y, eta_z)
    kept = sorted({*record, steps})
    problems = {
        f"steps = {steps}": steps < 1,
        f"batch = {batch}": batch < 1,
        f"length = {length}": length is not None and length < 2,
        f"momentum = {momentum}": not 0 <= momentum < 1,
        f"seeds = {list(seeds)}": len(seeds) < 1 or len(set(seeds)) < len(seeds) or min(seeds) < 0,
        f"record = {list(record)}": bool(kept) and (kept[0] < 0 or kept[-1] > steps),
    }
    for text, wrong in problems.items():
        if wrong:
            raise InputError(
                f"token_sgd: {text} cannot be; give steps and batch of at least 1, length of at least 2 or "
                "None, momentum in [0, 1), different seeds of at least 0 and recorded steps among the steps."
            )
    shape = (len(seeds), rates_y.size)
    tokens, outputs = data.contextual_tokens, data.logits
    logits = np.empty((len(kept), *shape, data.last_tokens, tokens), dtype=dtype)
    decoder = np.empty((*shape, tokens, outputs), dtype=dtype)
    loss = np.empty((steps, *shape), dtype=dtype)
    for s, seed in enumerate(seeds):
        logits[:, s], decoder[s], loss[:, s] = _runs_of_one_seed(
            data,
            np.random.default_rng(seed),
            rates_y,
            rates_z,
            kept=kept,
            batch=batch,
            length=length,
            momentum=momentum,
            bound=outputs**-0.5 if uniform_start else 0.0,
            normalised=normalised,
            dtype=dtype,
        )
    bad = ~np.isfinite(loss)
    at_end = ~(np.isfinite(decoder).all(axis=(-2, -1)) & np.isfinite(logits[-1]).all(axis=(-2, -1)))
    diverged_at = np.where(bad.any(axis=0), bad.argmax(axis=0), np.where(at_end, steps, -1))
    if (diverged_at >= 0).any() and not keep_going:
        raise DivergenceError(_divergence(diverged_at, np.asarray(seeds), rates_y, rates_z))
    return TokenRuns(
        data=data,
        seeds=np.asarray(seeds, dtype=np.int64),
        eta_y=rates_y,
        eta_z=rates_z,
        steps=np.asarray(kept, dtype=np.int64),
        logits=logits,
        decoder=decoder,
        loss=loss,
        diverged_at=diverged_at,
    )


def _runs_of_one_seed(
    data: NextTokenData,
    random: np.random.Generator,
    eta_y: Floats,
    eta_z: Floats,
    *,
    kept: Sequence[int],
    batch: int,
    length: int | None,
    momentum: float,
    bound: float,
    normalised: bool,
    dtype: str,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """The recorded logits, the last decoder and the losses of R runs that share seed and batches."""
    import torch

    runs, tokens, outputs, lasts = eta_y.size, data.contextual_tokens, data.logits, data.last_tokens
    kind = getattr(torch, dtype)
    rate_y = torch.tensor(eta_y, dtype=kind)[:, None, None]
    rate_z = torch.tensor(eta_z, dtype=kind)[:, None, None]
    y = torch.tensor(random.uniform(-bound, bound, (tokens, outputs)), dtype=kind).repeat(runs, 1, 1)
    z = torch.tensor(random.uniform(-bound, bound, (lasts, tokens)), dtype=kind).repeat(runs, 1, 1)
    y_momentum, z_momentum = torch.zeros_like(y), torch.zeros_like(z)
    last_of_next = torch.from_numpy(data.last_of_next)
    rows = torch.arange(batch)
    recorded, losses = [], []
    for step in range(kept[-1] + 1):
        if step in kept:
            recorded.append(z.numpy().copy())
        if step == kept[-1]:
            break
        if length is None:
            n = random.choice(data.classes, size=batch, p=data.prior)
            frequencies = data.conditional[n]
        else:
            n, counts = data.sample_counts(batch, length, random)
            frequencies = counts.astype(np.float64)
        classes = torch.from_numpy(n)
        last = last_of_next[classes]
        log_frequencies = torch.tensor(frequencies, dtype=kind).log()
        mass = torch.softmax(z[:, last] + log_frequencies, dim=-1)
        norm = torch.linalg.vector_norm(mass, dim=-1, keepdim=True) if normalised else 1.0
        features = mass / norm
        log_alpha = torch.log_softmax(features @ y, dim=-1)
        losses.append(-log_alpha[:, rows, classes].mean(dim=1))
        residual = -log_alpha.exp()
        residual[:, rows, classes] += 1.0
        residual /= batch
        pulled = residual @ y.mT
        along = (features * pulled).sum(dim=-1, keepdim=True)
        pull = features * (pulled - (features * along if normalised else along))
        ascent_z = torch.zeros_like(z).index_add_(1, last, pull)
        y_momentum.mul_(momentum).baddbmm_(features.mT, residual)
        z_momentum.mul_(momentum).add_(ascent_z)
        y.addcmul_(rate_y, y_momentum)
        z.addcmul_(rate_z, z_momentum)
    return np.stack(recorded), y.numpy(), torch.stack(losses).numpy()


def _rates(eta_y: ArrayLike, eta_z: ArrayLike) -> tuple[Floats, Floats]:
    rates_y, rates_z = np.broadcast_arrays(
        np.atleast_1d(np.asarray(eta_y, dtype=np.float64)), np.atleast_1d(np.asarray(eta_z, dtype=np.float64))
    )
    for name, rates in (("eta_y", rates_y), ("eta_z", rates_z)):
        if rates.ndim != 1 or not np.isfinite(rates).all() or (rates < 0).any():
            raise InputError(
                f"token_sgd: {name} = {rates.tolist()} must be a number or a one-dimensional row of numbers, "
                "finite and at least 0."
            )
    return rates_y.copy(), rates_z.copy()


def _divergence(
    diverged_at: NDArray[np.int64], seeds: NDArray[np.int64], eta_y: Floats, eta_z: Floats
) -> str:
    s, r = np.argwhere(diverged_at >= 0)[0]
    return (
        f"token_sgd: {int((diverged_at >= 0).sum())} of {diverged_at.size} runs left the finite numbers, the "
        f"first at seed {seeds[s]}, eta_y = {eta_y[r]:g}, eta_z = {eta_z[r]:g}, step {diverged_at[s, r]}; "
        "lower the learning rates, or pass keep_going=True to have such runs reported."
    )
