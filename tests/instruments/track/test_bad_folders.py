"""Members of a series that are saved by many processes, each damaged in its own way: the rest is measured."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import joma
from checkpoints.test_deepspeed import write_stage_3
from checkpoints.test_distributed import metadata_of, put, save
from command_line import called

_STEPS = (0, 10, 20, 30)
_BAD = "step20"


def _weights(step: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    first, way = torch.randn(2, 2, 24, 16, generator=draw)
    return {f"layers.{i}.feed_forward.w1.weight": first[i] + step / 50 * way[i] for i in range(2)}


def _two_kinds(folder: Path) -> None:
    save_file(_weights(20), folder / "model.safetensors")


def _newer(folder: Path) -> None:
    metadata = metadata_of(folder)
    metadata.version = "7.0"
    put(folder, metadata)


def _no_ranks(folder: Path) -> None:
    for file in folder.glob("*.distcp"):
        file.unlink()
    (folder / "__0_0.distcp").write_bytes(b"")


def _other_world(folder: Path) -> None:
    """Three ranks by what they say, and the files of two."""
    shutil.rmtree(folder)
    write_stage_3(folder, _weights(20), 3)
    for file in folder.rglob("zero_pp_rank_2_*"):
        file.unlink()


def _lacks_rank(folder: Path) -> None:
    shutil.rmtree(folder)
    write_stage_3(folder, _weights(20), 3)
    for file in folder.rglob("zero_pp_rank_1_*_optim_states.pt"):
        file.unlink()


def _out_of_its_folder(folder: Path) -> None:
    metadata = metadata_of(folder)
    for range_ in metadata.storage_data.values():
        range_.relative_path = "../step10/__0_0.distcp"
    put(folder, metadata)


def _calls(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(print))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "two kinds": (_two_kinds, "holds two kinds of checkpoints"),
    "ranks are missing": (_no_ranks, "was cut off"),
    "a rank is missing": (_lacks_rank, "lacks the optim states of rank 1 (1 of 3 ranks)"),
    "world sizes": (_other_world, "was saved by 3 ranks, and the optimizer's states of 2 are there"),
    "a newer version": (_newer, "has version '7.0', and joma reads up to 1"),
    "out of its folder": (_out_of_its_folder, "which is outside its folder"),
    "a call": (_calls, "would run code when it is unpickled"),
}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_wrong_is_one_sentence_and_the_rest_is_measured(what: str, tmp_path: Path) -> None:
    damage, words = DAMAGE[what]
    for step in _STEPS:
        save(tmp_path / f"step{step}", {"model": _weights(step)})
    damage(tmp_path / _BAD)
    found = joma.track(tmp_path, quiet=True)
    assert set(found.table()["step"]) == {0, 10, 30}
    told = found.notes().query("checkpoint == @_BAD")
    assert told["lost"].any()
    sentences = [text for text in told["text"] if words in text]
    assert len(sentences) == 1
    assert "\n" not in sentences[0]
    done = called(["track", str(tmp_path), "--audit", "--json", "--quiet"])
    assert done.returncode == 1
    (fault,) = json.loads(done.stdout)
    assert (fault["member"], fault["step"], fault["fault"]) == (_BAD, 20, "unreadable")
