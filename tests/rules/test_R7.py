"""R7: parts of one percent. What is not measured where others are is named; numbers count what they are."""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import joma
from checkpoint_files import near, ranks, values, write
from drawn_names import assert_unheard_of, pairs, words
from joma.checkpoints.families.matrices import sort_out
from joma.checkpoints.omissions import find_unmeasured, is_whole
from joma.core.errors import InputError


def named(shapes: dict[str, tuple[int, ...]]) -> set[str]:
    found = sort_out(shapes)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    lower = [m for m in found.matrices if m.role == "lower"]
    return find_unmeasured(list(found.unknown), sizes, found.places, lower)


@given(words, words, st.integers(2, 150), st.data())
def test_a_layer_of_another_name_is_named_whatever_its_share(
    stack: str, leaf: str, depth: int, data: st.DataObject
) -> None:
    assert_unheard_of(stack, leaf)
    odd = data.draw(st.sets(st.integers(0, depth - 1), min_size=1, max_size=depth - 1))
    shapes = {
        f"{stack}.layers.{i}.mlp.{leaf if i in odd else 'up_proj'}.weight": (4, 4) for i in range(depth)
    }
    shapes["embed_tokens.weight"] = (100_000, 4)
    assert named(shapes) == {name for name in shapes if f".mlp.{leaf}." in name}


@given(words, st.integers(2, 40))
def test_what_every_layer_has_is_named_by_the_share_of_its_kind(leaf: str, depth: int) -> None:
    assert_unheard_of(leaf)
    shapes = {f"layers.{i}.mlp.up_proj.weight": (100, 10) for i in range(depth)}
    for side, told in ((1, False), (2, True)):
        odd = {f"layers.{i}.{leaf}.weight": (9 if side == 1 else 11, 1) for i in range(depth)}
        assert named(shapes | odd) == (set(odd) if told else set())


@given(pairs(), st.integers(1, 9), st.integers(2, 5))
def test_a_number_that_goes_with_one_role_each_counts_parts(names: list[str], layer: int, depth: int) -> None:
    outer, inner = names
    assert_unheard_of(*names)
    shapes = {f"{outer}.{i}.{inner}.0.self_attn.q_proj.weight": (4, 4) for i in range(depth)}
    shapes |= {f"{outer}.{i}.{inner}.1.mlp.up_proj.weight": (8, 4) for i in range(depth)}
    assert {(m.role, m.layer) for m in sort_out(shapes).matrices} == {
        (role, i) for role in ("query", "lower") for i in range(depth)
    }
    whole = {
        f"{outer}.{i}.{inner}.{j}.{leaf}.weight": (4, 4)
        for i in range(depth)
        for j in range(layer)
        for leaf in ("self_attn.q_proj", "mlp.up_proj")
    }
    found = sort_out(whole).matrices
    assert {m.layer for m in found} == set(range(layer))
    assert len({(m.stack, m.layer, m.role) for m in found}) == len(found) == len(whole)


@given(pairs())
def test_what_cannot_be_told_is_refused(names: list[str]) -> None:
    found = sort_out({f"{names[0]}.3.{names[1]}.0.mlp.up_proj.weight": (8, 4)})
    ((_, why),) = found.unclear.values()
    assert "layer 3 or in layer 0" in why


@settings(max_examples=20, deadline=None)
@given(
    words,
    st.sampled_from(["", "weight_", "weight.", "deep."]),
    st.sampled_from([(), (1,), (16,), (16, 1), (1, 1)]),
)
def test_a_scale_of_any_name_is_no_reason_for_raw_numbers(
    word: str, before: str, shape: tuple[int, ...]
) -> None:
    assert_unheard_of(word)
    up = "model.layers.{}.mlp.up_proj"
    tensors = {
        f"{up.format(0)}.weight": torch.ones(16, 8).to(torch.float8_e4m3fn),
        f"{up.format(0)}.{before}{word}": torch.full(shape, 3.0),
        f"{up.format(1)}.weight": torch.eye(16, 8),
    }
    with tempfile.TemporaryDirectory() as folder:
        table = ranks(write(Path(folder), tensors))
    assert values(table) == near(8.0)
    (left,) = table[(table["metric"] == "omitted") & (table["tensor"] != "")].itertuples()
    assert word in left.reason


def test_nan_costs_one_matrix(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.mlp.up_proj.weight": torch.eye(4) for i in range(3)}
    tensors["layers.1.mlp.up_proj.weight"][2, 1] = math.nan
    table = ranks(write(tmp_path, tensors))
    assert values(table) == near(4.0, 4.0)
    (left,) = table[table["metric"] == "omitted"].itertuples()
    assert (left.layer, left.tensor) == (1, "layers.1.mlp.up_proj.weight")
    assert "first NaN at row 2, column 1" in left.reason


@settings(max_examples=25, deadline=None)
@given(words, st.integers(3, 6), st.data())
def test_an_mlp_without_its_lower_matrix_and_attention_without_queries_are_named(
    stack: str, depth: int, data: st.DataObject
) -> None:
    assert_unheard_of(stack)
    layer = data.draw(st.integers(0, depth - 1))
    role, gone = data.draw(st.sampled_from([("lower", "mlp.up_proj"), ("query", "self_attn.q_proj")]))
    shapes = {"mlp.up_proj": (8, 4), "mlp.gate_proj": (8, 4), "mlp.down_proj": (4, 8)}
    shapes |= {f"self_attn.{one}_proj": (4, 4) for one in "qko"}
    tensors = {
        f"{stack}.layers.{i}.{leaf}.weight": torch.randn(shape)
        for i in range(depth)
        for leaf, shape in shapes.items()
        if (i, leaf) != (layer, gone)
    }
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), tensors)
        with pytest.warns(UserWarning, match=f"{stack}.layers.{layer}.{gone}.weight .it is not there"):
            table = joma.probe_weights(folder, roles=[role])
        assert not is_whole(table)
        write(Path(folder), {name: one for name, one in tensors.items() if gone not in name})
        with pytest.raises(InputError), warnings.catch_warnings():  # a model that has none lacks none
            warnings.simplefilter("error")
            joma.probe_weights(folder, roles=[role])
