"""R1: a key names its module. No two matrices of one stack, layer, expert and role."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drawn_names import assert_unheard_of, pairs, words
from joma.checkpoints.families.matrices import sort_out

SHAPES = {"gate_proj": (24, 8), "up_proj": (24, 8), "down_proj": (8, 24)}


@given(pairs(), st.booleans(), st.integers(0, 40))
def test_stacks_under_any_names_are_two(stacks: list[str], underscore: bool, layer: int) -> None:
    assert_unheard_of(*stacks)
    prefix = "_" if underscore else ""
    shapes = {
        f"{prefix}{stack}.layers.{layer}.mlp.{leaf}.weight": shape
        for stack in stacks
        for leaf, shape in SHAPES.items()
    }
    found = sort_out(shapes)
    keys = {(m.stack, m.layer, m.expert, m.role): m.tensor for m in found.matrices}
    assert len(keys) == len(found.matrices) == 6
    assert all(stack in tensor for (stack, *_), tensor in keys.items())


@given(words, st.integers(2, 4), st.integers(0, 40))
def test_modules_of_one_layer_are_told_apart(part: str, count: int, layer: int) -> None:
    assert_unheard_of(part)
    shapes = {
        f"{part}.layers.{layer}.mlp{i}.{leaf}.weight": shape
        for i in range(count)
        for leaf, shape in SHAPES.items()
    }
    found = sort_out(shapes)
    assert {m.layer for m in found.matrices} == {layer}
    assert len({(m.stack, m.role) for m in found.matrices}) == len(found.matrices) == 3 * count
    for matrix in found.matrices:
        assert matrix.stack.endswith(matrix.tensor.split(".")[3])


@given(pairs())
def test_containers_of_any_two_names_give_no_common_key(names: list[str]) -> None:
    assert_unheard_of(*names)
    shapes = {f"{name}.layers.0.self_attn.q_proj.weight": (8, 8) for name in names}
    shapes |= {f"model.{name}.blocks.0.self_attn.q_proj.weight": (8, 8) for name in names}
    found = sort_out(shapes)
    assert len({(m.stack, m.layer) for m in found.matrices}) + len(found.unclear) >= 4


def test_two_matrices_of_one_role_in_one_module_are_named() -> None:
    found = sort_out({f"layers.0.mlp.{leaf}.weight": (8, 8) for leaf in ("up_proj", "fc1")})
    assert not found.matrices
    assert len(found.unclear) == 2
    assert all("has the role of" in why for _, why in found.unclear.values())


@given(words)
def test_an_unknown_part_within_a_layer_is_no_wrapper(word: str) -> None:
    assert_unheard_of(word)
    found = sort_out(
        {f"layers.0.mlp._{word}.up_proj.weight": (24, 8), "layers.0.mlp.up_proj.weight": (24, 8)}
    )
    assert [m.tensor for m in found.matrices] == ["layers.0.mlp.up_proj.weight"]
    assert [word in name for name in found.unknown] == [True]
