"""Ranks straight from checkpoints made here, against NumPy on the same weights."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from joma.checkpoints.ranks import probe_weights
from joma.core.errors import InputError
from joma.measures.ranks.stable_rank import stable_rank
from joma.models.decoder import Decoder

WIDTH, HIDDEN, HEADS = 8, 20, 2


def llama(layers: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {
        "mlp.gate_proj": (HIDDEN, WIDTH),
        "mlp.up_proj": (HIDDEN, WIDTH),
        "mlp.down_proj": (WIDTH, HIDDEN),
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (4, WIDTH),
        "self_attn.v_proj": (4, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
    }
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=random).to(dtype)
        for layer in range(layers)
        for name, shape in shapes.items()
    }
    return tensors | {"model.embed_tokens.weight": torch.randn(11, WIDTH, generator=random).to(dtype)}


def by_numpy(weight: torch.Tensor, metric: str) -> float:
    values = np.linalg.svd(weight.double().numpy(), compute_uv=False)
    if metric == "stable_rank":
        return float(np.sum(values**2) / values[0] ** 2)
    if metric == "spectral_norm":
        return float(values[0])
    share = values / values.sum()
    return math.exp(-float(np.sum(share * np.log(share))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_statistic_of_every_lower_mlp(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = llama(dtype=dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    table = probe_weights(tmp_path, statistics=("stable_rank", "effective_rank", "spectral_norm"))
    assert len(table) == 2 * 2 * 3
    assert list(table["layer"]) == [0] * 6 + [1] * 6
    assert set(table["matrix"]) == {"lower", "gate"}
    for row in table.itertuples():
        assert row.value == pytest.approx(by_numpy(tensors[row.tensor], row.metric), rel=1e-9)
        assert (row.rows, row.columns) == (HIDDEN, WIDTH)
    assert not table.duplicated(["layer", "matrix", "metric"]).any()


def test_roles_layers_and_certificate(tmp_path: Path) -> None:
    tensors = llama(3)
    save_file(tensors, tmp_path / "model.safetensors")
    table = probe_weights(tmp_path, attention=True, layers=[2], certify=True, rtol=1e-6)
    assert set(table["layer"]) == {2}
    assert list(dict.fromkeys(table["matrix"])) == ["query", "key", "value", "output", "gate", "lower"]
    ranks = table[table["metric"] == "stable_rank"]
    for row in ranks.itertuples():
        truth = by_numpy(tensors[row.tensor], "stable_rank")
        assert row.value - row.error_bound <= truth <= row.value * (1 + 1e-12)
    table = probe_weights(tmp_path, roles=["embedding"])
    assert table["layer"].isna().all()


def test_shards_give_the_same_table(tmp_path: Path) -> None:
    tensors = llama(5)
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    save_file(tensors, tmp_path / "one" / "model.safetensors")
    weight_map = {}
    for number, (name, tensor) in enumerate(tensors.items()):  # one tensor in each
        weight_map[name] = f"model-{number:05d}.safetensors"
        save_file({name: tensor}, tmp_path / "many" / weight_map[name])
    (tmp_path / "many" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    one, many = probe_weights(tmp_path / "one"), probe_weights(tmp_path / "many")
    assert one.equals(many)
    torch.save(tensors, tmp_path / "same.bin")
    assert probe_weights(tmp_path / "same.bin").drop(columns="dtype").equals(one.drop(columns="dtype"))


def test_fused_and_transposed_weights(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    joint = torch.randn(WIDTH, 3 * WIDTH, generator=random)
    lower = torch.randn(WIDTH, HIDDEN, generator=random)
    save_file({"h.0.attn.c_attn.weight": joint, "h.0.mlp.c_fc.weight": lower}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": HEADS}))
    table = probe_weights(tmp_path, attention=True, statistics=["stable_rank"]).set_index("matrix")
    assert (table.loc["lower", "rows"], table.loc["lower", "columns"]) == (HIDDEN, WIDTH)
    for number, role in enumerate(("query", "key", "value")):
        columns = joint[:, number * WIDTH : (number + 1) * WIDTH]
        assert table.loc[role, "value"] == pytest.approx(by_numpy(columns, "stable_rank"), rel=1e-9)


def test_experts_one_by_one(tmp_path: Path) -> None:
    fused = torch.randn(3, 2 * HIDDEN, WIDTH, generator=torch.Generator().manual_seed(2))
    save_file({"model.layers.0.mlp.experts.gate_up_proj": fused}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="whether its 40 or its 8 is the width"):
        probe_weights(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": WIDTH}))
    table = probe_weights(tmp_path, statistics=["stable_rank"])
    assert list(table["expert"]) == ["0", "1", "2", "0", "1", "2"]
    last = table.iloc[-1]
    assert last["value"] == pytest.approx(by_numpy(fused[2, HIDDEN:], "stable_rank"), rel=1e-9)


def test_float8_with_its_block_scales(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(3)
    weight = torch.randn(200, 150, generator=random).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2, generator=random) + 0.1
    full = weight.float() * scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :150]
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({name: weight, f"{name}_scale_inv": scale}, tmp_path / "model.safetensors")
    found = probe_weights(tmp_path, statistics=["stable_rank"])["value"].item()
    assert found == pytest.approx(by_numpy(full, "stable_rank"), rel=1e-9)
    assert found != pytest.approx(by_numpy(weight.float(), "stable_rank"), rel=1e-2)


def test_our_own_decoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Decoder(11, layers=2, width=WIDTH, hidden=HIDDEN, heads=HEADS)
    torch.save(model.state_dict(), tmp_path / "decoder.pt")
    table = probe_weights(tmp_path, attention=True, statistics=["stable_rank"])
    assert list(table[table["matrix"] == "lower"]["value"]) == [
        stable_rank(weight) for weight in model.lower_mlp_weights()
    ]
    assert set(table["matrix"]) == {"lower", "query", "key", "value", "output"}


def test_nothing_is_skipped_in_silence(tmp_path: Path) -> None:
    tensors = llama()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = math.nan
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    message = r"layers\.1\.mlp\.up_proj\.weight \(lower\).*first NaN at row 3, column 4"
    for statistics in (["stable_rank"], ["effective_rank"]):
        with pytest.warns(UserWarning, match=message):
            table = probe_weights(tmp_path, statistics=statistics)
        measured = table[table["metric"] != "omitted"]
        assert set(zip(measured["layer"], measured["matrix"], strict=True)) == {
            (0, "lower"),
            (0, "gate"),
            (1, "gate"),
        }
        with pytest.raises(InputError, match=message):
            probe_weights(tmp_path, statistics=statistics, layers=[1], roles=["lower"])
    tensors["model.layers.1.mlp.up_proj.weight"].zero_()
    save_file(tensors, file)
    table = probe_weights(tmp_path)
    zero = table[table["reason"] == "the matrix is zero"].set_index("metric")["value"]
    assert math.isnan(zero["stable_rank"])
    assert zero["spectral_norm"] == 0.0
    assert len(table) == 8
    assert table["value"].notna().sum() == 7
    assert len(probe_weights(tmp_path, layers=[0])) == 4
    with pytest.raises(InputError, match="no layer 7 with such a matrix; its layers are 0 to 1"):
        probe_weights(tmp_path, layers=[0, 7])
    with pytest.raises(InputError, match="no statistic 'stable'; did you mean 'stable_rank'"):
        probe_weights(tmp_path, statistics=["stable"])
    with pytest.raises(InputError, match="no role 'loewr'; did you mean 'lower'"):
        probe_weights(tmp_path, roles=["loewr"])
    with pytest.raises(InputError, match="give a list of names"):
        probe_weights(tmp_path, roles="lower")
    save_file({"strange.tensor": torch.ones(2, 2)}, file)
    with pytest.raises(InputError, match=r"none of its 1 tensors \('strange.tensor'"):
        probe_weights(tmp_path)
    save_file({"model.layers.0.mlp.up_proj.qweight": torch.ones(2, 2, dtype=torch.int32)}, file)
    with pytest.raises(InputError, match="packed quantised weights"):
        probe_weights(tmp_path)


def test_a_model_in_memory_is_probed_as_its_file_is(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from probe_models import tiny_model

    for family in ("llama", "gpt2"):
        model = tiny_model(family)
        model.save_pretrained(tmp_path / family)
        stored = probe_weights(tmp_path / family, attention=True)
        memory = probe_weights(model, attention=True)
        assert memory["value"].tolist() == stored["value"].tolist()
        assert memory["matrix"].tolist() == stored["matrix"].tolist()
        assert (memory["dtype"] == "F32").all()
    with pytest.raises(InputError, match="Linear: none of its 2 tensors"):
        probe_weights(torch.nn.Linear(3, 3))
    with torch.device("meta"), pytest.raises(InputError, match="without values"):
        probe_weights(tiny_model("llama"))


PEAK = """
import re, sys
from pathlib import Path
import torch
from joma.checkpoints.ranks import probe_weights

def mebibytes(which):
    return int(re.search(rf"^{which}:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.M)[1]) / 1024

torch.set_num_threads(1)
probe_weights(sys.argv[1], layers=[0])
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = mebibytes("VmRSS")
table = probe_weights(sys.argv[1])
print(table["tensor"].nunique(), mebibytes("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)
def test_memory_is_bounded_by_the_largest_tensor_of_a_hundred_shards(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    places = {}
    for number in range(100):
        file, name = (
            f"model-{number + 1:05d}-of-00100.safetensors",
            f"model.layers.{number}.mlp.up_proj.weight",
        )
        save_file({name: torch.randn(1024, 1024, generator=random)}, tmp_path / file)  # 4 MiB
        places[name] = file
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], check=True, capture_output=True, text=True
    )
    number, growth = done.stdout.split()
    assert int(number) == 100
    # The tensor, its float64 copy by blocks, the bases of the iteration: not the 400 MiB of all.
    assert float(growth) < 4 * 4
