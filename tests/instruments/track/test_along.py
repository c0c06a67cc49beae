"""What runs along a series: spectra of changes against dense ones, waves, warnings, bounces, two series."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from joma.checkpoints.checkpoint import open_checkpoint
from joma.instruments.track.curves import CURVE, bounces, early_warnings, side_by_side
from joma.instruments.track.measuring.changes import changes, matrix_spectrum, product_spectrum
from joma.instruments.track.measuring.rows import table_of
from joma.instruments.track.waves import half_back, half_fallen, layer_order, top_above_bottom

WIDTH, HEADS, PAIRS, SIZE = 24, 4, 2, 6
ROLES = ("query", "key", "lower")


def dense(matrix: torch.Tensor) -> tuple[float, float, float]:
    s = np.linalg.svd(matrix.double().numpy(), compute_uv=False)
    p = s**2 / (s**2).sum()
    p = p[p > 1e-28]
    return float(np.sqrt((s**2).sum())), float((s**2).sum() / s[0] ** 2), float(-(p * np.log(p)).sum())


def write(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    folder.mkdir()
    random = torch.Generator().manual_seed(seed)
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(rows, WIDTH, generator=random)
        for layer in range(2)
        for name, rows in (
            ("self_attn.q_proj", HEADS * SIZE),
            ("self_attn.k_proj", PAIRS * SIZE),
            ("mlp.up_proj", 50),
        )
    }
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "num_attention_heads": HEADS, "num_key_value_heads": PAIRS}
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def value(table: pd.DataFrame, **key: object) -> float:
    for name, one in key.items():
        table = table[table[name] == one]
    (found,) = table["value"]
    return float(found)


def test_changes_are_those_of_the_dense_matrices(tmp_path: Path) -> None:
    now, before = write(tmp_path / "step2", 2), write(tmp_path / "step1", 1)
    opened = [open_checkpoint(tmp_path / name) for name in ("step2", "step1")]
    table = table_of(changes(opened[0], [("previous", opened[1])], ROLES))
    assert set(table["reason"]) == {""}
    name = "model.layers.1.mlp.up_proj.weight"
    expected = dense(now[name] - before[name])
    for metric, truth in zip(("norm", "stable_rank", "spectral_entropy"), expected, strict=True):
        key = {"layer": 1, "matrix": "lower", "metric": f"change_{metric}", "against": "previous"}
        assert value(table, **key) == pytest.approx(truth, rel=1e-9)

    def product(tensors: dict[str, torch.Tensor], head: int) -> torch.Tensor:
        q, k = (tensors[f"model.layers.0.self_attn.{one}_proj.weight"].double() for one in "qk")
        pair = head // (HEADS // PAIRS)
        return q[head * SIZE : (head + 1) * SIZE].T @ k[pair * SIZE : (pair + 1) * SIZE]

    for head in range(HEADS):
        for metric, truth in zip(
            ("norm", "stable_rank", "spectral_entropy"), dense(product(now, head)), strict=True
        ):
            key = {"layer": 0, "head": head, "matrix": "query_key", "metric": metric}
            assert value(table, **key) == pytest.approx(truth, rel=1e-9)
        truth = dense(product(now, head) - product(before, head))[2]
        key = {"layer": 0, "head": head, "matrix": "query_key", "metric": "change_spectral_entropy"}
        assert value(table, **key) == pytest.approx(truth, rel=1e-9)


def test_a_diverged_weight_is_named(tmp_path: Path) -> None:
    tensors = write(tmp_path / "step1", 1)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, tmp_path / "step1" / "model.safetensors")
    opened = open_checkpoint(tmp_path / "step1")
    rows = changes(opened, [("previous", opened)], ROLES)
    (left,) = (row for row in rows if "NaN or infinities" in row.reason)
    assert (left.matrix, left.layer) == ("lower", 0)
    assert any(row.metric == "change_norm" for row in rows)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
def test_spectra_of_any_shape(rows: int, columns: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=random)
    other = torch.randn(rows, columns + 2, generator=random)
    found = matrix_spectrum(matrix)
    assert [found.norm, found.stable_rank, found.spectral_entropy] == pytest.approx(dense(matrix), rel=1e-8)
    found = product_spectrum(matrix, other)
    truth = dense(matrix.double().T @ other.double())
    assert [found.norm, found.stable_rank, found.spectral_entropy] == pytest.approx(truth, rel=1e-7, abs=1e-9)


def test_every_tower_has_its_own_heads(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    sides = {"text_model": (16, 2), "vision_model": (24, 6)}
    tensors = {
        f"{side}.encoder.layers.0.self_attn.{part}_proj.weight": torch.randn(width, width, generator=random)
        for side, (width, _) in sides.items()
        for part in "qk"
    }
    save_file(tensors, tmp_path / "model.safetensors")
    towers = {
        side.replace("model", "config"): {"hidden_size": width, "num_attention_heads": heads}
        for side, (width, heads) in sides.items()
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", **towers}))
    rows = [row for row in changes(open_checkpoint(tmp_path), [], ["query", "key"]) if row.metric == "norm"]
    for side, (width, heads) in sides.items():
        q, k = (tensors[f"{side}.encoder.layers.0.self_attn.{part}_proj.weight"].double() for part in "qk")
        size = width // heads
        expected = [float((q[i : i + size].T @ k[i : i + size]).norm()) for i in range(0, width, size)]
        found = {row.head: row.value for row in rows if side.split("_")[0] in row.stack}
        assert [found[head] for head in range(heads)] == pytest.approx(expected, rel=1e-9)


def test_a_product_that_did_not_change_has_no_rank() -> None:
    q, k = (torch.randn(16, 300, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    found = product_spectrum(torch.cat([q, -q]), torch.cat([k, k]))
    assert found.norm == 0.0
    assert np.isnan(found.stable_rank)
    moved = product_spectrum(torch.cat([q, -q]), torch.cat([k * (1 + 1e-7), k]))
    assert moved.norm == pytest.approx(float((q.double().T @ (k * (1 + 1e-7) - k).double()).norm()), rel=1e-4)


def test_nothing_changed_has_no_rank() -> None:
    found = matrix_spectrum(torch.zeros(3, 4))
    assert found.norm == 0.0
    assert np.isnan(found.stable_rank)
    assert np.isnan(found.spectral_entropy)


def test_dates_of_half_a_fall_and_half_a_return() -> None:
    steps = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
    values = np.array([5.0, 4.0, 1.0, 2.0, 3.0])
    assert half_fallen(steps, values) == pytest.approx(10 + 10 / 3)
    assert half_back(steps, values) == pytest.approx(30.0)
    assert np.isnan(half_back(steps, values[::-1].copy()[:5] * 0 + np.arange(5, 0, -1)))
    assert np.isnan(half_fallen(steps, np.arange(5.0)))


def test_a_wave_is_found_and_its_null_holds_its_level() -> None:
    wave = layer_order([np.arange(8.0), np.arange(8.0) ** 2])
    assert wave is not None
    assert wave.correlation == 1.0
    assert wave.correlation > wave.null
    back = layer_order([np.arange(8.0)[::-1]])
    assert back is not None
    assert back.correlation == -1.0
    random = np.random.default_rng(0)
    found = [layer_order([random.permutation(8.0 + np.arange(8)) for _ in range(5)]) for _ in range(60)]
    assert sum(one is not None and one.correlation > one.null for one in found) <= 8
    assert layer_order([np.array([1.0, 2.0, 3.0, np.nan])]) is None


def test_top_layers_above_bottom_layers() -> None:
    assert top_above_bottom(np.array([0, 0, 0, 0, 5, 6, 7, 8.0]))[2] < 0.05
    assert top_above_bottom(np.array([5, 6, 7, 8, 0, 0, 0, 0.0]))[2] > 0.9


def table(series: str, values: np.ndarray, steps: np.ndarray, **key: object) -> pd.DataFrame:
    key = (
        dict.fromkeys(CURVE, "")
        | {"series": series, "layer": 0, "head": None, "metric": "attention_entropy"}
        | key
    )
    return pd.DataFrame({**key, "step": steps, "value": values})


def test_bounces_are_judged_and_short_curves_are_not() -> None:
    steps = np.arange(40.0)
    noise = 0.02 * np.random.default_rng(0).standard_normal(40)
    valley, fall = np.abs(steps - 15) / 10, np.exp(-steps / 8)
    found = bounces(
        pd.concat(
            [
                table("A", valley + noise, steps, layer=0),
                table("A", fall + noise, steps, layer=1),
                table("A", valley[:5], steps[:5], layer=2),
            ]
        )
    )
    assert list(found["verdict"]) == ["bounces", "only falls", "cannot tell"]
    assert found["dip_from"][0] <= 15 <= found["dip_to"][0]


def test_warnings_rise_before_a_transition() -> None:
    random = np.random.default_rng(1)
    steps, state, values = np.arange(400.0), 0.0, []
    for step in steps:
        state = (0.2 + 0.78 * step / 400) * state + 0.1 * random.standard_normal()
        values.append(3.0 - 0.01 * step + state)
    found = early_warnings(table("A", np.array(values), steps), 60)
    for sign in ("variance", "lag-1"):
        numbers = found[found["metric"].str.startswith(sign)]["value"].to_numpy()
        assert numbers[-60:].mean() > numbers[:60].mean()
    line = early_warnings(table("A", 2 * steps, steps), 10)
    assert line[line["metric"].str.startswith("lag")]["value"].isna().all()


def test_two_series_are_compared_where_both_have_been() -> None:
    a, b = np.arange(0.0, 50, 10), np.arange(5.0, 80, 5)
    both = pd.concat([table("A", 2 * a, a), table("B", b + 1, b)])
    found = side_by_side(both, "step")
    assert list(found["at"]) == [10, 20, 30, 40]
    assert found["difference"].to_numpy() == pytest.approx(a[1:] - 1)


def test_a_fall_is_dated_from_the_highest_point_before_it() -> None:
    """What the curve does after its lowest point, however high it rises, does not date its fall."""
    steps = np.arange(6.0)
    values = np.array([3.0, 4.0, 2.0, 0.0, 7.0, 9.0])
    assert half_fallen(steps, values) == pytest.approx(2.0)
    assert half_back(steps, values) == pytest.approx(3 + 4.5 / 7)
