from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.measures.alignment import latent_neuron_alignment


def made(seed: int, samples: int = 12, latents: int = 4, neurons: int = 5) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    z = random.integers(0, 2, (samples, latents))
    z[0], z[1] = 0, 1
    return z, random.normal(size=(samples, neurons))


@given(st.integers(0, 1000))
def test_against_corrcoef_and_every_matching(seed: int) -> None:
    z, a = made(seed)
    correlation = np.corrcoef(z.T, a.T)[:4, 4:]
    np.testing.assert_allclose(latent_neuron_alignment(z, a).mean, correlation.max(1).mean(), atol=1e-12)
    absolute = latent_neuron_alignment(z, a, sign="absolute")
    np.testing.assert_allclose(absolute.of_latent, np.abs(correlation).max(1), atol=1e-12)
    one = latent_neuron_alignment(z, a, matching="one_to_one")
    best = max(correlation[range(4), list(p)].mean() for p in permutations(range(5), 4))
    np.testing.assert_allclose(one.mean, best, atol=1e-12)
    assert len(set(one.neuron)) == 4
    cosine = (z.T @ a) / np.linalg.norm(z, axis=0)[:, None] / np.linalg.norm(a, axis=0)
    raw = latent_neuron_alignment(z, a, centred=False)
    np.testing.assert_allclose(raw.of_latent, cosine.max(1), atol=1e-12)


@given(st.integers(0, 1000))
def test_weights_are_repetitions_and_scale_does_not_matter(seed: int) -> None:
    z, a = made(seed)
    times = np.random.default_rng(seed).integers(1, 4, 12)
    repeated = latent_neuron_alignment(np.repeat(z, times, 0), np.repeat(a, times, 0)).of_latent
    weighted = latent_neuron_alignment(z, 3 * a + 5, weights=times).of_latent
    np.testing.assert_allclose(weighted, repeated, atol=1e-12)


def test_maximum_over_positions_and_unused_latents() -> None:
    z, a = made(1)
    z[:, 2] = 0
    positions = np.stack([a, a - 1, np.minimum(a, -9)], axis=1)
    dropped = latent_neuron_alignment(z, positions)
    assert dropped.mean == latent_neuron_alignment(z, a).mean
    counted = latent_neuron_alignment(z, a, unused="zero")
    assert counted.mean == pytest.approx(dropped.mean * 3 / 4)
    assert dropped.neuron[2] == -1
    assert dropped.varying.tolist() == [True, True, False, True]


def test_a_neuron_that_varies_by_rounding_alone_does_not_count() -> None:
    z = np.array([[0], [1], [0], [1]])
    a = np.full((4, 1), 3.7, dtype=np.float32)
    a[1::2] = np.nextafter(a[0, 0], np.float32(9), dtype=np.float32)
    assert latent_neuron_alignment(z, a).mean == 0
    assert latent_neuron_alignment(z, a.astype(np.float64)).mean == pytest.approx(1)


def test_the_null_separates_copies_of_latents_from_noise() -> None:
    random = np.random.default_rng(0)
    z = random.integers(0, 2, (40, 5))
    noise = random.normal(size=(40, 30))
    copies = np.concatenate([noise, z + 0.3 * random.normal(size=z.shape)], axis=1)
    for matching in ("best", "one_to_one"):
        options = {"matching": matching, "permutations": 99}
        found = latent_neuron_alignment(z, copies, random=np.random.default_rng(1), **options)
        assert found.probability == pytest.approx(0.01)
        of_noise = latent_neuron_alignment(z, noise, random=np.random.default_rng(1), **options)
        assert of_noise.probability > 0.05
        again = latent_neuron_alignment(z, noise, random=np.random.default_rng(1), **options)
        assert np.array_equal(of_noise.null, again.null)


def test_the_null_draws_every_order_of_the_samples() -> None:
    z, a = made(0, samples=4, latents=2, neurons=3)
    orders = [latent_neuron_alignment(z[list(order)], a).mean for order in permutations(range(4))]
    found = latent_neuron_alignment(z, a, permutations=2000, random=np.random.default_rng(1)).null
    assert found.mean() == pytest.approx(np.mean(orders), abs=0.02)
    assert found.std() == pytest.approx(np.std(orders), abs=0.02)
    assert np.std(orders) > 0.1


def test_bad_input() -> None:
    z, a = made(0)
    with pytest.raises(InputError, match="give"):
        latent_neuron_alignment(z[:5], a)
    with pytest.raises(InputError, match="NaN"):
        latent_neuron_alignment(z, np.where(a > 0, a, np.nan))
    with pytest.raises(InputError, match="no latent varies"):
        latent_neuron_alignment(np.ones_like(z), a)
    with pytest.raises(InputError, match="4 latents"):
        latent_neuron_alignment(z, a[:, :3], matching="one_to_one")
    with pytest.raises(InputError, match="sign = 'smallest'"):
        latent_neuron_alignment(z, a, sign="smallest")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="generator"):
        latent_neuron_alignment(z, a, permutations=3)
    with pytest.raises(InputError, match="weights"):
        latent_neuron_alignment(z, a, weights=-np.ones(12))
    with pytest.raises(InputError, match="no permutations"):
        _ = latent_neuron_alignment(z, a).probability
