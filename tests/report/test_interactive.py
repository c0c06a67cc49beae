"""What a page shows where scripts run: letters for numbers, views of tables, and a browser that uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import made_monitors
from joma.instruments.monitor.page import monitored_run
from joma.report import page as pages
from joma.report.interactive.encoding import ABOVE, BELOW, HIGHEST, LETTERS, MISSING, Letters, encode
from joma.report.interactive.extra import LARGEST_SCRIPTS, SHARE, no_extra
from joma.report.interactive.views import CURVES, VIEWS, fit, views_of


def decode(letters: Letters) -> tuple[np.ndarray, np.ndarray]:
    """What the page's script reads: values, and errors (NaN: unknown)."""
    marks = np.array([LETTERS.index(letter) for letter in letters.values]).reshape(-1, 2)
    codes = 64 * marks[:, 0] + marks[:, 1]
    shares = np.minimum(codes, HIGHEST) / HIGHEST
    values = (
        letters.low * (letters.high / letters.low) ** shares
        if letters.logarithmic
        else letters.low + (letters.high - letters.low) * shares
    )
    for code, value in ((ABOVE, np.inf), (BELOW, -np.inf), (MISSING, np.nan)):
        values[codes == code] = value
    if not letters.errors:
        return values, np.full(len(values), np.nan)
    marks = np.array([LETTERS.index(letter) for letter in letters.errors])
    errors = letters.elow * (letters.ehigh / letters.elow) ** (marks / 62)
    return values, np.where(marks == 63, np.nan, errors)


@pytest.mark.parametrize("decades", [0.5, 6.0])
def test_letters_hold_values_within_their_errors(decades: float) -> None:
    random = np.random.default_rng(0)
    true = 10 ** (decades * random.random(500))
    errors = 10 ** random.uniform(-5, 0, 500) * true
    errors[::7] = np.nan
    given = true + 0.9 * np.nan_to_num(errors) * random.choice([-1, 1], 500)
    given[:3] = np.nan, np.inf, -np.inf
    letters = encode(given, errors)
    values, bounds = decode(letters)
    assert letters.logarithmic == (decades > 2)
    assert np.isnan(values[0])
    assert values[1] == np.inf
    assert values[2] == -np.inf
    known = np.isfinite(given) & np.isfinite(errors)
    assert (np.abs(values[known] - true[known]) <= bounds[known] * (1 + 1e-9)).all()
    assert (bounds[known] >= errors[known]).all()
    assert np.isnan(bounds[~np.isfinite(errors)]).all()
    # The rounding alone is less than the distance of two codes.
    plain = np.isfinite(given)
    size = letters.gap() * (np.abs(given[plain]) if letters.logarithmic else 1)
    assert (np.abs(values[plain] - given[plain]) <= 1.01 * size).all()


def test_letters_of_one_value_of_none_and_of_the_largest() -> None:
    assert decode(encode(np.full(3, 2.5), np.full(3, np.nan)))[0] == pytest.approx([2.5] * 3)
    assert encode(np.full(2, np.nan), np.full(2, np.nan)).values == "__" * 2
    extreme = encode(np.array([-1e308, 0.0, 1e308]), np.full(3, np.nan))
    assert [LETTERS.index(letter) for letter in extreme.values] == [0, 0, 31, 62, 63, 60]


def curves_table(seeds: int = 2, layers: int = 2, steps: int = 30) -> pd.DataFrame:
    """Entropies of two heads by seed and layer, and a loss without either."""
    rows = [
        {
            "run": f"seed-{seed}",
            "seed": seed,
            "step": 5 * step,
            "layer": layer,
            "head": head,
            "metric": "attention_entropy",
            "value": seed + layer / 10 + head / 100 + step / 1000,
            "unit": "nats",
            "error_bound": 0.002,
        }
        for seed in range(seeds)
        for step in range(steps)
        for layer in range(layers)
        for head in range(2)
    ]
    table = pd.DataFrame(rows)
    loss = table[(table["layer"] == 0) & (table["head"] == 0)].assign(
        layer=pd.NA, head=pd.NA, metric="loss<b>"
    )
    return pd.concat([table, loss], ignore_index=True)


