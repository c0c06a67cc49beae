"""What each token attends to, layer by layer, while a model runs: the few strongest, sink and self aside."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.watch.call import AttentionCall
from joma.instruments.watch.owners import Place
from joma.instruments.watch.watch import Watch

_PROBABILITIES_AT_ONCE = 2**20


@dataclass(frozen=True)
class MostAttended:
    """The tokens that each position of a batch attends to most."""

    positions: Tensor
    """(batch, length, attended) int16, strongest first."""
    weights: Tensor
    """(batch, length, attended) float32: attention averaged over heads, 0 where there was no more."""


class AttendedTokens(Watch):
    """Watches the attentions of some modules and keeps, of the last pass, what each query attends to most.

    A token's weight is the attention that it gets from the query, averaged over heads. The query itself
    and the sink (a window's first token, and tokens of ``special`` ids such as separators) are left out:
    they take most of the attention in every context and tell nothing of what the query looks for. The
    other weights are not rescaled; what they lack to 1 went to self, sink and the tokens not kept.
    """

    def __init__(
        self, model: nn.Module, modules: Collection[str], *, attended: int, special: Collection[int] = ()
    ) -> None:
        super().__init__(
            model, layers=sorted(modules), statistics=("entropy",), reduce="mean", rows=None, tolerance=None
        )
        self.modules = frozenset(modules)
        self.attended = attended
        self.special = torch.tensor(sorted(special), dtype=torch.int64)
        self.found: dict[str, MostAttended] = {}
        """By module; emptied by ``begin``."""
        self.failed: dict[str, str] = {}
        """Module -> why its attention could not be read."""
        self._hidden = torch.empty(0)

    def begin(self, tokens: Tensor, mask: Tensor) -> None:
        """Say what the next pass runs on: (batch, length) ids, and False for padding."""
        self.found.clear()
        first = mask.to(torch.int64).argmax(dim=1, keepdim=True)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = ~mask | (place == first)
        if len(self.special):
            hidden |= torch.isin(tokens, self.special.to(tokens.device))
        self._hidden = hidden

    def _measure(self, call: AttentionCall, place: Place) -> None:
        name = place.name
        owner = next((m for m in self.modules if name == m or name.startswith(m + ".")), None)
        # A module's first attention counts: behind it come cross attentions.
        if owner is None or owner in self.found:
            return
        try:
            self.found[owner] = strongest(call, self._hidden, self.attended)
        except InputError as error:
            self.failed[owner] = str(error)


def strongest(call: AttentionCall, hidden: Tensor, attended: int) -> MostAttended:
    """The ``attended`` tokens with the largest mean attention over heads, for each query.

    Args:
        call: self attention, as many keys as queries.
        hidden: (batch, length), True for tokens that do not count.
        attended: how many to keep; with fewer tokens, the rest has weight 0.

    Raises:
        InputError: attention of another shape than the batch's tokens.
    """
    batch, heads, queries, keys = call.shape
    if not call.positions or queries != keys or hidden.shape != (batch, queries):
        raise InputError(
            f"attention of shape {call.shape} over a batch of {tuple(hidden.shape)} tokens: its queries and "
            "keys are not the tokens one by one, so what they attend to cannot be told."
        )
    positions = torch.zeros(batch, queries, attended, dtype=torch.int16, device=hidden.device)
    weights = torch.zeros(batch, queries, attended, device=hidden.device)
    kept = min(attended, keys)
    size = max(1, _PROBABILITIES_AT_ONCE // (heads * queries * keys))
    diagonal = torch.eye(queries, dtype=torch.bool, device=hidden.device)
    for begin in range(0, batch, size):
        part = slice(begin, begin + size)
        mean = mean_attention(call, part) * ~(hidden[part, None, :] | diagonal)
        value, index = mean.topk(kept, dim=-1)
        positions[part, :, :kept] = index.to(torch.int16)
        weights[part, :, :kept] = value
    return MostAttended(positions, weights)


def mean_attention(call: AttentionCall, part: slice) -> Tensor:
    """Attention probabilities averaged over heads, of some samples: (samples, queries, keys), float32.

    Rows that see nothing are zero. A learned sink (a column without a key) takes its share.
    """
    if call.logits is not None:
        scores = call.logits[part].float()
    else:
        assert call.query is not None
        assert call.key is not None
        query, key = call.query[part].float(), call.key[part].float()
        samples, heads, queries, width = query.shape
        # The query heads that share a key head are rows of one product.
        grouped = (query * call.scale).reshape(samples, key.shape[1], -1, width)
        scores = torch.matmul(grouped, key.transpose(-1, -2)).view(samples, heads, queries, -1)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.bias is not None:
        scores = scores + _samples(call.bias, part)
    if call.keep is not None:
        scores = scores.masked_fill(~_samples(call.keep, part), -torch.inf)
    if call.causal:
        # Adding is several times faster than filling under a mask.
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, device=scores.device).triu_(1)
    keys = scores.shape[-1]
    if call.sinks is not None:
        sink = call.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    return torch.softmax(scores, dim=-1)[..., :keys].mean(dim=1).nan_to_num_(0.0)


def _samples(tensor: Tensor, part: slice) -> Tensor:
    return tensor[part] if tensor.ndim == 4 and tensor.shape[0] > 1 else tensor
