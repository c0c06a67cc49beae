"""What a long computation tells its user, and what it keeps in case it is killed."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from joma.errors import JomaError

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


class Progress:
    """Handed to every experiment's ``run``: progress bars, finished parts, a folder for checkpoints.

    ``Progress()`` alone shows bars on a terminal and keeps nothing; a run directory hands out one
    whose parts survive a kill (see :mod:`joma.runs.directory`).
    """

    def __init__(self, *, quiet: bool = False, position: int = 0) -> None:
        self.quiet = quiet or not sys.stderr.isatty()
        self.position = position
        self._parent: int | None = None

    def track(
        self, items: Iterable[T], label: str, *, total: int | None = None, initial: int = 0
    ) -> Iterator[T]:
        """Iterate over ``items`` with a bar on stderr that appears after two seconds."""
        from tqdm import tqdm

        bar = tqdm(
            items,
            desc=label,
            total=total,
            initial=initial,
            disable=self.quiet,
            delay=2.0,
            leave=False,
            dynamic_ncols=True,
            position=self.position,
            file=sys.stderr,
        )
        for item in bar:
            if self._parent is not None and os.getppid() != self._parent:
                # The process that asked for this was killed; whoever continues its run must find
                # nobody else writing there.
                os._exit(1)
            yield item

    def part(self, name: str, compute: Callable[[], pandas.DataFrame]) -> pandas.DataFrame:
        """The table ``compute()`` returns, computed once: a run that is resumed finds it again.

        ``name`` is unique within the run and fit for a file name. Split a run of minutes into parts
        of seconds (a seed, a cell), so that a killed run loses little.
        """
        return compute()

    def checkpoint_folder(self, name: str) -> Path | None:
        """A folder for the checkpoints of an unfinished part, or None where nothing is kept."""
        return None

    def parts(
        self, computations: Mapping[str, Callable[[Progress], pandas.DataFrame]]
    ) -> dict[str, pandas.DataFrame]:
        """Several parts, in as many processes as there are cores; each is kept as it finishes.

        The computations must be picklable (``functools.partial`` of a function at module level);
        each is handed a Progress of its own. The tables do not depend on the number of processes. If
        some fail, the others finish all the same, and the first failure is raised.
        """
        workers = min(usable_cores(), len(computations))
        outcomes: list[pandas.DataFrame | JomaError]
        if workers < 2:
            outcomes = [_outcome(self, name, compute) for name, compute in computations.items()]
        else:
            import joblib

            # Interrupted, the pool's own bookkeeping process would remark on what was left behind.
            ignored = "ignore:resource_tracker:UserWarning"
            os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), ignored]))
            jobs = [
                joblib.delayed(_outcome)(self._for_worker(number % workers), name, compute)
                for number, (name, compute) in enumerate(computations.items())
            ]
            outcomes = joblib.Parallel(n_jobs=workers, batch_size=1, pre_dispatch="all")(jobs)
        for outcome in outcomes:
            if isinstance(outcome, JomaError):
                raise outcome
        return dict(zip(computations, outcomes, strict=True))

    def _for_worker(self, position: int) -> Self:
        worker = copy.copy(self)
        worker.position = position
        worker._parent = os.getpid()
        return worker


def _outcome(
    progress: Progress, name: str, compute: Callable[[Progress], pandas.DataFrame]
) -> pandas.DataFrame | JomaError:
    """The part's table, or its error as a value: one part's failure lets the others finish."""
    try:
        return progress.part(name, lambda: compute(progress))
    except JomaError as error:
        return error


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
