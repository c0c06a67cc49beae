"""Checkpoints read tensor by tensor, and what is said of those that are damaged or hostile."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import joma
from joma.checkpoints.checkpoint import open_checkpoint
from joma.core.errors import InputError

TENSORS = {
    "layers.0.a": torch.arange(12.0).reshape(3, 4),
    "layers.0.b": torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "layers.1.c": torch.tensor(7, dtype=torch.int64),
    "layers.1.d": torch.zeros(0, 3),
    "layers.1.e": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
}


def write_shards(folder: Path, count: int) -> None:
    weight_map = {}
    for number in range(count):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = {f"layers.{number}.mlp.up_proj.weight": torch.full((4, 3), float(number))}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("suffix", ["safetensors", "bin", "pt"])
def test_every_format_gives_back_what_was_saved(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"weights.{suffix}"
    if suffix == "safetensors":
        save_file(TENSORS, file, metadata={"format": "pt"})
    else:
        torch.save(TENSORS if suffix == "bin" else {"step": 3, "model": TENSORS, "optimizer": {}}, file)
    for path in (file, tmp_path):
        checkpoint = open_checkpoint(path)
        assert checkpoint.entries.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert checkpoint.entries[name].shape == tuple(tensor.shape)
            found = checkpoint.read(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found.float(), tensor.float())


def test_old_pickles_are_read_too(tmp_path: Path) -> None:
    plain = {"w": torch.ones(2, 3)}
    torch.save(plain, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(open_checkpoint(tmp_path).read("w"), plain["w"])


def test_a_tensor_is_a_copy_of_its_own(tmp_path: Path) -> None:
    for name in ("a.safetensors", "a.bin"):
        file = tmp_path / name
        tensors = {"w": torch.ones(4, 4), "x": torch.zeros(4, 4)}
        save_file(tensors, file) if file.suffix == ".safetensors" else torch.save(tensors, file)
        checkpoint = open_checkpoint(file)
        tensor = checkpoint.read("w")
        tensor.fill_(9.0)
        assert float(checkpoint.read("w").max()) == 1.0
        assert tensor.untyped_storage().nbytes() == 64


def test_a_hundred_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, 100)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.entries) == 100
    assert float(checkpoint.read("layers.57.mlp.up_proj.weight")[0, 0]) == 57.0
    assert checkpoint.config == {"model_type": "llama"}
    assert len(open_checkpoint(tmp_path / "model.safetensors.index.json").entries) == 100
    with pytest.raises(InputError, match=r"holds no tensor 'layers.57.mlp.up_proj'; did you mean"):
        checkpoint.read("layers.57.mlp.up_proj")


def test_a_missing_shard_and_a_lying_index(tmp_path: Path) -> None:
    write_shards(tmp_path, 3)
    second = tmp_path / "model-00002-of-00003.safetensors"
    save_file({"other": torch.ones(1)}, second)
    with pytest.raises(
        InputError, match=r"model-00002-of-00003.safetensors lacks 'layers.1.mlp.up_proj.weight'"
    ):
        open_checkpoint(tmp_path)
    second.unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00003.safetensors is missing"):
        open_checkpoint(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(InputError, match="outside its folder"):
        open_checkpoint(tmp_path)
    for content in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(content)
        with pytest.raises(InputError, match="is not an index of shards"):
            open_checkpoint(tmp_path)


@given(st.data())
def test_a_truncated_safetensors_file_is_never_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("cut") / "m.safetensors"
    save_file(TENSORS, file)
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(InputError, match=r"is damaged or not what its name says \(.+\); download"):
        open_checkpoint(file)


@given(st.data())
def test_a_flipped_bit_in_the_header_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bit flips: one clear error, or tensors whose names, shapes and types fit the file."""
    file = tmp_path_factory.mktemp("flip") / "m.safetensors"
    save_file(TENSORS, file)
    content = bytearray(file.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    content[data.draw(st.integers(0, header - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(bytes(content))
    message = ""
    try:
        checkpoint = open_checkpoint(file)
    except InputError as error:
        message = str(error)
    if message:
        assert len(message.splitlines()) == 1
        return
    unknown = [name for name, entry in checkpoint.entries.items() if entry.problem]
    for name in unknown:  # a type that this reader may be too old for: this tensor alone cannot be read
        with pytest.raises(InputError, match="cannot be read: its type"):
            checkpoint.read(name)
    total = sum(checkpoint.read(name).nbytes for name in checkpoint.entries if name not in unknown)
    assert total == len(content) - header or unknown


def test_a_header_of_the_wrong_size(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    record = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}}
    text = json.dumps(record).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(12))
    with pytest.raises(InputError, match=r"'w' of shape \(2, 2\) and type F32 takes 16 bytes, not 12"):
        open_checkpoint(file)


class Hostile:
    """Pickles as a call that would write a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code_is_refused_unread(tmp_path: Path, zipped: bool) -> None:
    target = tmp_path / "pwned"
    file = tmp_path / "pytorch_model.bin"
    state = {"w": torch.ones(2, 2), "x": Hostile(target)}
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"would run code when it is unpickled.*refused unread") as caught:
        open_checkpoint(tmp_path)
    assert not target.exists()
    if zipped:
        assert "mkdir" in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_truncated_archives(tmp_path: Path, share: float) -> None:
    file = tmp_path / "m.bin"
    torch.save(TENSORS, file)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="is damaged or not what its name says"):
        open_checkpoint(file)


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; give a folder or file"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no weights"):
        open_checkpoint(tmp_path)
    (tmp_path / "a.txt").write_text("no")
    with pytest.raises(InputError, match=r"suffix '.txt'"):
        open_checkpoint(tmp_path / "a.txt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(InputError, match="holds no tensors by name"):
        open_checkpoint(tmp_path / "list.pt")
    (tmp_path / "config.json").write_text("{")
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"config.json is not JSON"):
        open_checkpoint(tmp_path)


def test_two_files_with_one_tensor(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match=r"'w' stands in both a.safetensors and b.safetensors"):
        open_checkpoint(tmp_path)


def write_gguf(path: Path, tensors: dict[str, np.ndarray]) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_is_dequantised(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": values})
    checkpoint = open_checkpoint(tmp_path)
    entry = checkpoint.entries["blk.0.ffn_up.weight"]
    assert (entry.shape, entry.dtype) == ((6, 64), "Q8_0")
    np.testing.assert_allclose(checkpoint.read(entry.name).numpy(), values, atol=np.abs(values).max() / 200)
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content[:-100])
    with pytest.raises(InputError, match="is damaged"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("entry", [5, 8, 9])
def test_gguf_arrays_that_promise_more_than_the_file_holds(tmp_path: Path, entry: int) -> None:
    name = struct.pack("<Q", 1) + b"a"
    promise = struct.pack("<IIQ", 9, entry, 2**40)
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + name + promise + bytes(64))
    began = time.process_time()
    with pytest.raises(InputError, match="promises more than it holds"):
        open_checkpoint(tmp_path / "a.gguf")
    assert time.process_time() - began < 10


def test_a_name_that_promises_billions_of_parts(tmp_path: Path) -> None:
    (tmp_path / "a-00001-of-99999999999.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"a-00002-of-99999999999\.gguf is missing"):
        open_checkpoint(tmp_path / "a-00001-of-99999999999.gguf")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "adapter_config.json"])
@pytest.mark.parametrize("content", [b"[" * 5000, b'{"a": ' * 5000, b'{"hidden_size": 1e999}', b"\xff"])
def test_json_that_is_none_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    weights = "adapter_model.safetensors" if name.startswith("adapter") else "model.safetensors"
    if "index" not in name:
        save_file({"a": torch.zeros(2, 2)}, tmp_path / weights)
    with pytest.raises(InputError, match=r"is not JSON|not an index of shards"):
        joma.probe_weights(tmp_path)


def test_pickles_that_end_anywhere(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for length in range(60):
        (tmp_path / "pytorch_model.bin").write_bytes(random.bytes(length))
        with pytest.raises(InputError, match=r"damaged|run code|no tensors"):
            open_checkpoint(tmp_path)


def test_gguf_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match="pip install gguf"):
        open_checkpoint(tmp_path)


def test_a_gguf_part_is_missing(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"m-00002-of-00002.gguf is missing of 2 parts"):
        open_checkpoint(tmp_path)


def test_files_are_chosen_as_from_pretrained_chooses_them(tmp_path: Path) -> None:
    save_file({"w": torch.eye(4)}, tmp_path / "model.safetensors")
    save_file({"w": torch.ones(4, 4)}, tmp_path / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({"w": torch.zeros(4, 4)}, tmp_path / "pytorch_model.bin")
    assert torch.equal(open_checkpoint(tmp_path).read("w"), torch.eye(4))
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(open_checkpoint(tmp_path).read("w"), torch.ones(4, 4))
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(InputError, match="is missing"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("dtype", "shape", "size"), [("F4", [2, 4], 4), ("", [], 0), ("X17", [2, 2], 4)])
def test_one_tensor_of_an_unknown_type(tmp_path: Path, dtype: str, shape: list[int], size: int) -> None:
    header = {
        "layers.0.fc1.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "odd": {"dtype": dtype, "shape": shape, "data_offsets": [16, 16 + size]},
    }
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + torch.eye(2).numpy().tobytes() + bytes(size)
    (tmp_path / "m.safetensors").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    assert torch.equal(checkpoint.read("layers.0.fc1.weight"), torch.eye(2))
    with pytest.raises(InputError, match=f"'odd' cannot be read: its type '{dtype}' is not known"):
        checkpoint.read("odd")


@pytest.mark.parametrize(
    ("file", "tool"),
    [
        ("pytorch_model_fsdp_0/__0_0.distcp", "distcp"),
        ("iter_0000010/mp_rank_00/model_optim_rng.pt", "--ckpt-format torch_dist"),
        ("_CHECKPOINT_METADATA", "orbax.checkpoint"),
        ("default/manifest.ocdbt", "orbax.checkpoint"),
        ("flax_model.msgpack", "msgpack_restore"),
        ("tf_model.h5", "from_tf=True"),
    ],
)
def test_folders_of_sharded_training_name_the_tool(tmp_path: Path, file: str, tool: str) -> None:
    torch.save({"cpu": torch.get_rng_state()}, tmp_path / "rng_state_0.pth")
    torch.save({"base_lrs": [1.0]}, tmp_path / "scheduler.pt")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(b"x")
    with pytest.raises(InputError, match=tool):
        open_checkpoint(tmp_path)
    if (tmp_path / file).suffix in (".msgpack", ".h5"):
        with pytest.raises(InputError, match=tool):
            open_checkpoint(tmp_path / file)
