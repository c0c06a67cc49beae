from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

import joma
from joma.core.version import commit
from joma.instruments.probe import ProbeSettings

ROOT = Path(__file__).parents[2]


def test_a_result_names_the_papers_that_it_judges(tmp_path: Path) -> None:
    of_joma = joma.cite(joma.run("fig9", out=tmp_path / "fig9", quiet=True))
    assert "2310.00535" in of_joma
    assert "2305.16380" not in of_joma
    weights = joma.ProbeResult(ProbeSettings(weights=True), {"layers": pd.DataFrame({"layer": [0]})})
    assert joma.cite(weights).count("@") == 1
    both = joma.cite()
    assert "2310.00535" in both
    assert "2305.16380" in both
    assert joma.__version__ in both
    assert commit() in both


def test_the_citation_file_names_the_same_papers() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cff["version"] == joma.__version__
    for reference in cff["references"]:
        assert reference["title"] in joma.cite()
        assert reference["url"] in joma.cite()
