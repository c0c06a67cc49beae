"""Writes checkpoints of many processes by the libraries that save them, each with the same weights beside it.

``python tests/format_writers.py KIND FOLDER`` runs in an environment with that library and without joma: two
processes of gloo write FOLDER/saved, and FOLDER/whole.safetensors are the weights in one file.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

RANKS = 2
WIDTH, HIDDEN, LAYERS, VOCABULARY = 24, 40, 2, 50


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return out


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(), _Mlp()
        self.ffn_norm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        own = self.attention
        mixed = own.wo(own.wq(x).softmax(-1) * own.wk(x).sigmoid() * own.wv(x))
        out: Tensor = x + mixed + self.feed_forward(self.ffn_norm(x))
        return out


class Decoder(nn.Module):
    """The names of torchtitan's Llama; sides that two ranks do not share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY + 1, WIDTH)
        self.layers = nn.ModuleDict({str(i): _Block() for i in range(LAYERS)})
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY + 1, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, (batch, positions, vocabulary)."""
        x = self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x)
        out: Tensor = self.output(self.norm(x))
        return out


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    """A few steps on random tokens."""
    for step in range(steps):
        tokens = torch.randint(VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(step))
        loss = model(tokens).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def save_whole(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """The weights in one file."""
    plain = {
        name: (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone().contiguous()
        for name, one in tensors.items()
    }
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        save_file(plain, folder / "whole.safetensors")


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Decoder()
    mesh = distributed.init_device_mesh("cpu", (RANKS,))
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer)
    return model, optimizer


def write_torchtitan(folder: Path) -> None:
    """FSDP2: the model's keys at the top, the optimizer's under their own."""
    model, optimizer = _trained()
    state = get_model_state_dict(model)
    optimizers = get_optimizer_state_dict(model, optimizer)
    dcp.save({**state, "optimizer": optimizers, "train_state": {"step": 2}}, checkpoint_id=folder / "saved")
    save_whole(folder, state)


def write_accelerate(folder: Path) -> None:
    """FSDP2 through accelerate's folders: one for the model, one for the optimizer."""
    model, optimizer = _trained()
    state = get_model_state_dict(model)
    saved = folder / "saved"
    dcp.save({"model": state}, checkpoint_id=saved / "pytorch_model_fsdp_0")
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=saved / "optimizer_0")
    save_whole(folder, state)


def write_mesh(folder: Path) -> None:
    """Matrices cut along both axes: rows over one rank group, columns over the other."""
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    mesh = distributed.init_device_mesh("cpu", (RANKS,))
    whole = {name: one.detach() for name, one in Decoder().named_parameters()}
    state = {
        name: distribute_tensor(one, mesh, [Shard(number % one.ndim)])
        for number, (name, one) in enumerate(whole.items())
    }
    dcp.save({"model": state}, checkpoint_id=folder / "saved" / "model_and_optim")
    save_whole(folder, whole)


def write_fsdp1(folder: Path) -> None:
    """FSDP's first version, with its sharded state."""
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    torch.manual_seed(0)
    whole = {name: one.detach().clone() for name, one in Decoder().state_dict().items()}
    torch.manual_seed(0)
    model = FullyShardedDataParallel(Decoder(), device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "saved")
    save_whole(folder, whole)


def _write_deepspeed(folder: Path, stage: int, dtype: str = "bf16", *, universal: bool = False) -> None:
    """DeepSpeed's engine after two steps; its own tool gathers what is beside (stages 1, 2: the module).

    Its communication through shared memory would be compiled first and is left out.
    """
    import deepspeed
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    backend = importlib.import_module("deepspeed.comm.torch")  # the package's attribute is PyTorch itself
    backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = Decoder()
    model.layers["0"].attention.wo.weight.requires_grad_(False)
    decay = [p for p in model.parameters() if p.ndim > 1 and p.requires_grad]
    plain = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        dtype: {"enabled": dtype != "fp32"},
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=config
    )
    for step in range(2):
        tokens = torch.randint(VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(step))
        engine.backward(engine(tokens).logsumexp(-1).float().mean())
        engine.step()
    saved = folder / ("trained" if universal else "saved")
    engine.save_checkpoint(str(saved))
    distributed.barrier()
    if universal and distributed.get_rank() == 0:
        _convert_to_universal(saved, folder / "saved")
    whole = {} if stage == 3 else dict(engine.module.state_dict())
    if universal:  # in float32, also what is not trained, which the tool of stages 1 and 2 leaves out
        whole = {name: one.float() for name, one in whole.items()}
    if universal or stage == 3:
        whole |= get_fp32_state_dict_from_zero_checkpoint(str(saved))
    save_whole(folder, whole)
    distributed.barrier()
    if universal and distributed.get_rank() == 0:
        shutil.rmtree(saved)


