"""SGD of Scan&Snap's Y and Z on finite sequences, many seeds and pairs of rates at once.

A sequence enters by its token counts alone, for Lemma 2's identity X^T diag(b) X = diag(X^T b) holds at
every length; runs that share a seed share their batches, and all their products are one batched product.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from joma.core.errors import DivergenceError, InputError
from joma.data.next_token import NextTokenData
from joma.theory.scan_snap.equations import attended_mass

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Batch = tuple[Integers, Integers, NDArray[np.generic]]
"""Next tokens (B,), last tokens (B,), counts or frequencies (B, C)."""


@dataclass(frozen=True, eq=False)
class TokenRuns:
    """SGD runs of Y and Z: S seeds times R pairs of rates, C contextual, K next and L last tokens."""

    data: NextTokenData
    seeds: Integers
    """Shape (S,)."""
    eta_y: Floats
    """Shape (R,)."""
    eta_z: Floats
    """Shape (R,)."""
    steps: Integers
    """The steps at which ``logits`` were kept, shape (N,); 0 is the start."""
    logits: NDArray[np.floating]
    """z, shape (N, S, R, L, C)."""
    decoder: NDArray[np.floating]
    """Y after the last step, shape (S, R, C, M)."""
    loss: NDArray[np.floating]
    """Cross-entropy of each batch before its update, nats, shape (steps, S, R)."""
    diverged_at: Integers
    """Shape (S, R): the step from which a run's numbers are not finite; -1 where all are."""

    def mass(self, index: int = -1) -> Floats:
        """c_n of the limit T -> infinity at ``steps[index]``, shape (S, R, K, C), float64.

        Raises DivergenceError if a run's logits are not finite there.
        """
        logits = self.logits[index]
        if not np.isfinite(logits).all():
            raise DivergenceError(_divergence(self.diverged_at, self.seeds, self.eta_y, self.eta_z))
        return attended_mass(self.data.conditional, logits[..., self.data.last_of_next, :])


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
    start: Literal["uniform", "zero"] | tuple[ArrayLike, ArrayLike] = "uniform",
    normalised: bool = True,
    classes: ArrayLike | None = None,
    record: Sequence[int] = (),
    dtype: Literal["float32", "float64"] = "float32",
    keep_going: bool = False,
) -> TokenRuns:
    """SGD with momentum on Y and Z for every seed and every pair (eta_y[r], eta_z[r]) at once.

    A sequence of length T enters by its token counts alone (Lemma 2's identity holds at every T), so no
    sequence is ever made; ``length=None`` is the limit T -> infinity. Runs of one seed share their
    initial weights and their batches, whatever the rates, and a run comes out the same whichever other
    seeds it is computed beside. The weights start uniform in +-1/sqrt(M), at zero, or at the given
    (Y, z), of shapes that broadcast to (S, C, M) and (S, L, C).
    ``classes`` (S, steps, batch) prescribes the class of every sequence; None draws them from P(n).
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
    given = None if classes is None else np.asarray(classes)
    wanted = (len(seeds), steps, batch)
    if given is not None and (given.shape != wanted or given.min() < 0 or given.max() >= data.classes):
        raise InputError(
            f"token_sgd: classes of shape {given.shape} must have shape {wanted} and hold next tokens 0 to "
            f"{data.classes - 1}."
        )
    shape = (len(seeds), rates_y.size)
    tokens, outputs = data.contextual_tokens, data.logits
    given_start = _starts(start, len(seeds), data)
    logits = np.empty((len(kept), *shape, data.last_tokens, tokens), dtype=dtype)
    decoder = np.empty((*shape, tokens, outputs), dtype=dtype)
    loss = np.empty((steps, *shape), dtype=dtype)
    for s, seed in enumerate(seeds):
        logits[:, s], decoder[s], loss[:, s] = _runs_of_one_seed(
            data,
            np.random.default_rng(seed),
            rates_y,
            rates_z,
            classes=None if given is None else given[s],
            kept=kept,
            batch=batch,
            length=length,
            momentum=momentum,
            start=None if given_start is None else (given_start[0][s], given_start[1][s]),
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
    classes: Integers | None,
    kept: Sequence[int],
    batch: int,
    length: int | None,
    momentum: float,
    start: tuple[Floats, Floats] | None,
    normalised: bool,
    dtype: Literal["float32", "float64"],
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """The recorded logits, the last decoder and the losses of R runs that share seed and batches."""
    if start is None:
        bound = data.logits**-0.5
        start = (
            random.uniform(-bound, bound, (data.contextual_tokens, data.logits)),
            random.uniform(-bound, bound, (data.last_tokens, data.contextual_tokens)),
        )

    def batches() -> Iterator[Batch]:
        for step in range(kept[-1]):
            n = random.choice(data.classes, batch, p=data.prior) if classes is None else classes[step]
            counts = data.conditional[n] if length is None else data.counts_of(n, length, random)
            yield n, data.last_of_next[n], counts

    return sgd_on_counts(
        batches(),
        start,
        eta_y=eta_y,
        eta_z=eta_z,
        momentum=momentum,
        normalised=normalised,
        record=kept,
        dtype=dtype,
    )


def sgd_on_counts(
    batches: Iterable[Batch],
    start: tuple[Floats, Floats],
    *,
    eta_y: Floats,
    eta_z: Floats,
    momentum: float = 0.9,
    normalised: bool = True,
    record: Container[int] = (),
    dtype: Literal["float32", "float64"] = "float32",
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """SGD of Y and Z on any batches of (next token, last token, token counts), for R pairs of rates.

    The core of ``token_sgd``, for data of one's own, such as windows of a text. A batch holds next
    tokens (B,) below V, last tokens (B,) below L, and counts or frequencies (B, C), each row with a
    positive entry; ``start`` holds Y (C, V) and z (L, C), ``eta_y`` and ``eta_z`` have shape (R,).
    Returns z at the steps in ``record`` (N, R, L, C), Y at the end (R, C, V), and losses (steps, R) in
    nats. Nothing is checked here: a run that diverges shows in losses that are not finite.
    """
    kind = getattr(torch, dtype)
    rate_y = torch.tensor(eta_y, dtype=kind)[:, None, None]
    rate_z = torch.tensor(eta_z, dtype=kind)[:, None, None]
    y, z = (torch.tensor(weights, dtype=kind).repeat(eta_y.size, 1, 1) for weights in start)
    y_momentum, z_momentum = torch.zeros_like(y), torch.zeros_like(z)
    recorded = [z.numpy().copy()] if 0 in record else []
    losses = []
    for step, (next_token, last_token, counts) in enumerate(batches, start=1):
        n, last = torch.from_numpy(next_token), torch.from_numpy(last_token)
        rows = torch.arange(n.numel())
        mass = torch.softmax(z[:, last] + torch.tensor(counts, dtype=kind).log(), dim=-1)
        norm = torch.linalg.vector_norm(mass, dim=-1, keepdim=True) if normalised else 1.0
        features = mass / norm
        log_alpha = torch.log_softmax(features @ y, dim=-1)
        losses.append(-log_alpha[:, rows, n].mean(dim=1))
        residual = -log_alpha.exp()
        residual[:, rows, n] += 1.0
        residual /= n.numel()
        pulled = residual @ y.mT
        along = (features * pulled).sum(dim=-1, keepdim=True)
        pull = features * (pulled - (features * along if normalised else along))
        ascent_z = torch.zeros_like(z).index_add_(1, last, pull)
        y_momentum.mul_(momentum).baddbmm_(features.mT, residual)
        z_momentum.mul_(momentum).add_(ascent_z)
        y.addcmul_(rate_y, y_momentum)
        z.addcmul_(rate_z, z_momentum)
        if step in record:
            recorded.append(z.numpy().copy())
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


def _starts(
    start: str | tuple[ArrayLike, ArrayLike], seeds: int, data: NextTokenData
) -> tuple[Floats, Floats] | None:
    """Y (S, C, M) and z (S, L, C) at the start; None where each seed draws its own."""
    if isinstance(start, str):
        if start not in ("uniform", "zero"):
            raise InputError(f"token_sgd: start = {start!r}; give 'uniform', 'zero', or a pair (Y, z).")
        if start == "uniform":
            return None
        start = (0.0, 0.0)
    shapes = (
        (seeds, data.contextual_tokens, data.logits),
        (seeds, data.last_tokens, data.contextual_tokens),
    )
    weights = []
    for given, shape, name in zip(start, shapes, ("Y", "z"), strict=True):
        array = np.asarray(given, dtype=np.float64)
        try:
            weights.append(np.broadcast_to(array, shape))
        except ValueError:
            raise InputError(
                f"token_sgd: the starting {name} has shape {array.shape}; it must broadcast to {shape}."
            ) from None
        if not np.isfinite(array).all():
            raise InputError(f"token_sgd: the starting {name} must be finite.")
    return weights[0], weights[1]


def _divergence(diverged_at: Integers, seeds: Integers, eta_y: Floats, eta_z: Floats) -> str:
    s, r = np.argwhere(diverged_at >= 0)[0]
    return (
        f"token_sgd: {int((diverged_at >= 0).sum())} of {diverged_at.size} runs left the finite numbers, the "
        f"first at seed {seeds[s]}, eta_y = {eta_y[r]:g}, eta_z = {eta_z[r]:g}, step {diverged_at[s, r]}; "
        "lower the learning rates, or pass keep_going=True to have such runs reported."
    )
