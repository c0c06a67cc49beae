"""Token salience, read off gradients: which context tokens a hidden neuron is being taught, query by query.

For samples i whose query (last) token is m, with x_l[i] the share of token l in the sample's context and
g[i] the back-propagated gradient at the hidden neurons,

    Delta_lm = E_{q=m}[g x_l] = E[g | l, m] P(l | m)                        (JoMA Thm 2 and Sec. 3.1)

is *discriminancy* times *frequency*: distinct tokens have a large ``|Delta|``, common ones about none,
provided ``E[g | m] = 0``. Where that mean is not zero a common token inherits it in proportion to its
frequency, and ``Cov_{q=m}(g, x_l) = Delta_lm - P(l | m) E[g | m]``, here *contrast*, is what tells
distinct from common.

With several neurons Theorem 2's winner is the token of largest norm of Delta over the neurons, which is
what is reported, or the signed value of chosen neurons. The norm of a noisy vector is never zero: each
norm comes with the standard error of the vector, which is the norm to expect where there is no signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.errors import InputError

if TYPE_CHECKING:
    import pandas

Batch = tuple[Tensor, Tensor]
"""Tokens (batch, length) of int64, and a mask (batch, length) of bool, False where there is padding."""


@dataclass(frozen=True)
class Context:
    """Which positions a query sees. It never counts among its own context."""

    causal: bool = True
    """Only positions before the query; else those on both sides."""
    window: int | None = None
    """How many positions to either side, at most; all if None."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InputError(f"Context(window={self.window}): a query must see at least one position.")

    def bounds(self, length: int) -> tuple[Tensor, Tensor]:
        """First position in sight and first one beyond it, each (length,); the query's own lies between
        them if it sees both sides.
        """
        here = torch.arange(length)
        reach = length if self.window is None else self.window
        last = here if self.causal else (here + 1 + reach).clamp_max(length)
        return (here - reach).clamp_min(0), last


@dataclass(frozen=True)
class QuerySamples:
    """The samples of one query token in a batch: n of them."""

    rows: Tensor
    """(n,): the sequence of each."""
    positions: Tensor
    """(n,): the query's position in it."""
    shares: Tensor
    """(n, context tokens), float64: x_l, the share of each context token in the sample's context."""


def frequent_contexts(
    batches: Iterable[Batch],
    *,
    query_tokens: int | Sequence[int] = 8,
    context_tokens: int | Sequence[int] = 32,
    context: Context | None = None,
) -> dict[int, Tensor]:
    """Query tokens of a text, and the tokens that are most frequent in the context of each.

    Args:
        batches: (tokens, mask), see ``Batch``; they are gone through twice.
        query_tokens: these tokens, or the so many most frequent ones with a context.
        context_tokens: these tokens, or the so many of largest P(l | m), fewer where fewer occur.
        context: what a query sees; all before it if None.

    Returns:
        query token -> context tokens (int64), most frequent first. Ties go to the smaller token.

    Raises:
        InputError: batches of another shape or type, no text, a query token that never has a context.
    """
    where, context = "frequent_contexts", context or Context()
    for name, wanted in (("query_tokens", query_tokens), ("context_tokens", context_tokens)):
        if (wanted if isinstance(wanted, int) else len(wanted)) < 1:
            raise InputError(f"{where}: {name} = {wanted}; ask for at least one.")
    kept = [_checked_batch(tokens, mask, where) for tokens, mask in batches]
    if not kept or not any(bool(mask.any()) for _, mask in kept):
        raise InputError(
            f"{where}: the text is empty; give at least one batch with tokens that are no padding."
        )
    size = 1 + max(int(tokens.max()) for tokens, mask in kept)
    lengths = [_context_lengths(mask, context) for _, mask in kept]
    occurrences = torch.zeros(size, dtype=torch.int64)
    for (tokens, mask), length in zip(kept, lengths, strict=True):
        occurrences += torch.bincount(tokens[mask & (length > 0)], minlength=size)
    queries = _queries(occurrences, query_tokens)
    chosen = {}
    for query in queries:
        frequency = torch.zeros(size, dtype=torch.float64)
        for (tokens, mask), length in zip(kept, lengths, strict=True):
            sample = mask & (tokens == query) & (length > 0)
            weight = _context_weights(sample / length.clamp_min(1).double(), context)
            frequency.index_add_(0, tokens[mask], weight[mask])
        if isinstance(context_tokens, int):
            order = torch.argsort(frequency, descending=True, stable=True)[:context_tokens]
            # What a sliding sum leaves of cancelled terms is no occurrence.
            chosen[query] = order[frequency[order] > 1e-12]
        else:
            chosen[query] = torch.as_tensor(list(context_tokens), dtype=torch.int64)
    return chosen


