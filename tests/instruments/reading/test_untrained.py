from __future__ import annotations

import pytest
import torch
from torch import nn

from joma.core.errors import InputError
from joma.instruments.reading.untrained import untrained_copy


class Chive(nn.Module):
    """A network of nobody's family."""

    def __init__(self, *, gain: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.mix = nn.MultiheadAttention(4, 2)
        self.out = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))
        if gain:
            self.gain = nn.Parameter(torch.ones(4))


def trained() -> Chive:
    model = Chive().to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    return model


def test_every_weight_is_drawn_anew_and_the_model_is_left_as_it_is() -> None:
    model = trained()
    state = torch.random.get_rng_state()
    copy = untrained_copy(model, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all((p == 7).all() for p in model.parameters())
    for (name, mine), (same, theirs) in zip(model.named_parameters(), copy.named_parameters(), strict=True):
        assert (name, mine.shape, mine.dtype) == (same, theirs.shape, theirs.dtype)
        assert not (theirs == 7).any(), name
    assert not copy.training


def test_a_seed_is_a_network() -> None:
    model = trained()
    first, again, other = (untrained_copy(model, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.table.weight, again.table.weight)
    assert not torch.equal(first.table.weight, other.table.weight)


def test_weights_that_no_module_draws_are_named() -> None:
    with pytest.raises(InputError, match="no module draws gain anew"):
        untrained_copy(Chive(gain=True), seed=0)


def test_a_model_of_transformers_is_built_from_its_config() -> None:
    pytest.importorskip("transformers")
    from probe_models import tiny_model

    model = tiny_model("llama")  # its matrices have a spread of 0.3
    copy = untrained_copy(nn.DataParallel(model), seed=0)
    assert type(copy) is type(model)
    weight = copy.layers[0].mlp.up_proj.weight
    assert weight.shape == model.layers[0].mlp.up_proj.weight.shape
    assert float(weight.std()) == pytest.approx(model.config.initializer_range, rel=0.1)
