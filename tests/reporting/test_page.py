from __future__ import annotations

import html.parser
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toy
from joma.errors import InputError
from joma.reporting.page import format_number, write_report
from joma.runs.directory import run_experiment

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = [
        run_experiment(toy.Toy(), folder / "a", preset="quick"),
        run_experiment(toy.Toy(parts=9, sizes=(3,)), folder / "b"),
    ]
    return write_report(runs, folder / "report.html")


def test_page_is_well_formed_and_self_contained(page: Path) -> None:
    text = page.read_text("utf-8")
    void = {"meta", "link", "img", "br", "source", "input"}
    stack: list[str] = []

    class Checker(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in void:
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    Checker().feed(text)
    assert not stack
    assert not re.findall(r"""(?:src|href|srcset)=["'](?!data:|#)""", text)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "all &lt;b&gt;parts&lt;/b&gt; count" in text


def test_page_counts_claims_and_shows_settings(page: Path) -> None:
    text = page.read_text("utf-8")
    assert '<b class="holds">2</b>holds' in text
    assert "toy (quick)" in text
    assert "<dt>sizes</dt><dd>1, 2</dd>" in text
    assert "<dt>limit</dt><dd>none</dd>" in text


def test_numbers() -> None:
    shown = [(None, ""), (float("nan"), ""), (3, "3"), (3.0, "3"), (0.123456, "0.1235"), (1e-9, "1e-09")]
    shown += [(True, "True"), ("x", "x"), (float("inf"), "inf"), (-float("inf"), "-inf")]
    for value, text in shown:
        assert format_number(value) == text


def test_no_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        yield chromium
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_page_in_chromium(browser: Any, page: Path, scheme: str, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    tab.wait_for_load_state("load")
    assert problems == []
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
    figures = tab.locator("picture img")
    assert figures.count() == 2
    for i in range(figures.count()):
        assert figures.nth(i).is_visible()
        assert figures.nth(i).evaluate("image => image.complete && image.naturalWidth > 300")
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    luminance = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(luminance) > 600) == (scheme == "light")
    tab.locator("details.data-table summary").first.click()
    assert tab.get_by_text("<script>alert(1)</script>").first.is_visible()
    context.close()


@pytest.mark.browser
def test_page_in_print(browser: Any, page: Path, tmp_path: Path) -> None:
    tab = browser.new_page()
    tab.goto(page.as_uri())
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert "data:image/png" in tab.locator("picture img").first.evaluate("image => image.currentSrc")
    assert tab.get_by_text("sizes").first.is_visible()  # settings are open on paper
    tab.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
    tab.close()
