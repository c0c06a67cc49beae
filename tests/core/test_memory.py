from __future__ import annotations

import gc
import weakref

from joma.core.memory import collect_afterwards


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def test_circles_of_the_block_are_given_back_and_older_ones_left() -> None:
    gc.collect()
    before = gc.get_freeze_count()
    with collect_afterwards() as collect:
        circle = weakref.ref(_Circle())
        collect()
        assert circle() is None
    assert gc.get_freeze_count() == before


def test_what_a_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with collect_afterwards():
            assert 0 < gc.get_freeze_count() <= before
        assert 0 < gc.get_freeze_count() <= before
    finally:
        gc.unfreeze()
