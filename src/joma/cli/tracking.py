"""``joma track``: a series of checkpoints, or what measuring it would take."""

from __future__ import annotations

import json

from joma.cli import jobs
from joma.cli.words.options import JobCall, TrackOptions
from joma.core.errors import InputError
from joma.core.files import user_path
from joma.core.memory import keep_large_apart
from joma.instruments.audit.audit import audit
from joma.instruments.track import TrackSettings
from joma.instruments.track.plan import plan
from joma.report.page import write_report
from joma.runs.directory import read_run


def do(call: JobCall) -> int:
    """Measure the series; with ``--dry-run`` say what it takes, with ``--audit`` what is wrong with it."""
    job, options = call.job, call.options
    if isinstance(job, TrackSettings) and isinstance(options, TrackOptions) and options.audit:
        if job.budget:
            raise InputError("joma track: --audit looks at every member; choose some by --revisions.")
        found = audit(job.series, revisions=job.revisions, quiet=options.quiet)
        if options.out:
            found.save(options.out, overwrite=options.overwrite)
            write_report([read_run(user_path(options.out))], user_path(options.out) / "report.html")
        print(json.dumps(found.as_json(), indent=1) if options.json else found.as_text())
        return int(bool(found.faults))
    if not (isinstance(job, TrackSettings) and isinstance(options, TrackOptions) and options.dry_run):
        keep_large_apart()
        return jobs.do(call)
    planned = plan(job)
    print(json.dumps(planned.as_json(), indent=1) if options.json else planned.as_text())
    return 0
