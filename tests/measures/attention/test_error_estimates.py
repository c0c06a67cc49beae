"""Every statistic has an estimate of its error that measured errors stay below, adversaries included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

import joma
from joma.measures.attention import compiled
from joma.measures.attention import entropy as module
from joma.measures.attention.entropy import AttentionEntropy
from joma.measures.attention.scores import BITS, moments_of_sums
from joma.measures.entropy import entropy_of_logits

STATISTICS = (
    "entropy", "normalised_entropy", "entropy_over_log_length", "effective_support", "renyi_2", "renyi_0.5",
    "renyi_3.7", "renyi_0.1", "min_entropy", "largest_probability", "largest_logit", "log_normaliser",
    "first_key_mass", "self_mass", "previous_key_mass", "mean_distance", "distance_spread",
    "entropy_among_keys",
)  # fmt: skip


def exact(scores: Tensor, sinks: Tensor | None = None) -> dict[str, Tensor]:
    """Every statistic of scores (heads, rows, keys) in float64, computed relative to the largest score."""
    rows, keys = scores.shape[1:]
    column = torch.full((len(scores),), -math.inf).double() if sinks is None else sinks.double()
    whole = torch.cat([scores, column[:, None, None].expand(-1, rows, 1)], -1)
    p, among = whole.softmax(-1), scores.softmax(-1)
    log_p = whole.log_softmax(-1)

    def renyi(order: float) -> Tensor:
        return (order * log_p).logsumexp(-1) / (1 - order)

    own = torch.arange(rows) + keys - rows
    distance = (own[:, None] - torch.arange(keys)).double()
    mean = (among * distance).sum(-1)
    entropy = torch.special.entr(p).sum(-1)
    before = p[:, torch.arange(rows), own - 1].clone()
    before[:, own == 0] = math.nan
    outcomes = keys + (sinks is not None)
    found = {
        "entropy": entropy,
        "normalised_entropy": entropy / math.log(outcomes),
        "entropy_over_log_length": entropy / math.log(keys),
        "effective_support": entropy.exp(),
        "min_entropy": -log_p[..., :-1].amax(-1),
        "largest_probability": p[..., :-1].amax(-1),
        "largest_logit": scores.amax(-1),
        "log_normaliser": whole.logsumexp(-1),
        "first_key_mass": p[..., 0],
        "self_mass": p[:, torch.arange(rows), own],
        "previous_key_mass": before,
        "mean_distance": mean,
        "distance_spread": (among * (distance - mean[..., None]).square()).sum(-1).sqrt(),
        "entropy_among_keys": torch.special.entr(among).sum(-1),
        "sink_mass": p[..., -1],
    }
    return found | {f"renyi_{a:g}": renyi(a) for a in (2, 0.5, 3.7, 0.1)}


def check(found: AttentionEntropy, wanted: Mapping[str, Tensor], keys: int) -> None:
    for name, value in found.values.items():
        error = found.errors[name]
        wrong = (value[0].double() - wanted[name]).abs()
        bad = ~(wrong <= error[0].double()) & ~wanted[name].isnan()
        assert not bool(bad.any()), (name, wrong[bad][:3], error[0][bad][:3], wanted[name][bad][:3])
        if name.startswith("renyi") or name == "entropy":
            assert bool((value >= 0).all())
            assert bool((value <= math.log(keys) * (1 + 1e-6)).all())


@pytest.mark.parametrize("size", [1e-2, 1.0, 30.0, 1e4, 1e7])
@pytest.mark.parametrize(("rows", "keys"), [(6, 40), (40, 300)])
@pytest.mark.parametrize("kind", ["random", "sink", "ties"])
@pytest.mark.parametrize("tolerance", [None, math.inf])
def test_of_queries_and_keys(size: float, rows: int, keys: int, kind: str, tolerance: float | None) -> None:
    generator = torch.Generator().manual_seed(keys)
    query = size * torch.randn(1, 2, rows, 8, generator=generator)
    key = torch.randn(1, 2, keys, 8, generator=generator)
    if kind == "sink":
        key[:, :, 0] *= 100
    if kind == "ties":
        key[:, :, 1::2] = key[:, :, ::2]
    found = joma.attention_entropy(query, key, statistics=STATISTICS, tolerance=tolerance)
    check(found, exact((query.double() @ key.double().mT / 8**0.5)[0]), keys)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e7])
def test_of_scores_given_as_a_bias(size: float) -> None:
    generator = torch.Generator().manual_seed(5)
    bias = size * torch.randn(1, 2, 30, 50, generator=generator)
    nothing = torch.zeros(1, 2, 30, 1), torch.zeros(1, 2, 50, 1)
    found = joma.attention_entropy(*nothing, bias=bias, statistics=STATISTICS, tolerance=math.inf)
    check(found, exact(bias[0].double()), 50)


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("tolerance", [None, math.inf])
def test_of_sinks_beside_keys_with_a_mean_that_no_query_sees(mean: float, tolerance: float | None) -> None:
    """All scores are below 6, and the mean's products cancel: the sink alone knows of their rounding."""
    generator = torch.Generator().manual_seed(1)
    width, rows, keys = 16, 400, 400
    direction = torch.nn.functional.normalize(torch.randn(width, generator=generator).double(), dim=0)
    query = torch.randn(1, 2, rows, width, generator=generator).double()
    query = (query - (query @ direction)[..., None] * direction).float()
    key = torch.randn(1, 2, keys, width, generator=generator) + (mean * direction).float()
    sinks = torch.tensor([0.5, 3.0])
    found = joma.attention_entropy(
        query,
        key,
        sinks=sinks,
        statistics=(*STATISTICS, "sink_mass"),
        tolerance=tolerance,
        first_position=0,
    )
    check(found, exact((query.double() @ key.double().mT / 4)[0], sinks), keys + 1)


