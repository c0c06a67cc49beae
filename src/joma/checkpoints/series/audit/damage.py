"""What of a member that cannot be opened is concerned: tensors of a missing file, or beyond a file's end."""

from __future__ import annotations

from pathlib import Path

from joma.checkpoints.series.audit.faults import Fault
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.files import weight_map
from joma.core.errors import JomaError
from joma.core.files import LONGEST_INDEX, parse_json, read_bytes

_LONGEST_HEADER = 100_000_000


def damage_of(member: Member, path: Path, error: JomaError) -> Fault:
    """The fault of a member that cannot be read, with the tensors concerned where its files tell them."""
    folder = path if path.is_dir() else path.parent
    reason = str(error).rstrip(".")
    files = [path] if path.is_file() else sorted(folder.glob("*.safetensors"))
    for index in sorted(folder.glob("*.index.json")) if path.is_dir() else []:
        placed = _read_places(index)
        missing = tuple(name for name, file in placed.items() if not (folder / file).is_file())
        if missing:
            return Fault(member.name, member.place.step, "missing file", missing, "", reason)
    lost = tuple(name for file in files for name in _beyond_end(file))
    return Fault(member.name, member.place.step, "unreadable", lost, "", reason)


def _read_places(index: Path) -> dict[str, str]:
    try:
        return weight_map(read_bytes(index, LONGEST_INDEX))
    except (JomaError, OSError):
        return {}


def _beyond_end(file: Path) -> list[str]:
    """The tensors of a safetensors file whose bytes are not all there."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = parse_json(opened.read(length)) if length <= min(size, _LONGEST_HEADER) else None
    except (JomaError, ValueError, OSError):
        return []
    found = []
    for name, record in header.items() if isinstance(header, dict) else ():
        offsets = record.get("data_offsets") if isinstance(record, dict) else None
        if isinstance(offsets, list) and len(offsets) == 2 and isinstance(offsets[1], int):
            found += [str(name)] if 8 + length + offsets[1] > size else []
    return found
