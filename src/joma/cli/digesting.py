"""``joma digest``: what stands out, or what differs, in ten lines at most."""

from __future__ import annotations

import json

from joma.cli.words.options import DigestOptions
from joma.core.errors import InputError
from joma.report.digest import digest
from joma.runs.finding import SCHEMA


def do(options: DigestOptions) -> int:
    """Print the findings, as lines or as JSON."""
    if options.schema:
        print(json.dumps(SCHEMA, indent=1))
        return 0
    if len(options.subjects) not in (1, 2):
        raise InputError("digest: name a run, a model or a series, or two runs to compare.")
    found = digest(*options.subjects, quiet=options.quiet)
    print(json.dumps(found.as_json(), indent=1) if options.json else found)
    return 0