def test_of_exact_ties_of_any_size() -> None:
    for size in (1e4, 1e8, 1e12):
        query, key = torch.full((1, 1, 1, 1), size), torch.tensor([1.0, 1.0, 0.5])[None, None, :, None]
        found = joma.attention_entropy(query, key, scale=1.0)
        assert abs(found.entropy.item() - math.log(2)) <= found.error.item() <= max(1e-5, 1e-14 * size)
        generator = torch.Generator().manual_seed(int(math.log10(size)))
        query = size * torch.randn(1, 1, 50, 8, generator=generator)
        key = torch.randn(1, 1, 33, 8, generator=generator)
        key[:, :, 11:22] = key[:, :, :11]
        key[:, :, 22:] = key[:, :, :11]
        for tolerance in (None, math.inf):
            found = joma.attention_entropy(query, key, tolerance=tolerance)
            wrong = (found.entropy.double() - math.log(3)).abs()
            assert bool((wrong <= found.error.double()).all())


@pytest.mark.parametrize(
    ("route", "width"),
    [
        *(("compiled", width) for width in (64, 128, 256, 512)),
        *(("flash", width) for width in (16, 32, 64, 96, 128, 192)),
    ],
)
def test_products_that_round_alike_stay_within_the_estimate_and_notice_half_of_it(
    route: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of one number has half of the mass, in many equal products; of the rest each has one product.

    The products of the first are added one after another and lose the same share of a unit again and again;
    to each key there is its opposite, so that their mean is 0. The worst of 60 such numbers; and of
    1,200 rows that one key has nearly to itself, where queries and keys of one number each meet.
    """
    monkeypatch.setattr(compiled, "FEWEST", 0)
    if route == "flash":
        monkeypatch.setattr(module, "compiled_moments", lambda *_: None)
    others, generator = 1000, torch.Generator().manual_seed(0)
    number = 10 / width * (1 + torch.rand(60, generator=generator))
    key = torch.zeros(60, 1, 2 * (others + 1), width)
    key[:, 0, 0], key[:, 0, 1] = number[:, None], -number[:, None]
    single = (width * number.double() - math.log(others)).float()[:, None]
    key[:, 0, 2 : 2 + others, 0], key[:, 0, 2 + others :, 0] = single, -single
    query = torch.ones(60, 1, 17, width)
    found = joma.attention_entropy(query, key, scale=1.0, tolerance=math.inf)
    assert found.route == route
    truth = torch.special.entr((query.double() @ key.double().mT).softmax(-1)).sum(-1)
    worst = [float(((found.entropy.double() - truth).abs() / found.error.double()).max())]
    query, key = (torch.randn(12, 1, 100, 1, generator=generator).expand(-1, -1, -1, width) for _ in "qk")
    found = joma.attention_entropy(query, key, tolerance=math.inf)
    truth = torch.special.entr((query.double() @ key.double().mT / width**0.5).softmax(-1)).sum(-1)
    worst.append(float(((found.entropy.double() - truth).abs() / found.error.double()).max()))
    assert 0.4 < max(worst) <= 1.0, worst


@pytest.mark.parametrize("width", [1, 2, 5, 8, 15])
@pytest.mark.parametrize("others", [1000, 4000])
def test_few_directions_of_a_kernel_that_adds_key_after_key(
    width: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compiled_moments", lambda *_: None)
    number = 10 / width * (1 + torch.rand(20, generator=torch.Generator().manual_seed(0)))
    key = torch.zeros(20, 1, 2 * (others + 1), width)
    key[:, 0, 0], key[:, 0, 1] = number[:, None], -number[:, None]
    single = (width * number.double() - math.log(others)).float()[:, None]
    key[:, 0, 2 : 2 + others, 0], key[:, 0, 2 + others :, 0] = single, -single
    query = torch.ones(20, 1, 17, width)
    found = joma.attention_entropy(query, key, scale=1.0, tolerance=math.inf)
    truth = torch.special.entr((query.double() @ key.double().mT).softmax(-1)).sum(-1)
    assert bool(((found.entropy.double() - truth).abs() <= found.error.double()).all())


def test_entropy_of_nearly_one_hot_rows() -> None:
    mp.dps = 60
    for low in (-5, -18, -38, -80, -600):
        p = [1 / (1 + mp.e ** mpf(low)), mp.e ** mpf(low) / (1 + mp.e ** mpf(low))]
        truth = float(-sum(x * mp.log(x) for x in p))
        for row in (
            [0, low],
            [0.0, float(low)],
            np.array([0, low]),
            torch.tensor([0.0, low], dtype=torch.float64),
        ):
            found = entropy_of_logits(row)
            assert found.dtype == torch.float64
            assert float(found) == pytest.approx(truth, rel=1e-14)
        single = entropy_of_logits(torch.tensor([0.0, float(low)]))
        assert float(single) == pytest.approx(truth, rel=1e-6, abs=1e-37)


def test_what_is_estimated_by_hand() -> None:
    """The sums' estimate, each of its parts as large as the others."""
    top, total, mean = torch.tensor([[[3.0]]]), torch.tensor([[[1.5]]]), torch.tensor([[[-0.5]]])
    sums: dict[str | float, Tensor] = {
        "top": top,
        "total": total,
        "mean": mean * total,
        "square": 4.0 * total,
    }
    longest, length, unit, keys = 5.0, torch.tensor([[[7.0]]]), 0.01, 2048
    given = SimpleNamespace(
        rounding=unit * BITS,
        softcap=None,
        bias=None,
        linear=True,
        key=torch.zeros(1, 1, keys, 1),
        longest=lambda: torch.tensor([[[longest]]]),
    )
    wanted = SimpleNamespace(powers=(), largest=False)
    found = moments_of_sums(given, wanted, sums, length)  # type: ignore[arg-type]
    entropy = (math.log2(1.5) + 0.5) / BITS
    every = unit * (7.0 * longest + 3.0)
    adding = 8 + keys / 2048 + math.log2(1.5) + 0.5
    assert found.entropy.item() == pytest.approx(entropy)
    assert found.score_error.item() == pytest.approx(every)
    assert found.normaliser_error.item() == pytest.approx(unit * (6.0 + 7.0 * 2.0 + adding))
    tail = 2 * entropy * math.expm1(2 * every) + keys * math.exp(2 * every - 126 / BITS)
    plain = unit * (2.5 + 7.0 * 2.0)
    assert found.error.item() == pytest.approx(min(tail, plain) + unit * adding)
    # Scores so large that what has become 0 may not be 0.
    large = SimpleNamespace(**{**vars(given), "longest": lambda: torch.tensor([[[630.0]]])})
    one_key = {"top": top, "total": total / total, "mean": 0 * mean, "square": 1e12 * total}
    far = moments_of_sums(large, wanted, one_key, length)  # type: ignore[arg-type]
    vanished = keys * math.exp(2 * unit * (7.0 * 630.0 + 3.0) - 126 / BITS)
    assert vanished > 1000
    assert far.error.item() == pytest.approx(vanished + unit * 9, rel=1e-4)
