"""Opens looks at a model and takes what they saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
from torch import nn
from torch.optim.optimizer import Optimizer

from joma.instruments.monitor.guard import Guard
from joma.instruments.monitor.measuring.blocks import Block
from joma.instruments.monitor.measuring.look import Look, Observation
from joma.instruments.monitor.measuring.norms import GradientNorms
from joma.instruments.monitor.measuring.rows import frame, tidy


class Looks:
    """One look after the other, each with the same settings.

    Args:
        model, statistics, layers, rows, blocks: as of a look.
        norms: of the gradients.
        stepped: is shown the optimizer of the model before it steps at a look.
        guard: says what goes wrong.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: Sequence[str],
        layers: Iterable[int | str] | None,
        rows: float | None,
        *,
        blocks: Sequence[Block],
        norms: GradientNorms,
        stepped: Callable[[Optimizer], None],
        guard: Guard,
    ) -> None:
        self._settings = (model, statistics, None if layers is None else list(layers), rows, blocks)
        self._norms, self._stepped, self._guard = norms, stepped, guard
        self.look: Look | None = None
        """The one that is open."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "look": None}  # a copy looks at nothing that is open

    def open(self) -> None:
        """Begin to look, where none is open."""
        if self.look is None:
            look = Look(*self._settings, self._norms.after_backward, self._stepped)
            if self._guard.attempt("a look", look.open):
                self.look = look

    def close(self) -> None:
        """Leave the model as it was."""
        if self.look is not None:
            look, self.look = self.look, None
            self._guard.attempt("a look", look.close)

    def take(self, step: int) -> tuple[pd.DataFrame, Sequence[Observation]]:
        """What the look that is open saw, as rows and as tensors; what it could not see is said."""
        look = self.look
        self.close()
        if look is None:
            return frame([]), []
        seen, problem = look.observations()
        if problem:
            self._guard.say("a look failed", problem)
        return tidy(step, seen), seen
