"""Names to steps: a table of the names in use with their parts."""

from __future__ import annotations

import pytest

from joma.checkpoints.series.names import Place, is_no_member, place_of
from joma.checkpoints.series.sources.files import is_plain_path, weight_files, why_none

TABLE = {
    "step1000": Place(step=1000),
    "step0": Place(step=0),
    "checkpoint-500": Place(step=500),
    "global_step1000": Place(step=1000),
    "global_step_20": Place(step=20),
    "step_360": Place(step=360),
    "step-000360/": Place(step=360),
    "run/step-0100": Place(step=100),
    "iter_0001000": Place(step=1000),
    "step-001000-2BT": Place(step=1000, tokens=2e9),
    "step-50K-105b": Place(step=50_000, tokens=105e9),
    "TinyLlama-1.1B-step-50K-105b": Place(step=50_000, tokens=105e9),
    "step1000-tokens4B": Place(step=1000, tokens=4e9),
    "stage1-step1000-tokens5B": Place(stage=1, step=1000, tokens=5e9),
    "stage2-ingredient1-step3000-tokens7B": Place(stage=2, branch=("ingredient", 1), step=3000, tokens=7e9),
    "stage2-ingredient3-step1000-tokens3B": Place(stage=2, branch=("ingredient", 3), step=1000, tokens=3e9),
    "stage1-step-40000": Place(stage=1, step=40_000),
    "seed_0-step_20k": Place(branch=("seed", 0), step=20_000),
    "epoch=3-step=1200.ckpt": Place(step=1200),
    "epoch_7.pt": Place(step=7, unit="epoch"),
    "step_5.safetensors": Place(step=5),
    "sft-step143000/checkpoint-500": Place(step=500),
    "stage1/step1000": Place(stage=1, step=1000),
    "seed-3/step10-tokens2B/model.safetensors": Place(branch=("seed", 3), step=10, tokens=2e9),
    "llama-7B-step1000": Place(step=1000),
    "OLMo-7B/step1000": Place(step=1000),
    "tokens5B-step1000": Place(step=1000, tokens=5e9),
    "ckpt_000": Place(step=0, unit="number"),
    "ckpt_358": Place(step=358, unit="number"),
    "checkpoint-12/pytorch_model.bin": Place(step=12),
}
NO_STEP = ("final", "best", "model.safetensors", "model-00001-of-00002.safetensors", "last.ckpt", "v2", "")
NO_MEMBER = (
    "main",
    "refs/pr/1",
    "tmp-checkpoint-500",
    "checkpoint-500-tmp",
    "checkpoint-500.tmp",
    ".cache/step1",
)


@pytest.mark.parametrize("name", TABLE)
def test_the_table_of_names(name: str) -> None:
    assert place_of(name) == TABLE[name]


@pytest.mark.parametrize("name", [*NO_STEP, *NO_MEMBER])
def test_what_tells_no_step(name: str) -> None:
    assert place_of(name) is None
    assert is_no_member(name) == (name in NO_MEMBER)


def test_the_order_is_that_of_training_and_not_that_of_the_text() -> None:
    names = [
        "stage2-ingredient2-step1000-tokens3B",
        "stage1-step10000-tokens42B",
        "stage2-ingredient1-step2000-tokens5B",
        "stage1-step9000-tokens38B",
        "stage2-ingredient1-step10000-tokens25B",
    ]
    ordered = sorted(names, key=lambda name: place_of(name) or Place())
    assert ordered == [names[3], names[1], names[2], names[4], names[0]]


def test_of_a_repository_only_what_its_model_is_made_of() -> None:
    both = ["model.safetensors", "pytorch_model.bin", "consolidated.safetensors", "config.json"]
    assert weight_files(both) == ["model.safetensors"]
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert weight_files([*parts, "model.safetensors.index.json", "pytorch_model.bin"]) == parts
    assert weight_files(["consolidated.00.pth", "optimizer.pt", "training_args.bin", "rng_state.pth"]) == []
    assert weight_files(["pytorch_model.bin", "consolidated.00.pth"]) == ["pytorch_model.bin"]
    assert weight_files(["step_5.pt", "scheduler.pt"]) == ["step_5.pt"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["adapter_model.safetensors", "adapter_config.json"], "merge_and_unload"),
        (["__0_0.distcp", ".metadata"], "download it"),
        (["global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt"], "zero_to_fp32"),
        (["pytorch_model_fsdp_0/__0_0"], "merge-weights"),
        (["readme.md"], "holds no weights"),
    ],
)
def test_a_folder_without_weights_is_told_what_gathers_them(names: list[str], words: str) -> None:
    assert words in why_none(names)


@pytest.mark.parametrize(
    "path", ["../model.safetensors", "/etc/passwd", "a/../../b", "a\\b", "a//b", "a\0b", "C:a", ""]
)
def test_names_from_elsewhere_are_no_paths_out_of_a_folder(path: str) -> None:
    assert not is_plain_path(path)
