"""What is done to a branch: words in, changes of a training out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from joma.core.errors import InputError, abbreviate, nearest
from joma.instruments.branch import TWIN
from joma.instruments.branch.attention import WAYS as ATTENTION_WAYS
from joma.instruments.branch.attention import AttentionChange
from joma.instruments.branch.entropy import STRENGTH, EntropyTerm
from joma.instruments.branch.entropy import WAYS as ENTROPY_WAYS

Change = Callable[[nn.Module, Optimizer], object]
Way = str | Change | Any
"""Words, a function that changes model and optimizer, or batches that are read in the place of the twin's."""
ON_PARAMETERS = ("freeze", "rewind", "rate")
_ACTS = ("none", *ON_PARAMETERS, "reset-optimizer", *ENTROPY_WAYS, *ATTENTION_WAYS)
_EXAMPLES = (
    "write 'rate 0.1 PATTERN', 'rewind PATTERN to 10', 'entropy-floor 1.5 times 10', or "
    "'attention-temperature 2'."
)
_ROWS = re.compile(r"(?P<name>.*)\[(?P<first>\d*):(?P<end>\d*)\]")


@dataclass(frozen=True)
class Part:
    """A parameter, or some rows of it: W_Q and W_K of a layer whose projections are one matrix."""

    name: str
    rows: tuple[int, int | None] | None = None
    """First, and the one behind the last; None: all."""

    def of(self, model: nn.Module) -> Tensor:
        """The model's values, to read and to write, without a gradient."""
        return self.rows_of(model.get_parameter(self.name).detach())

    def rows_of(self, values: Tensor) -> Tensor:
        """The rows of a tensor like the parameter."""
        return values if self.rows is None else values[slice(*self.rows)]


def _rows(said: re.Match[str]) -> tuple[int, int | None]:
    return int(said["first"] or 0), int(said["end"]) if said["end"] else None


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
    target: float | None = None
    """Of the entropy, nats; None: where it is."""
    strength: float = STRENGTH
    """Of the loss term that holds it."""
    batches: Any = None
    """What is read in the place of the twin's."""

    def of_steps(self) -> EntropyTerm | AttentionChange | None:
        """What accompanies every step of a branch, anew for each; None of interventions that do not."""
        if self.act in ENTROPY_WAYS:
            return EntropyTerm(self.act, self.target, self.strength)
        return AttentionChange(self.act, self.factor) if self.act in ATTENTION_WAYS else None

    def parts(self, model: nn.Module) -> list[Part]:
        """What the patterns name, once each.

        Raises:
            InputError: a pattern names nothing; the message says the nearest name.
        """
        return list(
            dict.fromkeys(part for pattern in self.patterns for part in self._find_parts(model, pattern))
        )

    def _find_parts(self, model: nn.Module, pattern: str) -> list[Part]:
        named = dict(model.named_parameters())
        said = _ROWS.fullmatch(pattern)
        name, rows = (said["name"], _rows(said)) if said else (pattern, None)
        found = [Part(one, rows) for one in named if fnmatchcase(one, name)]
        if not found:
            raise InputError(
                f"branch: intervention {self.name!r} names no parameter of the model with "
                f"{abbreviate(pattern)}; {nearest(name, named)}"
            )
        empty = [part.name for part in found if not part.of(model).numel()]
        if empty:
            raise InputError(
                f"branch: intervention {self.name!r} names no row of {empty[0]} with {abbreviate(pattern)}; "
                f"it has {len(named[empty[0]])} rows."
            )
        return found


def read_interventions(given: Mapping[str, Way], at: int) -> list[Intervention]:
    """The interventions that a caller named.

    Raises:
        InputError: no mapping, a name that is taken, or words that say no intervention.
    """
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            "branch: interventions must map at least one name to what is done: {'frozen': 'freeze *.key'}."
        )
    return [_read(str(name), said, at) for name, said in given.items()]


def _read(name: str, said: Way, at: int) -> Intervention:
    if not name.replace("-", "").replace("_", "").replace(" ", "").isalnum() or name == TWIN:
        raise InputError(
            f"branch: {abbreviate(name)} is not a name of a branch; use letters, digits, '-' and '_', "
            "and leave 'twin' to the twin."
        )
    if callable(said):
        return Intervention(name, "call", change=said)
    if not isinstance(said, str) and hasattr(said, "__getitem__"):
        return Intervention(name, "batches", batches=said)
    words = str(said).split()
    act, rest = (words[0], words[1:]) if words else ("", [])
    if act not in _ACTS:
        raise _refusal(name, said, nearest(act, _ACTS))
    try:
        found = _parse(name, act, rest)
    except (ValueError, IndexError):
        raise _refusal(name, said, _EXAMPLES) from None
    if not 0 <= found.factor < float("inf") or not 0 <= found.to <= at:
        raise _refusal(
            name, said, f"a rate is a factor of at least 0, and a rewind goes to a step from 0 to {at}."
        )
    if (act in ON_PARAMETERS) != bool(found.patterns):
        raise _refusal(
            name,
            said,
            "freeze, rewind and rate need the names of parameters ('*' stands for any letters), and the "
            "others take none.",
        )
    if not (0 < found.strength < float("inf") and 0 <= (found.target or 0.0) < float("inf")):
        raise _refusal(name, said, "an entropy is at least 0 nats, and the strength of its term above 0.")
    if act in ENTROPY_WAYS[1:] and found.target is None:
        raise _refusal(name, said, f"{act} needs a number of nats: '{act} 1.5'.")
    if act in ATTENTION_WAYS and not found.factor > 0:
        raise _refusal(name, said, "a temperature is above 0.")
    return found


def _refusal(name: str, said: object, advice: str) -> InputError:
    return InputError(f"branch: intervention {name!r} says {abbreviate(str(said))}; {advice}")


def _parse(name: str, act: str, rest: list[str]) -> Intervention:
    """Raises ValueError or IndexError where the words say no number in the place of one."""
    factor, to = 0.0 if act == "freeze" else 1.0, 0
    if act in ("rate", "attention-temperature"):
        factor, rest = float(rest[0]), rest[1:]
    if act == "rewind" and "to" in rest:
        rest, to = rest[:-2], int(rest[rest.index("to") + 1])
    if act not in ENTROPY_WAYS:
        return Intervention(name, act, tuple(rest), factor, to)
    strength = STRENGTH
    if "times" in rest:
        rest, strength = rest[:-2], float(rest[rest.index("times") + 1])
    target = float(rest[0]) if rest else None
    return Intervention(name, act, tuple(rest[1:]), target=target, strength=strength)
