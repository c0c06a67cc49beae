"""Stable ranks at a slower cadence, and what is left out where weights are sharded."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from joma.core.errors import InputError
from joma.instruments.monitor.measuring.rows import gradient_norm
from joma.instruments.monitor.measuring.weights import stable_ranks, why_sharded
from joma.instruments.monitor.monitor import Monitor

transformers = pytest.importorskip("transformers")


def llama(key_heads: int = 4) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def by_svd(weight: Tensor) -> float:
    values = torch.linalg.svdvals(weight.detach().double())
    return float(values.square().sum() / values[0] ** 2)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_ranks_are_those_of_the_matrices(key_heads: int) -> None:
    model = llama(key_heads)
    table = stable_ranks(model, 7).set_index(["layer", "module"])
    assert set(table["step"]) == {7}
    assert len(table) == 4
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        product = sum(
            attention.q_proj.weight[4 * head : 4 * head + 4].T
            @ attention.k_proj.weight[4 * (head * key_heads // 4) :][:4]
            for head in range(4)
        )
        assert table.loc[(number, "query_key"), "value"] == pytest.approx(by_svd(product), rel=2e-3)
        lower = by_svd(layer.mlp.up_proj.weight)
        assert table.loc[(number, "lower"), "value"] == pytest.approx(lower, rel=2e-3)


def test_a_matrix_that_is_broken_has_no_rank() -> None:
    model = llama()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 3] = torch.nan
        model.model.layers[1].mlp.up_proj.weight.zero_()
    table = stable_ranks(model, 0)
    assert table[table["module"] == "lower"]["value"].isna().all()
    assert table[table["module"] == "query_key"]["value"].notna().all()


def test_they_are_read_at_every_so_manieth_look_and_logged() -> None:
    model, told = llama(), []
    with Monitor(
        model, every=2, ranks_every=3, log=lambda step, numbers: told.append(dict(numbers))
    ) as monitor:
        for step in range(9):
            loss = model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss
            monitor.step(step, loss=loss.detach())
    table = monitor.table()
    assert sorted(table[table["metric"] == "stable_rank"]["step"].unique()) == [0, 6]
    assert {"joma/stable_rank/lower/layer1", "joma/stable_rank/query_key/layer0"} <= told[0].keys()
    assert not any("stable_rank" in name for name in told[1])
    with Monitor(llama(), every=1, ranks_every=None) as monitor:
        monitor.step(0)
    assert "stable_rank" not in set(monitor.table()["metric"])
    with pytest.raises(InputError, match="ranks_every"):
        Monitor(llama(), ranks_every=0)


def test_sharded_weights_are_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = llama()
        name, weight = next(iter(model.named_parameters()))
        module = model.get_submodule(name.rpartition(".")[0])
        module.weight = nn.Parameter(distribute_tensor(weight.detach(), mesh))
        module.weight.grad = distribute_tensor(torch.ones_like(weight), mesh)
        assert "DTensor" in why_sharded(model)
        assert gradient_norm(model) is None
        with (
            caplog.at_level(logging.WARNING, logger="joma"),
            Monitor(model, every=1, ranks_every=1) as monitor,
        ):
            monitor.step(0, loss=1.0, grad_norm=2.0)
            monitor.step(1, loss=1.0)
    finally:
        dist.destroy_process_group()
    lines = [record.getMessage() for record in caplog.records if "sharded" in record.getMessage()]
    assert len(lines) == 1
    assert "DTensor, as FSDP2 makes them" in lines[0]
    table = monitor.table()
    assert table[table["metric"] == "gradient_norm"]["step"].tolist() == [0]
    assert np.allclose(table[table["metric"] == "loss"]["value"], 1.0)


def test_partitioned_by_zero() -> None:
    model = llama()
    assert why_sharded(model) == ""
    next(model.parameters()).ds_id = 0
    assert "partitioned by ZeRO" in why_sharded(model)
