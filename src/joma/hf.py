"""The monitor as a callback of the Hugging Face ``Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from joma.instruments.monitor.messages import Message
from joma.instruments.monitor.monitor import Monitor, MonitorSettings, StopTraining


class TrainingMonitor(TrainerCallback):
    """``trainer.add_callback(joma.hf.TrainingMonitor())``: a ``joma.Monitor`` that the Trainer drives.

    One step is one optimizer step, whatever is accumulated. The folder is ``joma-monitor`` in the Trainer's
    output directory unless another is given; a run that is resumed from a checkpoint continues it. The loss
    is read at every step where the model itself returns it, before the Trainer hides what is not finite
    (``logging_nan_inf_filter``); where something else computes it (a loss function of your own, label
    smoothing), or the model is compiled, it is that which the Trainer logs, at its own cadence. So is
    the gradients' norm where the Trainer clips (``max_grad_norm``, its default), which alone knows it.
    With ``on_alarm="stop"`` the Trainer stops after the step.

    Args:
        settings: those of ``joma.Monitor``, the model aside.
    """

    def __init__(self, **settings: Unpack[MonitorSettings]) -> None:
        self._settings = settings
        self._norm: Tensor | None = None
        self._losses: list[tuple[Tensor, bool]] = []
        self._tells_loss = False
        self._across = 1
        """Processes over whose tokens the loss is a mean, of which each has its own share."""
        self._hook: RemovableHandle | None = None
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
        self._release()  # of a training that was broken off
        self._across = args.world_size if args.average_tokens_across_devices else 1
        self.monitor = Monitor(model, **settings)
        self.monitor.begin(state.global_step + 1)
        self._losses.clear()
        self._tells_loss = False
        if not args.torch_compile and args.label_smoothing_factor == 0:
            self._hook = model.register_forward_hook(self._passed, with_kwargs=True)

    def _passed(
        self, module: nn.Module, _inputs: tuple[Any, ...], given: dict[str, Any], output: Any
    ) -> None:
        """Keep a training pass's own loss, on its device, and whether it is a share of the step's."""
        loss = getattr(output, "loss", None)
        if module.training and isinstance(loss, Tensor) and loss.ndim == 0:
            self._tells_loss = True
            # A copy, since the Trainer scales it where it is.
            self._losses.append((loss.detach().clone(), given.get("num_items_in_batch") is not None))

    def _loss(self) -> Tensor | None:
        """The mean over the step's passes; their sum where each was divided by the step's tokens."""
        kept, self._losses = self._losses, []
        if not kept:
            return None
        total = torch.stack([loss.float() for loss, _ in kept]).sum()
        return total * self._across if all(share for _, share in kept) else total / len(kept)

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
            self._norm = self.monitor.gradient_norm()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """One optimizer step is done."""
        if self.monitor is None:
            return
        norm, self._norm = self._norm, None
        try:
            self.monitor.step(state.global_step, loss=self._loss(), grad_norm=norm)
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
        # The last step's own loss is known already, unless nothing but the log tells it.
        self.monitor.note(
            state.global_step, loss=None if self._tells_loss else logs.get("loss"), grad_norm=norm
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what is pending; the model is left as it was."""
        self._release()

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self.monitor is not None:
            self.monitor.close()
