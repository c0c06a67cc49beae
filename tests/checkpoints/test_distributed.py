"""Distributed checkpoints of PyTorch: gathered matrix by matrix, and nothing that they name is run."""

from __future__ import annotations

import os
import pickle
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo

import joma
from checkpoint_files import ranks, values
from format_writers import WRITERS, write
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.series.sources.find import find_series
from joma.core.errors import InputError

LAYER = "layers.{}.feed_forward.{}.weight"


def decoder(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w1": (12, 8), "w2": (8, 12), "w3": (12, 8)}
    return {
        LAYER.format(i, w): torch.randn(shape, generator=generator)
        for i in range(2)
        for w, shape in shapes.items()
    } | {"norm.weight": torch.randn(8, generator=generator).bfloat16()}


def save(folder: Path, state: Mapping[str, Any], **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state), storage_writer=FileSystemWriter(folder, **options), no_dist=True)
    return folder


def optimizer(weights: Mapping[str, Tensor]) -> dict[str, object]:
    state = {
        name: {"exp_avg": torch.ones_like(one), "step": torch.tensor(1.0)} for name, one in weights.items()
    }
    return {"state": state, "param_groups": [{"lr": 0.1, "params": list(weights)}]}


def assert_same(folder: Path, weights: Mapping[str, Tensor]) -> None:
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.entries) == set(weights)
    for name, tensor in weights.items():
        read = checkpoint.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor), name


LAYOUTS: dict[str, Callable[[dict[str, Tensor]], dict[str, dict[str, object]]]] = {
    "torchtitan": lambda w: {"": {**w, "optimizer": optimizer(w), "lr_scheduler": {"last_epoch": 2}}},
    "FSDP": lambda w: {"": {"model": w, "optim": optimizer(w)}},
    "Lightning": lambda w: {"": {"model": w, "optimizer_0": optimizer(w)}},
    "accelerate": lambda w: {
        "pytorch_model_fsdp_0": {"model": w},
        "optimizer_0": {"optimizer": optimizer(w)},
    },
    "OLMo-core": lambda w: {"model_and_optim": {"model": w, "optim": optimizer(w)}},
    "flat": lambda w: {"": {**w, **{f"optimizer.state.{n}.exp_avg": t for n, t in w.items()}}},
}


@pytest.mark.parametrize("style", LAYOUTS)
def test_the_layouts_of_those_who_save_so(style: str, tmp_path: Path) -> None:
    weights = decoder()
    for below, state in LAYOUTS[style](weights).items():
        save(tmp_path / "saved" / below, state)
    if style == "Lightning":
        torch.save({"epoch": 1, "global_step": 5}, tmp_path / "saved" / "meta.pt")
    assert_same(tmp_path / "saved", weights)
    save_file(weights, tmp_path / "whole.safetensors")
    gathered, whole = ranks(tmp_path / "saved"), ranks(tmp_path / "whole.safetensors")
    optimizers = gathered[gathered["reason"].str.startswith("it is the state of an optimizer")]
    assert len(optimizers) == (style != "accelerate")
    gathered = gathered.drop(optimizers.index)
    assert gathered.reset_index(drop=True).equals(whole)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
)
def test_every_type_and_any_strides(dtype: torch.dtype, tmp_path: Path) -> None:
    plain = (torch.arange(48.0).reshape(6, 8) - 20).to(dtype)
    weights = {"a.weight": plain, "b.weight": plain.t(), "c.weight": plain[1:3, ::2], "scalar": plain[0, 1]}
    folder = save(tmp_path / "saved", {**weights, "empty": torch.zeros(0, 3)}, thread_count=2)
    checkpoint = open_checkpoint(folder)
    assert len({entry.file for entry in checkpoint.entries.values()}) > 1
    for name, tensor in weights.items():
        read = checkpoint.read(name)
        assert read.dtype == dtype
        assert read.shape == tensor.shape
        assert torch.equal(read.double(), tensor.double())
    assert checkpoint.read("empty").shape == (0, 3)


