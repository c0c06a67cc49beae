"""Stable and effective rank where no full spectrum is computed, and the bounds that come with them."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.measures.ranks.golub_kahan import largest_triplet
from joma.measures.ranks.spectral_norm import spectral_norm, spectral_norm_estimate
from joma.measures.ranks.stable_rank import effective_rank, stable_rank, stable_rank_estimate


def with_spectrum(values: np.ndarray, rows: int, columns: int, seed: int) -> torch.Tensor:
    """A matrix with these singular values, in float64."""
    random = np.random.default_rng(seed)
    left = np.linalg.qr(random.normal(size=(rows, values.size)))[0]
    right = np.linalg.qr(random.normal(size=(columns, values.size)))[0]
    return torch.tensor((left * values) @ right.T)


def exact(values: np.ndarray) -> float:
    return float(np.sum((values / values.max()) ** 2))


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.floats(0.02, 1.0), st.booleans(), st.sampled_from([1e-30, 1.0, 1e25]))
def test_power_law_spectra_to_the_tolerance(seed: int, decay: float, wide: bool, scale: float) -> None:
    values = np.arange(1.0, 301.0) ** -decay
    matrix = with_spectrum(values, 500, 300, seed) * scale
    matrix = matrix.T if wide else matrix
    truth = exact(values)
    found = stable_rank_estimate(matrix)
    assert found.value == pytest.approx(truth, rel=1e-6)
    assert found.value >= truth * (1 - 1e-12)
    assert found.spectral_norm.value == pytest.approx(values[0] * scale, rel=1e-6)
    assert stable_rank(matrix.float()) == pytest.approx(truth, rel=2e-6)


@pytest.mark.parametrize(
    "shape", [(700, 300), (300, 700), (2, 80_000), (80_000, 2), (1, 150_000), (520, 520)]
)
def test_gaussian_against_lapack(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    values = torch.linalg.svdvals(matrix.double())
    truth = float((values / values[0]).square().sum())
    found = stable_rank_estimate(matrix)
    assert found.value == pytest.approx(truth, rel=1e-6)
    assert found.spectral_norm.steps > 0
    certified = stable_rank_estimate(matrix, certify=True, rtol=1e-4)
    assert certified.certified
    assert certified.value - certified.error_bound <= truth <= certified.value * (1 + 1e-12)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.floats(1e-7, 1e-2))
def test_certified_bounds_enclose_near_ties(seed: int, gap: float) -> None:
    values = np.concatenate([[1.0, 1.0 - gap], np.full(200, 0.9)])
    truth = exact(values)
    found = stable_rank_estimate(with_spectrum(values, 600, 260, seed), rtol=1e-5, certify=True)
    assert found.certified
    assert found.error_bound <= 2e-5 * found.value
    assert found.value - found.error_bound <= truth * (1 + 1e-12)
    assert truth <= found.value * (1 + 1e-9)


def test_the_certificate_finds_a_value_the_iteration_cannot_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a start orthogonal to it, the iteration never meets sigma_1; certifying does."""
    random = np.random.default_rng(0)
    left = np.linalg.qr(random.normal(size=(600, 300)))[0]
    right = np.linalg.qr(random.normal(size=(300, 300)))[0]
    values = np.concatenate([[1.2, 1.0], np.linspace(0.1, 0.01, 298)])
    matrix = (left * values) @ right.T

    class Blind:
        def standard_normal(self, size: int) -> np.ndarray:
            start = random.normal(size=size)
            return start - left[:, 0] * (left[:, 0] @ start)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Blind())
    tolerant = stable_rank_estimate(torch.tensor(matrix), rtol=0.1)
    found = stable_rank_estimate(torch.tensor(matrix), certify=True, rtol=0.1)
    assert tolerant.value == pytest.approx(float(np.sum(values**2)), rel=1e-3), "sigma_2 taken for sigma_1"
    assert found.value == pytest.approx(exact(values), rel=1e-9)


@given(st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=20)
def test_krylov_space_is_exhausted_gracefully(rank: int, seed: int) -> None:
    """Low rank, repeated values: the recurrence ends early and the residual says so."""
    matrix = with_spectrum(np.full(rank, 2.0), 40, 30, seed).numpy()
    triplet = largest_triplet(matrix, 1e-12, start=np.random.default_rng(seed).standard_normal(40))
    assert triplet.value == pytest.approx(2.0, rel=1e-12)
    assert np.linalg.norm(matrix @ triplet.right) == pytest.approx(2.0, rel=1e-12)


