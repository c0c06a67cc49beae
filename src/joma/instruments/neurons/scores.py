"""From contexts to scores: which neurons answer to unrelated patterns, beyond what chance would show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from joma.core.errors import InputError
from joma.instruments.neurons.find import LayerContexts, NeuronContexts
from joma.instruments.neurons.meaning import fold_case, relatedness
from joma.instruments.neurons.measured import SMALLEST
from joma.measures.superposition import (
    Superposition,
    attended_similarity,
    matched_draws,
    null_probability,
    rarity,
    superposition,
)

if TYPE_CHECKING:
    import pandas

NULL_SCORES = 2000
"""Shuffled neurons of each layer, about; a layer of more neurons has as many as it has neurons."""
BEFORE, BEHIND, BESIDE = 28, 5, 2
"""Tokens shown before and behind the query, and on either side of bold tokens farther away."""
LEVEL = 0.05
"""Neurons with a p-value above it are not looked at for what their patterns mean."""
BOLD_SHARE = 0.5
"""Bold are the strongest attended tokens that together get this share of what all kept ones get."""

_UNITS = {"contexts": "contexts", "patterns": "patterns"}


@dataclass(frozen=True, eq=False)
class LayerScores:
    """The scores of one layer's neurons."""

    contexts: LayerContexts
    found: Superposition
    """Of all followed neurons."""
    null: Superposition
    """Of as many shuffled ones, or more: each neuron's windows, other neurons' positions in them."""
    probability: NDArray[np.float64]
    """(followed,): of so large a superposition score among the shuffled."""
    likeness_probability: NDArray[np.float64]
    """(followed,): of so large a mean similarity of all contexts among the shuffled."""
    shared_queries: NDArray[np.float64]
    """(followed,): of the pairs of contexts in different patterns, the share with the same query token."""
    relatedness: NDArray[np.float64]
    """(followed,): mean cosine between the patterns' embeddings; NaN where p > 0.05 or they are not known."""
    relatedness_probability: NDArray[np.float64]
    """(followed,): of patterns of different neurons being so alike."""


def score_layers(
    contexts: NeuronContexts,
    *,
    piece: Callable[[int], str] | None = None,
    embedding: NDArray[np.float32] | None = None,
    smallest: int = SMALLEST,
    null_scores: int = NULL_SCORES,
    seed: int = 0,
) -> list[LayerScores]:
    """Score every neuron, and shuffled ones for the null, layer by layer.

    A context is the bag of tokens that its query attends to, each weighted with its attention and its
    rarity among the layer's contexts (``joma.measures.superposition``).

    Args:
        contexts: what ``joma.instruments.neurons.find.find_neurons`` found.
        piece: token id -> its text: tokens that differ in case or blanks alone then count as one.
        embedding: (vocabulary, width), the model's: for the relatedness of patterns.
        smallest: contexts that make a pattern.
        null_scores: shuffled neurons of each layer, about; every neuron is shuffled equally often, and once
            at least.
        seed: of the shuffles.

    Raises:
        InputError: fewer windows than two patterns take.
    """
    if contexts.windows_read < 2 * smallest:
        raise InputError(
            f"the text has {contexts.windows_read} windows, and two patterns of {smallest} contexts take "
            f"{2 * smallest}; give a longer text or shorter windows."
        )
    tokens = _WindowTokens(contexts.windows)
    same = np.arange(tokens.largest + 1) if piece is None else fold_case(np.unique(tokens.ids), piece)
    return [
        _score(layer, tokens, same, embedding, smallest, null_scores, np.random.default_rng([seed, number]))
        for number, layer in enumerate(contexts.layers)
    ]


