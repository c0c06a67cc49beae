"""What a series offers wherever it lies: its members, which are the same bytes, and each one as a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from joma.checkpoints.effective import Weight
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.shard import TensorEntry
from joma.checkpoints.series.members import Member, Note, lines
from joma.checkpoints.series.sources.listed import ListedFile
from joma.checkpoints.series.sources.ranged import Header

Wanted = Callable[[Mapping[str, TensorEntry], Config], set[str]]
"""What is stored, by name, and the model's settings -> the names of the tensors that will be read."""


class Series(ABC):
    """Checkpoints of one model."""

    members: list[Member]
    """In order of the lines and steps."""
    notes: list[Note]
    """What was found beside them and is none of them, and why."""
    distant: bool = False
    """Whether a look at a member costs a transfer."""

    @property
    def lost(self) -> set[str]:
        """Names of what should be a member and cannot be read."""
        return {note.member for note in self.notes if note.lost}

    @abstractmethod
    def content(self, member: Member) -> str:
        """Tells this content from any other of the series, cheaply; fit for a file's name."""

    @abstractmethod
    def identical(self, members: Sequence[Member]) -> list[list[Member]]:
        """Groups of members whose weights are the same bytes, each of two or more."""

    @abstractmethod
    def shapes(self, member: Member) -> str:
        """Tells the names and shapes of its tensors; empty where that would take the whole file.

        Raises:
            JomaError: it cannot be read.
        """

    @abstractmethod
    def weights(self, member: Member) -> tuple[Mapping[str, Weight], Config | None]:
        """What is stored under which names, without its data, and the model's settings.

        Raises:
            JomaError: it cannot be read, or telling would take the whole file.
        """

    @abstractmethod
    def bring(self, member: Member, wanted: Wanted | None, into: Path) -> Path:
        """A folder or file on this machine with the wanted tensors, or with the whole model (``None``).

        Raises:
            JomaError: it cannot be had; the message says why.
        """

    @abstractmethod
    def to_fetch(self, member: Member, wanted: Wanted | None) -> int:
        """Bytes that ``bring`` will transfer, but for the headers that tell."""


class DistantSeries(Series):
    """Checkpoints on a hub, which tells of every file a hash, and sends ranges of them."""

    distant = True

    @abstractmethod
    def files(self, member: Member) -> dict[str, ListedFile]:
        """The files of its weights."""

    @abstractmethod
    def index(self, member: Member) -> ListedFile | None:
        """The file that tells which tensor lies in which of its files, if there is one."""

    @abstractmethod
    def places(self, member: Member) -> dict[str, str]:
        """Name of a tensor -> file, by the index; nothing where there is none. It transfers the index."""

    @abstractmethod
    def header(self, member: Member, file: str, first: int = 0) -> Header:
        """Of a safetensors file, by its ``first`` bytes (0: the usual number) and what they leave.

        Raises:
            JomaError: it cannot be read.
        """

    @abstractmethod
    def read(self, member: Member, file: str, begin: int, end: int) -> bytes:
        """A range of a file.

        Raises:
            JomaError: it is not to be had.
        """


def kept_of(group: Sequence[Member], members: Sequence[Member]) -> dict[str, Member]:
    """Which of identical members stands for each: its line's last, if it is among them, else its earliest.

    Final weights under the names of earlier steps are a common error of publishing; the reverse is not. Each
    line keeps one, without which it would begin or end elsewhere.
    """
    kept: dict[str, Member] = {}
    for line in lines(members):
        own = [member for member in line if member in group]
        kept |= {member.name: line[-1] if line[-1] in group else own[0] for member in own}
    return kept


def group_equal(members: Iterable[Member], keys: Mapping[str, str]) -> list[list[Member]]:
    """Members whose keys are equal, in groups of two or more."""
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(keys[member.name], []).append(member)
    return [group for group in found.values() if len(group) > 1]
