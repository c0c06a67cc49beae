"""Weights as their models use them: masks, normalisations, adapters, quantised and offloaded modules."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from checkpoint_files import UP, near, rank_of, ranks, values, write
from joma.checkpoints.in_memory import weights_of
from joma.core.errors import InputError

RANDOM = torch.Generator().manual_seed(0)


class Layer(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(columns, rows, bias=False)
        self.up_proj.weight.data.normal_(generator=RANDOM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up_proj(x)


class Small(nn.Module):
    """Two layers of one matrix each."""

    def __init__(self, rows: int = 6, columns: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(rows, columns) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in self.layers]

    def first(self) -> nn.Linear:
        found = self.layers[0].up_proj
        assert isinstance(found, nn.Linear)
        return found


REPARAMETRISED = {
    "pruned": lambda linear: prune.random_unstructured(linear, "weight", amount=0.4),
    "weight norm": lambda linear: parametrizations.weight_norm(linear),
    "weight norm of columns": lambda linear: parametrizations.weight_norm(linear, dim=1),
    "old weight norm": lambda linear: weight_norm(linear),
    "spectral norm": lambda linear: parametrizations.spectral_norm(linear),
    "old spectral norm": lambda linear: spectral_norm(linear),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", REPARAMETRISED)
def test_reparametrised_weights_in_a_file_and_in_memory(tmp_path: Path, kind: str) -> None:
    model = Small()
    REPARAMETRISED[kind](model.first())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("_g", "original0")):
                parameter.mul_(torch.rand(parameter.shape, generator=RANDOM) + 0.5)
    model.eval()
    model(torch.eye(4))  # hooks of the old kind compute the weight in the forward pass
    truth = near(rank_of(model.first().weight.detach()))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    assert values(ranks(model), layer=0) == truth
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    table = ranks(write(tmp_path, model.state_dict()))
    assert values(table, layer=0) == truth
    assert len(values(table, layer=1)) == 1


@pytest.mark.parametrize("part", ["weight_orig", "parametrizations.weight.original", "weight_g"])
def test_a_part_without_the_rest_is_named(tmp_path: Path, part: str) -> None:
    table = ranks(
        write(tmp_path, {f"{UP}.weight": torch.eye(4), f"model.layers.1.mlp.up_proj.{part}": torch.eye(4)})
    )
    (left,) = table[table["metric"] == "omitted"].itertuples()
    assert left.layer == 1
    assert part in left.reason


@pytest.mark.parametrize(
    "where", ["mlp.up_proj.base_layer", "mlp.up_proj._orig_mod", "mlp._fsdp_wrapped_module.up_proj"]
)
def test_wrapped_weights_are_measured(tmp_path: Path, where: str) -> None:
    tensors = {f"{UP}.weight": torch.eye(8), f"model.layers.1.{where}.weight": torch.eye(8)}
    assert values(ranks(write(tmp_path, tensors))) == near(8.0, 8.0)


@pytest.mark.parametrize("other", ["mlp.unheard_of", "somewhere.else", "mlp.lora_A"])
def test_what_has_no_role_is_named_in_rows_and_a_warning(tmp_path: Path, other: str) -> None:
    from joma.checkpoints.ranks import probe_weights

    name = f"model.layers.1.{other}.weight"
    folder = write(
        tmp_path, {f"{UP}.weight": torch.eye(20), name: torch.eye(8), "tiny.thing": torch.ones(2, 2)}
    )
    with pytest.warns(UserWarning, match=f"left out: {name}"):
        table = probe_weights(folder)
    (left,) = table[table["metric"] == "omitted"].itertuples()
    assert (left.matrix, left.tensor) == (name, "")
    assert left.value == pytest.approx(64 / 468)


def test_empty_tensors_say_who_gathers_them(tmp_path: Path) -> None:
    for empty in (torch.empty(0), torch.empty(0, 4)):
        with pytest.raises(InputError, match=r"fc1.*ZeRO"):
            ranks(write(tmp_path, {"model.decoder.layers.0.fc1.weight": empty}))
        table = ranks(write(tmp_path, {"layers.0.fc1.weight": empty, "layers.1.fc1.weight": torch.eye(4)}))
        assert values(table, "omitted", layer=0) == [0.0]
        assert values(table) == [4.0]


def adapter(folder: Path, base: Path, tensors: dict[str, torch.Tensor], **settings: object) -> Path:
    folder.mkdir(exist_ok=True)
    named = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "base_model_name_or_path": str(base)} | settings
    (folder / "adapter_config.json").write_text(json.dumps(named))
    save_file(
        {f"base_model.model.{k}": v.clone() for k, v in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def test_adapters_on_disk(tmp_path: Path) -> None:
    weight = torch.randn(6, 4, generator=RANDOM)
    other = torch.randn(6, 4, generator=RANDOM)
    down, up = torch.randn(3, 4, generator=RANDOM), torch.randn(6, 3, generator=RANDOM)
    base = write(tmp_path / "base", {f"{UP}.weight": weight, "model.layers.1.mlp.up_proj.weight": other})
    factors = {f"{UP}.lora_A.weight": down, f"{UP}.lora_B.weight": up}
    for settings, scale in (
        ({"r": 3, "lora_alpha": 12}, 4.0),
        ({"r": 3, "lora_alpha": 12, "use_rslora": True}, 12 / math.sqrt(3)),
        ({"r": 8, "lora_alpha": 1, "rank_pattern": {"up_proj": 3}, "alpha_pattern": {"mlp.up_proj": 6}}, 2.0),
    ):
        folder = adapter(tmp_path / "adapter", base, factors, **settings)
        table = ranks(folder)
        assert values(table, layer=0) == near(rank_of(weight + scale * up @ down))
        assert values(table, layer=1) == near(rank_of(other))
        assert f"{UP}.weight" in set(table["tensor"])
        alone = ranks(folder, adapter="alone")
        assert values(alone) == near(rank_of(up @ down))
        assert values(alone, "spectral_norm") == pytest.approx(
            [scale * float(torch.linalg.matrix_norm(up @ down, 2))], rel=1e-5
        )
    with pytest.raises(InputError, match="do not tell the scale"):
        ranks(adapter(tmp_path / "adapter", base, factors, r=5))
    with pytest.raises(InputError, match="kind that is not read"):
        ranks(adapter(tmp_path / "adapter", base, factors, peft_type="IA3"))
    with pytest.raises(InputError, match="base model 'nobody/nothing' is not here"):
        ranks(adapter(tmp_path / "adapter", Path("nobody/nothing"), factors))
    strange = factors | {f"{UP}.lora_magnitude_vector": torch.ones(6)}
    table = ranks(adapter(tmp_path / "adapter", base, strange, r=3))
    assert "is not understood" in table[table["metric"] == "omitted"]["reason"].item()
    assert values(table) == near(rank_of(other))


def test_adapters_in_memory(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = Small(2, 2)
    model.first().weight.data = torch.diag(torch.tensor([2.0, 1.0]))
    base = write(tmp_path / "base", model.state_dict())
    settings = peft.LoraConfig(
        r=1, lora_alpha=2, target_modules=["layers.0.up_proj"], base_model_name_or_path=str(base)
    )
    adapted = peft.get_peft_model(model, settings)
    layer = adapted.base_model.model.layers[0].up_proj
    layer.lora_A["default"].weight.data = torch.tensor([[0.0, 1.0]])
    layer.lora_B["default"].weight.data = torch.tensor([[0.0], [1.0]])
    assert values(ranks(adapted), layer=0) == near(13 / 9)  # [[2, 0], [0, 3]]
    assert len(values(ranks(adapted))) == 2
    adapted.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    saved["base_model_name_or_path"] = str(base)
    (tmp_path / "saved" / "adapter_config.json").write_text(json.dumps(saved))
    assert values(ranks(tmp_path / "saved"), layer=0) == near(13 / 9)
    with adapted.disable_adapter():
        assert values(ranks(adapted), layer=0) == near(5 / 4)
    adapted.merge_adapter()
    assert values(ranks(adapted), layer=0) == near(13 / 9)


def test_quantised_modules_of_torchao() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = Small(64, 32)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    weight = model.first().weight
    assert values(ranks(model), layer=0) == near(rank_of(weight.dequantize()))


def test_offloaded_modules() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = Small()
    truth = [rank_of(layer.up_proj.weight.detach()) for layer in model.layers]
    accelerate.cpu_offload(model, execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert values(ranks(model)) == near(*truth)


def test_tensors_over_a_mesh(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        model = Small()
        truth = rank_of(model.first().weight.detach())
        mesh = init_device_mesh("cpu", (1,))
        model.first().weight = nn.Parameter(distribute_tensor(model.first().weight.data, mesh, [Shard(0)]))
        assert values(ranks(model), layer=0) == near(truth)
    finally:
        dist.destroy_process_group()


def test_tied_matrices_are_measured_when_they_are_asked_for() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    assert values(ranks(model, roles=["unembedding"])) == near(rank_of(model.lm_head.weight.detach()))
    assert "lm_head.weight" not in weights_of(model).weights
