"""A series on a hub of 127.0.0.1, audited with at most two percent of its bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import joma
from hub_server import Hub, serve
from planted import State, write_member

_STEPS = tuple(range(0, 100, 10))
_LAYERS, _WIDTH, _FILES = 4, 128, 3


def _walk(steps: tuple[int, ...], layers: int, width: int, seed: int = 0) -> dict[int, State]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {
        **{f"self_attn.{name}_proj.weight": (width, width) for name in "qk"},
        "mlp.up_proj.weight": (4 * width, width),
        "input_layernorm.weight": (width,),
    }
    state = {
        f"model.layers.{layer}.{name}": torch.randn(shape, generator=draw)
        for layer in range(layers)
        for name, shape in shapes.items()
    }
    series = {}
    for step in steps:
        series[step] = {name: one.clone() for name, one in state.items()}
        for one in state.values():
            one += 0.2 * torch.randn(one.shape, generator=draw)
    return series


@pytest.fixture(scope="module")
def walk() -> dict[int, State]:
    return _walk(_STEPS, _LAYERS, _WIDTH)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: dict[int, State]) -> Iterator[Hub]:
    """Ten members of 1.5 MB, each in three files with an index."""
    with serve(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for step, state in walk.items():
            write_member(hub.model("lab/walk") / f"step{step}", state, _FILES)
        yield hub


def _audit(hub: Hub) -> joma.AuditResult:
    """Audited, with at most two percent of the bytes: weights, indices and settings together."""
    found = joma.audit("lab/walk", quiet=True)
    assert hub.sent.total() <= 0.02 * found.table("members")["bytes"].sum()
    return found


def test_a_clean_series_on_the_hub_has_no_faults(hub: Hub) -> None:
    found = _audit(hub)
    assert found.faults == []
    assert found.table("members")["bytes"].sum() > 10_000_000
    assert hub.sent.total() > 0
    assert "bytes travelled" in found.answer()[1]


def test_a_stale_shard_is_named_with_its_tensors_and_the_member_that_it_fits(hub: Hub) -> None:
    folder = hub.model("lab/walk")
    file = "model-00001-of-00003.safetensors"
    shutil.copy(folder / "step90" / file, folder / "step40" / file)
    (fault,) = _audit(hub).faults
    assert (fault.member, fault.fault, fault.matches) == ("step40", "stale tensors", "step90")
    assert {name.split(".")[2] for name in fault.tensors} == {"0", "1"}
    assert len(fault.tensors) == 6


def test_what_hashes_cannot_tell_is_told_by_samples(hub: Hub, walk: dict[int, State]) -> None:
    """Two tensors of another seed; one tensor of another member, in a file that is its own."""
    folder = hub.model("lab/walk")
    names = ["model.layers.1.mlp.up_proj.weight", "model.layers.2.self_attn.q_proj.weight"]
    other = _walk((0,), _LAYERS, _WIDTH, seed=1)[0]
    write_member(folder / "step40", {**walk[40], **{name: other[name] for name in names}}, _FILES)
    stale = "model.layers.3.mlp.up_proj.weight"
    write_member(folder / "step60", {**walk[60], stale: walk[20][stale]}, _FILES)
    found = {fault.member: fault for fault in _audit(hub).faults}
    assert set(found) == {"step40", "step60"}
    assert set(found["step40"].tensors) == set(names)
    assert found["step40"].fault == "discontinuity"
    assert (found["step60"].tensors, found["step60"].matches) == ((stale,), "step20")


def test_swapped_members_and_copies_on_the_hub(hub: Hub) -> None:
    folder = hub.model("lab/walk")
    (folder / "step20").rename(folder / "away")
    (folder / "step60").rename(folder / "step20")
    (folder / "away").rename(folder / "step60")
    shutil.rmtree(folder / "step40")
    shutil.copytree(folder / "step90", folder / "step40")
    told = {(one.member, one.fault, one.matches) for one in _audit(hub).faults}
    assert told == {
        ("step20", "swapped members", "step60"),
        ("step60", "swapped members", "step20"),
        ("step40", "copy", "step90"),
    }


def test_a_missing_file_and_another_shape_are_told_by_headers(hub: Hub, walk: dict[int, State]) -> None:
    folder = hub.model("lab/walk")
    (folder / "step30" / "model-00002-of-00003.safetensors").unlink()
    wide = {**walk[70], "model.layers.0.input_layernorm.weight": torch.ones(_WIDTH + 1)}
    write_member(folder / "step70", wide, _FILES)
    told = {(one.member, one.fault): len(one.tensors) for one in _audit(hub).faults}
    assert told[("step30", "missing tensors")] == 5
    assert told[("step70", "other shape")] == 1
    assert len(told) == 2


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_where_two_percent_suffice_for_no_samples_hashes_tell(
    hub: Hub, suffix: str, walk: dict[int, State]
) -> None:
    """Small members, and pickled ones: the index still names the tensors of a stale file."""
    folder = hub.model("lab/walk")
    for step, state in _walk(_STEPS, _LAYERS, 8).items():
        write_member(folder / f"step{step}", state, _FILES)
    for path in folder.rglob("model*"):
        if suffix == ".bin":
            path.write_text(path.read_text("latin-1").replace(".safetensors", suffix), "latin-1")
            name = path.name.replace("model", "pytorch_model", 1).replace(".safetensors", suffix)
            path.rename(path.with_name(name))
    first = "pytorch_model-00001-of-00003.bin" if suffix == ".bin" else "model-00001-of-00003.safetensors"
    for file in folder.glob("*/pytorch_model.bin.index.json"):
        file.write_text(file.read_text().replace("model-0", "pytorch_model-0"))
    shutil.copy(folder / "step90" / first, folder / "step40" / first)
    found = _audit(hub) if suffix == ".safetensors" else joma.audit("lab/walk", quiet=True)
    (fault,) = found.faults
    assert (fault.member, fault.fault, fault.matches) == ("step40", "stale tensors", "step90")
    assert first in fault.sentence() or len(fault.tensors) == 6
    assert "hashes of files alone" in " ".join(found.table("notes")["text"])
