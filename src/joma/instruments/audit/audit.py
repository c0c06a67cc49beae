"""``joma.audit``: is each member of a series what its name says?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from joma.checkpoints.series.audit.audit import Audit, audit_series
from joma.checkpoints.series.audit.faults import Fault
from joma.checkpoints.series.members import select
from joma.checkpoints.series.sources.find import find_series
from joma.core.errors import InputError
from joma.core.figures import drawn_in_notebooks, panels
from joma.core.files import Json, user_path, write_text
from joma.core.progress import Progress
from joma.core.style import style
from joma.core.tables import Tables

_COLUMNS = ["member", "step", "fault", "tensors", "matches"]


@dataclass(frozen=True, repr=False)
class AuditResult(Tables):
    """A series audited: tables ``faults``, one row per faulty member and fault, ``notes``, ``members``."""

    audit: Audit
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """``faults`` has the columns ``member, step, fault, tensors`` (a list of names), ``matches`` (the member
    that those tensors match, or None)."""

    def first_table(self) -> str:
        """``faults``."""
        return "faults"

    @property
    def faults(self) -> list[Fault]:
        """The faults, in the order of the steps."""
        return self.audit.faults

    def answer(self) -> list[str]:
        """Which members are not what their names say, in one to three sentences."""
        count, faulty = len(self.audit.members), list(dict.fromkeys(one.member for one in self.faults))
        said = [f"Each of the {count} members is what its name says, as far as their weights tell."]
        if faulty:
            names = ", ".join(faulty[:5]) + (f" and {len(faulty) - 5} more" if len(faulty) > 5 else "")
            said = [
                f"{len(faulty)} of the members {'is' if len(faulty) == 1 else 'are'} not what "
                f"{'its name says' if len(faulty) == 1 else 'their names say'}: {names}.",
                self.faults[0].sentence(),
            ]
        return said + [f"Noticed: {'; '.join(self.audit.notes)}."] * bool(self.audit.notes)

    def as_json(self) -> list[dict[str, Json]]:
        """One object per faulty member and fault, as ``joma track SERIES --audit --json`` prints them."""
        return [
            {
                "member": one.member,
                "step": one.step,
                "fault": one.fault,
                "tensors": list(one.tensors),
                "matches": one.matches or None,
            }
            for one in self.faults
        ]

    def as_text(self) -> str:
        """The answer, then one line per fault."""
        lines = [self.answer()[0], *(f"  {one.sentence()}" for one in self.faults)]
        return "\n".join([*lines, *(f"  noticed: {note}" for note in self.audit.notes)])

    def plot(self) -> Figure:
        """Draw, for every member, how many of its tensors are named."""
        with style("light"):
            figure, axes = panels()
            counts = {one.name: 0 for one in self.audit.members}
            for fault in self.faults:
                counts[fault.member] = counts.get(fault.member, 0) + max(1, len(fault.tensors))
            axes[0, 0].bar(range(len(counts)), list(counts.values()))
            axes[0, 0].set_xticks(range(len(counts)), list(counts), rotation=90)
            axes[0, 0].set_ylabel("tensors that are named")
            return drawn_in_notebooks(figure)

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``audit.json``, a list of the faults, into a folder, and return its path.

        Raises:
            InputError: the file is there already and is not to be replaced.
        """
        path = user_path(directory) / "audit.json"
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists; give another folder, or overwrite=True.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.as_json(), indent=1) + "\n")
        return path

    def __str__(self) -> str:
        return " ".join(self.answer())


def audit(
    series: str | Path | Sequence[str | Path],
    *,
    revisions: str | Sequence[str] = "all",
    quiet: bool = False,
) -> AuditResult:
    """Say which members of a series of checkpoints are not what their names say.

    Each member is read once. It is compared with the others tensor by tensor: by its bytes, by its place on
    the way that the weights take, and by names, shapes and types.

    Args:
        series: a folder of checkpoints, folders and files of checkpoints, or the name of a model on the hub
            whose revisions are its checkpoints (there by the hub's hashes of whole members).
        revisions: which members: ``all``, names, ``every:10`` or ``log:20``.
        quiet: no progress on stderr.

    Returns:
        A result whose ``table()`` has one row per faulty member and fault: ``member, step, fault`` (one of
        ``joma.checkpoints.series.audit.faults.FAULTS``)``, tensors, matches``; empty for a clean series.

    Raises:
        InputError: no such series, or no step in any name.

    Examples:
        >>> model = Decoder(50, layers=1, width=16, hidden=32, heads=2)
        >>> for step in (0, 10, 20):
        ...     os.makedirs(f"run/checkpoint-{step}")
        ...     safetensors.torch.save_file(model.state_dict(), f"run/checkpoint-{step}/model.safetensors")
        ...     _ = model.layers[0].lower.weight.data.add_(0.01)
        ...     _ = model.layers[0].upper.weight.data.add_(0.01)
        >>> joma.audit("run", quiet=True).table().columns.tolist()
        ['member', 'step', 'fault', 'tensors', 'matches']
    """
    named = [series] if isinstance(series, str | Path) else list(series)
    if not named:
        raise InputError("audit: the series is empty; give a folder, folders and files, or a model's name.")
    asked = tuple(revisions.split(",")) if isinstance(revisions, str) else tuple(revisions)
    found = find_series(tuple(map(str, named)), asked)
    chosen = select(found.members, asked, found.lost)
    progress = Progress(quiet=quiet)
    result = audit_series(found, chosen, lambda some: progress.track(some, "members", total=len(chosen)))
    rows = [(f.member, f.step, f.fault, list(f.tensors), f.matches or None) for f in result.faults]
    tables = {
        "faults": pd.DataFrame(rows, columns=_COLUMNS),
        "notes": pd.DataFrame({"text": result.notes}, dtype="str"),
        "members": pd.DataFrame(
            [(one.name, one.place.step, one.size) for one in result.members],
            columns=["member", "step", "bytes"],
        ),
    }
    return AuditResult(result, tables)
