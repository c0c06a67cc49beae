"""A series of checkpoints measured along the training, its dips and bounces dated (``joma track``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from joma.checkpoints.series.amounts import read_budget
from joma.core.errors import InputError
from joma.core.files import is_there, user_path
from joma.instruments.base import Instrument
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class TrackSettings(Instrument):
    """Weights, their changes and, on a text, loss and attention entropy, checkpoint by checkpoint.

    The series is the reading's model: a folder of checkpoints, a model of the hub with its revisions, or,
    with ``further``, a list of folders and files.

    Tables: ``checkpoints``, one row per member; ``notes``, what was noticed about the series, ``lost`` where
    a checkpoint or some of its tensors were not measured for it; ``faults``, the tensors that an audit names
    (``joma.audit``); with a budget ``choice``, the members that were chosen, and why; ``values``, one row per
    checkpoint and measurement; ``bounces``, one per curve; ``dates``, when each layer has done half of its
    fall and return, and ``orders``, whether in the order of the layers; ``layers``, a row per layer;
    ``warnings``; ``beside``, with a second series; of
    the sections of a probe their own tables (``coherence``, ``joint_dynamics``, ``salience``,
    ``received_attention``).
    """

    title = "a series of checkpoints measured along its training"
    reproduces = "instrument for JoMA Fig. 7"
    grows: ClassVar[bool] = True
    free: ClassVar[frozenset[str]] = frozenset(
        {"further", "revisions", "budget", "audit", "against", "align", "window", "follow", "keep_downloads"}
    )

    further: tuple[str, ...] = setting((), "further folders and files of the series", positional=True)
    revisions: tuple[str, ...] = setting(
        ("all",), "all, names (step1000,step2000), every:10 or log:20 (closer at first)"
    )
    budget: str = setting("", "200GB or 6h: choose the members that tell most within it, and say which")
    audit: bool = setting(
        True,
        "compare the members first, and leave tensors that are not what their names say out of the curves",
    )
    weights: bool = setting(False, "measure weights only, whatever the text")
    sections: tuple[str, ...] = setting(
        ("attention",),
        "of a probe, with --text: attention,coherence,joint_dynamics,salience,received_attention",
    )
    statistics: tuple[str, ...] = setting(("entropy",), "of the attention: entropy,renyi_2,self_mass, ...")
    layers: tuple[int, ...] | None = setting(None, "numbers of the layers: 0,5,11 (none: all)", at_least=0)
    changes: bool = setting(True, "measure W(t) - W(t') and the product of queries and keys")
    heads: int | None = setting(None, "query heads of a layer, where no configuration says so", at_least=1)
    against: str = setting("", "a second series to lay beside the first")
    align: str = setting("step", "what brings two series together", choices=("step", "tokens", "loss"))
    window: int = setting(5, "neighbours over which variance and lag-1 correlation go", at_least=4)
    follow: int = setting(
        0, "seconds without a new checkpoint until a growing folder is done (0: do not wait)", at_least=0
    )
    keep_downloads: str = setting("", "folder that keeps what is fetched (default: removed after use)")

    @property
    def series(self) -> tuple[str, ...]:
        """What was named."""
        return (self.reading.model, *self.further)

    @property
    def reads_text(self) -> bool:
        """Whether the models are built and read the text."""
        return self.reading.reads and not self.weights

    def heading(self) -> str:
        """Which series, and on which text; a folder's own name tells nothing of what lies in it."""
        text = f" on {self.reading.source()}" if self.reads_text else ""
        return f"{self._named_series()} along {'its' if self._is_distant() else 'a'} training{text}"

    def _named_series(self) -> str:
        return self.reading.model if self._is_distant() else f"checkpoints in {self.reading.model}"

    def _is_distant(self) -> bool:
        """Whether the series is a model of the hub."""
        return not (self.further or is_there(user_path(self.reading.model)))

    def main_table(self) -> str:
        """Every measurement."""
        return "values"

    def list_missing(self, tables: Mapping[str, pandas.DataFrame]) -> list[str]:
        """The checkpoints that could not be measured, each with the reason; and series that do not meet."""
        notes = tables["notes"]
        lost = list(notes[notes["lost"]]["text"])
        if self.against and tables["beside"].empty:
            lost.append(self._ranges_apart(tables["values"]))
        return lost

    def _ranges_apart(self, values: pandas.DataFrame) -> str:
        """Why nothing of two series was laid side by side."""
        ranges = []
        for series, name in (("A", self._named_series()), ("B", self.against)):
            own = values[(values["series"] == series) & values["value"].notna()][self.align].dropna()
            span = (
                f"has {self.align} {own.min():g} to {own.max():g}" if len(own) else f"tells no {self.align}"
            )
            ranges.append(f"{name} {span}")
        return (
            f"nothing was laid side by side by --align {self.align}: {' and '.join(ranges)}; their measured "
            "matrices must have common names and a common range: give another --align (step, tokens "
            "or loss), or other checkpoints."
        )

    def check_complete(self) -> None:
        """Raises InputError where no series is named."""
        if not self.reading.model:
            raise InputError(
                "track: name a series first: a folder of checkpoints, folders and files, or a model's "
                "name on the hub."
            )
        if self.budget:
            read_budget(self.budget)
        if self.align == "loss" and not self.reads_text:
            raise InputError("track: --align loss needs a --text on which the loss is measured.")
