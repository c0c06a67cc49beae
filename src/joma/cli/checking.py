"""``joma check``."""

from __future__ import annotations

import json

from joma.checks.catalog import groups, run_checks
from joma.cli.words.options import CheckOptions
from joma.core.progress import Progress
from joma.report.terminal import claims_as_text


def do(options: CheckOptions) -> int:
    """Compute the claims and print them, or name their groups."""
    if options.list:
        names = list(groups())
        print(json.dumps(names) if options.json else "\n".join(names))
        return 0
    claims = run_checks(options.names, Progress(quiet=options.quiet))
    if options.json:
        print(json.dumps([claim.as_dict() for claim in claims], indent=1))
    else:
        print(claims_as_text(claims))
    return 0
