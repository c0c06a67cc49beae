from __future__ import annotations

import numpy as np
import pytest

from joma.checks import block_rank
from joma.core.errors import InputError
from joma.theory.block_salience import weights_of_nodes


def test_claims():
    assert {claim.verdict for claim in block_rank.block_rank()} == {"holds"}
    assert all(claim.null is not None for claim in block_rank.block_rank())


def test_stable_rank_of_known_matrices():
    assert block_rank.stable_ranks(np.eye(4)) == pytest.approx(4.0)
    assert block_rank.stable_ranks(np.ones((3, 5))) == pytest.approx(1.0)
    assert block_rank.stable_ranks(np.diag([2.0, 1.0])) == pytest.approx(1.25)


def test_columns_that_are_alike_keep_the_rank(monkeypatch):
    """Nothing is salient: no drop, and the claim that there is one fails."""
    monkeypatch.setattr(block_rank, "FIGURE_4", (2.5,) * 10)
    found = {claim.id: claim.verdict for claim in block_rank.block_rank()}
    assert found["block_rank.drops_and_rebounds"] == "fails"


def test_nodes_need_a_matrix():
    with pytest.raises(InputError, match="give \\(nodes, components\\)"):
        weights_of_nodes([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="mu"):
        weights_of_nodes([[1.0, 0.0], [2.0, 0.0]], [1.0])
