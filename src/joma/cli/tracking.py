"""``joma track``: a series of checkpoints, or what measuring it would take."""

from __future__ import annotations

import json

from joma.cli import jobs
from joma.cli.words.options import JobCall, TrackOptions
from joma.core.memory import keep_large_apart
from joma.instruments.track import TrackSettings
from joma.instruments.track.audit import audit
from joma.instruments.track.plan import plan


def do(call: JobCall) -> int:
    """Measure the series; with ``--dry-run`` say what it takes, with ``--audit`` what is wrong with it."""
    job, options = call.job, call.options
    if isinstance(job, TrackSettings) and isinstance(options, TrackOptions) and options.audit:
        found = audit(job.series, revisions=job.revisions, quiet=options.quiet)
        print(json.dumps(found.as_json(), indent=1) if options.json else found.as_text())
        return int(bool(found.faults))
    if not (isinstance(job, TrackSettings) and isinstance(options, TrackOptions) and options.dry_run):
        keep_large_apart()
        return jobs.do(call)
    planned = plan(job)
    print(json.dumps(planned.as_json(), indent=1) if options.json else planned.as_text())
    return 0
