"""Gates on a model's heads and neurons: ones leave it as it is, a zero leaves a unit out at one token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.reading.anatomy import Block

KINDS = ("heads", "neurons")


@dataclass
class Gate:
    """One layer's units of one kind: what a module reads is cut into as many equal parts."""

    kind: str
    layer: int
    module: nn.Module
    units: int
    norms: Tensor
    """(units, width of a unit, same): Gram matrices of what the module makes of a unit's output."""
    open: Tensor | None = None
    """(batch, length, units); None: all ones."""
    output_norm: Tensor | None = None
    """(batch, length, units) of the last pass that recorded."""
    record: bool = False

    def hook(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Multiply what the module reads."""
        x: Tensor = inputs[0]
        if not self.record and self.open is None:
            return None
        parts = torch.unflatten(x, -1, (self.units, -1))
        if self.record:
            with torch.no_grad():
                own = parts.detach().float()
                squared = torch.einsum("btuw,uwv,btuv->btu", own, self.norms, own)
                self.output_norm = squared.clamp_min(0).sqrt()
        if self.open is None:
            return None
        return (parts * self.open[..., None].to(x.dtype)).flatten(-2), *inputs[1:]


def make_gates(model: nn.Module, blocks: Sequence[Block]) -> list[Gate]:
    """The gates of the blocks' heads and neurons.

    Raises:
        InputError: a block whose heads or neurons are not known by name.
    """
    modules = dict(model.named_modules())
    gates = []
    for block in blocks:
        if block.output_matrix is None or block.heads is None:
            raise InputError(
                f"sparsity: no heads were found in {block.name}: {block.attention_problem or 'no attention'}."
            )
        if block.upper is None:
            raise InputError(f"sparsity: the neurons of {block.name} were not found: {block.mlp_problem}.")
        output = block.output_matrix.tensor.removesuffix(".weight")
        for kind, name in (("heads", output), ("neurons", block.upper)):
            module = modules.get(name)
            weight = getattr(module, "weight", None)
            if module is None or not isinstance(weight, Tensor) or weight.dim() != 2:
                raise InputError(
                    f"sparsity: {name}, which reads the {kind} of {block.name}, is not a linear layer."
                )
            # Conv1D of GPT-2 holds its weight transposed.
            matrix = weight.detach().float() if isinstance(module, nn.Linear) else weight.detach().float().T
            units = block.heads if kind == "heads" else matrix.shape[1]
            parts = torch.unflatten(matrix, 1, (units, -1))
            gates.append(Gate(kind, block.layer, module, units, torch.einsum("ouw,ouv->uwv", parts, parts)))
    return gates


@contextmanager
def attach(gates: Sequence[Gate]) -> Iterator[None]:
    """Hooks on the modules, as long as it is entered."""
    handles = [gate.module.register_forward_pre_hook(gate.hook) for gate in gates]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for gate in gates:
            gate.open, gate.record = None, False
