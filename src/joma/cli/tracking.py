"""``joma track``: a series of checkpoints, or what measuring it would take."""

from __future__ import annotations

import json

from joma.cli import jobs
from joma.cli.words.options import JobCall, TrackOptions
from joma.core.memory import keep_large_apart
from joma.instruments.track import TrackSettings
from joma.instruments.track.plan import plan


def do(call: JobCall) -> int:
    """Measure the series; with ``--dry-run`` say what there is and what it takes."""
    job, options = call.job, call.options
    if not (isinstance(job, TrackSettings) and isinstance(options, TrackOptions) and options.dry_run):
        keep_large_apart()
        return jobs.do(call)
    planned = plan(job)
    print(json.dumps(planned.as_json(), indent=1) if options.json else planned.as_text())
    return 0
