"""Quantised weights against the product written out; what is not understood is named and never a number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint_files import UP, near, rank_of, ranks, values, write
from joma.checkpoints.scales import decode_mxfp4, spread
from joma.core.errors import InputError

RANDOM = torch.Generator().manual_seed(0)
FLOAT8 = torch.randn(64, 32, generator=RANDOM).clamp(-3, 3).to(torch.float8_e4m3fn)
ROWS = torch.ones(64, 1)
ROWS[0] = 20
ONE = torch.tensor(0.0013)
STRANGE_UP = "trunk.stages.3.mlp.up_proj"  # of no family


@pytest.mark.parametrize("stem", [UP, STRANGE_UP])
@pytest.mark.parametrize(
    "name",
    ["weight_scale", "weight_scale_inv", "scale_weight", "scale", "scales", "scale_inv", "weight.scale"],
)
@pytest.mark.parametrize("scale", [ONE, ONE.reshape(1), ONE.reshape(1, 1), ROWS, ROWS[:, 0], ROWS.T[:, :32]])
def test_a_scale_of_any_name_and_rank(tmp_path: Path, stem: str, name: str, scale: torch.Tensor) -> None:
    table = ranks(write(tmp_path, {f"{stem}.weight": FLOAT8, f"{stem}.{name}": scale}))
    whole = FLOAT8.float() * (scale.reshape(-1, 1) if scale.shape in ((64,), (64, 1)) else scale)
    assert values(table) == near(rank_of(whole))
    assert values(table, "spectral_norm") == near(float(torch.linalg.matrix_norm(whole, 2)))


def test_blocks_of_the_stated_size_the_last_cut_off(tmp_path: Path) -> None:
    weight = torch.randn(200, 64, generator=RANDOM).clamp(-3, 3).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0], [10.0], [0.1], [3.0]])
    tensors = {f"{UP}.weight": weight, f"{UP}.weight_scale_inv": scale}
    whole = weight.float() * scale.repeat_interleave(64, 0)[:200]
    for stated in (
        {"weight_block_size": [64, 64]},
        {"config_groups": {"group_0": {"weights": {"block_structure": "64x64"}}}},
    ):
        assert values(ranks(write(tmp_path, tensors, quantization_config=stated))) == near(rank_of(whole))
    with pytest.raises(InputError, match=r"does not fit .* in blocks of 32"):
        ranks(write(tmp_path, tensors, quantization_config={"weight_block_size": [32, 32]}))


def test_blocks_of_stacked_experts(tmp_path: Path) -> None:
    weight = torch.randn(2, 256, 256, generator=RANDOM).clamp(-3, 3).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2, 2, generator=RANDOM) / 100
    whole = weight.float() * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    table = ranks(write(tmp_path, {name: weight, f"{name}_scale_inv": scale}, model_type="qwen3_moe"))
    assert values(table, expert="1", matrix="gate") == near(rank_of(whole[1, :128]))
    one_each = torch.tensor([2.0, 5.0])
    table = ranks(write(tmp_path, {name: weight, f"{name}_scale": one_each}, model_type="qwen3_moe"))
    lower = float(torch.linalg.matrix_norm(5 * weight[1, 128:].float(), 2))
    assert values(table, "spectral_norm", expert="1", matrix="lower") == pytest.approx([lower])


def test_integers_with_their_scales(tmp_path: Path) -> None:
    whole = torch.randint(-127, 128, (24, 16), generator=RANDOM, dtype=torch.int8)
    rows = torch.rand(24, generator=RANDOM) + 0.5
    table = ranks(write(tmp_path, {f"{UP}.weight": whole, f"{UP}.SCB": rows}))
    assert values(table, "spectral_norm") == pytest.approx(
        [float(torch.linalg.matrix_norm(whole.float() * rows[:, None] / 127, 2))]
    )
    zero = torch.full((24, 1), 100, dtype=torch.uint8)
    unsigned = torch.randint(0, 255, (24, 16), generator=RANDOM, dtype=torch.uint8)
    tensors = {f"{UP}.weight": unsigned, f"{UP}.weight_scale": rows[:, None], f"{UP}.weight_zero_point": zero}
    by_hand = (unsigned.float() - 100) * rows[:, None]
    assert values(ranks(write(tmp_path, tensors))) == near(rank_of(by_hand))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"weight": torch.ones(8, 4, dtype=torch.int8)}, "no scale stands beside it"),
        (
            {"weight": torch.ones(8, 4, dtype=torch.uint8), "weight_scale": torch.ones(1)},
            "how values are packed into U8 is not known",
        ),
        ({"weight": FLOAT8, "weight_scale": torch.ones(7)}, "fits .* in no way that is known"),
        ({"weight": FLOAT8, "weight_scale": torch.ones(5, 3)}, "size of the blocks"),
        ({"weight": FLOAT8, "weight_scale": ONE, "scale_inv": ONE}, "several scales"),
        ({"weight": FLOAT8, "weight_amax": ONE}, "quantised in a way that is not known"),
        ({"weight": FLOAT8, "weight_scale": ONE, "weight_global_scale": ONE}, "in a way that is not known"),
        ({"weight": torch.eye(4), "weight_scale": ONE}, "beside values of type F32 means is not known"),
        ({"weight": FLOAT8, "weight_scale": FLOAT8[:, :1].clone()}, "is itself quantised"),
        ({"qweight": torch.ones(2, 4, dtype=torch.int32), "scales": torch.ones(1, 4)}, "packed quantised"),
        (
            {"weight": torch.ones(64, 1, dtype=torch.uint8), "weight.absmax": torch.ones(2)},
            "in a way that is not known",
        ),
    ],
)
def test_what_is_not_understood_is_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor], reason: str
) -> None:
    odd = {f"decoder.cells.1.mlp.up_proj.{name}": tensor for name, tensor in tensors.items()}
    with pytest.raises(InputError, match=reason):
        ranks(write(tmp_path, odd))
    table = ranks(write(tmp_path, odd | {"decoder.cells.0.mlp.up_proj.weight": torch.eye(4)}))
    assert values(table) == [4.0]
    (left,) = table[table["metric"] == "omitted"].itertuples()
    assert left.matrix.startswith("decoder.cells.1.mlp.up_proj.")
    assert left.layer == 1


def test_scales_of_something_else_are_not_the_weights(tmp_path: Path) -> None:
    tensors = {f"{UP}.weight": FLOAT8, f"{UP}.weight_scale": ONE}
    other = {f"{UP}.input_scale": 7 * ONE, f"{UP}.output_scale": ONE, f"{UP}.bias": torch.ones(64)}
    assert values(ranks(write(tmp_path, tensors)), "spectral_norm") == values(
        ranks(write(tmp_path, tensors | other)), "spectral_norm"
    )


def test_microscaling_by_hand() -> None:
    blocks = torch.zeros(1, 2, 16, dtype=torch.uint8)
    blocks[0, 0, 0] = 0x2 | 0xF << 4  # 1.0, then -6.0
    blocks[0, 1, 15] = 0x1 << 4  # 0.5, the last of all
    found = decode_mxfp4(blocks, torch.tensor([[127, 130]], dtype=torch.uint8))
    assert found.shape == (1, 64)
    assert found[0, :2].tolist() == [1.0, -6.0]
    assert float(found[0, 63]) == 0.5 * 8
    assert int((found != 0).sum()) == 3


@pytest.mark.parametrize("hidden", [24, 32])
def test_microscaled_experts_are_those_that_transformers_makes(tmp_path: Path, hidden: int) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    width, experts = 64, 2
    shape = (experts, 2 * hidden, width // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=RANDOM, dtype=torch.uint8)
    scales = torch.randint(120, 130, shape, generator=RANDOM, dtype=torch.uint8)
    whole = mxfp4.convert_moe_packed_tensors(
        blocks, scales, dtype=torch.float32
    )  # (experts, width, 2 hidden)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    folder = write(
        tmp_path,
        {f"{name}_blocks": blocks, f"{name}_scales": scales},
        model_type="gpt_oss",
        hidden_size=width,
        num_local_experts=experts,
    )
    table = ranks(folder)
    assert values(table, expert="1", matrix="gate") == near(rank_of(whole[1, :, 0::2].T))
    assert values(table, expert="1", matrix="lower") == near(rank_of(whole[1, :, 1::2].T))


def test_spread() -> None:
    assert spread((), (4, 6), None) == ((1, 1), (1, 1))
    assert spread((4,), (4, 6), None) == ((4, 1), (1, 1))
    assert spread((3, 6), (3, 4, 6), None) == ((3, 1, 6), (1, 1, 1))
    assert spread((4, 2), (4, 64), (1, 32)) == ((4, 2), (1, 32))
    assert spread((2, 3), (200, 300), None) == ((2, 3), (128, 128))
    for scale, weight in (((3, 4), (3, 4, 4)), ((2,), (4, 6)), ((3, 1), (200, 300)), ((5, 4, 6), (3, 4, 6))):
        with pytest.raises(InputError):
            spread(scale, weight, None)
