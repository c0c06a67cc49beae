"""Changes that last and parts at rest are no faults; what a rank left over is one, to the last column."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import joma
from planted import write_series

Series = dict[int, dict[str, Tensor]]
UP, DOWN = "model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.down_proj.weight"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def _walk(seed: int = 0, members: int = 12) -> Series:
    """Four layers whose weights walk at random."""
    random = torch.Generator().manual_seed(seed)
    shapes = {UP.format(k): (32, 16) for k in range(4)} | {DOWN.format(k): (16, 32) for k in range(4)}
    shapes |= {HEAD: (40, 16), EMBEDDING: (40, 16)}
    state = {name: 0.2 * torch.randn(*shape, generator=random) for name, shape in shapes.items()}
    found = {}
    for k in range(members):
        found[10 * k] = dict(state)
        state = {name: one + 0.03 * torch.randn(one.shape, generator=random) for name, one in state.items()}
    return found


def _audit(folder: Path, series: Series) -> joma.AuditResult:
    write_series(folder, series)
    return joma.audit(folder, quiet=True)


def _padded(series: Series) -> None:
    for step in range(60, 120, 10):
        series[step] |= {name: pad(series[step][name], (0, 0, 0, 8)) for name in (HEAD, EMBEDDING)}


def _untied(series: Series) -> None:
    for step in range(0, 50, 10):
        del series[step][HEAD]


def _buffer(series: Series) -> None:
    for step in range(0, 50, 10):
        series[step]["model.rotary_emb.inv_freq"] = torch.arange(1.0, 5.0)


def _deeper(series: Series) -> None:
    for step in range(0, 50, 10):
        for name in (*(UP.format(k) for k in (2, 3)), *(DOWN.format(k) for k in (2, 3))):
            del series[step][name]


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        (_padded, "of shape (48, 16), not (40, 16), from step60 on"),
        (_untied, f"{HEAD}: there from step50 on"),
        (_buffer, "model.rotary_emb.inv_freq: no longer there from step50 on"),
        (_deeper, "there from step50 on"),
    ],
)
def test_a_structure_that_changes_once_and_stays_is_noticed_and_no_fault(
    change: object, noticed: str, tmp_path: Path
) -> None:
    series = _walk()
    assert callable(change)
    change(series)
    found = _audit(tmp_path, series)
    assert found.faults == []
    assert any(noticed in line for line in found.answer())


def test_one_member_of_another_structure_is_a_fault_wherever_it_stands(tmp_path: Path) -> None:
    for step in (0, 50, 110):
        series = _walk()
        del series[step][UP.format(1)]
        (fault,) = _audit(tmp_path / str(step), series).faults
        assert (fault.member, fault.fault) == (f"step{step}", "missing tensors")


@pytest.mark.parametrize("rests", [(0,), (5,), (10,), (0, 2, 4, 6, 8, 10)])
def test_parts_that_rest_between_two_members_are_noticed_and_no_fault(
    rests: tuple[int, ...], tmp_path: Path
) -> None:
    """Layers that are unfrozen after the second member, for one interval, at the end, or trained in turn."""
    series = _walk(seed=1)
    for name in (UP.format(0), DOWN.format(0), UP.format(1), DOWN.format(1)):
        course = [series[step][name] for step in series]
        now = course[0]
        for k in range(1, len(course)):
            now = now if k - 1 in rests else now + (course[k] - course[k - 1])
            series[10 * k][name] = now
    found = _audit(tmp_path, series)
    assert found.faults == []
    assert any(
        f"the same in step{10 * rests[0]} and step{10 * rests[0] + 10}" in line for line in found.answer()
    )


@pytest.mark.parametrize(("stale", "fitting"), [(50, 40), (50, 60), (100, 110), (10, 0)])
def test_a_shard_of_the_neighbour_is_told_from_a_part_at_rest(
    stale: int, fitting: int, tmp_path: Path
) -> None:
    series = _walk(seed=2)
    names = {UP.format(0), DOWN.format(0), UP.format(1)}
    series[stale] |= {name: series[fitting][name] for name in names}
    (fault,) = _audit(tmp_path, series).faults
    assert (fault.fault, set(fault.tensors)) == ("stale tensors", names)
    assert {fault.member, fault.matches} == {f"step{stale}", f"step{fitting}"}


def test_all_that_a_rank_left_over_is_named(tmp_path: Path) -> None:
    """Rows of what is divided by outputs, columns of what is divided by inputs."""
    series = _walk(seed=3)
    for name, now in series[60].items():
        old = series[20][name]
        half = now.shape[0] // 2, now.shape[1] // 2
        series[60][name] = (
            torch.cat([old[:, : half[1]], now[:, half[1] :]], 1)
            if "down" in name
            else torch.cat([old[: half[0]], now[half[0] :]])
        )
    (fault,) = _audit(tmp_path, series).faults
    assert (fault.member, fault.fault, fault.matches) == ("step60", "stale tensors", "step20")
    assert set(fault.tensors) == set(series[60])


@pytest.mark.parametrize("seed", range(4, 9))
@pytest.mark.parametrize("ring", [(30, 50, 70), (70, 50, 30), (20, 30, 80)])
def test_three_members_that_went_round_are_named_and_no_fourth(
    seed: int, ring: tuple[int, int, int], tmp_path: Path
) -> None:
    series = _walk(seed)
    true = {step: series[step] for step in ring}
    for place, held in zip(ring, (*ring[1:], ring[0]), strict=True):
        series[place] = true[held]
    faults = {fault.member: (fault.fault, fault.matches) for fault in _audit(tmp_path, series).faults}
    assert faults == {
        f"step{place}": ("swapped members", f"step{held}")
        for place, held in zip(ring, (*ring[1:], ring[0]), strict=True)
    }


def test_two_pairs_that_are_exchanged_are_no_ring(tmp_path: Path) -> None:
    series = _walk(seed=9)
    for a, b in ((20, 40), (60, 90)):
        series[a], series[b] = series[b], series[a]
    faults = {fault.member: fault.matches for fault in _audit(tmp_path, series).faults}
    assert faults == {"step20": "step40", "step40": "step20", "step60": "step90", "step90": "step60"}


def test_rows_that_are_zero_in_one_member_alone_are_zeroed(tmp_path: Path) -> None:
    series = _walk(seed=5)
    for step in series:  # a padding row is zero throughout
        series[step][EMBEDDING] = series[step][EMBEDDING].index_fill(0, torch.tensor([3]), 0.0)
    series[60][UP.format(1)] = series[60][UP.format(1)].index_fill(0, torch.tensor([7, 21]), 0.0)
    found = _audit(tmp_path, series)
    (fault,) = found.faults
    assert (fault.member, fault.fault, fault.tensors) == ("step60", "zeroed", (UP.format(1),))
    assert "2 of 32 rows" in fault.reason


@pytest.mark.parametrize(
    ("rows", "reason"), [(slice(3, 4), "in one entry"), (slice(0, 8), "in 8 of 32 rows")]
)
def test_a_change_in_few_places_is_no_adapter(rows: slice, reason: str, tmp_path: Path) -> None:
    series = _walk(seed=6)
    changed = series[60][UP.format(1)].clone()
    if reason == "in one entry":
        changed[3, 3] = 3e4
    else:
        changed[rows] = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    series[60][UP.format(1)] = changed
    (fault,) = _audit(tmp_path, series).faults
    assert (fault.member, fault.fault, fault.tensors) == ("step60", "discontinuity", (UP.format(1),))
    assert fault.reason.startswith("in ")
    assert reason == "in one entry" or "rows" in fault.reason


def _ranks(folder: Path, series: Series) -> tuple[dict[int, list[int]], str]:
    """The steps at which each layer's lower rank is measured, and the answer."""
    write_series(folder / "run", series)
    found = joma.track(folder / "run", out=folder / "out", quiet=True)
    values = found.tables["values"]
    lower = values[
        (values["metric"] == "stable_rank") & (values["matrix"] == "lower") & (values["against"] == "")
    ]
    steps = {int(layer): sorted(own["step"]) for layer, own in lower.groupby("layer")}
    return steps, "\n".join(found.answer())


