from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.salience import Context, SalienceSums, frequent_contexts

contexts = st.builds(Context, causal=st.booleans(), window=st.sampled_from([None, 1, 3]))


def made(seed: int, rows: int = 5, length: int = 9, neurons: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 4, (rows, length), generator=random)
    mask = torch.rand(rows, length, generator=random) > 0.2
    mask[0] = True
    return tokens, mask, torch.randn(rows, length, neurons, dtype=torch.float64, generator=random)


def samples_of(
    tokens: Tensor, mask: Tensor, gradient: Tensor, query: int, context: Context
) -> list[tuple[int, list[int], np.ndarray]]:
    """(sequence, context, gradient) of each sample, position by position."""
    found = []
    for row in range(tokens.shape[0]):
        for p in range(tokens.shape[1]):
            if tokens[row, p] != query or not mask[row, p]:
                continue
            seen = [
                int(tokens[row, j])
                for j in range(tokens.shape[1])
                if mask[row, j]
                and j != p
                and (j < p or not context.causal)
                and (context.window is None or abs(j - p) <= context.window)
            ]
            if seen:
                found.append((row, seen, gradient[row, p].numpy()))
    return found


@given(st.integers(0, 1000), contexts)
def test_against_enumeration(seed: int, context: Context) -> None:
    tokens, mask, gradient = made(seed)
    chosen = frequent_contexts([(tokens, mask)], query_tokens=4, context_tokens=4, context=context)
    sums = SalienceSums(chosen, 3, context=context, folds=3)
    for begin in (0, 2):  # in two batches
        part = slice(begin, begin + 2 if begin == 0 else None)
        sums.update(tokens[part], mask[part], gradient[part])
    table = sums.table().set_index(["query_token", "context_token"])
    for query, members in chosen.items():
        samples = samples_of(tokens, mask, gradient, query, context)
        x = np.array([[seen.count(int(token)) / len(seen) for token in members] for _, seen, _ in samples])
        g = np.array([values for _, _, values in samples])
        fold = np.array([row for row, _, _ in samples]) % 3
        assert np.all(np.diff(x.mean(0)) <= 1e-12)  # most frequent first, and none is missing:
        assert len({token for _, seen, _ in samples for token in seen}) == len(members)

        def estimates(
            chosen: np.ndarray, x: np.ndarray = x, g: np.ndarray = g
        ) -> tuple[np.ndarray, np.ndarray]:
            delta = x[chosen].T @ g[chosen] / chosen.sum()
            return delta, delta - np.outer(x[chosen].mean(0), g[chosen].mean(0))

        delta, covariance = estimates(np.ones(len(x), bool))
        found = table.loc[query].loc[members.tolist()]
        np.testing.assert_array_equal(found["samples"], len(samples))
        np.testing.assert_array_equal(found["count"], (x > 0).sum(0))
        np.testing.assert_allclose(found["frequency"], x.mean(0), atol=1e-14)
        np.testing.assert_allclose(found["salience"], np.linalg.norm(delta, axis=1), atol=1e-13)
        np.testing.assert_allclose(found["contrast"], np.linalg.norm(covariance, axis=1), atol=1e-13)
        np.testing.assert_allclose(
            found["discriminancy"], np.linalg.norm(delta, axis=1) / x.mean(0), rtol=1e-10
        )
        np.testing.assert_allclose(found["mean_gradient"], np.linalg.norm(g.mean(0)), atol=1e-13)
        folds = np.unique(fold)
        if len(folds) == 1:
            assert found["standard_error"].isna().all()
            continue
        left = [estimates(fold != f) for f in folds]
        for k, name in ((0, "standard_error"), (1, "contrast_standard_error")):
            values = np.array([pair[k] for pair in left])
            variance = (len(folds) - 1) * values.var(axis=0)
            if k == 0 or min((fold != f).sum() for f in folds) > 1:
                np.testing.assert_allclose(found[name], np.sqrt(variance.sum(1)), atol=1e-13)
            else:
                assert found[name].isna().all()


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_saliences_of_all_tokens_add_up_and_scale(seed: int, scale: float) -> None:
    """Shares sum to one, so Delta sums to E[g | m], and the contrasts of a neuron to zero."""
    tokens, mask, gradient = made(seed)
    chosen = frequent_contexts([(tokens, mask)], query_tokens=4, context_tokens=4)
    plain, scaled = SalienceSums(chosen, 3), SalienceSums(chosen, 3)
    plain.update(tokens, mask, gradient)
    scaled.update(tokens, mask, scale * gradient)
    signed = plain.table(neurons=[2, 0]).groupby(["query_token", "neuron"])
    np.testing.assert_allclose(signed["salience"].sum(), signed["mean_gradient"].first(), atol=1e-12)
    np.testing.assert_allclose(signed["contrast"].sum(), 0, atol=1e-12)
    np.testing.assert_allclose(signed["frequency"].sum(), 1, atol=1e-12)
    key = ["query_token", "context_token"]
    a, b = (sums.table().sort_values(key) for sums in (plain, scaled))
    np.testing.assert_allclose(b["salience"], scale * a["salience"], atol=1e-12)
    np.testing.assert_allclose(b["standard_error"], scale * a["standard_error"], atol=1e-12)
    all_signed = plain.table(neurons=range(3)).groupby(key)["salience"].agg(np.linalg.norm)
    np.testing.assert_allclose(all_signed, a.set_index(key)["salience"], atol=1e-12)


