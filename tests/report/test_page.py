from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import html.parser
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from PIL import Image

import toy
from joma.core.errors import InputError, RunDirectoryError
from joma.report.interactive.extra import LARGEST_SCRIPTS
from joma.report.page import format_number, write_report
from joma.report.pictures import LARGEST, embed
from joma.runs.directory import Run, run_experiment


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
    _assert_only_scripts_of_known_hashes(text)
    assert not re.findall(r"""(?:src|href|srcset)=["'](?!data:|#)""", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "all &lt;b&gt;parts&lt;/b&gt; count" in text


def _assert_only_scripts_of_known_hashes(text: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    allowed = re.findall(r"'sha256-([^']+)'", html.unescape(policy))
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    found = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert found == allowed
    assert found
    assert sum(len(one.encode()) for one in scripts) <= LARGEST_SCRIPTS
    others = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert set(re.findall(r"<script[^>]*>", others)) <= {'<script type="application/json" class="views">'}


def test_page_counts_claims_and_shows_settings(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "2 of 2 statements that were tested hold here." in text
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


def test_what_does_not_hold_stands_first(tmp_path: Path) -> None:
    good = run_experiment(toy.Toy(), tmp_path / "a")
    bad = dataclasses.replace(
        good, claims=[dataclasses.replace(good.claims[0], verdict="fails", statement="all is well")]
    )
    text = write_report([good, bad], tmp_path / "report.html").read_text("utf-8")
    first = text[: text.index("<main>")]
    assert "1 of 2 statements that were tested hold here and 1 fails." in first
    assert "1 statement of the papers" in first
    assert "all is well" in first
    assert ">fails" in first
    assert "not hold here" not in text


def test_a_users_model_has_not_failed(tmp_path: Path) -> None:
    run = run_experiment(toy.Toy(), tmp_path / "a")
    claims = [dataclasses.replace(run.claims[0], verdict=verdict) for verdict in ("holds", "fails")]
    settings = {**run.settings, "subject": "model", "title": "a model, probed", "answer": ["Found: <3>."]}
    layers = pd.DataFrame({"layer": [0, 1], "entropy": [2.0, 1.0]})
    run = dataclasses.replace(
        run, claims=claims, settings=settings, tables={"layers": layers, "raw": layers.tail(1)}
    )
    text = write_report([run], tmp_path / "report.html").read_text("utf-8")
    body = re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)
    assert "<h1>A model, probed</h1>" in body
    assert "<p>Found: &lt;3&gt;.</p>" in body
    assert ">as the paper says</td>" in body
    assert ">unlike the paper</td>" in body
    assert ">fails<" not in body
    assert ">holds<" not in body
    assert "<h3>Layer by layer</h3>" in body
    assert "layers.parquet, raw.parquet" in body
    assert "<summary>Table" not in body


def test_figures_are_small_and_links_are_not_followed(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1400, 3), dtype=np.uint8)
    image.imsave(tmp_path / "loud.png", noise)
    found = embed(tmp_path / "loud.png")
    assert found is not None
    assert found.startswith("data:image/webp;base64,")
    drawn = np.full((900, 1800, 3), 255, dtype=np.uint8)
    drawn[::90] = 0
    image.imsave(tmp_path / "lines.png", drawn)
    lines = embed(tmp_path / "lines.png")
    assert lines is not None
    assert len(lines) <= LARGEST + 30
    for name, content in (
        ("text.png", b"not a picture"),
        ("cut.png", (tmp_path / "loud.png").read_bytes()[:5000]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            RunDirectoryError, match=rf"{name} is damaged \(it is not a picture that joma draws"
        ):
            embed(tmp_path / name)
    with open(tmp_path / "sparse.png", "wb") as opened:
        opened.truncate(3 << 30)
    with pytest.raises(InputError, match=r"sparse\.png has 3,221,225,472 bytes, more than 50,000,000"):
        embed(tmp_path / "sparse.png")
    bomb = Image.new("1", (20_000, 20_000))
    bomb.save(tmp_path / "bomb.png")
    with pytest.raises(RunDirectoryError, match=r"20000 times 20000 pixels|exceeds limit"):
        embed(tmp_path / "bomb.png")
    (tmp_path / "figure.png").symlink_to(tmp_path / "lines.png")
    assert embed(tmp_path / "figure.png") is None
    assert embed(tmp_path / "none.png") is None


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
        shown = figures.nth(i).evaluate("image => image.currentSrc")
        sources = figures.nth(i).evaluate(
            "image => [image.getAttribute('src'), image.parentElement.querySelector('source').srcset]"
        )
        assert sources[0] != sources[1]
        assert shown == sources[scheme == "dark"]
        # On a phone a figure keeps a width at which its text can be read, and scrolls.
        assert figures.nth(i).evaluate("image => image.getBoundingClientRect().width") > 600
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    luminance = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(luminance) > 600) == (scheme == "light")
    for cell in tab.locator("table.parts td:not(:empty), td.verdict").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    tab.locator("details.data-table summary").first.click()
    assert tab.get_by_text("<script>alert(1)</script>").first.is_visible()
    context.close()


def plain_run(directory: Path) -> Run:
    """Without claims or versions, with a table that is wider than a sheet."""
    words = {f"column {n}": ["a sentence that is longer than a column of a sheet"] * 3 for n in range(9)}
    settings: dict[str, Any] = {"experiment": "monitor", "title": "plain", "settings": {}}
    table = pd.DataFrame({"layer": pd.array([0, None, 2], dtype="Int64"), **words})
    return Run(directory, settings, [], {"messages": table})


def test_a_run_without_claims_has_no_legend_of_claims(tmp_path: Path) -> None:
    text = write_report([plain_run(tmp_path)], tmp_path / "report.html").read_text("utf-8")
    body = re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)
    assert re.search(r"Made [\d :-]+ UTC\.\s*</p>", body)
    for words in ("Corrected", "A null is", "joma ,", "torch", "NA&gt;", "<NA>"):
        assert words not in body


