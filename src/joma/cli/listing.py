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
    found = {name: catalog.find(name) for name in catalog.names()}
    if options.json:
        rows = [
            {"name": n, "title": e.title, "reproduces": e.reproduces, "cost": e.costs()}
            for n, e in found.items()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    for name, experiment in found.items():
        cost = ", ".join(f"{preset}: {time}" for preset, time in experiment.costs().items())
        print(f"{name:<18} {experiment.reproduces}  ({cost})")
        print(textwrap.indent(textwrap.fill(experiment.title, 88), " " * 19))
    print(f"\n{LEGEND}")
    return 0
