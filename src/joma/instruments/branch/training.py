"""One training up to where its branches part, and each branch from there."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from joma.core.errors import InputError
from joma.instruments.branch.attention import AttentionChange
from joma.instruments.branch.entropy import EntropyTerm
from joma.instruments.branch.interventions import Intervention
from joma.training.loop import reproducible, seed_step

Make = Callable[[], tuple[nn.Module, Optimizer, Any]]
Step = Callable[[nn.Module, Any], Tensor | Mapping[str, Any]]


@dataclass(frozen=True)
class State:
    """A training where its branches part."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    earlier: dict[int, dict[str, Tensor]]
    """Step -> every parameter then, for the steps that a rewind goes to."""


@dataclass(frozen=True)
class Trainer:
    """One seed's training: everything of it follows from the two callables and the seed."""

    make: Make
    step: Step
    seed: int

    def start(self) -> tuple[nn.Module, Optimizer, Any]:
        """A new model with its optimizer and batches.

        Raises:
            InputError: ``make`` returned something else.
        """
        torch.manual_seed(self.seed)
        made = self.make()
        if not (
            isinstance(made, tuple)
            and len(made) == 3
            and isinstance(made[0], nn.Module)
            and isinstance(made[1], Optimizer)
        ):
            raise InputError(
                f"branch: make() returned {type(made).__name__}; return (model, optimizer, batches)."
            )
        if not hasattr(made[2], "__getitem__"):
            raise InputError(
                f"branch: the batches are a {type(made[2]).__name__}, which cannot be read again from a "
                "step; give a list, or an object whose batches[step] is always the same."
            )
        return made

    def trunk(self, at: int, earlier: Collection[int]) -> State:
        """Train up to step ``at``, and keep the parameters of the ``earlier`` steps."""
        return self.states({at}, earlier)[at]

    def states(self, at: Collection[int], earlier: Collection[int]) -> dict[int, State]:
        """Train once; the state at each of these steps, with the parameters of the ``earlier`` ones."""
        with reproducible(self.seed):
            model, optimizer, batches = self.start()
            kept: dict[int, dict[str, Tensor]] = {}
            found: dict[int, State] = {}
            for number in range(max(at) + 1):
                if number in earlier:
                    kept[number] = {n: p.detach().clone() for n, p in model.named_parameters()}
                if number in at:
                    whole = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
                    found[number] = State(*whole, kept)
                if number < max(at):
                    self._train(model, optimizer, self._batch(batches, number), number)
            return found

    def branch(
        self, state: State, at: int, steps: int, intervention: Intervention | None, order: int
    ) -> pd.DataFrame:
        """The statistics of each step, before its update; ``order`` 0 reads the batches as the twin does."""
        with reproducible(self.seed):
            model, optimizer, batches = self.start()
            self._restore(model, optimizer, state)
            numbers = np.arange(at, at + steps)
            if order:
                numbers = np.random.default_rng([self.seed, order]).permutation(numbers)
            slow: list[Tensor] = []
            beside = None if intervention is None else intervention.of_steps()
            factor = 1.0
            if intervention is not None:
                batches = batches if intervention.batches is None else intervention.batches
                slow, factor = self._change(model, optimizer, state, intervention)
            rows = []
            for done, number in enumerate(numbers.tolist()):
                before = [part.clone() for part in slow]
                found = self._train(model, optimizer, self._batch(batches, number), at + done, beside)
                for part, was in zip(slow, before, strict=True):
                    part.copy_(was + factor * (part - was) if factor else was)
                rows += [{"step": at + done, "metric": m, "value": v} for m, v in found.items()]
        return pd.DataFrame(rows)

    def _restore(self, model: nn.Module, optimizer: Optimizer, state: State) -> None:
        try:
            model.load_state_dict(state.model)
            optimizer.load_state_dict(copy.deepcopy(state.optimizer))
        except (RuntimeError, ValueError, KeyError) as error:
            raise InputError(
                "branch: the state does not fit the model that make() returned this time; let make() "
                "return the same model and optimizer at every call."
            ) from error

    def _change(
        self, model: nn.Module, optimizer: Optimizer, state: State, intervention: Intervention
    ) -> tuple[list[Tensor], float]:
        """Do it; the parts of parameters with a learning rate of their own, and its factor."""
        if intervention.change is not None:
            intervention.change(model, optimizer)
        elif intervention.act == "reset-optimizer":
            optimizer.state.clear()
        elif intervention.act == "rewind":
            for part in intervention.parts(model):
                part.of(model).copy_(part.rows_of(state.earlier[intervention.to][part.name]))
        elif intervention.act in ("freeze", "rate") and intervention.factor != 1.0:
            return [part.of(model) for part in intervention.parts(model)], intervention.factor
        return [], 1.0

    def _batch(self, batches: Any, number: int) -> Any:
        try:
            return batches[number]
        except (IndexError, KeyError) as error:
            raise InputError(
                f"branch: there is no batch for step {number}; give batches[step] for every step of the "
                "trunk and the branches."
            ) from error

    def _train(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        batch: Any,
        number: int,
        beside: EntropyTerm | AttentionChange | None = None,
    ) -> dict[str, float]:
        """One step. Its random numbers follow from seed and step, whatever was drawn before."""
        seed_step((self.seed + 1) * 1_000_003 + number)
        model.train()
        optimizer.zero_grad()  # now, and not after the pass, which then finds their memory free
        around = nullcontext() if beside is None else beside.around(model, lambda it: self.step(it, batch))
        with around:
            found = self.step(model, batch)
        values = dict(found) if isinstance(found, Mapping) else {"loss": found}
        loss = values.get("loss")
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            raise InputError(
                "branch: step(model, batch) hides its loss; return the loss as a tensor with its gradient, "
                "or a mapping that has it as 'loss', and leave backward() and the optimizer's step to joma."
            )
        goal = loss if beside is None else beside.goal(loss)
        goal.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {
            str(name): float(value.detach() if isinstance(value, Tensor) else value)
            for name, value in values.items()
        }


def check_repeatable(batches: Any, number: int) -> None:
    """Raises InputError where reading a batch twice gives two batches."""
    try:
        same = _equal(batches[number], batches[number])
    except (IndexError, KeyError):
        return  # said where the batch is needed
    if not same:
        raise InputError(
            f"branch: batches[{number}] is another batch at every call, so that no twin can read it; let it "
            "depend on the step only."
        )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray):
        return bool(torch.equal(torch.as_tensor(one), torch.as_tensor(other)))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return bool(one == other)