def test_rows_of_a_long_table_are_of_every_kind(tmp_path: Path) -> None:
    table = pd.DataFrame({"metric": [f"m{n % 40}" for n in range(4800)], "value": 1.0})
    text = write_report(
        [dataclasses.replace(plain_run(tmp_path), tables={"values": table})], tmp_path / "report.html"
    ).read_text("utf-8")
    assert "30 of its rows, evenly spaced" in text
    assert len(set(re.findall(r"<td>(m\d+)</td>", text))) > 15


@pytest.mark.browser
def test_a_wide_table_is_whole_in_print(browser: Any, tmp_path: Path) -> None:
    page = write_report([plain_run(tmp_path)], tmp_path / "report.html")
    tab = browser.new_page(viewport={"width": 718, "height": 1000})  # A4 between margins, 96 a inch
    tab.set_default_timeout(120_000)  # a machine may be busy
    tab.goto(page.as_uri())
    tab.emulate_media(media="print")
    ends = "cells => cells.map(cell => cell.getBoundingClientRect().right)"
    assert max(tab.locator("table.data td").evaluate_all(ends)) <= 718
    tab.close()


@pytest.mark.browser
def test_page_in_print(browser: Any, page: Path, tmp_path: Path) -> None:
    tab = browser.new_page()
    tab.goto(page.as_uri())
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    figure = tab.locator("picture img").first
    assert figure.evaluate("image => image.currentSrc === image.getAttribute('src')")
    assert tab.locator("details.data-table td").first.is_visible()  # so are the tables
    assert tab.locator("h3").first.evaluate("heading => getComputedStyle(heading).breakAfter") == "avoid"
    assert tab.get_by_text("sizes").first.is_visible()  # settings are open on paper
    tab.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
    tab.close()
