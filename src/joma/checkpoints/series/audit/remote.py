"""Members on a hub, of which at most two percent are read: hashes, headers, and samples of tensors."""

from __future__ import annotations

import concurrent.futures
import hashlib
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from joma.checkpoints.families.names import canonical
from joma.checkpoints.formats.readers import SAFETENSORS_TYPES
from joma.checkpoints.series.audit.content import MemberContent, TensorContent, tell_coarse
from joma.checkpoints.series.audit.folding import MOST_SUMS
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.sources.ranged import Header
from joma.checkpoints.series.sources.source import DistantSeries
from joma.core.errors import InputError, JomaError

SHARE = 0.02
"""Of the series' bytes that may travel."""
_FOR_HEADERS, _FOR_SAMPLES, _FOR_LOOKS = 0.5, 0.6, 0.5
"""Of what is left at each time: headers, first samples, a second look where samples agree."""
_FEWEST_SAMPLES = 128
_MOST_REQUESTS, _MOST_PIECES = 40_000, 8
_AT_ONCE = 8
Track = Callable[[Iterable[Member]], Iterable[Member]]


class Purse:
    """Bytes that may still travel."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most
        self._lock = threading.Lock()

    @property
    def spent(self) -> int:
        """Bytes that have travelled."""
        return self.most - self.left

    def take(self, size: int) -> bool:
        """Whether so many may travel; they count as spent."""
        with self._lock:
            if size > self.left:
                return False
            self.left -= size
            return True


@dataclass
class RemoteContent(MemberContent):
    """A member on a hub: whole tensors are read while the purse has bytes for them."""

    series: DistantSeries | None = None
    purse: Purse = field(default_factory=lambda: Purse(0))
    held: dict[str, tuple[str, str, tuple[int, ...], int, int]] = field(default_factory=dict)
    """Name as stored -> file, type, shape, begin and end."""

    def read(self, name: str) -> Tensor:
        """A whole tensor.

        Raises:
            InputError: no bytes are left for it.
        """
        file, dtype, shape, begin, end = self.held[self.tensors[name].name]
        if self.series is None or not self.purse.take(end - begin):
            raise InputError(f"{name} is too large for what is left of the bytes that may travel.")
        content = self.series.read(self.member, file, begin, end)
        return _tensor(content, dtype).reshape(shape).float()


@dataclass(frozen=True)
class _StoredTensor:
    """One tensor of one content of a file; members whose files have the same hash share it."""

    key: tuple[str, str]
    """Hash of the file, name."""
    member: Member
    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        return SAFETENSORS_TYPES[self.dtype].itemsize


def read_contents(
    found: DistantSeries, chosen: Sequence[Member], purse: Purse, progress: Track
) -> tuple[dict[str, MemberContent], dict[str, JomaError]] | None:
    """The members' tensors with samples, and the members that cannot be read; None if bytes do not suffice.

    Files of one hash are read once. Of each tensor the same places are read in every member.
    """
    told = _read_headers(found, chosen, purse, progress)
    if told is None:
        return None
    headers, errors = told
    members = [one for one in chosen if one.name in headers]
    stored = _distinct(found, members, headers)
    samples = _affordable(stored.values(), int(_FOR_SAMPLES * purse.left))
    if samples is None:
        return None
    bytes_of = _read_samples(found, list(stored.values()), samples, purse, 0)
    confirmed = _second_look(found, members, headers, stored, bytes_of, samples, purse)
    made = {
        key: _content(one, bytes_of[key], confirmed[key])
        for key, one in stored.items()
        if key in bytes_of and key in confirmed
    }
    return {one.name: _member(found, one, headers[one.name], made, purse) for one in members}, errors


def _read_headers(
    found: DistantSeries, chosen: Sequence[Member], purse: Purse, progress: Track
) -> tuple[dict[str, dict[str, Header]], dict[str, JomaError]] | None:
    lengths: dict[str, int] = {}
    """By a file's name: members of one series have headers of one length, or nearly."""
    seen: set[str] = set()
    headers: dict[str, dict[str, Header]] = {}
    errors: dict[str, JomaError] = {}
    most = int(_FOR_HEADERS * purse.left)
    distinct = {one.content_hash for member in chosen for one in found.files(member).values()}
    for member in progress(chosen):
        own: dict[str, Header] = {}
        headers[member.name] = own
        for file, listed in found.files(member).items():
            new = listed.content_hash not in seen
            seen.add(listed.content_hash)
            try:
                if file not in lengths:
                    lengths[file] = header_length(found, member, file)
                    # The first headers tell what all of them will take.
                    if not purse.take(8) or lengths[file] * len(distinct) > most:
                        return None
                own[file] = found.header(member, file, lengths[file])
            except JomaError as error:
                errors[member.name] = error
                headers.pop(member.name)
                break
            if new and not purse.take(len(own[file].beginning)):
                return None
    return headers, errors


