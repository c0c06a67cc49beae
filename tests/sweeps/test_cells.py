"""Grids and their cells: what they stand for, and that each is computed once, whoever is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from counting import Counting
from joma.core.errors import DiskFullError, InputError, RunDirectoryError
from joma.runs.directory import read_run
from joma.runs.parts import RunProgress
from joma.sweeps.cells import compute_cells, finished_cells, tables_of
from joma.sweeps.grid import MOST_CELLS, as_words, axes_of, cells_of, key, whole_of

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sizes=1,2,5"], {"sizes": [(1,), (2,), (5,)]}),
        (["sizes=1..3", "rate=1e-5,0.1"], {"sizes": [(1,), (2,), (3,)], "rate": [1e-5, 0.1]}),
        (["seed=1..3"], {"seed": [1, 2, 3]}),
        (["limit=none,3"], {"limit": [None, 3]}),
        (['word=a,"b,c"'], {"word": ["a", "b,c"]}),
    ],
)
def test_grids_as_they_are_written(words: list[str], expected: dict[str, list[object]]) -> None:
    assert axes_of(words, Counting) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sizes"], "'sizes' is not of the form name=1,2 or name=1..3"),
        (["szies=1"], "counting has no setting 'szies'; did you mean 'sizes'"),
        (["sizes="], "holds no value"),
        (["seed=3..1"], "holds no value"),
        (["rate=0.1,x"], "rate=0.1,x holds what is no float"),
        (["rate=0.1,1e-1"], "holds a value twice"),
        (["rate=-1"], "setting rate = -1.0 is out of range"),
        (["seed=1", "seed=2"], "names seed twice"),
        (["seed=1..1000000"], r"are 1,000,000 values, more than 100,000"),
        (["seed=1..999999999999999999"], "more than 100,000"),
    ],
)
def test_grids_that_make_no_sense(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        axes_of(words, Counting)


def test_a_grid_has_each_combination_once_and_a_seed_is_one() -> None:
    cells = cells_of(Counting(), axes_of(["rate=0.1,0.2", "seed=1..3"], Counting))
    assert [(c.rate, c.seed, c.sizes, c.seeds) for c in cells] == [  # type: ignore[attr-defined]
        (rate, seed, (size,), 1) for rate in (0.1, 0.2) for seed in (1, 2, 3) for size in (1, 2)
    ]
    assert len(cells_of(Counting(seeds=3), {})) == 6  # the settings' own grid
    with pytest.raises(InputError, match=r"has 1,000,000 cells or more, above"):
        cells_of(Counting(seeds=1_000_000, sizes=(1,)), {})
    with pytest.raises(InputError, match=f"above {MOST_CELLS:,}; divide it"):
        cells_of(Counting(), axes_of(["seed=1..1000", "sizes=1..1000"], Counting))


def test_the_settings_whose_grid_it_is() -> None:
    own = cells_of(Counting(), axes_of(["sizes=1,2,5", "seed=1..3"], Counting))
    assert whole_of(own) == Counting(sizes=(1, 2, 5), seed=1, seeds=3)
    assert whole_of(own[:-1]) is None  # one is missing
    assert whole_of(cells_of(Counting(), axes_of(["seed=1,3"], Counting))) is None
    assert whole_of(cells_of(Counting(), axes_of(["rate=0.1,0.2"], Counting))) is None


@given(
    rate=st.floats(1e-9, 1e9),
    size=st.integers(0, 9),
    word=st.text(max_size=5).filter(lambda w: "\0" not in w),
)
def test_a_cells_name_is_its_settings(rate: float, size: int, word: str) -> None:
    try:
        one = Counting(rate=rate, sizes=(size,), word=word)
    except InputError:
        return
    assert key(one) == key(Counting(rate=rate, sizes=(size,), word=word))
    assert key(one) != key(Counting(rate=rate, sizes=(size + 1,), word=word))
    assert len(key(one)) == 16


def test_words_for_a_grid_of_python() -> None:
    words = as_words({"sizes": [1, 2], "seed": range(1, 4), "word": ["a,b", "c"]})
    assert words == ("sizes=1,2", "seed=1,2,3", 'word="a,b",c')
    assert axes_of(words, Counting)["word"] == ["a,b", "c"]
    with pytest.raises(InputError, match=r"grid\['seed'\] = 3 is not a list of values"):
        as_words({"seed": 3})  # type: ignore[dict-item]


def test_each_cell_is_a_run_of_its_own_and_is_found_again(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    cells = cells_of(Counting(marks=str(marks)), {})
    folder = tmp_path / "run" / "cells"
    progress = RunProgress(tmp_path / "run", quiet=True)
    status = compute_cells(cells, folder, progress, "counting")
    assert status["status"].tolist() == ["done"] * 4
    assert len(list(marks.iterdir())) == 4
    assert compute_cells(cells, folder, progress, "counting").equals(status)
    assert len(list(marks.iterdir())) == 4  # found, not computed
    run = read_run(folder / key(cells[0]))
    assert run.settings["settings"]["sizes"] == [1]
    assert run.settings["threads"] == 1
    assert run.tables["counts"]["value"].tolist() == [0.0, 1.0, 2.0]
    assert not list(folder.glob(".*"))
    tables = tables_of(cells, folder)["counts"]
    assert [table["value"].iloc[-1] for table in tables] == [2.0, 2 + 1 / 7, 4.0, 4 + 1 / 7]


def test_cells_that_are_not_what_was_computed_are_named(tmp_path: Path) -> None:
    """Two that changed places, two whose tables did, one edited: the others count, and come out the same."""
    cells = cells_of(Counting(sizes=(1, 2, 3), seeds=2), {})
    folder = tmp_path / "run" / "cells"
    progress = RunProgress(tmp_path / "run", quiet=True)
    compute_cells(cells, folder, progress, "counting")
    places = [folder / key(cell) for cell in cells]

    def swap(one: Path, other: Path) -> None:
        one.rename(tmp_path / "aside")
        other.rename(one)
        (tmp_path / "aside").rename(other)

    swap(places[0], places[1])
    swap(places[2] / "counts.parquet", places[3] / "counts.parquet")
    table = pd.read_parquet(places[4] / "counts.parquet")
    table.assign(value=table["value"] + 1).to_parquet(places[4] / "counts.parquet")
    status = compute_cells(cells, folder, progress, "counting")
    assert status["status"].tolist() == [*["failed"] * 5, "done"]
    for place, error in zip(places, status["error"], strict=True):
        words = f"delete the cell's directory, {place}, and the same command computes it again"
        assert (words in error) == (place != places[5])
    assert "was run with " in status["error"][0]
    assert "its content is not what the run wrote" in status["error"][4]
    for place in places[:5]:
        shutil.rmtree(place)
    assert (compute_cells(cells, folder, progress, "counting")["status"] == "done").all()


def test_failed_cells_are_rows_with_their_error(tmp_path: Path) -> None:
    base = Counting(sizes=(1, 2, 3, 4), seeds=1, diverges_at=2, breaks_at=3, dies_at=4)
    cells = cells_of(base, {})
    status = compute_cells(cells, tmp_path / "cells", RunProgress(tmp_path, quiet=True), "counting")
    assert status["status"].tolist() == ["done", "failed", "failed", "failed"]
    assert status["error"].tolist() == [
        "",
        "size 2 diverged; lower the rate.",
        "unexpected ZeroDivisionError: a defect",
        "its worker died (signal 9), 3 times",
    ]
    assert finished_cells(tmp_path / "cells") == {key(cells[0])}


def test_a_full_disk_ends_the_sweep_and_keeps_what_is_done(tmp_path: Path) -> None:
    cells = cells_of(Counting(sizes=(1, 2, 3), seeds=1, fills_at=3), {})
    with pytest.raises(DiskFullError, match="disk of here is full"):
        compute_cells(cells, tmp_path / "cells", RunProgress(tmp_path, quiet=True), "counting")
    # The third began when one of the first two was done.
    assert {key(cells[0]), key(cells[1])} & finished_cells(tmp_path / "cells")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("a file")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        compute_cells(
            cells_of(Counting(seeds=1), {}), tmp_path / "cells", RunProgress(tmp_path, quiet=True), "counting"
        )


SWEEP = """
import sys
from pathlib import Path
from counting import Counting
from joma.runs.parts import RunProgress
from joma.sweeps.cells import compute_cells
from joma.sweeps.grid import cells_of
folder = Path(sys.argv[1])
base = Counting(sizes=(1, 2, 3, 4, 5, 6), seeds=2, seconds=0.15, marks=str(folder / "marks"))
status = compute_cells(cells_of(base, {}), folder / "cells", RunProgress(folder, quiet=True), "counting")
assert (status["status"] == "done").all(), status
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(folder)], env=environment, stderr=subprocess.PIPE
    )


