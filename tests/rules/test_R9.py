"""R9: adapters decide by what they do: a layer is what it makes of the unit vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from checkpoint_files import rank_of, ranks, values
from drawn_names import assert_unheard_of, pairs
from joma.checkpoints.effective import weights_in
from joma.checkpoints.formats.shard import TensorEntry

KINDS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "added": lambda x, w, a, b: functional.linear(x, w + b @ a),
    "rotated": lambda x, w, a, b: functional.linear(x - 2 * (x @ a[:1].T) @ a[:1] / (a[:1] @ a[:1].T), w),
    "scaled": lambda x, w, a, b: functional.linear(x, w) * (1 + b[:, 0]),
    "bent": lambda x, w, a, b: functional.linear(x.relu(), w + b @ a),
}


def layer(kind: str, names: list[str], inputs: int, outputs: int) -> nn.Linear:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return KINDS[kind](x, self.weight, *(getattr(self, name) for name in names))

    made = Own(inputs, outputs, bias=False)
    for name, shape in zip(names, ((2, inputs), (outputs, 2)), strict=True):
        setattr(made, name, nn.Parameter(torch.randn(shape)))
    return made


@settings(max_examples=20, deadline=None)
@given(pairs(), st.sampled_from(sorted(KINDS)), st.integers(3, 9), st.integers(3, 9), st.integers(0, 999))
def test_the_weight_that_runs_or_none(
    names: list[str], kind: str, inputs: int, outputs: int, seed: int
) -> None:
    assert_unheard_of(*names)
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {"layers": nn.ModuleList([nn.ModuleDict({"up_proj": nn.Linear(4, 6)}) for _ in range(2)])}
    )
    own = layer(kind, names, inputs, outputs)
    model["layers"][1]["up_proj"] = own  # type: ignore[index]
    table = ranks(model)
    if kind == "bent":
        assert values(table, layer=1, metric="stable_rank") == []
        assert "does something else" in table[table["layer"] == 1]["reason"].item()
    else:
        truth = own(torch.eye(inputs)).detach().T
        assert values(table, layer=1) == pytest.approx([rank_of(truth)], rel=1e-4)


@given(pairs(), st.integers(6, 9), st.integers(6, 9))
def test_factors_of_any_name_in_a_file_are_named(names: list[str], inputs: int, outputs: int) -> None:

    assert_unheard_of(*names)
    shapes = {"weight": (outputs, inputs), names[0]: (2, inputs), names[1]: (outputs, 2)}
    entries = {
        f"layers.0.up_proj.{name}": TensorEntry(f"layers.0.up_proj.{name}", shape, "F32", Path("a"))
        for name, shape in shapes.items()
    }
    problem = weights_in(entries, None)["layers.0.up_proj.weight"].problem
    assert all(name in problem for name in names)


def test_rotations_of_peft_on_square_matrices() -> None:
    peft = pytest.importorskip("peft")
    for settings_of in (
        lambda: peft.OFTConfig(r=0, oft_block_size=2, target_modules=["up_proj"]),
        lambda: peft.HRAConfig(r=2, target_modules=["up_proj"]),
        lambda: peft.LoraConfig(r=2, use_dora=True, target_modules=["up_proj"]),
    ):
        torch.manual_seed(0)
        plain = nn.ModuleDict(
            {"layers": nn.ModuleList([nn.ModuleDict({"up_proj": nn.Linear(8, 8, bias=False)})])}
        )
        model = peft.get_peft_model(plain, settings_of())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_()
        model.eval()
        truth = model.base_model.model["layers"][0]["up_proj"](torch.eye(8)).detach().T
        assert values(ranks(model)) == pytest.approx([rank_of(truth)], rel=1e-4)
