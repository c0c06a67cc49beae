"""Which members of a series tell most: the ends, log-spaced ones, then the middles of the largest gaps."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from joma.checkpoints.series.amounts import Budget, in_words_of
from joma.checkpoints.series.members import Member, lines
from joma.core.arguments import Array
from joma.core.errors import InputError

END, LOGARITHMIC, GAP = "end of its line", "log-spaced", "largest gap halved"
"""Why a member is chosen."""


@dataclass(frozen=True)
class Choice:
    """A member that was chosen."""

    member: Member
    reason: str
    """``END``, ``LOGARITHMIC`` or ``GAP``."""
    cost: float


def order_by_worth(steps: Sequence[float]) -> list[tuple[int, str]]:
    """All members of a line, the ones that tell most first, each with the reason.

    First the ends; then, on the logarithm of the steps since the first one, the member nearest to the middle
    of the largest gap, until none is wider than a doubling; then the same on the steps themselves. A longer
    choice so holds every shorter one.

    Args:
        steps: of the members, growing.

    Returns:
        Each place once, with its reason.

    Examples:
        >>> from joma.checkpoints.series.choice import order_by_worth
        >>> [place for place, _ in order_by_worth([0, 1, 2, 4, 8, 16])]
        [0, 5, 3, 4, 2, 1]
    """
    if len(steps) < 3:
        return [(place, END) for place in range(len(steps))]
    since = np.asarray(steps, dtype=float) - float(steps[0])
    after = since[since > 0]
    logs = np.log2(1.0 + since / (after[0] if len(after) else 1.0))
    chosen = [(0, END), (len(steps) - 1, END)]
    _halve(logs, chosen, LOGARITHMIC, widest=1.0)
    _halve(since, chosen, GAP, widest=0.0)
    return chosen


def _halve(times: Array, chosen: list[tuple[int, str]], reason: str, widest: float) -> None:
    """Add to the chosen ones the middles of gaps that are wider than ``widest``, the largest first."""
    known = sorted(place for place, _ in chosen)
    gaps = [(-(times[b] - times[a]), a, b) for a, b in pairwise(known) if b > a + 1]
    heapq.heapify(gaps)
    while gaps:
        width, a, b = heapq.heappop(gaps)
        if -width <= widest and widest > 0:
            return
        middle = (times[a] + times[b]) / 2
        after = min(b - 1, max(a + 1, bisect_left(times, middle, a + 1, b)))
        place = min((max(a + 1, after - 1), after), key=lambda one: abs(times[one] - middle))
        chosen.append((place, reason))
        for low, high in ((a, place), (place, b)):
            if high > low + 1:
                heapq.heappush(gaps, (-(times[high] - times[low]), low, high))


def choose(members: Sequence[Member], cost: Mapping[str, float], budget: Budget) -> list[Choice]:
    """The members that tell most within a budget, in the order of their worth; lines take turns.

    Args:
        members: of the series, each content once.
        cost: of each by its name, in the budget's kind.
        budget: what all together may take.

    Raises:
        InputError: it does not suffice for one of them.
    """
    ordered = [
        [(line[place], reason) for place, reason in order_by_worth([one.place.step for one in line])]
        for line in lines(members)
    ]
    chosen: list[Choice] = []
    spent = 0.0
    for turn in zip_longest(*ordered):
        for member, reason in filter(None, turn):
            spent += cost[member.name]
            if spent > budget.amount:
                if not chosen:
                    raise InputError(_too_small(budget, cost, in_words_of(budget.kind)))
                return chosen
            chosen.append(Choice(member, reason, cost[member.name]))
    return chosen


def _too_small(budget: Budget, cost: Mapping[str, float], words: Callable[[float], str]) -> str:
    least = min(cost.values())
    return (
        f"budget = {budget.text} does not suffice for one member: they take {words(least)} and more; give "
        "more, or fewer --layers."
    )


def sentence_of(chosen: Sequence[Choice], members: int, budget: Budget) -> str:
    """Which members were chosen, and why, in one sentence."""
    parts = []
    for reason in (END, LOGARITHMIC, GAP):
        names = [one.member.name for one in chosen if one.reason == reason]
        if names:
            parts.append(f"{reason}: {', '.join(names)}")
    total = in_words_of(budget.kind)(sum(one.cost for one in chosen))
    return f"{len(chosen)} of {members} members chosen within {budget.text} ({total}): {'; '.join(parts)}"
