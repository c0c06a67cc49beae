"""What of a checkpoint is compared along a series: the matrices that are read, by what they are.

Names differ where a run was resumed under a wrapper or exported to another format, and tensors that are never
read (buffers, a tied head, a padded vocabulary) come and go. Neither makes a checkpoint another model's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping

import torch

from joma.checkpoints.effective import Weight
from joma.checkpoints.families.matrices import Matrix, find_matrices
from joma.checkpoints.families.roles import MLP_ROLES
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.ranks import ALL_ATTENTION
from joma.checkpoints.series.names import shared_beginning

ROLES = (*MLP_ROLES, *ALL_ATTENTION)
"""What is measured along a series."""

Key = tuple[str, int | None, str, str]
"""Stack (without what all stacks of the checkpoint share), layer, expert, role."""


def matrices_by_key(
    weights: Mapping[str, Weight],
    config: Config | None,
    roles: Collection[str] = ROLES,
    layers: Collection[int] | None = None,
) -> dict[Key, Matrix]:
    """The matrices of these roles and layers by what they are, in the order of the model."""
    shapes = {name: weight.shape for name, weight in weights.items() if not weight.problem}
    found = [matrix for matrix in find_matrices(shapes, config) if matrix.role in roles]
    plain = without_shared({matrix.stack for matrix in found})
    return {
        (plain[matrix.stack], matrix.layer, matrix.expert, matrix.role): matrix
        for matrix in found
        if layers is None or matrix.layer in layers
    }


def without_shared(stacks: Iterable[str]) -> dict[str, str]:
    """Names of stacks without the parts with which all of them begin."""
    split = {stack: stack.split(".") for stack in stacks}
    shared = shared_beginning(split.values())
    return {stack: ".".join(parts[shared:]) for stack, parts in split.items()}


def shapes_by_key(weights: Mapping[str, Weight], config: Config | None) -> dict[Key, tuple[int, ...]]:
    """The shapes, (outputs, inputs), of the matrices that are read."""
    return {
        key: tuple(matrix.take(torch.empty(weights[matrix.tensor].shape, device="meta")).shape)
        for key, matrix in matrices_by_key(weights, config).items()
    }


def are_mostly_shared(one: Mapping[Key, tuple[int, ...]], other: Mapping[Key, tuple[int, ...]]) -> bool:
    """Whether the smaller of two models has more than half of its matrices in common with the other.

    So has a model to which layers are added, and not one of another width.
    """
    return 2 * len(one.items() & other.items()) > min(len(one), len(other))


def signature(weights: Mapping[str, Weight], config: Config | None) -> str:
    """A digest of the matrices that are read and their shapes; of all names and shapes where none is."""
    told: list[tuple[object, ...]] = list(shapes_by_key(weights, config).items())
    told = told or [(name, weight.shape) for name, weight in weights.items()]
    return hashlib.sha256(repr(sorted(told, key=repr)).encode()).hexdigest()
