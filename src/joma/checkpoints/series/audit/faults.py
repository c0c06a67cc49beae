"""What can be wrong with a member of a series, and what was noticed that is no fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from joma.core.printing import one_line_of, some_names

FAULTS = {
    "copy": "all of its tensors are another member's",
    "stale tensors": "some of its tensors are another member's",
    "swapped members": "it has the place of another member, which has its own or a third one's",
    "other run": "nearly all of its tensors do not lie between its neighbours",
    "discontinuity": "some of its tensors do not lie between its neighbours",
    "swapped tensors": "some of its tensors are what its neighbours hold under other names",
    "transposed": "some of its matrices are transposed",
    "permuted": "rows, columns or experts of some of its tensors stand in another order",
    "shifted": "rows of some of its tensors stand one or more places further",
    "negated": "some of its tensors have the other sign",
    "scaled": "some of its tensors are multiples of what they should be",
    "zeroed": "some of its tensors, or rows of them, are zero",
    "not finite": "some of its tensors hold NaN or infinities",
    "merged adapter": "some of its matrices have a change of low rank that its neighbours lack",
    "other type": "some of its tensors are stored in another type than most members'",
    "rounded": "its numbers are those of a coarser type than the one they are stored in",
    "quantised": "its numbers are whole multiples of a scale",
    "other shape": "some of its tensors have another shape than most members'",
    "missing tensors": "it lacks tensors that most members hold",
    "further tensors": "it holds tensors that most members lack",
    "renumbered layers": "its layers have other numbers than most members'",
    "missing file": "a file that its index names is missing",
    "unreadable": "it cannot be read: truncated, damaged, or of a format that is not known",
}
"""Word of a fault -> what it says."""
OF_DIGITS = frozenset({"other type", "rounded"})
"""Faults of numbers that are the member's own to the rounding of a type that checkpoints are stored in."""
OF_ALL = frozenset({"copy", "swapped members", "other run"})
"""Faults of whole members."""
UNREADABLE = frozenset({"unreadable", "missing file"})
"""Faults of members that cannot be opened."""


@dataclass(frozen=True)
class Fault:
    """A member that is not what its name says."""

    member: str
    step: int
    fault: str
    """One of ``FAULTS``."""
    tensors: tuple[str, ...]
    """The tensors concerned, as the member names them; empty where the member could not be opened."""
    matches: str = ""
    """The member that these tensors match, if any."""
    reason: str = ""
    """Half a sentence more, where there is more to say."""

    def __post_init__(self) -> None:
        """A name of a file need not be UTF-8, and no table holds such a name."""
        object.__setattr__(self, "member", one_line_of(self.member))
        object.__setattr__(self, "matches", one_line_of(self.matches))
        object.__setattr__(self, "reason", one_line_of(self.reason))
        object.__setattr__(self, "tensors", tuple(map(one_line_of, self.tensors)))

    def sentence(self) -> str:
        """The fault as one sentence."""
        some = some_names(self.tensors)
        match = f" (they match {self.matches})" if self.matches else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.member}: {FAULTS[self.fault]}{f': {some}' if some else ''}{match}{reason}."


def join_faults(faults: Iterable[Fault]) -> list[Fault]:
    """One fault per member, word and partner, with the tensors of all; in the order of the steps."""
    joined: dict[tuple[str, str, str], Fault] = {}
    for one in faults:
        key = (one.member, one.fault, one.matches)
        if key in joined:
            tensors = tuple(dict.fromkeys((*joined[key].tensors, *one.tensors)))
            one = Fault(one.member, one.step, one.fault, tensors, one.matches, joined[key].reason)
        joined[key] = one
    return sorted(joined.values(), key=lambda one: (one.step, one.member))
