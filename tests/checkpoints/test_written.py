"""Small checkpoints that the libraries wrote (``tests/formats.py --keep``), read bit for bit.

DeepSpeed's scripts were left out, and in its universal folders what the optimizer keeps beside the weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from formats import KINDS, differences

WRITTEN = Path(__file__).parent / "written"
FOLDERS = sorted(folder.name for folder in WRITTEN.iterdir())


@pytest.mark.parametrize("kind", FOLDERS)
def test_what_the_libraries_wrote_is_read_bit_for_bit(kind: str) -> None:
    assert kind in KINDS
    assert not differences(WRITTEN / kind)


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in WRITTEN.rglob("*") if file.is_file()) < 2 << 20
