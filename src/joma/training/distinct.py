"""Training on the distinct sequences of a batch, weighted by how often each was drawn.

Where the class fixes the sequence, a batch of B repeats at most C sequences, and its mean loss is
``sum_k n_k loss_k / B`` with n_k the times class k was drawn: the same function of the parameters, so
the same gradient. The padding in front of a sequence folds away too: without positions, all padding
positions hold the same vector in every layer, so one key of bias log(n_pad) stands for n_pad of them
(softmax adds n_pad equal terms). And only the last position of the last block reaches the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from joma.core.errors import DivergenceError, InputError
from joma.core.progress import Progress
from joma.models.hierarchy import HierarchyNetwork
from joma.models.hierarchy_ensemble import HierarchyEnsemble, arrange
from joma.training.checkpoint import Row, load_checkpoint, save_checkpoint

Rows = list[Row]


@dataclass(frozen=True)
class FoldedSequences:
    """Sequences whose padding has been folded."""

    tokens: Tensor
    """(rows, positions) of int64, as few positions as the longest sequence and one padding key need."""
    key_bias: Tensor
    """(rows, positions): log of how many equal keys each position stands for."""

    def to(self, device: torch.device) -> FoldedSequences:
        """The same on another device."""
        return FoldedSequences(self.tokens.to(device), self.key_bias.to(device))


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
    """How often each class comes, (classes,): exactly the counts of ``draw_classes``' next batch."""
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
    ``joma.training.loop.reproducible``. With a ``checkpoints`` folder a call with the same arguments
    continues where the last one was stopped, to the same table.

    Raises:
        DivergenceError: the loss left the finite numbers; ``error.table`` holds what was measured.
    """
    weights = dict(network.named_parameters())
    example = network.output.bias
    sequences = fold_padding(tokens, padding, dtype=example.dtype).to(example.device)
    generator = torch.Generator().manual_seed(recipe.seed)

    def losses() -> Tensor:
        counts = draw_counts(len(tokens), recipe.batch, generator).to(example.device)
        return weighted_loss(network, sequences, counts)[None]

    return _train(
        _State(weights, recipe, [generator]),
        losses,
        recipe,
        measure=functools.partial(measure, network),
        measure_at=measure_at,
        progress=progress or Progress(),
        label=label,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
    )


def train_together(
    networks: Sequence[HierarchyNetwork],
    tokens: Sequence[Tensor],
    padding: int,
    recipe: DistinctRecipe,
    seeds: Sequence[int],
    *,
    measure: Callable[[int, HierarchyNetwork, int], Rows],
    measure_at: frozenset[int],
    progress: Progress | None = None,
    label: str = "training",
    checkpoints: Path | None = None,
    checkpoint_every: int = 500,
) -> pd.DataFrame:
    """``train_distinct`` for several networks of one shape at once, each on its own ``tokens`` (C, L).

    Network n draws its batches with ``seeds[n]`` (``recipe.seed`` is not used), and goes the way it would
    go alone, but for rounding; it is left trained. ``measure`` is called with n, a copy of the network, and
    the step. When it pays: ``joma.models.hierarchy_ensemble``.

    Raises:
        InputError: numbers of networks, tokens and seeds that differ, or networks of different shapes.
        DivergenceError: as ``train_distinct``.
    """
    if not len(networks) == len(tokens) == len(seeds):
        raise InputError(
            f"train_together: {len(networks)} networks, {len(tokens)} sets of sequences and {len(seeds)} "
            "seeds; give as many of each."
        )
    ensemble = HierarchyEnsemble(networks)
    example = networks[0].output.bias
    classes = len(tokens[0])
    folded = fold_padding(torch.cat(list(tokens)), padding, dtype=example.dtype)
    arranged = arrange(folded.tokens.reshape(len(tokens), classes, -1).to(example.device))
    key_bias = folded.key_bias.reshape(len(tokens), classes, -1).to(example.device)
    targets = torch.arange(classes, device=example.device).expand(len(tokens), classes)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def losses() -> Tensor:
        counts = torch.stack([draw_counts(classes, recipe.batch, generator) for generator in generators])
        logits = ensemble(arranged, key_bias)
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return (each * counts.to(each)).sum(1) / recipe.batch

    def rows(step: int) -> Rows:
        return [row for n in range(len(networks)) for row in measure(n, ensemble.network(n), step)]

    table = _train(
        _State(ensemble.weights, recipe, generators),
        losses,
        recipe,
        measure=rows,
        measure_at=measure_at,
        progress=progress or Progress(),
        label=label,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
    )
    for number, network in enumerate(networks):
        network.load_state_dict(ensemble.network(number).state_dict())
    return table


class _State:
    """What training changes, and what a checkpoint holds: weights, Adam's state, the batches' generators."""

    def __init__(
        self, weights: Mapping[str, Tensor], recipe: DistinctRecipe, generators: list[torch.Generator]
    ) -> None:
        self.weights, self.generators = weights, generators
        self.adam = torch.optim.Adam(
            list(weights.values()), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        )

    def save(self, path: Path, step: int, rows: Rows) -> None:
        tensors = {f"network.{key}": value for key, value in self.weights.items()}
        for number, entry in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{key}": value for key, value in entry.items()}
        random = torch.stack([generator.get_state() for generator in self.generators])
        save_checkpoint(path, tensors | {"random": random}, {"step": step, "rows": rows})

    def restore(self, path: Path) -> tuple[int, Rows]:
        tensors, record = load_checkpoint(path)
        random = tensors.pop("random").view(len(self.generators), -1)
        for generator, of_generator in zip(self.generators, random, strict=True):
            generator.set_state(of_generator.clone())
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "network":
                with torch.no_grad():
                    self.weights[rest].copy_(value)
            else:
                number, _, key = rest.partition(".")
                state.setdefault(int(number), {})[key] = value
        self.adam.load_state_dict({**self.adam.state_dict(), "state": state})
        return record["step"], record["rows"]


def _train(
    state: _State,
    losses: Callable[[], Tensor],
    recipe: DistinctRecipe,
    *,
    measure: Callable[[int], Rows],
    measure_at: frozenset[int],
    progress: Progress,
    label: str,
    checkpoints: Path | None,
    checkpoint_every: int,
) -> pd.DataFrame:
    """The steps: ``losses()`` draws the next batches and gives the loss of every network, (networks,)."""
    weight = next(iter(state.weights.values()))
    progress.note_device(str(weight.device), str(weight.dtype).removeprefix("torch."))
    rows: Rows = []
    first = 0
    path = None if checkpoints is None else checkpoints / "state.safetensors"
    if path is not None and path.exists():
        first, rows = state.restore(path)
    for step in progress.track(range(first, recipe.steps + 1), label, total=recipe.steps + 1, initial=first):
        if path is not None and step > first and step % checkpoint_every == 0:
            state.save(path, step, rows)
        if step in measure_at:
            rows.extend(measure(step))
        if step == recipe.steps:
            break
        loss = losses()
        if not bool(torch.isfinite(loss).all()):
            error = DivergenceError(
                f"{label}: the loss became {loss[~torch.isfinite(loss)][0].item()} at step {step} "
                f"(learning rate {recipe.learning_rate:g}); lower the learning rate."
            )
            error.table = pd.DataFrame(rows)
            raise error
        state.adam.zero_grad()
        # The networks share no weight, so the gradient of the sum is each one's own.
        loss.sum().backward()  # type: ignore[no-untyped-call]
        state.adam.step()
    return pd.DataFrame(rows)
