"""The contexts that activate each neuron most, kept while the text streams by: bounded memory, one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.instruments.neurons.attended import MostAttended


class TopContexts:
    """For each neuron the ``top`` windows with the largest activations, one position a window.

    A window counts once, at the position where the neuron is largest: neighbouring positions attend to
    the same tokens and would pass for a pattern. Ties go to the earlier window.
    """

    def __init__(self, neurons: int, *, top: int, attended: int, device: torch.device | None = None) -> None:
        def room(*shape: int, fill: float, dtype: torch.dtype) -> Tensor:
            return torch.full((neurons, top, *shape), fill, dtype=dtype, device=device)

        self.top = top
        self.activation = room(fill=-torch.inf, dtype=torch.float32)
        """(neurons, top) float32, decreasing; -inf where there are fewer contexts."""
        self.window = room(fill=-1, dtype=torch.int64)
        """(neurons, top): number of the window in the order in which windows came, -1 for none."""
        self.position = room(fill=0, dtype=torch.int16)
        """(neurons, top): the query's place in its window."""
        self.attended = room(attended, fill=0, dtype=torch.int16)
        """(neurons, top, attended): the places of what the query attends to, strongest first."""
        self.weight = room(attended, fill=0.0, dtype=torch.float32)
        """(neurons, top, attended): how much it does."""

    def update(self, activations: Tensor, usable: Tensor, attended: MostAttended, first_window: int) -> None:
        """Take in a batch.

        Args:
            activations: (batch, length, neurons).
            usable: (batch, length) bool: positions that may be a context.
            attended: what each position attends to.
            first_window: number of the batch's first window.

        A NaN among the activations is the largest of its window: it stays, and shows at the end.
        """
        # The range within which any position is usable, so that the common case needs no copy.
        columns = usable.any(dim=0).nonzero()
        if not len(columns):
            return
        begin, end = int(columns[0]), int(columns[-1]) + 1
        inside = activations[:, begin:end].float()
        allowed = usable[:, begin:end]
        if not bool(allowed.all()):
            inside = inside.masked_fill(~allowed[..., None], -torch.inf)
        largest = inside.amax(dim=1)
        # Where is cheap to ask only of those that will be kept.
        better = ~(largest <= self.activation[:, -1])
        rows = better.any(dim=0).nonzero()[:, 0]
        if not len(rows):
            return
        place = _argmax(inside, better[:, rows], rows) + begin
        candidates = torch.where(better[:, rows], largest[:, rows], -torch.inf).T
        both = torch.cat([self.activation[rows], candidates], dim=1)
        order = torch.sort(both, dim=1, descending=True, stable=True).indices[:, : self.top]
        self._merge(rows, order, place.T, attended, first_window)
        self.activation[rows] = both.gather(1, order)

    def _merge(
        self, rows: Tensor, order: Tensor, place: Tensor, attended: MostAttended, first_window: int
    ) -> None:
        batch = place.shape[1]
        number = torch.arange(first_window, first_window + batch, device=rows.device).expand(len(rows), -1)
        new = order >= self.top
        sample = (order - self.top).clamp_min(0)
        old = order.clamp_max(self.top - 1)
        position = place.gather(1, sample)
        self.window[rows] = torch.where(new, number.gather(1, sample), self.window[rows].gather(1, old))
        self.position[rows] = torch.where(new, position.to(torch.int16), self.position[rows].gather(1, old))
        for mine, theirs in ((self.attended, attended.positions), (self.weight, attended.weights)):
            kept = mine[rows[:, None], old]
            # Of the batch only what is new.
            kept[new] = theirs[sample[new], position[new]]
            mine[rows] = kept


def _argmax(inside: Tensor, wanted: Tensor, rows: Tensor) -> Tensor:
    """(batch, rows): the position of the largest activation of these neurons, at least where wanted."""
    sample, column = wanted.nonzero(as_tuple=True)
    if len(sample) > inside.shape[0] * inside.shape[2] / 5:
        return inside.max(dim=1).indices[:, rows]
    # Few of them: their columns alone, copied out of the strided batch.
    place = torch.zeros(wanted.shape, dtype=torch.int64, device=inside.device)
    steps = torch.arange(inside.shape[1], device=inside.device)
    place[sample, column] = inside[sample[:, None], steps, rows[column, None]].argmax(dim=1)
    return place