def planted(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query token 0 last; two equally likely classes; tokens 1 and 2 are distinct to one, 3 to 6 common."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, rows)
    tokens = random.integers(3, 7, (rows, 20))
    distinct = random.random((rows, 20)) < 0.2
    tokens = np.where(distinct, 1 + label[:, None], tokens)
    tokens[:, -1] = 0
    gradient = np.zeros((rows, 20, 2))
    gradient[:, -1, 0] = 2 * label - 1  # a neuron that is taught the class, and one that is taught nothing
    gradient[:, -1, 1] = random.normal(size=rows)
    return torch.from_numpy(tokens), torch.ones(rows, 20, dtype=torch.bool), torch.from_numpy(gradient)


def test_distinct_tokens_are_salient_and_common_ones_are_not() -> None:
    tokens, mask, gradient = planted(4000, 0)
    sums = SalienceSums({0: range(1, 7)}, 2, folds=20)
    sums.update(tokens, mask, gradient)
    signed = sums.table(neurons=[0, 1]).set_index(["neuron", "context_token"])
    taught, idle = signed.loc[0], signed.loc[1]
    # E[g | l, m] is -1 and +1; P(l | m) is 0.2 / 2 each. For common tokens E[g | l, m] = 0.
    np.testing.assert_allclose(taught.loc[[1, 2], "discriminancy"], [-1, 1], atol=1e-12)
    np.testing.assert_allclose(taught.loc[[1, 2], "salience"], [-0.1, 0.1], atol=0.01)
    np.testing.assert_allclose(taught.loc[[3, 4, 5, 6], "frequency"], 0.2, atol=0.01)
    for rows in (taught.loc[[3, 4, 5, 6]], idle):
        assert (rows["salience"].abs() < 4 * rows["standard_error"]).all()
        assert rows["standard_error"].max() < 0.01
    assert (taught["salience"].abs() > 10 * taught["standard_error"])[[1, 2]].all()
    assert sums.table()["context_token"].head(2).tolist() in ([1, 2], [2, 1])


def test_a_common_mean_of_the_gradient_is_in_salience_but_not_in_contrast() -> None:
    tokens, mask, gradient = planted(4000, 1)
    sums = SalienceSums({0: range(1, 7)}, 2, folds=20)
    sums.update(tokens, mask, gradient + 5.0)
    found = sums.table(neurons=[0]).set_index("context_token").sort_index()
    np.testing.assert_allclose(found.loc[3:6, "discriminancy"], 5, rtol=0.02)
    assert (found.loc[3:6, "contrast"].abs() < 4 * found.loc[3:6, "contrast_standard_error"]).all()
    np.testing.assert_allclose(found.loc[1:2, "contrast"], [-0.1, 0.1], atol=0.01)


def test_standard_errors_are_the_spread_over_texts() -> None:
    found = []
    for seed in range(60):
        tokens, mask, gradient = planted(100, seed)
        sums = SalienceSums({0: range(1, 7)}, 2, folds=10)
        sums.update(tokens, mask, gradient)
        found.append(sums.table(neurons=[0, 1]).sort_values(["context_token", "neuron"]))
    for value, error in (("salience", "standard_error"), ("contrast", "contrast_standard_error")):
        spread = np.std([table[value] for table in found], axis=0)
        mean_error = np.sqrt(np.mean([table[error] ** 2 for table in found], axis=0))
        np.testing.assert_allclose(mean_error, spread, rtol=0.35)


def test_noise_alone_has_the_salience_of_its_standard_error() -> None:
    """Norms over many neurons without a signal: the mean of salience^2 is that of standard_error^2."""
    random = torch.Generator().manual_seed(3)
    tokens, mask, _ = planted(200, 3)
    gradient = torch.randn(200, 20, 400, generator=random)
    sums = SalienceSums({0: range(1, 7)}, 400)
    sums.update(tokens, mask, gradient)
    table = sums.table()
    np.testing.assert_allclose(table["salience"] / table["standard_error"], 1, atol=0.15)


def test_samples_limits_the_queries_but_not_their_contexts() -> None:
    tokens, mask, gradient = made(5)
    samples = torch.zeros_like(mask)
    samples[:, -1] = True
    limited, alone = SalienceSums({1: [0, 2]}, 3), SalienceSums({1: [0, 2]}, 3)
    limited.update(tokens, mask, gradient, samples=samples)
    tokens[:, :-1][tokens[:, :-1] == 1] = 3
    alone.update(tokens, mask, gradient)
    np.testing.assert_allclose(limited.table()["salience"], alone.table()["salience"], atol=1e-14)


def test_batches_may_be_split_and_half_precision_is_taken() -> None:
    tokens, mask, gradient = made(6, rows=8)
    whole, parts = SalienceSums({1: [0, 2]}, 3), SalienceSums({1: [0, 2]}, 3)
    whole.update(tokens, mask, gradient.bfloat16())
    for row in range(8):
        parts.update(tokens[row : row + 1], mask[row : row + 1], gradient[row : row + 1].bfloat16())
    np.testing.assert_allclose(whole.table().to_numpy(), parts.table().to_numpy(), atol=1e-14)


def test_an_explicit_token_that_never_occurs() -> None:
    tokens, mask, gradient = made(7)
    chosen = frequent_contexts([(tokens, mask)], query_tokens=[2], context_tokens=[99, 1])
    sums = SalienceSums(chosen, 3)
    sums.update(tokens, mask, gradient)
    row = sums.table().set_index("context_token").loc[99]
    assert (row["count"], row["frequency"], row["salience"]) == (0, 0, 0)
    assert np.isnan(row["discriminancy"])


def test_bad_input() -> None:
    tokens, mask, gradient = made(8)
    sums = SalienceSums({1: [0, 2]}, 3)
    broken = gradient.clone()
    place = ((tokens == 1) & mask & (mask.cumsum(1) > 1)).nonzero()[0].tolist()
    broken[place[0], place[1], 1] = torch.nan
    for call, message in (
        (lambda: sums.update(tokens.int(), mask, gradient), "int64"),
        (lambda: sums.update(tokens, mask.long(), gradient), "bool"),
        (lambda: sums.update(tokens, mask[:, 1:], gradient), "mask has shape"),
        (lambda: sums.update(tokens, mask, gradient[..., :2]), "gradient has shape"),
        (lambda: sums.update(tokens, mask, broken), f"sequence {place[0]} at position {place[1]}"),
        (lambda: sums.table(), "query token 1 never occurs"),
        (lambda: SalienceSums({1: []}, 3), "context tokens"),
        (lambda: SalienceSums({1: [0]}, 0), "neurons = 0"),
        (lambda: SalienceSums({1: [0]}, 3, folds=1), "folds = 1"),
        (lambda: Context(window=0), "window=0"),
        (lambda: frequent_contexts([]), "empty"),
        (lambda: frequent_contexts([(tokens, torch.zeros_like(mask))]), "empty"),
        (lambda: frequent_contexts([(tokens[:, :1], mask[:, :1])]), "longer sequences"),
        (lambda: frequent_contexts([(tokens, mask)], query_tokens=[77]), "query token 77"),
        (lambda: frequent_contexts([(tokens, mask)], query_tokens=0), "query_tokens = 0"),
        (lambda: frequent_contexts([(tokens, mask)], context_tokens=[]), "context_tokens ="),
        (lambda: frequent_contexts([(tokens - 9, mask)]), "negative"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    full = SalienceSums({1: [0, 2]}, 3)
    full.update(tokens, mask, gradient)
    for neurons in ([3], []):
        with pytest.raises(InputError, match="neurons"):
            full.table(neurons=neurons)
