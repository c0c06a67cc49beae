"""``joma report``."""

from __future__ import annotations

import os
from pathlib import Path

from joma.cli.words.options import ReportOptions
from joma.core.errors import InputError, abbreviate
from joma.core.files import user_path
from joma.instruments.monitor.page import find_monitored, monitored_run
from joma.report.page import write_report
from joma.runs.directory import Run, find_runs, read_run


def do(options: ReportOptions) -> int:
    """Write the page about the runs that are found, and print its path."""
    if not options.directories:
        raise InputError("report: name a run directory, or a folder that holds some.")
    directories = [user_path(word) for word in options.directories]
    runs: list[Run] = []
    seen: set[Path] = set()
    for directory in directories:
        if not os.path.isdir(directory):
            raise InputError(
                f"{abbreviate(str(directory))} is not a directory; give run directories of joma run."
            )
        found = find_runs(directory)
        monitored = find_monitored(directory)
        if not found and not monitored:
            raise InputError(f"{directory} holds no run; give a directory that joma run has written.")
        runs += [read_run(path) for path in found if path.resolve() not in seen]
        runs += [monitored_run(path) for path in monitored if path.resolve() not in seen]
        seen |= {path.resolve() for path in (*found, *monitored)}
    path = user_path(options.out) if options.out else directories[0] / "report.html"
    print(write_report(runs, path, overwrite=options.overwrite))
    return 0
