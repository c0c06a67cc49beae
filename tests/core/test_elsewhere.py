"""What differs on systems and Pythons that are not here, as far as a stand-in can show it."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tomllib
from email.message import Message
from functools import partial
from importlib import metadata
from pathlib import Path, PureWindowsPath

import pandas as pd
import pytest
import torch
import yaml
from threadpoolctl import ThreadpoolController

import joma
from command_line import called
from joma.cli import main
from joma.core import files, memory
from joma.core.threads import limit_threads
from joma.core.version import find_untried
from joma.runs.executors.processes import local_processes
from joma.sweeps import plan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classifiers of pyproject.toml in the place of those of whatever was installed last."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    told = Message()
    for line in project["classifiers"]:
        told.add_header("Classifier", line)
    monkeypatch.setattr(metadata, "metadata", lambda name: told)
    return list(project["classifiers"])


def test_the_classifiers_are_what_the_workflow_tests(stated: list[str]) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    pythons = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert [f"Programming Language :: Python :: {python}" for python in pythons] == [
        line for line in stated if ":: Python :: 3." in line
    ]


@pytest.mark.usefixtures("stated")
def test_what_was_tried_needs_no_word() -> None:
    if platform.system() == "Linux" and sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)):
        assert find_untried() == ""


@pytest.mark.usefixtures("stated")
@pytest.mark.parametrize(
    ("system", "python", "said"),
    [
        ("Darwin", (3, 12), "and not on macOS."),
        ("Windows", (3, 11), "and not on Windows."),
        ("Plan 9", (3, 13), "and not on Plan 9."),
        ("Linux", (3, 27), "and not on Python 3.27."),
        ("Windows", (3, 27), "and not on Windows with Python 3.27."),
    ],
)
def test_a_platform_that_was_not_tried_is_one_sentence(
    system: str, python: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    sentence = f"joma was tried on Linux with Python 3.11, 3.12, 3.13, {said}"
    assert find_untried() == sentence
    done = called(["--version"])
    assert done.stdout.startswith(f"joma {joma.__version__}")
    assert done.stderr == f"{sentence}\n"

    def fails(words: list[str]) -> int:
        raise OSError("no such call on this system")

    monkeypatch.setattr(main, "_dispatch", fails)
    done = called(["list"])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"with what --debug shows) {sentence}\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_are_computed_where_no_process_forks(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where each process imports afresh."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    calls = [partial(math.factorial, number) for number in range(3)]
    assert dict(local_processes(calls, workers)) == {0: 1, 1: 1, 2: 2}
    with pytest.raises(ValueError, match="negative"):
        list(local_processes([partial(math.factorial, -1)], workers))


class Kernel32:
    """The four functions of Windows that tell whether a process runs."""

    def __init__(self, running: set[int], foreign: set[int], gone: set[int]) -> None:
        self.running, self.foreign, self.gone, self.closed = running, foreign, gone, 0

    def OpenProcess(self, right: int, inherit: bool, process: int) -> int:
        assert (right, inherit) == (0x00100000, False)
        return process if process in self.running | self.gone else 0

    def GetLastError(self) -> int:
        return 5 if self.foreign else 87

    def WaitForSingleObject(self, handle: int, milliseconds: int) -> int:
        assert milliseconds == 0
        return 0x102 if handle in self.running else 0

    def CloseHandle(self, handle: int) -> None:
        self.closed += 1


def test_windows_is_asked_for_a_process_and_sends_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*_: int) -> None:
        raise AssertionError("signal 0 is Ctrl-C there")

    monkeypatch.setattr(os, "kill", signalled)
    monkeypatch.setattr(sys, "platform", "win32")
    kernel = Kernel32(running={11}, foreign=set(), gone={22})
    monkeypatch.setattr(ctypes, "windll", type("Libraries", (), {"kernel32": kernel}), raising=False)
    for process in (11, 22, 33):
        (tmp_path / f".writing-{process}-a.json").write_text("{")
    files.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".writing-11-a.json"]
    assert kernel.closed == 2
    kernel.foreign = {33}
    assert files._alive(33)


def test_memory_is_read_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    by_proc = plan._megabytes()
    monkeypatch.setattr(plan, "_STATUS", Path("/no/such/file"))
    assert plan._megabytes() == pytest.approx(by_proc, rel=0.1)
    monkeypatch.setattr(sys, "platform", "darwin")  # where the same number counts bytes
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert plan._megabytes() == pytest.approx(most / 1e6, rel=0.1)
    monkeypatch.setattr(plan, "resource", None)  # Windows has none
    assert math.isnan(plan._megabytes())
    kinds = pd.DataFrame([{"cells": 2, "to_do": 2, "seconds": 3.0, "megabytes": math.nan}])
    text = plan.SweepPlan(kinds, 2).as_text()
    assert "memory that this system does not tell" in text
    assert "nan" not in text
    assert plan.SweepPlan(kinds, 2).as_json()["megabytes"] is None


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_calls_of_another_c_library_are_left_out(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)

    def loaded(name: object) -> None:
        raise AssertionError("there is no glibc to load")

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    memory.hand_back()
    memory.keep_large_apart()


def test_threads_are_limited_where_no_blas_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate, on a Mac, is none that threadpoolctl knows."""
    monkeypatch.setattr(ThreadpoolController, "_find_libraries_with_dl_iterate_phdr", lambda self: None)
    before = torch.get_num_threads()
    with limit_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10))}


def is_windows_name(name: str) -> bool:
    """Whether Windows can write a file of this name."""
    stem = name.partition(".")[0].lower()
    return not (set(name) & set('<>:"/\\|?*') or stem in RESERVED or name != name.rstrip(" ."))


def test_windows_can_write_every_file_of_the_checkout_and_of_a_run(tmp_path: Path) -> None:
    assert not is_windows_name("a:b")
    assert not is_windows_name("aux.py")
    joma.run("fig9", out=tmp_path / "runs" / "fig9", quiet=True)
    joma.sweep("fig9", {"seed": [1, 2]}, out=tmp_path / "sweep", quiet=True)
    joma.Monitor(torch.nn.Linear(2, 2), folder=tmp_path / "live").close()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert len(written) > 15
    for path in [*listed.stdout.splitlines(), *written]:
        assert all(is_windows_name(part) for part in path.split("/")), path
        assert not PureWindowsPath(path).is_absolute()
