"""Checkpoints of other frameworks and of ranks that are not read: what they are, and what converts them."""

from __future__ import annotations

from pathlib import Path

_ORBAX = ("_CHECKPOINT_METADATA", "manifest.ocdbt", "_METADATA")
"""Files of which one lies in every folder that Orbax wrote; beside ``_METADATA`` lies more of its own."""
FOREIGN_SUFFIXES = {
    ".msgpack": (
        "holds weights of Flax; restore them with flax.serialization.msgpack_restore and save them with "
        "safetensors.flax.save_file, or load the model in PyTorch with "
        "from_flax=True (transformers 4) and save it"
    ),
    ".h5": (
        "holds weights of TensorFlow; load the model in PyTorch with from_tf=True (transformers 4) and save "
        "it as safetensors"
    ),
}
"""Suffixes of files of other frameworks -> what they are and what converts them: half a sentence."""


def name_foreign(folder: Path) -> str:
    """What a folder without weights that can be read holds instead, and what converts it; or nothing."""
    if _is_orbax(folder):
        return (
            "is a checkpoint of Orbax (JAX); restore it with orbax.checkpoint and save its arrays by name "
            "with safetensors.flax.save_file"
        )
    for suffix, words in FOREIGN_SUFFIXES.items():
        if any(folder.glob(f"*{suffix}")):
            return words
    if any(folder.rglob("model_optim_rng.pt")) or any(folder.rglob("mp_rank_*")):
        return (
            "is a checkpoint of Megatron, cut over ranks; load it with Megatron and save it with "
            "--ckpt-format torch_dist, which joma reads, or convert it to the Hugging Face format"
        )
    return ""


def _is_orbax(folder: Path) -> bool:
    return any((place / name).is_file() for place in (folder, *_folders(folder)) for name in _ORBAX)


def _folders(folder: Path) -> list[Path]:
    return [child for child in folder.iterdir() if child.is_dir()]
