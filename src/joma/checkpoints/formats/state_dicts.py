"""Which mapping in a training state holds the model's weights: the one whose matrices have roles.

It is looked for at any depth, whatever lies beside it. Of several, one under a usual key is the model, and
the others are named; without a usual key all are the model's, each under its key (student and teacher,
generator and discriminator).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from joma.checkpoints.families.names import locate
from joma.checkpoints.families.roles import role_at
from joma.checkpoints.families.sizes import states_heads
from joma.checkpoints.formats.unpickling import Inert
from joma.core.files import Json

_STATE_KEYS = ("state_dict", "model_state_dict", "model", "module", "net")
_AVERAGE = re.compile(r"(?:\w+_)?(?:ema|swa|lawa)(?:_\w+)?|(?:averaged?|shadow)_\w+", re.IGNORECASE)
_IS_AVERAGE = "it is by its name an average of the weights over training (EMA, SWA)"
_DEEPEST = 12
_FROZEN = "frozen_param_fragments"
"""DeepSpeed's second copy of the parameters that are not trained."""
_Tensors = dict[str, Tensor]
_Path = tuple[str, ...]


def state_of(content: Any) -> tuple[_Tensors, dict[str, tuple[str, int]]]:
    """The model's tensors by name; and of what else in the file is like them, where, why not, how many
    entries."""
    tensors, beside = _model_in(content)
    averages: dict[str, _Tensors] = {}
    for name, tensor in tensors.items():
        first = name.partition(".")[0]
        if _AVERAGE.fullmatch(first):
            averages.setdefault(first, {})[name] = tensor
    plain = {name: t for name, t in tensors.items() if name.partition(".")[0] not in averages}
    if not averages or not _roles(plain):  # an average alone is the model
        return tensors, beside
    reason = f"{_IS_AVERAGE}, and stands beside the weights that were taken"
    return plain, beside | {
        first: (reason, sum(t.numel() for t in own.values())) for first, own in averages.items()
    }


def _model_in(content: Any) -> tuple[_Tensors, dict[str, tuple[str, int]]]:
    found = [(path, tensors) for path, tensors in _mappings(content, (), set()) if not _of_training(path)]
    models = [(path, tensors) for path, tensors in found if _roles(tensors)]
    if not models:
        flat = _flat(content, (), set())
        if _roles(flat):
            return flat, {}
        return max((tensors for _, tensors in found), key=_matrices, default={}), {}
    usual = sorted((one for one in models if _rank(one[0]) < len(_STATE_KEYS)), key=lambda one: _rank(one[0]))
    if not usual and len(models) > 1:
        return {".".join([*path, name]): t for path, tensors in models for name, t in tensors.items()}, {}
    path, tensors = (usual or models)[0]
    taken = "stands beside the weights that were taken" + (f" ({'.'.join(path)})" if path else "")
    reason = f"it {taken}"
    beside = {
        ".".join(other): (
            f"{_IS_AVERAGE}, and {taken}" if any(map(_AVERAGE.fullmatch, other)) else reason,
            sum(t.numel() for t in theirs.values()),
        )
        for other, theirs in models
        if other != path
    }
    shapes = Counter(tuple(t.shape) for t in tensors.values() if t.ndim > 1)
    for other, listed in _lists(content, (), set()):
        if not _of_training(other) and Counter(tuple(t.shape) for t in listed if t.ndim > 1) == shapes:
            beside[".".join(other)] = (reason + ", without names", sum(t.numel() for t in listed))
    return tensors, beside


def counts_of(content: Any) -> dict[str, int]:
    """The whole numbers that a training state tells of itself: ``iter_num``, ``global_step``, ..."""
    told: dict[str, int] = {}
    for name, value in (_items(content) or {}).items():
        if isinstance(value, Tensor) and value.ndim == 0 and not (value.is_complex() or value.is_meta):
            value = value.item() if value.layout == torch.strided else None
        if isinstance(name, str) and isinstance(value, int) and not isinstance(value, bool):
            told[name] = value
    return told


