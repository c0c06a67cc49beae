"""SIGKILL at random moments of the real thing: the final tables must be those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest


def start(out: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "joma",
        "run",
        "fig6",
        "--preset",
        "quick",
        *arguments,
        "--out",
        str(out),
    ]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def kill_ten_times(tmp_path: Path, arguments: list[str]) -> None:
    began = time.monotonic()
    undisturbed = start(tmp_path / "undisturbed", arguments)
    _, errors = undisturbed.communicate()
    assert undisturbed.returncode == 0, errors.decode()
    whole = time.monotonic() - began

    moments = random.Random(0)
    for _ in range(10):
        running = start(tmp_path / "killed", arguments)
        time.sleep(moments.uniform(0.02, 0.35) * whole)
        # Only the command itself is killed: its workers must notice, and leave the directory alone.
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
    last = start(tmp_path / "killed", arguments)
    _, errors = last.communicate()
    assert last.returncode == 0, errors.decode()
    for name in ("curves", "bounces"):
        pd.testing.assert_frame_equal(
            pd.read_parquet(tmp_path / "killed" / f"{name}.parquet"),
            pd.read_parquet(tmp_path / "undisturbed" / f"{name}.parquet"),
            check_exact=True,
        )
    left = {path.name for path in (tmp_path / "killed").iterdir() if not path.name.startswith(".")}
    assert left == {
        path.name for path in (tmp_path / "undisturbed").iterdir() if not path.name.startswith(".")
    }


@pytest.mark.slow
def test_ten_kills_of_a_quick_run(tmp_path: Path) -> None:
    kill_ten_times(tmp_path, ["--corpus", "python-reference"])
