"""The hub, tested for real: a server on 127.0.0.1 that speaks its interface, and what goes wrong there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import huggingface_hub
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from hub_server import Hub, serve
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.families.matrices import find_matrices
from joma.checkpoints.formats.shard import TensorEntry
from joma.checkpoints.ranks import rank_rows
from joma.checkpoints.series.members import select
from joma.checkpoints.series.sources.find import find_series
from joma.checkpoints.series.sources.source import Series
from joma.core.errors import InputError, JomaError
from joma.instruments.track.measuring.weights import changes_table, wanted_tensors, weights_table

WIDTH = 64


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "")
        yield hub


def revision(hub: Hub, name: str, seed: int, *, shards: int = 1) -> dict[str, torch.Tensor]:
    folder = hub.model("lab/tiny") / name
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(seed)
    shapes = {"up_proj": (4 * WIDTH, WIDTH), "down_proj": (WIDTH, 4 * WIDTH), "q_proj": (WIDTH, WIDTH)}
    tensors = {
        f"model.layers.{layer}.mlp.{part}.weight": torch.randn(shape, generator=random)
        for layer in range(4)
        for part, shape in shapes.items()
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    (folder / "tokenizer.json").write_text("{}")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        files = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
        where = {tensor: files[number % shards] for number, tensor in enumerate(tensors)}
        for file in files:
            save_file({t: tensors[t] for t in tensors if where[t] == file}, folder / file)
        index = json.dumps({"metadata": {}, "weight_map": where})
        (folder / "model.safetensors.index.json").write_text(index)
    (folder / "consolidated.safetensors").write_bytes(b"never")
    (folder / "pytorch_model.bin").write_bytes(b"never")
    return tensors


def LOWER(entries: Mapping[str, TensorEntry], config: Mapping[str, object]) -> set[str]:
    shapes = {name: entry.shape for name, entry in entries.items()}
    return {matrix.tensor for matrix in find_matrices(shapes, config) if matrix.role == "lower"}


def sent(hub: Hub, file: str) -> int:
    return sum(count for (_, name), count in hub.sent.items() if file in name)


@pytest.mark.parametrize("shards", [1, 3])
def test_only_the_wanted_tensors_travel(hub: Hub, tmp_path: Path, shards: int) -> None:
    tensors = revision(hub, "step10", 0, shards=shards)
    series = find_series(["lab/tiny"])
    (member,) = series.members
    folder = series.bring(member, LOWER, tmp_path / "here")
    checkpoint = open_checkpoint(folder)
    wanted = {name for name in tensors if "up_proj" in name}
    assert all(torch.equal(checkpoint.read(name), tensors[name]) for name in wanted)
    # Of the others names and shapes are known, and no numbers.
    assert {name: entry.shape for name, entry in checkpoint.entries.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    with pytest.raises(InputError, match="was not fetched"):
        checkpoint.read(next(iter(set(tensors) - wanted)))
    size = sum(tensors[name].nbytes for name in wanted)
    assert series.to_fetch(member, LOWER) == size
    assert sent(hub, ".safetensors") <= size + shards * 33_000
    assert sent(hub, ".bin") == sent(hub, "consolidated") == sent(hub, "tokenizer") == 0
    before = hub.sent.total()
    series.bring(member, LOWER, tmp_path / "here")
    assert hub.sent.total() == before


def test_a_whole_model_comes_with_its_tokenizer_and_is_checked(hub: Hub, tmp_path: Path) -> None:
    tensors = revision(hub, "step10", 0, shards=2)
    series = find_series(["lab/tiny"])
    folder = series.bring(series.members[0], None, tmp_path / "here")
    assert set(open_checkpoint(folder).entries) == set(tensors)
    assert (folder / "tokenizer.json").exists()
    assert not (folder / "pytorch_model.bin").exists()
    # What the server sends is no longer what its listing said.
    series = find_series(["lab/tiny"])
    file = hub.model("lab/tiny") / "step10" / "model-00001-of-00002.safetensors"
    content, before = file.read_bytes(), file.stat()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same commit
    with pytest.raises(JomaError, match="another SHA-256"):
        series.bring(series.members[0], None, tmp_path / "again")


def test_identical_contents_are_known_without_a_download(hub: Hub) -> None:
    revision(hub, "step10", 0)
    revision(hub, "step20", 1)
    shutil.copytree(hub.model("lab/tiny") / "step20", hub.model("lab/tiny") / "step0")
    shutil.copytree(hub.model("lab/tiny") / "step20", hub.model("lab/tiny") / "main")
    series = find_series(["lab/tiny"])
    assert [one.name for one in series.members] == ["step0", "step10", "step20"]
    assert [[one.name for one in group] for group in series.identical(series.members)] == [
        ["step0", "step20"]
    ]
    assert hub.sent.total() == 0


def test_a_transfer_that_breaks_off_goes_on_where_it_did(hub: Hub, tmp_path: Path) -> None:
    tensors = revision(hub, "step10", 0)
    hub.break_after["step10"] = 40_000
    series = find_series(["lab/tiny"])
    checkpoint = open_checkpoint(series.bring(series.members[0], LOWER, tmp_path / "here"))
    assert hub.broken["step10"] == 3
    wanted = LOWER(checkpoint.entries, {})
    assert all(torch.equal(checkpoint.read(name), tensors[name]) for name in wanted)
    size = series.to_fetch(series.members[0], LOWER)
    assert sent(hub, ".safetensors") <= size + 33_000


def test_too_many_requests_and_a_slow_answer_are_waited_for(hub: Hub, tmp_path: Path) -> None:
    revision(hub, "step10", 0)
    series = find_series(["lab/tiny"])
    hub.refuse["step10"], hub.slow["step10"] = 1, 0.3
    assert open_checkpoint(series.bring(series.members[0], LOWER, tmp_path / "here")).entries


def test_a_revision_that_is_missing_is_named_and_the_others_stay(hub: Hub) -> None:
    revision(hub, "step10", 0)
    hub.missing = {"step20"}
    series = find_series(["lab/tiny"])
    assert [one.name for one in series.members] == ["step10"]
    (note,) = series.notes
    assert note.lost
    assert note.member == "step20"
    assert "no revision" in note.text


def test_a_wrong_name_and_a_private_model(hub: Hub) -> None:
    with pytest.raises(InputError, match="neither a path here nor a model"):
        find_series(["lab/nothing"])
    hub.private = {"lab/secret"}
    with pytest.raises(JomaError, match="auth login"):
        find_series(["lab/secret"])


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(JomaError, match="the hub cannot be reached"):
        find_series(["lab/tiny"])


def test_no_room(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision(hub, "step10", 0)
    series = find_series(["lab/tiny"])
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(JomaError, match="room for 1,000"):
        series.bring(series.members[0], LOWER, tmp_path / "here")


def test_subfolders_of_the_main_revision(hub: Hub, tmp_path: Path) -> None:
    revision(hub, "main", 0)
    main = hub.model("lab/tiny") / "main"
    for step in (100, 20):
        (main / f"step-{step:04d}").mkdir()
        shutil.copy(main / "config.json", main / f"step-{step:04d}")
        shutil.copy(main / "model.safetensors", main / f"step-{step:04d}")
    series = find_series(["lab/tiny"])
    assert [one.name for one in series.members] == ["step-0020", "step-0100"]
    assert open_checkpoint(series.bring(series.members[1], LOWER, tmp_path / "here")).entries


KINDS: dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]] = {
    "float8 with block scales": {
        "model.layers.0.mlp.up_proj.weight": ((256, 128), torch.float8_e4m3fn),
        "model.layers.0.mlp.up_proj.weight_scale_inv": ((2, 1), torch.float32),
        "model.layers.0.mlp.down_proj.weight": ((128, 256), torch.float8_e4m3fn),
        "model.layers.0.mlp.down_proj.weight_scale_inv": ((1, 2), torch.float32),
        "model.layers.0.self_attn.q_proj.weight": ((128, 128), torch.float8_e4m3fn),
        "model.layers.0.self_attn.q_proj.weight_scale": ((128, 1), torch.float32),
    },
    "gate and lower in one, told apart by the upper": {
        "model.layers.0.mlp.gate_up_proj.weight": ((192, 48), torch.bfloat16),
        "model.layers.0.mlp.down_proj.weight": ((48, 96), torch.bfloat16),
        "model.layers.0.self_attn.qkv_proj.weight": ((144, 48), torch.bfloat16),
        "model.layers.0.self_attn.o_proj.weight": ((48, 48), torch.bfloat16),
    },
    "inputs first, masks, and a tensor of no known role": {
        "h.0.mlp.c_fc.weight_orig": ((48, 192), torch.float32),
        "h.0.mlp.c_fc.weight_mask": ((48, 192), torch.float32),
        "h.0.mlp.c_proj.weight": ((192, 48), torch.float32),
        "h.0.attn.c_attn.weight": ((48, 144), torch.float32),
        "h.0.attn.c_proj.weight": ((48, 48), torch.float32),
        "h.0.oracle.weight": ((48, 48), torch.float32),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_measured_of_a_part_is_measured_of_the_whole(hub: Hub, tmp_path: Path, kind: str) -> None:
    """Scales travel with their values, and what tells the layout stays known."""
    folder = hub.model("lab/kinds") / "step10"
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(3)
    tensors = {
        name: (0.5 + torch.rand(shape, generator=random)).to(dtype)
        for name, (shape, dtype) in KINDS[kind].items()
    }
    save_file(tensors, folder / "model.safetensors")
    family = "gpt2" if "h.0.mlp.c_proj.weight" in tensors else "phi3"
    (folder / "config.json").write_text(json.dumps({"model_type": family, "num_attention_heads": 4}))
    series = find_series(["lab/kinds"])
    here = open_checkpoint(series.bring(series.members[0], wanted_tensors(None), tmp_path / "here"))
    there = open_checkpoint(folder)
    whole = weights_table(there, None)
    pd.testing.assert_frame_equal(weights_table(here, None), whole)
    assert "lower" in set(whole["matrix"])
    assert ("h.0.oracle.weight" in set(whole["matrix"])) == (family == "gpt2")
    pd.testing.assert_frame_equal(
        changes_table(here, [("first", here)], None), changes_table(there, [("first", there)], None)
    )
    for upper in {"model.layers.0.mlp.down_proj.weight", "h.0.mlp.c_proj.weight"} & set(tensors):
        with pytest.raises(InputError, match="was not fetched"):
            here.read(upper)
    assert sent(hub, ".safetensors") <= (folder / "model.safetensors").stat().st_size


def test_other_layers_are_fetched_into_the_folder_that_keeps_some(hub: Hub, tmp_path: Path) -> None:
    revision(hub, "step10", 0)
    series = find_series(["lab/tiny"])
    first = series.bring(series.members[0], wanted_tensors([0]), tmp_path / "kept")
    assert {row["layer"] for row in rank_rows(open_checkpoint(first), ["lower"], layers=[0])} == {0}
    second = series.bring(series.members[0], wanted_tensors(None), tmp_path / "kept")
    assert {row["layer"] for row in rank_rows(open_checkpoint(second), ["lower"])} == {0, 1, 2, 3}


def test_a_token_opens_what_is_private(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision(hub, "step10", 0)
    hub.private, hub.token = {"lab/tiny"}, "hf_secret"
    with pytest.raises(JomaError, match="auth login"):
        find_series(["lab/tiny"])
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    series = find_series(["lab/tiny"])
    assert open_checkpoint(series.bring(series.members[0], LOWER, tmp_path / "here")).entries
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(JomaError, match="auth login"):
        series.bring(series.members[0], LOWER, tmp_path / "there")


def test_shapes_are_known_by_the_headers_alone(hub: Hub) -> None:
    revision(hub, "step10", 0)
    padded, other = revision(hub, "step20", 1), revision(hub, "step30", 2)
    padded["model.embed_tokens.weight"] = torch.zeros(10, WIDTH)  # it is never read along a series
    other["model.layers.3.mlp.up_proj.weight"] = torch.zeros(2 * WIDTH, WIDTH)
    for name, tensors in (("step20", padded), ("step30", other)):
        save_file(tensors, hub.model("lab/tiny") / name / "model.safetensors")
    series = find_series(["lab/tiny"])
    shapes = [series.shapes(member) for member in series.members]
    assert shapes[0] == shapes[1] != shapes[2]
    assert hub.sent.total() <= 3 * 33_000


def _cached(home: Path, hub: Hub, name: str) -> None:
    """A revision as the hub's own cache keeps it: contents under their hashes, links to them."""
    folder, commit = home / "hub" / "models--lab--tiny", hashlib.sha1(name.encode()).hexdigest()
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "refs" / name).write_text(commit)
    for file in (hub.model("lab/tiny") / name).iterdir():
        content = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        blob = hashlib.sha256(content).hexdigest() if file.suffix in (".safetensors", ".bin") else git
        (folder / "blobs" / blob).write_bytes(content)
        (folder / "snapshots" / commit / file.name).symlink_to(folder / "blobs" / blob)


