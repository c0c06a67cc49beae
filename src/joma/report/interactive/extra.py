"""What a page gains where scripts run: two scripts under their hashes, and the numbers that they show.

The page without them stays whole; what is added takes at most ``SHARE`` of its size.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import pandas as pd
from markupsafe import Markup

from joma.report.interactive.views import fit, views_of

SHARE = 0.15
"""By which share of its size a page may grow."""
LARGEST_SCRIPTS = 12_000
"""Bytes of all scripts of a page."""
_ELEMENT = 80
"""Bytes of the elements around a script, its hash aside, and around the numbers of a section."""


@dataclass(frozen=True)
class Extra:
    """What is put into a page."""

    style: Markup
    scripts: Sequence[Markup]
    policy: str
    """What the page's policy says of scripts; empty where there is none."""
    views: Sequence[Markup]
    """For each section the numbers of its views, as JSON; empty where it has none."""


def no_extra(sections: int) -> Extra:
    """A page of so many sections without scripts."""
    return Extra(Markup(""), [], "", [Markup("")] * sections)


def extra_of(tables: Sequence[Mapping[str, pd.DataFrame]], size: int) -> Extra:
    """What fits into a page of so many bytes: sortable tables first, then views of the sections' tables."""
    style, sorting, shown = (_text_of(name) for name in ("views.css", "sorting.js", "views.js"))
    left = int(SHARE * size) - len(style) - _cost(sorting)
    if left < 0:
        return no_extra(len(tables))
    of_sections = [views_of(own) for own in tables]
    views = [""] * len(tables)
    rest = left - _cost(shown)
    for number, own in enumerate(of_sections):
        following = sum(map(bool, of_sections[number:]))
        if own and rest > 0:
            views[number] = fit(own, rest // following - _ELEMENT)
            rest -= len(views[number]) + _ELEMENT if views[number] else 0
    scripts = [sorting, shown] if any(views) else [sorting]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return Extra(
        Markup(style),
        [Markup(script) for script in scripts],
        f"; script-src {hashes}",
        [Markup(view) for view in views],
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _cost(script: str) -> int:
    return len(script) + len(_digest(script)) + _ELEMENT


@cache
def _text_of(name: str) -> str:
    """A file of this folder without its comments and its indentation."""
    text = resources.files("joma.report.interactive").joinpath(name).read_text("utf-8")
    lines = [line.strip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("//"))
