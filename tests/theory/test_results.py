from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from joma.checks.catalog import groups
from joma.experiments import catalog
from joma.theory.results import RESULTS, Result

DOCS = Path(__file__).parents[2] / "docs"
NUMBERED = {
    *(f"JoMA Theorem {number}" for number in range(1, 6)),
    *(f"JoMA Lemma {number}" for number in range(1, 10)),
    *(f"JoMA Fig. {number}" for number in range(1, 11)),
    *("JoMA Assumption 1", "JoMA Table 1", "JoMA Eq. 6", "JoMA Eq. 8", "CDAG Theorem 1"),
    *(f"Scan&Snap Theorem {number}" for number in range(1, 5)),
    "Scan&Snap Lemma 2",
}


def test_every_numbered_result_is_listed_once() -> None:
    sources = [result.source for result in RESULTS]
    assert len(set(sources)) == len(sources)
    assert set(sources) >= NUMBERED


def test_the_papers_number_nothing_else(shared: Path) -> None:
    text = (shared / "papers" / "joma.txt").read_text("utf-8")
    main = text[: text.rindex("Theorem 1 (Backpropagated gradient)")]
    for kind, number in re.findall(r"^(Theorem|Lemma|Figure|Table|Assumption) (\d+)\b", main, re.MULTILINE):
        assert f"JoMA {kind.replace('Figure', 'Fig.')} {number}" in NUMBERED


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.source)
def test_what_is_listed_exists(result: Result) -> None:
    assert result.functions or result.checks or result.experiments or result.note
    for name in result.functions:
        module, _, function = name.rpartition(".")
        assert hasattr(importlib.import_module(f"joma.{module}"), function), name
    assert set(result.checks) <= set(groups())
    assert set(result.experiments) <= set(catalog.names())


def test_no_check_and_no_experiment_is_left_out() -> None:
    assert {name for result in RESULTS for name in result.checks} == set(groups())
    # What is about joma's own instruments is no result of the papers.
    of_papers = {name for name in catalog.names() if not catalog.find(name).reproduces.startswith("joma")}
    assert {name for result in RESULTS for name in result.experiments} == of_papers


def test_the_sites_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    spec = importlib.util.spec_from_file_location("results_page", DOCS / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "results.md").read_text("utf-8") == module.page(), "run: python docs/results.py"
