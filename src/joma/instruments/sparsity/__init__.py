"""What a real model's attention and neurons could leave out (``joma sparsity``)."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.settings import setting
from joma.instruments.base import Instrument

EPSILON = 0.1
"""Nats per token."""


@dataclass(frozen=True, kw_only=True)
class SparsitySettings(Instrument):
    """For each token a set of heads, and one of neurons, that keeps its next-token loss within epsilon.

    The settings are those of ``joma.sparsity``.

    Tables: those of ``joma.SparsityResult``.
    """

    title = "contextual sparsity: what each token needs"
    reproduces = "Deja Vu (Liu et al. 2023); nothing in the papers"

    layers: tuple[int, ...] | None = setting(None, "numbers of the layers: 0,5,11 (none: all)", at_least=0)
    epsilon: float = setting(EPSILON, "nats that a token's loss may rise by", above=0)

    def heading(self) -> str:
        """Which model, and which text."""
        return f"the contextual sparsity of {self.reading.model} on {self.reading.source()}"

    def main_table(self) -> str:
        """The sets and what they cost."""
        return "sets"
