"""``joma.track``: a series of checkpoints from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joma.core.errors import InputError, abbreviate
from joma.core.progress import Progress
from joma.core.settings import Value
from joma.instruments.track import TrackSettings
from joma.runs.directory import run_experiment
from joma.runs.result import JobResult


@dataclass(frozen=True, repr=False)
class TrackResult(JobResult):
    """A series of checkpoints, measured: the tables of ``joma.instruments.track.TrackSettings``."""

    def first_table(self) -> str:
        """``values``, with every measurement: ``series, checkpoint, step, layer, head, metric, value`` ..."""
        return "values"

    def bounces(self) -> pd.DataFrame:
        """Dip and bounce of every curve, with its null and verdict: see ``joma.bounce``."""
        return self.tables["bounces"]

    def notes(self) -> pd.DataFrame:
        """What was noticed about the series; ``lost`` where a checkpoint was not measured for it."""
        return self.tables["notes"]


def track(
    series: str | Path | Sequence[str | Path],
    text: str | Path = "",
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Value,
) -> TrackResult:
    """Measure a series of checkpoints along its training.

    Args:
        series: a folder of checkpoints, folders and files of checkpoints, or the name of a model on the hub
            whose revisions are its checkpoints.
        text: a file or a named corpus to read; without one, weights alone are measured.
        out: a run directory, which keeps every finished checkpoint and lets a broken run continue.
        quiet: no progress on stderr.
        settings: of ``joma.instruments.track.TrackRun`` and of its reading
            (``joma.instruments.reading.settings.Reading``): ``revisions``, ``layers``, ``tokens``, ...

    Raises:
        InputError: no such series, no step in any name, an unknown setting.
        UnfinishedError: not one checkpoint could be measured.

    Examples:
        >>> model = Decoder(50, layers=1, width=16, hidden=32, heads=2)
        >>> for step in (0, 10, 20):
        ...     os.makedirs(f"run/checkpoint-{step}")
        ...     safetensors.torch.save_file(model.state_dict(), f"run/checkpoint-{step}/model.safetensors")
        ...     _ = model.layers[0].lower.weight.data.mul_(2)
        >>> found = joma.track("run", quiet=True)
        >>> found.tables["checkpoints"]["step"].tolist()
        [0, 10, 20]
    """
    if not isinstance(text, str | Path):
        raise InputError(
            f"track: text = {abbreviate(text)} is not a text; give a file's path or a named corpus."
        )
    named = list(series) if isinstance(series, Iterable) and not isinstance(series, str) else [series]
    if not all(isinstance(one, str | Path) for one in named):
        raise InputError(
            f"track: the series {abbreviate(named)} holds what is no path; give folders and files."
        )
    if not named:
        raise InputError("track: the series is empty; give a folder, folders and files, or a model's name.")
    given: dict[str, Value] = {**settings, "model": str(named[0]), "text": str(text)}
    job = TrackSettings.of(**given, further=tuple(map(str, named[1:])))
    job.check_complete()
    if out is None:
        return TrackResult(job, job.run(Progress(quiet=quiet)))
    return TrackResult(job, run_experiment(job, Path(out), quiet=quiet).tables)
