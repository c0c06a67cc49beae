from __future__ import annotations

import numpy as np
import torch
from threadpoolctl import threadpool_info

from joma.core.threads import FEWEST_ENTRIES, by_work, limit_threads


def pools() -> dict[str, int]:
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


def test_threads_are_limited_and_given_back() -> None:
    np.ones((2, 2)) @ np.ones((2, 2))
    torch.set_num_threads(2)
    before = pools()
    assert before
    with limit_threads(1):
        assert torch.get_num_threads() == 1
        assert set(pools().values()) == {1}
    assert torch.get_num_threads() == 2
    assert pools() == before


def test_small_matrices_take_one_thread_and_large_ones_all() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with by_work(FEWEST_ENTRIES - 1):
            assert torch.get_num_threads() == 1
            assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        assert torch.get_num_threads() == 2
        with by_work(FEWEST_ENTRIES):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
