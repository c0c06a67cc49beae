"""What a long computation tells its user, and what it keeps in case it is killed."""

from __future__ import annotations

import copy
import functools
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from tqdm import tqdm

from joma.core.errors import JomaError, UnfinishedError
from joma.core.printing import one_line_of, without_escapes
from joma.core.threads import limit_threads, usable_cores

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

LINE_EVERY = 30.0
"""Seconds between two lines of progress where there is no terminal for a bar."""


@dataclass(frozen=True)
class LostCall:
    """In the place of what a call would have returned: whoever computed it is gone."""

    reason: str
    """``signal 9``"""


class Executor(Protocol):
    """Calls functions, here or elsewhere: in turn, in processes of this machine, on a cluster."""

    def __call__(
        self, calls: Sequence[Callable[[], T]], workers: int
    ) -> Generator[tuple[int, T | LostCall], None, None]:
        """Each call's number and what it returned, as they end.

        The calls are picklable and raise no JomaError. ``workers``: how many at once, where that is not
        somebody else's to say.
        """
        ...


def in_turn(
    calls: Sequence[Callable[[], T]], workers: int
) -> Generator[tuple[int, T | LostCall], None, None]:
    """The executor that needs nothing: one call after the other, in this process."""
    for number, call in enumerate(calls):
        yield number, call()


class Progress:
    """Handed to every experiment's ``run``: progress bars, finished parts, a folder for checkpoints.

    ``Progress()`` alone shows bars on a terminal, or else a line every 30 seconds, and keeps nothing; a run
    directory hands out one whose parts survive a kill (see ``joma.runs.directory``).
    """

    elsewhere = False
    """Whether parts are computed on other machines."""
    apart = False
    """Whether this one is handed to a part in a process of its own."""
    threads = 1
    """That a part may take in a process of its own; 0: as many as there are cores for it."""

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
        self.costs: dict[str, float] = {}
        """Seconds of what is timed apart, by name (``note_cost``)."""

    def track(
        self,
        items: Iterable[T],
        label: object,
        *,
        total: int | None = None,
        initial: int = 0,
        beats: bool = False,
    ) -> Iterator[T]:
        """Iterate over ``items`` with a bar on stderr that appears after two seconds.

        Where stderr is no terminal, a line is written every ``LINE_EVERY`` seconds instead. What
        ``label`` says may change on the way. With ``beats`` it goes on while one item is waited for.
        """
        terminal = sys.stderr.isatty()
        if total is None and isinstance(items, Sized):
            total = len(items)
        bar = tqdm(
            items,
            desc=one_line_of(label),
            total=total,
            initial=initial,
            disable=self.quiet or not terminal,
            delay=2.0,
            leave=False,
            dynamic_ncols=True,
            position=self.position,
            file=without_escapes(sys.stderr),
        )
        started = told = self.clock()
        done = initial

        def tell() -> None:
            if terminal:
                bar.set_description_str(f"{one_line_of(label)}: ")
            else:
                line = _line(one_line_of(label), done, total, self.clock() - started, done - initial)
                print(line, file=sys.stderr, flush=True)

        every = 1.0 if terminal else LINE_EVERY
        with _heartbeat(tell, every) if beats and not self.quiet else nullcontext():
            for item in bar:
                if not (beats or self.quiet or terminal) and self.clock() - told >= LINE_EVERY:
                    told = self.clock()
                    tell()
                done += 1
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

    def note_device(self, device: str, dtype: str) -> None:
        """Note what computed, for the run's record: ``cuda:0``, ``bfloat16``.

        Where nothing is noted, it was NumPy: on the CPU, in float64.
        """

    def note_cost(self, name: str, seconds: float) -> None:
        """Note what a share of the work took, for the run's record: ``audit``, 3.2."""
        self.costs[name] = round(self.costs.get(name, 0.0) + seconds, 2)

    def parts(
        self, computations: Mapping[str, Callable[[Progress], pandas.DataFrame]]
    ) -> dict[str, pandas.DataFrame]:
        """Several parts, as many at once as there are cores if the executor can; each is kept as it finishes.

        The computations must be picklable (``functools.partial`` of a function at module level);
        each is handed a Progress of its own. The tables do not depend on the number of processes. If
        some fail, the others finish all the same, and the first failure is raised.
        """
        found: dict[str, pandas.DataFrame] = {}
        for name, outcome in self.attempts(computations).items():
            if isinstance(outcome, JomaError):
                raise outcome
            found[name] = outcome
        return found

    def attempts(
        self, computations: Mapping[str, Callable[[Progress], pandas.DataFrame]]
    ) -> dict[str, pandas.DataFrame | JomaError]:
        """As ``parts``, with the errors of those that failed in their places."""
        if not computations:
            return {}
        apart = self.elsewhere or (
            self.executor is not in_turn and min(usable_cores(), len(computations)) > 1
        )
        workers = min(usable_cores(), len(computations)) if apart else 1
        calls = [
            functools.partial(_outcome, self._for_worker(number % workers) if apart else self, name, compute)
            for number, (name, compute) in enumerate(computations.items())
        ]
        outcomes = dict((self.executor if apart else in_turn)(calls, workers))
        named = {name: outcomes[number] for number, name in enumerate(computations)}
        return {
            name: _lost_part_error(name, one) if isinstance(one, LostCall) else one
            for name, one in named.items()
        }

    def _for_worker(self, position: int) -> Self:
        worker = copy.copy(self)
        worker.position = position
        worker.apart = True
        worker.executor, worker.elsewhere = in_turn, False  # a part has no parts
        return worker


def _lost_part_error(name: str, lost: LostCall) -> UnfinishedError:
    return UnfinishedError(
        f"the process that computed {name} was ended ({lost.reason}; out of memory?). Finished parts are "
        f"kept; run the same command again."
    )


@contextmanager
def _heartbeat(tell: Callable[[], None], seconds: float) -> Iterator[None]:
    """Tell every so many seconds while the context lasts."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(seconds):
            tell()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
        with limit_threads(progress.threads or usable_cores()) if progress.apart else nullcontext():
            return progress.part(name, lambda: compute(progress))
    except JomaError as error:
        return error
