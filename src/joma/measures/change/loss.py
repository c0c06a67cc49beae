"""CUSUM of a loss that may fall for ever: its reference follows while the loss is quiet."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

WINDOW, THRESHOLD, SLACK = 200, 6.0, 1.0


@dataclass
class LossCusum:
    """S = max(0, S + (x - mean)/deviation - 1) over mean and deviation of the last 200 quiet losses.

    A loss joins the reference when the excursion that it belongs to has ended (S is zero again), so that a
    loss that rises does not become its own reference. S is not let grow beyond twice its threshold, so that
    it comes back soon after the loss does. In the rule as published
    (``joma.measures.change.published.cusum``) the reference is the first 200 losses for ever: those of a
    run's beginning are so high that it sees nothing for the rest of the run.
    """

    reference: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    excursion: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Its last 200, as many as the reference takes up."""
    total: float = 0.0

    @property
    def armed(self) -> bool:
        """Whether the reference is full."""
        return len(self.reference) == WINDOW

    def add(self, loss: float) -> bool:
        """Whether S has reached its threshold with this loss. One that is not finite changes nothing."""
        if not math.isfinite(loss):
            return False
        if not self.armed:
            self.reference.append(loss)
            return False
        deviation = float(np.std(self.reference))
        if deviation > 0:
            score = (loss - float(np.mean(self.reference))) / deviation
            self.total = min(max(0.0, self.total + score - SLACK), 2 * THRESHOLD)
        self.excursion.append(loss)
        if self.total == 0:
            self.reference.extend(self.excursion)
            self.excursion.clear()
        return self.total >= THRESHOLD
