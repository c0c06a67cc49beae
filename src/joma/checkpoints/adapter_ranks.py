"""What an adapter of low rank did with its rank, module by module, read from its factors and its base's
weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joma.checkpoints.adapters import adapter_file, adapter_settings, base_of, scale_of, sort_factors
from joma.checkpoints.checkpoint import Checkpoint, open_checkpoint
from joma.checkpoints.families.names import canonical, locate
from joma.checkpoints.families.roles import role_at
from joma.checkpoints.formats.shard import Shard
from joma.core.arguments import Array
from joma.core.errors import InputError
from joma.core.files import Json
from joma.core.progress import Progress
from joma.measures.ranks.low_rank import (
    LowRankChange,
    RandomChange,
    count_used,
    effective_directions,
    leading_directions,
    low_rank_change,
    random_change,
    share_within,
)

METRICS = {
    "rank_used": "directions that hold 99 % of the change's energy",
    "effective_rank": "exp of the entropy of the change's singular values over their sum",
    "energy_share": "share of the energy (squared Frobenius norm) of all changes",
    "relative_change": "Frobenius norm of the change over that of the base's weight",
    "overlap_outputs": "share of the change's energy in the base's leading output directions (rank many)",
    "overlap_inputs": "the same of the input directions",
}
"""metric -> what it is."""
NOT_MEASURED = "not measured"
_ALL_KEPT = ("layer", "stack", "expert", "matrix", "module")


@dataclass(frozen=True)
class AdaptedModule:
    """A module with its change."""

    name: str
    rank: int
    shape: tuple[int, int]
    """Outputs and inputs."""
    flipped: bool
    """Whether the base stores its weight as (inputs, outputs)."""
    dtype: str
    change: LowRankChange

    def place(self) -> dict[str, object]:
        """The columns that tell its rows from another module's."""
        at = locate(f"{self.name}.weight")
        role = role_at(at) or self.name.rpartition(".")[2]
        values = (at.layer, at.stack, at.expert, role, self.name)
        return {**dict(zip(_ALL_KEPT, values, strict=True)), "rank": self.rank, "dtype": self.dtype}


def adapter_ranks(
    folder: str | Path, *, seed: int = 0, progress: Progress | None = None
) -> dict[str, pd.DataFrame]:
    """How much of its rank an adapter of PEFT uses, and where its change points.

    Args:
        folder: of the adapter: ``adapter_config.json`` and its factors. Where its base model lies too (the
            path in the settings, or the hub's cache), changes are compared with the base's weights.
        seed: of the random adapters of the same shapes.
        progress: shows a bar.

    Returns:
        ``adapter``: a row per module and metric (``METRICS``) with ``value``, and ``random``,
        ``random_low`` and ``random_high``, the mean and the quantiles 0.05 and 0.95 of random adapters of
        the same shape; what could not be measured has the metric ``not measured`` and a ``reason``.
        ``spectrum``: a row per module and direction, the singular value and its share of the module's energy.

    Raises:
        InputError: no adapter of low rank, settings that do not tell its scale, or none of whose factors
            can be read.
    """
    folder = Path(folder)
    settings, shard = adapter_settings(folder), adapter_file(folder)
    modules, problems = _read_modules(folder, settings, shard)
    if not modules:
        reason = next(iter(problems.values()), "it has no factors")
        raise InputError(f"{folder}: no change of low rank can be read from {shard.path.name}: {reason}.")
    place = base_of(folder)
    base = None if place is None else open_checkpoint(place)
    total = sum(module.change.energy for module in modules)
    expected = sum(module.rank * math.prod(module.shape) for module in modules)
    rows: list[dict[str, object]] = []
    spectrum: list[dict[str, object]] = []
    for module in (progress or Progress(quiet=True)).track(modules, "adapter"):
        null = random_change(*module.shape, module.rank, min(module.rank, *module.shape), seed=seed)
        common = {**module.place(), "rows": module.shape[0], "columns": module.shape[1]}
        share = (module.change.energy / total if total else math.nan, "")
        usual = module.rank * math.prod(module.shape) / expected
        found = {
            **_own_metrics(module, null),
            "energy_share": (*share, (usual, usual, usual)),
            **_against_base(module, base, null, problems, seed),
        }
        rows += [
            {
                **common, "metric": metric, "value": value, "unit": unit,
                "random": beside[0], "random_low": beside[1], "random_high": beside[2], "reason": "",
            }
            for metric, (value, unit, beside) in found.items()
        ]  # fmt: skip
        spectrum += _spectrum(module)
    rows += [_row_of_problem(name, reason) for name, reason in problems.items()]
    if base is None:
        named = settings.get("base_model_name_or_path")
        reason = f"its base model {named!r} is not here" if named else "its settings name no base model"
        rows.append(_row_of_problem("overlap with the base", reason))
    return {"adapter": pd.DataFrame(rows), "spectrum": pd.DataFrame(spectrum)}


