from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import yaml

import toy
from joma.core.errors import DiskFullError, DivergenceError, InputError, RunDirectoryError, UnfinishedError
from joma.core.files import whole_file, write_text
from joma.core.progress import Progress
from joma.runs.directory import find_runs, read_run, run_experiment, write_claims
from joma.runs.parts import RunProgress

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(autouse=True)
def _nothing_computed() -> None:
    toy.COMPUTED.clear()


def test_a_finished_run_holds_what_the_design_promises(tmp_path: Path) -> None:
    run = run_experiment(toy.Toy(), tmp_path / "run", preset="quick")
    names = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    assert names == {
        "settings.yaml",
        "counts.parquet",
        "figure.png",
        "figure-dark.png",
        "figure.pdf",
        "claims.json",
    }
    description = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert description["experiment"] == "toy"
    assert description["settings"]["sizes"] == [1, 2]
    assert description["settings"]["seed"] == 0
    assert set(description["versions"]) == {"joma", "torch", "python", "platform"}
    claims = json.loads((tmp_path / "run" / "claims.json").read_text())
    assert [claim["verdict"] for claim in claims] == ["holds"]
    assert run.tables["counts"]["value"].tolist() == [0.0, 0.1]
    assert find_runs(tmp_path) == [tmp_path / "run"]


def test_a_finished_run_is_found_and_not_computed_again(tmp_path: Path) -> None:
    run_experiment(toy.Toy(), tmp_path)
    before = (tmp_path / "counts.parquet").stat().st_mtime_ns
    run_experiment(toy.Toy(), tmp_path)
    assert toy.COMPUTED == ["part-0", "part-1"]
    assert (tmp_path / "counts.parquet").stat().st_mtime_ns == before
    run_experiment(toy.Toy(), tmp_path, overwrite=True)
    assert len(toy.COMPUTED) == 4


def test_a_run_whose_claims_have_no_criterion_is_read(tmp_path: Path) -> None:
    run_experiment(toy.Toy(), tmp_path)
    claims = json.loads((tmp_path / "claims.json").read_text())
    description = yaml.safe_load((tmp_path / "settings.yaml").read_text())
    assert description["format"] == 3
    for claim in claims:
        assert [condition["threshold"] for condition in claim.pop("criterion")] == [2]
    description["format"] = 2
    del description["files"]["claims.json"]
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(description))
    (read,) = read_run(tmp_path).claims
    assert (read.verdict, read.measured, read.criterion) == ("holds", 2, ())


def test_finished_parts_survive_and_divergence_keeps_its_measurements(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match=r"kept in .*part-1\.until-divergence\.parquet"):
        run_experiment(toy.Toy(fail_at=1), tmp_path)
    kept = pd.read_parquet(tmp_path / "parts" / "part-1.until-divergence.parquet")
    assert kept["step"].tolist() == [1]
    assert not (tmp_path / "claims.json").exists()
    with pytest.raises(DivergenceError):
        run_experiment(toy.Toy(fail_at=1), tmp_path)
    assert toy.COMPUTED == ["part-0", "part-1", "part-1"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            lambda d: (d / "thesis.tex").write_text("x"),
            r"not empty and not a run directory \(it holds 'thesis.tex'",
        ),
        (lambda d: (d / "settings.yaml").write_text("experiment: fig4"), "is a run of 'fig4', not of 'toy'"),
        (lambda d: (d / "settings.yaml").write_text("a: 1"), "does not describe a run"),
        (lambda d: (d / "settings.yaml").write_text("a: [1"), "cannot be read"),
        (lambda d: run_experiment(toy.Toy(rate=0.25), d), "was run with rate = 0.25, now it is 0.5"),
    ],
)
def test_directories_of_something_else_are_left_alone(tmp_path: Path, prepare, message) -> None:  # type: ignore[no-untyped-def]
    prepare(tmp_path)
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir() if path.is_file())
    with pytest.raises(RunDirectoryError, match=message):
        run_experiment(toy.Toy(), tmp_path)
    after = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir() if path.is_file())
    assert [entry for entry in after if not entry[0].startswith(".")] == [
        entry for entry in before if not entry[0].startswith(".")
    ]


