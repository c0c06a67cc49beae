"""The tour: the theory checked, a few experiments run, a report to look at, in minutes."""

from __future__ import annotations

import sys
from pathlib import Path

from joma.checks.catalog import run_checks
from joma.core.files import user_path
from joma.core.progress import Progress
from joma.experiments import catalog
from joma.experiments.tour import (
    CORPUS,
    QUICK_CHECKS,
    QUICK_CORPUS,
    QUICK_STEPS,
    QUICK_TOUR,
    TOUR,
    decoder_runs,
)
from joma.report.page import write_report
from joma.runs.directory import Run, run_experiment, write_claims


def demo(
    out: str | Path = "joma-demo", *, short: bool = False, overwrite: bool = False, quiet: bool = False
) -> Path:
    """Run the tour into a directory, and write one HTML page there.

    A tour that was cut short continues where it stopped. It takes some five minutes on two cores.

    Args:
        out: the directory.
        short: only what fits into a minute and needs no text but Python's own reference: two groups of
            checks, one figure, and a decoder of few steps.
        overwrite: whether what lies there is computed anew.
        quiet: no progress on stderr.

    Returns:
        The page's path.

    Raises:
        RunDirectoryError: the directory holds something else.
        UnfinishedError: the disk is full.

    Examples:
        >>> joma.demo("joma-demo").name  # doctest: +SKIP
        'report.html'
    """
    directory = user_path(out)

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    checks: tuple[str, ...] = ()
    title = "every theorem, lemma and erratum of the papers, computed afresh"
    if short:
        checks, title = QUICK_CHECKS, f"{' and '.join(QUICK_CHECKS)} of the papers, computed afresh"
    say(f"theory: {title}")
    checked = write_claims(
        directory / "check",
        name="check",
        title=title,
        compute=lambda: run_checks(checks, Progress(quiet=quiet)),
        overwrite=overwrite,
    )
    runs: list[Run] = []
    for name in QUICK_TOUR if short else TOUR:
        experiment = catalog.find(name)
        say(f"{name}: {experiment.title} ({experiment.costs()['quick']})")
        runs.append(
            run_experiment(
                experiment.from_preset("quick"),
                directory / name,
                preset="quick",
                overwrite=overwrite,
                quiet=quiet,
            )
        )
    say("monitor, track, probe: a decoder trained on the spot, measured as any model is")
    steps, corpus = (QUICK_STEPS, QUICK_CORPUS) if short else (600, CORPUS)
    decoder = decoder_runs(directory, corpus=corpus, steps=steps, overwrite=overwrite, quiet=quiet)
    return write_report([*reversed(runs), *decoder, checked], directory / "report.html")
