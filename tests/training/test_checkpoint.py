from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from joma.core.errors import RunDirectoryError
from joma.training.checkpoint import load_checkpoint, save_checkpoint


def saved(path: Path) -> Path:
    tensors = {"w": torch.randn(40, 30), "random": torch.get_rng_state(), "scalar": torch.tensor(3.0)}
    save_checkpoint(path, tensors, {"step": 7, "rows": [{"value": 0.1 + 0.2, "layer": None}]})
    return path


def test_round_trip_is_exact(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "deep" / "state.safetensors"
    tensors = {"w": torch.randn(3, 2), "random": torch.get_rng_state(), "scalar": torch.tensor(0.1)}
    save_checkpoint(path, tensors, {"step": 7, "rows": [{"value": 0.1 + 0.2}]})
    loaded, record = load_checkpoint(path)
    assert record == {"step": 7, "rows": [{"value": 0.1 + 0.2}]}
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 5, 100, -40])
def test_truncated(tmp_path: Path, keep: int) -> None:
    path = saved(tmp_path / "state.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunDirectoryError, match=r"state\.safetensors is damaged .*; delete it"):
        load_checkpoint(path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path / "state.safetensors")
    content = path.read_bytes()
    for position in [*range(0, 900, 7), *range(900, len(content), 97)]:
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        with pytest.raises(RunDirectoryError, match="is damaged"):
            load_checkpoint(path)


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "it-ran",))  # type: ignore[return-value]

    path = tmp_path / "state.safetensors"
    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(RunDirectoryError, match="is damaged"):
        load_checkpoint(path)
    assert not (tmp_path / "it-ran").exists()