def _in_cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Series:
    """A series of one revision, which the hub's cache holds."""
    revision(hub, "step10", 0)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    _cached(tmp_path / "home", hub, "step10")
    return find_series(["lab/tiny"])


def test_the_cache_of_the_hub_is_read_while_it_holds_what_is_listed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = _in_cache(hub, tmp_path, monkeypatch)
    assert series.to_fetch(series.members[0], LOWER) == 0
    brought = series.bring(series.members[0], LOWER, tmp_path / "here")
    assert brought.is_relative_to(tmp_path / "home")
    assert hub.sent.total() == 0
    # The revision has other weights now.
    revision_again = hub.model("lab/tiny") / "step10"
    shutil.rmtree(revision_again)
    revision(hub, "step10", 1)
    series = find_series(["lab/tiny"])
    assert series.bring(series.members[0], LOWER, tmp_path / "here").is_relative_to(tmp_path / "here")


def test_offline_the_cache_alone_counts(hub: Hub, tmp_path: Path) -> None:
    for number, name in enumerate(("step10", "step20")):
        revision(hub, name, number)
        _cached(tmp_path / "home", hub, name)
    code = (
        "import sys\nfrom joma.core.errors import JomaError\n"
        "from joma.checkpoints.series.sources.find import find_series\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        print([one.name for one in find_series([name]).members])\n"
        "    except JomaError as error:\n        print(error)"
    )
    words = [sys.executable, "-c", code, "lab/tiny", "lab/other"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    found, refused = done.stdout.strip().splitlines()
    assert found == "['step10', 'step20']"
    assert "HF_HUB_OFFLINE is set" in refused
    assert hub.sent.total() == 0


def test_a_place_for_downloads_that_is_none_is_named(hub: Hub, tmp_path: Path) -> None:
    revision(hub, "step10", 0)
    series = find_series(["lab/tiny"])
    (tmp_path / "file").touch()
    with pytest.raises(JomaError, match="choose another place"):
        series.bring(series.members[0], LOWER, tmp_path / "file")


def test_a_revision_that_changes_meanwhile_is_never_half_of_each(hub: Hub, tmp_path: Path) -> None:
    revision(hub, "step10", 0)
    series = find_series(["lab/tiny"])
    (member,) = series.members
    series.shapes(member)
    shutil.rmtree(hub.model("lab/tiny") / "step10")
    revision(hub, "step10", 1)
    with pytest.raises(JomaError, match="missing there"):  # a real hub has the old commit still
        series.bring(member, LOWER, tmp_path / "here")


def test_names_that_are_asked_for_may_be_folders_or_lost(hub: Hub) -> None:
    for step in (10, 20):
        revision(hub, f"main/step-{step}", step)
    found = find_series(["lab/tiny"], ("step-20", "step-30"))
    assert [one.name for one in found.members] == ["step-20"]
    assert found.lost == {"step-30"}
    assert select(found.members, ("step-20", "step-30"), found.lost) == found.members


def test_a_cache_without_the_tokenizer_is_no_whole_model(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = _in_cache(hub, tmp_path, monkeypatch)
    (member,) = series.members
    assert series.to_fetch(member, None) == 0
    next((tmp_path / "home").rglob("tokenizer.json")).unlink()
    assert series.to_fetch(member, None) > 0
    assert series.to_fetch(member, LOWER) == 0
