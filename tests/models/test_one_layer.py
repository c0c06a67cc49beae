from __future__ import annotations

import numpy as np
import pytest
import torch

from joma.core.errors import InputError
from joma.data.next_token import graded_tokens
from joma.models.one_layer import EmbeddedDecoder, FreePairs, OneLayer, Population
from joma.models.yz import YZ
from joma.theory.scan_snap.equations import velocities


@pytest.fixture
def data():
    return graded_tokens(last_tokens=2, next_per_last=2, common=2, distinct=3)


def descend(model: OneLayer, population: Population, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        population.loss(model).backward()
        optimizer.step()


def test_gradient_of_the_free_model_is_scan_and_snaps(data) -> None:
    population = Population(data)
    model = FreePairs(population.tokens)
    random = np.random.default_rng(0)
    contextual, lasts, classes = data.contextual_tokens, data.last_tokens, data.classes
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(random.normal(size=parameter.shape)))
    population.loss(model).backward()
    # The theory numbers the next tokens first: move their columns of Y there.
    order = [*range(contextual + lasts, contextual + lasts + classes), *range(contextual + lasts)]
    y, z = model.y.detach().numpy(), model.z.detach().numpy()
    rows = slice(contextual, contextual + lasts)
    expected = velocities(
        y[:contextual, order],
        z[rows, :contextual],
        conditional=data.conditional,
        last_of_next=data.last_of_next,
        class_probability=data.prior,
        eta_y=1.0,
        eta_z=1.0,
    )
    np.testing.assert_allclose(-model.y.grad.numpy()[:contextual, order], expected.decoder, atol=1e-12)
    np.testing.assert_allclose(-model.z.grad.numpy()[rows, :contextual], expected.logits, atol=1e-12)
    assert not model.z.grad[:contextual].any()


def test_both_models_are_the_same_function_of_y_and_z_as_the_sequence_model(data) -> None:
    population = Population(data)
    torch.manual_seed(0)
    embedded = EmbeddedDecoder(population.tokens, 5)
    with torch.no_grad():
        embedded.w_v.normal_()
    free = FreePairs(population.tokens)
    sequences = YZ(population.tokens, residual=False).double()
    with torch.no_grad():
        free.y.copy_(embedded.decoder_matrix())
        free.z.copy_(embedded.attention_matrix())
        sequences.output.weight.copy_(free.y.T)
        sequences.logit_matrices[0].left.copy_(free.z)
        sequences.logit_matrices[0].left.diagonal().fill_(-1e9)  # the last token is not attended to
    with torch.no_grad():
        torch.testing.assert_close(population.loss(embedded), population.loss(free), rtol=1e-13, atol=0)
    classes, tokens = data.sample_sequences(4, 9, np.random.default_rng(1))
    counts = torch.nn.functional.one_hot(torch.from_numpy(tokens[:, :-1]), population.tokens).sum(1).double()
    last = torch.from_numpy(tokens[:, -1])
    assert torch.equal(last, population.last[torch.from_numpy(classes)])
    ours = embedded(counts, last)
    torch.testing.assert_close(ours, free(counts, last), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours, sequences(torch.from_numpy(tokens))[:, -1], rtol=1e-12, atol=1e-12)


def test_with_fixed_orthonormal_embeddings_and_one_matrix_descent_is_that_of_y_and_z(data) -> None:
    population = Population(data)
    torch.manual_seed(3)
    embedded = EmbeddedDecoder(
        population.tokens, population.tokens + 2, factored=False, train_embeddings=False
    )
    free = FreePairs(population.tokens)
    for model in (embedded, free):
        descend(model, population, 40)
    assert float(free.z.detach().abs().max()) > 0.1
    torch.testing.assert_close(embedded.attention_matrix(), free.z, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(embedded.decoder_matrix(), free.y, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("width", [4, 40])
def test_embeddings_start_orthonormal_where_they_fit(width: int) -> None:
    torch.manual_seed(0)
    model = EmbeddedDecoder(20, width)
    gram = (model.embeddings @ model.embeddings.T).detach()
    assert (float((gram - torch.eye(20)).abs().max()) < 1e-14) == (width == 40)
    assert not model.decoder_matrix().any()


@pytest.mark.parametrize("settings", [{"tokens": 1, "width": 3}, {"tokens": 3, "width": 0}])
def test_bad_sizes(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cannot be"):
        EmbeddedDecoder(**settings)
    with pytest.raises(InputError, match=r"scale = 0"):
        EmbeddedDecoder(3, 3, scale=0.0)
