"""What is missing or too old is one sentence: a Python, a package, an extra, a compiler, a home."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

import joma
from command_line import called
from joma.core import version as needs
from joma.core.errors import InputError, MissingPackageError
from joma.measures.attention import compiled

SOURCE = Path(joma.__file__).parents[1]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> version of what is said to be installed beside what is."""
    said: dict[str, str] = {}
    asked = metadata.version

    def version(name: str) -> str:
        if said.get(name) == "missing":
            raise metadata.PackageNotFoundError(name)
        return said.get(name) or asked(name)

    monkeypatch.setattr(metadata, "version", version)
    return said


def test_what_is_installed_here_suffices() -> None:
    assert needs.find_outdated() == ""


@pytest.mark.parametrize(
    ("version", "old"),
    [("2.4.1+cu121", True), ("2.9", False), ("2.10.0", False), ("2.8.9", True), ("3", False)],
)
def test_an_old_torch_is_named(version: str, old: bool, versions: dict[str, str]) -> None:
    versions["torch"] = version
    told = needs.find_outdated()
    assert bool(told) == old
    if old:
        assert told == f"joma needs torch 2.9 or newer, and {version} is installed: pip install 'torch>=2.9'."


def test_a_missing_package_is_named_and_numba_may_be_missing(versions: dict[str, str]) -> None:
    versions["numba"] = "missing"
    assert needs.find_outdated() == ""
    versions["scipy"] = "missing"
    assert needs.find_outdated().startswith(
        "joma needs the package scipy, which is not installed: pip install"
    )


def test_the_face_says_so(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions["torch"] = "2.4.1"

    def fails(name: str) -> None:
        raise ImportError("cannot import name 'x' from 'torch'")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(MissingPackageError, match=r"joma needs torch 2\.9 or newer"):
        _ = joma.probe
    versions.clear()
    with pytest.raises(ImportError, match="cannot import name"):
        _ = joma.probe


def test_the_command_says_so(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from joma.cli import main

    versions["torch"] = "2.4.1"

    def fails(words: list[str]) -> int:
        raise AttributeError("module 'torch' has no attribute 'x'")

    monkeypatch.setattr(main, "_dispatch", fails)
    done = called(["list"])
    assert done.returncode == 2
    assert done.stderr.strip().startswith("joma: joma needs torch 2.9 or newer, and 2.4.1 is installed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("module", "package"), [("hf", "transformers"), ("lightning", "lightning")])
def test_a_missing_extra_is_one_sentence(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"joma.{module}", raising=False)
    with pytest.raises(ImportError, match=f"needs the package {package}: pip install") as told:
        importlib.import_module(f"joma.{module}")
    assert isinstance(told.value, InputError)
    assert "\n" not in str(told.value)


def test_another_python_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (SOURCE / "joma" / "__init__.py").read_text("utf-8")
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(ImportError, match=r"joma needs Python 3\.11 or newer, and this is 3\.10"):
        exec(compile(text, "joma", "exec"), {"__name__": "joma", "__path__": [str(SOURCE / "joma")]})


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("numba", "llvmlite")]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("numba", "llvmlite"):
        monkeypatch.setitem(sys.modules, name, None)
    place = "joma.measures.attention.compiled_kernel"
    monkeypatch.delitem(sys.modules, place, raising=False)
    monkeypatch.delattr("joma.measures.attention.compiled_kernel", raising=False)
    compiled._kernel.cache_clear()
    yield
    compiled._kernel.cache_clear()


@pytest.mark.usefixtures("without_numba")
def test_without_numba_the_numbers_are_right_and_what_is_slower_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 600, 8, generator=generator)
    with caplog.at_level(logging.WARNING, logger="joma"):
        for _ in range(2):
            found = joma.attention_entropy(query, key, causal=True).entropy
    told = [record.message for record in caplog.records if "numba" in record.message]
    assert told == [
        "numba is not installed: the attention entropies of long texts are computed by PyTorch, "
        "more slowly; pip install numba."
    ]
    scores = (query.double() @ key.double().mT) / 8**0.5
    scores = scores.masked_fill(torch.ones(600, 600).triu(1).bool(), -torch.inf)
    chance = scores.softmax(-1)
    expected = -(chance * chance.clamp_min(1e-300).log()).sum(-1)
    assert torch.allclose(found.double(), expected, atol=1e-4)


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    """Nothing is written there: a home that is no folder at all is no error."""
    home = tmp_path / "home"
    home.write_text("a file")
    for words in (["--version"], ["list"], ["check", "lemma6"]):
        done = subprocess.run(
            [sys.executable, "-m", "joma", *words],
            capture_output=True, text=True, cwd=tmp_path,
            env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(SOURCE)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        own = [line for line in done.stderr.splitlines() if "matplotlib" not in line.lower()]
        assert not own, own  # matplotlib says by itself where it keeps its fonts then
