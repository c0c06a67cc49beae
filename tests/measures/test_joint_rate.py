"""The slope of attention's logits over what Theorem 1 predicts of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from joma.core.errors import InputError
from joma.measures.joint_rate import joint_rate

HALF = torch.rand(2, 3, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_theorem_1s_own_logits_give_kappa_whatever_each_query_adds():
    offset = torch.randn(2, 3, 14, 1, dtype=torch.float64)
    logits = 0.7 * HALF[:, :, None] + offset
    logits[..., 0] = 50.0  # the sink
    found = joint_rate(logits + torch.full((14, 14), 9.0).triu(1), HALF)
    assert found.kappa == pytest.approx(0.7, rel=1e-12)
    assert found.share == pytest.approx(1.0)


def test_it_is_the_regression_within_queries():
    logits = torch.randn(2, 3, 14, 14, dtype=torch.float64)
    xs, ys = [], []
    for b in range(2):
        for h in range(3):
            for q in range(10, 14):
                x, y = HALF[b, h, 1 : q + 1].numpy(), logits[b, h, q, 1 : q + 1].numpy()
                xs.append(x - x.mean())
                ys.append(y - y.mean())
    x, y = np.concatenate(xs), np.concatenate(ys)
    found = joint_rate(logits, HALF)
    assert found.kappa == pytest.approx(np.linalg.lstsq(x[:, None], y, rcond=None)[0][0])
    assert found.share == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="must be"):
        joint_rate(torch.zeros(2, 3, 14, 13), HALF)
    with pytest.raises(InputError, match="leave no query"):
        joint_rate(torch.zeros(2, 3, 5, 5), HALF[..., :5])
    with pytest.raises(InputError, match="do not vary"):
        joint_rate(torch.randn(2, 3, 14, 14), torch.ones_like(HALF))
