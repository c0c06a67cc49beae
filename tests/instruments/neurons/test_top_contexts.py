from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.instruments.neurons.attended import MostAttended
from joma.instruments.neurons.top_contexts import TopContexts

NEURONS, KEPT = 5, 3


def stream(
    seed: int, batches: int, top: int, usable: float, levels: int | None
) -> tuple[TopContexts, torch.Tensor, torch.Tensor, MostAttended]:
    """Contexts kept from a stream of batches; and all of the stream at once."""
    generator = torch.Generator().manual_seed(seed)
    contexts = TopContexts(NEURONS, top=top, attended=KEPT)
    seen = []
    first = 0
    for number in range(batches):
        batch = 1 + (seed + number) % 4
        activations = torch.randn(batch, 7, NEURONS, generator=generator)
        if levels:
            activations = (activations * levels).round()
        may = torch.rand(batch, 7, generator=generator) < usable
        places = torch.randint(0, 7, (batch, 7, KEPT), generator=generator).to(torch.int16)
        attended = MostAttended(places, torch.rand(batch, 7, KEPT, generator=generator))
        contexts.update(activations, may, attended, first)
        first += batch
        seen.append((activations, may, attended))
    return (
        contexts,
        torch.cat([a for a, _, _ in seen]),
        torch.cat([m for _, m, _ in seen]),
        MostAttended(torch.cat([a.positions for *_, a in seen]), torch.cat([a.weights for *_, a in seen])),
    )


@given(
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.integers(1, 6),
    st.sampled_from([0.1, 0.7, 1.0]),
    st.sampled_from([None, 2]),
)
def test_stream_keeps_what_sorting_everything_would(
    seed: int, batches: int, top: int, usable: float, levels: int | None
) -> None:
    contexts, activations, may, attended = stream(seed, batches, top, usable, levels)
    masked = activations.masked_fill(~may[..., None], -torch.inf)
    for neuron in range(NEURONS):
        largest = masked[:, :, neuron].amax(1)
        order = sorted(range(len(largest)), key=lambda w: (-float(largest[w]), w))
        order = [w for w in order if largest[w] > -torch.inf][:top]
        count = len(order)
        assert contexts.window[neuron].tolist() == order + [-1] * (top - count)
        assert contexts.activation[neuron, :count].tolist() == largest[order].tolist()
        assert (contexts.activation[neuron, count:] == -torch.inf).all()
        for rank, window in enumerate(order):
            place = int(contexts.position[neuron, rank])
            assert may[window, place]
            assert activations[window, place, neuron] == largest[window]
            torch.testing.assert_close(
                contexts.attended[neuron, rank], attended.positions[window, place], rtol=0, atol=0
            )
            torch.testing.assert_close(
                contexts.weight[neuron, rank], attended.weights[window, place], rtol=0, atol=0
            )


def test_nothing_usable_changes_nothing() -> None:
    contexts, *_ = stream(0, 3, 2, 0.0, None)
    assert (contexts.window == -1).all()


def test_nan_is_kept_and_shows() -> None:
    contexts = TopContexts(2, top=2, attended=1)
    activations = torch.zeros(3, 4, 2)
    activations[1, 2, 0] = torch.nan
    attended = MostAttended(torch.zeros(3, 4, 1, dtype=torch.int16), torch.zeros(3, 4, 1))
    contexts.update(activations, torch.ones(3, 4, dtype=torch.bool), attended, 0)
    assert torch.isnan(contexts.activation[0, 0])
    assert (contexts.window[0, 0], contexts.position[0, 0]) == (1, 2)
    assert not torch.isnan(contexts.activation[1]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    contexts = TopContexts(2, top=1, attended=1)
    attended = MostAttended(torch.ones(1, 3, 1, dtype=torch.int16), torch.ones(1, 3, 1))
    activations = torch.tensor([[[1.0, -1.0], [3.0, -2.0], [2.0, 5.0]]], dtype=dtype)
    contexts.update(activations, torch.ones(1, 3, dtype=torch.bool), attended, 4)
    assert contexts.activation[:, 0].tolist() == [3.0, 5.0]
    assert contexts.position[:, 0].tolist() == [1, 2]
    assert contexts.window[:, 0].tolist() == [4, 4]