def _convert_to_universal(trained: Path, folder: Path) -> None:
    """DeepSpeed's own conversion of the only step, in this process."""
    from deepspeed.checkpoint.ds_to_universal import main

    (step,) = (one for one in trained.iterdir() if one.is_dir())
    main(
        Namespace(
            input_folder=str(step),
            output_folder=str(folder / f"{step.name}_universal"),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


def write_deepspeed_1(folder: Path) -> None:
    """ZeRO stage 1 in bfloat16."""
    _write_deepspeed(folder, 1)


def write_deepspeed_2(folder: Path) -> None:
    """ZeRO stage 2 in float32."""
    _write_deepspeed(folder, 2, "fp32")


def write_deepspeed_3(folder: Path) -> None:
    """ZeRO stage 3 in bfloat16: the weights lie in pieces among the optimizer's state."""
    _write_deepspeed(folder, 3)


def write_deepspeed_universal(folder: Path) -> None:
    """A universal folder of ZeRO stage 1: each parameter with its shape, and what is not trained beside."""
    _write_deepspeed(folder, 1, universal=True)


def write_deepspeed_universal_3(folder: Path) -> None:
    """A universal folder of ZeRO stage 3: parameters lie flat, and what is not trained in pieces."""
    _write_deepspeed(folder, 3, universal=True)


def write_megatron(folder: Path) -> None:
    """Megatron-core's GPT, cut over two tensor-parallel ranks; its saver's two calls of CUDA do nothing."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    sizes = {
        "num_layers": LAYERS,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "kv_channels": 8,
        "ffn_hidden_size": 48,
    }
    settings = TransformerConfig(
        **sizes,
        tensor_model_parallel_size=RANKS,
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.float32,
    )
    model = GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=64,
        max_sequence_length=16,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    generator = torch.Generator().manual_seed(distributed.get_rank())
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
    kind = {"non_homogeneous_layers": False}
    state = model.sharded_state_dict(metadata=kind)
    (folder / "saved").mkdir(exist_ok=True)
    distributed.barrier()
    common = {"args": Namespace(**sizes, group_query_attention=True, swiglu=True), "iteration": 2}
    dist_checkpointing.save({**state, **common}, str(folder / "saved"), content_metadata=kind)
    _save_joined(folder, model)


def _save_joined(folder: Path, model: nn.Module) -> None:
    """What the tensor-parallel ranks hold, joined by what each matrix is: whole rows, or whole columns."""
    whole = {}
    for name, parameter in model.named_parameters():
        parts = [torch.empty_like(parameter) for _ in range(RANKS)]
        distributed.all_gather(parts, parameter.detach())
        if "linear_fc1" in name and parameter.ndim == 2:  # of each rank its gate, then its lower matrix
            whole[name] = torch.cat([half for which in (0, 1) for half in (p.chunk(2)[which] for p in parts)])
        elif parameter.ndim < 2:
            whole[name] = parts[0]
        else:
            whole[name] = torch.cat(
                parts, 1 if name.endswith(("linear_proj.weight", "linear_fc2.weight")) else 0
            )
    save_whole(folder, {_saved_name(name): tensor for name, tensor in whole.items()})


def _saved_name(name: str) -> str:
    """Megatron saves a norm under the matrix that reads it, as the fused layers have it."""
    name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    return name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")


WRITERS: dict[str, Callable[[Path], None]] = {
    "torchtitan": write_torchtitan,
    "accelerate": write_accelerate,
    "mesh": write_mesh,
    "fsdp1": write_fsdp1,
    "deepspeed_1": write_deepspeed_1,
    "deepspeed_2": write_deepspeed_2,
    "deepspeed_3": write_deepspeed_3,
    "deepspeed_universal": write_deepspeed_universal,
    "deepspeed_universal_3": write_deepspeed_universal_3,
    "megatron": write_megatron,
}


def _write(rank: int, kind: str, folder: str, meeting: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "DS_ACCELERATOR": "cpu",
    }
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    try:
        WRITERS[kind](Path(folder))
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def write(kind: str, folder: Path) -> None:
    """Write one kind by two processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(_write, (kind, str(folder), f"{place}/meeting"), nprocs=RANKS)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
