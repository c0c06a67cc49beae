"""The error of a member between its neighbours, against the geometry of points and segments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import minimize_scalar

from joma.checkpoints.series.audit.continuity import cosines, error_at, squared_distances
from joma.core.arguments import Array

POINTS = arrays.arrays(
    np.float64, st.tuples(st.integers(3, 6), st.integers(1, 4)), elements=st.floats(-8, 8, width=16)
)


def distance(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other))


def expected(points: Array, place: int) -> float:
    """Distance from the segment, found by search, over the largest move here or beyond a neighbour."""
    low, own, up = points[place - 1 : place + 2]
    found = minimize_scalar(
        lambda share: distance(own, low + share * (up - low)), bounds=(0, 1), options={"xatol": 1e-10}
    )
    nearest = min(found.fun, distance(own, low), distance(own, up))
    moves = [distance(low, up)]
    moves += [distance(low, points[place - 2])] if place > 1 else []
    moves += [distance(up, points[place + 2])] if place + 2 < len(points) else []
    return 0.0 if nearest < 1e-9 else nearest / max(moves) if max(moves) else float("inf")


@given(POINTS)
def test_the_error_is_the_distance_from_the_segment_over_the_largest_move(points: Array) -> None:
    squares = squared_distances(points)
    for place in range(1, len(points) - 1):
        found, right = error_at(squares, range(len(points)), place), expected(points, place)
        # Distances come from squares, which lose half of the digits where points are near each other.
        assert found == pytest.approx(right, rel=1e-5, abs=1e-5), (points, place)


@given(POINTS)
def test_distances_and_cosines_are_those_of_the_points(points: Array) -> None:
    squares, turned = squared_distances(points), cosines(points)
    for one in range(len(points)):
        for other in range(len(points)):
            assert squares[one, other] == pytest.approx(distance(points[one], points[other]) ** 2, abs=1e-9)
            sizes = np.linalg.norm(points[one]) * np.linalg.norm(points[other])
            expected = points[one] @ points[other] / sizes if sizes else 0.0
            assert turned[one, other] == pytest.approx(expected, abs=1e-9)