def header_length(found: DistantSeries, member: Member, file: str) -> int:
    """Bytes of a safetensors file before its first tensor, as its first eight bytes tell.

    Raises:
        JomaError: they are not to be had.
    """
    return 8 + int.from_bytes(found.read(member, file, 0, 8), "little")


def _distinct(
    found: DistantSeries, members: Sequence[Member], headers: Mapping[str, Mapping[str, Header]]
) -> dict[tuple[str, str], _StoredTensor]:
    stored: dict[tuple[str, str], _StoredTensor] = {}
    for member in members:
        files = found.files(member)
        for file, header in headers[member.name].items():
            for name, (dtype, shape, begin, end) in header.tensors.items():
                key = (files[file].content_hash, name)
                fits = dtype in SAFETENSORS_TYPES and 0 not in shape
                if key not in stored and fits:
                    one = _StoredTensor(key, member, file, dtype, shape, begin, end)
                    if one.entries * one.width == end - begin:
                        stored[key] = one
    return stored


def _affordable(stored: Iterable[_StoredTensor], most: int) -> int | None:
    """How many entries of each tensor can be read, a power of two; None where too few."""
    sizes = [(one.entries, one.width) for one in stored]
    samples = MOST_SUMS
    while samples >= _FEWEST_SAMPLES:
        if sum(min(entries, samples) * width for entries, width in sizes) <= most:
            return samples
        samples //= 2
    return None


