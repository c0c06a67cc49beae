"""``joma demo``."""

from __future__ import annotations

from joma.cli.words.options import DemoOptions
from joma.report.demo import demo


def do(options: DemoOptions) -> int:
    """Run the tour and print where its page is."""
    print(demo(options.out, short=options.quick, overwrite=options.overwrite, quiet=options.quiet))
    return 0
