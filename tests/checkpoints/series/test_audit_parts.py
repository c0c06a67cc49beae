"""Parts of tensors and parts of a line that are not what their names say, in series made of numbers alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import joma
from planted import Series, State, write_series

_STEPS = tuple(range(0, 40, 4))
_NAMES = tuple(f"model.layers.{i}.mlp.up_proj.weight" for i in range(3))


def _walk(seed: int) -> Series:
    """Three matrices that move by a third of their size from first to last."""
    random = np.random.default_rng(seed)
    moves = 0.1 * random.standard_normal((len(_STEPS), len(_NAMES), 48, 30)).cumsum(0)
    first = random.standard_normal((len(_NAMES), 48, 30))
    return {
        step: {name: torch.tensor(first[i] + moves[k, i]) for i, name in enumerate(_NAMES)}
        for k, step in enumerate(_STEPS)
    }


def _named(folder: Path, series: Series) -> dict[str, set[str]]:
    write_series(folder, series)
    found: dict[str, set[str]] = {}
    for fault in joma.audit(folder, quiet=True).faults:
        found.setdefault(fault.member, set()).update(fault.tensors)
    return found


def _with_rows(own: State, other: State, rows: slice) -> State:
    mixed = {name: one.clone() for name, one in own.items()}
    for name, one in mixed.items():
        one[rows] = other[name][rows]
    return mixed


@pytest.mark.parametrize("rows", [slice(0, 24), slice(36, 48), slice(12, 15)])
@pytest.mark.parametrize(("member", "source"), [(16, 36), (24, 4)])
def test_rows_of_another_member_are_stale(rows: slice, member: int, source: int, tmp_path: Path) -> None:
    """As where one rank's file of another step lies beside the right ones."""
    series = _walk(1)
    series[member] = _with_rows(series[member], series[source], rows)
    write_series(tmp_path, series)
    (fault,) = joma.audit(tmp_path, quiet=True).faults
    assert (fault.member, fault.fault, fault.matches) == (f"step{member}", "stale tensors", f"step{source}")
    assert fault.tensors == _NAMES
    assert "% of the rows of" in fault.reason


def test_rows_at_rest_are_no_fault(tmp_path: Path) -> None:
    """Words that did not occur: their rows stay for a while, and move on."""
    series, random = _walk(2), np.random.default_rng(0)
    for before, step in pairwise(_STEPS):
        resting = torch.from_numpy(random.random(48) < 0.4)
        series[step][_NAMES[0]][resting] = series[before][_NAMES[0]][resting]
    assert _named(tmp_path, series) == {}


def test_rows_that_move_by_the_rounding_of_their_type_are_no_fault(tmp_path: Path) -> None:
    """Between two numbers of bfloat16 a row may come back to what it was."""
    series, random = _walk(3), np.random.default_rng(0)
    kept = series[0][_NAMES[0]]
    for step in _STEPS:
        flips = torch.from_numpy((random.random(kept.shape) < 0.01).astype(float))
        series[step] = {name: one.bfloat16() for name, one in series[step].items()}
        series[step][_NAMES[0]] = (kept.bfloat16().double() * (1 + flips / 128)).bfloat16()
    returns = [
        (a, b)
        for a in _STEPS
        for b in _STEPS
        if b > a + 4 and any(map(torch.equal, series[a][_NAMES[0]], series[b][_NAMES[0]]))
    ]
    assert len(returns) > 4
    assert _named(tmp_path, series) == {}


@pytest.mark.parametrize("members", [(16, 20), (8, 12, 16), (28, 32, 36), (0, 4)])
def test_several_members_in_turn_of_another_run_are_named(members: tuple[int, ...], tmp_path: Path) -> None:
    series, other = _walk(4), _walk(5)
    assert _named(tmp_path / "clean", series) == {}
    for step in members:
        series[step] = other[step]
    assert _named(tmp_path / "lying", series) == {f"step{step}": set(_NAMES) for step in members}


def test_a_first_interval_as_long_as_the_rest_breaks_no_line(tmp_path: Path) -> None:
    """Initial values have little in common with what comes a thousand steps later; the speed is the same."""
    series, random = _walk(6), np.random.default_rng(0)
    far = {step + 1000: state for step, state in series.items() if step > 4}
    for name in _NAMES:
        moved = torch.tensor(25.0 * 0.1 * random.standard_normal((48, 30)))
        for step in far:
            far[step][name] = far[step][name] + moved
    assert _named(tmp_path, {0: series[0], 4: series[4], **far}) == {}


@pytest.mark.parametrize("factor", [1e3, 1e30])
def test_of_three_members_a_spike_is_no_exchange(factor: float, tmp_path: Path) -> None:
    """It would be as short a way with the spike at an end, and cost an honest member its curve."""
    walk = _walk(9)
    series = {step: walk[step] for step in _STEPS[:3]}
    series[4] = {name: factor * one for name, one in series[4].items()}
    assert set(_named(tmp_path, series)) == {"step4"}


def test_biases_that_begin_at_zero_are_no_fault_and_end_there_are_one(tmp_path: Path) -> None:
    """A vector of zeros has a cosine of zero with everything, and is still no stranger."""
    series, random = _walk(8), np.random.default_rng(0)
    name = "model.layers.1.mlp.up_proj.bias"
    moved = np.cumsum(random.standard_normal((len(_STEPS), 300)) + 2.0 * random.standard_normal(300), axis=0)
    for k, step in enumerate(_STEPS):
        series[step][name] = torch.tensor(0.1 * (moved[k] - moved[0]))
    assert _named(tmp_path / "begins", series) == {}
    series[_STEPS[-1]][name] = torch.zeros(300, dtype=torch.float64)
    assert _named(tmp_path / "ends", series) == {f"step{_STEPS[-1]}": {name}}


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0])
def test_a_member_that_is_multiplied_is_exchanged_with_no_other(factor: float, tmp_path: Path) -> None:
    series = _walk(7)
    series[16] = {name: factor * one for name, one in series[16].items()}
    assert _named(tmp_path, series) == {"step16": set(_NAMES)}
