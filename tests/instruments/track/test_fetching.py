"""Members are fetched while the one before is measured."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import joma
from hub_server import serve
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.hub import HubSeries
from joma.instruments.track.measuring import measured
from planted import write_member

_STEPS = (0, 10, 20, 30)


def test_each_member_is_on_its_way_before_the_one_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measuring of each waits until the transfer of the next one has begun, or in vain."""
    name = "model.layers.0.mlp.up_proj.weight"
    for step in _STEPS:
        state = {name: torch.randn(32, 16, generator=torch.Generator().manual_seed(step))}
        write_member(tmp_path / "lab" / "tiny" / f"step{step}", state)
    begun = {f"step{step}": threading.Event() for step in _STEPS}
    waited: list[bool] = []
    bring, weights_table = HubSeries.bring, measured.weights_table

    def bring_and_tell(self: HubSeries, member: Member, *rest: Any) -> Path:
        begun[member.name].set()
        return bring(self, member, *rest)

    def wait_and_measure(*arguments: Any) -> pd.DataFrame:
        following = _STEPS[len(waited) + 1 : len(waited) + 2]
        waited.append(all(begun[f"step{step}"].wait(20.0) for step in following))
        return weights_table(*arguments)

    monkeypatch.setattr(HubSeries, "bring", bring_and_tell)
    monkeypatch.setattr(measured, "weights_table", wait_and_measure)
    with serve(tmp_path) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = joma.track("lab/tiny", audit=False, quiet=True)
    assert waited == [True] * len(_STEPS)
    assert len(found.tables["checkpoints"]) == len(_STEPS)
