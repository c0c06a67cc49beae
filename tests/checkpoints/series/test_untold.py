"""What the docs say cannot be told, made: nothing of it is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import joma
from planted import Series, Training, train, write_series

PAGE = Path(__file__).parents[3] / "docs" / "along-training.md"


@pytest.fixture(scope="module")
def series() -> Series:
    return train(Training(seed=5, steps=tuple(range(0, 40, 4))))


def _near_average(series: Series) -> Series:
    """Half of the model of step 16, and half of the mean of its neighbours."""
    mean = {name: (series[12][name] + series[20][name]) / 2 for name in series[16]}
    return {**series, 16: {name: (one + mean[name]) / 2 for name, one in series[16].items()}}


def _in_reverse(series: Series) -> Series:
    trained = [step for step in series if step > 0]  # biases that are zero again would tell the first one
    return dict(zip(trained, [series[step] for step in sorted(trained, reverse=True)], strict=True))


def _two_exchanged(series: Series) -> Series:
    return {4: series[8], 8: series[4]}


def _step_1_is_step_0(series: Series) -> Series:
    return {0: series[0], 1: series[0], **{step: one for step, one in series.items() if step > 1}}


def _quantised_in_bfloat16(series: Series) -> Series:
    states = {step: {name: one.bfloat16() for name, one in state.items()} for step, state in series.items()}
    quantised = {}
    for name, one in series[16].items():
        scale = one.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        quantised[name] = ((one / scale).round() * scale).bfloat16() if one.ndim > 1 else one.bfloat16()
    return {**states, 16: quantised}


def _small_change(series: Series) -> Series:
    draw = torch.Generator().manual_seed(0)
    changed = {
        name: one + 0.1 * (series[20][name] - series[12][name]).std() * torch.randn(one.shape, generator=draw)
        for name, one in series[16].items()
    }
    return {**series, 16: changed}


def _shard_of_the_one_before(series: Series) -> Series:
    own = [name for name in series[36] if ".layers.0." in name]
    assert own
    return {**series, 36: {**series[36], **{name: series[32][name] for name in own}}}


UNTOLD: dict[str, Callable[[Series], Series]] = {
    "an average of the weights": _near_average,
    "that are the one before's": _shard_of_the_one_before,
    "reverse order": _in_reverse,
    "in a series of two": _two_exchanged,
    "step 1 that holds step 0": _step_1_is_step_0,
    "stored in bfloat16": _quantised_in_bfloat16,
    "smaller than what a tensor moves": _small_change,
}


@pytest.mark.parametrize("what", UNTOLD)
def test_what_cannot_be_told_is_not_named(what: str, series: Series, tmp_path: Path) -> None:
    write_series(tmp_path, UNTOLD[what](series))
    assert joma.audit(tmp_path, quiet=True).faults == []


def test_the_page_lists_each_with_its_reason() -> None:
    section = PAGE.read_text("utf-8").partition("### What cannot be told")[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert all(len(row) == 2 and len(row[1]) > 20 for row in rows)
    for what in UNTOLD:
        assert sum(what in row[0] for row in rows) == 1, what
