from __future__ import annotations

import numpy as np
import torch
from threadpoolctl import threadpool_info

from joma.threads import limited


def pools() -> dict[str, int]:
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


def test_threads_are_limited_and_given_back() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))
    torch.set_num_threads(2)
    before = pools()
    assert before
    with limited(1):
        assert torch.get_num_threads() == 1
        assert set(pools().values()) == {1}
    assert torch.get_num_threads() == 2
    assert pools() == before
