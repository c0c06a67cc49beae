"""Archives of torch.save as others pack them: the right numbers, or refused, in bounded memory."""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from checkpoint_files import UP, near, rank_of, ranks, values, write
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.formats import readers as formats
from joma.checkpoints.formats.readers import PickledShard
from joma.core.errors import InputError
from joma.core.files import LONGEST_CONFIG, LONGEST_INDEX, read_bytes

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def packed(path: Path, content: object, how: dict[str, int]) -> Path:
    """The archive packed again, each record by how its name ends."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            kind = next((kind for end, kind in how.items() if name.endswith(end)), STORED)
            new.writestr(name, old.read(name), kind)
    return path


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(24, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("record", ["data/0", "data.pkl", "version", ""])
@pytest.mark.parametrize("how", [DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_archive_is_refused(record: str, how: int, weight: Tensor, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.pt", {f"{UP}.weight": weight}, {record: how})
    with pytest.raises(InputError, match=r"is compressed, and torch\.save compresses nothing"):
        ranks(path)


def test_a_directory_that_denies_the_compression_is_not_believed(weight: Tensor, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.pt", {f"{UP}.weight": weight}, {"data/0": DEFLATED})
    content = bytearray(path.read_bytes())
    at = content.find(b"PK\x01\x02")
    while at >= 0:  # every entry of the directory at the end
        content[at + 10 : at + 12] = b"\0\0"
        at = content.find(b"PK\x01\x02", at + 4)
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"is compressed, and torch\.save compresses nothing"):
        ranks(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_record_that_stands_twice_is_refused(weight: Tensor, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.pt", {f"{UP}.weight": weight}, {})
    with zipfile.ZipFile(path, "a") as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("data/0"))
        archive.writestr(name, bytes(24 * 8 * 4))
    with pytest.raises(InputError, match="two records of the archive have one name"):
        ranks(path)


def test_an_archive_packed_again_without_compression_is_read(weight: Tensor, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.pt", {f"{UP}.weight": weight}, {})
    assert values(ranks(path)) == near(rank_of(weight))


def test_a_program_of_unheard_of_length_is_not_read(weight: Tensor, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.pt", {f"{UP}.weight": weight, "x": b"a" * (formats._LONGEST_PICKLE + 1)}, {})
    with pytest.raises(InputError, match=r"its data\.pkl has 67,.* bytes, more than 67,108,864"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: w.to("meta"), "lies on the meta device"),
        (lambda w: w.to_sparse(), "its layout is sparse_coo"),
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "quantised tensor of PyTorch"),
        (lambda w: torch.nested.nested_tensor([w, w[:3]]), "nested tensor"),
        (
            lambda w: torch.zeros(1).expand(2**20, 2**20),
            "would take 4,398,046,511,104 bytes, more than its file",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_holds_no_numbers_is_said_of_the_tensor(
    make: object, words: str, weight: Tensor, tmp_path: Path
) -> None:
    """The others of its file are read."""
    torch.save({f"{UP}.weight": make(weight), "b": weight}, tmp_path / "a.pt")  # type: ignore[operator]
    held = open_checkpoint(tmp_path / "a.pt")
    assert words in held.entries[f"{UP}.weight"].problem
    with pytest.raises(InputError, match=re.escape(words)):
        held.read(f"{UP}.weight")
    assert torch.equal(held.read("b"), weight)


def test_a_small_expanded_tensor_is_what_it_stands_for(tmp_path: Path) -> None:
    row = torch.randn(8, generator=torch.Generator().manual_seed(0))
    torch.save({f"{UP}.weight": row.expand(24, 8)}, tmp_path / "a.pt")
    assert values(ranks(tmp_path / "a.pt")) == near(1.0)


@pytest.mark.parametrize(
    ("name", "most"), [("config.json", LONGEST_CONFIG), ("model.safetensors.index.json", LONGEST_INDEX)]
)
def test_what_is_read_whole_is_bounded(name: str, most: int, weight: Tensor, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {f"{UP}.weight": weight})
    if "index" in name:
        (folder / "model.safetensors").rename(folder / "b.safetensors")
    with open(folder / name, "wb") as opened:
        opened.truncate(most + 1)
    with pytest.raises(InputError, match=f"{most + 1:,} bytes, more than {most:,}; give a smaller one"):
        open_checkpoint(folder)


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert len(read_bytes(tmp_path / "a", 100)) == 100
    with pytest.raises(InputError, match="100 bytes, more than 99"):
        read_bytes(tmp_path / "a", 99)


def test_a_file_that_becomes_shorter_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({"a": torch.ones(300, 300), "b": torch.ones(300, 300)}, path)
    shard = PickledShard(path)
    assert float(shard.read("a").sum()) == 300 * 300
    os.truncate(path, 1000)
    with pytest.raises(InputError, match=r"became shorter while it was read \(1,000 bytes of "):
        shard.read("b")
    torch.save({"a": torch.ones(300, 300)}, path)
    shard = PickledShard(path)
    path.unlink()  # what is mapped stays where it is
    assert float(shard.read("a").sum()) == 300 * 300