_Found = dict[str, tuple[float, str, tuple[float, float, float]]]


def _own_metrics(module: AdaptedModule, null: RandomChange) -> _Found:
    values = module.change.singular_values
    return {
        "rank_used": (float(count_used(values)), "directions", null.used),
        "effective_rank": (effective_directions(values), "directions", null.effective),
    }


def _against_base(
    module: AdaptedModule,
    base: Checkpoint | None,
    null: RandomChange,
    problems: dict[str, str],
    seed: int,
) -> _Found:
    if base is None:
        return {}
    try:
        weight = _base_weight(module, base)
    except InputError as error:
        problems[module.name] = str(error).removeprefix(f"{base.path}: ").rstrip(".")
        return {}
    change, nothing = module.change, (math.nan, math.nan, math.nan)
    left, right = leading_directions(weight, min(module.rank, *weight.shape), seed=seed)
    norm = float((weight**2).sum())
    return {
        "relative_change": (math.sqrt(change.energy / norm) if norm else math.nan, "", nothing),
        "overlap_outputs": (share_within(change.left, left, change.singular_values), "", null.outputs),
        "overlap_inputs": (share_within(change.right, right, change.singular_values), "", null.inputs),
    }


def _base_weight(module: AdaptedModule, base: Checkpoint) -> Array:
    by_name = {canonical(name): name for name in base.weights}
    name = next((by_name[n] for n in (f"{module.name}.weight", module.name) if n in by_name), None)
    if name is None:
        raise InputError(f"{base.path}: the base model does not hold it.")
    stored: Array = base.weight(name).double().numpy()
    weight = stored.T if module.flipped else stored
    if weight.shape != module.shape:
        raise InputError(f"{base.path}: factors for {module.shape} do not fit its weight {weight.shape}.")
    return weight


def _read_modules(
    folder: Path, settings: Mapping[str, Json], shard: Shard
) -> tuple[list[AdaptedModule], dict[str, str]]:
    """The modules with factors that are understood, and name -> reason of what is not."""
    factors, whole = sort_factors(shard.entries)
    problems = {canonical(name): "saved whole, not as a change of low rank" for name in whole}
    modules = []
    for stem, parts in factors.items():
        if "strange" in parts or not {"A", "B"} <= set(parts):
            names = ", ".join(sorted(name for key, name in parts.items() if key != "embedding"))
            problems[stem] = f"what {names} add to it is not understood"
            continue
        a, b = shard.entries[parts["A"]], shard.entries[parts["B"]]
        if len(a.shape) != 2 or len(b.shape) != 2 or b.shape[1] != a.shape[0]:
            problems[stem] = f"factors of shapes {a.shape} and {b.shape} are not those of a matrix"
            continue
        scale = scale_of(settings, folder, stem, a.shape[0])
        down, up = (shard.read(parts[part]).double().numpy() for part in ("A", "B"))
        try:
            change = low_rank_change(down, up, scale)
        except InputError as error:
            problems[stem] = str(error).removeprefix("low_rank_change: ").rstrip(".")
            continue
        flipped = "embedding" in parts or bool(settings.get("fan_in_fan_out"))
        shape = (b.shape[0], a.shape[1])
        modules.append(AdaptedModule(stem, a.shape[0], shape, flipped, str(a.dtype), change))
    return modules, problems


def _spectrum(module: AdaptedModule) -> list[dict[str, object]]:
    change = module.change
    return [
        {
            **module.place(),
            "direction": number,
            "metric": "singular_value",
            "value": float(value),
            "share": float(value**2 / change.energy) if change.energy else math.nan,
        }
        for number, value in enumerate(change.singular_values, start=1)
    ]


def _row_of_problem(name: str, reason: str) -> dict[str, object]:
    return {
        **dict.fromkeys(_ALL_KEPT, ""), "layer": None, "matrix": name, "module": name,
        "metric": NOT_MEASURED, "value": math.nan, "reason": reason,
    }  # fmt: skip