@pytest.mark.slow
def test_a_series_of_distributed_checkpoints(no_pictures: None, tmp_path: Path) -> None:
    for step in (0, 100):
        save(
            tmp_path / "sharded" / f"step-{step}",
            {"model": decoder(step), "optimizer": optimizer(decoder(step))},
        )
        (tmp_path / "whole" / f"step-{step}").mkdir(parents=True)
        save_file(decoder(step), tmp_path / "whole" / f"step-{step}" / "model.safetensors")
    columns = ["step", "layer", "metric", "value"]
    sharded, whole = (joma.track(tmp_path / name).table()[columns] for name in ("sharded", "whole"))
    assert len(sharded)
    assert sharded.equals(whole)


def test_members_of_a_series_that_lie_below_their_folders(tmp_path: Path) -> None:
    for step, seed in ((0, 0), (100, 1), (200, 1)):
        folder = tmp_path / f"step-{step}"
        save(folder / "pytorch_model_fsdp_0", {"model": decoder(seed)})
        save(folder / "optimizer_0", {"optimizer": optimizer(decoder(step))})
    series = find_series([str(tmp_path)])
    assert [member.place.step for member in series.members] == [0, 100, 200]
    assert len({series.shapes(member) for member in series.members}) == 1
    assert [[one.place.step for one in group] for group in series.identical(series.members)] == [[100, 200]]
    assert_same(series.bring(series.members[1], None, tmp_path), decoder(1))


@pytest.mark.parametrize("name", ["ema", "model_ema", "swa_model", "teacher"])
@pytest.mark.parametrize("flat", [False, True])
def test_copies_of_the_weights_are_named(name: str, flat: bool, tmp_path: Path) -> None:
    weights = decoder()
    copy = {f"{name}.{key}": one for key, one in decoder(1).items()} if flat else {name: decoder(1)}
    table = ranks(save(tmp_path / "saved", {**weights, **copy} if flat else {"model": weights, **copy}))
    named = table[table["matrix"] == name]["reason"]
    if name != "teacher":
        assert named.str.contains("an average of the weights over training").all()
    elif flat:  # nothing says that it is a copy
        assert len(values(table)) == 8
        return
    assert named.str.contains("beside the weights that were taken").tolist() == [True]
    assert values(table) == values(ranks(save(tmp_path / "alone", {"model": weights})))


def test_an_average_alone_is_the_model(tmp_path: Path) -> None:
    assert_same(save(tmp_path / "saved", {"ema": decoder()}), decoder())


def test_memory_is_one_matrix_and_a_chunk(tmp_path: Path) -> None:
    state = {LAYER.format(i, w): torch.ones(512, 512) for i in range(4) for w in ("w1", "w2", "w3")}
    checkpoint = open_checkpoint(save(tmp_path / "saved", {"model": state, "optimizer": optimizer(state)}))
    sizes: list[int] = []
    empty = torch.empty

    def count(*shape: Any, **options: Any) -> Tensor:
        tensor = empty(*shape, **options)
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "empty", count)
        for name in state:
            checkpoint.read(name)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20  # Python's own: no file and no pickle is held
    tracemalloc.stop()
    assert max(sizes) == 4 * 512 * 512
    assert sum(sizes) == len(state) * 4 * 512 * 512


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchtitan", "accelerate", "mesh", "fsdp1"])
def test_what_two_processes_saved(kind: str, tmp_path: Path) -> None:
    assert kind in WRITERS
    write(kind, tmp_path)
    assert_same(tmp_path / "saved", load_file(tmp_path / "whole.safetensors"))


# What is wrong with a folder


def metadata_of(folder: Path) -> Any:
    return pickle.loads((folder / ".metadata").read_bytes())


