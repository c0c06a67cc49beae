"""The monitor as a callback of the Hugging Face ``Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from joma.probes.live.messages import Message
from joma.probes.live.monitor import Monitor, MonitorSettings, StopTraining
from joma.probes.live.rows import gradient_norm


class TrainingMonitor(TrainerCallback):
    """``trainer.add_callback(joma.hf.TrainingMonitor())``: a :class:`joma.Monitor` that the Trainer drives.

    One step is one optimizer step, whatever is accumulated. The folder is ``joma-monitor`` in the Trainer's
    output directory unless another is given; a run that is resumed from a checkpoint continues it. The loss
    is that which the Trainer logs, at its own cadence; it hides losses that are not finite
    (``logging_nan_inf_filter``), which show in the gradient's norm at their own step. With
    ``on_alarm="stop"`` the Trainer stops after the step.

    Args:
        settings: those of :class:`joma.Monitor`, the model aside.
    """

    def __init__(self, **settings: Unpack[MonitorSettings]) -> None:
        self._settings = settings
        self._norm: Tensor | None = None
        self.monitor: Monitor | None = None

    @property
    def messages(self) -> list[Message]:
        """What the monitor has said so far."""
        return [] if self.monitor is None else self.monitor.messages

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Open the monitor at the step that the Trainer begins with."""
        if model is None:
            return
        settings: MonitorSettings = {
            "folder": Path(args.output_dir or ".") / "joma-monitor",
            "steps": state.max_steps if state.max_steps > 0 else None,
            **self._settings,
        }
        self.monitor = Monitor(model, **settings)
        self.monitor.begin(state.global_step + 1)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the norm of the gradients, which are gone when the step is done.

        Where the Trainer clips, they are clipped already, and the norm that it logs is taken instead.
        """
        if self.monitor is not None and model is not None and not args.max_grad_norm:
            self._norm = gradient_norm(model)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """One optimizer step is done."""
        if self.monitor is None:
            return
        norm, self._norm = self._norm, None
        try:
            self.monitor.step(state.global_step, grad_norm=norm)
        except StopTraining:
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """The loss that the Trainer tells, and the gradients' norm before it clipped them."""
        if self.monitor is None or logs is None:
            return
        norm = logs.get("grad_norm") if args.max_grad_norm else None
        self.monitor.note(state.global_step, loss=logs.get("loss"), grad_norm=norm)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what is pending; the model is left as it was."""
        if self.monitor is not None:
            self.monitor.close()
