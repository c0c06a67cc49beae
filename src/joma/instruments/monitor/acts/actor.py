"""Who acts at an alarm: one act after the other, each recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import nn
from torch.optim.optimizer import Optimizer

from joma.core.errors import InputError, words_of
from joma.instruments.monitor.acts.clip import Clip, Head, act_message, why_not
from joma.instruments.monitor.acts.rate import LowerQueryKeyRate, LowerRate, check_optimizer
from joma.instruments.monitor.acts.restore import Restore, check_restore, go_back
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.alarms.telling import ACTS
from joma.instruments.monitor.measuring.products import QueryKey

CALM = 100
"""Steps without a clip after which not every step is looked at any more."""


class Actor:
    """Does what ``on_alarm`` names, an act an alarm, in order; the last one again and again.

    An act that cannot be done gives way to the next one at once, and the reason is recorded.

    Args:
        model: that is trained.
        acts: their names.
        optimizer: the model's; None: the one that a look sees.
        restore: where checkpoints are.
        limit: largest logit that a clip leaves alone.

    Raises:
        InputError: an optimizer of another model; ``restore`` without checkpoints; a limit that is none.
    """

    def __init__(
        self,
        model: nn.Module,
        acts: Sequence[str],
        *,
        optimizer: Optimizer | None,
        restore: Restore | None,
        limit: float,
    ) -> None:
        if not limit > 0:
            raise InputError(f"clip_at = {limit!r} in Monitor is no logit to clip at; give a positive one.")
        check_restore(restore, wanted="restore" in acts)
        self.acts = [act for act in acts if act in ACTS]
        self.optimizer = None if optimizer is None else check_optimizer(model, optimizer)
        self._model, self._restore = model, restore
        self._limit = limit
        self._next = 0
        self._clip: Clip | None = None
        self._calm = 0
        self._closers: list[LowerRate | LowerQueryKeyRate] = []

    def __getstate__(self) -> dict[str, Any]:
        # A copy does nothing: it is not at the training's side.
        return {**vars(self), "acts": [], "optimizer": None, "_clip": None, "_closers": []}

    @property
    def looks(self) -> bool:
        """Whether each step is to be looked at, since heads are being clipped."""
        return self._clip is not None and self._calm < CALM

    def act(
        self, alarms: Sequence[Message], step: int, rows: pd.DataFrame | None, products: Sequence[QueryKey]
    ) -> list[Message]:
        """Answer each alarm, then clip what a look's rows show; what was done."""
        told = [message for alarm in alarms for message in self.answer(alarm, products)]
        if rows is not None and self.looks:
            own = rows[(rows["metric"] == "largest_logit") & (rows["call"] == 0)]
            heads = zip(own["module"].astype(str), own["head"].astype(int), strict=True)
            told += self.clip(step, dict(zip(heads, own["value"].astype(float), strict=True)))
        return told

    def answer(self, alarm: Message, products: Sequence[QueryKey]) -> list[Message]:
        """Act upon an alarm; what was done, and what could not be."""
        told: list[Message] = []
        while self._next < len(self.acts):
            name = self.acts[self._next]
            last = self._next == len(self.acts) - 1
            try:
                told.append(act_message(alarm.step, name, self._do(name, alarm, products)))
                self._next += not last
                return told
            except Exception as error:  # the training goes on
                told.append(act_message(alarm.step, name, f"it could not be done: {words_of(error)}"))
                if last:
                    return told
                self._next += 1
        return told

    def _do(self, name: str, alarm: Message, products: Sequence[QueryKey]) -> str:
        if name == "qk_clip":
            return self._begin_clip(products)
        if name == "restore":
            assert self._restore is not None
            return go_back(self._restore, max(alarm.since, 0), self._model, self.optimizer)
        return self._lower(name, products)

    def _begin_clip(self, products: Sequence[QueryKey]) -> str:
        reasons = {one.place.module: why_not(one, products) for one in products}
        usable = [one for one in products if not reasons[one.place.module]]
        left_out = next(((module, why) for module, why in reasons.items() if why), None)
        if not usable:
            raise InputError(
                f"{left_out[0]}: {left_out[1]}"
                if left_out
                else "queries and keys were not found in this model"
            )
        if self._clip is None:
            self._clip = Clip(self._limit, usable)
        self._calm = 0
        words = f"; {left_out[0]} is left out: {left_out[1]}" if left_out else ""
        return (
            f"from here on each step is looked at, and heads whose largest logit is beyond {self._limit:g} "
            f"are clipped, until {CALM} steps have passed without one{words}"
        )

    def _lower(self, name: str, products: Sequence[QueryKey]) -> str:
        if self.optimizer is None:
            raise InputError("no optimizer of this model was seen yet; give optimizer=")
        kind = LowerRate if name == "lower_rate" else LowerQueryKeyRate
        held = next((one for one in self._closers if isinstance(one, kind)), None)
        if held is None:
            if kind is LowerQueryKeyRate and not products:
                raise InputError("queries and keys were not found in this model")
            held = (
                LowerRate(self.optimizer)
                if kind is LowerRate
                else LowerQueryKeyRate(self.optimizer, products)
            )
            self._closers.append(held)
        held.lower()
        whose = "the learning rate" if kind is LowerRate else "the learning rate of W_Q and W_K"
        return f"{whose} is {held.factor:g} of what the schedule says from the next step on"

    def clip(self, step: int, logits: Mapping[Head, float]) -> list[Message]:
        """Clip the heads that this step's look shows to be beyond the limit, while that goes on."""
        if self._clip is None or not self.looks:
            return []
        told = self._clip.apply(step, logits)
        self._calm = 0 if told else self._calm + 1
        return told

    def close(self) -> None:
        """Leave the optimizer as it was; what was done to the weights stays."""
        for one in self._closers:
            one.close()
        self._closers.clear()
