"""R12: advice is followed here: what a message says to type or to give is typed or given, and works."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from joma.cli.main import main

pytest.importorskip("transformers")
from probe_models import save_small_model

ROOT = Path(__file__).parents[2]
ROOMS = ("checkpoints", "instruments")
FOREIGN = {"--ckpt-format": "an option of Megatron's own training and of its converter"}
"""Options of programs that are not here."""


def spoken() -> Iterator[tuple[str, str]]:
    """(file, text) of what these rooms say: their strings but docstrings."""
    for room in ROOMS:
        for path in sorted((ROOT / "src" / "joma" / room).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in said:
                    yield path.name, node.value


def test_every_option_that_is_advised_is_one() -> None:
    own = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / "docs" / "commands.md").read_text("utf-8")))
    advised = {
        option: name for name, text in spoken() for option in re.findall(r"(?<!\S)\(?(--[a-z][a-z-]+)", text)
    }
    assert len(advised) > 12
    others = {option: name for option, name in advised.items() if option not in own and option not in FOREIGN}
    asked = subprocess.run(
        [str(Path(sys.executable).with_name("hf")), "download", "--help"], capture_output=True, text=True
    )
    for option, name in others.items():
        assert option in asked.stdout, (
            f"{name} advises {option}, which is none of joma's and none of hf download"
        )


def test_every_extra_that_is_advised_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    advised = {extra for _, text in spoken() for extra in re.findall(r"joma\[([a-z-]+)\]", text)}
    assert advised
    assert advised <= set(project["optional-dependencies"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("advice") / "model", layers=1)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says when it refuses."""

    def call(*words: object) -> str:
        assert main([*map(str, words), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return call


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 " * 60)
    return tmp_path / "text.txt"


Told = Callable[..., str]


def test_a_model_without_a_tokenizer(whole: Path, text: Path, tmp_path: Path, told: Told) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(whole, bare, ignore=shutil.ignore_patterns("*token*"))
    words = ["probe", str(bare), "--text", str(text), "--sections", "attention", "--null", "none"]
    assert "--tokenizer NAME" in told(*words)
    assert main([*words, "--tokenizer", str(whole), "--quiet"]) == 0


def test_a_file_without_its_settings(whole: Path, text: Path, tmp_path: Path, told: Told) -> None:
    lone = tmp_path / "lone"
    lone.mkdir()
    shutil.copy(whole / "model.safetensors", lone)
    words = ["--text", str(text), "--sections", "attention", "--null", "none", "--quiet"]
    assert "give the whole folder" in told("probe", lone, *words[:-1])
    assert main(["probe", str(whole), *words]) == 0
    assert main(["probe", str(lone), "--weights", "--quiet"]) == 0
