"""Checkpoints written for a test, and what is read off their tables."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import save_file

from joma.checkpoints.ranks import probe_weights

UP = "model.layers.0.mlp.up_proj"


def write(folder: Path, tensors: Mapping[str, torch.Tensor], **config: object) -> Path:
    """A folder with one file of weights and a configuration; what was there before goes."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    return folder


def ranks(folder: object, **options: object) -> pandas.DataFrame:
    """The table, its warning left aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return probe_weights(folder, **options)  # type: ignore[arg-type]


def rank_of(weight: torch.Tensor) -> float:
    values = np.linalg.svd(weight.double().numpy(), compute_uv=False)
    return float((values**2).sum() / values[0] ** 2)


def values(table: pandas.DataFrame, metric: str = "stable_rank", **where: object) -> list[float]:
    for name, value in {"metric": metric, **where}.items():
        table = table[table[name] == value]
    return [float(value) for value in table["value"]]


def near(*expected: float) -> object:
    return pytest.approx(list(expected), abs=1e-5)
