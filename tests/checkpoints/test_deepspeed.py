"""Folders of DeepSpeed: whole weights, pieces of ranks, universal ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_files import ranks, values
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.series.sources.find import find_series
from joma.core.errors import InputError

LAYER = "layers.{}.mlp.{}.weight"


def decoder(seed: int = 0) -> dict[str, Tensor]:
    """Sides that no number of ranks divides."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"gate_proj": (7, 5), "up_proj": (7, 5), "down_proj": (5, 7)}
    weights = {
        LAYER.format(i, w): torch.randn(shape, generator=generator)
        for i in range(2)
        for w, shape in shapes.items()
    }
    return weights | {"norm.weight": torch.randn(5, generator=generator)}


def split(tensor: Tensor, count: int) -> list[Tensor]:
    """Equal pieces, the last one padded with what must never be read."""
    each = math.ceil(tensor.numel() / count)
    padded = torch.full((each * count,), 1e9, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    return list(padded.split(each))


def write_stage_3(
    folder: Path, weights: Mapping[str, Tensor], count: int = 3, frozen: Mapping[str, Tensor] | None = None
) -> Path:
    """As the engine's ``save_checkpoint``: two groups of parameters, cut into sub-groups of two."""
    step = folder / "global_step10"
    step.mkdir(parents=True)
    (folder / "latest").write_text("global_step10")
    names = list(weights)
    shapes = [{n: weights[n].shape for n in names[:-1]}, {names[-1]: weights[names[-1]].shape}]
    pieces = {name: split(tensor, count) for name, tensor in weights.items()}
    kept = {name: split(tensor, count) for name, tensor in (frozen or {}).items()}
    for rank in range(count):
        flat = [torch.cat([pieces[n][rank] for n in names[i : i + 2]]) for i in range(0, len(names), 2)]
        model = {
            "module": {name: torch.empty(0) for name in names} | {"steps": torch.tensor([3])},
            "buffer_names": ["steps"],
            "param_shapes": shapes,
            "frozen_param_shapes": {name: tensor.shape for name, tensor in (frozen or {}).items()},
            "frozen_param_fragments": {name: own[rank] for name, own in kept.items()},
            "global_steps": 10,
        }
        states = {"zero_stage": 3, "partition_count": count, "fp32_flat_groups": flat}
        torch.save(model, step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": states}, step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


def assert_same(folder: Path, weights: Mapping[str, Tensor]) -> None:
    checkpoint = open_checkpoint(folder)
    for name, tensor in weights.items():
        assert torch.equal(checkpoint.read(name), tensor), name
        assert checkpoint.read(name).dtype == tensor.dtype
    assert set(checkpoint.entries) <= set(weights) | {"steps"}


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_pieces_of_stage_3(count: int, tmp_path: Path) -> None:
    weights = decoder()
    frozen = {"embed_tokens.weight": torch.arange(55.0).reshape(11, 5).bfloat16()}
    folder = write_stage_3(tmp_path / "saved", weights, count, frozen)
    assert_same(folder, weights | frozen)
    assert_same(folder / "global_step10", weights | frozen)
    save_file(weights | frozen | {"steps": torch.tensor([3])}, tmp_path / "whole.safetensors")
    assert ranks(folder).equals(ranks(tmp_path / "whole.safetensors"))


@pytest.mark.parametrize("stage", [1, 2])
def test_the_whole_weights_of_stages_1_and_2(stage: int, tmp_path: Path) -> None:
    step = tmp_path / "global_step10"
    step.mkdir()
    (tmp_path / "latest").write_text("global_step10\n")
    weights = {name: tensor.bfloat16() for name, tensor in decoder().items()}
    torch.save(
        {"module": weights, "param_shapes": [], "frozen_param_fragments": dict(weights), "global_steps": 10},
        step / "mp_rank_00_model_states.pt",
    )
    for rank in range(2):
        partitions = {"zero_stage": stage, "single_partition_of_fp32_groups": [torch.ones(9)]}
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": partitions}, step / name)
    assert_same(tmp_path, weights)
    assert_same(step, weights)
    assert not open_checkpoint(tmp_path).asides


@pytest.mark.parametrize("flat", [False, True])
def test_a_universal_folder(flat: bool, tmp_path: Path) -> None:
    weights = decoder()
    step = tmp_path / "global_step10_universal"
    for name, tensor in weights.items():
        (step / "zero" / name).mkdir(parents=True)
        padded = torch.cat([tensor.reshape(-1), torch.full((3,), 1e9)])
        content = padded if flat else {"param": tensor, "cat_dim": 0}
        torch.save(content, step / "zero" / name / "fp32.pt")
        torch.save(torch.ones(3), step / "zero" / name / "exp_avg.pt")
    frozen = {"embed_tokens.weight": torch.ones(11, 5).bfloat16()}
    state = {"module": {LAYER.format(0, "up_proj"): torch.zeros(7, 5).bfloat16(), **frozen}}
    state["param_shapes"] = [{name: tensor.shape for name, tensor in weights.items()}]  # type: ignore[assignment]
    torch.save(state, step / "mp_rank_00_model_states.pt")
    assert_same(step, weights | frozen)
    (tmp_path / "latest_universal").write_text(step.name)
    assert_same(tmp_path, weights | frozen)


def test_a_series_of_training_checkpoints(tmp_path: Path) -> None:
    for number in (10, 20):
        write_stage_3(tmp_path / f"checkpoint-{number}", decoder(number), 2)
    series = find_series([str(tmp_path)])
    assert [member.place.step for member in series.members] == [10, 20]
    assert not series.identical(series.members)
    assert_same(series.bring(series.members[1], None, tmp_path), decoder(20))


STEP = "global_step10"
RANK = "zero_pp_rank_{}_mp_rank_00_{}_states.pt"


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    folder = write_stage_3(tmp_path, decoder())
    (folder / STEP / RANK.format(1, "optim")).rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"lacks the optim states of rank 1 \(1 of 3 ranks\)"):
        open_checkpoint(folder)
    (tmp_path / "away").rename(folder / STEP / RANK.format(1, "optim"))
    for kind in ("optim", "model"):
        (folder / STEP / RANK.format(2, kind)).unlink()
    with pytest.raises(InputError, match="was saved by 3 ranks, and the optimizer's states of 2 are there"):
        open_checkpoint(folder)
    (folder / STEP / RANK.format(0, "model")).unlink()
    with pytest.raises(InputError, match="lacks the model's states of rank 0"):
        open_checkpoint(folder)


def test_states_that_do_not_fit_together(tmp_path: Path) -> None:
    folder = write_stage_3(tmp_path / "a", decoder(), 2)
    weights = decoder()
    weights["norm.weight"] = torch.ones(50)
    other = write_stage_3(tmp_path / "b", weights, 2)
    for rank in range(2):
        name = RANK.format(rank, "model")
        (folder / STEP / name).write_bytes((other / STEP / name).read_bytes())
    with pytest.raises(InputError, match=r"of shape \(50,\) has \d+ entries"):
        open_checkpoint(folder)
    for rank in range(2):
        name = RANK.format(rank, "model")
        (other / STEP / name).write_bytes(b"")
        write = write_stage_3(tmp_path / f"c{rank}", decoder(), 2)
        (other / STEP / name).write_bytes((write / STEP / name).read_bytes())
    with pytest.raises(InputError, match="are not of one checkpoint"):
        open_checkpoint(other)


def test_which_of_several_steps(tmp_path: Path) -> None:
    folder = write_stage_3(tmp_path, decoder())
    (folder / STEP).rename(folder / "global_step20")
    write_stage_3(tmp_path, decoder(1))
    assert_same(folder, decoder(1))
    (folder / "latest").unlink()
    with pytest.raises(
        InputError, match=r"several checkpoints of DeepSpeed, global_step10 and global_step20"
    ):
        open_checkpoint(folder)
    for lie in ("../elsewhere", "global_step30", "/etc", "\0"):
        (folder / "latest").write_text(lie)
        with pytest.raises(InputError, match=r"names .* which is no checkpoint beside it"):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"], "cut over 2 tensor-parallel ranks"),
        ([RANK.format(0, "model"), "zero_pp_rank_0_mp_rank_01_model_states.pt"], "ds_to_universal"),
        (["layer_00-model_states.pt", "mp_rank_00_model_states.pt"], "saved by a pipeline"),
        (["layer_00-model_00-model_states.pt"], "saved by a pipeline"),
        (
            ["layer_0_expert_3_mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt"],
            "experts in files of their own",
        ),
    ],
)
def test_what_is_named_with_its_tool(names: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / STEP).mkdir()
    for name in names:
        torch.save({"module": {}}, tmp_path / STEP / name)
    for folder in (tmp_path, tmp_path / STEP):
        with pytest.raises(InputError, match=words):
            open_checkpoint(folder)


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("kind", ["model", "optim"])
def test_a_rank_that_would_run_code_is_refused_unread(kind: str, tmp_path: Path) -> None:
    folder = write_stage_3(tmp_path, decoder())
    torch.save({"module": Hostile(tmp_path / "was-run")}, folder / STEP / RANK.format(0, kind))
    with pytest.raises(InputError, match="would run code when it is unpickled"):
        open_checkpoint(folder)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("shape", [(-1, 5), (2**40, 2**40), "wide", (7.0, 5)])
def test_shapes_that_are_none(shape: object, tmp_path: Path) -> None:
    folder = write_stage_3(tmp_path, decoder(), 1)
    file = folder / STEP / RANK.format(0, "model")
    state = torch.load(file, weights_only=False)
    state["param_shapes"][0][LAYER.format(0, "up_proj")] = shape
    torch.save(state, file)
    with pytest.raises(InputError, match=r"the shape of .*up_proj.* is none|of shape .* has"):
        open_checkpoint(folder)


def test_a_folder_of_the_trainer_takes_its_gathered_weights(tmp_path: Path) -> None:
    folder = write_stage_3(tmp_path, decoder())
    save_file(decoder(1), folder / "model.safetensors")
    assert values(ranks(folder)) == values(ranks(folder / "model.safetensors"))
