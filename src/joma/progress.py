"""What a long computation tells its user, and what it keeps in case it is killed."""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from tqdm import tqdm

from joma.errors import JomaError
from joma.threads import usable_cores

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

LINE_EVERY = 30.0
"""Seconds between two lines of progress where there is no terminal for a bar."""


class Executor(Protocol):
    """Calls functions, here or elsewhere: in turn, in processes of this machine, on a cluster."""

    def __call__(self, calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
        """What the calls returned, in their order. They are picklable and raise no JomaError."""
        ...


def in_turn(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """The executor that needs nothing: one call after the other, in this process."""
    return [call() for call in calls]


class Progress:
    """Handed to every experiment's ``run``: progress bars, finished parts, a folder for checkpoints.

    ``Progress()`` alone shows bars on a terminal, or else a line every 30 seconds, and keeps nothing; a run
    directory hands out one whose parts survive a kill (see :mod:`joma.runs.directory`).
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        position: int = 0,
        executor: Executor = in_turn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.quiet = quiet
        self.position = position
        self.clock = clock

    def track(
        self, items: Iterable[T], label: str, *, total: int | None = None, initial: int = 0
    ) -> Iterator[T]:
        """Iterate over ``items`` with a bar on stderr that appears after two seconds.

        Where stderr is no terminal, a line is written every :data:`LINE_EVERY` seconds instead.
        """
        terminal = sys.stderr.isatty()
        if total is None and isinstance(items, Sized):
            total = len(items)
        bar = tqdm(
            items,
            desc=label,
            total=total,
            initial=initial,
            disable=self.quiet or not terminal,
            delay=2.0,
            leave=False,
            dynamic_ncols=True,
            position=self.position,
            file=sys.stderr,
        )
        started = told = self.clock()
        for number, item in enumerate(bar, initial):
            if not (self.quiet or terminal) and self.clock() - told >= LINE_EVERY:
                told = self.clock()
                print(
                    _line(label, number, total, told - started, number - initial), file=sys.stderr, flush=True
                )
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

    def used(self, device: str, dtype: str) -> None:
        """Note what computed, for the run's record: ``cuda:0``, ``bfloat16``.

        Where nothing is noted, it was NumPy: on the CPU, in float64.
        """

    def parts(
        self, computations: Mapping[str, Callable[[Progress], pandas.DataFrame]]
    ) -> dict[str, pandas.DataFrame]:
        """Several parts, as many at once as there are cores if the executor can; each is kept as it finishes.

        The computations must be picklable (``functools.partial`` of a function at module level);
        each is handed a Progress of its own. The tables do not depend on the number of processes. If
        some fail, the others finish all the same, and the first failure is raised.
        """
        workers = 1 if self.executor is in_turn else max(1, min(usable_cores(), len(computations)))
        calls = [
            functools.partial(
                _outcome, self._for_worker(number % workers) if workers > 1 else self, name, compute
            )
            for number, (name, compute) in enumerate(computations.items())
        ]
        outcomes = (self.executor if workers > 1 else in_turn)(calls, workers)
        for outcome in outcomes:
            if isinstance(outcome, JomaError):
                raise outcome
        return {
            name: table
            for name, table in zip(computations, outcomes, strict=True)
            if not isinstance(table, JomaError)
        }

    def _for_worker(self, position: int) -> Self:
        worker = copy.copy(self)
        worker.position = position
        return worker


def _line(label: str, done: int, total: int | None, seconds: float, now: int) -> str:
    """``fig9: 3 of 12 (25 %), about 2 min left``; ``now`` of those that are done took so many seconds."""
    if total is None:
        return f"{label}: {done:,} done in {seconds:.0f} s"
    said = f"{label}: {done:,} of {total:,} ({100 * done // max(total, 1)} %)"
    if not now:
        return f"{said} after {seconds:.0f} s"
    left = seconds * (total - done) / now
    return f"{said}, about {f'{left:.0f} s' if left < 100 else f'{left / 60:.0f} min'} left"


def _outcome(
    progress: Progress, name: str, compute: Callable[[Progress], pandas.DataFrame]
) -> pandas.DataFrame | JomaError:
    """The part's table, or its error as a value: one part's failure lets the others finish."""
    try:
        return progress.part(name, lambda: compute(progress))
    except JomaError as error:
        return error
