"""Runs without their pictures: drawing one takes seconds, and is tried where the picture is the subject."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from joma.runs.job import Job


@contextmanager
def undrawn() -> Iterator[None]:
    """Within the block every run's picture is an empty sheet."""
    from matplotlib.figure import Figure

    with patch.object(Job, "draw", lambda _job, _tables: Figure((1, 1))):
        yield
