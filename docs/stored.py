"""The runs that the site's numbers stand on: kept small in docs/stored, judged afresh whenever they are read.

``python docs/stored.py DIR ...`` keeps run directories (of the preset quick; of ``alarm``, paper; of another
preset, beside it as NAME-PRESET, and with ``DIR=PRESET`` under the name of a preset that it equals but for its
corpus' place). A sweep over an experiment's own grid is kept as the experiment's run. Small tables are kept whole.
Of large ones only what the claims need is: those that no claim reads are left out, and columns, and moments between
the first and the last, where the claims are the same without them. A run that is kept under its experiment's own
name leaves its figure, drawn from all of its tables, beside the experiment's page.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

import joma
from joma.core.claim import Claim
from joma.core.style import style
from joma.experiments import catalog
from joma.experiments.base import Experiment
from joma.sweeps import SweepSettings

FOLDER = Path(__file__).parent / "stored"
FIGURES = FOLDER.parent / "experiments"
WIDEST = 1400
"""Pixels of a kept figure."""
MOMENTS = ("step", "time")
PRESETS = {"alarm": "paper"}
"""Of what is not kept in the preset quick, which has too few runs for a claim."""
SMALL = 2000
"""Rows of a table that is kept whole."""


class Asked(Mapping[str, pd.DataFrame]):
    """Tables that remember which of them were asked for."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self.tables, self.names = tables, set[str]()

    def __getitem__(self, name: str) -> pd.DataFrame:
        self.names.add(name)
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)


def job(folder: Path) -> Experiment:
    """The experiment of a run directory, with its settings."""
    return of(yaml.safe_load((folder / "settings.yaml").read_text("utf-8")))


def of(described: Mapping[str, Any]) -> Experiment:
    """The experiment that is described."""
    kind = catalog.find(described["experiment"])
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in described["settings"].items()}
    return kind.of(**given)


@cache
def tables(name: str) -> Mapping[str, pd.DataFrame]:
    """The tables of a stored run."""
    return {path.stem: pd.read_parquet(path) for path in sorted((FOLDER / name).glob("*.parquet"))}


@cache
def claims() -> dict[str, Claim]:
    """Id (of NAME-PRESET: PRESET.id) -> claim, of all stored runs, judged from their tables now."""
    found = {}
    for folder in sorted(path.parent for path in FOLDER.glob("*/settings.yaml")):
        _, _, preset = folder.name.partition("-")
        prefix = f"{preset}." if preset else ""
        found |= {prefix + claim.id: claim for claim in job(folder).claims(tables(folder.name))}
    return found


def presets_beside(name: str) -> list[str]:
    """Of an experiment: presets that are kept beside its first run."""
    return sorted(path.parent.name.partition("-")[2] for path in FOLDER.glob(f"{name}-*/settings.yaml"))


def needed(experiment: Experiment, given: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables without what changes no claim."""
    asked = Asked(given)
    judged = experiment.claims(asked)
    kept = {name: t for name, t in sorted(given.items()) if name in asked.names or len(t) <= SMALL}
    large = {name: table for name, table in kept.items() if len(table) > SMALL}
    for name, table in large.items():
        for column in MOMENTS:
            if column in table:
                ends = table[column].isin([table[column].min(), table[column].max()])
                if _same(experiment, kept | {name: table[ends].reset_index(drop=True)}, judged):
                    kept[name] = table[ends].reset_index(drop=True)
    for name, table in large.items():
        for column in table.columns:
            if _same(experiment, kept | {name: kept[name].drop(columns=column)}, judged):
                kept[name] = kept[name].drop(columns=column)
    return kept


def _same(experiment: Experiment, given: Mapping[str, pd.DataFrame], judged: list[Claim]) -> bool:
    try:
        return [c.as_dict() for c in experiment.claims(given)] == [c.as_dict() for c in judged]
    except Exception:  # of pandas, where a column or all rows of a kind are gone
        return False


def as_run(folder: Path) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """What settings.yaml holds, and the tables; of a sweep, those of its experiment's own run."""
    described: dict[str, Any] = yaml.safe_load((folder / "settings.yaml").read_text("utf-8"))
    given = {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}
    if described["experiment"] != SweepSettings.name():
        return described, given
    sweep = joma.read(folder).job()
    whole = sweep.whole()
    settings = {key: list(v) if isinstance(v, tuple) else v for key, v in whole.flat().items()}
    about = {"title": whole.title, "reproduces": whole.reproduces, "tables": sorted(given)}
    return {**described, "experiment": whole.name(), "settings": settings, **about}, sweep.own("run").tables(
        whole, given
    )


def keep_figure(folder: Path) -> None:
    """Draw the figure of a run directory, a sweep or a stored run, and keep it, small, beside its page."""
    described, given = as_run(folder)
    content = io.BytesIO()
    with style("light"):
        of(described).draw(given).savefig(content, dpi=110)
    with Image.open(content) as opened:
        picture = opened.convert("RGB")
    picture.thumbnail((WIDEST, 10 * WIDEST), Image.Resampling.LANCZOS)
    picture.save(FIGURES / f"{described['experiment']}.webp", "webp", quality=70, method=6)


def keep(folder: Path, preset: str = "") -> None:
    """Store a run directory."""
    described, given = as_run(folder)
    experiment = of(described)
    name, preset = experiment.name(), preset or described["preset"]
    described |= {"preset": preset, "answer": experiment.answer(given)}
    target = FOLDER / (name if preset == PRESETS.get(name, "quick") else f"{name}-{preset}")
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.parquet"):
        old.unlink()
    for name, table in needed(experiment, given).items():
        table.to_parquet(target / f"{name}.parquet", compression="zstd", compression_level=19, index=False)
    if corpus := described["settings"].get("corpus"):  # a folder of one machine's is known by its name
        described["settings"]["corpus"] = Path(corpus).name
    if described["settings"].get("authors_curves"):  # it is not here, and what came of it is in the tables
        described["settings"]["authors_curves"] = ""
    described["command"] = of(described).command(experiment.preset_values(preset))
    (target / "settings.yaml").write_text(yaml.safe_dump(described, sort_keys=False), encoding="utf-8")
    if target.name == described["experiment"]:
        keep_figure(folder)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        directory, _, named = word.partition("=")
        keep(Path(directory), named)
