"""Every place where parts are computed: results, errors, the deaths of workers and of whom they work for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_info

from joma.core.errors import InputError, UnfinishedError
from joma.core.progress import LostCall, Progress
from joma.runs.executors import executor_of
from joma.runs.executors.elsewhere import compute, versions
from joma.runs.executors.processes import local_processes

WORK = """
import time
from pathlib import Path


def work(path: str, seconds: float) -> None:
    Path(path).touch()
    time.sleep(seconds)
"""
# Without the guard that multiprocessing asks for: the script itself is not run again.
SCRIPT = """
import sys
from functools import partial

from joma.runs.executors.processes import local_processes
from work import work

folder, *seconds = sys.argv[1:]
list(local_processes([partial(work, f"{folder}/{i}", float(s)) for i, s in enumerate(seconds)], 2))
"""


def run_script(folder: Path, seconds: tuple[float, ...]) -> subprocess.Popen[bytes]:
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "work.py").write_text(WORK, encoding="utf-8")
    (folder / "done").mkdir()
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py"), str(folder / "done"), *map(str, seconds)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A test-suite in the background of a shell has SIGINT ignored, and hands that on.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_two(folder: Path) -> None:
    begin = time.monotonic()
    while len(list((folder / "done").iterdir())) < 2 and time.monotonic() - begin < 60.0:
        time.sleep(0.05)
    time.sleep(0.3)


@pytest.mark.parametrize("seconds", [(60.0, 60.0), (0.0, 60.0)], ids=["at work", "one done"])
def test_workers_end_with_a_command_that_is_killed(tmp_path: Path, seconds: tuple[float, ...]) -> None:
    running = run_script(tmp_path, seconds)
    wait_for_two(tmp_path)
    running.send_signal(signal.SIGKILL)
    # They hold the pipe, which is open until the last of them is gone.
    running.communicate(timeout=20.0)
    assert running.returncode == -signal.SIGKILL


def test_workers_end_silently_with_a_command_that_is_interrupted(tmp_path: Path) -> None:
    running = run_script(tmp_path, (60.0, 60.0))
    wait_for_two(tmp_path)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = running.communicate(timeout=20.0)
    assert said.decode().count("Traceback") == 1  # the script's own
    assert "KeyboardInterrupt" in said.decode()


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    running = run_script(tmp_path, (0.0, 0.0, 0.0))
    _, said = running.communicate(timeout=60.0)
    assert running.returncode == 0, said.decode()
    assert len(list((tmp_path / "done").iterdir())) == 3


def square(number: int) -> int:
    return number**2


def own_process(_: int) -> int:
    return os.getpid()


def test_each_call_has_a_process_and_its_result_its_number() -> None:
    calls = [partial(square, number) for number in range(7)]
    assert dict(local_processes(calls, 2)) == {number: number**2 for number in range(7)}
    processes = [pid for _, pid in local_processes([partial(own_process, n) for n in range(5)], 2)]
    assert len(set(processes)) == 5
    assert list(local_processes([], 2)) == []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ValueError("no such thing")


def test_a_worker_that_is_killed_takes_nothing_else_along() -> None:
    outcomes = dict(local_processes([die, partial(square, 3), partial(square, 4)], 2))
    assert outcomes == {0: LostCall("signal 9"), 1: 9, 2: 16}


def test_what_a_call_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="no such thing"):
        list(local_processes([partial(square, 2), refuse, partial(square, 3)], 2))


def lambdas(_: int) -> object:
    return lambda: None


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        list(local_processes([partial(lambdas, 0), partial(square, 1)], 2))


def threads_and_kernels(_: int) -> tuple[int, float]:
    torch.set_num_threads(2)
    return torch.get_num_threads(), float(torch.ones(200, 200).matmul(torch.ones(200, 200)).sum())


def test_torch_computes_in_forked_processes_on_several_threads() -> None:
    torch.ones(300, 300).matmul(torch.ones(300, 300))  # this process has threads of its own by now
    found = dict(local_processes([partial(threads_and_kernels, n) for n in range(3)], 2))
    assert found == dict.fromkeys(range(3), (2, 200.0**3))


def threads_of_part(_: Progress) -> pd.DataFrame:
    np.ones((8, 8)) @ np.ones((8, 8))
    taken = [library["num_threads"] for library in threadpool_info()]
    return pd.DataFrame({"threads": [max([*taken, torch.get_num_threads()])]})


def test_a_part_has_the_threads_that_its_job_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joma.core.progress.usable_cores", lambda: 2)
    progress = Progress(quiet=True, executor=local_processes)
    for threads in (1, 2):
        progress.threads = threads
        found = progress.parts({"one": threads_of_part, "two": threads_of_part})
        assert [table["threads"].iloc[0] for table in found.values()] == [threads, threads]


def dead_part(_: Progress) -> pd.DataFrame:
    die()
    raise AssertionError


def living_part(_: Progress) -> pd.DataFrame:
    return pd.DataFrame({"value": [1.0]})


def test_a_part_whose_process_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joma.core.progress.usable_cores", lambda: 2)
    progress = Progress(quiet=True, executor=local_processes)
    with pytest.raises(UnfinishedError, match=r"computed one was ended \(signal 9.*same command again"):
        progress.parts({"one": dead_part, "two": living_part})


@pytest.mark.parametrize(
    "name", ["", "dusk://a:1", "dask://", "dask://host", "ray://host:port", "processes:3"]
)
def test_no_such_executor(name: str) -> None:
    with pytest.raises(InputError, match="is none of processes, dask://HOST:PORT and ray://HOST:PORT"):
        executor_of(name)


@pytest.mark.parametrize(("kind", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_without_its_package(kind: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"needs: pip install 'joma\[{kind}\]'"):
        executor_of(f"{kind}://127.0.0.1:1")


def test_a_worker_with_another_version_is_named() -> None:
    assert compute(partial(square, 4), versions()) == 16
    with pytest.raises(
        InputError, match=r"worker on \S+ has torch \S+, and here it is 1\.0; install the same"
    ):
        compute(partial(square, 4), {**versions(), "torch": "1.0"})
    with pytest.raises(InputError, match=r"has joma \S+, and here it is 9\.9"):
        compute(partial(square, 4), {**versions(), "joma": "9.9"})


def test_there_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    on_dask = pytest.importorskip("joma.runs.executors.on_dask", reason="needs joma[dask]")
    monkeypatch.setattr(on_dask, "_REACHED", 1)
    with pytest.raises(InputError, match=r"no dask scheduler answers at 127\.0\.0\.1:9 "):
        list(executor_of("dask://127.0.0.1:9")([partial(square, 1)], 1))


def test_dask_computes_names_errors_and_survives_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="needs joma[dask]")
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None)
    with cluster:
        executor = executor_of(cluster.scheduler_address.replace("tcp", "dask"))
        # What a worker can import: it need not see these tests.
        assert dict(executor([partial(pow, n, 2) for n in range(5)], 1)) == {n: n**2 for n in range(5)}
        with pytest.raises(ValueError, match="no such thing"):
            list(executor([partial(int, "no such thing")], 1))
        monkeypatch.setitem(sys.modules, "of_nobody", ModuleType("of_nobody"))
        monkeypatch.setattr("of_nobody.square", square, raising=False)
        monkeypatch.setattr(square, "__module__", "of_nobody")
        with pytest.raises(InputError, match=r"cannot take the work .No module named 'of_nobody'"):
            list(executor([partial(square, 2)], 1))
        monkeypatch.setattr("joma.runs.executors.on_dask.versions", lambda: {"torch": "1.0"})
        with pytest.raises(InputError, match=r"and here it is 1\.0"):
            list(executor([partial(pow, 2, 1)], 1))
        cluster.scale(0)
        while cluster.scheduler.workers:
            time.sleep(0.05)
        monkeypatch.setattr("joma.runs.executors.on_dask._WORKERS", 1)
        with pytest.raises(InputError, match="has no worker after 1 s"):
            list(executor([partial(pow, 2, 1)], 1))
