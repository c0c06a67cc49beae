"""A stack of JoMA blocks as a network: groups of units, one per query, under exp attention at every layer.

    u_gk = v_gk o exp(z_g),    h_gk = relu(u_gk . x + xi_gk) p_g,    next x = all h_gk

``p_g`` says whether the query of group g is at hand: what is not in the sequence has no position, and sends
nothing on. ``joma.theory.stack`` has the same without queries, with its gradients and invariants.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joma.core.errors import InputError


class JomaStack(nn.Module):
    """Layers of ``groups`` groups of ``units`` ReLU units; layer 1 reads ``groups`` tokens.

    Weights start normal with deviation ``scale``, logits and biases at 0, all in float64; random numbers are
    torch's global ones. Raises InputError for sizes below 1 and a scale that is not positive.
    """

    def __init__(self, groups: int, *, layers: int, units: int, scale: float) -> None:
        super().__init__()
        if min(groups, layers, units) < 1 or not scale > 0:
            raise InputError(
                f"JomaStack: groups = {groups}, layers = {layers}, units = {units}, scale = {scale}; give "
                "whole numbers of at least 1 and a positive scale."
            )
        widths = [groups] + [groups * units] * (layers - 1)
        self.weights = nn.ParameterList(
            scale * torch.randn(groups, units, width, dtype=torch.float64) for width in widths
        )
        """``v`` (groups, units, inputs), layer by layer."""
        self.logits = nn.ParameterList(torch.zeros(groups, width, dtype=torch.float64) for width in widths)
        """``z`` (groups, inputs)."""
        self.biases = nn.ParameterList(torch.zeros(groups, units, dtype=torch.float64) for _ in widths)
        """``xi`` (groups, units)."""

    def forward(self, x: Tensor, present: Tensor) -> list[Tensor]:
        """Activations of every layer, (rows, groups, units), of inputs ``x`` (rows, groups).

        ``present`` (rows, groups): 1 where the group's query is at hand, 0 where not.
        """
        if x.shape[1:] != self.logits[0].shape[:1] or x.shape != present.shape:
            raise InputError(
                f"JomaStack: x {tuple(x.shape)} and present {tuple(present.shape)} must both be "
                f"(rows, {self.logits[0].shape[0]})."
            )
        found = []
        for v, z, xi in zip(self.weights, self.logits, self.biases, strict=True):
            attended = v * z.exp()[:, None]
            before = (x @ attended.flatten(0, 1).T).unflatten(1, xi.shape) + xi
            found.append(torch.relu(before) * present[:, :, None])
            x = found[-1].flatten(1)
        return found
