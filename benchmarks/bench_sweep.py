"""What a sweep's machinery costs, and what of two cores reaches its cells.

Three numbers. Cells that compute, with one thread each: the gain of the sweep over the same cells in sequence
(each in a process of its own, too), as a share of the gain that two busy loops at once show over one after
the other on this machine (on two hardware threads of one core that is far from 2). 1,000 cells of no work:
and time to read their table. Machinery per cell: what a cell costs beyond its own work.

    python benchmarks/bench_sweep.py [CELLS SECONDS ROUNDS]
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from busy import Busy, multiply

from joma.runs.executors.processes import local_processes
from joma.runs.job import Job
from joma.runs.parts import RunProgress
from joma.sweeps.cells import compute_cells, tables_of
from joma.sweeps.grid import axes_of, cells_of

SHARE, MOST_PER_CELL, MOST_SECONDS, MOST_READ = 0.92, 0.05, 60.0, 2.0
IDLE = 1000


def swept_in(cells: Sequence[Job], folder: Path, at_once: int) -> float:
    """Seconds of a sweep, so many at once, each in a process of its own."""

    def executor(calls: Sequence[Callable[[], object]], workers: int) -> object:
        return local_processes(calls, at_once)

    progress = RunProgress(folder, quiet=True, executor=executor)  # type: ignore[arg-type]
    return seconds(lambda: compute_cells(cells, folder / "cells", progress, "busy"))


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def products_of(wanted: float) -> int:
    """How many products take so many seconds here, alone."""
    multiply(200)
    return int(wanted / seconds(functools.partial(multiply, 4000)) * 4000)


def busy_loops(products: int, at_once: int) -> float:
    """Seconds of two busy loops, at once or one after the other."""
    calls = [functools.partial(multiply, products)] * 2
    return seconds(lambda: list(local_processes(calls, at_once)))


def main() -> int:
    count, wanted, rounds = (float(word) for word in (sys.argv[1:] or ("8", "20", "1")))
    products = products_of(wanted)
    swept, sequence, loops = [], [], []
    cells = cells_of(Busy(products=products), axes_of([f"seed=1..{count:.0f}"], Busy))
    for _ in range(int(rounds)):
        loops.append(busy_loops(products, 1) / busy_loops(products, 2))
        with tempfile.TemporaryDirectory() as name:
            sequence.append(swept_in(cells, Path(name, "one"), 1))
            swept.append(swept_in(cells, Path(name, "two"), 2))
    gain = statistics.median(one / other for one, other in zip(sequence, swept, strict=True))
    loop = statistics.median(loops)
    print(
        f"{count:.0f} cells of {wanted:.0f} s: in sequence {statistics.median(sequence):.1f} s, swept "
        f"{statistics.median(swept):.1f} s: gain {gain:.3f}; two busy loops {loop:.3f}; share "
        f"{gain / loop:.3f} (at least {SHARE})"
    )
    cells = cells_of(Busy(), axes_of([f"seed=1..{IDLE}"], Busy))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        took = swept_in(cells, folder, 2)
        begun = time.perf_counter()
        table = pd.concat(tables_of(cells, folder / "cells")["counts"], ignore_index=True)
        read = time.perf_counter() - begun
        few = cells_of(Busy(), axes_of(["seed=2001..2100"], Busy))
        alone = swept_in(few, folder, 1) / len(few)
    print(
        f"{IDLE} cells of no work: {took:.1f} s (at most {MOST_SECONDS:.0f}); their {len(table):,} rows read "
        f"in {read:.2f} s (at most {MOST_READ:.0f}); machinery {1e3 * alone:.0f} ms a cell, one at a time "
        f"(at most {1e3 * MOST_PER_CELL:.0f})"
    )
    return int(gain / loop < SHARE or took > MOST_SECONDS or read > MOST_READ or alone > MOST_PER_CELL)


if __name__ == "__main__":
    sys.exit(main())
