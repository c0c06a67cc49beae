"""What the monitor records is what trains: its loss, its gradients, its blocks. Names are drawn."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import joma
from joma.instruments.monitor.measuring.backward import Backwards
from joma.instruments.monitor.measuring.blocks import residual_blocks
from joma.instruments.monitor.monitor import Monitor

WIDTH = 8
SOURCE = "\n".join(path.read_text() for path in Path(joma.__file__).parent.rglob("*.py"))
NAMES = st.lists(
    st.text("bcdfghjklmnpqrstvwxz", min_size=5, max_size=9).filter(lambda name: name not in SOURCE),
    min_size=6,
    max_size=6,
    unique=True,
)
FEW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


class Layer(nn.Module):
    """A block whose parts have these names."""

    def __init__(self, attends: str, writes: str) -> None:
        super().__init__()
        self.add_module(attends, nn.MultiheadAttention(WIDTH, 2, batch_first=True))
        self.add_module(writes, nn.Linear(WIDTH, WIDTH))
        self.parts = attends, writes

    def forward(self, x: Tensor) -> Tensor:
        attention, linear = (getattr(self, name) for name in self.parts)
        x = x + attention(x, x, x, need_weights=False)[0]
        out: Tensor = x + linear(x)
        return out


class Tower(nn.Module):
    def __init__(self, depth: int, layers: str, attends: str, writes: str) -> None:
        super().__init__()
        self.add_module(layers, nn.ModuleList(Layer(attends, writes) for _ in range(depth)))
        self.layers_name = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self, self.layers_name):
            x = layer(x)
        return x


class Pair(nn.Module):
    """Two towers; the second is run as ``second`` says."""

    def __init__(self, names: list[str], depths: tuple[int, int], second: str) -> None:
        super().__init__()
        layers, attends, writes, self.one, self.other, _ = names
        self.add_module(self.one, Tower(depths[0], layers, attends, writes))
        self.add_module(self.other, Tower(depths[1], layers, attends, writes))
        self.second = second
        if second == "frozen":
            getattr(self, self.other).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        first, second = getattr(self, self.one)(x), getattr(self, self.other)
        if self.second == "without gradients":  # an average of the first: its weights could learn
            with torch.no_grad():
                held = second(x)
        else:
            held = second(x)
        out: Tensor = (first - held).square().mean()
        return out


def trained(model: nn.Module, **given: object) -> Monitor:
    with Monitor(model, every=1, ranks_every=1, **given) as monitor:  # type: ignore[arg-type]
        for step in range(2):
            loss = model(torch.randn(2, 4, WIDTH))
            loss.backward()
            monitor.step(step, loss=loss)
            model.zero_grad()
    return monitor


@FEW
@given(
    NAMES, st.tuples(st.integers(1, 3), st.integers(1, 4)), st.sampled_from(["frozen", "without gradients"])
)
def test_of_a_student_and_its_teacher_the_student_is_watched(
    names: list[str], depths: tuple[int, int], second: str
) -> None:
    table = trained(Pair(names, depths, second)).table()
    student, teacher = names[3], names[4]
    watched = table[table["module"].str.contains(f"{student}|{teacher}")]
    assert {name.split(".")[0] for name in watched["module"]} == {student}
    for metric in ("residual_rms", "attention_entropy"):
        own = table[(table["metric"] == metric) & (table["step"] == 0)]
        assert sorted(set(own["layer"])) == list(range(depths[0]))
        assert set(own["stack"]) == {student}


@FEW
@given(NAMES, st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_two_towers_that_learn_are_both_watched_and_told_apart(
    names: list[str], depths: tuple[int, int]
) -> None:
    told: list[dict[str, float]] = []
    model = Pair(names, depths, "learns")
    table = trained(model, log=lambda step, numbers: told.append(dict(numbers))).table()
    own = table[(table["metric"] == "residual_rms") & (table["step"] == 0)]
    expected = {(names[3 + k], layer) for k in range(2) for layer in range(depths[k])}
    assert set(zip(own["stack"], own["layer"], strict=True)) == expected
    keys = ["step", "stack", "layer", "call", "head", "metric", "module"]
    assert not table.duplicated(keys).any()
    for stack, layer in expected:
        assert f"joma/residual_rms/{stack}/layer{layer}" in told[0]
        assert f"joma/attention_entropy/{stack}/layer{layer}/min" in told[0]


@FEW
@given(NAMES, st.integers(2, 3), st.integers(1, 3))
def test_stages_are_lists_of_blocks_and_a_frozen_one_is_not_watched(
    names: list[str], stages: int, depth: int
) -> None:
    layers, attends, writes, outer, *_ = names

    class Staged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(
                outer, nn.ModuleList(Tower(depth, layers, attends, writes) for _ in range(stages))
            )

        def forward(self, x: Tensor) -> Tensor:
            for stage in getattr(self, outer):
                x = stage(x)
            return x.square().mean()

    model = Staged()
    blocks = residual_blocks(model)
    assert [block.name for block in blocks] == [
        f"{outer}.{stage}.{layers}.{layer}" for stage in range(stages) for layer in range(depth)
    ]
    assert [block.number for block in blocks] == list(range(depth)) * stages
    getattr(model, outer)[0].requires_grad_(False)
    own = trained(model).table().query("metric == 'residual_rms'")
    assert set(own["stack"]) == {str(stage) for stage in range(1, stages)}


@pytest.mark.parametrize("power", [4, 10, 16])
@pytest.mark.parametrize("given_scaler", [False, True])
def test_scaled_gradients_are_said_or_divided(
    power: int, given_scaler: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Tower(2, "pqxz", "qzxv", "vvzx")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, growth_interval=3)
    optimizer, true = torch.optim.SGD(model.parameters(), 1e-4), []
    caplog.set_level(logging.WARNING, "joma")
    with Monitor(model, every=2, ranks_every=None, scaler=scaler if given_scaler else None) as monitor:
        for step in range(8):
            loss = model(torch.randn(2, 4, WIDTH)).square().mean()
            scaler.scale(loss).backward()
            norm = torch.nn.utils.get_total_norm([w.grad for w in model.parameters() if w.grad is not None])
            true.append(float(norm) / scaler.get_scale())
            monitor.step(step, loss=loss)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    found = monitor.table().query("metric == 'gradient_norm'").set_index("step")["value"]
    said = [record.getMessage() for record in caplog.records if "scaled" in record.getMessage()]
    assert len(found) == (8 if given_scaler else 4)
    assert len(said) == (0 if given_scaler else 1)
    assert np.allclose(found, np.array(true)[found.index], rtol=1e-4)


@pytest.mark.parametrize("change", ["clipped", "zeroed", "none"])
def test_gradients_that_were_changed_before_the_step_are_said(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, true = Tower(2, "pqxz", "qzxv", "vvzx"), []
    caplog.set_level(logging.WARNING, "joma")
    with Monitor(model, every=2, ranks_every=None) as monitor:
        for step in range(5):
            loss = model(torch.randn(2, 4, WIDTH)).square().mean()
            loss.backward()
            true.append(
                float(
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3 if change == "clipped" else 1e9)
                )
            )
            if change != "clipped":
                model.zero_grad(set_to_none=change == "none")
            monitor.step(step, loss=loss)
            model.zero_grad()
    found = monitor.table().query("metric == 'gradient_norm'").set_index("step")["value"]
    assert np.allclose(found, np.array(true)[[0, 2, 4]], rtol=1e-4)
    said = [text for record in caplog.records if "gradient norm" in (text := record.getMessage())]
    assert len(said) == 1
    assert ("clipped" if change == "clipped" else "zero_grad()") in said[0]


def test_gradients_that_are_those_of_the_loss_are_not_talked_about(caplog: pytest.LogCaptureFixture) -> None:
    model = Tower(2, "pqxz", "qzxv", "vvzx")
    caplog.set_level(logging.WARNING, "joma")
    backward = torch.autograd.backward
    with Monitor(model, every=1, ranks_every=None) as monitor:
        for step in range(4):
            losses = [model(torch.randn(2, 4, WIDTH)).square().mean() / 4 for _ in range(4)]
            for loss in losses:
                loss.backward()
            monitor.step(step, loss=torch.stack(losses).sum())
            model.zero_grad()
    assert torch.autograd.backward is backward
    assert not any("gradient norm" in record.getMessage() for record in caplog.records)
    assert (monitor.table()["metric"] == "gradient_norm").sum() == 4


@given(st.integers(-20, 20), st.floats(0.1, 10))
def test_the_factor_is_that_of_the_loss(power: int, loss: float) -> None:
    ran = Backwards(lambda: None, lambda whole: None, lambda error: None)
    ran.ran(torch.tensor(loss * 2.0**power, dtype=torch.float64))
    assert ran.factor(loss) == (2.0**power if abs(power) >= 4 else 1.0)
