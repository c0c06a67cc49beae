"""``joma sweep``: a grid of runs, or what it would take."""

from __future__ import annotations

import json
import sys

from joma.cli import jobs
from joma.cli.words.options import JobCall, SweepOptions
from joma.core.errors import InputError
from joma.core.files import user_path
from joma.runs.executors import executor_of
from joma.sweeps import MANY, SweepSettings
from joma.sweeps.plan import plan


def do(call: JobCall) -> int:
    """Run the sweep; with ``--dry-run`` say how many cells there are and what they take."""
    job, options = call.job, call.options
    assert isinstance(job, SweepSettings)
    assert isinstance(options, SweepOptions)
    executor_of(options.executor)  # none that cannot be is met at the end
    if options.dry_run:
        planned = plan(job, user_path(options.out or job.directory()))
        print(json.dumps(planned.as_json(), indent=1) if options.json else planned.as_text())
        return 0
    if len(job.grid_cells()) > MANY and not options.yes:
        _confirm(len(job.grid_cells()))
    return jobs.do(call)


def _confirm(cells: int) -> None:
    """Raises InputError unless somebody at a terminal says yes."""
    if sys.stdin is not None and sys.stdin.isatty():
        print(f"{cells:,} cells: go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise InputError(f"sweep: the grid has {cells:,} cells; --yes runs them, --dry-run says what they take.")
