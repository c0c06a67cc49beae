"""Training on the distinct sequences of a batch, weighted by how often each was drawn.

Where the class fixes the sequence, a batch of B repeats at most C sequences, and its mean loss is
``sum_k n_k loss_k / B`` with n_k the times class k was drawn: the same function of the parameters, so
the same gradient. The padding in front of a sequence folds away too: without positions, all padding
positions hold the same vector in every layer, so one key of bias log(n_pad) stands for n_pad of them
(softmax adds n_pad equal terms). And only the last position of the last block reaches the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from joma.errors import DivergenceError, InputError
from joma.models.hierarchy import HierarchyNetwork
from joma.progress import Progress
from joma.training.checkpoint import load_checkpoint, save_checkpoint

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class FoldedSequences:
    """Sequences whose padding has been folded."""

    tokens: Tensor
    """(rows, positions) of int64, as few positions as the longest sequence and one padding key need."""
    key_bias: Tensor
    """(rows, positions): log of how many equal keys each position stands for."""


def fold_padding(tokens: Tensor, padding: int, *, dtype: torch.dtype = torch.float32) -> FoldedSequences:
    """Fold the padding in front of each row of ``tokens`` (rows, positions) into one key.

    Rows may differ in length; a row whose folded form holds p padding keys for n gives each log(n / p).

    Raises:
        InputError: padding behind a token, or a row of padding alone.
    """
    if tokens.ndim != 2:
        raise InputError(f"fold_padding: tokens of shape {tuple(tokens.shape)}; give (rows, positions).")
    is_padding = tokens == padding
    if bool((is_padding[:, 1:] & ~is_padding[:, :-1]).any()) or bool(is_padding[:, -1].any()):
        raise InputError(
            f"fold_padding: padding {padding} stands behind a token or fills a row; pad in front only."
        )
    total = tokens.shape[1]
    lengths = total - is_padding.sum(1)
    positions = min(total, int(lengths.max()) + 1)
    folded = tokens[:, total - positions :]
    kept = (positions - lengths).clamp_min(1)
    per_key = torch.log((total - lengths).clamp_min(1).to(dtype) / kept)
    bias = torch.where(folded == padding, per_key[:, None], torch.zeros((), dtype=dtype))
    return FoldedSequences(folded, bias)


def draw_classes(classes: int, batch: int, generator: torch.Generator) -> Tensor:
    """The classes (batch,) of one sampled batch: uniform, with repetition."""
    return torch.randint(classes, (batch,), generator=generator)


def draw_counts(classes: int, batch: int, generator: torch.Generator) -> Tensor:
    """How often each class comes, (classes,): exactly the counts of :func:`draw_classes`' next batch."""
    return torch.bincount(draw_classes(classes, batch, generator), minlength=classes)


def weighted_loss(network: HierarchyNetwork, sequences: FoldedSequences, counts: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of the batch in which row k, of class k, comes ``counts[k]`` times."""
    drawn = counts.nonzero().squeeze(1)
    logits = network(sequences.tokens[drawn], sequences.key_bias[drawn])
    losses = F.cross_entropy(logits, drawn, reduction="none")
    return losses @ counts[drawn].to(losses) / counts.sum()


@dataclass(frozen=True, kw_only=True)
class DistinctRecipe:
    """How the Table 1 network is trained; the defaults are the paper's."""

    steps: int = 10_000
    learning_rate: float = 1e-5
    weight_decay: float = 1e-4
    """Adam's own, added to the gradient (not decoupled)."""
    batch: int = 128
    seed: int = 0


def train_distinct(
    network: HierarchyNetwork,
    tokens: Tensor,
    padding: int,
    recipe: DistinctRecipe,
    *,
    measure: Callable[[HierarchyNetwork, int], Rows],
    measure_at: frozenset[int],
    progress: Progress | None = None,
    label: str = "training",
    checkpoints: Path | None = None,
    checkpoint_every: int = 500,
) -> pd.DataFrame:
    """Train on ``tokens`` (C, L), one row per class; return the rows that ``measure`` gave.

    Step s means: after s batches; 0 is the untrained network. Call it within
    :func:`joma.training.loop.reproducible`. With a ``checkpoints`` folder a call with the same arguments
    continues where the last one was stopped, to the same table.

    Raises:
        DivergenceError: the loss left the finite numbers; ``error.table`` holds what was measured.
    """
    progress = progress or Progress()
    parameters = list(network.parameters())
    sequences = fold_padding(tokens, padding, dtype=parameters[0].dtype)
    adam = torch.optim.Adam(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    generator = torch.Generator().manual_seed(recipe.seed)
    rows: Rows = []
    first = 0
    path = None if checkpoints is None else checkpoints / "state.safetensors"
    if path is not None and path.exists():
        first, rows = _restore(path, network, adam, generator)
    for step in progress.track(range(first, recipe.steps + 1), label, total=recipe.steps + 1, initial=first):
        if path is not None and step > first and step % checkpoint_every == 0:
            _save(path, network, adam, generator, step, rows)
        if step in measure_at:
            rows.extend(measure(network, step))
        if step == recipe.steps:
            break
        loss = weighted_loss(network, sequences, draw_counts(len(tokens), recipe.batch, generator))
        if not bool(torch.isfinite(loss)):
            error = DivergenceError(
                f"{label}: the loss became {loss.item()} at step {step} "
                f"(learning rate {recipe.learning_rate:g}); lower the learning rate."
            )
            error.table = pd.DataFrame(rows)
            raise error
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return pd.DataFrame(rows)


def _save(
    path: Path,
    network: HierarchyNetwork,
    adam: torch.optim.Adam,
    generator: torch.Generator,
    step: int,
    rows: Rows,
) -> None:
    tensors = {f"network.{key}": value for key, value in network.state_dict().items()}
    for number, entry in adam.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{key}": value for key, value in entry.items()}
    save_checkpoint(path, tensors | {"random": generator.get_state()}, {"step": step, "rows": rows})


def _restore(
    path: Path, network: HierarchyNetwork, adam: torch.optim.Adam, generator: torch.Generator
) -> tuple[int, Rows]:
    tensors, record = load_checkpoint(path)
    generator.set_state(tensors.pop("random"))
    state: dict[int, dict[str, Tensor]] = {}
    weights = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "network":
            weights[rest] = value
        else:
            number, _, key = rest.partition(".")
            state.setdefault(int(number), {})[key] = value
    network.load_state_dict(weights)
    adam.load_state_dict({**adam.state_dict(), "state": state})
    return record["step"], record["rows"]
