from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

import joma
from joma.core.style import style
from joma.runs.result import JobResult

OLD = {
    "Neurons": "NeuronsResult",
    "Probe": "ProbeResult",
    "Result": "RunResult",
    "Sweep": "SweepResult",
    "Track": "TrackResult",
}


def test_every_public_name_is_found() -> None:
    for name in joma.__all__:
        assert getattr(joma, name) is not None
    assert set(joma.__all__) <= set(dir(joma))
    with pytest.raises(AttributeError, match="no attribute 'attention_entropi'"):
        joma.attention_entropi  # noqa: B018


def test_import_is_light() -> None:
    code = "import sys, joma; sys.exit(bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_dir_shows_public_names_only() -> None:
    assert [name for name in dir(joma) if name.startswith("_") and name != "__version__"] == []
    assert {"InputError", "Monitor", "theory"} <= set(dir(joma))
    assert joma.theory.RESULTS


def test_the_stub_is_the_only_list_of_names() -> None:
    stub = (Path(joma.__file__).parent / "__init__.pyi").read_text("utf-8").splitlines()
    for line in stub:
        if line.startswith("from joma."):
            _, module, _, own, _, public = line.split()
            assert getattr(importlib.import_module(module), own) is getattr(joma, public)


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_a_name_of_before_warns_and_works(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"joma.{old} is now joma.{new}"):
        assert getattr(joma, old) is getattr(joma, new)


def test_write_probe_of_before_is_the_method_save(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(DeprecationWarning, match="joma.ProbeResult.save"):
        assert joma.write_probe is joma.ProbeResult.save


def test_every_result_has_one_protocol() -> None:
    results = [getattr(joma, name) for name in joma.__all__ if name.endswith("Result")]
    assert len(results) == 9
    for kind in results:
        for method in ("table", "answer", "plot", "save", "_repr_html_"):
            assert callable(getattr(kind, method)), (kind, method)
    assert sum(issubclass(kind, JobResult) for kind in results) == 7


def test_a_run_from_python_is_what_read_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = joma.run("fig9", quiet=True)
    again = joma.read("runs/fig9")
    assert made.directory == again.directory
    pd.testing.assert_frame_equal(made.table(), again.table())
    assert [claim.as_dict() for claim in made.claims] == [claim.as_dict() for claim in again.claims]
    assert capsys.readouterr().out == ""
    with pytest.raises(joma.InputError, match="no table 'lawss'"):
        made.table("lawss")
    copy = made.save(tmp_path / "copy")
    for name, table in copy.tables.items():
        pd.testing.assert_frame_equal(table, made.table(name))
    with pytest.raises(joma.RunDirectoryError, match="holds a run"):
        made.save(tmp_path / "copy")
    picture = made.plot()
    assert isinstance(picture, Figure)
    assert picture._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_a_run_that_does_not_exist_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(joma.InputError, match=r"there is no experiment 'fig99'; .*fig9"):
        joma.run("fig99")
    with pytest.raises(joma.RunDirectoryError, match="does not exist"):
        joma.read(tmp_path / "nope")


def test_checks_and_experiments_from_python() -> None:
    assert {claim.verdict for claim in joma.check("lemma4")} == {"holds", "corrected"}
    table = joma.list_experiments().set_index("name")
    assert table.loc["fig4", "reproduces"] == "JoMA Fig. 4"
    assert set(table.columns) == {"title", "reproduces", "cost"}


def test_the_figure_of_a_notebook_is_drawn_in_its_own_colours(tmp_path: Path) -> None:
    from joma.core.figures import drawn_in_notebooks, panels

    with style("dark"):
        figure, _ = panels()
    assert drawn_in_notebooks(figure) is figure
    assert figure._repr_png_().startswith(b"\x89PNG")
