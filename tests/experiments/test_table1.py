from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from joma.errors import InputError
from joma.experiments.table1 import CELL, Table1
from joma.progress import Progress
from joma.reporting.figures import style

SMALL = {
    "classes": (6,),
    "bottom_latents": (6, 7),
    "top_latents": (7, 9),
    "vocabulary_size": 12,
    "length": 10,
    "seeds": 2,
    "width": 16,
    "steps": 6,
    "measure_every": 2,
    "permutations": 5,
}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return Table1(**SMALL).run(Progress(quiet=True))


def test_tables_are_tidy_and_complete(tables: dict[str, pd.DataFrame]) -> None:
    alignment = tables["alignment"]
    assert alignment["run"].nunique() == 2 * 2
    assert set(alignment["step"]) == {0, 2, 4, 6}
    assert len(alignment) == 4 * 4 * (2 + 2 * 6)
    assert alignment["value"].notna().all()
    loss = alignment[alignment["metric"] == "loss"].groupby("step")["value"].mean()
    assert loss[0] == pytest.approx(np.log(6), abs=0.7)
    assert set(tables["cells"]["step"]) == {0, 6}


def test_same_settings_same_tables(tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joma.progress.usable_cores", lambda: 1)
    again = Table1(**SMALL).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)


def test_figure_and_claims_come_from_the_tables_alone(tables: dict[str, pd.DataFrame]) -> None:
    experiment = Table1(**SMALL)
    with style("dark"):
        assert len(experiment.draw(tables).axes) == 2
    claims = {claim.id: claim for claim in experiment.claims(tables)}
    assert len(claims) == 8
    assert claims["table1.paper"].verdict == "not tested"
    assert "0.81" in claims["table1.paper"].evidence
    assert all(claim.null is not None for claim in claims.values() if claim.verdict != "not tested")


def made_up(tables: dict[str, pd.DataFrame], curves: dict[tuple[int, str], list[float]]) -> pd.DataFrame:
    """The alignment table with the given values at steps 0, 2, 4, 6 (and a little noise by seed)."""
    table = tables["alignment"].copy()
    for (layer, metric), values in curves.items():
        rows = (table["layer"] == layer) & (table["metric"] == metric)
        part = table[rows]
        table.loc[rows, "value"] = (
            np.array(values)[part["step"] // 2] + 0.001 * part["seed"] - 0.0005 * part["latents_s0"]
        )
    return table


def test_claims_can_hold_and_fail(tables: dict[str, pd.DataFrame]) -> None:
    experiment = Table1(**SMALL)
    flat = {(s, m): [0.3] * 4 for s in (0, 1) for m in ("shuffled", "shuffled, 95 %")}
    # A rise within the runs that differs a little from run to run, so that it can be tested.
    good = made_up(tables, flat | {(0, "NCorr"): [0.5, 0.8, 0.9, 0.95], (1, "NCorr"): [0.5, 0.9, 0.8, 0.7]})
    late = (good["metric"] == "NCorr") & (good["step"] == 6)
    good.loc[late, "value"] += 0.002 * good.loc[late, "seed"]
    verdicts = {c.id: c.verdict for c in experiment.claims({**tables, "alignment": good})}
    assert {k: v for k, v in verdicts.items() if v != "holds"} == {"table1.paper": "not tested"}

    rising_null = made_up({"alignment": good}, {(1, "shuffled"): [0.3, 0.4, 0.5, 0.6]})
    verdicts = {c.id: c.verdict for c in experiment.claims({**tables, "alignment": rising_null})}
    assert verdicts["table1.learned_s1"] == "fails"
    assert verdicts["table1.learned_s0"] == "holds"

    bad = made_up(tables, flat | {(0, "NCorr"): [0.5, 0.4, 0.3, 0.2], (1, "NCorr"): [0.2, 0.2, 0.25, 0.28]})
    bad.loc[bad["metric"] == "NCorr", "value"] += 0.005 * (bad["latents_s0"] - 6)
    verdicts = {c.id: c.verdict for c in experiment.claims({**tables, "alignment": bad})}
    assert set(verdicts.values()) == {"fails", "not tested"}


def test_the_papers_table_decides(tables: dict[str, pd.DataFrame], shared: Path) -> None:
    path = str(shared / "reference" / "joma_table1.csv")
    experiment = Table1(width=1024, steps=10_000, authors_table=path)
    paper = experiment._paper()
    assert len(paper) == 24
    rows = [
        {**dict(zip(CELL, row[CELL].astype(int), strict=True)), "seed": seed, "step": step, "layer": layer}
        | {"metric": metric, "value": row["value"] + 0.01 * seed * (step > 0) - 0.3 * (step == 0)}
        for _, row in paper.iterrows()
        for layer in [int(row["layer"])]
        for seed in (-1, 1)
        for step in (0, 5000, 10_000)
        for metric in ("NCorr", "shuffled", "shuffled, 95 %")
    ]
    alignment = pd.DataFrame(rows).assign(run=lambda t: t["seed"].astype(str))
    claim = experiment.claims({"alignment": alignment, "paper": paper})[-1]
    assert (claim.id, claim.verdict) == ("table1.paper", "holds")
    assert claim.null is not None
    assert claim.null > 5
    other = alignment.assign(value=alignment["value"] - 0.2)
    assert experiment.claims({"alignment": other, "paper": paper})[-1].verdict == "fails"
    assert experiment.claims({"alignment": other, "paper": paper[:0]})[-1].verdict == "not tested"


def test_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="as many N_0 as N_1"):
        Table1(bottom_latents=(10,), top_latents=(20, 30))
    with pytest.raises(InputError, match="only 1 exist"):
        Table1(**{**SMALL, "top_latents": (2, 2)}).run(Progress(quiet=True))
    with pytest.raises(InputError, match="longer than length L = 10"):
        Table1(**{**SMALL, "children": (3,)}).run(Progress(quiet=True))
    with pytest.raises(InputError, match="cannot be read as the paper's table"):
        Table1(**SMALL, authors_table="nowhere.csv").run(Progress(quiet=True))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="cannot be read as the paper's table"):
        Table1(**SMALL, authors_table=str(tmp_path / "other.csv")).run(Progress(quiet=True))
