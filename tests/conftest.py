"""What every test may ask for: the reference material beside the checkout, when it is there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "agg")
# Beside the other workers of a test-suite, threads that wait for each other sleep rather than spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile(
    "joma", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("joma")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test that draws without a seed of its own draws the same in whatever order tests run."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def no_pictures() -> Iterator[None]:
    """For runs whose pictures are not looked at."""
    from undrawn import undrawn

    with undrawn():
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material: ``$JOMA_SHARED``, or ``shared`` beside the checkout."""
    folder = Path(os.environ.get("JOMA_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"the reference material is not here ({folder}); set JOMA_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, Any]]:
    """``golden(id)``: an independently computed value, with its ``inputs``, ``expected``, ``rtol``."""
    entries = {
        entry["id"]: entry for entry in json.loads(Path(__file__).with_name("golden.json").read_text())
    }
    return entries.__getitem__
