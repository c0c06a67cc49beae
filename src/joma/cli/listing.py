"""``joma list``."""

from __future__ import annotations

import json
import textwrap

from joma.cli.words.options import ListOptions
from joma.experiments import catalog

LEGEND = (
    "Times are processor time, measured from start to end (two cores share it where seeds run in\n"
    "processes of their own); those with 'about' are estimates for two cores."
)


def do(options: ListOptions) -> int:
    """Print the experiments: name, what each reproduces, what it costs, its title."""
    rows = catalog.overview()
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        cost = ", ".join(f"{preset}: {time}" for preset, time in row["cost"].items())
        print(f"{row['name']:<18} {row['reproduces']}  ({cost})")
        print(textwrap.indent(textwrap.fill(row["title"], 88), " " * 19))
    print(f"\n{LEGEND}")
    return 0
