"""Write docs/alarm.md, and its picture, from a run of the experiment ``alarm``: python docs/alarm.py RUN."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from PIL import Image
from stored import job

from joma.core.claim import Claim
from joma.experiments.beyond.alarm.branches import FAULTS, HEALTHY, MAIN, OTHERS
from joma.experiments.beyond.alarm.claims import FEWEST, answer, harmless
from joma.experiments.beyond.alarm.detection import OURS, UNJUDGED, WHOLE, WITHDRAWN
from joma.runs.directory import Run, read_run

HERE = Path(__file__).parent
HEAD = """# What the alarm is worth

`joma.Monitor` looks at a model while it trains and says when something changes. This page says what its
alarm sees, how early, how often falsely, and what it does not see. It is written by `python docs/alarm.py
RUN` from a run of the experiment: `{command}`.

## The procedure

Per head the logit of (entropy / log n) and the logarithm of the largest logit, per block the logarithm of
the residual stream's root mean square. Each becomes residuals against its own smoothed past (level .05,
scale .02, clipped at 4). One Shiryaev-Roberts e-detector, averaged over all series, both directions and
three weights, alarms at ln(planned looks / alpha). It is armed after 20 looks and 150 steps. Beside it
stands a CUSUM(6, 1) of the loss at every step against the last 200 quiet losses. Floors (entropy below 0.1
log n, a logit above 100) are *state messages*, never alarms.

The bound on false alarms assumes that healthy residuals have a mean of at most 0.5 and a long-run variance
of at most 4, in squared scales. The run's own values (root mean square drift and mean variance over series,
since arming, while all was quiet) are watched: beyond the constants an alarm is "not valid here".

**What was fixed when.** Slack, learning and clipping come from an earlier study. Variance 4 (it was 2.5),
the 150 steps and the way validity is judged were chosen on a pilot of eight bases whose seeds are on
neither side of this run. The labels (loss and twin alone) were written before any rule was run on them, and
not changed, but for the change of text, whose runs are held against their own beginning: their twins read
another text. The recovering
spike was made smaller (rate x10 for 3 steps) when the pilot's did not recover, and the level below which a
run counts as quiet lowered from 4 to 2 after a run of four bases on another text had withdrawn a true alarm.

## How it was measured

Small GPTs (width 64, two layers, four heads, 64 characters, AdamW at 3e-3 with a warm-up of 50 steps) learn
characters for {base_steps} steps; each is then continued in every way below, on batches that its twin, the
plain continuation, sees too. A run is *degraded* where its last 20 losses lie 0.15 nats above its twin's,
*collapsed* from 0.5 on; its *onset* is the first step at which the mean of ten losses is 0.15 above its
minimum. {bases} bases calibrate (thresholds marked so: the largest score of their healthy branches),
{bases} others are judged. Bounds are exact, one-sided, 95 %, over bases.

"""
FEW = """**{bases} bases confirm nothing.** The numbers below are a first look; a bound of 5 % takes {fewest}
bases, as `joma run alarm --preset paper` has (`python docs/alarm.py RUN` then writes this page anew).

"""
LIMITS = """
## Limits

- One size of network, one kind of text. {others} The constants do not travel to every setting, and
  the bound on false alarms does not hold there: where the network is another one, look at what is alarmed.
- Another text and a doubled learning rate are changes, and are healthy: an alarm there is true as a
  statement about change and false as one about health. They are no part of the claim about runs that go on
  as they were: {changes}.
- Learning-rate faults and jumps are seen by the loss as early or earlier: no lead of attention is claimed.
  A jump is over before anything could be done.
- The constants are no law. Long-run variance is judged as for an autoregression of order one; averages of
  blocks of 50 steps in the pilot gave 6.6 in the median, more than the 4 that are assumed. The bound is
  thus not proven for such runs: that it holds is what this experiment shows, on these runs.
- At a cadence of 10 an attention ramp that doubles every 15 steps is seen late or not before the loss; at
  50 a run must have 1,000 steps behind it before it is armed, more than these runs have. `joma monitor DIR`
  says what a cadence can see.
- Runs that are born bad have no past that was better: only state messages tell.
- A single head that leaves by less than some nine of its scales at once may go unnoticed: evidence is
  averaged.
