"""A series in folders and files of this machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from joma.checkpoints.adapters import open_weights
from joma.checkpoints.series.members import Member, Note, lines
from joma.checkpoints.series.names import is_no_member, place_of
from joma.checkpoints.series.sources.files import weight_files, why_none
from joma.checkpoints.series.sources.source import Series, Wanted, grouped, signature
from joma.core.errors import InputError, shown
from joma.core.files import is_there

_SAMPLES, _SAMPLE = 64, 4096


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
                raise InputError(f"{shown(str(path))} does not exist; give folders or files of checkpoints.")
            if name in known:
                raise InputError(f"{path} is given twice; give each checkpoint once.")
            known.add(name)
            self._add(name, path)
        self._in_order()

    @classmethod
    def of_folder(cls, folder: Path) -> LocalSeries:
        """The checkpoints in a folder, each a folder or a file of its own."""
        series = cls([])
        for child in sorted(folder.iterdir()):
            if place_of(child.name) is None:
                if child.is_dir() and is_no_member(child.name) and not child.name.startswith("."):
                    series.notes.append(
                        Note("no member", child.name, f"{child.name} is no member of a series")
                    )
            elif child.is_dir() or weight_files([child.name]):  # no optimizer's state, no sidecar
                series._add(child.name, child)
        series._in_order()
        return series

    def _in_order(self) -> None:
        self.members = [member for line in lines(self.members) for member in line]

    def _add(self, name: str, path: Path) -> None:
        try:
            self._add_there(name, path)
        except FileNotFoundError:  # a Trainer that keeps the last few has removed it meanwhile
            self.notes.append(Note("unreadable", name, f"{name} is gone", lost=True))

    def _add_there(self, name: str, path: Path) -> None:
        place = place_of(name)
        if place is None:
            text = f"{name} tells no step" if not is_no_member(name) else f"{name} is no member of a series"
            self.notes.append(Note("no member", name, text, lost=not is_no_member(name)))
            return
        if path.is_file():
            files = [path]
        else:
            inside = [
                str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()
            ]  # not its links to folders
            files = [path / file for file in weight_files([one for one in inside if "/" not in one])]
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
                raise InputError(f"{member.name} cannot be read: {error.strerror}.") from error
            self._contents[member.name] = digest.hexdigest()[:24]
        return self._contents[member.name]

    def identical(self, members: Sequence[Member]) -> list[list[Member]]:
        """By sizes and samples first; files that agree there are hashed whole."""
        samples = {one.name: self._digest(one, whole=False) for one in members}
        found: list[list[Member]] = []
        for group in grouped(members, samples):
            found += grouped(group, {one.name: self._digest(one, whole=True) for one in group})
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
        return signature(open_weights(self._paths[member.name]).entries)

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
    places = [place_of("/".join(path.parts[1:])) for path in resolved]
    told = [None if place is None else place.line for place in places]
    for depth in range(1, max((len(path.parts) for path in resolved), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) < len(set(resolved)) or (depth == 1 and not all(map(place_of, names))):
            continue
        # Where a folder farther up tells stages apart, it belongs to the name.
        here = [None if (place := place_of(name)) is None else place.line for name in names]
        if here == told or len(set(told)) < 2:
            return names
    return [str(path) for path in resolved]
