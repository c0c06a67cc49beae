from __future__ import annotations

import subprocess
import sys

import pytest

import joma


def test_every_public_name_is_found() -> None:
    for name in joma.__all__:
        assert getattr(joma, name) is not None
    assert set(joma.__all__) <= set(dir(joma))
    with pytest.raises(AttributeError, match="no attribute 'attention_entropi'"):
        joma.attention_entropi  # noqa: B018


def test_import_is_light() -> None:
    code = "import sys, joma; sys.exit(bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_dir_shows_public_names_only() -> None:
    assert [name for name in dir(joma) if name.startswith("_") and name != "__version__"] == []
    assert {"InputError", "Monitor", "theory"} <= set(dir(joma))
    assert joma.theory.RESULTS
