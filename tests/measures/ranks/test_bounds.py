"""The error bounds of stable rank are reached: half of one would be wrong. Inputs made against them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measures.ranks.golub_kahan import error_estimate, largest_triplet
from joma.measures.ranks.spectral_norm import spectral_norm_estimate
from joma.measures.ranks.stable_rank import stable_rank_estimate


def pair(values: np.ndarray, rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with these singular values, and its first left singular vector."""
    random = np.random.default_rng(seed)
    left = np.linalg.qr(random.normal(size=(rows, values.size)))[0]
    right = np.linalg.qr(random.normal(size=(columns, values.size)))[0]
    return (left * values) @ right.T, left[:, 0]


@pytest.mark.parametrize("share", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("rtol", [1e-2, 1e-4])
def test_a_hidden_near_tie_uses_up_the_certified_bound(
    monkeypatch: pytest.MonkeyPatch, share: float, rtol: float
) -> None:
    """The iteration never meets sigma_1, which lies within what the certificate leaves open."""
    second = 1 / np.sqrt(1 + share * rtol)
    values = np.concatenate([[1.0, second], np.linspace(0.02, 0.001, 248)])
    matrix, hidden = pair(values, 600, 250, 0)

    class Blind:
        def standard_normal(self, size: int) -> np.ndarray:
            start = np.random.Generator(np.random.PCG64(1)).standard_normal(size)
            return start - hidden * (hidden @ start)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Blind())
    found = stable_rank_estimate(torch.tensor(matrix), rtol=rtol, certify=True)
    truth = float(np.sum(values**2))
    assert found.certified
    assert found.spectral_norm.value == pytest.approx(second, rel=1e-3 * rtol), "sigma_2 taken for sigma_1"
    assert found.value - found.error_bound <= truth
    assert found.value - truth > 0.95 * share * found.error_bound


@given(st.integers(0, 10**6), st.sampled_from([1e-12, 1e-9, 1e-6, 1e-3]), st.sampled_from([1e-8, 1e-5, 1e-2]))
@settings(max_examples=12)
def test_certified_bounds_hold_for_clusters_and_tiny_gaps(seed: int, gap: float, rtol: float) -> None:
    values = np.concatenate([1 - gap * np.arange(20), np.geomspace(0.5, 1e-14, 200)])
    matrix, _ = pair(values, 560, 240, seed)
    found = stable_rank_estimate(torch.tensor(matrix), rtol=rtol, certify=True)
    truth = float(np.sum(values**2))
    assert found.value - found.error_bound <= truth * (1 + 1e-12)
    assert truth <= found.value * (1 + 1e-10)
    # (1 + rtol) sigma_1^2 is what is proven: no tighter, no looser.
    assert found.error_bound == pytest.approx(found.value * rtol / (1 + rtol), rel=1e-6)


@given(st.integers(0, 10**6), st.floats(0.5, 0.999), st.sampled_from([1e-8, 1e-4, 1e-2]))
@settings(max_examples=12)
def test_estimated_bounds_hold_for_graded_spectra(seed: int, ratio: float, rtol: float) -> None:
    values = ratio ** np.arange(220.0)
    matrix, _ = pair(values, 600, 240, seed)
    found = stable_rank_estimate(torch.tensor(matrix), rtol=rtol)
    truth = float(np.sum(values**2))
    assert found.value - found.error_bound <= truth * (1 + 1e-12)
    assert found.error_bound <= rtol * found.value
    norm = found.spectral_norm
    assert found.value == pytest.approx((norm.frobenius_norm / norm.value) ** 2, rel=1e-14)
    assert found.value - found.error_bound == pytest.approx(
        (norm.frobenius_norm / norm.upper_bound) ** 2, rel=1e-14
    )


def test_the_estimate_is_the_residual_or_its_square_over_the_gap() -> None:
    """Kato and Temple: with [[1, r], [r, 0]] the error r^2 of the value 1 is the residual's square over 1."""
    assert error_estimate(1.0, 0.9, 0.01) == pytest.approx(0.001, rel=1e-12)
    assert error_estimate(1.0, 0.9, 0.2) == 0.2
    assert error_estimate(1.0, 1.0, 0.01) == 0.01
    assert error_estimate(1.0, 1.1, 0.01) == 0.01
    r = 1e-3
    truth = np.linalg.eigvalsh([[1.0, r], [r, 0.0]])[-1]
    assert truth - 1 == pytest.approx(error_estimate(1.0, 0.0, r), rel=1e-5)


def test_the_residual_of_the_recurrence_is_that_of_the_triplet() -> None:
    """|W^T u - value v| with u = W v / value, while it is still large."""
    matrix = np.random.default_rng(2).normal(size=(60, 40))
    start = np.random.default_rng(3).normal(size=60)
    found = largest_triplet(matrix, 0.05, start=start)
    assert found.steps < 20
    left = matrix @ found.right / found.value
    assert np.linalg.norm(left) == pytest.approx(1, rel=1e-12)
    residual = np.linalg.norm(matrix.T @ left - found.value * found.right)
    assert residual > 1e-3
    assert found.residual == pytest.approx(residual, rel=1e-9)


@pytest.mark.parametrize("shape", [(30, 20), (3, 40_000), (350, 350)])
def test_the_whole_spectrum_is_exact_to_rounding(shape: tuple[int, int]) -> None:
    values = np.geomspace(1.0, 1e-12, min(shape))
    matrix, _ = pair(values, *shape, seed=3)
    found = spectral_norm_estimate(torch.tensor(matrix))
    assert found.steps == 0
    assert abs(found.value - 1) <= found.upper_bound - found.value
    assert found.upper_bound - found.value == pytest.approx(max(shape) * 2.0**-52 * found.value, rel=0.01)
