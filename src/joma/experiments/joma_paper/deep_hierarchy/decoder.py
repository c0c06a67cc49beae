"""The same questions, put to an ordinary decoder: to whom does the query attend, and when?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.progress import Progress
from joma.experiments.joma_paper.deep_hierarchy import DECODER, DeepHierarchy
from joma.experiments.joma_paper.deep_hierarchy.sequences import Questions, heights, questions
from joma.experiments.shared.tables import Rows
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder
from joma.training.loop import reproducible

WIDTH, HIDDEN, BATCH, LOOKED_AT, RATE = 32, 64, 128, 2000, 1e-3
MOMENTS = 60


@dataclass(frozen=True, eq=False)
class _Batch:
    """Sequences (rows, longest): a start token, the context in random order, the query, padding."""

    sequences: Tensor
    query_at: Tensor
    there: Tensor
    """(rows,): 1 where the query's token is there."""


def train(settings: DeepHierarchy, run: str, seed: int, progress: Progress) -> pd.DataFrame:
    """One causal decoder with dropout 0 and Adam, asked about tokens; rows as those of the stack.

    The association of a query with a token is the attention logit of its position, over the mean logit of
    the other tree's tokens in the same row, less the same at the start.
    """
    asked, height = questions(settings, "tokens", run, seed), heights(settings, run)
    rng = np.random.default_rng([seed, 7])
    rows: Rows = []
    with reproducible(seed):
        size = len(height)
        net = Decoder(
            size + 3, layers=settings.layers, width=WIDTH, hidden=HIDDEN, dropout=0.0, longest=size + 2
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        shown = _draw(asked, LOOKED_AT, rng)
        start: list[dict[int, float]] = []
        measured = set(np.geomspace(1, settings.decoder_steps, MOMENTS).round().astype(int)) | {0}
        for step in progress.track(range(settings.decoder_steps + 1), f"decoder, {run}"):
            if step in measured:
                at = {"step": step, "time": step * RATE}
                loss, entropy, found = _look(net, shown, height)
                start = start or found
                excess = (size * loss - asked.floor) / (asked.ceiling - asked.floor)
                rows.append({"table": "losses", **at, "metric": "excess loss", "value": excess})
                rows.append({"table": "entropy", **at, "metric": "entropy", "value": entropy})
                rows += [
                    {
                        "table": "associations",
                        **at,
                        "layer": number + 1,
                        "height": h,
                        "metric": "association",
                        "value": value - start[number][h],
                    }
                    for number, layer in enumerate(found)
                    for h, value in layer.items()
                ]
            optimizer.zero_grad()
            batch = _draw(asked, BATCH, rng)
            _loss(net, net.hidden_states(batch.sequences), batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return pd.DataFrame(rows).assign(task=DECODER, run=run, seed=seed, dtype="float32")


def _draw(asked: Questions, count: int, rng: np.random.Generator) -> _Batch:
    """Rows as often as they occur; padding comes last, where a causal mask hides it from the query."""
    size = asked.inputs.shape[1]
    which = rng.choice(len(asked.weights), count, p=asked.weights / asked.weights.sum())
    present = asked.inputs[which] > 0
    lengths = present.sum(axis=1)
    order = np.argsort(np.where(present, rng.random(present.shape), 2.0), axis=1)
    sequences = np.full((count, size + 2), size)
    sequences[:, 1:-1] = np.where(np.arange(size) < lengths[:, None], order, size)
    sequences[np.arange(count), lengths + 1] = asked.asked[which]
    there = rng.random(count) < asked.answers[which, 1]
    return _Batch(torch.from_numpy(sequences), torch.from_numpy(lengths + 1), torch.from_numpy(there).long())


def _loss(net: Decoder, states: Tensor, batch: _Batch) -> Tensor:
    """Cross-entropy of the last two words of the vocabulary, "absent" and "there", at the query."""
    last = states[torch.arange(len(states)), batch.query_at]
    return torch.nn.functional.cross_entropy(net.output(last)[:, -2:], batch.there)


@torch.no_grad()
def _look(
    net: Decoder, batch: _Batch, height: NDArray[np.int64]
) -> tuple[float, float, list[dict[int, float]]]:
    """Loss; entropy of layer 1's attention of the queries, nats; mean logits by layer and height."""
    seen: list[Tensor] = []
    each = torch.arange(len(batch.sequences))
    states = net.hidden_states(
        batch.sequences, observe=lambda layer, attention: seen.append(attention[each, 0, batch.query_at])
    )
    query = batch.sequences[each, batch.query_at]
    place = torch.arange(batch.sequences.shape[1])
    context = (place > 0) & (place < batch.query_at[:, None])
    tokens = torch.where(context, batch.sequences, 0)
    apart = torch.where(context, torch.from_numpy(height)[query[:, None], tokens], -1)
    other = apart == height.max()
    found = []
    for attention in seen:
        logits = attention.clamp_min(torch.finfo(attention.dtype).tiny).log()
        base = torch.where(other, logits, 0.0).sum(1) / other.sum(1)
        over = logits - base[:, None]
        usable = other.any(1)[:, None]
        found.append(
            {h: float(over[usable & (apart == h)].double().mean()) for h in range(1, int(height.max()))}
        )
    entropy = float(entropy_of_probabilities(seen[0]).mean())
    return float(_loss(net, states, batch)), entropy, found
