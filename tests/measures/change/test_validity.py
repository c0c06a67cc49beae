"""Whether the alarm's bound holds for a run is unknown until the run has shown it."""

from __future__ import annotations

import numpy as np
import pytest

from joma.measures.change.detector import FEWEST, LEARNING, SETTLING, add_look, began
from joma.measures.change.e_detector import threshold


def test_a_run_is_judged_after_enough_quiet_looks() -> None:
    rng, state = np.random.default_rng(0), began(2, 3)
    for step in range(SETTLING + FEWEST + 20):
        state, _ = add_look(state, rng.normal(size=(2, 3)), step)
        if step < SETTLING + FEWEST - 1:
            assert np.isnan(state.valid()).all()
            assert np.isnan(state.drift).all()
    assert (state.valid() == 1).all()


@pytest.mark.parametrize("rate", [0.01, 0.02])
@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_what_accelerates_from_the_start_never_alarms_as_valid(rate: float, noise: float) -> None:
    runs, steps = 30, 400
    rng, state = np.random.default_rng(1), began(runs, 1)
    bound, said = threshold(steps, 0.05), np.zeros(runs, dtype=bool)
    for step in range(SETTLING + LEARNING + 200):
        values = np.exp(rate * step) * (1 + noise * rng.standard_normal((runs, 1)))
        state, _ = add_look(state, values, step)
        beyond = (state.evidence.total() >= bound) & ~said
        assert not (state.valid()[beyond] == 1).any()
        said |= beyond
    assert said.any()
