"""Train the paper's decoder on a text and date the dip of its attention entropy.

python examples/train_and_date_the_dip.py [TEXT] [STEPS]

TEXT is a corpus name or a file (default: the language reference that every CPython carries).
"""

import sys
import tempfile
from pathlib import Path

from joma.experiments.joma_paper.fig6 import Fig6
from joma.runs.directory import run_experiment


def main(text: str = "python-reference", steps: str = "1000") -> None:
    """Run a small Fig. 6 in a temporary directory and print what was found."""
    experiment = Fig6(
        corpus=text, steps=int(steps), seeds=1, width=64, hidden=64, measure_every=int(steps) // 20
    )
    with tempfile.TemporaryDirectory() as folder:
        run = run_experiment(experiment, Path(folder) / "run")
    found = run.tables["bounces"]
    columns = ["metric", "start", "dip_step", "dip_value", "rebound", "rebound_probability"]
    print(found[columns].round(3).to_string(index=False))
    for claim in run.claims:
        print(f"{claim.verdict:>10}  {claim.statement}")


if __name__ == "__main__":
    main(*sys.argv[1:])
