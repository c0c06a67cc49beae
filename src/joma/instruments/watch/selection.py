"""Which attentions are asked for: layers by number, or module names by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

import numpy as np

from joma.core.errors import InputError


def layer_number(name: str) -> int | None:
    """The first number in a module's name: 7 for ``model.layers.7.self_attn``."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None


class Selection:
    """Layers by number or by pattern of module names."""

    def __init__(self, layers: Iterable[int | str]) -> None:
        wanted = [layers] if isinstance(layers, int | str) else list(layers)
        for one in wanted:
            if isinstance(one, bool) or not isinstance(one, int | str | np.integer):
                raise InputError(f"layers = {wanted!r} in watch holds {one!r}; give numbers or module names.")
        if not wanted:
            raise InputError("layers = [] in watch chooses no layer; give numbers or names, or None for all.")
        self.numbers = {int(one) for one in wanted if not isinstance(one, str)}
        self.patterns = [one for one in wanted if isinstance(one, str)]
        self.text = repr(wanted)

    def __call__(self, name: str) -> bool:
        """Whether a module of this name is among them."""
        return layer_number(name) in self.numbers or any(fnmatchcase(name, p) for p in self.patterns)