class SalienceSums:
    """Adds up, batch by batch, what Delta_lm and its standard error take. Holds no token of the text.

    Args:
        contexts: query token -> context tokens (see ``frequent_contexts``).
        neurons: number of hidden neurons, the last axis of the gradients.
        context: what a query sees; all before it if None.
        folds: sequences are dealt in turn to this many folds, on which the standard errors rest
            (samples of one sequence share their context, so they are not independent). At least 2.

    Memory: 8 * folds * neurons bytes for each pair of query and context token, whatever the text's length.
    """

    def __init__(
        self,
        contexts: Mapping[int, Tensor | Sequence[int]],
        neurons: int,
        *,
        context: Context | None = None,
        folds: int = 4,
    ) -> None:
        if folds < 2:
            raise InputError(f"SalienceSums: folds = {folds}; a standard error takes at least 2.")
        if neurons < 1:
            raise InputError(f"SalienceSums: neurons = {neurons}; there must be at least one.")
        self.contexts = {int(m): torch.as_tensor(c, dtype=torch.int64) for m, c in contexts.items()}
        if not self.contexts or any(c.ndim != 1 or c.numel() == 0 for c in self.contexts.values()):
            raise InputError(
                "SalienceSums: give at least one query token, each with a list of context tokens."
            )
        self.neurons, self.folds, self.context = neurons, folds, context or Context()
        self._sequences = 0
        self._sums = {m: _Sums(folds, c.numel(), neurons) for m, c in self.contexts.items()}

    def update(
        self, tokens: Tensor, mask: Tensor, gradient: Tensor, *, samples: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            tokens: (batch, length), int64.
            mask: (batch, length), bool; False where there is padding.
            gradient: (batch, length, neurons), any real floating type: of minus the loss.
            samples: (batch, length), bool: the positions that may be queries; all of ``mask`` if None.

        Raises:
            InputError: shapes or types that do not match, a gradient that is not finite (and where).
        """
        self.add(query_samples(self.contexts, tokens, mask, samples=samples, context=self.context), gradient)

    def add(self, samples: Mapping[int, QuerySamples], gradient: Tensor) -> None:
        """``update`` with samples that were found before, for several layers of one batch."""
        if gradient.ndim != 3 or gradient.shape[2] != self.neurons or not gradient.is_floating_point():
            raise InputError(
                f"SalienceSums: gradient has shape {tuple(gradient.shape)} and type {gradient.dtype}; give "
                f"(batch, length, {self.neurons}), real floating point."
            )
        for query, found in samples.items():
            if not found.rows.numel():
                continue
            rows, positions = found.rows.to(gradient.device), found.positions.to(gradient.device)
            g = gradient[rows, positions].detach().double().cpu()
            bad = ~torch.isfinite(g).all(dim=1)
            if bool(bad.any()):
                first = int(bad.nonzero()[0])
                raise InputError(
                    f"SalienceSums: the gradient holds NaN or infinity at {int(bad.sum())} position(s), the "
                    f"first in sequence {int(found.rows[first])} at position {int(found.positions[first])}; "
                    "compute it in float32 or leave this text out."
                )
            self._sums[query].add((found.rows + self._sequences) % self.folds, found.shares, g)
        self._sequences += gradient.shape[0]

    def table(self, *, neurons: Sequence[int] | None = None) -> pandas.DataFrame:
        """What was found: a row for each pair of query and context token, largest ``salience`` first.

        Columns, gradients in nats per unit of activation:

        - ``query_token``, ``context_token``; ``samples``: positions with this query, ``count``: those of
          them that have the token in their context;
        - ``frequency``: P(l | m), the mean share of the context;
        - ``discriminancy``: norm of E[g | l, m] over the neurons (NaN where the token never occurs);
        - ``salience``: norm of Delta_lm, the product of these two; ``standard_error``: root of the summed
          variances of its components (jackknife over the folds), which is about the salience that noise
          alone would show. Of a true salience s, the measured one's square has mean
          s^2 + standard_error^2. NaN where only one fold has samples;
        - ``contrast``: norm of Cov(g, x_l | m), with ``contrast_standard_error`` (NaN where a fold holds
          all samples but one);
        - ``mean_gradient``: norm of E[g | m].

        With ``neurons`` there is a row for each of these as well, in column ``neuron``, and signed values
        take the place of the norms; sorted by size all the same.

        Raises:
            InputError: a query token without samples, an unknown neuron.
        """
        import pandas as pd

        if neurons is not None:
            wrong = [k for k in neurons if not 0 <= k < self.neurons]
            if wrong or not neurons:
                raise InputError(f"SalienceSums: neurons = {neurons}; there are 0 to {self.neurons - 1}.")
        parts: list[dict[str, NDArray[np.generic]]] = []
        for query, sums in self._sums.items():
            if not int(sums.samples.sum()):
                raise InputError(
                    f"SalienceSums: query token {query} never occurs with a context in what was added; "
                    "choose another, or give a longer text."
                )
            columns = sums.columns(None if neurons is None else list(neurons))
            context = self.contexts[query].numpy()
            size = columns["salience"].size
            labels = {"query_token": np.full(size, query), "context_token": context}
            if neurons is not None:
                labels["context_token"] = context.repeat(len(neurons))
                labels["neuron"] = np.tile(np.asarray(neurons), len(context))
            order = np.argsort(-np.abs(columns["salience"]), kind="stable")
            parts.append({name: column[order] for name, column in {**labels, **columns}.items()})
        return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def query_samples(
    contexts: Mapping[int, Tensor],
    tokens: Tensor,
    mask: Tensor,
    *,
    samples: Tensor | None = None,
    context: Context | None = None,
) -> dict[int, QuerySamples]:
    """Each query token's samples in a batch; arguments and errors as of ``SalienceSums.update``."""
    context = context or Context()
    tokens, mask = _checked_batch(tokens, mask, "query_samples")
    usable = mask if samples is None else mask & samples.cpu()
    lengths = _context_lengths(mask, context)
    first, last = context.bounds(tokens.shape[1])
    found = {}
    for query, members in contexts.items():
        rows, positions = (usable & (tokens == query) & (lengths > 0)).nonzero(as_tuple=True)
        used, inverse = torch.unique(rows, return_inverse=True)
        present = (tokens[used, :, None] == members) & mask[used, :, None]
        counts = torch.zeros(used.numel(), tokens.shape[1] + 1, members.numel(), dtype=torch.float64)
        torch.cumsum(present, dim=1, dtype=torch.float64, out=counts[:, 1:])
        seen = counts[inverse, last[positions]] - counts[inverse, first[positions]]
        if not context.causal:
            seen = seen - (members == query).double()
        found[query] = QuerySamples(rows, positions, seen / lengths[rows, positions, None])
    return found


class _Sums:
    """Of one query token, fold by fold: samples, and sums of x, g and x g."""

    def __init__(self, folds: int, members: int, neurons: int) -> None:
        self.samples = torch.zeros(folds, dtype=torch.int64)
        self.counts = torch.zeros(members, dtype=torch.int64)
        self.shares = torch.zeros(folds, members, dtype=torch.float64)
        self.gradients = torch.zeros(folds, neurons, dtype=torch.float64)
        self.products = torch.zeros(folds, members, neurons, dtype=torch.float64)

    def add(self, fold: Tensor, shares: Tensor, gradients: Tensor) -> None:
        self.counts += (shares > 0).sum(0)
        for f in torch.unique(fold).tolist():
            mine = fold == f
            x, g = shares[mine], gradients[mine]
            self.samples[f] += x.shape[0]
            self.shares[f] += x.sum(0)
            self.gradients[f] += g.sum(0)
            self.products[f].addmm_(x.T, g)

    def columns(self, neurons: list[int] | None) -> dict[str, NDArray[np.float64]]:
        products = self.products if neurons is None else self.products[:, :, neurons]
        gradients = self.gradients if neurons is None else self.gradients[:, neurons]
        samples = self.samples.double()
        total = (samples.sum(), self.shares.sum(0), gradients.sum(0), products.sum(0))
        frequency, mean, delta, contrast = _estimates(*total)
        held = self.samples.nonzero()[:, 0].tolist()
        error = contrast_error = torch.full_like(delta, torch.nan)
        if len(held) > 1:
            each = (samples, self.shares, gradients, products)
            rest = ([whole - part[f] for whole, part in zip(total, each, strict=True)] for f in held)
            error, contrast_error = _jackknife([_estimates(*sums)[2:] for sums in rest])
            if total[0] - samples.max() < 2:  # a single sample has no covariance
                contrast_error = torch.full_like(delta, torch.nan)
        discriminancy = delta / torch.where(frequency > 0, frequency, torch.nan)[:, None]
        vectors = {
            "discriminancy": discriminancy,
            "salience": delta,
            "standard_error": error,
            "contrast": contrast,
            "contrast_standard_error": contrast_error,
            "mean_gradient": mean.expand_as(delta),
        }
        columns = {
            "samples": torch.full_like(self.counts, int(self.samples.sum())),
            "count": self.counts,
            "frequency": frequency,
        }
        if neurons is None:
            columns |= {name: torch.linalg.vector_norm(v, dim=1) for name, v in vectors.items()}
        else:
            columns = {name: v.repeat_interleave(len(neurons)) for name, v in columns.items()}
            columns |= {name: v.flatten() for name, v in vectors.items()}
        return {name: column.numpy() for name, column in columns.items()}


def _estimates(
    samples: Tensor, shares: Tensor, gradients: Tensor, products: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P(l | m), E[g | m], Delta and the covariance from sums over the samples."""
    frequency, mean, delta = shares / samples, gradients / samples, products / samples
    return frequency, mean, delta, delta - frequency[:, None] * mean


def _jackknife(without: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Standard errors of two estimates, from what they are without each fold."""
    found = []
    for values in zip(*without, strict=True):
        mean = sum(values[1:], values[0]) / len(values)
        squares = sum(((value - mean).square_() for value in values), torch.zeros_like(mean))
        found.append((squares * ((len(values) - 1) / len(values))).sqrt_())
    return found[0], found[1]


def _context_lengths(mask: Tensor, context: Context) -> Tensor:
    """(batch, length): how many tokens each position sees, itself left out."""
    counts = torch.nn.functional.pad(mask.cumsum(1), (1, 0))
    first, last = context.bounds(mask.shape[1])
    return counts[:, last] - counts[:, first] - (0 if context.causal else mask.long())


def _context_weights(samples: Tensor, context: Context) -> Tensor:
    """Sums, at each position, the weights (batch, length) of the samples that see it.

    A sample at p sees j where j lies in p's bounds; sight being mutual, the sum over p runs over j's
    bounds mirrored.
    """
    counts = torch.nn.functional.pad(samples.cumsum(1), (1, 0))
    length = samples.shape[1]
    here = torch.arange(length)
    reach = length if context.window is None else context.window
    after = counts[:, (here + 1 + reach).clamp_max(length)] - counts[:, here + 1]
    return after if context.causal else after + counts[:, here] - counts[:, (here - reach).clamp_min(0)]


def _queries(occurrences: Tensor, wanted: int | Sequence[int]) -> list[int]:
    if isinstance(wanted, int):
        order = torch.argsort(occurrences, descending=True, stable=True)[:wanted]
        found = [int(token) for token in order if occurrences[token] > 0]
        if not found:
            raise InputError("frequent_contexts: no token has another in its context; give longer sequences.")
        return found
    for token in wanted:
        if not 0 <= token < occurrences.numel() or not occurrences[token]:
            raise InputError(
                f"frequent_contexts: query token {token} never occurs with a context in this text; choose "
                "one that does."
            )
    return [int(token) for token in wanted]


def _checked_batch(tokens: Tensor, mask: Tensor, where: str) -> Batch:
    if tokens.ndim != 2 or tokens.dtype != torch.int64:
        raise InputError(
            f"{where}: tokens have shape {tuple(tokens.shape)} and type {tokens.dtype}; give (batch, length) "
            "of int64."
        )
    if mask.shape != tokens.shape or mask.dtype != torch.bool:
        raise InputError(
            f"{where}: the mask has shape {tuple(mask.shape)} and type {mask.dtype}; give bool of the "
            f"tokens' shape {tuple(tokens.shape)}, False where there is padding."
        )
    if bool((tokens < 0).any()):
        raise InputError(f"{where}: token {int(tokens.min())} is negative; tokens are numbers from 0 on.")
    return tokens.cpu(), mask.cpu()
