"""The gradients' norm of each step, and whether it is that of the loss."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from joma.instruments.monitor.guard import Guard
from joma.instruments.monitor.measuring.backward import Backwards
from joma.instruments.monitor.measuring.rows import gradient_norm
from joma.instruments.monitor.record import Record


class Scaler(Protocol):
    """``torch.amp.GradScaler``, and what is like it."""

    def get_scale(self) -> float:
        """What losses are multiplied by."""


class GradientNorms:
    """Measures the norm at each step, and holds it at each look against that after the backward pass.

    Args:
        model: whose gradients.
        scaler: of the loop, whose scale the norm is divided by where it is still in the gradients.
    """

    def __init__(self, model: nn.Module, scaler: Scaler | None) -> None:
        self._model = model
        self._scaler = scaler
        self.held: float | None = None
        """That of a look, where the one at the step is another."""
        self.only_at_looks = False
        """Whether what is there at a step is known not to be the loss's gradients."""

    def at_step(self, scaler: Scaler | None = None) -> Tensor | None:
        """The norm of the gradients that are there, on their device; None where it is not to be had."""
        norm = None if self.only_at_looks else gradient_norm(self._model)
        scaler = scaler or self._scaler
        if norm is None or scaler is None or _unscale(scaler):
            return norm
        scale = getattr(scaler, "_scale", None)  # on its device, where it is known
        return norm / (scale.to(norm.device) if isinstance(scale, Tensor) else scaler.get_scale())

    def after_backward(self) -> Tensor | None:
        """The norm of what the backward pass left."""
        return gradient_norm(self._model)

    def hold(
        self,
        backwards: Backwards,
        measured: Tensor | float | None,
        loss: Tensor | float | None,
        record: Record,
        guard: Guard,
    ) -> None:
        """Hold the norm of a step against that after the backward pass; from the first difference on it is
        recorded at looks only."""
        self.held, why = self.at_look(backwards, measured, loss)
        if why:
            guard.say("the gradient norm", f"{why}. It is recorded at looks only, as it was.")
            record.forget("gradient_norm", -1)

    def at_look(
        self, backwards: Backwards, measured: Tensor | float | None, loss: Tensor | float | None
    ) -> tuple[float | None, str]:
        """The norm to record at a look instead of the one that was measured, if any; and why, once."""
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        one = loss is not None and (not isinstance(loss, Tensor) or loss.numel() == 1)
        told = float(loss) if one and loss is not None else None
        true, why = backwards.objection(measured, told)
        if self.only_at_looks:
            return true, ""
        self.only_at_looks = bool(why)
        return (true, why) if why else (None, "")


def _unscale(scaler: Scaler) -> bool:
    """Whether the scaler has divided the gradients already (``unscale_``, ``step``), or is switched off."""
    states = getattr(scaler, "_per_optimizer_states", {}).values()
    stages = (getattr(state.get("stage"), "name", "READY") for state in states)
    return any(stage != "READY" for stage in stages) or not getattr(scaler, "_enabled", True)