def test_residual_is_the_true_one() -> None:
    matrix = torch.randn(600, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = spectral_norm_estimate(matrix, rtol=1e-3)
    nearest = (torch.linalg.svdvals(matrix) - found.value).abs().min()
    assert nearest <= found.residual
    assert found.frobenius_norm == pytest.approx(float(matrix.norm()), rel=1e-13)
    finer = spectral_norm_estimate(matrix, rtol=1e-10)
    assert finer.steps > found.steps
    assert finer.residual < found.residual
    assert finer.value == pytest.approx(float(torch.linalg.svdvals(matrix)[0]), rel=1e-10)


def test_every_kind_of_weight_gives_the_same() -> None:
    dense = torch.randn(400, 400, generator=torch.Generator().manual_seed(1)).bfloat16()
    dense[torch.rand(400, 400, generator=torch.Generator().manual_seed(2)) < 0.8] = 0.0
    truth = stable_rank(dense.double())
    assert stable_rank(dense) == pytest.approx(truth, rel=1e-6)
    assert stable_rank(dense.to_sparse()) == stable_rank(dense)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR layout a beta
        compressed = dense.float().to_sparse_csr()
    assert stable_rank(compressed) == stable_rank(dense)
    assert stable_rank(dense.float().numpy()) == stable_rank(dense)
    assert stable_rank(scipy.sparse.csr_array(dense.float().numpy())) == stable_rank(dense)
    assert stable_rank(torch.nn.Parameter(dense)) == stable_rank(dense)
    strided = dense.float().repeat_interleave(2, dim=1)[:, ::2]
    assert stable_rank(strided) == stable_rank(dense)
    assert stable_rank(dense) == stable_rank(dense), "the same bits twice"


def test_batches() -> None:
    stack = torch.randn(2, 3, 8, 5, generator=torch.Generator().manual_seed(0))
    for measure in (stable_rank, effective_rank):
        values = measure(stack)
        assert values.shape == (2, 3)
        assert values[1, 2] == measure(stack[1, 2])
    stack[1, 0, 4, 3] = math.nan
    with pytest.raises(InputError, match=r"matrix \[1, 0\].*NaN at row 4, column 3"):
        stable_rank(stack)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.eye(7)) == pytest.approx(7.0)
    assert effective_rank(torch.ones(3, 9)) == pytest.approx(1.0, abs=1e-9)
    values = np.array([4.0, 2.0, 1.0, 1.0])
    share = values / values.sum()
    expected = math.exp(-sum(p * math.log(p) for p in share))
    assert expected == pytest.approx(2**1.75)  # entropy of 1/2, 1/4, 1/8, 1/8 is 1.75 bits
    assert effective_rank(with_spectrum(values, 9, 6, 0)) == pytest.approx(expected, rel=1e-9)


def large_with(value: float) -> torch.Tensor:
    matrix = torch.ones(400, 400)
    matrix[7, 11] = value
    return matrix


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (large_with(math.nan), "1 of 160000 entries, the first NaN at row 7, column 11"),
        (large_with(-math.inf), "the first an infinity at row 7, column 11"),
        (torch.zeros(400, 400), "is zero"),
        (torch.ones(400, 400, dtype=torch.int8), "torch.int8 is not real floating point"),
        (torch.ones(4, 4, dtype=torch.complex64), "not real floating point"),
        ("weights", r"the weight \('weights'\) is not an array"),
    ],
)
def test_bad_weights_are_refused_with_the_place(weight: object, message: str) -> None:
    zero = message == "is zero"  # whose norm is no question
    for measure in (stable_rank, effective_rank, *([] if zero else [spectral_norm])):
        with pytest.raises(InputError, match=message):
            measure(weight)


def test_a_zero_matrix_has_a_norm_and_no_rank() -> None:
    for shape in ((3, 3), (500, 400)):
        found = spectral_norm_estimate(torch.zeros(shape), certify=True)
        assert (found.value, found.upper_bound, found.frobenius_norm) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("rtol", [0.0, -1.0, 1.0, math.nan, 1e-13])
def test_tolerances_out_of_reach(rtol: float) -> None:
    with pytest.raises(InputError, match="rtol = "):
        stable_rank(torch.eye(3), rtol=rtol)
    with pytest.raises(InputError, match="from 1e-09"):
        stable_rank(torch.eye(3), rtol=1e-10, certify=True)


def test_a_parameter_that_zero3_keeps_elsewhere() -> None:
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_shape = torch.Size([40, 30])  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"ZeRO-3 keeps it elsewhere \(its shape is \(40, 30\)\)"):
        stable_rank(parameter)


@pytest.mark.parametrize("shape", [(500, 300), (300, 500)])
def test_the_same_algorithm_on_torch_tensors(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    """What other devices run, run here: torch in place of NumPy, Cholesky and all."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    ours = stable_rank_estimate(matrix, certify=True)
    monkeypatch.setattr("joma.measures.ranks.spectral_norm._array", lambda tensor: tensor)
    theirs = stable_rank_estimate(matrix, certify=True)
    assert theirs.certified
    assert theirs.value == pytest.approx(ours.value, rel=1e-6)
    assert theirs.spectral_norm.steps == pytest.approx(ours.spectral_norm.steps, abs=2)
    values = torch.linalg.svdvals(matrix.double())
    truth = float((values / values[0]).square().sum())
    assert theirs.value - theirs.error_bound <= truth <= theirs.value * (1 + 1e-12)
    near_tie = with_spectrum(np.concatenate([[1.0, 0.9999], np.full(200, 0.5)]), *shape, seed=1)
    assert stable_rank(near_tie, certify=True) == pytest.approx(1 + 0.9999**2 + 50.0, rel=1e-6)
