"""The notebooks: pairs of their texts, kept small, opened by a badge, run within two minutes."""

from __future__ import annotations

import base64
import importlib
import io
import json
import re
import resource
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

pytest.importorskip("jupytext", reason="pip install 'joma[notebooks]'")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "examples" / "notebooks").glob("*.py"))
KEPT = [DOCS / "notebooks" / f"{source.stem}.ipynb" for source in SOURCES]
LARGEST = 150_000
"""Bytes of a kept notebook."""


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "notebooks", raising=False)
    return importlib.import_module("notebooks")


def outputs(path: Path) -> list[dict[str, object]]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def test_each_text_has_its_notebook_and_no_other_is_kept() -> None:
    assert sorted((DOCS / "notebooks").glob("*.ipynb")) == KEPT
    assert len(KEPT) >= 5


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_text(source: Path, notebooks: ModuleType) -> None:
    kept = json.loads((DOCS / "notebooks" / f"{source.stem}.ipynb").read_text("utf-8"))
    made = notebooks.convert(source)
    told = [(cell["cell_type"], "".join(cell["source"])) for cell in kept["cells"]]
    assert told == [(cell.cell_type, cell.source) for cell in made.cells], (
        f"run: python docs/notebooks.py {source.stem}"
    )


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_notebook_says_and_shows_something_and_is_small(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    kinds = {str(output["output_type"]) for output in outputs(path)}
    assert "stream" in kinds
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for output in outputs(path))  # type: ignore[attr-defined]
    assert "/tmp" not in path.read_text("utf-8")  # no place of the machine that ran it


def test_the_dip_and_the_bounce_takes_twenty_lines() -> None:
    text = (ROOT / "examples" / "notebooks" / "dip_and_bounce.py").read_text("utf-8")
    assert sum(bool(line.strip()) and not line.startswith("#") for line in text.splitlines()) <= 25


def test_a_picture_is_made_small(notebooks: ModuleType) -> None:
    content = io.BytesIO()
    Image.effect_noise((2000, 1000), 90).convert("RGBA").save(content, "png")
    with Image.open(
        io.BytesIO(base64.b64decode(notebooks.small(base64.b64encode(content.getvalue()).decode())))
    ) as made:
        assert made.size == (notebooks.WIDEST, notebooks.WIDEST // 2)
        assert len(made.getcolors(10**6)) <= notebooks.COLOURS


def test_the_badge_has_the_address_that_a_release_fills(
    notebooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notebooks.badge("a", "") == notebooks.WITHOUT_ADDRESS
    assert "github/owner/joma/blob/main/docs/notebooks/a.ipynb)" in notebooks.badge(
        "a", "https://github.com/owner/joma"
    )
    assert notebooks.badge("a", "https://elsewhere.org/owner/joma") == notebooks.WITHOUT_ADDRESS
    made = notebooks.convert(SOURCES[0])
    monkeypatch.setattr(notebooks, "repository", lambda: "https://github.com/owner/joma")
    for _ in range(2):  # a second time changes nothing
        first = notebooks.with_badge(made, SOURCES[0].stem).cells[0].source
        assert first.count("Open in Colab") == 1
        assert notebooks.WITHOUT_ADDRESS not in first
        assert first.startswith("# ")


def test_a_release_needs_the_badges_to_lead_to_its_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "release", raising=False)
    release = importlib.import_module("release")
    (tmp_path / "a.ipynb").write_text("(https://colab.research.google.com/github/owner/joma/blob/main/x)")
    (tmp_path / "b.ipynb").write_text("nothing")
    assert release.badges_elsewhere(tmp_path, "https://github.com/owner/joma") == ["b.ipynb"]
    assert release.badges_elsewhere(tmp_path, "") == []
    assert release.badges_elsewhere(tmp_path, "https://elsewhere.org/owner/joma") == []


def test_every_question_has_something_to_type() -> None:
    page = (DOCS / "questions.md").read_text("utf-8")
    questions = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert len(questions) >= 12
    for question in questions:
        heading, _, answer = question.partition("\n")
        assert heading.endswith("?"), heading
        assert re.search(r"^```(sh|python)\n", answer, re.MULTILINE), heading


def test_a_notebook_becomes_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="pip install 'joma[docs]'")
    monkeypatch.syspath_prepend(str(DOCS))
    page, pictures = importlib.import_module("hooks").notebook_page(
        json.loads(KEPT[0].read_text("utf-8")), "a"
    )
    assert page.startswith("# ")
    assert "```python\n" in page
    assert pictures
    assert all(f"]({name})" in page for name in pictures)
    assert all(content.startswith(b"\x89PNG") for content in pictures.values())


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs_within_two_minutes_of_two_cores(source: Path, notebooks: ModuleType) -> None:
    pytest.importorskip("nbclient", reason="pip install 'joma[notebooks]'")

    def used() -> float:
        times = resource.getrusage(resource.RUSAGE_CHILDREN)
        return times.ru_utime + times.ru_stime

    before = used()
    notebooks.execute(notebooks.convert(source), seconds=1200)  # a busy machine's clock counts for nothing
    assert used() - before < 2 * 120
