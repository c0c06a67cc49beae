"""The site's numbers: written from tables that are kept, and from what is computed now."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from flips import assert_flips
from joma.checks.catalog import run_checks
from joma.core.claim import Claim
from joma.experiments import catalog
from test_claim_ids import ids

DOCS = Path(__file__).parents[1] / "docs"


class Pages(NamedTuple):
    """The modules that write the pages."""

    stored: ModuleType
    findings: ModuleType
    claims: ModuleType
    bounce: ModuleType
    errata: ModuleType


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    sys.path.insert(0, str(DOCS))
    yield Pages(*(importlib.import_module(name) for name in Pages._fields))
    sys.path.remove(str(DOCS))


def test_what_was_found_is_what_the_stored_tables_say(pages: Pages) -> None:
    assert (DOCS / "findings.md").read_text("utf-8") == pages.findings.page(), "run: python docs/findings.py"


def test_a_finding_shows_ten_lines_and_folds_the_rest(pages: Pages) -> None:
    page = (DOCS / "findings.md").read_text("utf-8")
    table = page.partition("\n## ")[0]
    assert table.count("\n| [") >= 25
    assert all(line.count(" | ") == 5 for line in table.splitlines() if line.startswith("| ["))
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        shown = re.sub(r"<details.*?</details>", "", body, flags=re.DOTALL).splitlines()
        assert 0 < sum(bool(line.strip()) and not line.startswith("[![") for line in shown) <= 10, heading
        assert body.count("<details") == body.count("</details>") <= 1
    long = "One sentence. " * 100
    shown = pages.findings.fold(pages.findings.Finding("A (`joma run fig6`)", (), long))
    first, _, rest = shown.partition("<details")
    assert (first + rest).count("One sentence.") == 100
    assert first.count("One sentence.") > 50
    assert "experiments/fig6.webp" in first


def test_the_list_of_claims_is_current(pages: Pages) -> None:
    assert (DOCS / "claims.md").read_text("utf-8") == pages.claims.page(), "run: python docs/claims.py"


def test_the_page_on_the_bounce_is_that_of_its_run(pages: Pages) -> None:
    page = (DOCS / "what-makes-the-bounce.md").read_text("utf-8")
    assert page == pages.bounce.page(), "run: python docs/bounce.py"


def test_a_number_that_changes_is_noticed(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = dict(pages.stored.tables("fig6"))
    tables["bounces"] = tables["bounces"].assign(start=lambda table: table["start"] + 0.01)
    original = pages.stored.tables
    monkeypatch.setattr(pages.stored, "tables", lambda name: tables if name == "fig6" else original(name))
    assert (DOCS / "findings.md").read_text("utf-8") != pages.findings.page()


def test_every_experiment_is_stored_with_its_preset_or_named(pages: Pages) -> None:
    named = set(pages.claims.NOT_STORED)
    held = {path.parent.name for path in pages.stored.FOLDER.glob("*/settings.yaml")}
    first = {folder for folder in held if "-" not in folder}
    assert first | named == set(catalog.names())
    assert not first & named
    for folder in held:
        name, _, preset = folder.partition("-")
        kind = catalog.find(name)
        settings = kind.of(**kind.presets[preset or pages.stored.PRESETS.get(name, "quick")])
        assert pages.stored.job(pages.stored.FOLDER / folder) == settings, "settings have changed"


def test_every_claim_has_a_null_or_the_reason_why_not(pages: Pages) -> None:
    for claim in pages.stored.claims().values():
        assert pages.claims.null(claim), f"{claim.id}: a null, or its reason in docs/claims.py"
    unknown = set(pages.claims.WITHOUT_NULL) - set(pages.stored.claims())
    assert not unknown


def test_every_claim_of_the_sources_is_listed(pages: Pages) -> None:
    listed = {*pages.stored.claims(), *(claim["id"] for claim in pages.claims.of_checks())}
    listed |= set(pages.claims.OTHER_SETTINGS)
    for template, places in ids().items():
        experiments = {place.split("/")[-2] for place in places}
        if not experiments & set(pages.claims.NOT_STORED) and not template.startswith("["):
            assert any(re.fullmatch(template, name) for name in listed), (template, places)


@pytest.fixture(scope="module")
def checked() -> list[Claim]:
    """The claims of all checks."""
    return run_checks()


@pytest.mark.slow
def test_the_errata_are_what_joma_check_computes(pages: Pages, checked: list[Claim]) -> None:
    assert (DOCS / "errata.md").read_text("utf-8") == pages.errata.page(checked), "run: python docs/errata.py"
    assert [pages.errata.kept(claim) for claim in checked] == pages.claims.of_checks()


@pytest.mark.slow
def test_the_claims_of_checks_flip_at_their_printed_thresholds(checked: list[Claim]) -> None:
    for claim in checked:
        assert_flips(claim)


def test_the_numbers_of_the_readme_stand_in_the_findings(pages: Pages) -> None:
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    first, rest = readme.split("## What was found\n")[1].split("[All findings]")[0].split("5. ")
    findings = (DOCS / "findings.md").read_text("utf-8")
    for number in re.findall(r"\d+\.\d+", first):
        assert number in findings, number
    corrected = sum(claim["verdict"] == "corrected" for claim in pages.claims.of_checks())
    assert rest.startswith(f"{corrected} statements")


def test_the_claims_of_stored_runs_flip_at_their_printed_thresholds(pages: Pages) -> None:
    judged = [claim for claim in pages.stored.claims().values() if claim.verdict != "not tested"]
    assert len(judged) > 150
    for claim in judged:
        assert_flips(claim)
