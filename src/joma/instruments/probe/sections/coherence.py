"""How nearly orthogonal the token representations of a real model are, within its layers and between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.reading.lent import Anatomy, input_embeddings
from joma.instruments.reading.passes import Output
from joma.instruments.reading.shared import Batches, Part, TokenSection, as_function
from joma.instruments.reading.texts import TokenBatch
from joma.measures.coherence import (
    BINS,
    Cosines,
    Directions,
    aligned_coherence,
    cross_coherence,
    embedding_coherence,
    random_absolute_cosine,
    random_cosine_quantile,
    random_largest_cosine,
)

if TYPE_CHECKING:
    import pandas

_QUANTILES = (0.5, 0.95)


_WHERE = "representation_coherence"


_Row = dict[str, str | int | float | bool | None]


@dataclass(frozen=True)
class _Layer:
    stack: str
    layer: int | None
    place: str


@dataclass(frozen=True)
class _Occurrences:
    """Occurrences: of which token, and where."""

    tokens: Tensor
    batch: Tensor
    row: Tensor
    position: Tensor


def _draw(
    batches: Sequence[TokenBatch], tokens: int, occurrences: int, skip: int, generator: torch.Generator
) -> _Occurrences:
    found = []
    for number, (ids, mask) in enumerate(batches):
        row, position = (mask & (mask.cumsum(1) > skip)).nonzero(as_tuple=True)
        found.append(torch.stack([ids[row, position], torch.full_like(row, number), row, position]))
    places = torch.cat(found, dim=1)
    distinct = torch.unique(places[0])
    if distinct.numel() < 3:
        raise InputError(
            f"representation_coherence: the text has {distinct.numel()} distinct token(s) beyond the first "
            f"{skip} position(s) of each sequence; at least 3 are needed to compare."
        )
    chosen = distinct[torch.randperm(distinct.numel(), generator=generator)[:tokens]]
    places = places[:, torch.isin(places[0], chosen)]
    # In random order, then token by token: the first few of each token are a random choice.
    places = places[:, torch.randperm(places.shape[1], generator=generator)]
    places = places[:, torch.argsort(places[0], stable=True)]
    _, counts = torch.unique_consecutive(places[0], return_counts=True)
    begin = (counts.cumsum(0) - counts).repeat_interleave(counts)
    places = places[:, torch.arange(places.shape[1]) - begin < occurrences]
    return _Occurrences(*places)


class CoherenceSection(TokenSection):
    """Cosines between the representations of a text's tokens: the poster's check of orthogonal embeddings.

    Distinct tokens of the text are drawn at random, and occurrences of each. Their hidden states are kept
    from the input of every block and the output of each stack's last one, in one pass; and rows of
    the embedding table are drawn from the whole vocabulary. Measured are the cosines within each layer, of
    each layer with the one before and with the first, and of the same occurrence between all pairs of layers.

    The columns that need a word:

    - ``place``: ``input`` of block number ``layer``, ``output`` of the last block, or ``embedding``, the
      table (no layer). Within a layer, the other layer and place are the same.
    - ``pairs``: ``different`` tokens, the ``same_token`` in different places, and, between layers, the
      ``same_row``: the same occurrence.
    - ``centred``: whether the mean vector (of the layer) was subtracted first.
    - ``metric``: ``mean_cosine``, ``mean_absolute_cosine``, ``root_mean_square_cosine``,
      ``absolute_cosine_quantile_0.5`` and ``_0.95``, ``largest_absolute_cosine`` (within a layer: mutual
      coherence).
    - ``standard_error``: jackknife over tokens (of the means); ``error_bound``: of the computation.
    - ``random``: what independent random directions of this width have: the expectation, the quantile,
      or the median of the largest among so many pairs.
    - ``count``: the number of pairs.

    Args:
        anatomy: of any transformer whose blocks ``joma.instruments.reading.anatomy.find_blocks`` finds.
        batches: of tokens (batch, length) int64, and mask (batch, length) bool, False for padding.
        layers: numbers of the blocks whose inputs are taken; by default all, and the last one's output.
        tokens: distinct tokens, at most; as many rows of the embedding table.
        occurrences: of each token, at most.
        skip: positions at the beginning of each sequence to leave out. Many models keep a state of huge
            norm in the first one, a sink for attention, whatever its token.
        seed: of the draws.

    The table has one row per measurement: ``stack, layer, place, other_layer, other_place, pairs, centred,
    metric, value, unit, standard_error, error_bound, random, width, count``.

    Memory: ``16 width tokens occurrences`` bytes per layer, and some 50 bytes for each pair of vectors.

    Raises:
        InputError: see ``joma.instruments.reading.lent.checked_batches`` and
            ``joma.instruments.reading.lent.Anatomy.choose``; fewer than
            three distinct tokens; hidden states that are not finite (and where).
    """

    def __init__(
        self,
        anatomy: Anatomy,
        batches: Batches,
        *,
        layers: Iterable[int] | None = None,
        tokens: int = 256,
        occurrences: int = 2,
        skip: int = 1,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("tokens", tokens, 3), ("occurrences", occurrences, 1), ("skip", skip, 0)):
            if value < least:
                raise InputError(f"{_WHERE}: {name} = {value}; give at least {least}.")
        self.blocks = anatomy.choose(layers, _WHERE)
        super().__init__(anatomy, batches, _WHERE)
        generator = torch.Generator().manual_seed(seed)
        self.drawn = _draw(self.batches, tokens, occurrences, skip, generator)
        self.embeddings = _embedding_table(self.model, tokens, generator)
        last = {block.stack: block.name for block in self.blocks}
        self.last = set(last.values()) if layers is None else set()
        self.kept: dict[tuple[str, int, str], Tensor] = {}
        self.runs: Counter[str] = Counter()

    @contextmanager
    def around_pass(self, part: Part) -> Iterator[None]:
        """Take the part's share of the occurrences."""
        rows = self.drawn.row - part.first
        here = (self.drawn.batch == part.number) & (rows >= 0) & (rows < len(part.batch.tokens))
        self.runs.clear()
        with ExitStack() as stack:
            for block in self.blocks if bool(here.any()) else ():
                module, seen = (
                    self.model.get_submodule(block.name),
                    partial(self._see, part, here, block.name),
                )
                stack.callback(
                    module.register_forward_pre_hook(
                        lambda _, given, named, seen=seen: seen(
                            "input", given[0] if given else named.get("hidden_states")
                        ),
                        with_kwargs=True,
                    ).remove
                )
                stack.callback(
                    module.register_forward_hook(
                        lambda _, given, output, seen=seen: seen("output", output)
                    ).remove
                )
            yield

    def after_pass(self, part: Part, output: Output) -> None:
        """Nothing is left to do."""

    def _see(
        self, part: Part, here: Tensor, name: str, place: str, hidden: Tensor | Sequence[Tensor] | None
    ) -> None:
        if place == "output":
            self.runs[name] += 1
            if name not in self.last:
                return
            hidden = hidden[0] if isinstance(hidden, tuple | list) else hidden
        with self.excuse_errors():
            if (
                not isinstance(hidden, Tensor)
                or hidden.shape[:2] != part.batch.tokens.shape
                or hidden.ndim != 3
            ):
                shape = tuple(hidden.shape) if isinstance(hidden, Tensor) else type(hidden).__name__
                raise InputError(
                    f"representation_coherence: the {place} of {name} is {shape} for tokens of shape "
                    f"{tuple(part.batch.tokens.shape)}; hidden states (batch, length, width) are needed."
                )
            key = name, self.runs[name] - (place == "output"), place
            if key not in self.kept:
                size = self.drawn.tokens.numel(), hidden.shape[2]
                self.kept[key] = torch.full(size, torch.nan, dtype=torch.float64)
            at = (
                index[here].to(hidden.device) for index in (self.drawn.row - part.first, self.drawn.position)
            )
            self.kept[key][here] = hidden.detach()[tuple(at)].double().cpu()

    def make_tables(self) -> dict[str, pandas.DataFrame]:
        """``coherence``: one row per measurement."""
        rows: list[_Row] = []
        if self.embeddings is not None:
            for centred in (False, True):
                units = Directions.of(self.embeddings, centred=centred)
                rows += _rows_within(_Layer("", None, "embedding"), units, None)
        held = self.of_layers()
        for layer, vectors in held:
            _check_finite(vectors, layer)
        within: dict[_Layer, list[_Row]] = {layer: [] for layer, _ in held}
        between: dict[str, list[_Row]] = {layer.stack: [] for layer, _ in held}
        for centred in (False, True):
            made = [(layer, Directions.of(vectors, centred=centred)) for layer, vectors in held]
            for layer, units in made:
                within[layer] += _rows_within(layer, units, self.drawn.tokens)
            for stack, found in between.items():
                found += _between([one for one in made if one[0].stack == stack], self.drawn.tokens)
        for found in (*within.values(), *between.values()):
            rows += found
        import pandas as pd

        return {"coherence": pd.DataFrame(rows).astype({"layer": "Int64", "other_layer": "Int64"})}

    def of_layers(self) -> list[tuple[_Layer, Tensor]]:
        """Layer by layer; of a block that ran again and again each run's input, and the last one's output."""
        found = []
        for block in self.blocks:
            runs = sorted(run for name, run, place in self.kept if name == block.name and place == "input")
            if not runs:
                raise InputError(
                    f"representation_coherence: layer {block.layer} ({block.name}) did not run on this text; "
                    "leave it out of layers."
                )
            for run in runs:
                layer = block.layer + run
                found.append((_Layer(block.stack, layer, "input"), self.kept[block.name, run, "input"]))
            if block.name in self.last:
                place = _Layer(block.stack, block.layer + runs[-1], "output")
                found.append((place, self.kept[block.name, runs[-1], "output"]))
        return found


