"""Peak memory of a process that measures a distributed checkpoint, beside the same weights in safetensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from checkpoints.test_distributed import LAYER, save

_SIDE, _LAYERS = 2048, 6
_MATRIX = 4 * _SIDE * _SIDE
_MEASURE = """import sys, warnings
warnings.simplefilter("ignore")
from joma.checkpoints.ranks import probe_weights
assert len(probe_weights(sys.argv[1])) > 1
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])"""


def _weights(side: int) -> dict[str, Tensor]:
    return {
        LAYER.format(i, "w1"): torch.randn(side, side, generator=torch.Generator().manual_seed(i))
        for i in range(_LAYERS)
    }


def _peak(path: Path) -> int:
    """Bytes."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    return 1024 * int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peaks are read from /proc")
@pytest.mark.parametrize("kind", ["safetensors", "distributed"])
def test_the_peak_is_one_matrix_in_four_copies(kind: str, tmp_path: Path) -> None:
    """Above the same process with small matrices: 67 MB, where all weights together have 101 MB."""
    paths = {}
    for name, side in (("small", 64), ("large", _SIDE)):
        paths[name] = tmp_path / f"{name}.safetensors"
        if kind == "distributed":
            paths[name] = save(tmp_path / name, {"model": _weights(side)}, thread_count=2)
        else:
            save_file(_weights(side), paths[name])
    above = _peak(paths["large"]) - _peak(paths["small"])
    assert 0.9 * _MATRIX < above < 4 * _MATRIX < _LAYERS * _MATRIX
