"""An adapter's ranks against adapters that were made with a known one, computed whole by NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import joma
from command_line import called
from joma.checkpoints.adapter_ranks import adapter_ranks
from joma.core.errors import InputError
from joma.core.tables import rows
from joma.measures.ranks.low_rank import (
    count_used,
    effective_directions,
    leading_directions,
    low_rank_change,
    random_change,
    share_within,
    suggest_rank,
)

Array = np.ndarray
UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"


def made(outputs: int, inputs: int, rank: int, sizes: list[float], seed: int = 0) -> tuple[Array, Array]:
    """Factors A and B of rank ``rank`` whose product has these singular values (the others are zero)."""
    random = np.random.default_rng(seed)
    left = np.linalg.qr(random.normal(size=(outputs, rank)))[0]
    right = np.linalg.qr(random.normal(size=(inputs, rank)))[0]
    mix = random.normal(size=(rank, rank)) + 3 * np.eye(rank)  # factors are no singular vectors
    values = np.diag([*sizes, *[0.0] * (rank - len(sizes))])
    return np.linalg.inv(mix) @ right.T, left @ values @ mix


def save(
    folder: Path, factors: Mapping[str, tuple[Array, Array]], base: str = "", **settings: object
) -> Path:
    folder.mkdir()
    tensors = {}
    for name, (down, up) in factors.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.tensor(down, dtype=torch.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.tensor(up, dtype=torch.float32)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    rank = next(iter(factors.values()))[0].shape[0]
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": base, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


def value(table: pd.DataFrame, metric: str, module: str = UP) -> float:
    return float(rows(table, metric=metric, module=module)["value"].iloc[0])


@pytest.mark.parametrize("scale", [1.0, -0.5, 4.0])
def test_the_singular_values_are_those_of_the_product(scale: float) -> None:
    random = np.random.default_rng(1)
    down, up = random.normal(size=(5, 30)), random.normal(size=(20, 5))
    change = low_rank_change(down, up, scale)
    whole = scale * up @ down
    np.testing.assert_allclose(change.singular_values, np.linalg.svd(whole)[1][:5], rtol=1e-12)
    np.testing.assert_allclose(change.left * change.singular_values @ change.right.T, whole, atol=1e-12)
    assert change.energy == pytest.approx(float((whole**2).sum()), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "used"),
    [([10, 1, 0.1], 1), ([10, 2, 0.1], 2), ([1, 1, 1, 1], 4), ([0, 0], 0), ([3, 0, 0], 1), ([1, 10], 1)],
)
def test_how_many_directions_hold_the_energy(values: list[float], used: int) -> None:
    assert count_used(np.array(values, float)) == used
    energy = np.sort(np.array(values, float) ** 2)[::-1]
    if used:
        assert energy[:used].sum() >= 0.99 * energy.sum() * (1 - 1e-12)
        assert used == 1 or energy[: used - 1].sum() < 0.99 * energy.sum()


def test_effective_directions_agree_with_the_whole_matrix() -> None:
    down, up = made(18, 25, 6, [4.0, 2.0, 1.0, 0.5])
    values = low_rank_change(down, up).singular_values
    assert effective_directions(values) == pytest.approx(float(joma.effective_rank(up @ down)), rel=1e-6)
    assert np.isnan(effective_directions(np.zeros(3)))


@pytest.mark.parametrize("shape", [(30, 20), (450, 420)])
def test_leading_directions_span_the_space_of_the_largest(shape: tuple[int, int]) -> None:
    weight = np.random.default_rng(2).normal(size=shape) * np.linspace(3, 0.1, shape[1])
    left, right = leading_directions(weight, 4)
    u, _, v = np.linalg.svd(weight, full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(left * u[:, :4], axis=0)), 1, atol=1e-8)
    np.testing.assert_allclose(np.abs(np.sum(right * v[:4].T, axis=0)), 1, atol=1e-8)


def test_the_share_within_a_space_is_that_of_the_projected_change() -> None:
    random = np.random.default_rng(3)
    down, up = random.normal(size=(4, 12)), random.normal(size=(15, 4))
    basis = np.linalg.qr(random.normal(size=(15, 6)))[0]
    change, whole = low_rank_change(down, up), up @ down
    projected = basis @ basis.T @ whole
    share = (projected**2).sum() / (whole**2).sum()
    assert share_within(change.left, basis, change.singular_values) == pytest.approx(share, rel=1e-12)


def test_random_changes_use_their_rank_and_lie_anywhere() -> None:
    found = random_change(60, 40, 6, 6, draws=100)
    assert found.used[0] > 5
    for mean, side in ((found.outputs[0], 60), (found.inputs[0], 40)):
        assert mean == pytest.approx(6 / side, rel=0.1)
    assert found.outputs[1] < found.outputs[0] < found.outputs[2]


def test_an_adapter_of_known_rank(tmp_path: Path) -> None:
    factors = {UP: made(24, 16, 8, [5.0, 3.0, 2.0]), DOWN: made(16, 24, 8, [1.0], seed=1)}
    tables = adapter_ranks(save(tmp_path / "adapter", factors, lora_alpha=16))
    table = tables["adapter"]
    assert value(table, "rank_used") == 3
    assert value(table, "rank_used", DOWN) == 1
    assert value(table, "energy_share") == pytest.approx(38 / 39)
    used = rows(table, metric="rank_used")
    assert (used["random_low"] >= 6).all()  # of 8, a random adapter uses nearly all
    assert used["layer"].tolist() == [0, 1]
    assert used["matrix"].tolist() == ["lower", "upper"]
    spectrum = rows(tables["spectrum"], module=UP)
    np.testing.assert_allclose(spectrum["value"][:3], [10.0, 6.0, 4.0], rtol=1e-5)  # alpha / r = 2
    assert rows(table, metric="not measured")["reason"].tolist() == ["its settings name no base model"]


def test_the_overlap_with_the_base(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    weight = random.normal(size=(24, 16))
    u, _, v = np.linalg.svd(weight)
    within = (v[:2], u[:, :2] * [3.0, 1.0])  # in the leading directions of both sides
    across = (v[-2:], u[:, -2:] * [3.0, 1.0])
    base = tmp_path / "base"
    base.mkdir()
    names = [f"model.layers.{n}.mlp.up_proj" for n in range(2)]
    save_file({f"{name}.weight": torch.tensor(weight) for name in names}, base / "model.safetensors")
    folder = save(tmp_path / "adapter", dict(zip(names, (within, across), strict=True)), str(base))
    table = adapter_ranks(folder)["adapter"]
    for side in ("outputs", "inputs"):
        assert value(table, f"overlap_{side}", names[0]) == pytest.approx(1, abs=1e-5)
        assert value(table, f"overlap_{side}", names[1]) == pytest.approx(0, abs=1e-5)
    assert value(table, "relative_change", names[0]) == pytest.approx(
        np.sqrt(10) / np.linalg.norm(weight), rel=1e-5
    )
    outputs = rows(table, metric="overlap_outputs")
    assert outputs["random"].iloc[0] == pytest.approx(2 / 24, rel=0.5)


def test_a_base_stored_the_other_way(tmp_path: Path) -> None:
    weight = np.random.default_rng(5).normal(size=(16, 24))
    u, _, v = np.linalg.svd(weight.T)
    base = tmp_path / "base"
    base.mkdir()
    name = "transformer.h.0.mlp.c_fc"
    save_file({f"{name}.weight": torch.tensor(weight)}, base / "model.safetensors")
    folder = save(tmp_path / "adapter", {name: (v[:2], u[:, :2])}, str(base), fan_in_fan_out=True)
    table = adapter_ranks(folder)["adapter"]
    found = rows(table, metric="overlap_outputs")
    assert found["value"].tolist() == pytest.approx([1], abs=1e-5)


@pytest.mark.parametrize(
    ("sizes", "usual", "rank", "used_up"),
    [
        ([[3.0, 1.0, 0, 0], [1.0, 0.01, 0, 0]], 4, 2, False),
        ([[1.0, 1, 1, 1], [1, 1, 1, 1]], 4, 8, True),
        ([[1.0, 1, 1, 1], [9, 0, 0, 0]], 4, 4, False),  # the full one holds 5 % of the energy: more than 1 %
        ([[0.0, 0, 0, 0], [0, 0, 0, 0]], 4, None, False),
    ],
)
def test_a_rank_is_suggested(sizes: list[list[float]], usual: int, rank: int | None, used_up: bool) -> None:
    told = suggest_rank({str(n): (4, np.array(own), float(usual)) for n, own in enumerate(sizes)})
    assert (told.rank, told.used_up) == (rank, used_up)
    if rank is not None and not used_up:
        kept = sum(np.sum(np.square(own)[:rank]) for own in sizes) / sum(
            np.sum(np.square(own)) for own in sizes
        )
        assert kept >= 0.99


def test_what_is_no_plain_factor_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "adapter", {UP: made(8, 6, 2, [1.0])})
    tensors = {
        f"{UP}.lora_A.weight": torch.eye(2, 6),
        f"{UP}.lora_B.weight": torch.eye(8, 2),
        "model.layers.1.mlp.up_proj.lora_A.weight": torch.eye(2, 6),
        "lm_head.modules_to_save.weight": torch.eye(5),
        f"{DOWN}.lora_A.weight": torch.full((2, 6), torch.nan),
        f"{DOWN}.lora_B.weight": torch.eye(8, 2),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    table = adapter_ranks(folder)["adapter"]
    reasons = rows(table, metric="not measured").set_index("module")["reason"]
    assert "saved whole" in reasons["lm_head.weight"]
    assert "is not understood" in reasons["model.layers.1.mlp.up_proj"]
    assert "not finite" in reasons[DOWN]
    assert value(table, "rank_used") == 2


def test_a_folder_that_is_no_adapter_of_low_rank(tmp_path: Path) -> None:
    folder = save(tmp_path / "adapter", {UP: made(8, 6, 2, [1.0])}, peft_type="IA3")
    with pytest.raises(InputError, match="a kind that is not read"):
        adapter_ranks(folder)
    with pytest.raises(InputError, match="do not tell the scale"):
        adapter_ranks(save(tmp_path / "other", {UP: made(8, 6, 2, [1.0])}, r=3))


def test_the_command_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "ADAPTER", {UP: made(24, 16, 8, [5.0, 3.0, 2.0]), DOWN: made(16, 24, 8, [4.0, 1.0], 1)})
    done = called(["probe", "ADAPTER"])
    assert done.returncode == 0, done.stderr
    assert "99 % of a change's energy lies in 2 to 3 of 8 directions" in done.stdout
    assert "Suggested rank: 3. 3 of the 8 directions given keep 100 % of the energy" in done.stdout
    assert "its settings name no base model" in done.stdout
    assert (tmp_path / "runs" / "adapter-ADAPTER" / "figure.png").exists()
    again = joma.read("runs/adapter-ADAPTER")
    assert again.answer()[1].startswith("Suggested rank: 3")
    assert called(["probe", "ADAPTER", "--adapter", "--sections", "attention"]).returncode == 2
    assert called(["probe", "--adapter"]).returncode == 2


def test_an_adapter_as_peft_saves_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'joma[long-tests]'")
    transformers = pytest.importorskip("transformers")
    from probe_models import tiny_model

    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(tiny_model("llama").config)
    base.save_pretrained(tmp_path / "base")
    base.name_or_path = str(tmp_path / "base")
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"])
    )
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight[:, :2].normal_()  # two of the four directions
    adapted.save_pretrained(tmp_path / "adapter")
    found = joma.probe_adapter(tmp_path / "adapter")
    used = rows(found.table(), metric="rank_used")
    assert set(used["value"]) <= {1.0, 2.0}
    assert len(rows(found.table(), metric="overlap_inputs")) == len(used)
    one = used["module"].iloc[0]
    whole = adapted.get_submodule(f"base_model.model.{one}").get_delta_weight("default").detach().numpy()
    values = rows(found.tables["spectrum"], module=one)["value"]
    np.testing.assert_allclose(values[:2], np.linalg.svd(whole)[1][:2], rtol=1e-4)
