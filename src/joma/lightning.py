"""The monitor as a callback of Lightning's ``Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from torch import Tensor
from torch.optim import Optimizer

from joma.core.errors import MissingPackageError
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.monitor import Monitor, MonitorSettings, StopTraining

try:
    import lightning
except ImportError as error:
    raise MissingPackageError(
        "joma.lightning needs the package lightning: pip install 'joma[lightning]'."
    ) from error


class TrainingMonitor(lightning.Callback):
    """``lightning.Trainer(callbacks=[joma.lightning.TrainingMonitor()])``: a ``joma.Monitor``.

    One step is one optimizer step, whatever is accumulated; its loss is that of its last batch. The folder is
    ``joma-monitor`` in the Trainer's root directory unless another is given; a run that is resumed continues
    it. With ``on_alarm="stop"`` (or ``on_state="stop"``) the Trainer stops after the step.

    Args:
        settings: those of ``joma.Monitor``, the model aside.
    """

    def __init__(self, **settings: Unpack[MonitorSettings]) -> None:
        super().__init__()
        self._settings = settings
        self._norm: Tensor | None = None
        self.monitor: Monitor | None = None

    @property
    def messages(self) -> list[Message]:
        """What the monitor has said so far."""
        return [] if self.monitor is None else self.monitor.messages

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Open the monitor at the step that the Trainer begins with."""
        planned = trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None
        settings: MonitorSettings = {
            "folder": Path(trainer.default_root_dir) / "joma-monitor",
            "steps": planned,
            **self._settings,
        }
        if self.monitor is not None:
            self.monitor.close()  # of a training that was broken off
        self.monitor = Monitor(pl_module, **settings)
        self.monitor.begin(trainer.global_step + 1)

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: Optimizer
    ) -> None:
        """Keep the norm of the gradients, which are gone when the step is done."""
        if self.monitor is not None:
            self._norm = self.monitor.gradient_norm()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """A batch is done; a step is, if the optimizer moved."""
        if self.monitor is None or trainer.global_step <= self.monitor.last:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        norm, self._norm = self._norm, None
        if isinstance(loss, Tensor) and pl_module.automatic_optimization:
            loss = loss.detach() * trainer.accumulate_grad_batches  # Lightning has divided it
        try:
            self.monitor.done(
                trainer.global_step, loss=loss if isinstance(loss, Tensor) else None, grad_norm=norm
            )
        except StopTraining:
            trainer.should_stop = True

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Write what is pending, though the training broke off."""
        if self.monitor is not None:
            self.monitor.close()

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write what is pending; the model is left as it was."""
        if self.monitor is not None:
            self.monitor.close()
