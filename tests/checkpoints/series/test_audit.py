"""Series with planted faults, and clean ones: small transformers trained here (``planted``)."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import joma
from command_line import called
from joma.checkpoints.series.audit.continuity import errors_along, find_swap, squared_distances
from joma.checkpoints.series.audit.faults import FAULTS
from planted import (
    EXPERTS,
    FURTHER,
    JUDGED,
    TWENTY,
    Planted,
    Series,
    Training,
    clean_training,
    plant,
    train,
    write_series,
)

_STEPS = tuple(range(0, 40, 4))
_UNTOLD = {"EMA"}
"""An average of its neighbours lies between its neighbours."""
MODELS: dict[str, dict[str, Any]] = {"dense": {}, "expert": {"experts": EXPERTS}, "tied": {"tied": True}}
_CASES = [
    (kind, model)
    for model in MODELS
    for kind in (*TWENTY, *FURTHER)
    if kind not in _UNTOLD and (model == "expert" or kind != "permuted experts")
]


@lru_cache(maxsize=8)
def _series(seed: int, model: str = "dense") -> Series:
    return train(Training(seed=seed, steps=_STEPS, **MODELS[model]))


def _audited(folder: Path, planted: Planted) -> joma.AuditResult:
    write_series(folder, planted.series, planted.files)
    if planted.damage:
        planted.damage(folder)
    return joma.audit(folder, quiet=True)


def _check(kind: str, folder: Path, seed: int, model: str = "dense") -> None:
    first, other = (_series(one, model) for one in (seed, seed + 1))
    planted = plant(kind, dict(first), _STEPS[4], other)
    found: dict[str, set[str]] = {}
    faults = _audited(folder, planted).faults
    for fault in faults:
        assert fault.fault in FAULTS
        found.setdefault(fault.member, set()).update(fault.tensors)
    assert set(found) == set(planted.members), faults
    for member, tensors in planted.members.items():
        assert not tensors or found[member] == tensors, faults
    if planted.matches:
        assert {fault.matches for fault in faults} == {planted.matches}


@pytest.mark.parametrize("kind", ["stale shard", "NaN"])
def test_a_planted_fault_is_named_with_its_member_and_tensors(kind: str, tmp_path: Path) -> None:
    _check(kind, tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "model"), _CASES)
def test_every_planted_fault_is_named(kind: str, model: str, tmp_path: Path) -> None:
    _check(kind, tmp_path, JUDGED, model)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(JUDGED, JUDGED + 100))
def test_a_clean_series_has_no_faults(seed: int, tmp_path: Path) -> None:
    """No threshold was chosen on these seeds."""
    write_series(tmp_path, train(clean_training(seed)))
    assert joma.audit(tmp_path, quiet=True).faults == []


def test_the_command_prints_a_list_and_ends_with_status_1_where_a_member_lies(tmp_path: Path) -> None:
    series = dict(_series(1))
    write_series(tmp_path / "clean", series)
    series[_STEPS[3]] = series[_STEPS[-1]]
    write_series(tmp_path / "lying", series)
    clean = called(["track", str(tmp_path / "clean"), "--audit", "--json", "--quiet"])
    assert (clean.returncode, json.loads(clean.stdout)) == (0, [])
    lying = called(["track", str(tmp_path / "lying"), "--audit", "--json", "--quiet"])
    (one,) = json.loads(lying.stdout)
    assert lying.returncode == 1
    assert (one["member"], one["step"], one["fault"], one["matches"]) == ("step12", 12, "copy", "step36")
    table = joma.audit(tmp_path / "lying", quiet=True).table()
    assert table.columns.tolist() == ["member", "step", "fault", "tensors", "matches"]


def test_random_walks_lie_between_their_neighbours_and_lines_exactly() -> None:
    random = np.random.default_rng(JUDGED)
    walk = random.standard_normal((20, 5000)).cumsum(0)
    errors = errors_along(squared_distances(walk), range(20))
    assert max(errors.values()) < 0.55
    line = np.outer(np.linspace(0, 1, 9) ** 2, random.standard_normal(50))
    assert max(errors_along(squared_distances(line), range(9)).values()) < 1e-5


def test_two_exchanged_members_of_a_walk_are_found_and_noise_has_none() -> None:
    random = np.random.default_rng(JUDGED)
    walks = [random.standard_normal((12, 3000)).cumsum(0) for _ in range(6)]
    order = [0, 1, 2, 7, 4, 5, 6, 3, 8, 9, 10, 11]
    assert find_swap([squared_distances(walk[order]) for walk in walks], range(12)) == (3, 7)
    assert find_swap([squared_distances(walk) for walk in walks], range(12)) is None
    noise = [squared_distances(random.standard_normal((12, 3000))) for _ in range(6)]
    assert find_swap(noise, range(12)) is None


def test_frozen_and_tied_tensors_are_notes(tmp_path: Path) -> None:
    states = {
        step: {
            "a.weight": torch.arange(64.0).reshape(8, 8),
            "b.weight": torch.randn(8, 8, generator=torch.Generator().manual_seed(0)) + 0.01 * step,
        }
        for step in range(5)
    }
    write_series(tmp_path, states)
    found = joma.audit(tmp_path, quiet=True)
    assert found.faults == []
    assert "a.weight: the same in all members" in found.answer()[1]


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("step16", {}, {"step16"}),
        ("step16-ema", {}, set()),
        ("step16", {"model_soup": ["step0", "step36"]}, set()),
        ("step16", {"training": {"kind": "an average of checkpoints"}}, set()),
    ],
)
def test_an_average_that_says_so_is_no_fault(
    name: str, settings: dict[str, object], named: set[str], tmp_path: Path
) -> None:
    """Half of the first member and half of the last, which nothing on the way passes by."""
    random = np.random.default_rng(3)
    walk = random.standard_normal((10, 2, 40, 30)).cumsum(0)
    states = {
        4 * k: {f"layers.{i}.mlp.up_proj.weight": torch.tensor(walk[k, i]) for i in range(2)}
        for k in range(10)
    }
    states[16] = {key: (states[0][key] + states[36][key]) / 2 + 3.0 for key in states[16]}
    write_series(tmp_path, states)
    (tmp_path / "step16").rename(tmp_path / name)
    config = tmp_path / name / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))
    assert {fault.member for fault in joma.audit(tmp_path, quiet=True).faults} == named
    for folder in tmp_path.iterdir():  # what the settings of all members say tells none of them apart
        (folder / "config.json").write_text(config.read_text())
    if settings:
        assert {fault.member for fault in joma.audit(tmp_path, quiet=True).faults} == {"step16"}


@pytest.mark.parametrize(("before", "after"), [("", "model."), ("model.", ""), ("net.", "module.trunk.")])
def test_a_prefix_that_comes_or_goes_makes_no_tensor_another_one(
    tmp_path: Path, before: str, after: str
) -> None:
    random = np.random.default_rng(JUDGED)
    walk = random.standard_normal((8, 2, 30, 20)).cumsum(0)
    states = {
        step: {
            **{
                f"{before if step < 4 else after}layers.{i}.mlp.up_proj.weight": torch.tensor(walk[step, i])
                for i in range(2)
            },
            "lm_head.weight": torch.tensor(walk[step].sum(0)),
        }
        for step in range(8)
    }
    write_series(tmp_path, states)
    assert joma.audit(tmp_path, quiet=True).faults == []
    states[6], states[7] = states[7], states[6]
    write_series(tmp_path, states)
    assert joma.audit(tmp_path, quiet=True).faults != []