"""


def write(run: Run) -> None:
    """Write the page and its picture."""
    settings = run.settings["settings"]
    corpus = settings["corpus"]
    page = HEAD.format(
        command=run.settings["command"].replace(corpus, Path(corpus).name),
        bases=settings["bases"],
        base_steps=settings["base_steps"],
    )
    page += FEW.format(bases=settings["bases"], fewest=FEWEST) if settings["bases"] < FEWEST else ""
    page += _claims(run) + "".join(
        _rates(run.tables, cadence) + _leads(run.tables, cadence) for cadence in (1, 10, 50)
    )
    page += _others(run.tables) + _limits(run)
    (HERE / "alarm.md").write_text(page, encoding="utf-8")
    with Image.open(run.directory / "figure.png") as picture:
        small = picture.convert("RGB").resize((1150, round(1150 * picture.height / picture.width)))
        small.quantize(64).save(HERE / "images" / "alarm.png", optimize=True)


def _limits(run: Run) -> str:
    """What the numbers themselves say against the alarm."""
    alarms = run.tables["alarms"]
    main = alarms[(alarms["setting"] == MAIN.name) & (alarms["cadence"] == 1)]
    told = answer(job(run.directory), run.tables)
    return LIMITS.format(others=" ".join(told[1:]), changes=harmless(main))


def _judged(run: Run) -> list[Claim]:
    return job(run.directory).claims(run.tables)


def _claims(run: Run) -> str:
    lines = [
        f"| {claim.statement} | {claim.expected or '-'} | "
        f"{'-' if claim.measured is None else f'{claim.measured:.3g}'} | {claim.evidence} | "
        f"{claim.verdict} |\n"
        for claim in _judged(run)
    ]
    head = "| statement | expected | measured | how | verdict |\n|---|---|---|---|---|\n"
    return (
        "## What was claimed, and what came out\n\n" + head + "".join(lines) + "\n![](images/alarm.png)\n\n"
    )


def _rates(tables: dict[str, pd.DataFrame], cadence: int) -> str:
    own = tables["alarms"]
    own = own[(own["setting"] == MAIN.name) & (own["cadence"] == cadence)]
    names = ["base", *(branch.name for branch in HEALTHY), "nan at one step", *(b.name for b in FAULTS)]
    head = f"| rule | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    lines = ""
    for rule, rows in own.groupby("rule", sort=False):
        said = rows["step"].notna().groupby(rows["branch"]).agg(["sum", "count"])
        lines += f"| {rule} | " + " | ".join(f"{said['sum'][n]}/{said['count'][n]}" for n in names) + " |\n"
    every = "every step" if cadence == 1 else f"every {cadence} steps"
    return (
        f"## Bases with an alarm, looks at {every}\n\nHealthy up to the NaN, faults after it; losses and "
        f"gradient norms are read at every step. Alarms that are withdrawn do not count.\n\n{head}{lines}\n"
    )


def _leads(tables: dict[str, pd.DataFrame], cadence: int) -> str:
    own = tables["leads"]
    own = own[
        (own["setting"] == MAIN.name) & (own["cadence"] == cadence) & ~own["rule"].isin((WITHDRAWN, UNJUDGED))
    ]
    names = [branch.name for branch in FAULTS if branch.name in set(own["branch"])]
    head = f"| rule | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    every = "every step" if cadence == 1 else f"every {cadence} steps"
    page = (
        f"## Steps before the loss's onset, and before its CUSUM, looks at {every}\n\nMedians over damaged "
        "or recovered runs with an onset, and their lower bounds (from five runs on); a run without an alarm "
        f"counts as alarmed at its end.\n\n{head}"
    )
    for rule, rows in own.groupby("rule", sort=False):
        cells = []
        for name in names:
            found = rows[rows["branch"] == name].set_index("metric")
            cells.append(
                ", ".join(
                    f"{found.loc[metric, 'value']:g}"
                    + (f" ({found.loc[metric, 'low']:g})" if found.loc[metric, "low"] > -1e9 else "")
                    for metric in ("lead_on_onset", "lead_on_cusum")
                )
            )
        page += f"| {rule} | " + " | ".join(cells) + " |\n"
    return page + "\n"


def _others(tables: dict[str, pd.DataFrame]) -> str:
    own = tables["alarms"]
    own = own[
        own["setting"].isin([s.name for s in OTHERS])
        & (own["cadence"] == 1)
        & own["rule"].isin((OURS, WHOLE))
    ]
    if own.empty:
        return "## Other settings\n\nNot part of this run.\n"
    names = list(own["branch"].unique())
    page = f"## Other settings (exploratory)\n\n| setting | rule | {' | '.join(names)} |\n"
    page += f"|---|---|{'---|' * len(names)}\n"
    for (setting, rule), rows in own.groupby(["setting", "rule"], sort=False):
        said = rows["step"].notna().groupby(rows["branch"]).agg(["sum", "count"])
        cells = [f"{said['sum'][n]}/{said['count'][n]}" if n in said.index else "-" for n in names]
        page += f"| {setting} | {rule} | " + " | ".join(cells) + " |\n"
    return page


if __name__ == "__main__":
    write(read_run(Path(sys.argv[1])))