def _pieces(one: _StoredTensor, samples: int, count: int, shift: int) -> list[tuple[int, int]]:
    """Runs of entries, (first, end): the whole tensor, or ``count`` evenly spaced ones, each within a row.

    They depend on the shape alone; ``shift`` gives others, between those.
    """
    if one.entries <= samples:
        return [(0, one.entries)]
    length = max(1, samples // count)
    row = one.shape[-1] if len(one.shape) > 1 else one.entries
    runs = []
    for number in range(count):
        place = (number + (0.25 if shift else 0.5) + 0.5 * (shift > 1)) / count
        first = int(place * one.entries)
        if length <= row:
            inside = min(first % row, row - length)
            first = first // row * row + inside
        first = min(first, one.entries - length)
        runs.append((first, first + length))
    return runs


def _read_samples(
    found: DistantSeries, stored: Sequence[_StoredTensor], samples: int, purse: Purse, shift: int
) -> dict[tuple[str, str], bytes]:
    """The bytes of the places of each tensor; those for which the purse suffices, in their order."""
    count = max(1, min(_MOST_PIECES, _MOST_REQUESTS // max(1, len(stored))))
    wanted: list[tuple[_StoredTensor, list[tuple[int, int]]]] = []
    for one in stored:
        runs = _pieces(one, samples, count, shift)
        if purse.take(sum(end - first for first, end in runs) * one.width):
            wanted.append((one, runs))

    def read(told: tuple[_StoredTensor, list[tuple[int, int]]]) -> bytes:
        one, runs = told
        return b"".join(
            found.read(one.member, one.file, one.begin + first * one.width, one.begin + end * one.width)
            for first, end in runs
        )

    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        came = pool.map(read, wanted)
        return {one.key: content for (one, _), content in zip(wanted, came, strict=True)}


def _second_look(
    found: DistantSeries,
    members: Sequence[Member],
    headers: Mapping[str, Mapping[str, Header]],
    stored: Mapping[tuple[str, str], _StoredTensor],
    bytes_of: Mapping[tuple[str, str], bytes],
    samples: int,
    purse: Purse,
) -> dict[tuple[str, str], bytes]:
    """A digest of each tensor that is equal where the tensors are.

    Where samples agree and the files' hashes do not, other places are read too; without bytes for that the
    tensors are taken for different ones.
    """
    alike: dict[tuple[str, bytes], list[tuple[str, str]]] = defaultdict(list)
    for key, content in bytes_of.items():
        one = stored[key]
        digest = hashlib.blake2b(f"{one.shape} {one.dtype}".encode(), digest_size=16)
        digest.update(content)
        alike[key[1], digest.digest()].append(key)
    digests = {key: digest for (_, digest), keys in alike.items() for key in keys}
    doubtful = [
        key for keys in alike.values() for key in keys if len(keys) > 1 and stored[key].entries > samples
    ]
    left = Purse(int(_FOR_LOOKS * purse.left))
    for shift in (1, 2):
        more = _read_samples(found, [stored[key] for key in doubtful], samples, left, shift)
        for key in doubtful:
            apart = hashlib.blake2b(more.get(key, key[0].encode()), digest_size=16)
            digests[key] += apart.digest()
    purse.take(left.spent)
    return digests


def _tensor(content: bytes, dtype: str) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=SAFETENSORS_TYPES[dtype])


def _content(one: _StoredTensor, content: bytes, digest: bytes) -> TensorContent:
    flat = _tensor(content, one.dtype)
    floats = flat.is_floating_point()
    flat = flat.float() if floats and flat.dtype.itemsize == 1 else flat
    finite = not floats or bool(flat.float().isfinite().all())
    zero = floats and not bool(flat.count_nonzero())
    sample = flat.double().numpy() if floats and finite else np.zeros(0)
    constant = bool(flat.numel()) and bool((flat == flat[0]).all())
    whole = flat.numel() == one.entries
    pieces = flat.reshape(one.shape) if whole else flat.reshape(1, -1)
    coarse = tell_coarse(pieces, sample) if sample.size and not constant else ""
    return TensorContent(
        one.key[1], one.shape, one.dtype, one.file, digest, sample, finite, zero, constant, coarse
    )


def _member(
    found: DistantSeries,
    member: Member,
    headers: Mapping[str, Header],
    made: Mapping[tuple[str, str], TensorContent],
    purse: Purse,
) -> RemoteContent:
    content = RemoteContent(member, Path(), series=found, purse=purse)
    files = found.files(member)
    for file, header in headers.items():
        for name, (dtype, shape, begin, end) in header.tensors.items():
            told = made.get((files[file].content_hash, name))
            if told is None:
                continue
            plain = canonical(name)
            content.tensors[name if plain in content.tensors else plain] = replace(told, file=file)
            content.held[name] = (file, dtype, shape, begin, end)
    return content


def names_in(found: DistantSeries, member: Member, purse: Purse) -> Iterator[tuple[str, str]]:
    """(tensor, file) of a member by its index, or by its header; nothing where the purse does not suffice."""
    index, files = found.index(member), found.files(member)
    try:
        if index is not None and purse.take(index.size):
            yield from found.places(member).items()
            return
        file = next(iter(files))
        if len(files) > 1 or not file.endswith(".safetensors") or not purse.take(8):
            return
        if purse.take(length := header_length(found, member, file)):
            yield from ((name, file) for name in found.header(member, file, length).tensors)
    except JomaError:  # a listing or a header that cannot be read tells no names
        return
