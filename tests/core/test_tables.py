from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.tables import rows

METRICS = ("entropy", "loss", "kappa")


@given(
    st.lists(st.tuples(st.sampled_from(METRICS), st.integers(0, 2), st.sampled_from([0.5, np.nan]))),
    st.sampled_from(METRICS),
    st.integers(0, 2),
)
def test_rows_are_those_of_the_mask(content: list[tuple[str, int, float]], metric: str, layer: int) -> None:
    table = pd.DataFrame(content, columns=["metric", "layer", "value"])
    mask = [m == metric and number == layer for m, number, _ in content]
    pd.testing.assert_frame_equal(rows(table, metric=metric, layer=layer), table[np.array(mask, dtype=bool)])
    several = [m in METRICS[:2] for m, _, _ in content]
    for values in (list(METRICS[:2]), METRICS[:2]):
        pd.testing.assert_frame_equal(rows(table, metric=values), table[np.array(several, dtype=bool)])


def test_rows_of_a_column_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="run"):
        rows(pd.DataFrame({"metric": ["loss"]}), run=0)
