"""The first sentence about a run names what happened in it: twenty made runs, and what is true of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from joma.instruments.monitor.health import health
from made_monitors import EVERY, Course, healthy, judge
from made_series import story_of

LOOKS, FAULT = 120, 100
"""Looks of a made run, and the one at which something happens to it."""
NEEDED = 18


def dead(course: Course) -> None:
    """A rate of 0.3: all heads on one key from the start, a loss that explodes and ends high."""
    course.entropy[:] = 0.01
    course.rate = 0.3
    course.loss[:] = np.concatenate([np.linspace(4.4, 15, 50), np.linspace(15, 3.15, 1150)])


def diverged(course: Course) -> None:
    course.loss[FAULT * EVERY :] = np.nan


def slow(course: Course) -> None:
    course.loss[:] = (
        4.4 - 0.02 * np.linspace(0, 1, len(course.loss)) + (course.loss - course.loss.mean()) * 0.001
    )


def restarted(course: Course) -> None:
    """The optimizer's state was lost: the loss jumps, and comes back within sixty steps."""
    at = FAULT * EVERY
    course.loss[at : at + 60] += np.linspace(2.0, 0.0, 60)


def blown(course: Course) -> None:
    course.loss[FAULT * EVERY :] += 3.0


def other_text(course: Course) -> None:
    course.loss[FAULT * EVERY :] += 0.7


def collapsing_head(course: Course) -> None:
    course.entropy[FAULT:, 1, 2] = 0.02


def large_logit(course: Course) -> None:
    course.logit[FAULT:, 2, 0] = 140.0


def large_negative_logits(course: Course) -> None:
    course.logit[:] = -2533.0


def dead_layer(course: Course) -> None:
    course.update[:, 1] = 1e-8


def infinite(course: Course) -> None:
    course.residual[FAULT:, 2] = np.inf


def sharpened(course: Course) -> None:
    """Two heads change at once, to levels that are no fault of their own."""
    course.entropy[FAULT:, 0, :2] = 0.4


MONITORED: dict[str, tuple[Callable[[Course], None] | None, tuple[str, ...]]] = {
    "healthy": (None, ("No fault was seen: no alarm",)),
    "dead": (dead, ("not healthy: all 12 heads: attention is on one key", "learning rate, 0.3")),
    "diverged": (diverged, ("not healthy: the loss is nan",)),
    "slow": (slow, ("the loss has hardly fallen: 4.4",)),
    "restarted": (restarted, ("No fault was seen at the end; the loss rose at step", "was back at step")),
    "blown up": (blown, ("not healthy: the loss stands at 4.5", "above the 1.5")),
    "other text": (other_text, ("not healthy: the loss stands at 2.2", "above the 1.5")),
    "collapsing head": (collapsing_head, ("layer 1, head 2: attention is on one key", "since step 1000")),
    "large logit": (large_logit, ("layer 2, head 0: the largest logit is 140 since step 1000",)),
    "large negative logits": (large_negative_logits, ("all 12 heads: the largest logit is -2533",)),
    "dead layer": (dead_layer, ("layer 1: the layer is dead",)),
    "not finite": (infinite, ("layer 2: the residual stream is not finite since step 1000",)),
    "sharpened": (sharpened, ("step 10", "layer 0, head", "attention entropy fell")),
}

TIME = np.linspace(0, 1, 40)
TRACKED: dict[str, tuple[dict[str, np.ndarray], tuple[str, ...]]] = {
    "bounces": (
        {"rank": 10 - 6 * np.sin(np.pi * TIME)},
        ("stable rank", "fell from 10 to 4 by", "and was back at 10"),
    ),
    "falls": ({"rank": 10 - 6 * TIME}, ("stable rank", "fell from 10 to 4.03 by step 390")),
    "rests": ({"rank": 10 + 0 * TIME, "entropy": 3 + 0 * TIME}, ("No curve falls, rises or bounces",)),
    "forms a circuit": (
        {"entropy": 3.2 - 2.8 / (1 + np.exp(-40 * (TIME - 0.5))), "rank": 10 - 0.3 * TIME},
        ("The attention entropy (layer 0", "fell from 3.2 to 0.38"),
    ),
    "collapses": (
        {"rank": 1 + 9 * np.exp(-12 * TIME), "entropy": 3 + 0 * TIME},
        ("stable rank", "fell from 10 to 0.98"),
    ),
    "diverges": (
        {"loss": 3 + 6 * TIME**2, "rank": 10 - 6 * TIME},
        ("The loss rose from 3 to 9.03", "stable rank"),
    ),
    "learns": (
        {"loss": 3 + 6 * np.exp(-5 * TIME), "rank": 10 + 0 * TIME},
        ("The loss fell from 9 to 3.05",),
    ),
}
assert len(MONITORED) + len(TRACKED) == 20


def about(name: str) -> tuple[str, tuple[str, ...]]:
    """The first sentence about a made run, and what it must say."""
    if name in TRACKED:
        courses, words = TRACKED[name]
        return story_of(courses), words
    change, words = MONITORED[name]
    course = healthy(LOOKS)
    if change is not None:
        change(course)
    table, messages, own = judge(course)
    able = (own.change.as_state(), own.change.watched.armed_at is not None)
    return health(table, messages, able), words


@pytest.mark.slow
def test_the_first_sentence_names_the_right_story() -> None:
    said = {name: about(name) for name in [*MONITORED, *TRACKED]}
    wrong = {
        name: sentence for name, (sentence, words) in said.items() if not all(w in sentence for w in words)
    }
    assert len(said) - len(wrong) >= NEEDED, wrong
    # A sentence that fits every run says nothing: no story's words fit another kind of run.
    for name, (_, words) in said.items():
        others = [other for other, (sentence, _) in said.items() if all(w in sentence for w in words)]
        assert set(others) <= {name}, (name, others)


@pytest.mark.parametrize("looks", [0, 8])
def test_a_run_that_has_just_begun(looks: int) -> None:
    course = healthy(max(looks, 1))
    table, messages, own = judge(course)
    able = (own.change.as_state(), own.change.watched.armed_at is not None)
    said = health(table if looks else pd.DataFrame(columns=table.columns), messages, able)
    assert "no alarm was possible yet" in said
