"""``joma sweep`` and ``joma.sweep`` as a user calls them."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

import joma
from joma.cli import main as cli
from joma.core.errors import InputError, RunDirectoryError
from joma.core.progress import Progress
from joma.experiments import catalog
from joma.experiments.joma_paper.fig8 import Fig8
from joma.sweeps import SweepSettings

SMALL = [
    *("--corpus", "python-reference", "--vocabulary-size", "50", "--steps", "40", "--width", "8"),
    *("--hidden", "8", "--batch", "4", "--length", "12", "--measure-every", "5", "--windows", "4"),
]
GRID = ["--grid", "learning_rate=1e-3,1e-2", "seed=1..3"]


def settings() -> dict[str, Any]:
    """As Python takes them."""
    pairs = zip(SMALL[::2], SMALL[1::2], strict=True)
    return {name[2:].replace("-", "_"): int(v) if v.isdigit() else v for name, v in pairs}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "fig8"
    assert cli.main(["sweep", "fig8", *SMALL, *GRID, "--out", str(out), "-q"]) == 0
    return out


def test_the_experiments_own_grid_is_its_own_run(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = Fig8.of(**settings(), learning_rate=(1e-3, 1e-2), seed=1, seeds=3)
    found, tables = joma.read(swept), same.run(Progress(quiet=True))
    assert set(found.tables) == {"cells", *tables}
    for name, table in tables.items():
        order = [name for name in ("run", "step", "metric", "layer") if name in table]
        pd.testing.assert_frame_equal(
            found.tables[name].sort_values(order, ignore_index=True),
            table.sort_values(order, ignore_index=True),
            check_exact=True,
            check_dtype=False,
        )
    assert [claim.id for claim in found.claims] == [claim.id for claim in same.claims(tables)]
    assert found.answer() == same.answer(tables)
    described = yaml.safe_load((swept / "settings.yaml").read_text())
    assert (described["device"], described["dtype"]) == ("cpu", "float32")
    assert described["figure"] == same.caption()
    cells = found.tables["cells"]
    assert cells[["learning_rate", "seed", "status"]].drop_duplicates().shape == (6, 3)
    assert found.job().draw(found.tables).axes
    assert cli.main(["report", str(swept), "--out", str(swept / "page.html")]) == 0
    assert "fig8 over learning_rate=1e-3,1e-2, seed=1..3" in (swept / "page.html").read_text()


@pytest.mark.usefixtures("no_pictures")
def test_a_finished_sweep_is_found_again_and_grows(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(swept, out)
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert cli.main(["sweep", "fig8", *SMALL, *GRID, "layers=1,2", "--out", str(out), "-q"]) == 0
    after = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert len(after) == 12
    assert before.items() <= after.items()
    said = capsys.readouterr().out
    assert "12 of 12 runs (layers 1, 2;" in said
    assert cli.main(["sweep", "fig8", *SMALL, *GRID, "--out", str(out), "-q", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["claims"]) == 5
    assert len(joma.read(out).tables["cells"]) == 6  # the grid that was asked for


def test_another_grid_has_no_claims_but_a_table_and_a_figure(tmp_path: Path) -> None:
    found = joma.sweep(
        "fig8",
        {"width": [8, 16], "seed": [1, 2, 3]},
        out=tmp_path,
        quiet=True,
        learning_rate=(1e-3,),
        **{name: value for name, value in settings().items() if name != "width"},
    )
    assert found.claims == []
    assert "6 of 6 cells of fig8 are done. The grid is not one that fig8 judges" in str(found)
    table = found.table()
    assert table.columns[0] == "width"
    assert table.groupby("width")["cell"].nunique().to_dict() == {8: 3, 16: 3}
    summary = found.summary()
    one = summary.query("width == 16 and metric == 'validation_loss' and step == 40").iloc[0]
    values = table.query("width == 16 and metric == 'validation_loss' and step == 40")["value"]
    assert one["mean"] == pytest.approx(values.mean(), rel=1e-12)
    low, high = stats.t.interval(0.95, 2, values.mean(), values.std(ddof=1) / np.sqrt(3))
    assert (one["low"], one["high"]) == pytest.approx((low, high), rel=1e-12)
    assert one["runs"] == 3
    assert len(found.plot().axes) >= 3
    assert (found.cells()["status"] == "done").all()
    assert "cells" in repr(found)


def test_every_experiment_can_be_swept() -> None:
    for name in catalog.names():
        for preset in catalog.find(name).presets:
            cells = SweepSettings(experiment=name, preset=preset).grid_cells()
            assert cells
            assert all(len(cell.cells()) == 1 for cell in cells)


def test_a_dry_run_says_what_it_takes(capsys: pytest.CaptureFixture[str], swept: Path) -> None:
    words = ["sweep", "fig8", *SMALL, *GRID, "layers=1,2", "--out", str(swept), "--dry-run"]
    assert cli.main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["cells"], plan["to_do"]) == (12, 6)
    assert plan["seconds"] > 0
    assert plan["megabytes"] > 100
    one, two = plan["kinds"]
    assert (one["layers"], one["to_do"], two["layers"], two["to_do"]) == ("1", 0, "2", 6)
    assert cli.main(words) == 0
    assert "12 cells, 6 to do: about" in capsys.readouterr().out
    assert cli.main(["sweep", "fig4", "--dry-run", "--grid", "seed=1..3"]) == 0
    assert "3 cells, 3 to do: how long they take is not known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fgi8"], "there is no experiment 'fgi8'; did you mean 'fig8'"),
        (["--grid", "seed=1"], "name the experiment first"),
        (["fig8", "--grid"], "--grid is empty"),
        (["fig8", "--grid", "--quiet"], "--grid is empty"),
        (
            ["fig8", "--grid", "lerning_rate=1"],
            "fig8 has no setting 'lerning_rate'; did you mean 'learning_rate'",
        ),
        (["fig8", "--grid", "learning_rate=fast"], "learning_rate=fast holds what is no"),
        (["fig8", "--grid", "seed=1,1"], "holds a value twice"),
        (["fig8", "--grid", "seed=1..1001", "--learning-rate", "1e-3"], "has 1,001 cells; --yes runs them"),
        (["fig8", "--grid", "seed=1..1000000"], "more than 100,000"),
        (["fig8", "--executor", "dask://127.0.0.1"], "is none of processes"),
        (["fig8", "--preset", "huge"], "fig8 has no preset 'huge'"),
        (["fig8", "--steps", "x"], "--steps x is not of the type int"),
        (
            ["fig8", "--seeds", "3", "--grid", "seed=1..3"],
            "--grid names its own values for seeds; leave --seeds out",
        ),
        (["fig8", "--width", "8", "--grid", "width=8,16"], "--grid names its own values for width"),
        (["fig8", "--recorded", "a.csv"], "judged, not trained: joma run fig8 --recorded does that"),
        (["fig8", "--dry-run", "--executor", "nonsense"], "executor 'nonsense' is none of"),
        (["fig8", "--seeds", "1000000"], "has 1,000,000 cells or more"),
        (["fig8", "--grid", "steps=5"], "too few to find a dip"),
    ],
)
def test_what_cannot_be_swept(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", *words, "--out", "nowhere"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not Path("nowhere").exists()


def test_one_is_asked_before_many_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    words = ["sweep", "fig8", "--grid", "seed=1..2000", "--learning-rate", "1e-3", "--out", "nowhere"]
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert cli.main(words) == 2
    assert "2,000 cells: go on? [y/N]" in capsys.readouterr().err
    asked: list[object] = []
    monkeypatch.setattr("joma.cli.sweeping.jobs.do", lambda call: asked.append(call) or 0)
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    assert cli.main(words) == 0
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert cli.main([*words, "--yes"]) == 0
    assert len(asked) == 2


def test_the_folder_of_another_sweep(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "fig6", *SMALL, "--out", str(swept), "-q"]) == 2
    assert "was run with experiment = 'fig8'" in capsys.readouterr().err
    other = [*SMALL[:-1], "5"]
    assert cli.main(["sweep", "fig8", *other, *GRID, "--out", str(swept), "-q"]) == 2
    assert "was run with settings = " in capsys.readouterr().err
    assert cli.main(["run", "fig8", *SMALL, "--out", str(swept), "-q"]) == 2
    assert "is a run of 'sweep', not of 'fig8'" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_cells_that_fail_are_told_and_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "sweep",
        "fig8",
        *SMALL,
        "--grid",
        "learning_rate=1e-3,1e30",
        "seed=1",
        "--out",
        str(tmp_path),
        "-q",
    ]
    for _ in range(2):
        assert cli.main(words) == 1
        said = capsys.readouterr()
        assert "not measured:\nlearning_rate = 1e+30: fig8: layers-1-seed-1-rate-1e+30: the hid" in said.err
        assert "1 of 2 cells of fig8 are done; 1 failed, and the same command tries them again" in " ".join(
            said.out.split()
        )
    cells = joma.read(tmp_path).tables["cells"]
    assert cells.set_index("learning_rate")["status"].to_dict() == {1e-3: "done", 1e30: "failed"}
    assert "lower the learning rate" in cells.set_index("learning_rate")["error"][1e30]


@pytest.mark.usefixtures("no_pictures")
def test_not_one_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "sweep",
        "fig8",
        *SMALL,
        "--grid",
        "learning_rate=1e30",
        "seed=1",
        "--out",
        str(tmp_path / "a"),
        "-q",
    ]
    assert cli.main(words) == 1
    assert "not one of 1 cells could be computed; the first: fig8" in capsys.readouterr().err
    assert cli.main(["sweep", "fig8", *SMALL, "--grid", "seed=1", "--out", str(tmp_path / "a"), "-q"]) == 0


@pytest.mark.usefixtures("no_pictures")
def test_a_damaged_cell_is_named(swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "copy"
    shutil.copytree(swept, out)
    victim = next((out / "cells").glob("*/curves.parquet"))
    victim.write_bytes(victim.read_bytes()[:-200])
    assert cli.main(["sweep", "fig8", *SMALL, *GRID, "--out", str(out), "-q"]) == 1
    said = capsys.readouterr().err
    assert f"{victim} is damaged" in said
    assert f"delete the cell's directory, {victim.parent}, and the same command computes it again" in said
    victim.unlink()
    assert cli.main(["sweep", "fig8", *SMALL, *GRID, "--out", str(out), "-q"]) == 1
    assert f"delete the cell's directory, {victim.parent}" in capsys.readouterr().err
    shutil.rmtree(victim.parent)
    assert cli.main(["sweep", "fig8", *SMALL, *GRID, "--out", str(out), "-q"]) == 0
    pd.testing.assert_frame_equal(
        joma.read(out).tables["curves"], joma.read(swept).tables["curves"], check_exact=True
    )


def test_from_python(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no setting 'stpes'"):
        joma.sweep("fig8", {"stpes": [1]}, out=tmp_path)
    with pytest.raises(InputError, match="fig8 has no setting 'stpes'"):
        joma.sweep("fig8", out=tmp_path, stpes=3)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirectoryError, match="is a file"):
        joma.sweep("fig4", {"seed": [1]}, out=tmp_path / "file", quiet=True)
    assert os.listdir(tmp_path) == ["file"]
