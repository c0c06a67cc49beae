"""Where W_Q and W_K of each attention that was seen stand among the parameters, head by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from joma.checkpoints.families.layout import Piece
from joma.checkpoints.families.matrices import Matrix, find_matrices
from joma.checkpoints.in_memory import weights_of
from joma.instruments.monitor.measuring.blocks import Block, block_of
from joma.instruments.monitor.measuring.look import RESIDUAL, Observation


@dataclass(frozen=True)
class AttentionPlace:
    """An attention that a look saw: where it stands, and how many heads its queries have."""

    stack: str
    layer: int
    module: str
    heads: int
    calls: int = 1
    """How many attentions its module computed in one pass."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a parameter, with the module that holds it: what is put in its place is read, too."""

    owner: nn.Module
    name: str
    piece: Piece

    def parameter(self) -> nn.Parameter:
        """The parameter as it is now."""
        found: nn.Parameter = getattr(self.owner, self.name)
        return found

    def heads(self, number: int) -> Tensor:
        """A view of shape (groups, heads of a group, width, inputs)."""
        weight = self.parameter().detach()
        weight = weight.mT if self.piece.transposed else weight
        return self._split(weight, number)

    def _split(self, weight: Tensor, number: int) -> Tensor:
        # Views throughout: to split an axis never copies.
        groups, inputs = self.piece.groups, weight.shape[1]
        grouped = weight.view(groups, -1, inputs)[:, self.piece.first : self.piece.last]
        return grouped.view(groups, number // groups, -1, inputs)

    def bias(self, number: int) -> Tensor | None:
        """Likewise of its bias, with one input; None where it has none."""
        name = "bias" if self.name == "weight" else self.name.replace("weight", "bias")
        bias = getattr(self.owner, name, None)
        if bias is None or name == self.name:
            return None
        return self._split(bias.detach()[:, None], number)


@dataclass(frozen=True)
class QueryKey:
    """Queries and keys of one attention."""

    place: AttentionPlace
    query: Rows
    key: Rows
    key_heads: int

    def weights(self) -> tuple[Tensor, Tensor]:
        """W_Q (heads, width, inputs) and W_K (key heads, width, inputs)."""
        return (
            self.query.heads(self.place.heads).flatten(0, 1),
            self.key.heads(self.key_heads).flatten(0, 1),
        )


def attended_in(seen: Iterable[Observation]) -> list[AttentionPlace]:
    """The attentions of a look, each once."""
    found: dict[str, AttentionPlace] = {}
    for one in seen:
        if one.metric not in RESIDUAL:
            calls = max(one.call + 1, found[one.module].calls if one.module in found else 1)
            found[one.module] = AttentionPlace(one.stack, one.layer, one.module, one.values.numel(), calls)
    return list(found.values())


def find_products(
    model: nn.Module, attended: Sequence[AttentionPlace], blocks: Sequence[Block]
) -> tuple[list[QueryKey], dict[str, str]]:
    """W_Q and W_K of each attention that was seen; and of the others why they are not read, by module."""
    checkpoint = weights_of(model)
    shapes = {name: weight.shape for name, weight in checkpoint.weights.items() if not weight.problem}
    matrices = [matrix for matrix in find_matrices(shapes, checkpoint.config) if not matrix.expert]
    found: list[QueryKey] = []
    reasons: dict[str, str] = {}
    for place in attended:
        near = _near(place, matrices, attended, blocks)
        pairs = {role: near.get(f"cross_{role}", []) + near.get(role, []) for role in ("query", "key")}
        if any(len(own) != 1 for own in pairs.values()):
            reasons[place.module] = (
                "no rule tells which weights make its queries and keys"
                if len(pairs["query"]) < 2
                else "it has several matrices of queries"
            )
            continue
        query, key = (_rows_of(model, own[0]) for own in pairs.values())
        if query is None or key is None:
            reasons[place.module] = "its queries or keys are computed from other weights"
            continue
        found_or_why = _fit(place, query, key)
        if isinstance(found_or_why, str):
            reasons[place.module] = found_or_why
        else:
            found.append(found_or_why)
    return found, reasons


def _near(
    place: AttentionPlace,
    matrices: Sequence[Matrix],
    attended: Sequence[AttentionPlace],
    blocks: Sequence[Block],
) -> Mapping[str, list[Matrix]]:
    """By role the matrices in the module itself, or else in its block, where no other attention is there."""

    def matrices_in(name: str) -> list[Matrix]:
        return [one for one in matrices if not name or _plain(one.tensor).startswith(f"{name}.")]

    own = [one for one in matrices_in(place.module) if one.role.removeprefix("cross_") in ("query", "key")]
    block = block_of(blocks, place.module)
    if not own and block is not None and sum(block.holds(one.module) for one in attended) == 1:
        own = [one for one in matrices_in(block.name) if one.role in ("query", "key")]
    near: dict[str, list[Matrix]] = {}
    for matrix in own:
        near.setdefault(matrix.role, []).append(matrix)
    return near


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _rows_of(model: nn.Module, matrix: Matrix) -> Rows | None:
    """Where a matrix stands as a plain parameter; None where it is none (adapted, parametrised, packed)."""
    holder, _, leaf = matrix.tensor.rpartition(".")
    try:
        owner = model.get_submodule(holder)
    except AttributeError:
        return None
    weight = getattr(owner, leaf, None)
    plain = isinstance(weight, nn.Parameter) and weight.is_floating_point() and not weight.is_meta
    odd = matrix.piece.stacked or matrix.piece.index is not None
    return Rows(owner, leaf, matrix.piece) if plain and not odd else None


def _fit(place: AttentionPlace, query: Rows, key: Rows) -> QueryKey | str:
    rows = [one.piece.take(one.parameter()).shape[0] for one in (query, key)]
    width = rows[0] // place.heads
    if rows[0] % place.heads or rows[1] % width or place.heads % (rows[1] // width):
        return f"{rows[0]} rows of queries and {rows[1]} of keys are not those of {place.heads} heads"
    key_heads = rows[1] // width
    if place.heads % query.piece.groups or key_heads % key.piece.groups:
        return f"the rows of its {place.heads} heads lie in {query.piece.groups} groups"
    return QueryKey(place, query, key, key_heads)
