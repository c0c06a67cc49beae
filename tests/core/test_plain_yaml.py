"""YAML of others: what it says, in little time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from joma.core.errors import InputError
from joma.core.plain_yaml import read_yaml


def test_numbers_of_base_60_are_texts(tmp_path: Path) -> None:
    """As numbers, a megabyte of them took 39 seconds."""
    path = tmp_path / "a.yaml"
    path.write_text("[1:30, 1:30.5, 12, -3, 1.5, 1e5, 0x10, .inf, 1_000]")
    assert read_yaml(path) == ["1:30", "1:30.5", 12, -3, 1.5, "1e5", 16, float("inf"), 1000]
    text = "1" + ":59" * 300_000
    path.write_text(text)
    began = time.process_time()
    assert read_yaml(path) == text
    assert time.process_time() - began < 10


def test_a_number_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("9" * 5000)
    with pytest.raises(InputError, match="is not YAML"):
        read_yaml(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    "text", ["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!binary é", "!!set x"]
)
def test_a_tag_that_its_value_does_not_fit_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"seed: {text}")
    with pytest.raises(InputError, match="is not YAML"):
        read_yaml(tmp_path / "a.yaml")
