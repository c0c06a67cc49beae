"""Large tensors folded into few numbers: distances stay, and no entry is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import joma
from joma.checkpoints.series.audit.folding import fold
from planted import State, write_series

_SUMS = 512


def _vector(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_few_entries_are_kept_as_they_are() -> None:
    vector = _vector(_SUMS)
    kept = fold(vector, _SUMS)
    vector.zero_()  # what was kept is a copy
    assert kept.tolist() == _vector(_SUMS).double().tolist()


@pytest.mark.parametrize("size", [_SUMS + 1, 100_003, 2_500_000])
def test_a_single_entry_changes_one_sum_by_its_own_change(size: int) -> None:
    """Whatever entry it is: its sign and its sum are those of no other rule."""
    vector = _vector(size)
    for place in (0, 511, 512, size // 2, size - 1):
        changed = vector.clone()
        changed[place] += 3.0
        difference = fold(changed, _SUMS) - fold(vector, _SUMS)
        (moved,) = np.flatnonzero(np.abs(difference) > 1e-6)
        assert moved == place % _SUMS
        assert abs(difference[moved]) == pytest.approx(3.0 * np.sqrt(_SUMS / size), rel=1e-4)


def test_the_mean_square_is_kept_also_of_a_few_large_entries_and_of_columns() -> None:
    """Relative standard deviation sqrt(2 / sums) = 6 %; a repeated row, of one period with the sums, too."""
    few = torch.zeros(200_000)
    few[torch.randperm(200_000, generator=torch.Generator().manual_seed(1))[:300]] = 7.0
    alike = _vector(_SUMS).repeat(400)
    for vector in (_vector(200_000), few, alike, torch.ones(200_000)):
        squares = float(vector.double().square().mean())
        assert np.mean(fold(vector, _SUMS) ** 2) == pytest.approx(squares, rel=4 * np.sqrt(2 / _SUMS))


def test_sums_of_a_difference_are_the_difference_of_the_sums() -> None:
    one, other = _vector(70_000, 1).bfloat16(), _vector(70_000, 2).bfloat16()
    apart = fold(one.double() - other.double(), _SUMS)
    assert np.abs(apart - (fold(one, _SUMS) - fold(other, _SUMS))).max() < 1e-12


def _walk() -> dict[int, State]:
    states, matrix = {}, _vector(200 * 300).reshape(200, 300)
    for step in range(8):
        other = _vector(200 * 300, 100 + step).reshape(200, 300)
        matrix = matrix + 0.05 * other
        states[step] = {
            "model.layers.0.mlp.up_proj.weight": matrix,
            "model.layers.1.mlp.up_proj.weight": matrix @ other.T @ other / 300,
        }
    return states


def test_one_wrong_entry_of_a_large_matrix_is_named(tmp_path: Path) -> None:
    """A bit of an exponent that flipped on a disk; 60,000 entries are more than the 16,384 numbers kept."""
    states, name = _walk(), "model.layers.0.mlp.up_proj.weight"
    write_series(tmp_path, states)
    assert joma.audit(tmp_path, quiet=True).faults == []
    broken = states[4][name].clone()
    broken.view(torch.int32)[137, 211] ^= 1 << 30
    assert abs(float(broken[137, 211])) > 1e4
    write_series(tmp_path, {**states, 4: {**states[4], name: broken}})
    (fault,) = joma.audit(tmp_path, quiet=True).faults
    assert (fault.member, fault.tensors) == ("step4", (name,))
