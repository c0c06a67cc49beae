"""What is done to a branch: words in, changes of a training out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.optim import Optimizer

from joma.core.errors import InputError, abbreviate, nearest
from joma.instruments.branch import TWIN

Change = Callable[[nn.Module, Optimizer], object]
_ACTS = ("none", "freeze", "rewind", "rate", "reset-optimizer", "call")


@dataclass(frozen=True)
class Intervention:
    """One branch's change."""

    name: str
    act: str
    patterns: tuple[str, ...] = ()
    factor: float = 1.0
    """Of the learning rate of the parameters that the patterns name."""
    to: int = 0
    """The step whose values the parameters of a rewind get."""
    change: Change | None = None

    def parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that the patterns name.

        Raises:
            InputError: a pattern names none; the message says the nearest name.
        """
        named = dict(model.named_parameters())
        found: dict[str, nn.Parameter] = {}
        for pattern in self.patterns:
            some = {name: one for name, one in named.items() if fnmatchcase(name, pattern)}
            if not some:
                raise InputError(
                    f"branch: intervention {self.name!r} names no parameter of the model with "
                    f"{abbreviate(pattern)}; {nearest(pattern, named)}"
                )
            found |= some
        return list(found.values())


def read_interventions(given: Mapping[str, str | Change], at: int) -> list[Intervention]:
    """The interventions that a caller named.

    Raises:
        InputError: no mapping, a name that is taken, or words that say no intervention.
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            "branch: interventions must map at least one name to what is done: {'frozen': 'freeze *.key'}."
        )
    return [_read(str(name), said, at) for name, said in given.items()]


def _read(name: str, said: str | Change, at: int) -> Intervention:
    if not name.replace("-", "").replace("_", "").replace(" ", "").isalnum() or name == TWIN:
        raise InputError(
            f"branch: {abbreviate(name)} is not a name of a branch; use letters, digits, '-' and '_', "
            "and leave 'twin' to the twin."
        )
    if callable(said):
        return Intervention(name, "call", change=said)
    words = str(said).split()
    act, rest = (words[0], words[1:]) if words else ("", [])
    if act not in _ACTS[:-1]:
        raise InputError(
            f"branch: intervention {name!r} says {abbreviate(str(said))}; {nearest(act, _ACTS[:-1])}"
        )
    factor, to = 0.0 if act == "freeze" else 1.0, 0
    try:
        if act == "rate":
            factor, rest = float(rest[0]), rest[1:]
        if act == "rewind" and "to" in rest:
            rest, to = rest[:-2], int(rest[rest.index("to") + 1])
    except (ValueError, IndexError):
        raise InputError(
            f"branch: intervention {name!r} says {abbreviate(str(said))}; write 'rate 0.1 PATTERN', or "
            "'rewind PATTERN to 10'."
        ) from None
    if not 0 <= factor < float("inf") or not 0 <= to <= at:
        raise InputError(
            f"branch: intervention {name!r} says {abbreviate(str(said))}; a rate is a factor of at least 0, "
            f"and a rewind goes to a step from 0 to {at}."
        )
    if (act in ("freeze", "rewind", "rate")) != bool(rest):
        raise InputError(
            f"branch: intervention {name!r} says {abbreviate(str(said))}; freeze, rewind and rate need "
            "the names of parameters ('*' stands for any letters), and the others take none."
        )
    return Intervention(name, act, tuple(rest), factor, to)