def test_views_of_a_table_by_seed_layer_and_head() -> None:
    views = {view.name: view for view in views_of({"curves": curves_table()})}
    assert list(views) == [
        "attention entropy, layer by head, seed 0",
        "attention entropy, layer by head, seed 1",
        "attention entropy, curves",
        "loss<b>, curves",
    ]
    grid = views["attention entropy, layer by head, seed 1"]
    assert (grid.rows, grid.columns, grid.unit) == (["0", "1"], ["0", "1"], "nats")
    assert grid.values[3, 7] == pytest.approx(1 + 0.1 + 0.01 + 0.007)
    assert grid.moments[7] == 35
    curves = views["attention entropy, curves"]
    assert curves.by == {"seed": ["0", "1"], "layer": ["0", "1"], "head": ["0", "1"]}
    number = curves.lines.index([1, 0, 1])
    assert curves.values[number, 29] == pytest.approx(1 + 0.01 + 0.029)
    assert views["loss<b>, curves"].by == {"seed": ["0", "1"]}
    text = views["loss<b>, curves"].text(10)
    assert "<" not in text
    fields = json.loads(text)
    assert fields["name"] == "loss<b>, curves"
    assert fields["steps"] == list(range(10, 150, 15))
    assert fields["note"] == "Every 3rd step that was measured is shown here. All values: table curves."


def test_a_map_without_steps_and_a_table_that_is_none() -> None:
    (view,) = views_of(
        {"attention": pd.DataFrame({"layer": 0, "head": [0, 1], "metric": "x", "value": [1, 2]})}
    )
    assert json.loads(view.text(10))["steps"] == [0]
    assert views_of({"none": pd.DataFrame({"layer": [0, 1], "entropy": [1.0, 2.0]})}) == []
    twice = pd.DataFrame({"step": [0, 0, 1], "metric": "x", "value": 1.0})
    assert views_of({"twice": twice}) == []
    assert views_of({"empty": curves_table().head(0)}) == []