def workers_of(pid: int) -> list[int]:
    """The grandchildren: a sweep's workers are children of the server that forks them."""

    def children(of: int) -> list[int]:
        path = Path(f"/proc/{of}/task/{of}/children")
        return list(map(int, path.read_text().split())) if path.exists() else []

    return [one for child in children(pid) for one in children(child)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="workers are found in /proc")
def test_twenty_kills_of_the_sweep_and_of_workers_change_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    (tmp_path / "marks").mkdir()
    quiet = tmp_path / "quiet"
    cells = cells_of(
        Counting(sizes=(1, 2, 3, 4, 5, 6), seeds=2, seconds=0.15, marks=str(tmp_path / "marks")), {}
    )
    compute_cells(cells, quiet / "cells", RunProgress(quiet, quiet=True), "counting")
    kills = 0
    while kills < 20:
        running = start(tmp_path)
        time.sleep(1.0 + 2.0 * chance.random())
        workers = workers_of(running.pid)
        if workers and chance.random() < 0.5:
            os.kill(chance.choice(workers), signal.SIGKILL)
            kills += 1
            time.sleep(0.3 * chance.random())
        if running.poll() is None:
            running.kill()
            kills += 1
        running.communicate(timeout=60)
        if len(finished_cells(tmp_path / "cells")) == len(cells):
            for path in (tmp_path / "cells").iterdir():
                if chance.random() < 0.5:
                    path.rename(tmp_path / f"away-{kills}-{path.name}")  # to have something to do again
    last = start(tmp_path)
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said.decode()
    for one, other in zip(
        tables_of(cells, tmp_path / "cells")["counts"],
        tables_of(cells, quiet / "cells")["counts"],
        strict=True,
    ):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert not list((tmp_path / "cells").glob(".*"))


def test_two_sweeps_at_once_compute_each_cell_once(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    both = [start(tmp_path), start(tmp_path)]
    for running in both:
        _, said = running.communicate(timeout=120)
        assert running.returncode == 0, said.decode()
    begun = [path.name.rsplit("-", 1)[0] for path in (tmp_path / "marks").iterdir()]
    assert sorted(begun) == sorted(set(begun))
    assert len(begun) == 12


def test_a_cells_settings_are_those_of_joma_run(tmp_path: Path) -> None:
    (cell,) = cells_of(Counting(sizes=(7,), seeds=1), {})
    compute_cells([cell], tmp_path / "cells", RunProgress(tmp_path, quiet=True), "counting")
    content = yaml.safe_load((tmp_path / "cells" / key(cell) / "settings.yaml").read_text())
    assert content["command"] == "joma run counting --sizes 7 --seeds 1"