def test_a_model_that_grows_is_followed_with_all_of_its_layers(tmp_path: Path) -> None:
    series = _walk()
    _deeper(series)
    steps, said = _ranks(tmp_path, series)
    late = list(range(50, 120, 10))
    assert steps == {0: list(series), 1: list(series), 2: late, 3: late}
    assert "step0 to step40 have other matrices than most; all are measured" in said


def test_members_of_another_width_are_not_followed(tmp_path: Path) -> None:
    """However many they are in turn: nothing of them is a matrix of the others."""
    series = _walk()
    for step in range(80, 120, 10):
        series[step] = {name: one[:, : one.shape[1] // 2].clone() for name, one in series[step].items()}
    steps, said = _ranks(tmp_path, series)
    assert steps == {layer: list(range(0, 80, 10)) for layer in range(4)}
    assert "step80 has other matrices, or matrices of other shapes, than most" in said


def _named(found: joma.AuditResult) -> dict[int, tuple[str, frozenset[str], str]]:
    rows = {one.step: (one.fault, frozenset(one.tensors), one.matches) for one in found.faults}
    assert len(rows) == len(found.faults)
    return rows


def _first_shard(series: Series) -> frozenset[str]:
    return frozenset(name for name in series[0] if ".0." in name or ".1." in name or name == EMBEDDING)


@pytest.mark.parametrize("stale", [(10, 20), (50, 60), (30, 70), (90, 100), (80, 90, 100)])
def test_two_members_with_the_final_shard_are_named_once_each(stale: tuple[int, ...], tmp_path: Path) -> None:
    """As step50000 and step58000 of pythia-12b; at the end of the line, too, where it comes to rest."""
    series = _walk(seed=3)
    own = _first_shard(series)
    for step in stale:
        series[step] = series[step] | {name: series[110][name] for name in own}
    assert _named(_audit(tmp_path, series)) == dict.fromkeys(stale, ("stale tensors", own, "step110"))


@pytest.mark.parametrize("last", [10, 60, 90, 100])
def test_a_shard_that_is_frozen_from_some_step_on_is_no_fault(last: int, tmp_path: Path) -> None:
    series = _walk(seed=4)
    for step in range(last, 120, 10):
        series[step] = series[step] | {name: series[last][name] for name in _first_shard(series)}
    assert _audit(tmp_path, series).faults == []


def test_where_a_tensor_rests_in_all_members_but_one_that_one_is_named(tmp_path: Path) -> None:
    series = _walk(seed=5)
    name = UP.format(2)
    for step in series:
        series[step][name] = series[0][name]
    series[50][name] = series[0][name].flip(0)
    assert {step: fault[1] for step, fault in _named(_audit(tmp_path, series)).items()} == {
        50: frozenset({name})
    }


def test_copies_in_turn_are_named_whole_beside_a_tensor_that_rests(tmp_path: Path) -> None:
    series = _walk(seed=6)
    for step in range(10, 120, 10):
        series[step][UP.format(2)] = series[10][UP.format(2)]
    for step in (40, 60):
        series[step] = series[50]
    found = _named(_audit(tmp_path, series))
    assert {step: (fault, match) for step, (fault, _, match) in found.items()} == dict.fromkeys(
        (40, 60), ("copy", "step50")
    )


@pytest.mark.parametrize("one", [50, 60])
def test_a_layer_of_a_neighbour_is_stale_whichever_of_the_two_has_it(one: int, tmp_path: Path) -> None:
    series = _walk(seed=7)
    own = frozenset({UP.format(1), DOWN.format(1)})
    other = {50: 60, 60: 50}[one]
    series[one] = series[one] | {name: series[other][name] for name in own}
    found = _named(_audit(tmp_path, series))
    assert found == {one: ("stale tensors", own, f"step{other}")}