def test_views_fit_into_what_is_there_and_are_few() -> None:
    views = views_of({"curves": curves_table(steps=200)})
    for size in (0, 400, 1500, 6000, 100_000):
        text = fit(views, size)
        assert len(text) <= size
        shown = json.loads(text or "[]")
        assert len(shown) == {0: 0, 400: 0, 1500: 2}.get(size, len(views))
        steps = [len(view["steps"]) for view in shown]
        assert all(number <= 100 for number in steps)
    many = pd.concat([curves_table(seeds=30).assign(metric=f"m{n}") for n in range(9)])
    found = views_of({"curves": many})
    assert len(found) == VIEWS
    assert sum(view.by is not None for view in found) == CURVES


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a monitored run."""
    folder = tmp_path_factory.mktemp("watched")
    run = monitored_run(made_monitors.write(made_monitors.healthy(looks=60), folder / "monitor"))
    return pages.write_report([run], folder / "report.html")


def test_the_page_grows_by_little(watched: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = watched.read_text("utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(scripts) == 2
    assert sum(len(script.encode()) for script in scripts) <= LARGEST_SCRIPTS
    assert text.count('class="views"') == 1
    monkeypatch.setattr(pages, "extra_of", lambda tables, size: no_extra(len(tables)))
    run = monitored_run(watched.parent / "monitor")
    plain = pages.write_report([run], tmp_path / "plain.html")
    assert watched.stat().st_size <= (1 + SHARE) * plain.stat().st_size
    # Without what is added, it is the same page.
    rest = re.sub(r"; script-src[^\"]*|<script.*?</script>\n?", "", text, flags=re.DOTALL)
    style = re.compile(r"<style>.*</style>|Made [\d :-]+UTC", flags=re.DOTALL)
    assert style.sub("", rest).split() == style.sub("", plain.read_text("utf-8")).split()


@pytest.mark.browser
def test_a_map_by_keyboard(browser: Any, watched: Path) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(120_000)  # a machine may be busy
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(watched.as_uri())
    table = monitored_run(watched.parent / "monitor").tables["statistics"]
    own = table[(table["metric"] == "normalised_entropy") & (table["layer"] == 0)].set_index(["step", "head"])
    tab.get_by_role("combobox", name="shown").focus()
    tab.keyboard.press("Tab")
    slider = tab.get_by_role("slider", name="step")
    assert slider.evaluate("own => own === document.activeElement")
    tab.keyboard.press("Home")
    step = int(tab.locator(".explore output").inner_text())
    assert slider.get_attribute("aria-valuetext") == f"step {step}"
    tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("End")
    focused = tab.evaluate("document.activeElement.getAttribute('aria-label')")
    place, _, value = focused.partition(": ")
    assert place == f"layer 0, head {made_monitors.HEADS - 1}"
    span = own["value"].max() - own["value"].min()
    assert float(value) == pytest.approx(own["value"][step, made_monitors.HEADS - 1], abs=span / 1000)
    assert tab.get_by_role("grid", name="normalised entropy, layer by head").count() == 1
    assert tab.get_by_role("gridcell", name=focused).count() == 1
    assert f"step {step}, {focused}" in tab.locator(".said").inner_text()
    assert tab.get_by_role("img", name="course of layer 0, head 3").count() == 1
    assert problems == []
    tab.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1200])
def test_curves_are_switched_and_tables_sorted(browser: Any, watched: Path, width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.set_default_timeout(120_000)  # a machine may be busy
    tab.goto(watched.as_uri())
    tab.get_by_role("combobox", name="shown").select_option(label="residual rms, curves")
    group = tab.get_by_role("group", name="layer")
    lines = tab.locator(".explore svg path")
    assert lines.count() == made_monitors.LAYERS
    group.get_by_role("checkbox", name="1").uncheck()
    assert lines.count() == made_monitors.LAYERS - 1
    tab.locator("svg.course").focus()
    tab.keyboard.press("Home")
    said = tab.get_by_role("status").inner_text()
    assert re.match(r"step \d+: layer 0: [\d.]+; layer 2: [\d.]+$", said)
    tab.keyboard.press("ArrowRight")
    assert tab.get_by_role("status").inner_text() != said
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.locator("details.data-table summary").last.click()
    table = tab.locator("table.data").last
    steps = "rows => rows.map(row => row.cells[0].textContent)"
    before = table.locator("tbody tr").evaluate_all(steps)
    button = table.get_by_role("button", name="value")
    values = "rows => rows.map(row => Number(row.cells[7].textContent))"
    for sorting, sign in (("ascending", 1), ("descending", -1)):
        button.press("Enter")
        assert table.locator("th").nth(7).get_attribute("aria-sort") == sorting
        shown = [sign * value for value in table.locator("tbody tr").evaluate_all(values)]
        assert shown == sorted(shown)
    button.press("Enter")
    assert table.locator("tbody tr").evaluate_all(steps) == before
    tab.close()


@pytest.mark.browser
def test_no_other_script_runs_and_none_is_needed(browser: Any, watched: Path) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(120_000)  # a machine may be busy
    tab.goto(watched.as_uri())
    tab.evaluate(
        "() => { const own = document.createElement('script'); own.textContent = 'window.bad = 1';"
        " document.body.append(own); }"
    )
    assert tab.evaluate("window.bad") is None
    tab.close()
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(watched.as_uri())
    assert tab.locator(".explore, button").count() == 0
    assert tab.locator("picture img").first.is_visible()
    assert tab.locator("script.views").first.is_hidden()
    context.close()


def test_a_name_that_each_moment_has_of_its_own_tells_no_lines_apart() -> None:
    table = pd.DataFrame(
        {
            "checkpoint": [f"checkpoint-{step}" for step in (0, 10, 20) for _ in range(2)],
            "metric": "stable_rank",
            "layer": [0, 1] * 3,
            "step": [0, 0, 10, 10, 20, 20],
            "value": [3.0, 4.0, 2.5, 3.5, 2.0, 3.0],
        }
    )
    (view,) = views_of({"values": table})
    assert view.by == {"layer": ["0", "1"]}
    assert view.values.tolist() == [[3.0, 2.5, 2.0], [4.0, 3.5, 3.0]]
