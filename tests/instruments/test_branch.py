"""joma.branch: the twin, the interventions, resuming, and what it refuses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import joma


def make(dropout: float = 0.3) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(dropout), nn.Linear(8, 1))
    batches = torch.randn(30, 6, 3, generator=torch.Generator().manual_seed(1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05), batches


def step(model: nn.Module, batch: Tensor) -> dict[str, Any]:
    loss = (model(batch) - batch.sum(-1, keepdim=True)).square().mean()
    return {"loss": loss, "weight": float(model[0].weight.detach().norm())}  # type: ignore[index]


def values(found: joma.BranchResult, branch: str, metric: str = "loss") -> np.ndarray:
    table = found.table("curves").query("branch == @branch and metric == @metric and order == 0")
    return table["value"].to_numpy().reshape(-1, found.settings.flat()["steps"])  # type: ignore[arg-type]


def test_a_branch_without_intervention_is_the_twin_and_that_of_plain_training() -> None:
    found = joma.branch(make, step, at=7, interventions={"same": "none"}, steps=6, seeds=2)
    assert (values(found, "same") == values(found, "twin")).all()
    longer = joma.branch(make, step, at=0, interventions={"same": "none"}, steps=13, seeds=2)
    assert (values(longer, "twin")[:, 7:] == values(found, "twin")).all()


def test_what_the_interventions_do() -> None:
    def scale(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            model[0].weight.mul_(2)  # type: ignore[index]

    ways = {
        "frozen": "freeze 0.*",
        "still": "rate 0 0.weight",
        "back": "rewind 0.weight to 2",
        "fresh": "reset-optimizer",
        "doubled": scale,
    }
    found = joma.branch(make, step, at=7, interventions=ways, steps=6, seeds=2)
    twin = values(found, "twin", "weight")
    assert np.ptp(twin, axis=1).min() > 0
    for name in ("frozen", "still"):
        assert (values(found, name, "weight") == twin[:, :1]).all()
    trunk = joma.branch(make, step, at=0, interventions={"same": "none"}, steps=3, seeds=2)
    assert (values(found, "back", "weight")[:, 0] == values(trunk, "twin", "weight")[:, 2]).all()
    fresh = values(found, "fresh")
    assert (fresh[:, 0] == values(found, "twin")[:, 0]).all()
    assert (fresh[:, 2:] != values(found, "twin")[:, 2:]).any()
    np.testing.assert_allclose(values(found, "doubled", "weight")[:, 0], 2 * twin[:, 0], rtol=1e-6)


def test_differences_and_intervals() -> None:
    found = joma.branch(make, step, at=3, interventions={"frozen": "freeze *"}, steps=4, seeds=3)
    gaps = (values(found, "frozen") - values(found, "twin"))[:, -1]
    row = found.table().query("metric == 'loss'").iloc[-1]
    assert row["value"] == pytest.approx(gaps.mean())
    assert row["high"] - row["low"] == pytest.approx(2 * 4.302653 * gaps.std(ddof=1) / 3**0.5, rel=1e-6)
    assert row["twin_spread"] > 0
    assert "frozen" in found.answer()[0]


class Killed(BaseException):
    """In the place of a signal."""


def test_it_goes_on_where_it_was_killed(tmp_path: Path, no_pictures: None) -> None:
    arguments: dict[str, Any] = {"at": 3, "interventions": {"frozen": "freeze 0.*"}, "steps": 4, "seeds": 2}
    whole = joma.branch(make, step, **arguments)
    for kill in itertools.count(5, 11):
        left = [kill]

        def dying(model: nn.Module, batch: Tensor, left: list[int] = left) -> dict[str, Any]:
            left[0] -= 1
            if not left[0]:
                raise Killed
            return step(model, batch)

        try:
            found = joma.branch(make, dying, **arguments, out=tmp_path / "run")
        except Killed:
            continue
        break
    assert kill > 5
    assert found.table("curves").equals(whole.table("curves"))
    assert joma.read(tmp_path / "run").table("curves").equals(whole.table("curves"))


class Drawn:
    """Batches that are never the same."""

    def __getitem__(self, number: int) -> Tensor:
        return torch.randn(6, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"interventions": {"a": "freeze nothing"}}, "names no parameter"),
        ({"interventions": {"a": "melt *"}}, "melt"),
        ({"interventions": {}}, "at least one name"),
        ({"interventions": {"a": "rewind * to 9"}}, "from 0 to 3"),
        ({"interventions": {"a": "rate x *"}}, "rate 0.1"),
        ({"interventions": {"twin": "none"}}, "not a name of a branch"),
        ({"step": lambda model, batch: None}, "hides its loss"),
        ({"step": lambda model, batch: {"other": 1.0}}, "hides its loss"),
        ({"make": lambda: (*make()[:2], iter([1]))}, "cannot be read again"),
        ({"make": lambda: (*make()[:2], Drawn())}, "another batch at every call"),
        ({"make": lambda: make()[0]}, "return \\(model, optimizer, batches\\)"),
        ({"steps": 50}, "there is no batch for step 30"),
    ],
)
def test_bad_input(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"make": make, "step": step, "at": 3, "steps": 2, "seeds": 1}
    arguments = {**arguments, "interventions": {"a": "none"}, **changed}
    with pytest.raises(joma.InputError, match=message):
        joma.branch(arguments.pop("make"), arguments.pop("step"), **arguments)


def test_a_state_that_does_not_fit() -> None:
    widths = itertools.count(3)

    def other() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Sequential(nn.Linear(3, next(widths)), nn.LazyLinear(1))
        model(torch.zeros(1, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1), make()[2]

    with pytest.raises(joma.InputError, match="does not fit"):
        joma.branch(other, step, at=1, interventions={"a": "none"}, steps=1, seeds=1)


def test_seeds_that_make_no_difference_give_no_interval() -> None:
    def seeded() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(3)
        return make(dropout=0.0)

    found = joma.branch(seeded, step, at=2, interventions={"frozen": "freeze 0.weight"}, steps=4, seeds=3)
    assert found.table("differences")[["low", "high"]].isna().all(axis=None)
    assert found.answer()[1].startswith("The 3 seeds gave one and the same training")
    other = joma.branch(make, step, at=2, interventions={"frozen": "freeze 0.weight"}, steps=4, seeds=3)
    assert len(other.answer()) == 1
    assert other.table("differences")[["low", "high"]].notna().all(axis=None)
