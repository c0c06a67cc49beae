"""Which folder is a checkpoint that many processes saved, and of which kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from joma.checkpoints.formats.distributed.megatron import MegatronShard, backend_of, check_backend
from joma.checkpoints.formats.distributed.metadata import METADATA, SUFFIX
from joma.checkpoints.formats.distributed.shard import DistributedShard
from joma.checkpoints.formats.distributed.zero import is_zero, open_zero, zero_files, zero_folder
from joma.checkpoints.formats.folders import weight_files
from joma.checkpoints.formats.shard import Shard
from joma.core.errors import InputError

_DEPTH = 2
"""Folders below the one that was given in which parts of it may lie."""
_WHOLE = (".safetensors", ".gguf")


def is_distributed(folder: Path) -> bool:
    """Whether the files of a distributed checkpoint of PyTorch lie right in a folder."""
    return (folder / METADATA).is_file() or any(folder.glob(f"*{SUFFIX}")) or bool(backend_of(folder))


def gathered_shards(folder: Path) -> list[Shard]:
    """The weights of a folder that many processes saved together; nothing where it is none.

    They are looked for in the folder; where it holds no other weights, in those below it, too
    (``pytorch_model_fsdp_0``, ``model_and_optim``, ``global_step500``).

    Raises:
        InputError: parts are missing, damaged or hostile; several checkpoints lie there, and none is given.
    """
    names = _names(folder)
    kind = f"{METADATA} with its {SUFFIX} files" if is_distributed(folder) else ""
    kind = kind or ("the states of DeepSpeed" if is_zero(folder) else "")
    usual = [
        n for n in weight_files(names) if n.endswith(_WHOLE) or n.startswith(("model.", "pytorch_model"))
    ]
    if kind and (beside := usual or [name for name in names if name.endswith(_WHOLE)]):
        raise InputError(
            f"{folder} holds two kinds of checkpoints, {kind} and {beside[0]}; give that file, or move "
            "either into a folder of its own."
        )
    if kind:
        return [_open_distributed(folder) if is_distributed(folder) else open_zero(folder)]
    return [] if weight_files(names) else _shards_below(folder)


def _shards_below(folder: Path) -> list[Shard]:
    found = _models(folder, (below for below in _folders(folder, _DEPTH) if is_distributed(below)))
    zero = zero_folder(folder)
    places = [shard.path.parent for shard in found] + ([] if zero is None else [zero])
    if len(places) > 1:
        one, other = (place.relative_to(folder) for place in places[:2])
        raise InputError(
            f"{folder} holds several distributed checkpoints, in {one} and {other}; give the one "
            "that is meant."
        )
    return found if zero is None else [open_zero(zero)]


def gathered_files(folder: Path) -> list[Path]:
    """The files that hold the weights of such a folder, by their names alone; the metadata, which hold the
    date and place of the saving, are not among them."""
    zero = None if is_distributed(folder) else zero_folder(folder)
    if zero is not None:
        return zero_files(zero)
    folders = [folder] if is_distributed(folder) else _folders(folder, _DEPTH)
    return [
        file for one in folders if not _is_of_training(one, folder) for file in sorted(one.glob(f"*{SUFFIX}"))
    ]


def _is_of_training(folder: Path, above: Path) -> bool:
    """Whether a folder's name says that it holds an optimizer's state alone."""
    name = folder.name.lower()
    return folder != above and "optim" in name and "model" not in name


def _open_distributed(folder: Path) -> Shard:
    check_backend(folder)
    if (folder / METADATA).is_file():
        return MegatronShard(folder) if backend_of(folder) else DistributedShard(folder)
    if any(folder.glob(f"__*{METADATA}")):
        raise InputError(
            f"{folder} was saved without coordination of its ranks, each with metadata of its own; save it "
            "again with coordination (the default), or as safetensors."
        )
    raise InputError(
        f"{folder} holds {SUFFIX} files without {METADATA}, which is written last: it was not saved to the "
        "end, or was not copied whole; copy it again, hidden files too."
    )


def _models(above: Path, folders: Iterable[Path]) -> list[Shard]:
    """Those that can be read, optimizers' states aside; where none can, what is wrong with the first."""
    found: list[Shard] = []
    refused: list[InputError] = []
    for folder in folders:
        if _is_of_training(folder, above):
            continue
        try:
            found.append(_open_distributed(folder))
        except InputError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    return found


def _folders(folder: Path, depth: int) -> list[Path]:
    below = sorted(child for child in folder.iterdir() if child.is_dir() and not child.is_symlink())
    return below + [deeper for child in below if depth > 1 for deeper in _folders(child, depth - 1)]


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.is_file()]
