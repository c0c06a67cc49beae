"""Every example runs, as its user would run it, and says what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_winner_takes_all() -> None:
    shown = run("winner_takes_all.py")
    assert "t = 1.2533" in shown  # sqrt(pi / 2)
    assert "0.8416" in shown
    assert "-0.3853" in shown


def test_train_and_date_the_dip(tmp_path: Path) -> None:
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "the",
        "mat",
        "and",
        "the",
        "dog",
        "lay",
        "on",
        "the",
        "rug",
        "while",
        "the",
        "bird",
        "sang",
    ]
    (tmp_path / "text.txt").write_text(" ".join(words[(i * i) % len(words)] for i in range(9000)))
    shown = run("train_and_date_the_dip.py", str(tmp_path / "text.txt"), "60")
    assert "attention_entropy" in shown
    assert "stable_rank" in shown


def test_monitor_a_trainer(tmp_path: Path) -> None:
    shown = run("monitor_a_trainer.py", str(tmp_path), "300", "180")
    kinds = ("alarm: step", "not judged: step", "not valid: step")  # too short a run to be judged
    alarm = next(line for line in shown.splitlines() if line.startswith(kinds)).partition("step ")[2]
    # The fault begins at step 180, and one doubling takes 15 steps.
    assert 180 < int(alarm.split()[0].rstrip(":")) < 270
    assert "layer" in alarm
    assert (tmp_path / "joma-monitor" / "monitor.parquet").exists()


def test_prepare_smollm2(tmp_path: Path) -> None:
    """The model is 93 MB and not installed for the tests: the help and the refusals are tried."""
    assert "safetensors" in run("prepare_smollm2.py", "--help")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "prepare_smollm2.py"), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "exists; name a folder that does not" in done.stderr


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text() + "".join(
        path.read_text() for path in Path(__file__).parent.rglob("test_*.py")
    )
    for example in EXAMPLES.glob("*.py"):
        assert f'"{example.name}"' in tested or example.stem in tested, f"{example.name} has no test"


@pytest.mark.slow
@pytest.mark.parametrize(("place", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_the_same_sweep_everywhere(place: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"needs joma[{place}]")
    shown = run("cluster/compare.py", str(tmp_path), place)
    assert f"{place}: the same 936 rows, bit for bit" in shown
    assert ("killed a dask worker" in shown) == (place == "dask")


def test_tune_with_optuna(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="pip install optuna")
    (tmp_path / "text.txt").write_text(" ".join("abcdefgh"[(i * i) % 7] for i in range(9000)))
    shown = run("tune_with_optuna.py", str(tmp_path / "text.txt"), "2", "40", str(tmp_path / "tune"))
    rates = [line for line in shown.splitlines() if line.startswith("learning rate")]
    assert len(rates) == 2
    best = min(rates, key=lambda line: float(line.partition("loss ")[2].partition(";")[0]))
    assert best.split()[2].rstrip(":") == shown.splitlines()[-1].rpartition(" ")[2]


def test_a_worker_of_a_slurm_cluster() -> None:
    pytest.importorskip("dask_jobqueue", reason="pip install dask-jobqueue")
    shown = run("cluster/slurm.py", "--script")
    assert "#SBATCH -n 1" in shown
    assert "dask_worker" in shown
    assert "--nthreads 1 " in shown


def test_audit_a_series() -> None:
    shown = run("audit_a_series.py")
    assert shown.startswith("Each of the 10 members is what its name says")
    assert "4 of the 10 members are not what their names say: step20, step40, step60, step80." in shown
    faults = {line.split(":")[0].strip(): line for line in shown.splitlines() if line.startswith("  step")}
    assert "(they match step90)" in shown
    assert "it has the place of another member" in shown
    assert "some of its matrices are transposed: model.layers.1.self_attn.q_proj.weight" in shown
    assert faults["step20"] == "  step20: [1]"  # the first block is the last member's
    assert faults["step80"] == "  step80: [0, 1]"
    assert faults["step70"] == "  step70: [0, 1]"
    assert "step40" in faults
    assert "  step40: [" not in shown
