"""``joma report``."""

from __future__ import annotations

from pathlib import Path

from joma.cli.options import ReportOptions
from joma.errors import InputError
from joma.reporting.page import write_report
from joma.runs.directory import Run, find_runs, read_run


def do(options: ReportOptions) -> int:
    """Write the page about the runs that are found, and print its path."""
    if not options.directories:
        raise InputError("report: name a run directory, or a folder that holds some.")
    directories = [Path(word) for word in options.directories]
    runs: list[Run] = []
    seen: set[Path] = set()
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory} is not a directory; give run directories of joma run.")
        found = find_runs(directory)
        if not found:
            raise InputError(f"{directory} holds no run; give a directory that joma run has written.")
        runs += [read_run(path) for path in found if path.resolve() not in seen]
        seen |= {path.resolve() for path in found}
    print(write_report(runs, Path(options.out) if options.out else directories[0] / "report.html"))
    return 0
