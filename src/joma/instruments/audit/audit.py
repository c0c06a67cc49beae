"""``joma.audit``: is each member of a series what its name says?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joma.checkpoints.series.audit.faults import Fault
from joma.core.errors import InputError
from joma.core.files import Json
from joma.core.progress import Progress
from joma.instruments.audit import AuditSettings
from joma.instruments.audit.run import text_of
from joma.runs.result import JobResult


@dataclass(frozen=True, repr=False)
class AuditResult(JobResult):
    """A series audited: the tables of ``joma.instruments.audit.AuditSettings``."""

    def first_table(self) -> str:
        """``faults``, one row per faulty member and fault; empty for a clean series."""
        return "faults"

    @property
    def faults(self) -> list[Fault]:
        """The faults, in the order of the steps."""
        reasons = self.tables["reasons"]["reason"]
        return [
            Fault(row.member, int(row.step), row.fault, tuple(row.tensors), text_of(row.matches), reason)
            for row, reason in zip(self.tables["faults"].itertuples(), reasons, strict=True)
        ]

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
        return self.settings.terminal_text(self.tables)


def audit(
    series: str | Path | Sequence[str | Path],
    *,
    revisions: str | Sequence[str] = "all",
    quiet: bool = False,
) -> AuditResult:
    """Say which members of a series of checkpoints are not what their names say.

    Each member on this machine is read once; of a model on the hub at most two percent of the bytes travel.
    Members are compared tensor by tensor: by their bytes (on the hub by its hashes of files), by their place
    on the way that the weights take, and by names, shapes and types.

    Args:
        series: a folder of checkpoints, folders and files of checkpoints, or the name of a model on the hub
            whose revisions are its checkpoints.
        revisions: which members: ``all``, names, ``every:10`` or ``log:20``.
        quiet: no progress on stderr.

    Returns:
        A result whose ``table()`` has one row per faulty member and fault: ``member, step, fault`` (one of
        ``joma.checkpoints.series.audit.faults.FAULTS``)``, tensors`` (a list of names)``, matches``; empty
        for a clean series. ``save(folder)`` writes a run directory.

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
    job = AuditSettings.of(series=tuple(map(str, named)), revisions=asked)
    return AuditResult(job, job.run(Progress(quiet=quiet)))
