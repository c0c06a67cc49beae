"""What each check computes now is what docs/errata.md says of it: a formula that changes is noticed."""

from __future__ import annotations

import importlib
import json
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from joma.checks.catalog import MODULES

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*[A-Za-z_])")
ROUNDING = 1e-8
"""Below it a number is rounding, whose digits are another machine's own."""


@cache
def errata() -> ModuleType:
    """The module that writes the page."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("errata")
    finally:
        sys.path.remove(str(DOCS))


def rows(page: str) -> list[str]:
    """The table rows of a page, without its heads."""
    lines = [line for line in page.splitlines() if line.startswith("| ") and "|---" not in line]
    return [line for line in lines if not line.startswith("| where |")]


def split(row: str) -> tuple[str, list[float]]:
    """A row without its numbers, and these."""
    return NUMBER.sub("#", row), [float(one) for one in NUMBER.findall(row)]


@pytest.mark.parametrize("module", MODULES)
def test_a_page_says_what_is_computed(module: str) -> None:
    groups = importlib.import_module(f"joma.checks.{module}").CHECKS.values()
    claims = [claim for group in groups for claim in group()]
    written: dict[str, list[list[float]]] = {}
    for row in rows((DOCS / "errata.md").read_text("utf-8")):
        text, numbers = split(row)
        written.setdefault(text, []).append(numbers)
    for row in rows(errata().page([claim for claim in claims if claim.verdict != "not tested"])):
        text, numbers = split(row)
        assert text in written, f"run: python docs/errata.py ({row})"
        assert any(numbers == pytest.approx(one, rel=2e-3, abs=ROUNDING) for one in written[text]), (
            f"{row}: errata.md has {written[text]}"
        )
    nulls = {claim["id"]: (claim["null"], claim["null_size"]) for claim in kept()}
    for claim in claims:
        description, size = nulls[claim.id]
        own = errata().kept(claim)
        assert own["null"] == description
        assert split(own["null_size"])[1] == pytest.approx(split(size)[1], rel=2e-3, abs=ROUNDING), claim.id


def kept() -> list[dict[str, str]]:
    """What docs/stored/check.json has of each claim."""
    found: list[dict[str, str]] = json.loads((DOCS / "stored" / "check.json").read_text("utf-8"))
    return found
