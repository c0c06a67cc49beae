"""Which folder is a checkpoint that many processes saved, and of which kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from joma.checkpoints.formats.distributed.metadata import METADATA, SUFFIX
from joma.checkpoints.formats.distributed.shard import DistributedShard
from joma.checkpoints.formats.folders import weight_files
from joma.checkpoints.formats.shard import Shard
from joma.core.errors import InputError

_DEPTH = 2
"""Folders below the one that was given in which parts of it may lie."""
_WHOLE = (".safetensors", ".gguf")


def is_distributed(folder: Path) -> bool:
    """Whether the files of a distributed checkpoint of PyTorch lie right in a folder."""
    return (folder / METADATA).is_file() or any(folder.glob(f"*{SUFFIX}"))


def distributed_shards(folder: Path) -> list[Shard]:
    """The weights of a folder that many processes saved together; nothing where it is none.

    They are looked for in the folder, then in those below it (``pytorch_model_fsdp_0``, ``model_and_optim``).

    Raises:
        InputError: parts are missing, damaged or hostile; two checkpoints lie there, and none is given.
    """
    if is_distributed(folder):
        beside = [name for name in _names(folder) if name.endswith(_WHOLE)]
        usual = weight_files(_names(folder))
        if beside or (usual and usual[0].startswith(("model.", "pytorch_model"))):
            raise InputError(
                f"{folder} holds two kinds of checkpoints, {METADATA} with its {SUFFIX} files and "
                f"{(beside or usual)[0]}; give that file, or move either into a folder of its own."
            )
        return [_open_distributed(folder)]
    found = _models(folder, (below for below in _folders(folder, _DEPTH) if is_distributed(below)))
    if len(found) > 1:
        raise InputError(
            f"{folder} holds several distributed checkpoints, in {found[0].path.parent.relative_to(folder)} "
            f"and {found[1].path.parent.relative_to(folder)}; give the folder that is meant."
        )
    return found


def distributed_files(folder: Path) -> list[Path]:
    """The files that hold the weights of such a folder, by their names alone; the metadata, which hold the
    date and place of the saving, are not among them."""
    folders = [folder] if is_distributed(folder) else _folders(folder, _DEPTH)
    return [
        file for one in folders if not _is_of_training(one, folder) for file in sorted(one.glob(f"*{SUFFIX}"))
    ]


def _is_of_training(folder: Path, above: Path) -> bool:
    """Whether a folder's name says that it holds an optimizer's state alone."""
    name = folder.name.lower()
    return folder != above and "optim" in name and "model" not in name


def _open_distributed(folder: Path) -> Shard:
    if (folder / METADATA).is_file():
        return DistributedShard(folder)
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
