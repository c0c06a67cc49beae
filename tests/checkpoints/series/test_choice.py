"""Which members are chosen within a budget: properties of the choice, on drawn series."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from joma.checkpoints.series.amounts import Budget, read_budget
from joma.checkpoints.series.choice import END, GAP, LOGARITHMIC, choose, order_by_worth, sentence_of
from joma.checkpoints.series.members import Member
from joma.checkpoints.series.names import Place
from joma.core.errors import InputError

STEPS = some.lists(some.integers(0, 10**7), min_size=1, max_size=60, unique=True).map(sorted)


def _open_gaps(steps: list[int], chosen: set[int]) -> list[tuple[int, int]]:
    """Neighbouring chosen places with others between them."""
    return [(a, b) for a, b in pairwise(sorted(chosen)) if b > a + 1]


@given(STEPS)
def test_every_member_has_one_rank_and_the_ends_come_first(steps: list[int]) -> None:
    order = order_by_worth(steps)
    assert sorted(place for place, _ in order) == list(range(len(steps)))
    assert {place for place, _ in order[:2]} == {0, len(steps) - 1}
    reasons = [reason for _, reason in order]
    assert reasons == sorted(reasons, key=[END, LOGARITHMIC, GAP].index)


@given(STEPS)
def test_log_spaced_ones_leave_no_gap_wider_than_a_doubling(steps: list[int]) -> None:
    chosen = {place for place, reason in order_by_worth(steps) if reason != GAP}
    for a, b in _open_gaps(steps, chosen):
        unit = steps[1] - steps[0]
        assert math.log2((steps[b] - steps[0] + unit) / (steps[a] - steps[0] + unit)) <= 1 + 1e-9


@given(STEPS)
def test_each_further_one_is_nearest_to_the_middle_of_the_largest_gap(steps: list[int]) -> None:
    order = order_by_worth(steps)
    chosen = {place for place, reason in order if reason != GAP}
    for place, _ in (one for one in order if one[1] == GAP):
        gaps = _open_gaps(steps, chosen)
        a, b = next((a, b) for a, b in gaps if a < place < b)
        assert steps[b] - steps[a] == max(steps[high] - steps[low] for low, high in gaps)
        middle = (steps[a] + steps[b]) / 2
        assert abs(steps[place] - middle) == min(abs(steps[one] - middle) for one in range(a + 1, b))
        chosen.add(place)


def _members(steps: list[int], branch: str = "") -> list[Member]:
    return [
        Member(f"{branch}step{one}", Place(step=one, branch=branch), 10 + one % 7, math.nan) for one in steps
    ]


@given(STEPS, some.floats(1.0, 2000.0), some.floats(0.0, 500.0))
def test_a_choice_keeps_its_budget_and_a_larger_budget_keeps_the_choice(
    steps: list[int], amount: float, more: float
) -> None:
    members = _members(steps)
    cost = {one.name: float(one.size) for one in members}

    def chosen(most: float) -> list[str]:
        if cost[members[0].name] > most:
            with pytest.raises(InputError, match="does not suffice for one member"):
                choose(members, cost, Budget("", "bytes", most))
            return []
        return [one.member.name for one in choose(members, cost, Budget("", "bytes", most))]

    few, many = chosen(amount), chosen(amount + more)
    assert sum(cost[name] for name in few) <= amount
    assert many[: len(few)] == few
    left = [members[place].name for place, _ in order_by_worth(steps)][len(few) :]
    assert not left or sum(cost[name] for name in few) + cost[left[0]] > amount


def test_evenly_spaced_members_are_halved_evenly() -> None:
    chosen = sorted(place for place, _ in order_by_worth(list(range(1001)))[:40])
    assert max(b - a for a, b in pairwise(chosen)) <= 64
    assert sum(place < 100 for place in chosen) > 8  # closer at first


def test_lines_take_turns() -> None:
    members = [*_members([0, 10, 20, 30]), *_members([5, 15], "b")]
    found = choose(members, {one.name: 1.0 for one in members}, Budget("4B", "bytes", 4.0))
    assert {one.member.name for one in found} == {"step0", "step30", "bstep5", "bstep15"}
    assert sentence_of(found, 6, Budget("4B", "bytes", 4.0)).startswith(
        "4 of 6 members chosen within 4B (4 bytes)"
    )


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("200GB", "bytes", 2e11),
        ("1 MiB", "bytes", 2**20),
        ("6h", "seconds", 21600),
        ("0.5min", "seconds", 30),
    ],
)
def test_budgets_have_units(text: str, kind: str, amount: float) -> None:
    assert (read_budget(text).kind, read_budget(text).amount) == (kind, amount)


@pytest.mark.parametrize("text", ["", "6", "GB", "-6h", "0h", "6 fortnights", "1e9B", "6h30"])
def test_what_is_no_budget_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match="give bytes or a time, such as 200GB"):
        read_budget(text)
