"""The layout: how many entries a folder has, how long a file is, and that one name lies in one room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import joma

SOURCE = Path(joma.__file__).parent
ROOT_ENTRIES = 20
FOLDER_ENTRIES = 14
FILE_LINES = 400
SKINS = {"hf.py", "lightning.py", "kvpress.py"}
GROUPS = {"theory", "checks", *(f"experiments/{group}" for group in ("joma_paper", "scan_snap", "beyond"))}
"""Folders of many like things, one for each result, check or experiment."""
ROOMS = {
    "probe": "instruments/probe",
    "neurons": "instruments/neurons",
    "track": "instruments/track",
    "monitor": "instruments/monitor",
    "sweep": "sweeps",
}
"""What a user calls by a name -> the folder that holds its settings, run, claims, figure, text and page."""
CLASSES = {
    "probe": {"ProbeSettings", "ProbeResult"},
    "neurons": {"NeuronsSettings", "NeuronsResult"},
    "track": {"TrackSettings", "TrackResult"},
    "monitor": {"MonitorSettings", "Monitor"},
    "sweep": {"SweepSettings", "SweepPlan", "SweepResult"},
}
"""What a user calls by a name -> its classes, each of which is defined once, in that folder."""


def _entries(folder: Path) -> list[str]:
    names = [entry.name for entry in folder.iterdir() if entry.name != "__pycache__"]
    return sorted(name for name in names if name not in ("__init__.py", "__init__.pyi"))


def test_the_package_has_few_entries() -> None:
    entries = set(_entries(SOURCE)) - SKINS - {"__main__.py", "py.typed"}
    assert len(entries) <= ROOT_ENTRIES, sorted(entries)


def test_a_folder_has_few_entries() -> None:
    folders = [folder for folder in SOURCE.rglob("*") if folder.is_dir() and folder.name != "__pycache__"]
    full = {
        name: len(entries)
        for folder in folders
        if (name := folder.relative_to(SOURCE).as_posix()) not in GROUPS
        and len(entries := _entries(folder)) > FOLDER_ENTRIES
    }
    assert not full, f"folders of more than {FOLDER_ENTRIES} entries: {full}"


def test_a_file_is_short() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in SOURCE.rglob("*.py")}
    long = {path.relative_to(SOURCE).as_posix(): n for path, n in lengths.items() if n > FILE_LINES}
    assert not long, f"files of more than {FILE_LINES} lines: {long}"


@pytest.mark.parametrize("name", ROOMS)
def test_what_a_user_calls_by_a_name_lies_in_one_room(name: str) -> None:
    room = SOURCE / ROOMS[name]
    homes = {
        node.name: path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name in CLASSES[name]
    }
    assert homes.keys() == CLASSES[name]
    assert all((SOURCE / home).is_relative_to(room) for home in homes.values()), homes
