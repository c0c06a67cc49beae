"""A series in folders and files of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from joma.checkpoints.adapters import ADAPTER_FILES, SETTINGS, is_adapter, open_weights
from joma.checkpoints.checkpoint import kind_of, open_checkpoint
from joma.checkpoints.effective import Weight
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.distributed.find import gathered_files
from joma.checkpoints.formats.folders import SUFFIXES, weight_files
from joma.checkpoints.series.alike import signature
from joma.checkpoints.series.members import Member, Note, counted_alike, in_lines
from joma.checkpoints.series.names import Place, is_no_member, place_of
from joma.checkpoints.series.sources.files import why_none
from joma.checkpoints.series.sources.source import Series, Wanted, group_equal
from joma.core.errors import InputError, JomaError, abbreviate, contain
from joma.core.files import is_there, parse_json, read_bytes

_SAMPLES, _SAMPLE = 64, 4096
_UNREADABLE = re.compile(r"\d{15,}")
TRAINER_STATE = "trainer_state.json"
_STEPS = (
    "global_step",
    "iter_num",
    "global_steps",
    "step",
    "iteration",
    "iterations",
    "num_updates",
    "steps",
)


class LocalSeries(Series):
    """Checkpoints that lie here: a folder of them, or a list of folders and files."""

    def __init__(self, paths: Sequence[Path], names: Sequence[str] | None = None) -> None:
        self.members, self.notes = [], []
        self._files: dict[str, list[Path]] = {}
        self._paths: dict[str, Path] = {}
        self._contents: dict[str, str] = {}
        self._sampled: dict[Path, bytes] = {}
        known: set[str] = set()
        for path, name in zip(paths, names or _distinct_names(paths), strict=True):
            if not is_there(path):
                raise InputError(
                    f"{abbreviate(str(path))} does not exist; give folders or files of checkpoints."
                )
            if name in known:
                raise InputError(f"{path} is given twice; give each checkpoint once.")
            known.add(name)
            self._add(name, path)
        self._in_order()

    @classmethod
    def of_folder(cls, folder: Path) -> LocalSeries:
        """The checkpoints in a folder, each a folder or a file of its own."""
        series = cls([])
        children = sorted(folder.iterdir())
        inside = None
        if not any(place_of(child.name) for child in children):
            usable = [one for one in children if not is_no_member(one.name) and _may_hold_weights(one)]
            inside = counted_alike([child.name for child in usable]) or {
                child.name: place for child in usable if (place := place_inside(child)) is not None
            }
        strange = []
        for child in children:
            place = place_of(child.name) if inside is None else inside.get(child.name)
            if place is None:
                if os.path.isdir(child) and is_no_member(child.name) and not child.name.startswith("."):
                    series.notes.append(
                        Note("no member", child.name, f"{child.name} is not a member of a series")
                    )
                elif _UNREADABLE.search(child.name) and _may_hold_weights(child):
                    text = f"{child.name} tells no step: its number is too large to be read"
                    series.notes.append(Note("no member", child.name, text, lost=True))
            elif _may_hold_weights(child):  # no optimizer's state, no sidecar
                series._add(child.name, child, place)
            elif child.suffix not in SUFFIXES:
                strange.append(f"the suffix {child.suffix!r} of {child.name} is not one of a checkpoint")
        if not series.members:
            series.notes += [Note("no member", "", text) for text in strange[:1]]
        series._in_order()
        return series

    def _in_order(self) -> None:
        self.members = in_lines(self.members)

    def _add(self, name: str, path: Path, place: Place | None = None) -> None:
        try:
            with contain(f"{name} cannot be listed"):
                self._add_there(name, path, place or place_of(name))
        except JomaError as error:
            # A Trainer that keeps the last few may have removed it meanwhile.
            text = f"{name} is gone" if isinstance(error.__cause__, FileNotFoundError) else str(error)
            self.notes.append(Note("unreadable", name, text, lost=True))

    def _add_there(self, name: str, path: Path, place: Place | None) -> None:
        if place is None and not is_no_member(name):
            place = place_inside(path)
        if place is None:
            text = (
                f"{name} tells no step" if not is_no_member(name) else f"{name} is not a member of a series"
            )
            self.notes.append(Note("no member", name, text, lost=not is_no_member(name)))
            return
        if path.is_file():
            files = [path]
        else:
            inside = [
                str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()
            ]  # not its links to folders
            files = [path / file for file in weight_files([one for one in inside if "/" not in one])]
            if not files and is_adapter(path):
                files = [path / file for file in (*ADAPTER_FILES, SETTINGS) if file in inside]
            files = gathered_files(path) or files
            if not files:
                self.notes.append(Note("unreadable", name, f"{name} {why_none(inside)}", lost=True))
                return
        self._files[name], self._paths[name] = files, path
        stats = [file.stat() for file in files]
        date = max((stat.st_mtime for stat in stats), default=math.nan)
        self.members.append(Member(name, place, sum(stat.st_size for stat in stats), date))

    def content(self, member: Member) -> str:
        """A digest of sizes, dates and samples: what differs there differs; ``identical`` reads whole."""
        if member.name not in self._contents:
            digest = hashlib.sha256()
            try:
                for file in self._files[member.name]:
                    digest.update(f"{file.name} {file.stat().st_mtime_ns}".encode())
                    digest.update(self._samples(file))
            except OSError as error:
                raise InputError(f"{member.name} cannot be read: {error.strerror or error}.") from error
            self._contents[member.name] = digest.hexdigest()[:24]
        return self._contents[member.name]

    def identical(self, members: Sequence[Member]) -> list[list[Member]]:
        """By sizes and samples first; files that agree there are hashed whole."""
        samples = {one.name: self._digest(one, whole=False) for one in members}
        found: list[list[Member]] = []
        for group in group_equal(members, samples):
            found += group_equal(group, {one.name: self._digest(one, whole=True) for one in group})
        return found

    def _digest(self, member: Member, *, whole: bool) -> str:
        digest = hashlib.sha256()
        try:
            for file in self._files[member.name]:
                if whole:
                    with open(file, "rb") as opened:
                        digest.update(hashlib.file_digest(opened, "sha256").digest())
                else:
                    digest.update(self._samples(file))
        except OSError:
            return member.name  # like no other; who reads it is told why it cannot be
        return digest.hexdigest()

    def _samples(self, file: Path) -> bytes:
        if file not in self._sampled:
            self._sampled[file] = _samples(file)
        return self._sampled[file]

    def shapes(self, member: Member) -> str:
        """By what the files say of themselves, without their data."""
        return signature(*self.weights(member))

    def weights(self, member: Member) -> tuple[Mapping[str, Weight], Config | None]:
        """By what the files say of themselves."""
        opened = open_weights(self._paths[member.name])
        return opened.weights, opened.config

    def bring(self, member: Member, wanted: Wanted | None, into: Path) -> Path:
        """Where it lies."""
        return self._paths[member.name]

    def to_fetch(self, member: Member, wanted: Wanted | None) -> int:
        """Nothing."""
        return 0


def _samples(file: Path) -> bytes:
    """The file's size, its beginning, its end and evenly spaced pages between."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(file, "rb", buffering=0) as opened:
        for number in range(_SAMPLES):
            opened.seek(max(0, size - _SAMPLE) * number // (_SAMPLES - 1))
            digest.update(opened.read(_SAMPLE))
    return digest.digest()


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell a step and tell the paths apart."""
    resolved = [path.absolute() for path in paths]
    told = _alike(["/".join(path.parts[1:]) for path in resolved])
    for depth in range(1, max((len(path.parts) for path in resolved), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) < len(set(resolved)) or (depth == 1 and not all(map(place_of, names))):
            continue
        # Where a folder farther up tells stages apart, it belongs to the name.
        if _alike(names) == told or len(set(told)) < 2:
            return names
    return [str(path) for path in resolved]


def _alike(names: Sequence[str]) -> list[int]:
    """Of each name the first of its line."""
    told = [None if (place := place_of(name)) is None else place.line for name in names]
    return [told.index(line) for line in told]


def _may_hold_weights(path: Path) -> bool:
    """A folder, a file of weights by its name, or one of an unusual suffix by its first bytes."""
    if path.is_dir() or weight_files([path.name]):
        return True
    return path.is_file() and path.suffix not in SUFFIXES and bool(kind_of(path))


def place_inside(path: Path) -> Place | None:
    """The step that a training state tells of itself: in ``trainer_state.json``, or beside its weights."""
    counts: Mapping[str, object] = {}
    with contextlib.suppress(JomaError, OSError, ValueError):
        if (path / TRAINER_STATE).is_file():
            state = parse_json(read_bytes(path / TRAINER_STATE))
            counts = state if isinstance(state, dict) else {}
        elif is_there(path):
            shards = open_checkpoint(path).shards.values()
            counts = next((shard.counts for shard in shards), {})
    for key in _STEPS:
        if isinstance(step := counts.get(key), int) and step >= 0:
            return Place(step=step)
    return None
