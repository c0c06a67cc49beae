"""Adapters on disk: the base model's weights with what a low-rank adapter adds, or the adapter's share
alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from torch import Tensor

from joma.checkpoints.checkpoint import Checkpoint, open_checkpoint, open_shard
from joma.checkpoints.effective import Weight
from joma.checkpoints.families.names import canonical
from joma.checkpoints.formats.folders import weight_files
from joma.checkpoints.formats.shard import Shard
from joma.core.errors import InputError
from joma.core.files import LONGEST_CONFIG, Json, parse_json, read_bytes

SETTINGS = "adapter_config.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_FACTOR = re.compile(r"(.*)\.lora_(embedding_)?([AB])(?:\.\w+)??(?:\.weight)?")

Adapter = Literal["applied", "alone"]


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter of PEFT alone: whole weights beside it have it in them already."""
    if not path.is_dir() or not (path / SETTINGS).is_file():
        return False
    return not weight_files([file.name for file in path.iterdir() if file.is_file()])


def open_weights(path: Path, which: Adapter = "applied") -> Checkpoint:
    """A checkpoint, or an adapter with its base model.

    Raises:
        InputError: see ``joma.checkpoints.checkpoint.open_checkpoint`` and ``open_adapted``.
    """
    return open_adapted(path, which) if is_adapter(path) else open_checkpoint(path)


class AdaptedCheckpoint(Checkpoint):
    """W + s B A in place of W, s = alpha / r (or alpha / sqrt(r)), or s B A alone (Hu et al. 2021).

    Args:
        folder: of the adapter.
        base: the model that it was trained on.
        which: ``applied`` or ``alone``.

    Raises:
        InputError: an adapter that is not of low rank, or does not fit its base.
    """

    def __init__(self, folder: Path, base: Checkpoint, which: Adapter) -> None:
        self._settings = adapter_settings(folder)
        self._base, self._which = base, which
        adapter = [adapter_file(folder)]
        super().__init__(folder, [*_shards(base), *adapter], base.config)
        self._own = adapter[0].entries

    @cached_property
    def weights(self) -> dict[str, Weight]:
        """What the model multiplies by; with ``alone``, only what the adapter adds."""
        base = dict(self._base.weights)
        by_name = {canonical(name): name for name in base}
        factors, whole = sort_factors(self._own)
        changed: dict[str, Weight] = {}
        for name in whole:
            entry = self._own[name]
            changed[by_name.get(canonical(name), name)] = Weight(name, entry.shape, entry.dtype, (name,))
        for stem, parts in factors.items():
            adapted = self._find_adapted(stem, by_name)
            changed[adapted] = self._with_adapter(base[adapted], stem, parts)
        return changed if self._which == "alone" else base | changed

    def _with_adapter(self, weight: Weight, stem: str, parts: Mapping[str, str]) -> Weight:
        if weight.problem:
            return weight
        if "strange" in parts or not {"A", "B"} <= set(parts):
            return replace(
                weight, problem=f"what {', '.join(sorted(parts.values()))} add to it is not understood"
            )
        down, up = self._own[parts["A"]], self._own[parts["B"]]
        outputs_inputs = up.shape[:1] + down.shape[-1:]
        flipped = "embedding" in parts or bool(self._settings.get("fan_in_fan_out"))
        if (outputs_inputs[::-1] if flipped else outputs_inputs) != weight.shape:
            return replace(
                weight, problem=f"factors {up.shape} and {down.shape} do not fit its shape {weight.shape}"
            )
        scale, alone, compose = (
            scale_of(self._settings, self.path, stem, down.shape[0]),
            self._which == "alone",
            weight.compose,
        )

        def add(tensors: list[Tensor]) -> Tensor:
            *stored, a, b = tensors
            change = scale * (b.float() @ a.float())
            change = change.T if flipped else change
            if alone:
                return change
            return (stored[0].float() if compose is None else compose(stored)) + change

        return replace(
            weight, name=canonical(weight.name), parts=(*weight.parts, down.name, up.name), compose=add
        )

    def _find_adapted(self, stem: str, by_name: Mapping[str, str]) -> str:
        for name in (f"{stem}.weight", stem):
            if name in by_name:
                return by_name[name]
        raise InputError(
            f"{self.path} adapts {stem!r}, which {self._base.path} does not hold; give its base."
        )


