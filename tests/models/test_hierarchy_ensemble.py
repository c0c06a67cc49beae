from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from joma.core.errors import InputError
from joma.models.hierarchy import HierarchyNetwork
from joma.models.hierarchy_ensemble import HierarchyEnsemble, arrange


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_logits_and_gradients_are_each_networks_own(causal: bool, heads: int, layers: int) -> None:
    torch.manual_seed(0)
    networks = [
        HierarchyNetwork(7, 5, layers=layers, width=8, heads=heads, causal=causal).double() for _ in range(3)
    ]
    tokens = torch.randint(0, 8, (3, 5, 6))
    tokens[1] = tokens[1].clamp_max(3)  # fewer distinct tokens than the others
    bias = torch.rand(3, 5, 6, dtype=torch.float64)
    ensemble = HierarchyEnsemble(networks)
    logits = ensemble(arrange(tokens), bias)
    assert logits.shape == (3, 5, 5)
    targets = torch.arange(5)
    loss = sum(F.cross_entropy(of_one, targets) for of_one in logits)
    found = dict(
        zip(ensemble.weights, torch.autograd.grad(loss, list(ensemble.weights.values())), strict=True)
    )
    for number, network in enumerate(networks):
        expected = network(tokens[number], bias[number], shortened=False)
        torch.testing.assert_close(logits[number], expected, rtol=1e-12, atol=1e-12)
        F.cross_entropy(expected, targets).backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(found[name][number], parameter.grad, rtol=1e-11, atol=1e-12)
        again = ensemble.network(number)
        assert torch.equal(again(tokens[number], bias[number]), network(tokens[number], bias[number]))


def test_bad_ensembles() -> None:
    with pytest.raises(InputError, match="0 networks"):
        HierarchyEnsemble([])
    with pytest.raises(InputError, match="2 different shapes"):
        HierarchyEnsemble([HierarchyNetwork(7, 5, width=8), HierarchyNetwork(7, 5, width=16)])
    with pytest.raises(InputError, match="2 different shapes"):
        HierarchyEnsemble([HierarchyNetwork(7, 5, width=8), HierarchyNetwork(7, 5, width=8, heads=2)])
