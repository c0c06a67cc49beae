"""Workers end with the process that they work for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from functools import partial
from pathlib import Path

from joma.runs.executors import local_processes


def work(path: str, seconds: float) -> None:
    Path(path).touch()
    time.sleep(seconds)


if __name__ == "__main__":
    folder, *seconds = sys.argv[1:]
    local_processes([partial(work, f"{folder}/{i}", float(s)) for i, s in enumerate(seconds)], 2)
"""


@pytest.mark.parametrize("seconds", [(60.0, 60.0), (0.0, 60.0)], ids=["at work", "one idle"])
def test_workers_end_with_a_command_that_is_killed(tmp_path: Path, seconds: tuple[float, ...]) -> None:
    script, done = tmp_path / "script.py", tmp_path / "done"
    script.write_text(SCRIPT, encoding="utf-8")
    done.mkdir()
    running = subprocess.Popen(
        [sys.executable, str(script), str(done), *map(str, seconds)], stderr=subprocess.PIPE
    )
    begin = time.monotonic()
    while len(list(done.iterdir())) < 2 and time.monotonic() - begin < 60.0:
        time.sleep(0.05)
    time.sleep(0.3)
    running.send_signal(signal.SIGKILL)
    # They hold the pipe, which is open until the last of them is gone.
    running.communicate(timeout=20.0)
    assert running.returncode == -signal.SIGKILL
