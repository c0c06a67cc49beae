"""One decoder's training up to its dip, and the branches from there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
from torch import Tensor
from torch.optim import Optimizer

from joma.data.text import Batches, TokenText
from joma.experiments.beyond.why_bounce import PRE_NORM, WhyBounce
from joma.experiments.beyond.why_bounce.forces import Forces
from joma.experiments.beyond.why_bounce.held_out import HeldOutWindows, losses_of_tokens
from joma.instruments.branch.interventions import Intervention
from joma.instruments.branch.run import ClippedStep
from joma.instruments.branch.training import State, Trainer
from joma.models.decoder import Decoder

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Decoders:
    """How one seed's decoder is made, for ``joma.branch``'s trainer."""

    settings: WhyBounce
    text: TokenText
    depth: int
    seed: int

    def make(self) -> tuple[Decoder, Optimizer, Batches]:
        """A new decoder, its optimizer, and the batches of its seed."""
        own = self.settings
        model = Decoder(
            self.text.vocabulary_size,
            layers=self.depth,
            width=own.width,
            hidden=own.hidden,
            heads=own.heads,
            dropout=own.dropout,
            longest=own.length,
            pre_norm=own.decoder == PRE_NORM,
            rotary=own.decoder == PRE_NORM,
        )
        optimizer = ClippedStep(model, learning_rate=own.rate, clip=own.clip)
        return model, optimizer, Batches(self.text.training, own.batch, own.length, own.order, self.seed)

    def branch(
        self, held_out: HeldOutWindows, state: State, at: int, way: Intervention | None, order: int = 0
    ) -> pd.DataFrame:
        """The measured steps of one branch: step, metric and value."""
        course = Course(held_out, self.settings.measure_every, at)
        trainer = Trainer(self.make, course, self.seed)  # type: ignore[arg-type]
        found = trainer.branch(state, at, self.settings.steps - at, way, order)
        return found[found["metric"] != "loss"]


@dataclass
class Course:
    """The training step, which measures the decoder at every so many of its calls."""

    held_out: HeldOutWindows
    every: int
    next_step: int = 0
    divide_every: int = 0
    """Steps after which the entropy's change is divided among the sets of parameters; 0: never."""
    forces: Forces | None = None
    rows: list[dict[str, float | str]] = field(default_factory=list)

    def __call__(self, model: Decoder, batch: Batch) -> dict[str, Tensor | float]:
        """The loss, and at measured steps what was measured before the update."""
        inputs, targets = batch
        each = losses_of_tokens(model(inputs), targets)
        found: dict[str, Tensor | float] = {"loss": each.mean()}
        if self.divide_every and self.next_step % self.divide_every == 0:
            self.forces = self.forces or Forces(self.held_out, model)
            self.forces.advance(model)
        if self.next_step % self.every == 0:
            measured = self.held_out.measure(model) | self.held_out.losses(each, targets, "training")
            found |= measured
            self.rows += [
                {"step": self.next_step, "metric": metric, "value": value}
                for metric, value in measured.items()
            ]
        self.next_step += 1
        return found


def train_twin(decoders: Decoders, held_out: HeldOutWindows) -> tuple[pd.DataFrame, Forces, dict[int, State]]:
    """The training that nothing is done to: its measurements, its forces, its states where a dip may be."""
    settings = decoders.settings
    course = Course(held_out, settings.measure_every, divide_every=settings.divide_every)
    steps = settings.measured_steps()
    kept = {*settings.possible_dips(), 0, settings.steps}
    states = Trainer(decoders.make, course, decoders.seed).states(kept, steps)  # type: ignore[arg-type]
    assert course.forces is not None
    return pd.DataFrame(course.rows), course.forces, states