def _score(
    layer: LayerContexts,
    tokens: _WindowTokens,
    same: NDArray[np.int64],
    embedding: NDArray[np.float32] | None,
    smallest: int,
    null_scores: int,
    random: np.random.Generator,
) -> LayerScores:
    active = layer.active
    attended = tokens.at(layer.window[..., None], layer.attended)
    ids = same[attended]
    weight = np.where(active[..., None], layer.weight, 0.0)
    # One and the same context may serve many neurons; it tells once how rare its tokens are.
    _, once = np.unique(np.stack([layer.window, layer.position])[:, active], axis=1, return_index=True)
    rare = rarity(ids[active][once], weight[active][once], vocabulary_size=tokens.largest + 1)
    weight = weight * rare[ids]
    found = superposition(attended_similarity(ids, weight), valid=active, smallest=smallest)
    nulls = []
    flat_ids, flat_weight = ids.reshape(-1, ids.shape[-1]), weight.reshape(-1, ids.shape[-1])
    for _ in range(max(1, round(null_scores / len(layer.neurons)))):
        draw = matched_draws(layer.window, valid=active, draws=1, random=random)[0]
        similarity = attended_similarity(flat_ids[draw], flat_weight[draw])
        nulls.append(superposition(similarity, valid=active, smallest=smallest))
    null = Superposition(
        *(np.concatenate([getattr(n, name) for n in nulls]) for name in Superposition.__dataclass_fields__)
    )
    scored = np.isfinite(found.score)
    queries = same[tokens.at(layer.window, layer.position)]
    probability = _probability(found.score, null.score)
    alike, alike_probability = np.full(len(queries), np.nan), np.full(len(queries), np.nan)
    if embedding is not None:
        # Of neurons that are not beyond chance nobody asks what their patterns mean.
        beyond = np.flatnonzero((probability <= LEVEL) & (found.patterns >= 2))
        alike[beyond], alike_probability[beyond] = relatedness(
            attended[beyond], weight[beyond], found.pattern[beyond], embedding, random=random
        )
    return LayerScores(
        contexts=layer,
        found=found,
        null=null,
        probability=probability,
        likeness_probability=_probability(
            np.where(scored, found.overall, np.nan), null.overall[np.isfinite(null.score)]
        ),
        shared_queries=_share_of_queries(queries, found.pattern),
        relatedness=alike,
        relatedness_probability=alike_probability,
    )


def _share_of_queries(queries: NDArray[np.int64], pattern: NDArray[np.int64]) -> NDArray[np.float64]:
    there = pattern >= 0
    pairs = there[:, :, None] & there[:, None, :] & (pattern[:, :, None] != pattern[:, None, :])
    same = (queries[:, :, None] == queries[:, None, :]) & pairs
    count = pairs.sum(axis=(1, 2))
    return np.where(count > 0, same.sum(axis=(1, 2)) / np.maximum(count, 1), np.nan)