def sizes_of(content: Any) -> dict[str, Json] | None:
    """The settings of the model that a training state holds beside it: of the mappings at its top, or the top
    itself, the first that tells a number of heads (``model_args``, ``config``, a namespace of arguments)."""
    top = _items(content) or {}
    for own in (*map(_items, top.values()), top):
        if own is not None and states_heads(own):
            plain = (str, int, float)
            return {k: v for k, v in own.items() if isinstance(k, str) and isinstance(v, plain)}
    return None


def holds_arrays(content: Any, depth: int = 0) -> bool:
    """Whether matrices of NumPy lie in the mappings of a training state."""
    if isinstance(content, Inert) and isinstance(content.state, tuple) and len(content.state) == 5:
        _, shape, kind, *_ = content.state  # what ndarray.__setstate__ is given
        return isinstance(shape, tuple) and len(shape) > 1 and isinstance(kind, Inert)
    if depth > _DEEPEST:
        return False
    items = _items(content) or (dict(enumerate(content)) if isinstance(content, list | tuple) else {})
    return any(holds_arrays(value, depth + 1) for value in items.values())


def _items(content: Any) -> Mapping[Any, Any] | None:
    """What a mapping holds, or an object that stands for one, or for a module."""
    if isinstance(content, Mapping):
        return content
    if not isinstance(content, Inert):
        return None
    state = content.state if isinstance(content.state, Mapping) else {}
    if "_modules" in state and "_parameters" in state:
        own = [state[key] for key in ("_parameters", "_buffers", "_modules") if key in state]
        return {name: value for part in own for name, value in (_items(part) or {}).items()}
    return content.items or state


def _mappings(content: Any, path: _Path, seen: set[int]) -> Iterator[tuple[_Path, _Tensors]]:
    items = _items(content)
    if isinstance(content, list | tuple):  # of a model and its optimizer, of pairs of a name and a mapping
        items = {str(i): one for i, one in enumerate(content) if not isinstance(one, Tensor)}
    if items is None or id(content) in seen or len(path) > _DEEPEST:
        return
    seen.add(id(content))
    if isinstance(content, Inert) and isinstance(content.state, Mapping) and "_modules" in content.state:
        yield path, _flat(content, (), set())
        return
    tensors = {
        name: value for name, value in items.items() if isinstance(name, str) and isinstance(value, Tensor)
    }
    if tensors:
        yield path, tensors
    for name, value in items.items():
        if isinstance(name, str):
            yield from _mappings(value, (*path, name), seen)


def _flat(content: Any, path: _Path, seen: set[int]) -> _Tensors:
    """All tensors of mappings in mappings, by their keys with dots between."""
    items = _items(content)
    if items is None or id(content) in seen or len(path) > _DEEPEST:
        return {}
    seen.add(id(content))
    flat: _Tensors = {}
    for name, value in items.items():
        if isinstance(value, Tensor):
            flat[".".join([*path, str(name)])] = value
        else:
            flat |= _flat(value, (*path, str(name)), seen)
    return flat


def _lists(content: Any, path: _Path, seen: set[int]) -> Iterator[tuple[_Path, list[Tensor]]]:
    if isinstance(content, list | tuple):
        tensors = [value for value in content if isinstance(value, Tensor)]
        if any(tensor.ndim > 1 for tensor in tensors):
            yield path, tensors
        return
    items = _items(content)
    if items is None or id(content) in seen or len(path) > _DEEPEST:
        return
    seen.add(id(content))
    for name, value in items.items():
        if isinstance(name, str):
            yield from _lists(value, (*path, name), seen)


def _roles(tensors: _Tensors) -> int:
    return sum(t.ndim > 1 and role_at(locate(name)) is not None for name, t in tensors.items())


def _matrices(tensors: _Tensors) -> tuple[int, int]:
    return sum(t.ndim > 1 for t in tensors.values()), len(tensors)


def _rank(path: _Path) -> int:
    """How usual the key is under which a model lies; -1 at the top."""
    if not path:
        return -1
    return _STATE_KEYS.index(path[-1]) if path[-1] in _STATE_KEYS else len(_STATE_KEYS)


def _of_training(path: _Path) -> bool:
    return any("optim" in key.lower() or key == _FROZEN for key in path)