representation_coherence = as_function(CoherenceSection)
"""The table of a model and batches: see ``CoherenceSection``."""


def _embedding_table(model: nn.Module, rows: int, generator: torch.Generator) -> Tensor | None:
    """Rows drawn from the embedding table; zero rows (padding) have no direction and are left out."""
    weight = getattr(input_embeddings(model), "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    used = weight.detach().any(dim=1).nonzero()[:, 0].cpu()
    if used.numel() < 3:
        return None
    chosen = used[torch.randperm(used.numel(), generator=generator)[:rows]]
    return weight.detach()[chosen.to(weight.device)].double().cpu()


def _check_finite(vectors: Tensor, layer: _Layer) -> None:
    bad = int((~torch.isfinite(vectors).all(dim=1)).sum())
    if bad:
        raise InputError(
            f"representation_coherence: the {layer.place} of layer {layer.layer} holds NaN or infinity in "
            f"{bad} of {len(vectors)} hidden states; run the model in float32, or mend its weights."
        )


def _rows_within(layer: _Layer, vectors: Directions, tokens: Tensor | None) -> list[_Row]:
    rows = []
    found = embedding_coherence(vectors, tokens=tokens)
    for kind in ("different", "same_token"):
        rows += _rows(layer, layer, kind, vectors.centred, getattr(found, kind), found.width)
    return rows


def _between(held: list[tuple[_Layer, Directions]], tokens: Tensor) -> list[_Row]:
    """The same occurrences in all pairs of a stack's layers; all pairs with the first and the one before."""
    if len(held) < 2:
        return []
    rows = []
    for (a, b), cosines in aligned_coherence([made for _, made in held], tokens=tokens).items():
        (other, earlier), (layer, vectors) = held[a], held[b]
        rows += _rows(layer, other, "same_row", vectors.centred, cosines, vectors.units.shape[1])
        if a in (0, b - 1):
            found = cross_coherence(vectors, earlier, tokens=tokens)
            for kind in ("different", "same_token"):
                rows += _rows(layer, other, kind, vectors.centred, getattr(found, kind), found.width)
    return rows


def _rows(
    layer: _Layer, other: _Layer, kind: str, centred: bool, cosines: Cosines | None, width: int
) -> list[_Row]:
    if cosines is None:
        return []
    labels = {
        "stack": layer.stack,
        "layer": layer.layer,
        "place": layer.place,
        "other_layer": other.layer,
        "other_place": other.place,
        "pairs": kind,
        "centred": centred,
    }
    return [{**labels, **row} for row in _metrics(cosines, width)]


def _metrics(cosines: Cosines, width: int) -> list[_Row]:
    # What rounds in a scalar product of unit vectors.
    rounding = (width + 4) * 2.0**-53
    half_bin = 0.5 / BINS
    measured = [
        ("mean_cosine", cosines.mean, cosines.mean_error, rounding, 0.0),
        (
            "mean_absolute_cosine",
            cosines.mean_absolute,
            cosines.mean_absolute_error,
            rounding,
            random_absolute_cosine(width),
        ),
        (
            "root_mean_square_cosine",
            cosines.root_mean_square,
            cosines.root_mean_square_error,
            rounding,
            width**-0.5,
        ),
        *(
            (
                f"absolute_cosine_quantile_{q:g}",
                cosines.quantile(q),
                float("nan"),
                half_bin + rounding,
                random_cosine_quantile(width, q),
            )
            for q in _QUANTILES
        ),
        (
            "largest_absolute_cosine",
            cosines.largest,
            float("nan"),
            rounding,
            random_largest_cosine(width, cosines.pairs),
        ),
    ]
    return [
        {
            "metric": metric,
            "value": value,
            "unit": "",
            "standard_error": standard_error,
            "error_bound": error_bound,
            "random": random,
            "width": width,
            "count": cosines.pairs,
        }
        for metric, value, standard_error, error_bound, random in measured
    ]
