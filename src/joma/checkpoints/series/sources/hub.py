"""A series on the Hugging Face hub: revisions of a model, or subfolders of its main revision."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import huggingface_hub
from huggingface_hub import constants, errors

from joma.checkpoints.effective import Weight, weights_in
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.shard import TensorEntry
from joma.checkpoints.series.alike import signature
from joma.checkpoints.series.members import Member, Note, in_lines
from joma.checkpoints.series.names import place_of
from joma.checkpoints.series.sources.files import is_plain_path, weight_files, weight_map, why_none
from joma.checkpoints.series.sources.listed import ListedFile, RemoteFolder, file_of
from joma.checkpoints.series.sources.local import LocalSeries
from joma.checkpoints.series.sources.ranged import FIRST, Header, holds, read_header, write_wanted
from joma.checkpoints.series.sources.source import DistantSeries, Wanted, group_equal
from joma.checkpoints.series.sources.transport import listing, read_range
from joma.core.errors import InputError, JomaError, UnfinishedError, contain
from joma.core.files import (
    LONGEST_CONFIG,
    LONGEST_INDEX,
    Json,
    parse_json,
    storage_error,
    whole_file,
    write_text,
)

_LISTED_AT_ONCE = 8
_SETTINGS = (".json", ".txt", ".model", ".jinja")
_TOKENIZER = ("tokenizer.", "vocab.", "spiece.", "sentencepiece.")
_SPARE_DISK = 64 << 20
_MOST_FILES, _MOST_REVISIONS, _LONGEST_NAME = 100_000, 20_000, 300


class HubSeries(DistantSeries):
    """Checkpoints of a model on the hub; ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, tokens and cache are the hub's.

    Args:
        name: the model's name.
        only: revisions to look at; all whose names tell a step by default.

    Raises:
        InputError: no such model, no access, no network.
    """

    def __init__(self, name: str, only: Sequence[str] | None = None) -> None:
        self.name = name
        self.members, self.notes = [], []
        self._remote: dict[str, RemoteFolder] = {}
        self._headers: dict[str, Header] = {}
        """By the content's hash: what several members hold is read once."""
        self._read_already: dict[str, bytes] = {}
        self._endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self._commits = self._refs()
        wanted = [one for one in self._commits if place_of(one)] if only is None else list(only)
        if not wanted or any(one not in self._commits for one in wanted):
            self._add_folders("main", only)
        wanted = [one for one in wanted if one not in self._remote]
        with concurrent.futures.ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
            for revision, found in zip(wanted, pool.map(self._files_or_why, wanted), strict=True):
                if isinstance(found, str):
                    self.notes.append(Note("unreadable", revision, found, lost=True))
                else:
                    self._add(revision, revision, "", found)
        self.members = in_lines(self.members)

    def _refs(self) -> dict[str, str]:
        """Branch or tag -> commit."""
        with contain(f"the revisions that the hub lists of {self.name!r} cannot be read"):
            commits: dict[str, str] = {}
            for page in listing(self.name, None, f"{self._endpoint}/api/models/{self.name}/refs"):
                told: Any = page
                for ref in (*told["branches"], *told["tags"]):
                    if len(str(ref["name"])) <= _LONGEST_NAME:
                        commits[str(ref["name"])] = str(ref["targetCommit"])
            if len(commits) > _MOST_REVISIONS:
                raise UnfinishedError(
                    f"the hub lists more than {_MOST_REVISIONS:,} revisions of {self.name!r}."
                )
            return commits

    def _files(self, revision: str) -> dict[str, ListedFile]:
        commit = quote(self._commits.get(revision, revision), safe="")
        url = f"{self._endpoint}/api/models/{self.name}/tree/{commit}?recursive=true&expand=true"
        files: dict[str, ListedFile] = {}
        with contain(f"what the hub lists of {revision} cannot be read"):
            for page in listing(self.name, revision, url):
                told: Any = page
                for entry in told:
                    if entry["type"] == "file" and is_plain_path(entry["path"]):
                        files[entry["path"]] = file_of(entry)
                if len(files) > _MOST_FILES:
                    raise UnfinishedError(f"the hub lists more than {_MOST_FILES:,} files in {revision}.")
        return files

    def _files_or_why(self, revision: str) -> dict[str, ListedFile] | str:
        try:
            return self._files(revision)
        except JomaError as error:
            return str(error)

    def _add_folders(self, revision: str, only: Sequence[str] | None) -> None:
        folders: dict[str, dict[str, ListedFile]] = {}
        for path, file in self._files(revision).items():
            folder, _, plain = path.rpartition("/")
            folders.setdefault(folder, {})[plain] = file
        for folder, files in folders.items():
            if place_of(folder) and (only is None or folder in only):
                self._add(folder, revision, folder, files)

    def _add(self, name: str, revision: str, folder: str, files: dict[str, ListedFile]) -> None:
        try:
            with contain(f"{name} cannot be listed"):
                self._add_listed(name, revision, folder, files)
        except JomaError as error:
            self.notes.append(Note("unreadable", name, str(error), lost=True))

    def _add_listed(self, name: str, revision: str, folder: str, files: dict[str, ListedFile]) -> None:
        place = place_of(name)
        if place is None:
            self.notes.append(Note("no member", name, f"{name} tells no step", lost=True))
            return
        weights = weight_files([file for file in files if "/" not in file])
        if not weights:
            self.notes.append(Note("unreadable", name, f"{name} {why_none(list(files))}", lost=True))
            return
        date = max((files[w].date for w in weights if not math.isnan(files[w].date)), default=math.nan)
        member = Member(name, place, sum(files[w].size for w in weights), date)
        self._remote[name] = RemoteFolder(revision, self._commits.get(revision, revision), folder, files)
        self.members.append(member)

    def _weights(self, member: Member) -> list[str]:
        return weight_files([file for file in self._remote[member.name].files if "/" not in file])

    def content(self, member: Member) -> str:
        """By the hub's own hashes; nothing is downloaded."""
        remote = self._remote[member.name]
        hashes = " ".join(remote.hash_of(file) for file in self._weights(member))
        return hashlib.sha256(hashes.encode()).hexdigest()[:24]

    def identical(self, members: Sequence[Member]) -> list[list[Member]]:
        """By the hub's own hashes."""
        return group_equal(members, {one.name: self.content(one) for one in members})

    def shapes(self, member: Member) -> str:
        """By the headers of safetensors; a pickled file would have to come whole."""
        if not self._weights(member)[0].endswith(".safetensors"):
            return ""
        return signature(*self.weights(member))

    def weights(self, member: Member) -> tuple[Mapping[str, Weight], Config | None]:
        """By the headers of safetensors."""
        weights = self._weights(member)
        if not weights[0].endswith(".safetensors"):
            raise InputError(f"{member.name}: {weights[0]} tells its tensors only when it has come whole.")
        config = self._config(member)
        return weights_in(self._entries(member), config), config

    def to_fetch(self, member: Member, wanted: Wanted | None) -> int:
        """Of safetensors the wanted tensors, by their headers; else the whole files."""
        if self._find_in_cache(member, whole=wanted is None):
            return 0
        weights = self._weights(member)
        if wanted is None or not weights[0].endswith(".safetensors"):
            return sum(self._remote[member.name].files[file].size for file in weights)
        headers = {file: self.header(member, file) for file in weights}
        names = wanted(self._entries(member), self._config(member))
        return sum(header.bytes_of(names & set(header.tensors)) for header in headers.values())

    def bring(self, member: Member, wanted: Wanted | None, into: Path) -> Path:
        """From the hub's cache if it is whole there; else the wanted ranges, or whole files, checked."""
        cached = self._find_in_cache(member, whole=wanted is None)
        if cached is not None:
            return cached
        remote, weights = self._remote[member.name], self._weights(member)
        folder = into / self.content(member)
        ranged = wanted is not None and weights[0].endswith(".safetensors")
        kind = weights[0].rpartition(".")[2]
        beside = [file for file in remote.files if "/" not in file and self._goes_along(file, kind, ranged)]
        need = self.to_fetch(member, wanted) + sum(remote.files[file].size for file in beside)
        try:
            into.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(into).free
        except OSError as error:
            raise storage_error(error, into) from error
        if need + _SPARE_DISK > free:
            raise UnfinishedError(
                f"{member.name}: {need:,} bytes are to be fetched and {into} has room for {free:,}; free "
                "some space, or choose another --out."
            )
        for file in beside:
            self._download(member, file, folder / file)
        if not ranged or wanted is None:
            for file in weights:
                self._download(member, file, folder / file)
            return folder
        names = wanted(self._entries(member), self._config(member))
        held: dict[str, str] = {}
        for file in weights:
            header = self.header(member, file)
            part = names & set(header.tensors)
            held |= dict.fromkeys(header.tensors, file)
            if not holds(folder / file, part):
                write_wanted(partial(self._read, member, file), header, part, folder / file)
        if len(weights) > 1:
            write_text(folder / "model.safetensors.index.json", json.dumps({"weight_map": held}))
        return folder

    @staticmethod
    def _goes_along(file: str, kind: str, ranged: bool) -> bool:
        """Whether a small file goes beside weights of this kind; settings alone where no model is built."""
        if file.endswith(".index.json"):
            return not ranged and f".{kind}." in file
        return file == "config.json" if ranged else file.endswith(_SETTINGS)

    def _entries(self, member: Member) -> dict[str, TensorEntry]:
        entries: dict[str, TensorEntry] = {}
        for file in self._weights(member):
            entries |= self.header(member, file).entries(Path(file))
        return entries

    def _config(self, member: Member) -> dict[str, Json]:
        files = self._remote[member.name].files
        if "config.json" not in files:
            return {}
        key = files["config.json"].small_hash
        if files["config.json"].size > LONGEST_CONFIG:
            size = files["config.json"].size
            raise InputError(f"{member.name}/config.json has {size:,} bytes, more than {LONGEST_CONFIG:,}.")
        if key not in self._read_already:
            self._read_already[key] = b"".join(
                self._read(member, "config.json", 0, files["config.json"].size)
            )
        try:
            content = parse_json(self._read_already[key])
        except ValueError as error:
            raise InputError(f"{member.name}: its config.json is not JSON ({error}).") from error
        return content if isinstance(content, dict) else {}

    def header(self, member: Member, file: str, first: int = 0) -> Header:
        """Of one of its files; of those with the same hash it is read once."""
        found = self._remote[member.name].files[file]
        if found.content_hash not in self._headers:
            read = partial(self._read, member, file)
            where = f"{member.name}/{file}"
            self._headers[found.content_hash] = read_header(read, found.size, where, first or FIRST)
        return self._headers[found.content_hash]

    def files(self, member: Member) -> dict[str, ListedFile]:
        """The files of its weights, by the hub's listing."""
        return {file: self._remote[member.name].files[file] for file in self._weights(member)}

    def index(self, member: Member) -> ListedFile | None:
        """The file that tells which tensor lies in which of several files."""
        return self._remote[member.name].files.get(self._index_name(member))

    def places(self, member: Member) -> dict[str, str]:
        """By its index."""
        found, name = self.index(member), self._index_name(member)
        if found is None or found.size > LONGEST_INDEX:
            return {}
        if found.small_hash not in self._read_already:
            self._read_already[found.small_hash] = self.read(member, name, 0, found.size)
        return weight_map(self._read_already[found.small_hash])

    def _index_name(self, member: Member) -> str:
        kind = self._weights(member)[0].rpartition(".")[2]
        return "model.safetensors.index.json" if kind == "safetensors" else f"pytorch_model.{kind}.index.json"

    def read(self, member: Member, file: str, begin: int, end: int) -> bytes:
        """A range of one of its files."""
        return b"".join(self._read(member, file, begin, end))

    def _download(self, member: Member, file: str, target: Path) -> None:
        """A whole file, checked against the hub's hash where it is one of the content."""
        found = self._remote[member.name].files[file]
        if target.exists() and target.stat().st_size == found.size:
            return
        if file == "config.json" and found.small_hash in self._read_already:
            with whole_file(target) as temporary:
                temporary.write_bytes(self._read_already[found.small_hash])
            return
        digest = hashlib.sha256()
        with whole_file(target) as temporary, open(temporary, "wb") as opened:
            for piece in self._read(member, file, 0, found.size):
                digest.update(piece)
                opened.write(piece)
            if found.sha256 and digest.hexdigest() != found.sha256:
                raise UnfinishedError(
                    f"{member.name}/{file} arrived with another SHA-256 than the hub tells; run the same "
                    "command again."
                )

    def _read(self, member: Member, file: str, begin: int, end: int) -> Iterator[bytes]:
        remote = self._remote[member.name]
        path = f"{remote.folder}/{file}" if remote.folder else file
        url = f"{self._endpoint}/{self.name}/resolve/{quote(remote.commit, safe='')}/{quote(path)}"
        return read_range(self.name, remote.revision, url, begin, end)

    def _find_in_cache(self, member: Member, *, whole: bool) -> Path | None:
        """The hub's cache of this revision, where all of the weights and settings are in it.

        A ``whole`` model has a tokenizer too, if there is one: in whichever of its files.
        """
        remote = self._remote[member.name]
        if remote.folder:
            return None
        need = [
            *self._weights(member),
            *(f for f in remote.files if f == "config.json" or f.endswith(".index.json")),
        ]
        found = [
            huggingface_hub.try_to_load_from_cache(self.name, file, revision=remote.revision) for file in need
        ]
        paths = [Path(one) for one in found if isinstance(one, str)]
        # The cache keeps contents under their hashes, and may hold an older one of this revision.
        now = {remote.hash_of(file) for file in need}
        if len(paths) < len(need) or {path.resolve().name for path in paths} != now:
            return None
        folder = paths[0].parent
        words = [file for file in remote.files if file.startswith(_TOKENIZER)]
        if whole and words and not any((folder / file).exists() for file in words):
            return None
        return folder


def offline_series(name: str) -> LocalSeries:
    """The revisions of a model that the hub's cache holds.

    Raises:
        InputError: none.
    """
    found = {}
    with contextlib.suppress(errors.CacheNotFound):
        for repo in huggingface_hub.scan_cache_dir().repos:
            if repo.repo_id == name and repo.repo_type == "model":
                found = {ref: revision.snapshot_path for ref, revision in repo.refs.items() if place_of(ref)}
    if not found:
        raise InputError(
            f"HF_HUB_OFFLINE is set, and the hub's cache holds no revision of {name!r} that tells a step; "
            "unset it, or give a folder of checkpoints."
        )
    return LocalSeries(list(found.values()), list(found))
