"""Series with one hostile member, and hubs that lie about one, drawn from a seed: what joma makes of them.

Of three checkpoints the second is hostile. The first and the third must be measured, each right, and the
second right or not at all: with its reason, on one line, without a character that a terminal obeys.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from huggingface_hub import constants
from safetensors.torch import save, save_file
from torch import Tensor

import hub_lies
from hub_server import serve
from joma.checkpoints.series.sources import transport
from joma.core.errors import JomaError
from joma.core.printing import harmless
from joma.instruments.reading.settings import ReadingSettings
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.measured import MeasuredSeries
from joma.instruments.track.measuring.parts import Parts
from joma.runs.parts import RunProgress
from joma.runs.tables import write_table

UP = "model.layers.0.mlp.up_proj.weight"


def weight(step: int) -> Tensor:
    return torch.randn(24, 8, generator=torch.Generator().manual_seed(step))


def rank(tensor: Tensor) -> float:
    values = np.linalg.svd(tensor.double().numpy(), compute_uv=False)
    return float((values**2).sum() / values[0] ** 2)


def honest(folder: Path, steps: tuple[int, ...] = (1, 3)) -> None:
    """Checkpoints that are what they say."""
    for step in steps:
        (folder / f"step{step}").mkdir(parents=True)
        (folder / f"step{step}" / "config.json").write_text('{"model_type": "llama"}')
        save_file({UP: weight(step)}, folder / f"step{step}" / "model.safetensors")


def complaint(series: str, *, whole: bool = True, audit: bool = True) -> str:
    """What is wrong with the tables of a series; ``whole``: the first and the third are to be had."""
    settings = TrackSettings(reading=ReadingSettings(model=series), audit=audit)
    with tempfile.TemporaryDirectory() as kept:
        try:
            parts = Parts(RunProgress(Path(kept), quiet=True))
            tables = MeasuredSeries(settings, "A", (series,), parts).tables()
        except JomaError as error:
            return f"the series is refused: {error}" if whole else ""
        for name, table in tables.items():
            write_table(Path(kept) / f"{name}.parquet", table)
    values, said = tables["values"], ""
    ranks = values[values["metric"] == "stable_rank"] if len(values) else values
    found = dict(zip(ranks["checkpoint"], ranks["value"], strict=True)) if len(ranks) else {}
    for step in (1, 2, 3):
        right = rank(weight(step))
        if abs(found.get(f"step{step}", right) - right) > 1e-5:
            said += f"step{step} has {found[f'step{step}']}, not {right}; "
        if whole and step != 2 and f"step{step}" not in found:
            said += f"step{step} is missing; "
    notes = tables["notes"]
    if whole and "step2" not in found and not notes["lost"].any():
        said += "step2 is lost without a word; "
    for text in notes["text"]:
        if "\n" in text:
            said += f"a note of several lines: {text!r}; "
        harmless(text).encode("utf-8")
    return said


# Hostile members: each writes the folder of step 2.


def _saved(folder: Path, content: object) -> None:
    torch.save(content, folder / "pytorch_model.bin")


def _with_state(make: Callable[[Tensor], object]) -> Callable[[Path, random.Random], None]:
    return lambda folder, chance: _saved(folder, {UP: make(weight(2))})


def _names(folder: Path, chance: random.Random) -> None:
    name = chance.choice(
        [
            "model.layers.99999999999999999999.mlp.up_proj.weight",
            "model.layers.\u00b2.mlp.up_proj.weight",
            "x" * 5000,
            "model.layers.0." + "multihead" * chance.choice([20, 500]) + "x.weight",
            "model.layers.0." + "a." * 3000 + "weight",
            "\udcff.weight",
            "\x1b[31m\r\x07\u202e\nFORGED",
            "",
            ".",
            "model.layers.0.mlp.up_proj." * 200 + "weight",
        ]
    )
    both = {UP: weight(2), name: weight(5)}
    if chance.random() < 0.5 and "\udcff" not in name:
        save_file(both, folder / "model.safetensors")
    else:
        _saved(folder, both)


def _in_itself(folder: Path, chance: random.Random) -> None:
    content: dict[str, Any] = {}
    content[chance.choice(["model", "state_dict", "x"])] = content
    _saved(folder, content)


def _nested_deep(folder: Path, chance: random.Random) -> None:
    """A dictionary in a dictionary, 5,000 deep, as no pickler would write it."""
    depth = 5000
    program = b"\x80\x02" + b"}X\x05\x00\x00\x00model" * depth + b"}" + b"s" * depth + b"."
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")


def _zipped(folder: Path, chance: random.Random) -> None:
    """The archive packed again: compressed in part or whole, or in another order."""
    buffer = io.BytesIO()
    torch.save({UP: weight(2)}, buffer)
    how = chance.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED])
    with (
        zipfile.ZipFile(buffer) as old,
        zipfile.ZipFile(folder / "pytorch_model.bin", "w") as new,
    ):
        names = old.namelist()
        if chance.random() < 0.3:
            names = names[::-1]
        for name in names:
            new.writestr(name, old.read(name), how if chance.random() < 0.7 else zipfile.ZIP_STORED)


def _inflated(folder: Path, chance: random.Random) -> None:
    """Few bytes that become many."""
    name = chance.choice(["archive/data.pkl", "archive/data/0", "archive/version"])
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(1 << 26))


def _cut(folder: Path, chance: random.Random) -> None:
    content = save({UP: weight(2)})
    end = chance.randrange(len(content))
    content = chance.choice([content[:end], content + chance.randbytes(9), content[:-1], b"", bytes(end)])
    (folder / "model.safetensors").write_bytes(content)


def _cut_archive(folder: Path, chance: random.Random) -> None:
    buffer = io.BytesIO()
    torch.save({UP: weight(2)}, buffer, _use_new_zipfile_serialization=chance.random() < 0.5)
    content = buffer.getvalue()
    (folder / "pytorch_model.bin").write_bytes(content[: chance.randrange(len(content))])


def _false_header(folder: Path, chance: random.Random) -> None:
    record: dict[str, object] = {"dtype": "F32", "shape": [24, 8], "data_offsets": [0, 768]}
    key, value = chance.choice(
        [
            *(
                ("shape", s)
                for s in ([24, 9], [10**30, 8], [-1], "24", None, [1.5, 8], [[24]], [0], [2**62, 8])
            ),
            *(("dtype", d) for d in ("F4", "", None, 3, "F64", "\x1b[31m")),
            *(("data_offsets", o) for o in ([0, 10**30], [-8, 760], [768, 0], [0], None, "ab", [0, 1e300])),
        ]
    )
    header = json.dumps({UP: {**record, key: value}}).encode()
    head = chance.choice([len(header), len(header), 2**62, 10**8]).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(head + header + weight(2).numpy().tobytes())


def _false_index(folder: Path, chance: random.Random) -> None:
    save_file({UP: weight(2)}, folder / "a.safetensors")
    index = chance.choice(
        [
            {"weight_map": {UP: "../step1/model.safetensors"}},
            {"weight_map": {UP: "a.safetensors", "b": "a.safetensors"}},
            {"weight_map": {UP: "\x1b]0;x\x07\nFORGED.safetensors"}},
            {"weight_map": {UP: 3}},
            {"weight_map": [UP]},
            {"weight_map": {str(n): "a.safetensors" for n in range(100_000)}},
            [[]] * 10,
        ]
    )
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _false_config(folder: Path, chance: random.Random) -> None:
    save_file({UP: weight(2)}, folder / "model.safetensors")
    text = chance.choice(
        [
            "[" * 100_000,
            "{" + '"a": 1,' * 10**6 + '"b": 2}',
            '{"num_attention_heads": 1e999}',
            '{"num_attention_heads": "\\u001b[31m", "hidden_size": -3, "num_hidden_layers": 1'
            + "0" * 5000
            + "}",
            "\x00",
            '{"num_key_value_heads": [1], "head_dim": {}}',
        ]
    )
    (folder / "config.json").write_text(text)


def _odd_file(folder: Path, chance: random.Random) -> None:
    path = folder / chance.choice(["model.safetensors", "pytorch_model.bin", "a.gguf", "config.json"])
    way = chance.randrange(4)
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.symlink_to(path.name)
    elif way == 2:
        path.mkdir()
    else:
        path.write_bytes(chance.choice([b"GGUF" + chance.randbytes(200), chance.randbytes(99), b"PK"]))


def _sparse_file(folder: Path, chance: random.Random) -> None:
    """A hundred gigabytes of nothing, which take no room."""
    name = chance.choice(
        ["pytorch_model.bin", "model.safetensors", "config.json", "model.safetensors.index.json"]
    )
    with open(folder / name, "wb") as opened:
        opened.truncate(100 << 30)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


def _code(folder: Path, chance: random.Random) -> None:
    content = chance.choice([_Evil(), {UP: _Evil()}, {UP: weight(2), "x": _Evil()}])
    if chance.random() < 0.5:
        _saved(folder, content)
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content))


MEMBERS: tuple[Callable[[Path, random.Random], None], ...] = (
    _with_state(lambda w: w.to("meta")),
    _with_state(lambda w: w.to_sparse()),
    _with_state(lambda w: w.to_sparse_csr()),
    _with_state(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)),
    _with_state(lambda w: torch.nested.nested_tensor([w, w[:3]])),
    _with_state(lambda w: torch.zeros(1).expand(10**6, 10**6)),
    _with_state(lambda w: torch.zeros(1, dtype=torch.int8).expand(2**40)),
    _with_state(lambda w: w.to(torch.complex64)),
    _with_state(lambda w: w.bool()),
    _with_state(lambda w: torch.full_like(w, float("nan"))),
    _with_state(lambda w: w[:0]),
    _with_state(lambda w: [w]),
    *(_names, _names, _in_itself, _nested_deep, _zipped, _zipped, _inflated, _cut, _cut, _cut_archive),
    *(_cut_archive, _false_header, _false_header, _false_index, _false_config, _odd_file, _sparse_file),
    _code,
)  # fmt: skip


def hostile_member(number: int, place: Path) -> tuple[str, str]:
    """What the second member is, and what went wrong; empty if nothing."""
    chance = random.Random(f"member {number}")
    make = MEMBERS[number % len(MEMBERS)]
    honest(place)
    (place / "step2").mkdir()
    make(place / "step2", chance)
    said = complaint(str(place))
    if Path("owned").exists():
        said += "code ran; "
    return f"{make.__name__} {number}", said


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """What a user's hub is given minutes for takes a second here."""
    with (
        patch.object(transport, "SILENCE_SECONDS", 2),
        patch.object(transport, "SLOWNESS_SECONDS", 1.0),
        patch.object(transport, "LONGEST_WAIT", 0.1),
        patch.object(transport, "TRIES", 3),
    ):
        yield


def false_answer(number: int, place: Path) -> tuple[str, str]:
    """What the hub lies about, and what went wrong; empty if nothing."""
    named, lie = hub_lies.drawn(number)
    honest(place / "lab" / "tiny", (1, 2, 3))
    with serve(place) as hub, impatient(), patch.object(constants, "ENDPOINT", hub.endpoint):
        hub.lie = lie
        with patch.dict(os.environ, {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": ""}):
            return f"{named} {number}", complaint("lab/tiny", whole=not named.startswith("refs"))
