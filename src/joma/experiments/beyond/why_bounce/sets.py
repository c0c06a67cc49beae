"""The sets of a decoder's parameters that are frozen, rewound and held responsible."""

from __future__ import annotations

from joma.instruments.branch.interventions import Intervention
from joma.instruments.branch.training import State
from joma.models.decoder import Decoder

QUERIES_KEYS, EMBEDDINGS, NORMS, LOWER, UPPER = "W_Q and W_K", "embeddings", "norms", "lower MLP", "upper MLP"
MLP = "MLP"


def parameter_sets(model: Decoder) -> dict[str, tuple[str, ...]]:
    """Name -> patterns of ``joma.branch``: the top layer's sets, and the rest; no parameter is in two."""
    depth, width = len(model.layers), model.width
    top = f"layers.{depth - 1}."
    below = {"layers below": tuple(f"layers.{number}.*" for number in range(depth - 1))} if depth > 1 else {}
    return {
        QUERIES_KEYS: (f"{top}in_projection.*[:{2 * width}]",),
        "W_V and W_O": (f"{top}in_projection.*[{2 * width}:]", f"{top}out_projection.*"),
        LOWER: (f"{top}lower.*",),
        UPPER: (f"{top}upper.*",),
        NORMS: (f"{top}*norm.*", *(("final_norm.*",) if [*model.final_norm.parameters()] else ())),
        EMBEDDINGS: ("embedding.*",),
        **below,
        "output layer": ("output.*",),
    }


def put(model: Decoder, state: State, step: int, patterns: tuple[str, ...] = ("*",)) -> None:
    """Set the parameters that the patterns name to what they were at a step that the state kept."""
    for part in Intervention("", "rewind", patterns).parts(model):
        part.of(model).copy_(part.rows_of(state.earlier[step][part.name]))