def _probability(scores: NDArray[np.float64], null: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(scores).any():  # dead neurons alone
        return np.full(scores.shape, np.nan)
    return null_probability(scores, null)


class _WindowTokens:
    """The tokens of the kept windows, by number of the window and place in it."""

    def __init__(self, windows: dict[int, NDArray[np.int32]]) -> None:
        self.numbers = np.asarray(sorted(windows), dtype=np.int64)
        longest = max(len(windows[int(n)]) for n in self.numbers)
        self.ids = np.zeros((len(self.numbers), longest), dtype=np.int64)
        for row, number in enumerate(self.numbers):
            self.ids[row, : len(windows[int(number)])] = windows[int(number)]

    @property
    def largest(self) -> int:
        """The largest token id."""
        return int(self.ids.max())

    def at(self, window: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids; 0 for window -1."""
        row = np.searchsorted(self.numbers, window).clip(max=len(self.numbers) - 1)
        ids: NDArray[np.int64] = np.where(window >= 0, self.ids[row, place], 0)
        return ids


def neuron_table(scores: Sequence[LayerScores]) -> pandas.DataFrame:
    """One row per neuron that was asked for, and measurement: ``layer, stack, neuron, metric, value, unit``.

    ``superposition`` is the score (NaN where a neuron has too few contexts), ``p_value`` its rank among
    shuffled contexts, ``q_value`` the same after Benjamini and Hochberg over all neurons; ``patterns``,
    ``cohesion`` and ``between`` describe the patterns found; ``shared_queries`` is the share of pairs of
    contexts from different patterns with the same query token (1: one query in different company; 0:
    different queries as well); ``relatedness`` the cosine between the patterns in the embedding space (of
    neurons with a p-value of at most 0.05) and ``relatedness_p_value`` its rank among patterns of different
    neurons (small: related in meaning); ``similarity`` that of all pairs of contexts and
    ``similarity_p_value`` its rank among shuffled ones (small: the neuron cares for what is attended to at
    all); ``contexts`` how many activate it; ``largest_activation``.
    """
    import pandas
    from scipy.stats import false_discovery_control

    parts = []
    for one in scores:
        layer, found = one.contexts, one.found
        largest = layer.activation[:, 0].astype(np.float64)
        columns = {
            "superposition": found.score,
            "p_value": one.probability,
            "patterns": np.where(np.isnan(found.score), np.nan, found.patterns),
            "cohesion": found.cohesion,
            "between": found.between,
            "shared_queries": one.shared_queries,
            "relatedness": one.relatedness,
            "relatedness_p_value": one.relatedness_probability,
            "similarity": found.overall,
            "similarity_p_value": one.likeness_probability,
            "contexts": layer.active.sum(axis=1).astype(np.float64),
            "largest_activation": np.where(np.isfinite(largest), largest, np.nan),
        }
        wide = pandas.DataFrame(
            {"layer": layer.layer, "stack": layer.stack, "neuron": layer.neurons, **columns}
        )
        parts.append(wide[layer.asked])
    wide = pandas.concat(parts, ignore_index=True)
    scored = wide["p_value"].notna().to_numpy()
    q_values = np.full(len(wide), np.nan)
    if scored.any():
        q_values[scored] = false_discovery_control(wide["p_value"].to_numpy()[scored])
    wide.insert(5, "q_value", q_values)
    table = wide.melt(["layer", "stack", "neuron"], var_name="metric", value_name="value")
    return table.assign(unit=table["metric"].map(_UNITS).fillna("1"))


def null_table(scores: Sequence[LayerScores]) -> pandas.DataFrame:
    """The scores of shuffled contexts: ``layer, stack, metric, value``."""
    import pandas

    parts = [
        pandas.DataFrame(
            {"layer": one.contexts.layer, "stack": one.contexts.stack, "metric": name, "value": v}
        )
        for one in scores
        for name, v in (("superposition", one.null.score), ("similarity", one.null.overall))
    ]
    table = pandas.concat(parts, ignore_index=True)
    return table[table["value"].notna()].reset_index(drop=True)


def layer_table(neurons: pandas.DataFrame, null: pandas.DataFrame) -> pandas.DataFrame:
    """Per layer: how many neurons were scored, their mean score and the null's, shares beyond chance."""
    import pandas

    rows = []
    wide = neurons.pivot(index=["layer", "stack", "neuron"], columns="metric", values="value").reset_index()
    for (layer, stack), part in wide.groupby(["layer", "stack"], sort=False):
        scored = part[part["superposition"].notna()]
        shuffled = null[(null["layer"] == layer) & (null["stack"] == stack)]
        shuffled = shuffled[shuffled["metric"] == "superposition"]["value"]
        rows.append(
            {
                "layer": layer,
                "stack": stack,
                "neurons": len(part),
                "scored": len(scored),
                "superposition": scored["superposition"].mean(),
                "superposition_of_shuffled": shuffled.mean(),
                "share_p_below_5_percent": (scored["p_value"] <= 0.05).mean(),
                "share_q_below_5_percent": (scored["q_value"] <= 0.05).mean(),
                "share_similar_p_below_5_percent": (scored["similarity_p_value"] <= 0.05).mean(),
            }
        )
    return pandas.DataFrame(rows)


def choose_neurons(neurons: pandas.DataFrame, count: int) -> list[tuple[int, str, int]]:
    """The neurons to show, (layer, stack, neuron) each: large scores, spread over the layers.

    Ordered by the score times the share of pairs whose queries differ: the paper's neurons answer to
    different queries, each with a pattern of its own.
    """
    wide = neurons.pivot(index=["layer", "stack", "neuron"], columns="metric", values="value").reset_index()
    wide = wide[wide["superposition"] > 0]
    order = wide["superposition"] * (1 - wide["shared_queries"])
    wide = wide.assign(order=order).sort_values(
        ["order", "superposition", "layer", "neuron"], ascending=[False, False, True, True], kind="stable"
    )
    layers = max(wide[["layer", "stack"]].drop_duplicates().shape[0], 1)
    per_layer = max(1, -(-2 * count // layers))
    rank = wide.groupby(["layer", "stack"], sort=False).cumcount()
    chosen = wide[rank < per_layer].head(count)
    return [(int(r.layer), str(r.stack), int(r.neuron)) for r in chosen.itertuples()]


def context_tables(
    contexts: NeuronContexts,
    scores: Sequence[LayerScores],
    chosen: Sequence[tuple[int, str, int]],
    piece: Callable[[int], str],
) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """The contexts of some neurons, and their text token by token.

    Args:
        contexts: what was found.
        scores: of what was found.
        chosen: (layer, stack, neuron) each.
        piece: token id -> its text.

    Returns:
        ``layer, stack, neuron, rank, activation, pattern, window, position, query, text``, one row per
        context; ``pattern`` is -1 for contexts in none, and ``text`` marks the tokens shown in bold with
        asterisks. And ``layer, stack, neuron, rank, place, piece, weight, bold, query``, one row per token
        shown: ``weight`` is the attention that it gets from the query (0 where it is none of the strongest).
    """
    import pandas

    by_layer = {(one.contexts.layer, one.contexts.stack): one for one in scores}
    rows: list[_Columns] = []
    tokens: list[_Columns] = []
    for layer, stack, neuron in chosen:
        one = by_layer[layer, stack]
        where = int(np.searchsorted(one.contexts.neurons, neuron))
        for rank in np.flatnonzero(one.contexts.active[where]):
            identity: dict[str, int | float | str] = {
                "layer": layer,
                "stack": stack,
                "neuron": neuron,
                "rank": int(rank),
            }
            shown = _excerpt(contexts, one.contexts, where, int(rank), piece)
            tokens += [{**identity, **token._asdict()} for token in shown]
            rows.append(
                identity
                | {
                    "activation": float(one.contexts.activation[where, rank]),
                    "pattern": int(one.found.pattern[where, rank]),
                    "window": int(one.contexts.window[where, rank]),
                    "position": int(one.contexts.position[where, rank]),
                    "query": next(token.piece for token in shown if token.query),
                    "text": _in_words(shown),
                }
            )
    identity_columns = ["layer", "stack", "neuron", "rank"]
    context_columns = [*identity_columns, "activation", "pattern", "window", "position", "query", "text"]
    token_columns = [*identity_columns, "place", "piece", "weight", "bold", "query"]
    return (
        pandas.DataFrame(rows, columns=context_columns),
        pandas.DataFrame(tokens, columns=token_columns),
    )


_Columns = dict[str, int | float | str]


class _ContextToken(NamedTuple):
    """One token of a context as it is shown."""

    place: int
    piece: str
    weight: float
    bold: bool
    query: bool


def _excerpt(
    contexts: NeuronContexts, layer: LayerContexts, where: int, rank: int, piece: Callable[[int], str]
) -> list[_ContextToken]:
    ids = contexts.windows[int(layer.window[where, rank])]
    query = int(layer.position[where, rank])
    places, weights = layer.attended[where, rank], layer.weight[where, rank]
    total = weights.sum()
    # The strongest first, until they have their share; places of weight 0 fill up short lists.
    needed = int(np.searchsorted(np.cumsum(weights), BOLD_SHARE * total)) + 1 if total > 0 else 0
    bold = set(places[:needed].tolist())
    weight = {int(p): float(w) for p, w in zip(places, weights, strict=True) if w > 0}
    shown = set(range(query - BEFORE, query + BEHIND + 1))
    for place in bold:
        shown |= set(range(place - BESIDE, place + BESIDE + 1))
    return [
        _ContextToken(place, piece(int(ids[place])), weight.get(place, 0.0), place in bold, place == query)
        for place in sorted(shown)
        if 0 <= place < len(ids)
    ]


def _in_words(shown: Sequence[_ContextToken]) -> str:
    """The tokens as a text, with dots for what is left out."""
    words = ["" if shown[0].place == 0 else "..."]
    for before, token in zip([shown[0], *shown], shown, strict=False):
        words += [" ..."] * (token.place > before.place + 1) + [_mark(token)]
    return "".join(words)


def _mark(token: _ContextToken) -> str:
    text = str(token.piece)
    inner = text.strip()
    if not inner or not (token.bold or token.query):
        return text
    mark = "**" if token.bold else "_"
    return text.replace(inner, f"{mark}{inner}{mark}", 1)
