"""The monitor as a callback of the Hugging Face ``Trainer``."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from joma.core.errors import MissingPackageError
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.monitor import Monitor, MonitorSettings, StopTraining

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise MissingPackageError("joma.hf needs the package transformers: pip install 'joma[hf]'.") from error

_FINE, _ROUGH, _ROUNDED = 2e-3, 1e-2, 1e-4
"""Relative difference of two losses that are the same, in float32 and in 16 bits, and that of four digits."""


_training: weakref.WeakSet[TrainingMonitor] = weakref.WeakSet()
"""Those whose training has not ended: one that was broken off holds its folder."""


class TrainingMonitor(TrainerCallback):
    """``trainer.add_callback(joma.hf.TrainingMonitor())``: a ``joma.Monitor`` that the Trainer drives.

    One step is one optimizer step, whatever is accumulated. The folder is ``joma-monitor`` in the Trainer's
    output directory unless another is given; a run that is resumed from a checkpoint continues it. The loss
    is read at every step where the model itself returns it, before the Trainer hides what is not finite
    (``logging_nan_inf_filter``), and is held against each loss that the Trainer logs. Where they differ
    (distillation, penalties, a loss of several passes), or the model returns none or is compiled, the loss is
    that which the Trainer logs, at its own cadence. So is the gradients' norm where the Trainer clips
    (``max_grad_norm``, its default), which only the Trainer knows. With ``on_alarm="stop"`` (or
    ``on_state="stop"``) the Trainer stops after the step.

    Args:
        settings: those of ``joma.Monitor``, the model aside.
    """

    def __init__(self, **settings: Unpack[MonitorSettings]) -> None:
        self._settings = settings
        self._norm: Tensor | None = None
        self._losses: list[tuple[Tensor, bool]] = []
        self._since_log: list[Tensor] = []
        """The losses that were told since the Trainer's last log."""
        self._tells_loss = False
        self._agreed = 0
        """The last step up to which the model's own loss was the Trainer's."""
        self._began = 0
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
        for broken_off in list(_training):  # a process trains one model at a time with a Trainer
            broken_off._release()
        _training.add(self)
        self._across = args.world_size if args.average_tokens_across_devices else 1
        self.monitor = Monitor(model, **settings)
        self.monitor.begin(state.global_step + 1)
        self._losses.clear()
        self._since_log.clear()
        self._tells_loss = False
        self._agreed = self._began = state.global_step
        if not args.torch_compile and args.label_smoothing_factor == 0:
            self._hook = model.register_forward_hook(self._after_pass, with_kwargs=True)

    def _after_pass(
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
        loss = self._loss()
        self._since_log += [] if loss is None else [loss]
        try:
            self.monitor.done(state.global_step, loss=loss, grad_norm=norm)
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
        logged, told = logs.get("loss"), self._tells_loss
        if logged is None and self._agreed == self._began == 0:
            logged = logs.get("train_loss")  # the mean of a run that ended before the first log
        if told and logged is not None:
            self._hold(state.global_step, float(logged))
        # The last step's own loss is known already, unless nothing but the log tells it.
        loss = None if self._tells_loss else logs.get("loss", logged if told else None)
        self.monitor.note(state.global_step, loss=loss, grad_norm=norm)

    def _hold(self, step: int, logged: float) -> None:
        """Hold the losses since the last log against the Trainer's, which is what trains."""
        own, self._since_log = self._since_log, []
        if self.monitor is None or not own:
            return
        mean = self.monitor.processes.mean(float(torch.stack([loss.float() for loss in own]).mean()))
        rough = any(loss.dtype in (torch.bfloat16, torch.float16) for loss in own)
        if (
            math.isfinite(mean)
            and not abs(mean - logged) <= (_ROUGH if rough else _FINE) * abs(logged) + _ROUNDED
        ):
            self._tells_loss = False
            self._forget_hook()
            self.monitor.replace_losses(
                self._agreed,
                f"the model returns {mean:.4g} where the Trainer trains on {logged:.4g}; from step "
                f"{self._agreed + 1} on the loss is that of the Trainer's log.",
            )
        else:
            self._agreed = step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what is pending; the model is left as it was."""
        self._release()
        _training.discard(self)

    def _forget_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _release(self) -> None:
        self._forget_hook()
        if self.monitor is not None:
            self.monitor.close()
