"""Megatron's ``torch_dist``: layers along the first axis, fused matrices, and what its arguments say."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_files import rank_of, ranks, values
from joma.checkpoints.checkpoint import open_checkpoint
from joma.core.errors import InputError

WIDTH, HEADS, GROUPS, HEAD, UNITS, LAYERS = 16, 4, 2, 6, 20, 3
ARGUMENTS = argparse.Namespace(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_query_groups=GROUPS,
    group_query_attention=True,
    kv_channels=HEAD,
    num_layers=LAYERS,
    ffn_hidden_size=UNITS,
    num_experts=None,
    swiglu=True,
    save=Path("/where/it/was"),
)


def parts() -> dict[str, Tensor]:
    """The matrices as a model without fusion has them, (layers, rows, columns)."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "q": (HEADS * HEAD, WIDTH),
        "k": (GROUPS * HEAD, WIDTH),
        "v": (GROUPS * HEAD, WIDTH),
        "gate": (UNITS, WIDTH),
        "up": (UNITS, WIDTH),
        "down": (WIDTH, UNITS),
        "o": (WIDTH, HEADS * HEAD),
    }
    return {name: torch.randn(LAYERS, *shape, generator=generator) for name, shape in shapes.items()}


def fused(p: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same as Megatron has them."""
    per = HEADS // GROUPS * HEAD
    qkv = [
        torch.cat(
            [p["q"][:, g * per : (g + 1) * per], *(p[x][:, g * HEAD : (g + 1) * HEAD] for x in "kv")], 1
        )
        for g in range(GROUPS)
    ]
    return {
        "self_attention.linear_qkv.weight": torch.cat(qkv, 1),
        "self_attention.linear_proj.weight": p["o"],
        "mlp.linear_fc1.weight": torch.cat([p["gate"], p["up"]], 1),
        "mlp.linear_fc2.weight": p["down"],
        "mlp.linear_fc1.layer_norm_weight": torch.ones(LAYERS, WIDTH),
    }


def write(
    folder: Path, tensors: Mapping[str, Tensor], *, backend: str = "torch_dist", args: object = None
) -> Path:
    folder.mkdir(parents=True)
    state = {
        "embedding.word_embeddings.weight": torch.ones(11, WIDTH),
        "output_layer.weight": torch.eye(11, WIDTH),
        **{f"decoder.layers.{name}": tensor for name, tensor in tensors.items()},
        **{f"optimizer.state.exp_avg.decoder.layers.{name}": t for name, t in tensors.items()},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    told = {"sharded_backend": backend, "sharded_backend_version": 1, "common_backend": "torch"}
    (folder / "metadata.json").write_text(json.dumps(told))
    torch.save({"args": args or ARGUMENTS, "iteration": 30, "checkpoint_version": 3.0}, folder / "common.pt")
    return folder


def test_layers_and_fused_matrices_are_taken_apart(tmp_path: Path) -> None:
    own = parts()
    folder = write(tmp_path / "iter_0000030", fused(own))
    table = ranks(folder, roles=("lower", "gate", "upper", "query", "key", "value", "output", "unembedding"))
    for role, name in (
        *(("query", "q"), ("key", "k"), ("value", "v"), ("gate", "gate"), ("lower", "up")),
        *(("upper", "down"), ("output", "o")),
    ):
        expected = [rank_of(own[name][layer]) for layer in range(LAYERS)]
        assert values(table, matrix=role) == pytest.approx(expected, rel=1e-5), role
    assert values(table, matrix="unembedding") == pytest.approx([11.0])


def test_the_same_numbers_as_of_one_file(tmp_path: Path) -> None:
    tensors = fused(parts())
    folder = write(tmp_path / "iter_0000030", tensors)
    (tmp_path / "whole").mkdir()
    single = {
        f"decoder.layers.{i}.{name}": t[i].clone() for name, t in tensors.items() for i in range(LAYERS)
    }
    single["embedding.word_embeddings.weight"] = torch.ones(11, WIDTH)
    single["output_layer.weight"] = torch.eye(11, WIDTH)
    save_file(single, tmp_path / "whole" / "model.safetensors")
    sizes = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD,
    }
    (tmp_path / "whole" / "config.json").write_text(json.dumps(sizes))
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.entries) == set(single)
    assert all(torch.equal(checkpoint.read(name), tensor) for name, tensor in single.items())
    gathered, whole = (ranks(path, attention=True) for path in (folder, tmp_path / "whole"))
    assert gathered[gathered["metric"] != "omitted"].equals(whole[whole["metric"] != "omitted"])


def test_halves_that_lie_apart_and_layers_by_number(tmp_path: Path) -> None:
    own = parts()
    tensors = fused(own)
    both = tensors.pop("mlp.linear_fc1.weight")
    tensors |= {"mlp.linear_fc1.weight_w": own["gate"], "mlp.linear_fc1.weight_v": own["up"]}
    checkpoint = open_checkpoint(write(tmp_path / "apart", tensors))
    name = "decoder.layers.1.mlp.linear_fc1.weight"
    assert torch.equal(checkpoint.read(name), both[1])
    assert not any(entry.endswith(("_w", "_v")) for entry in checkpoint.entries)
    numbered = {f"{i}.{key}": t[i].clone() for key, t in fused(own).items() for i in range(LAYERS)}
    checkpoint = open_checkpoint(write(tmp_path / "numbered", numbered))
    assert torch.equal(checkpoint.read(name), both[1])


def test_only_one_layer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "saved", fused(parts())))
    sizes: list[int] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **o: (t := empty(*a, **o), sizes.append(t.nbytes))[0])
    checkpoint.read("decoder.layers.2.mlp.linear_fc2.weight")
    assert max(sizes) == 4 * UNITS * WIDTH


def test_without_arguments_what_is_interleaved_stays_whole(tmp_path: Path) -> None:
    folder = write(tmp_path / "saved", fused(parts()), args=argparse.Namespace())
    table = ranks(folder, attention=True)
    assert len(values(table, matrix="query_key_value")) == LAYERS
    assert not values(table, matrix="query")


def test_other_backends_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "saved", fused(parts()), backend="zarr")
    with pytest.raises(InputError, match=r"of the kind 'zarr', and joma reads 'torch_dist'; .*--ckpt-format"):
        open_checkpoint(folder)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


def test_common_states_that_would_run_code_are_refused_unread(tmp_path: Path) -> None:
    folder = write(tmp_path / "saved", fused(parts()), args=Hostile(tmp_path / "was-run"))
    with pytest.raises(InputError, match="would run code when it is unpickled"):
        open_checkpoint(folder)
    assert not (tmp_path / "was-run").exists()