def put(folder: Path, metadata: object) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()}, thread_count=2)
    (folder / "__0_1.distcp").rename(tmp_path / "away")
    table = ranks(folder)  # what is there is measured
    missing = table[table["reason"].str.contains(r"lies in __0_1.distcp, which is missing")]
    assert len(missing)
    assert len(values(table)) == 4 - len(missing[missing["matrix"].str.contains("w1|w3")])
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(InputError, match=r"lacks __0_0.distcp, __0_1.distcp \(2 of the 2 files"):
        open_checkpoint(folder)


def test_an_unfinished_or_hidden_half(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    (folder / ".metadata").rename(folder / "__0.metadata")
    with pytest.raises(InputError, match="without coordination of its ranks"):
        open_checkpoint(folder)
    (folder / "__0.metadata").unlink()
    with pytest.raises(InputError, match="not saved to the end, or was not copied whole"):
        open_checkpoint(tmp_path)
    with pytest.raises(InputError, match="give their folder"):
        open_checkpoint(folder / "__0_0.distcp")


def test_two_kinds_in_one_folder(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    save_file(decoder(), folder / "model.safetensors")
    with pytest.raises(
        InputError, match=r"two kinds of checkpoints, .metadata .* and model.safetensors; give"
    ):
        open_checkpoint(folder)
    assert open_checkpoint(folder / "model.safetensors").entries
    save(tmp_path / "other", {"model": decoder()})
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="several distributed checkpoints, in other and saved; give the one"):
        open_checkpoint(tmp_path)


def test_an_optimizer_alone(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"optimizer": optimizer(decoder())})
    with pytest.raises(InputError, match="the state of an optimizer alone"):
        open_checkpoint(folder)


def test_a_newer_version_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    metadata = metadata_of(folder)
    metadata.version = "2.1.0"
    put(folder, metadata)
    with pytest.raises(InputError, match=r"has version '2.1.0', and joma reads up to 1"):
        open_checkpoint(folder)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("where", ["metadata", "planner_data", "storage_meta", "version"])
