"""The one training loop: a model, a text and a recipe in; what was measured on the way out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch
from torch import Tensor, nn

from joma.core.errors import DivergenceError, InputError
from joma.core.progress import Progress
from joma.data.text import Batches, TokenText
from joma.models.language_model import LanguageModel
from joma.training.checkpoint import Row, load_checkpoint, save_checkpoint
from joma.training.fused import ClippedAdam, OutputCrossEntropy

Rows = list[Row]
Model = TypeVar("Model", bound=LanguageModel)
SECONDS_BETWEEN_CHECKPOINTS = 10.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a decoder is trained; the defaults are the JoMA authors' but for ``order``."""

    steps: int
    """Minibatches."""
    learning_rate: float
    optimizer: str = "adam"
    """``adam``, or ``sgd`` (without momentum)."""
    clip: float | None = 0.5
    """Largest 2-norm of the whole gradient."""
    batch: int = 20
    length: int = 35
    """Tokens a window (bptt)."""
    order: str = "random"
    """``random`` windows, or ``sequential`` as the authors read them."""
    restart_optimizer: bool = False
    """Create the optimizer anew at every epoch, as the authors' script does."""
    autocast: bool = False
    """Whether the forward pass computes its products in bfloat16; weights and losses stay as they are."""
    attention_ratio: float = 1.0
    """The learning rate of W_Q and W_K over that of all else, eta_z/eta_w."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in ("adam", "sgd"):
            raise InputError(f"optimizer {self.optimizer!r} is neither 'adam' nor 'sgd'.")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate = {self.learning_rate} must be positive.")
        if not self.attention_ratio > 0:
            raise InputError(f"attention_ratio = {self.attention_ratio} must be positive.")


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seeded random numbers and one thread while the context lasts, then everything as before.

    One thread, since sums over a varying number of threads differ in the last bits; runs are
    parallel across processes instead.
    """
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def seed_step(seed: int) -> None:
    """Seed PyTorch's random numbers, at a cost that a step of training does not feel.

    Without an accelerator ``torch.manual_seed`` queues a call for each kind of them, with the stack as text:
    4 ms.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def train(
    model: Model,
    text: TokenText,
    recipe: Recipe,
    *,
    measure: Callable[[Model, int], Rows],
    measure_at: Sequence[int],
    progress: Progress | None = None,
    label: str = "training",
    checkpoints: Path | None = None,
) -> pd.DataFrame:
    """Train, measure at the chosen steps, and return the rows that ``measure`` gave.

    Call it within ``reproducible``. Step s means: after s minibatches; step 0 is the untrained
    model. With a ``checkpoints`` folder the state is saved every ten seconds, and a call with the
    same arguments continues from there to the same table, bit for bit.

    Raises:
        DivergenceError: the loss left the finite numbers; ``error.table`` holds what was measured.
        InputError: a text shorter than one batch.
    """
    progress = progress or Progress()
    weight = next(model.parameters())
    kind = "bfloat16 autocast" if recipe.autocast else str(weight.dtype).removeprefix("torch.")
    progress.note_device(str(weight.device), kind)
    wanted = frozenset(measure_at)
    batches = Batches(text.training, recipe.batch, recipe.length, recipe.order, recipe.seed)
    cross_entropy = OutputCrossEntropy()
    optimizer = _Optimizer(model, recipe)
    rows: Rows = []
    first = 0
    path = None if checkpoints is None else checkpoints / "state.safetensors"
    if path is not None and path.exists():
        tensors, record = load_checkpoint(path)
        model.load_state_dict(_with_prefix(tensors, "model."))
        optimizer.load(_with_prefix(tensors, "optimizer."))
        _set_random_state(tensors, weight.device)
        rows, first = record["rows"], record["step"]

    def divergence_error(how: str) -> DivergenceError:
        error = DivergenceError(
            f"{label}: {how} (learning rate {recipe.learning_rate:g}); lower the learning rate."
        )
        error.table = pd.DataFrame(rows)
        return error

    last_saved = time.monotonic()
    for step in progress.track(range(first, recipe.steps + 1), label, total=recipe.steps + 1, initial=first):
        # At a step's beginning the state is whole: `step` minibatches done, `rows` up to step - 1.
        if path is not None and time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
            tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
            tensors |= {f"optimizer.{k}": v for k, v in optimizer.state().items()}
            save_checkpoint(path, tensors | _random_state(weight.device), {"step": step, "rows": rows})
            last_saved = time.monotonic()
        if step in wanted:
            model.eval()
            try:
                rows.extend(measure(model, step))
            except InputError as error:
                with torch.no_grad():
                    if bool(torch.isfinite(model.hidden_states(batches[step][0].to(weight.device))).all()):
                        raise
                raise divergence_error(f"the hidden states are no longer finite at step {step}") from error
        if step == recipe.steps:
            break
        if recipe.restart_optimizer and step % batches.per_epoch == 0:
            optimizer.restart()
        model.train()
        inputs, targets = (tokens.to(weight.device, non_blocking=True) for tokens in batches[step])
        with torch.autocast(weight.device.type, torch.bfloat16, enabled=recipe.autocast):
            hidden = model.hidden_states(inputs).to(weight.dtype)
        loss = cross_entropy(
            hidden.reshape(-1, model.width), model.output.weight, model.output.bias, targets.reshape(-1)
        )
        if not bool(torch.isfinite(loss)):
            raise divergence_error(f"the loss became {loss.item()} at step {step}")
        optimizer.step(loss)
    return pd.DataFrame(rows)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """What dropout draws from next."""
    states = {"random": torch.get_rng_state()}
    return states if device.type != "cuda" else states | {"random.cuda": torch.cuda.get_rng_state(device)}


def _set_random_state(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(tensors["random"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random.cuda"], device)


class _Optimizer:
    """The recipe's optimizer with its clipping, and its state as plain tensors."""

    def __init__(self, model: LanguageModel, recipe: Recipe) -> None:
        self.parameters = list(model.parameters())
        self.recipe = recipe
        # Both optimizers move each entry in proportion to the rate: a rate of its own is a longer move.
        self.faster = [] if recipe.attention_ratio == 1.0 else model.queries_and_keys()
        self.restart()

    def restart(self) -> None:
        recipe = self.recipe
        self.adam = (
            ClippedAdam(self.parameters, learning_rate=recipe.learning_rate, clip=recipe.clip)
            if recipe.optimizer == "adam"
            else None
        )
        self.sgd = torch.optim.SGD(self.parameters, lr=recipe.learning_rate)

    def step(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        before = [part.clone() for part in self.faster]
        if self.adam is not None:
            self.adam.step()
        else:
            if self.recipe.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
            self.sgd.step()
        for part, was in zip(self.faster, before, strict=True):
            part.add_(part - was, alpha=self.recipe.attention_ratio - 1.0)

    def state(self) -> dict[str, Tensor]:
        if self.adam is None:
            return {}
        state = self.adam.adam.state_dict()["state"]
        return {f"{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if self.adam is None or not tensors:
            return
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            number, key = name.split(".")
            state.setdefault(int(number), {})[key] = value
        self.adam.adam.load_state_dict({**self.adam.adam.state_dict(), "state": state})


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