def test_a_run_that_cannot_begin_leaves_no_claim_on_its_directory(tmp_path: Path) -> None:
    from joma.experiments.joma_paper.fig6 import Fig6

    with pytest.raises(InputError, match="neither a file nor a known corpus"):
        run_experiment(Fig6(corpus="nowhere.txt"), tmp_path)
    assert not (tmp_path / "settings.yaml").exists()
    run_experiment(toy.Toy(), tmp_path)


def test_overwrite_removes_a_runs_own_files_only(tmp_path: Path) -> None:
    run_experiment(toy.Toy(rate=0.25), tmp_path)
    for name in ("notes.txt", "mine.parquet", "figure.svg"):
        (tmp_path / name).write_text("mine")
    run_experiment(toy.Toy(), tmp_path, overwrite=True)
    for name in ("notes.txt", "mine.parquet", "figure.svg"):
        assert (tmp_path / name).read_text() == "mine"
    assert read_run(tmp_path).settings["settings"]["rate"] == 0.5


def test_a_second_process_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom pathlib import Path\nfrom joma.runs.directory import _hold\n"
            "with _hold(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunDirectoryError, match=f"process {holder.pid} on .* is at work"):
            run_experiment(toy.Toy(), tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    run_experiment(toy.Toy(), tmp_path)  # the system let go of the lock with the process


def test_unfinished_and_damaged_runs_say_so(tmp_path: Path) -> None:
    run_experiment(toy.Toy(), tmp_path / "a")
    (tmp_path / "a" / "counts.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(RunDirectoryError, match=r"counts\.parquet is damaged"):
        read_run(tmp_path / "a")
    (tmp_path / "a" / "claims.json").write_text("[{")
    with pytest.raises(RunDirectoryError, match=r"claims\.json is damaged"):
        read_run(tmp_path / "a")
    (tmp_path / "a" / "claims.json").unlink()
    with pytest.raises(RunDirectoryError, match="not finished; continue it with: joma run toy --out"):
        read_run(tmp_path / "a")
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        read_run(tmp_path)


def test_what_was_deleted_from_a_finished_run_comes_back(tmp_path: Path) -> None:
    run_experiment(toy.Toy(), tmp_path)
    (tmp_path / "figure.png").unlink()
    run_experiment(toy.Toy(), tmp_path)
    assert (tmp_path / "figure.png").exists()
    assert len(toy.COMPUTED) == 2
    (tmp_path / "counts.parquet").unlink()
    with pytest.raises(RunDirectoryError, match="not finished"):
        read_run(tmp_path)
    assert len(run_experiment(toy.Toy(), tmp_path).tables["counts"]) == 2
    assert len(toy.COMPUTED) == 4


@pytest.mark.parametrize(
    "claims",
    ["{}", "[]", "[1]", '[{"id": null}]', "null", '[{"id": "a.b", "source": "s", "statement": 3}]'],
)
def test_damaged_claims(tmp_path: Path, claims: str) -> None:
    run_experiment(toy.Toy(), tmp_path)
    (tmp_path / "claims.json").write_text(claims)
    with pytest.raises(RunDirectoryError, match=r"claims\.json is damaged .*delete it and run again"):
        read_run(tmp_path)


@pytest.mark.parametrize("settings", ["settings: [1]", "versions: x", "tables: 3", "experiment: 2"])
def test_damaged_settings(tmp_path: Path, settings: str) -> None:
    run_experiment(toy.Toy(), tmp_path)
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **yaml.safe_load(settings)}))
    with pytest.raises(RunDirectoryError, match="does not describe a run"):
        read_run(tmp_path)