def sort_factors(names: Iterable[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Of an adapter's tensors: module -> {``A``, ``B``, ``embedding``, ``strange``: tensor}, and those
    saved whole.

    ``embedding`` stands beside the factors of an embedding, ``strange`` for a tensor that is no factor
    (magnitudes of DoRA and the like).
    """
    factors: dict[str, dict[str, str]] = {}
    whole = []
    for name in names:
        found = _FACTOR.fullmatch(canonical(name))
        if found is not None:
            factors.setdefault(found[1], {})[found[3]] = name
            if found[2]:
                factors[found[1]]["embedding"] = name
        elif ".lora_" in name:
            factors.setdefault(canonical(name).partition(".lora_")[0], {})["strange"] = name
        else:
            whole.append(name)
    return factors, whole


def scale_of(settings: Mapping[str, Json], folder: Path, stem: str, rank: int) -> float:
    """The number s that B A is multiplied by: alpha / r, or alpha / sqrt(r).

    Raises:
        InputError: settings that do not tell it, or that state another rank.
    """
    alpha = _by_pattern(settings.get("alpha_pattern"), stem, settings.get("lora_alpha"))
    stated = _by_pattern(settings.get("rank_pattern"), stem, settings.get("r"))
    if not isinstance(alpha, int | float) or stated != rank:
        raise InputError(
            f"{folder / SETTINGS}: lora_alpha = {alpha} and r = {stated} do not tell the scale of {stem!r}, "
            f"whose factors have rank {rank}; give the settings it was trained with."
        )
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def open_adapted(folder: Path, which: Adapter) -> AdaptedCheckpoint:
    """An adapter with the base model that its settings name.

    Raises:
        InputError: a base model that is not here, or an adapter that cannot be used as it is.
    """
    named = _base_name(folder)
    base = base_of(folder)
    if base is None:
        raise InputError(
            f"{folder} holds only an adapter, and its base model {named!r} is not here; download that (hf "
            "download "
            f"{named or 'NAME'}), and put its folder into {SETTINGS} as base_model_name_or_path."
        )
    return AdaptedCheckpoint(folder, open_checkpoint(base), which)


def base_of(folder: Path) -> Path | None:
    """The folder of the adapter's base model, if it lies where the settings say or in the hub's cache."""
    named = _base_name(folder)
    places = [Path(named), folder / named, folder.parent / named] if named else []
    beside = (place for place in places if place.is_dir() and place.resolve() != folder.resolve())
    return next(beside, None) or _find_in_cache(named)


def _base_name(folder: Path) -> str:
    return str(adapter_settings(folder).get("base_model_name_or_path") or "")


def _find_in_cache(name: str) -> Path | None:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        return None
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (errors.HFValidationError, errors.LocalEntryNotFoundError, OSError, ValueError):
        return None


def adapter_settings(folder: Path) -> dict[str, Json]:
    """What ``adapter_config.json`` says.

    Raises:
        InputError: it is not JSON, or describes no adapter of low rank.
    """
    text = read_bytes(folder / SETTINGS, LONGEST_CONFIG)
    try:
        settings = parse_json(text)
    except ValueError as error:
        raise InputError(f"{folder / SETTINGS} is not JSON ({error}); save the adapter again.") from error
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA" or settings.get("use_dora"):
        kind = settings.get("peft_type") if isinstance(settings, dict) else None
        raise InputError(
            f"{folder} holds an adapter of a kind that is not read (peft_type {kind!r}); merge it into its "
            "base "
            "(merge_and_unload) and save that."
        )
    return settings


def adapter_file(folder: Path) -> Shard:
    """The factors.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    for name in ADAPTER_FILES:
        if (folder / name).is_file():
            return open_shard(folder / name)
    raise InputError(f"{folder} has {SETTINGS} but neither {' nor '.join(ADAPTER_FILES)}; download it again.")


def _shards(checkpoint: Checkpoint) -> list[Shard]:
    return list({id(shard): shard for shard in checkpoint.shards.values()}.values())


def _by_pattern(patterns: Json, stem: str, default: Json) -> Json:
    """PEFT's exceptions by module: a pattern stands for the end of a name."""
    if isinstance(patterns, Mapping):
        for pattern, value in patterns.items():
            if re.fullmatch(rf"(.*\.)?({pattern})", stem):
                found: Json = value
                return found
    return default
