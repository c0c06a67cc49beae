"""The report: results as one self-contained HTML page, readable on a phone, in print, light and dark."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from joma.core.claim import VERDICTS, Claim, Verdict
from joma.core.errors import InputError
from joma.core.files import refuse_foreign, write_text
from joma.core.settings import Value
from joma.instruments.neurons.page import Neuron, neurons_of
from joma.report.answer import answer_of, in_a_line, overall, subject_of, verdict_words
from joma.report.beside import pair_of
from joma.report.interactive.extra import Extra, extra_of, no_extra
from joma.report.pictures import embed
from joma.report.terminal import by_group, tally
from joma.runs.directory import Run

ROWS_SHOWN = 30
_MARK = b"<title>joma: "
"""By this a page of joma is known."""
FAILURES_SHOWN = 3
QUESTION = "How do attention and MLP learn together?"
"""The heading of a page of several runs."""


@dataclass(frozen=True)
class Excerpt:
    """The first rows of a table, as the page shows them."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    total: int


@dataclass(frozen=True)
class Section:
    """One run, as the page shows it."""

    anchor: str
    name: str
    """Experiment and preset: ``fig6 (quick)``."""
    title: str
    answer: list[str]
    """Sentences that say what was found."""
    words: dict[Verdict, str]
    """What a reader sees for each verdict."""
    reproduces: str
    directory: str
    settings: dict[str, str]
    versions: dict[str, str]
    claims: dict[str, list[Claim]]
    """By group: one group for an experiment, one per theorem for the checks."""
    tally: str
    counts: dict[str, int]
    layers: Excerpt | None
    """A row per layer of a user's model: shown open."""
    tables: list[Excerpt]
    """Evenly spaced rows of each table; none about a user's model, whose Parquet files are named."""
    files: list[str]
    figure: str | None
    figure_dark: str | None
    alt: str
    neurons: list[Neuron]
    """Neurons with their contexts, where the run looked at some."""

    def failed_claims(self) -> list[Claim]:
        """The claims that fail."""
        return [claim for group in self.claims.values() for claim in group if claim.verdict == "fails"]


def write_report(runs: Sequence[Run], path: Path, *, overwrite: bool = False) -> Path:
    """Write the page about these runs and return its path.

    The page is one file: figures are embedded, and its own policy forbids every request and every script
    but its own, which it names by their hashes: sortable tables, maps over the steps, curves that can be
    switched. Without scripts it is whole, too. Whatever a table holds (tokens with markup, too) is shown as
    text.

    Raises:
        InputError: no run was given.
        RunDirectoryError: the place cannot be written, or holds what joma did not write.
    """
    if not runs:
        raise InputError("a report needs at least one run.")
    refuse_foreign(path, _MARK, overwrite)

    template = _template()
    # What can be looked at comes first.
    ordered = sorted(runs, key=lambda run: not (run.directory / "figure.png").exists())
    sections = [_section(run, number) for number, run in enumerate(ordered)]
    pair = pair_of(ordered)
    about_models = all(subject_of(run) == "model" for run in runs)
    claims = [claim for run in runs for claim in run.claims]
    failed = [(section.anchor, in_a_line(c)) for section in sections for c in section.failed_claims()]

    def render(extra: Extra) -> str:
        return template.render(
            sections=sections,
            extra=extra,
            pair=pair,
            compared=None if pair is None or pair.layers is None else _excerpt("layers", pair.layers),
            heading=sections[0].title if len(runs) == 1 else QUESTION,
            answer=overall(ordered),
            failed=failed[:FAILURES_SHOWN],
            failures=len(failed),
            about_models=about_models,
            verdicts=VERDICTS,
            words=verdict_words("model" if about_models else "papers"),
            counts=Counter(claim.verdict for claim in claims),
            tally=tally(claims),
            made=made,
            made_with=", ".join(
                f"{words} {sections[0].versions[key]}"
                for key, words in (("joma", "joma"), ("torch", "torch"), ("python", "Python"))
                if sections[0].versions.get(key)
            ),
        )

    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    plain = render(no_extra(len(ordered)))
    page = render(extra_of([run.tables for run in ordered], len(plain.encode())))
    write_text(path, page)
    return path


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("joma", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_number
    environment.filters["setting"] = format_setting
    environment.filters["tally"] = tally
    return environment.get_template("page.html")


def format_number(value: object) -> str:
    """Numbers to four digits, everything else as text; empty for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) < 1e6 and value == int(value)):
        return str(int(value))
    return f"{value:.4g}"


def _section(run: Run, number: int) -> Section:
    name = str(run.settings["experiment"])
    preset = run.settings.get("preset")
    title = str(run.settings.get("title") or name)
    subject = subject_of(run)
    return Section(
        anchor=f"run-{number}",
        name=f"{name} ({preset})" if preset else name,
        title=title[:1].upper() + title[1:],
        answer=answer_of(run),
        words=verdict_words(subject),
        reproduces=str(run.settings.get("reproduces", "")),
        directory=run.directory.name,
        settings={key: format_setting(value) for key, value in (run.settings.get("settings") or {}).items()},
        versions={key: str(value) for key, value in (run.settings.get("versions") or {}).items()},
        claims=by_group(run.claims),
        tally=tally(run.claims, verdict_words(subject)),
        counts=Counter(claim.verdict for claim in run.claims),
        layers=_excerpt("layers", run.tables["layers"]) if "layers" in run.tables else None,
        tables=[] if subject == "model" else [_excerpt(key, table) for key, table in run.tables.items()],
        files=[f"{key}.parquet" for key in run.tables],
        figure=embed(run.directory / "figure.png"),
        figure_dark=embed(run.directory / "figure-dark.png"),
        alt=f"{title}. {run.settings.get('figure', '')}".strip(),
        neurons=neurons_of(run.tables),
    )


def format_setting(value: Value) -> str:
    """A setting as one would type it: ``none`` for None, lists with commas."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def _excerpt(name: str, table: pd.DataFrame) -> Excerpt:
    # Rows from the whole length of a long table say more than its first ones; a table of layers is whole.
    # A whole stride would meet the same metric of every look.
    count = len(table) if name == "layers" else min(len(table), ROWS_SHOWN)
    shown = table.iloc[np.linspace(0, len(table) - 1, count).round().astype(int)]
    columns = [str(column) for column in table.columns]
    rows = [[format_number(value) for value in row] for row in shown.astype(object).to_numpy().tolist()]
    return Excerpt(name=name, columns=columns, rows=rows, total=len(table))