def test_metadata_that_would_run_code_are_refused_unread(where: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    metadata = metadata_of(folder)
    hostile = Hostile(tmp_path / "was-run")
    if where == "metadata":
        put(folder, hostile)
    else:
        setattr(metadata, where, hostile)
        put(folder, metadata)
    with pytest.raises(InputError, match=r"would run code when it is unpickled \(posix.system\)"):
        open_checkpoint(folder)
    assert not (tmp_path / "was-run").exists()


def test_a_tensor_that_would_run_code_is_refused_unread(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    file, name = folder / "__0_0.distcp", LAYER.format(0, "w1")
    torch.save(Hostile(tmp_path / "was-run"), tmp_path / "hostile")
    metadata = metadata_of(folder)
    index = next(one for one in metadata.storage_data if one.fqn == f"model.{name}")
    content = (tmp_path / "hostile").read_bytes()
    metadata.storage_data[index] = _StorageInfo(file.name, file.stat().st_size, len(content))
    file.write_bytes(file.read_bytes() + content)
    put(folder, metadata)
    with pytest.raises(InputError, match=r"would run code when .*w1.* is unpickled"):
        open_checkpoint(folder).read(name)
    assert not (tmp_path / "was-run").exists()


def test_classes_that_are_not_known_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    content = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(content.replace(b"checkpoint.metadata", b"checkpoint.metadatb"))
    with pytest.raises(InputError, match=r"names torch.*metadatb.Metadata, .* written by a newer version"):
        open_checkpoint(folder)


def change(folder: Path, which: str, to: Callable[[Any], Any]) -> None:
    metadata = metadata_of(folder)
    name = "model." + LAYER.format(0, "w1")
    index = next(one for one in metadata.storage_data if one.fqn == name)
    if which == "place":
        metadata.storage_data[index] = to(metadata.storage_data[index])
    else:
        metadata.state_dict_metadata[name] = to(metadata.state_dict_metadata[name])
    put(folder, metadata)


def _size(*shape: int) -> Callable[[Any], Any]:
    def to(stored: Any) -> Any:
        zeros = torch.Size([0] * len(shape))
        chunk = dcp_metadata.ChunkStorageMetadata(zeros, torch.Size(shape))
        return dcp_metadata.TensorStorageMetadata(stored.properties, torch.Size(shape), [chunk])

    return to


LIES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "up": ("place", lambda p: _StorageInfo("../secret", p.offset, p.length), "outside its folder"),
    "root": ("place", lambda p: _StorageInfo("/etc/passwd", 0, 400), "outside its folder"),
    "null": ("place", lambda p: _StorageInfo("a\0b", 0, 400), "outside its folder"),
    "before": ("place", lambda p: _StorageInfo(p.relative_path, -8, p.length), "damaged"),
    "negative": ("place", lambda p: _StorageInfo(p.relative_path, 8, -p.length), "damaged"),
    "beyond": ("place", lambda p: _StorageInfo(p.relative_path, 10**7, p.length), "cut off"),
    "endless": ("place", lambda p: _StorageInfo(p.relative_path, 0, 2**62), "cut off"),
    "words": ("place", lambda p: _StorageInfo(p.relative_path, "0", "1"), "damaged"),
    "short": ("place", lambda p: _StorageInfo(p.relative_path, 0, 16), "takes 384 bytes, not 16"),
    "huge": ("size", _size(2**40, 2**40), "larger than any tensor"),
    "large": ("size", _size(2**30, 2**20), "damaged"),
    "other": ("size", _size(8, 12), "do not trust"),
    "no-grid": ("size", lambda s: dcp_metadata.TensorStorageMetadata(s.properties, (-1, 2), []), "malformed"),
    "list": ("size", lambda s: dcp_metadata.TensorStorageMetadata(s.properties, s.size, 5), "malformed"),
}


@pytest.mark.parametrize("lie", LIES)
def test_metadata_that_lie_are_refused(lie: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    which, to, words = LIES[lie]
    change(folder, which, to)
    with pytest.raises(InputError, match=words):
        open_checkpoint(folder).read(LAYER.format(0, "w1"))


@pytest.mark.parametrize(
    ("at", "words"),
    [([0, 0], "overlap"), ([0], "not all there"), ([0, 6], "no file is named"), ([3, 6], "no file is named")],
)
def test_chunks_that_do_not_tile_a_tensor(at: list[int], words: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})

    def to(stored: Any) -> Any:
        sizes = torch.Size((6, 8))
        stored.chunks = [dcp_metadata.ChunkStorageMetadata(torch.Size((row, 0)), sizes) for row in at]
        return stored

    change(folder, "size", to)
    table = ranks(folder)
    assert table["reason"].str.contains(words).any()
    assert len(values(table)) == 3


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_files_that_end_anywhere(share: float, tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", {"model": decoder()})
    for name in (".metadata", "__0_0.distcp"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])
        with pytest.raises(InputError, match=r"damaged|cut off"):
            open_checkpoint(folder)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("opcode", [b"\x96", b"\x8e", b"\x8d", b"\x95"])
def test_lengths_that_promise_more_than_there_is(opcode: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"\x80\x05" + opcode + (2**45).to_bytes(8, "little") + b"x.")
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(InputError, match="damaged"):
        open_checkpoint(tmp_path)


def test_a_flipped_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    weights = decoder()
    folder = save(tmp_path / "saved", {"model": weights})
    content = (folder / ".metadata").read_bytes()
    generator = torch.Generator().manual_seed(1)
    for at in torch.randint(len(content), (60,), generator=generator).tolist():
        (folder / ".metadata").write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        try:
            checkpoint = open_checkpoint(folder)
            for name in checkpoint.entries:
                checkpoint.read(name)
        except InputError:
            continue
