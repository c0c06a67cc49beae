"""R2: a series is compared by what is read of it."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from drawn_names import assert_unheard_of, words
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.effective import Weight
from joma.checkpoints.series.alike import matrices_by_key, signature
from joma.instruments.track.measuring.changes import changes, rounding_of

NAMES = {
    **{f"transformer.h.{i}.attn.{k}_proj.weight": (8, 8) for i in range(2) for k in "qk"},
    **{f"transformer.h.{i}.mlp.c_fc.weight": (16, 8) for i in range(2)},
}


def digest(shapes: dict[str, tuple[int, ...]]) -> str:
    return signature({name: Weight(name, shape, "F32") for name, shape in shapes.items()}, None)


@given(
    words,
    words,
    st.sampled_from(["_orig_mod.", "module.", "_orig_mod.module.", "model.", ""]),
    st.integers(9, 99),
)
def test_wrappers_prefixes_buffers_and_vocabularies_change_nothing(
    prefix: str, buffer: str, wrapper: str, vocabulary: int
) -> None:
    assert_unheard_of(prefix, buffer)
    other = {f"{wrapper}{prefix}.{name}": shape for name, shape in NAMES.items()}
    other |= {f"{wrapper}{prefix}.{buffer}": (3, 3), f"{wrapper}{prefix}.lm_head.weight": (vocabulary, 8)}
    assert digest(other) == digest(NAMES)
    weights = {name: Weight(name, shape, "F32") for name, shape in other.items()}
    assert list(matrices_by_key(weights, None)) == list(
        matrices_by_key({name: Weight(name, shape, "F32") for name, shape in NAMES.items()}, None)
    )


@given(st.sampled_from(sorted(NAMES)), st.integers(17, 30))
def test_another_shape_or_one_matrix_less_is_another(name: str, rows: int) -> None:
    assert digest(NAMES | {name: (rows, 8)}) != digest(NAMES)
    assert digest({one: shape for one, shape in NAMES.items() if one != name}) != digest(NAMES)


@settings(max_examples=10, deadline=None)
@given(words, st.sampled_from([torch.bfloat16, torch.float16]), st.integers(0, 2**31))
def test_a_change_of_rounding_alone_is_named(stack: str, dtype: torch.dtype, seed: int) -> None:
    assert_unheard_of(stack)
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(seed))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{i}.safetensors") for i in range(3)]
        for file, tensor in zip(files, (weight, weight.to(dtype), 1.05 * weight), strict=True):
            save_file({f"{stack}.layers.0.mlp.up_proj.weight": tensor}, file)
        first, rounded, moved = map(open_checkpoint, files)
        rows = changes(rounded, [("previous", first)], ["lower"])
        norm = next(row for row in rows if row.metric == "change_norm")
        exact = float((weight.to(dtype).float() - weight).double().norm())
        assert norm.value == pytest.approx(exact, rel=1e-5)
        assert norm.error_bound is not None
        assert exact <= norm.error_bound < 1.5 * exact
        assert any("below the rounding" in row.reason for row in rows)
        assert not any(row.metric == "change_stable_rank" for row in rows)
        rows = changes(moved, [("previous", rounded)], ["lower"])
        assert not any("below the rounding" in row.reason for row in rows)
        assert {row.metric for row in rows} >= {"change_norm", "change_stable_rank"}


def test_rounding_of_types() -> None:
    assert rounding_of(["F32", "BF16"]) == pytest.approx(2**-9, rel=1e-6)
    assert rounding_of(["F16", "F16"]) == pytest.approx(math.sqrt(2) * 2**-12)
