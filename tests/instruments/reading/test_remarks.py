"""Remarks that a user can do nothing about are left out; all others are shown."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import joma
from joma.instruments.reading.remarks import without_remarks_on_import


class Attends(nn.Module):
    """One softmax over scores."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (tokens @ tokens.mT).softmax(-1) @ tokens


def test_a_compiled_model_is_watched_without_torchs_remark_on_hooks() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(Attends(), backend="eager")
        with joma.watch(compiled) as seen:
            compiled(torch.randn(1, 8, 4))
            warnings.warn("what others say", stacklevel=1)
    assert len(seen.table())
    assert [str(one.message) for one in caught] == ["what others say"]


def test_what_torchao_remarks_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torchao")
    with without_remarks_on_import():
        logger.warning("Failed to load %s", "_C.so")
        logger.warning("this model is damaged")
    logger.warning("Failed to load %s", "_C.so")
    assert [record.getMessage() for record in caplog.records] == [
        "this model is damaged",
        "Failed to load _C.so",
    ]


def test_a_command_on_a_model_says_nothing_on_stderr(tmp_path: Path) -> None:
    """Nothing of what transformers imports, and no bar of its own, reaches the screen."""
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    from probe_models import tiny_model

    AutoModelForCausalLM.from_config(tiny_model("llama").config).save_pretrained(tmp_path / "checkpoint-1")
    import numpy as np

    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(3, 60, 200))
    words = [sys.executable, "-m", "joma", "track", ".", "--text", "ids.npy", "--length", "24", "-o", "out"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert done.stderr == ""
