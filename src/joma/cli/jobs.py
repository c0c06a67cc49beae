"""``joma run``, ``joma probe``, ``joma neurons``: a job into its directory, and what it found."""

from __future__ import annotations

import json
import sys

from joma.checkpoints.omissions import is_whole, left_out
from joma.cli.words.options import InstrumentOptions, JobCall
from joma.core.errors import one_line
from joma.core.files import Json, user_path
from joma.core.printing import one_line_of
from joma.instruments.base import Instrument
from joma.instruments.probe import ProbeSettings
from joma.report.page import write_report
from joma.report.terminal import run_as_text
from joma.runs.directory import Run, run_experiment
from joma.runs.executors import executor_of
from joma.runs.job import Job


def do(call: JobCall) -> int:
    """Run the job and print its tables, claims and answer, or what ``--json`` and ``--csv`` ask for."""
    job, options = call.job, call.options
    directory = user_path(options.out or job.directory())
    run = run_experiment(
        job,
        directory,
        preset=call.preset,
        overwrite=options.overwrite,
        quiet=options.quiet,
        executor=executor_of(options.executor),
    )
    made, machines = directory, True
    if isinstance(job, Instrument):
        made = write_report([run], directory / "report.html", overwrite=options.overwrite)
    if options.json:
        print(json.dumps(_as_json(job, run), indent=1))
    elif isinstance(job, Instrument) and isinstance(options, InstrumentOptions) and options.csv:
        print(run.tables[job.main_table()].to_csv(index=False), end="")
    else:
        machines = False
        print("\n".join(filter(None, [job.terminal_text(run.tables), run_as_text(run), one_line_of(made)])))
    lacking = job.list_missing(run.tables)
    if lacking:
        print("\n".join(["joma: not measured:", *map(one_line, lacking)]), file=sys.stderr)
    return max(int(bool(lacking)), _remarks(job, run, machines))


def _remarks(job: Job, run: Run, machines: bool) -> int:
    """The exit status of a table of weights: 1 where what was asked for is left out.

    What is left out stands in the answer; what machines read has none, and it is named on stderr.
    """
    if not (isinstance(job, ProbeSettings) and job.weights):
        return 0
    ranks = run.tables["ranks"]
    if machines and (said := left_out(ranks)):
        print(f"joma: {one_line(said)}", file=sys.stderr)
    return 0 if is_whole(ranks) else 1


def _as_json(job: Job, run: Run) -> Json:
    """Directory and claims; of a model's measurements the tables too; of weights alone the rows."""
    claims: list[Json] = [claim.as_dict() for claim in run.claims]
    if not isinstance(job, Instrument):
        return {"directory": str(run.directory), "claims": claims}
    tables: dict[str, Json] = {
        name: json.loads(table.to_json(orient="records", double_precision=15))
        for name, table in run.tables.items()
    }
    if isinstance(job, ProbeSettings) and job.weights:
        return tables["ranks"]
    return {"directory": str(run.directory), "tables": tables, "claims": claims}
