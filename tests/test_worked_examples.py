"""Every public function has a worked example, and each is run as it is printed."""

from __future__ import annotations

import doctest
import inspect
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import joma
from joma.models.decoder import Decoder

EXAMPLES = {
    name: getattr(joma, name)
    for name in sorted(joma.__all__)
    if inspect.isfunction(getattr(joma, name)) or name == "Monitor"
}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {
        "joma": joma,
        "np": np,
        "torch": torch,
        "os": os,
        "safetensors": safetensors,
        "Decoder": Decoder,
        "Path": Path,
    }
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name].__doc__ or "", names, name, None, 0)
    assert test.examples, f"joma.{name} has no worked example"
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=told.append)
    assert not result.failed, "".join(told)
