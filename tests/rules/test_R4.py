"""R4: shapes decide beside names what is lower, gate and upper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import joma
from checkpoint_files import write
from command_line import called
from drawn_names import assert_unheard_of, pairs, words
from joma.checkpoints.families.matrices import sort_out

SIDES = st.integers(5, 40)


def roles(shapes: dict[str, tuple[int, ...]], config: dict[str, object] | None = None) -> dict[str, str]:
    return {m.tensor.split(".")[-2]: m.role for m in sort_out(shapes, config).matrices}


@given(words, words, SIDES, SIDES, st.booleans(), st.permutations(range(3)))
def test_a_word_for_the_gate_and_the_shapes_tell_a_gated_mlp(
    stack: str, odd: str, hidden: int, width: int, flipped: bool, order: list[int]
) -> None:
    assume(hidden != width)
    assert_unheard_of(stack, odd)
    into, back = ((width, hidden), (hidden, width)) if flipped else ((hidden, width), (width, hidden))
    leaves = [(f"{odd}_gate", into), ("fc1", into), ("fc2", back)]
    shapes = {f"{stack}.layers.0.mlp.{leaves[i][0]}.weight": leaves[i][1] for i in order}
    assert roles(shapes) == {f"{odd}_gate": "gate", "fc1": "lower", "fc2": "upper"}


@given(words, pairs(), SIDES, SIDES, st.permutations(range(3)))
def test_two_that_lead_in_are_named_where_nothing_tells_the_gate(
    stack: str, names: list[str], hidden: int, width: int, order: list[int]
) -> None:
    assume(hidden != width)
    assume(not {"g", "x", "u"} & {*names})
    assert_unheard_of(stack, *names)
    leaves = [(names[0], (hidden, width)), ("fc1", (hidden, width)), ("fc2", (width, hidden))]
    shapes = {f"{stack}.layers.0.mlp.{leaves[i][0]}.weight": leaves[i][1] for i in order}
    found = sort_out(shapes)
    assert not found.matrices
    assert {"gate is not known" in why for _, why in found.unclear.values()} == {True}
    assert set(found.unclear) == set(shapes)


@given(words, words, SIDES, SIDES, st.booleans())
def test_one_of_twice_the_units_holds_the_gate_and_the_other_leads_back(
    stack: str, odd: str, hidden: int, width: int, back_first: bool
) -> None:
    assume(len({hidden, width, 2 * hidden}) == 3 and width != 2 * hidden)
    assert_unheard_of(stack, odd)
    wide, back = f"{stack}.layers.0.mlp.{odd}.weight", f"{stack}.layers.0.mlp.w3.weight"
    shapes: dict[str, tuple[int, ...]] = {wide: (2 * hidden, width), back: (width, hidden)}
    if back_first:
        shapes = dict(reversed(shapes.items()))
    found = sort_out(shapes)
    assert {(m.tensor, m.role) for m in found.matrices} == {(wide, "gate"), (wide, "lower"), (back, "upper")}


@given(words, words, SIDES, SIDES, st.booleans(), st.sampled_from(["fc1", "fc2"]))
def test_of_two_transposed_shapes_the_known_name_tells_the_other(
    stack: str, odd: str, hidden: int, width: int, first: bool, known: str
) -> None:
    assume(hidden != width)
    assert_unheard_of(stack, odd)
    shapes = {"fc1": (hidden, width), "fc2": (width, hidden)}
    names = {one: one if one == known else odd for one in (("fc1", "fc2") if first else ("fc2", "fc1"))}
    told = roles({f"{stack}.layers.0.mlp.{names[one]}.weight": shapes[one] for one in names})
    assert told == {names["fc1"]: "lower", names["fc2"]: "upper"}


def test_litgpt_has_its_gate_first() -> None:
    shapes = {f"h.0.mlp.{n}.weight": s for n, s in (("fc_1", (12, 8)), ("fc_2", (12, 8)), ("proj", (8, 12)))}
    assert roles(shapes) == {"fc_1": "gate", "fc_2": "lower", "proj": "upper"}


@pytest.mark.parametrize(
    ("family", "told"), [("", False), ("gpt_oss", True), ("openai_privacy_filter", True)]
)
def test_experts_with_biases_may_alternate(family: str, told: bool) -> None:
    shapes = {"gate_up_proj": (2, 12, 16), "down_proj": (2, 8, 12), "gate_up_proj_bias": (2, 16)}
    named = {f"layers.0.mlp.experts.{leaf}": shape for leaf, shape in shapes.items()}
    config = {"model_type": family, "hidden_size": 12, "intermediate_size": 8}
    found = sort_out(named, config)
    halves = [m for m in found.matrices if m.role in ("gate", "lower")]
    assert bool(halves) == told
    assert ("layers.0.mlp.experts.gate_up_proj" in found.unclear) != told
    if told:
        assert {m.piece.groups > 1 for m in halves} == {family == "gpt_oss"}


@given(
    words,
    words,
    SIDES,
    SIDES,
    st.sampled_from(["gate_up", "up_gate", "g_x", "u_g", "gate", "up", ""]),
    st.booleans(),
)
def test_halves_in_one_are_ordered_by_the_name_or_the_convention_is_told(
    stack: str, odd: str, hidden: int, width: int, told: str, known: bool
) -> None:
    assume(len({hidden, width, 2 * hidden}) == 3 and width != 2 * hidden)
    assert_unheard_of(stack, odd)
    wide, back = (f"{stack}.layers.0.mlp.{leaf}.weight" for leaf in (f"{odd}_{told}".rstrip("_"), "w3"))
    config = {"model_type": "glm4"} if known else None
    found = sort_out({wide: (2 * hidden, width), back: (width, hidden)}, config)
    halves = {m.role: m.piece for m in found.matrices if m.tensor == wide}
    first = min(halves, key=lambda role: halves[role].first)
    assert first == ("lower" if told in ("up_gate", "u_g") and not known else "gate")
    assert {bool(piece.convention) for piece in halves.values()} == {"_" not in told and not known}


def test_what_is_read_by_convention_is_told_in_the_answer_and_a_curve(tmp_path: Path) -> None:
    for step in (1, 2):
        fused = {"layers.0.mlp.fc1.weight": torch.randn(24, 8), "layers.0.mlp.fc2.weight": torch.randn(8, 12)}
        write(tmp_path / f"step{step}", fused, model_type="unheard")
    with pytest.warns(UserWarning, match=r"^read by convention: layers\.0\.mlp\.fc1\.weight \("):
        table = joma.probe_weights(tmp_path / "step1")
    assert set(table["matrix"]) == {"gate", "lower", "layers.0.mlp.fc1.weight"}
    told = called(["probe", str(tmp_path / "step1"), "--weights", "--out", str(tmp_path / "out"), "--quiet"])
    assert (told.returncode, told.stderr) == (0, "")
    assert "Read by convention: layers.0.mlp.fc1.weight" in told.stdout
    assert "Read by convention: layers.0.mlp.fc1.weight" in (tmp_path / "out" / "report.html").read_text()
    notes = joma.track(tmp_path, out=tmp_path / "track", quiet=True).tables["notes"]
    assert notes[notes["kind"] == "read by convention"]["lost"].tolist() == [False]
