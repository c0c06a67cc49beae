"""What the growth of W_Q^T W_K is worth as an alarm, on kinds of networks that no constant was chosen on.

Small networks are trained, each continued into healthy runs and made faults (``growth_study/kinds.py``).
Every five steps ln sigma_1 of W_Q^T W_K of each head is read as ``joma.Monitor`` reads it; the rule of
``joma.measures.change.growth`` sees nothing else. A run's label comes from its loss and its twin's alone.
Finished bases are kept, and read when it is called again; ``--page`` writes docs/growth.md.

    python benchmarks/study_growth.py [--kinds judged|chosen] [--bases 3] [--keep FOLDER] [--page]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd
from growth_study.judge import DOUBLED, held_forecasts, quiet_bases, tables_of
from growth_study.kinds import BRANCHES, CHOSEN_ON, JUDGED_ON, RAMP
from growth_study.training import train_base

from joma.core.progress import Progress
from joma.experiments.beyond.alarm.intervals import share_bounds

PAGE = Path(__file__).parent.parent / "docs" / "growth.md"
HEAD = """# What the growth of W_Q^T W_K tells

Between looks `joma.Monitor` follows ln sigma_1 of W_Q^T W_K of each head, every five steps, by a
warm-started power iteration. The rule: some head's value rises by 0.7 or more within 20 steps (its norm
doubles), by three times what is usual in this run, and two fifths of that in the second half. It needs no
forward hook and no look, so that the cadence of looks does not matter to it. Growth that is reported has a
forecast: when the head's largest logit, as the last look saw it, reaches 100 if the growth goes on.

This page is written by `{command}`. The constants were chosen on four kinds of networks, two bases each
({chosen}); every kind below is another one, and none of its runs was looked at before. A run is *damaged*
where its last 20 losses lie 0.15 nats or more above its twin's. Bounds are exact, one-sided, 95 %, over
bases; a base counts once.

"""


def parts_of(kinds: str, bases: int, keep: Path) -> list[pd.DataFrame]:
    """The series of each base, trained or read."""
    keep.mkdir(parents=True, exist_ok=True)
    found = []
    for base in range(bases):
        for kind in JUDGED_ON if kinds == "judged" else CHOSEN_ON:
            path = keep / f"{kind.name.replace(', ', '-').replace(' ', '-')}-{base:04d}.parquet"
            if not path.exists():
                began = time.process_time()
                train_base(kind, base, Progress(quiet=True)).to_parquet(path)
                print(f"{path.stem}: {time.process_time() - began:.0f} s of processor time", flush=True)
            found.append(pd.read_parquet(path))
    return found


def report(tables: dict[str, pd.DataFrame]) -> str:
    """Two tables and some sentences."""
    runs, rates = tables["runs"], tables["rates"]
    names = ["base", *(branch.name for branch in BRANCHES)]
    shown = rates[rates["metric"] == "alarmed"]
    lines = f"| kind | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    for kind, own in shown.groupby("kind", sort=False):
        counts = own.set_index("branch")
        cells = [f"{counts.loc[name, 'count']}/{counts.loc[name, 'of']}" for name in names]
        lines += f"| {kind} | {' | '.join(cells)} |\n"
    said, of = quiet_bases(runs)
    doubled = runs[(runs["branch"] == DOUBLED) & ~runs["label"].isin(("degraded", "collapsed"))]
    twice = int(doubled["alarm"].notna().sum())
    leads = tables["leads"].set_index("metric")
    held, told = held_forecasts(runs)
    words = [
        f"- Healthy runs: reported in {said} of {of} bases (upper bound {share_bounds(said, of)[1]:.1%}).",
        f"- A doubled rate whose run stayed healthy: reported in {twice} of {len(doubled)} "
        f"(upper bound {share_bounds(twice, len(doubled))[1]:.1%}).",
    ]
    for branch in (RAMP, "rate ramp 20"):
        own = rates[(rates["kind"] == "all") & (rates["branch"] == branch)].set_index("metric")
        found, before = (own.loc[f"damaged runs alarmed{end}"] for end in ("", " before the onset"))
        words.append(
            f"- {branch}: of {found['of']} damaged runs {found['count']} found (lower bound "
            f"{found['low']:.1%}), {before['count']} before the loss's onset (lower bound "
            f"{before['low']:.1%})."
        )
    for metric, what in (("lead_on_onset", "loss's onset"), ("lead_on_cusum", "loss's CUSUM(6, 1)")):
        row = leads.loc[metric]
        words.append(
            f"- Median lead on the {what} in damaged ramps of W_Q and W_K: {row['value']:g} steps (lower "
            f"bound {row['low']:g}, {row['of']} runs)."
        )
    words.append(
        f"- Forecasts of a logit of 100: {held} of {told} of the stated intervals (eight in ten) held."
    )
    return "Bases in which growth was reported:\n\n" + lines + "\n" + "\n".join(words) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", choices=["judged", "chosen"], default="judged")
    parser.add_argument("--bases", type=int, default=3, help="of each kind")
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/growth"), help="where finished bases are kept"
    )
    parser.add_argument("--page", action="store_true", help="write docs/growth.md")
    given = parser.parse_args()
    told = report(tables_of(parts_of(given.kinds, given.bases, given.keep)))
    print(told)
    if given.page:
        command = f"python benchmarks/study_growth.py --bases {given.bases} --page"
        chosen = "; ".join(kind.name for kind in CHOSEN_ON)
        PAGE.write_text(HEAD.format(command=command, chosen=chosen) + told, encoding="utf-8")


if __name__ == "__main__":
    main()
