"""Write docs/what-makes-the-bounce.md from the kept run of ``why_bounce`` (docs/stored.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import errata
import pandas as pd
import stored

from joma.core.tables import rows
from joma.experiments.beyond.why_bounce import CHOSEN_ON, PREDICTIONS, WhyBounce
from joma.experiments.beyond.why_bounce.claims import in_words
from joma.report.terminal import number

HERE = Path(__file__).parent
RUN = "why_bounce"
HEAD = """# What makes the bounce

The attention entropy of a decoder falls while it begins to learn, and then rises again. The JoMA paper
explains the rise by its block: the salient components grow first, and the others catch up. In decoders that
explanation does not show ([what was found](findings.md)). Correlations along a curve do not tell causes
apart, interventions do: `joma run why_bounce` continues the same weights from the dip on the same batches in
several ways (`joma.branch`), and moves sets of parameters between the dip and the end. Each candidate
predicts a number that the others do not predict; the predictions stand in the experiment's settings, in the
commit that the setting `predicted_in` names, before the judged run. A prediction holds or fails where the
95 % interval over seeds lies on one side of its threshold, and is undecided where it lies on both. Whether the
bounce grows where attention learns faster than the MLP is asked by `joma run attention_rate`, whose kept run
stands in [what was found](findings.md). This page is written by `python docs/bounce.py`.
"""


def page() -> str:
    """The whole page in Markdown."""
    if RUN not in {path.parent.name for path in stored.FOLDER.glob("*/settings.yaml")}:
        lines = [
            HEAD,
            "No run is kept yet: `joma run why_bounce`.",
            "",
            "| mechanism | what it predicts |",
            "|---|---|",
        ]
        return "\n".join([*lines, *(f"| {name} | {words} |" for name, words in PREDICTIONS.items())]) + "\n"
    settings, tables = stored.job(stored.FOLDER / RUN), stored.tables(RUN)
    assert isinstance(settings, WhyBounce)
    seeds = ", ".join(str(seed) for _, seed in settings.trainings())
    about = (
        f"Seeds {seeds}; the settings were chosen on {' and '.join(map(str, CHOSEN_ON))}. "
        f"{' '.join(settings.answer(tables))}"
    )
    return (
        "\n".join(
            [
                HEAD,
                about,
                *_claims(settings, tables),
                *_others(),
                *_sets(tables),
                *_times(),
                *_forces(tables),
                *_losses(tables),
            ]
        )
        + "\n"
    )


def _claims(settings: WhyBounce, tables: Mapping[str, pd.DataFrame]) -> Iterable[str]:
    yield from (
        "\n## Predictions and verdicts\n",
        "| claim | what is claimed | verdict | measured | null | how |",
    )
    yield "|---|---|---|---|---|---|"
    for claim in settings.claims(tables):
        verdict = "undecided" if claim.verdict == "not tested" else claim.verdict
        cells = (claim.statement, verdict, number(claim.measured), number(claim.null), claim.evidence)
        yield f"| `{claim.id}` | " + " | ".join(map(errata.cell, cells)) + " |"


def _others() -> Iterable[str]:
    """The same claims on the other presets that are kept."""
    presets = stored.presets_beside(RUN)
    if not presets:
        return
    yield "\n## The same on another text, and in another decoder\n"
    yield "Verdict and number of every claim; `joma run why_bounce --preset NAME`.\n"
    runs = [RUN, *(f"{RUN}-{preset}" for preset in presets)]
    claims = [stored.job(stored.FOLDER / run).claims(stored.tables(run)) for run in runs]
    yield f"| claim | quick | {' | '.join(presets)} |\n|---|---|{'---|' * len(presets)}"
    for same in zip(*claims, strict=True):
        cells = [
            "undecided" if c.verdict == "not tested" else f"{c.verdict} ({number(c.measured)})" for c in same
        ]
        yield f"| `{same[0].id}` | {' | '.join(cells)} |"


def _sets(tables: Mapping[str, pd.DataFrame]) -> Iterable[str]:
    ways = ("put back", "frozen", "brought", "all else frozen")
    yield "\n## Which parameters carry it\n"
    yield "Shares of the rise, mean and 95 % interval over seeds. Necessary is what takes the rise away: with"
    yield "the set put back at the end to what it was at the dip, and with it frozen from the dip on."
    yield "Sufficient is what brings it: the set of the end in the decoder of the dip, and all else frozen"
    yield "from the dip on.\n"
    yield f"| set | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}"
    shares = rows(tables["sets"], time="dip")
    for name, part in shares.groupby("set", sort=False):
        cells = [in_words(own) if len(own := rows(part, way=way)["value"]) else "" for way in ways]
        if any(cells):
            yield f"| {name} | {' | '.join(cells)} |"


def _times() -> Iterable[str]:
    """Sets frozen before, at and after the dip, in the kept runs that did so."""
    for preset in stored.presets_beside(RUN):
        run = f"{RUN}-{preset}"
        settings, tables = stored.job(stored.FOLDER / run), stored.tables(run)
        assert isinstance(settings, WhyBounce)
        if len(settings.times) == 1:
            continue
        yield f"\n### Frozen before, at and after the dip: `--preset {preset}`\n"
        yield f"{settings.answer(tables)[0]} The table has the shares of the rise that do not come with a set"
        yield "frozen from a quarter of the way before the dip, from the dip, and from a quarter of the way"
        yield "after it.\n"
        yield f"| set | {' | '.join(settings.times)} |\n|---|{'---|' * len(settings.times)}"
        for name, part in rows(tables["sets"], way="frozen").groupby("set", sort=False):
            cells = [in_words(rows(part, time=time)["value"]) for time in settings.times]
            yield f"| {name} | {' | '.join(cells)} |"


def _forces(tables: Mapping[str, pd.DataFrame]) -> Iterable[str]:
    yield "\n## Which force drives it\n"
    yield "Nats by set, to first order along the updates, from the start to the dip and from there on.\n"
    yield "| set | fall | rise |\n|---|---|---|"
    for name, part in tables["forces"].groupby("set", sort=False):
        if (part["value"] != 0).any():
            fall, rise = (in_words(rows(part, phase=phase)["value"]) for phase in ("fall", "rise"))
            yield f"| {name} | {fall} | {rise} |"


def _losses(tables: Mapping[str, pd.DataFrame]) -> Iterable[str]:
    kinds = ("all", "frequent", "middle", "rare", "early", "central", "late")
    yield "\n## What it is worth\n"
    yield "Loss at the end less the twin's, nats, by frequency of the token and place in the window.\n"
    yield f"| branch | text | {' | '.join(kinds)} |\n|---|---|{'---|' * len(kinds)}"
    for (branch, text), part in tables["losses"].groupby(["branch", "text"], sort=False):
        cells = [in_words(rows(part, tokens=kind)["value"]) for kind in kinds]
        yield f"| {branch} | {text} | {' | '.join(cells)} |"


if __name__ == "__main__":
    (HERE / "what-makes-the-bounce.md").write_text(page(), encoding="utf-8")
