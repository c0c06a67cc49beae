"""Where the number of heads is read: beside the weights in a file of ``torch.save``, or from the option."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import joma
from joma.checkpoints.formats.state_dicts import sizes_of

WIDTH, HEADS = 8, 2
QUERY, KEY = (f"model.layers.0.self_attn.{half}_proj.weight" for half in "qk")


def weights(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(WIDTH, WIDTH, generator=generator) for name in (QUERY, KEY)}


def stable_ranks(found: joma.TrackResult) -> dict[tuple[int, int], float]:
    table = found.table()
    own = table[(table["matrix"] == "query_key") & (table["metric"] == "stable_rank")]
    return {(int(row.step), int(row.head)): float(row.value) for row in own.itertuples()}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("told", ["in the file", "by the option", "nowhere"])
def test_heads_are_told_by_the_file_or_the_option(told: str, tmp_path: Path) -> None:
    for step in (1, 2):
        if told == "in the file":
            state = {"model": weights(step), "model_args": {"n_head": HEADS, "n_embd": WIDTH}}
            torch.save(state, tmp_path / f"step-{step}.pt")
        else:
            save_file(weights(step), tmp_path / f"step-{step}.safetensors")
    given = {"heads": HEADS} if told == "by the option" else {}
    found = joma.track(tmp_path, quiet=True, **given)  # type: ignore[arg-type]
    if told == "nowhere":
        assert stable_ranks(found) == {}
        notes = found.tables["notes"]["text"]
        assert notes.str.contains(
            "no configuration tells the number of heads; give it (--heads)", regex=False
        ).any()
        return
    size = WIDTH // HEADS
    for (step, head), value in stable_ranks(found).items():
        query, key = (weights(step)[name][head * size : (head + 1) * size].double() for name in (QUERY, KEY))
        sizes = np.linalg.svd((query.T @ key).numpy(), compute_uv=False)
        assert value == pytest.approx((sizes**2).sum() / sizes[0] ** 2, rel=1e-5)
    assert set(stable_ranks(found)) == {(step, head) for step in (1, 2) for head in range(HEADS)}


@pytest.mark.parametrize(
    ("content", "sizes"),
    [
        ({"model": {}, "args": Namespace(heads=4).__dict__}, {"heads": 4}),
        ({"n_heads": 3, "state_dict": {"a": torch.zeros(1)}}, {"n_heads": 3}),
        ({"config": {"n_head": 2, "model": {"deep": 1}, 5: 6}}, {"n_head": 2}),
        ({"config": {"n_head": True}, "epoch": 7}, None),
        ({"config": {"n_head": -1}}, None),
        ([1, 2], None),
    ],
)
def test_settings_beside_weights(content: Any, sizes: dict[str, int] | None) -> None:
    assert sizes_of(content) == sizes