def test_a_refused_directory_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(RunDirectoryError):
        run_experiment(toy.Toy(), tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_an_unfinished_run_of_another_version_is_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError):
        run_experiment(toy.Toy(fail_at=1), tmp_path)
    description = yaml.safe_load((tmp_path / "settings.yaml").read_text())
    description["versions"]["torch"] = "1.0"
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(description))
    with pytest.raises(RunDirectoryError, match=r"begun with torch 1\.0"):
        run_experiment(toy.Toy(fail_at=1), tmp_path)


def test_a_place_that_cannot_be_written() -> None:
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        run_experiment(toy.Toy(), Path("/proc/joma-run"))


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirectoryError, match="is a file; --out needs a directory"):
        run_experiment(toy.Toy(), tmp_path / "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claims.json"
    path.write_text("old")
    with (
        pytest.raises(UnfinishedError, match=r"is full: claims\.json was not written"),
        whole_file(path) as temporary,
    ):
        temporary.symlink_to("/dev/full")
        temporary.write_text("new" * 10_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@dataclass(frozen=True, kw_only=True)
class Growing(toy.Toy):
    """One part more each time."""

    grows: ClassVar[bool] = True
    lengths: ClassVar[list[int]] = []

    def run(self, progress: Progress) -> dict[str, pd.DataFrame]:
        self.lengths.append(len(self.lengths) + 1)
        tables = {"counts": pd.DataFrame({"value": np.arange(float(self.lengths[-1]))})}
        return {**tables, "even": tables["counts"]} if self.lengths[-1] % 2 == 0 else tables


def test_what_has_grown_takes_the_place_of_what_it_was_or_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the first write, the second, ...; at last nothing is in the way."""
    Growing.lengths.clear()
    old = run_experiment(Growing(), tmp_path / "run")
    for writes in range(50):
        left = iter(range(writes))

        def sync(file: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", sync)
            try:
                new = run_experiment(Growing(), tmp_path / "run")
                break
            except DiskFullError:
                pass
        found = read_run(tmp_path / "run")
        assert found.claims == old.claims
        assert found.settings == old.settings
        assert {name: len(table) for name, table in found.tables.items()} == {"counts": 1}
    assert writes > 3
    assert len(new.tables["counts"]) == Growing.lengths[-1] > 1
    assert set(new.tables) == ({"counts", "even"} if Growing.lengths[-1] % 2 == 0 else {"counts"})
    again = run_experiment(Growing(), tmp_path / "run")
    assert len(again.tables["counts"]) == len(new.tables["counts"]) + 1
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert not any(name.startswith((".grown", ".writing")) for name in names)
    assert ("even.parquet" in names) == ("even" in again.tables)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table"]


def test_parts_run_in_processes_and_equal_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import functools

    computations = {f"part-{i}": functools.partial(toy.square, i) for i in range(3)}
    parallel = RunProgress(tmp_path / "a", quiet=True).parts(computations)
    monkeypatch.setattr("joma.core.progress.usable_cores", lambda: 1)
    alone = RunProgress(tmp_path / "b", quiet=True).parts(computations)
    assert list(parallel) == list(alone) == list(computations)
    for name in computations:
        pd.testing.assert_frame_equal(parallel[name], alone[name])
        assert (tmp_path / "a" / "parts" / f"{name}.parquet").exists()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_failing_part_lets_the_others_finish(
    tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import functools

    monkeypatch.setattr("joma.core.progress.usable_cores", lambda: cores)
    computations = {f"part-{i}": functools.partial(toy.square, i) for i in (3, -1, 2)}
    with pytest.raises(DivergenceError, match="-1 is negative"):
        RunProgress(tmp_path, quiet=True).parts(computations)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"part-3.parquet", "part-2.parquet"}


def test_claims_alone_are_a_run_too(tmp_path: Path) -> None:
    computed = []

    def compute():  # type: ignore[no-untyped-def]
        computed.append(1)
        return toy.Toy().claims({"counts": pd.DataFrame({"value": [1, 2]})})

    for _ in range(2):
        run = write_claims(tmp_path / "check", name="check", title="all", compute=compute)
    assert len(computed) == 1
    assert [claim.verdict for claim in run.claims] == ["holds"]
    assert run.tables == {}
