"""Several networks of JoMA Table 1 as one: batched matrix products over independent sets of weights.

Where one network's products are too small to fill the processor (two children per latent and d <= 128 on a
CPU core; hardly any size on a GPU), the networks of several seeds take less time together than one after
the other. ``benchmarks/bench_table1.py`` measures it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from joma.core.errors import InputError
from joma.models.hierarchy import HierarchyNetwork


@dataclass(frozen=True)
class Arrangement:
    """The sequences of every network, their distinct tokens listed apart (``arrange``)."""

    distinct: Tensor
    """(networks, tokens): each network's distinct tokens, filled up with token 0."""
    index: Tensor
    """(networks, rows, positions): where in ``distinct`` the token at each position stands."""


def arrange(tokens: Tensor) -> Arrangement:
    """List the distinct tokens of each network's sequences; ``tokens``: (networks, rows, positions)."""
    found = [torch.unique(of_one, return_inverse=True) for of_one in tokens]
    longest = max(len(distinct) for distinct, _ in found)
    return Arrangement(
        torch.stack([F.pad(distinct, (0, longest - len(distinct))) for distinct, _ in found]),
        torch.stack([index for _, index in found]),
    )


class HierarchyEnsemble:
    """Copies of networks of one shape, their weights stacked; on whatever device the networks are.

    Raises:
        InputError: no network, or networks of different shapes.
    """

    def __init__(self, networks: Sequence[HierarchyNetwork]) -> None:
        shapes = {
            (n.causal, n.heads, *((k, tuple(p.shape)) for k, p in n.named_parameters())) for n in networks
        }
        if len(shapes) != 1:
            raise InputError(
                f"HierarchyEnsemble: {len(networks)} networks of {len(shapes)} different shapes; give at "
                "least one, all of the same sizes, heads and mask."
            )
        self._pattern = networks[0]
        self.weights: dict[str, Tensor] = {
            name: torch.stack([n.get_parameter(name).detach() for n in networks]).requires_grad_()
            for name, _ in networks[0].named_parameters()
        }
        """Name as in the networks -> (networks, ...)."""

    def __len__(self) -> int:
        return len(self.weights["output.bias"])

    def network(self, number: int) -> HierarchyNetwork:
        """A copy of one of the networks, as it is now."""
        network = copy.deepcopy(self._pattern)
        network.load_state_dict({name: weight[number].detach() for name, weight in self.weights.items()})
        return network

    def __call__(self, sequences: Arrangement, key_bias: Tensor) -> Tensor:
        """Class logits (networks, rows, classes); ``key_bias``: (networks, rows, positions), added to the
        attention logits of each key (see ``joma.models.hierarchy.HierarchyNetwork``)."""
        networks, rows, positions = sequences.index.shape
        bias = key_bias.reshape(networks * rows, 1, 1, positions)
        mask = bias
        if self._pattern.causal:
            mask = bias + torch.full((positions, positions), float("-inf")).triu(1).to(bias)
        embedding = self.weights["embedding.weight"]
        numbers = torch.arange(networks, device=embedding.device)[:, None]
        x = F.embedding(sequences.distinct + numbers * embedding.shape[1], embedding.flatten(0, 1))
        index = sequences.index + (numbers * sequences.distinct.shape[1])[:, :, None]
        layers = len(self._pattern.blocks)
        if layers == 1:
            x = F.embedding(index, x.flatten(0, 1)).flatten(1, 2)
        for layer in range(layers - 1):
            x = self._block(f"blocks.{layer}.", x, index if layer == 0 else None, mask)
        return self._linear(self._last_position(f"blocks.{layers - 1}.", x, bias), "output")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        """(networks, n, in) -> (networks, n, out), each network by its own layer."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return torch.addcmul(bias[:, None], F.layer_norm(x, x.shape[-1:]), weight[:, None])

    def _block(self, name: str, x: Tensor, index: Tensor | None, mask: Tensor) -> Tensor:
        """A block at every position: (networks, rows * positions, width) in and out.

        With ``index`` (networks, rows, positions) into all networks' tokens, ``x`` holds the distinct
        tokens (networks, tokens, width) and is projected before it is put in its places.
        """
        networks, _, width = x.shape
        projected = self._linear(x, name + "in_projection")
        if index is not None:
            projected = F.embedding(index, projected.flatten(0, 1)).flatten(1, 2)
            x = F.embedding(index, x.flatten(0, 1)).flatten(1, 2)
        shape = (mask.shape[0], mask.shape[-1], 3, self._pattern.heads, -1)
        query, key, value = projected.reshape(shape).permute(2, 0, 3, 1, 4)
        logits = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-2, -1)) + mask
        mixed = torch.matmul(torch.softmax(logits, dim=-1), value).transpose(1, 2)
        mixed = mixed.reshape(networks, -1, width)
        return self._after_attention(name, x, self._linear(mixed, name + "out_projection"))

    def _last_position(self, name: str, x: Tensor, bias: Tensor) -> Tensor:
        """The block's output at the last position, (networks, rows, width)."""
        networks, _, width = x.shape
        heads, positions = self._pattern.heads, bias.shape[-1]
        every = x.reshape(networks, -1, positions, width)
        last, rows = every[:, :, -1], every.shape[1]
        weight, offset = (
            self.weights[name + "in_projection.weight"],
            self.weights[name + "in_projection.bias"],
        )
        of_query, of_key, of_value = torch.split(weight, width, dim=1)
        query_offset, _, value_offset = torch.split(offset, width, dim=1)
        query = torch.baddbmm(query_offset[:, None], last, of_query.transpose(1, 2))
        query = query.view(networks, rows, heads, -1) * (width // heads) ** -0.5
        asked = torch.einsum("nrhp,nhpw->nrhw", query, of_key.view(networks, heads, -1, width))
        logits = torch.matmul(asked, every.transpose(-2, -1)) + bias.view(networks, rows, 1, positions)
        attended = torch.matmul(torch.softmax(logits, dim=-1), every)
        mixed = torch.einsum("nrhw,nhpw->nrhp", attended, of_value.view(networks, heads, -1, width))
        mixed = mixed.reshape(networks, rows, width) + value_offset[:, None]
        return self._after_attention(name, last, self._linear(mixed, name + "out_projection"))

    def _after_attention(self, name: str, x: Tensor, attended: Tensor) -> Tensor:
        y = self._norm(x + attended, name + "attention_norm")
        hidden = torch.relu(self._linear(y, name + "lower"))
        return self._norm(y + self._linear(hidden, name + "upper"), name + "mlp_norm")
