"""Generated pages of the site are current."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import joma
from joma.experiments import catalog

DOCS = Path(__file__).parents[1] / "docs"


def writer(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script docs/NAME.py, on a terminal of 100 columns."""
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_the_page_of_the_command_line_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    page = writer("commands", monkeypatch).page()
    assert (DOCS / "commands.md").read_text("utf-8") == page, "run: COLUMNS=100 python docs/commands.py"


def test_every_experiment_has_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for file, text in writer("experiments", monkeypatch).pages().items():
        assert (DOCS / "experiments" / file).read_text("utf-8") == text, "run: python docs/experiments.py"
    drawn = {path.stem for path in (DOCS / "experiments").glob("*.webp")}
    assert drawn <= set(catalog.names())
    stored = {path.parent.name for path in (DOCS / "stored").glob("*/settings.yaml")} & set(catalog.names())
    assert stored <= drawn, "run: python docs/experiments.py RUN_DIRECTORY"


def test_the_gallery_has_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    page = writer("gallery", monkeypatch).page()
    assert (DOCS / "gallery.md").read_text("utf-8") == page, "run: python docs/gallery.py"
    for picture in (DOCS / "experiments").glob("*.webp"):
        assert f"](experiments/{picture.name})" in page


def test_the_library_page_has_every_public_name() -> None:
    page = (DOCS / "reference" / "joma.md").read_text("utf-8")
    for name in joma.__all__:
        module, own = joma._HOMES[name]
        if own != "__version__":
            assert f"::: {module}.{own}\n" in page, name


def test_links_within_a_page_lead_to_its_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="pip install 'joma[docs]'")
    from markdown.extensions.toc import slugify

    hooks = writer("hooks", monkeypatch)
    for path in sorted(DOCS.glob("*.md")):
        page = hooks.on_page_markdown(path.read_text("utf-8"))
        plain = [re.sub(r"[`*]", "", one) for one in re.findall(r"^#+ (.*)$", page, re.MULTILINE)]
        anchors = {slugify(heading, "-") for heading in plain}
        links = set(re.findall(r"\]\(#([^)]+)\)", page))
        assert links <= anchors, (path.name, links - anchors)
