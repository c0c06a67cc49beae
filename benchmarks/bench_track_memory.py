"""Peak memory of ``joma track``, figure and report included, above an empty torch process.

Each run is a process of its own.

Over 5 and over 50 checkpoints of 53 MB of wanted tensors (2.6 GB of disk, some five minutes): the same, in
the median of three runs, since single ones scatter by as much as the bound allows. Over two checkpoints of
537 MB, whose largest matrix has 67 MB: at most one checkpoint and four float32 copies of the largest matrix,
libraries included (pandas, Arrow, SciPy, numba, Matplotlib: more than that bound where checkpoints are
small).

    python benchmarks/bench_track_memory.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

TARGET = 1.05
FEW, MANY = 5, 50
RUNS = 3
SMALL, LARGE = (2, 12_000, 512), (4, 8192, 2048)
"""Layers; rows and columns of a lower matrix."""
_PEAK = "import sys, torch\n{}\nprint(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
"""Not ``ru_maxrss``, in which a process begins with what its parent held when it was forked."""
_TRACK = """import contextlib, io, tempfile
from joma.cli.main import main
with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
    assert main(['track', sys.argv[1], '--out', out, '-q']) == 0"""
_IMPORTS = "import joma.instruments.track.run, joma.instruments.track.figure, joma.instruments.track.claims"


def write(folder: Path, step: int, sizes: tuple[int, int, int]) -> float:
    """MB of the wanted tensors."""
    layers, rows, columns = sizes
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(step)
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=random)
        for layer in range(layers)
        for name, shape in {
            "mlp.up_proj": (rows, columns),
            **{f"self_attn.{one}_proj": (columns, columns) for one in "qkvo"},
        }.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    return sum(tensor.nbytes for tensor in tensors.values()) / 1e6


def peak(body: str, *arguments: str) -> float:
    """MB."""
    call = [sys.executable, "-c", _PEAK.format(body), *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout.split()[-1]) / 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        few, many, large = Path(name, "few"), Path(name, "many"), Path(name, "large")
        few.mkdir()
        for step in range(MANY):
            write(many / f"step{step}", step, SMALL)
            if step < FEW:
                os.symlink(many / f"step{step}", few / f"step{step}")
        wanted = max(write(large / f"step{step}", step, LARGE) for step in range(2))
        empty, imports = peak("torch.ones(3).sum()"), peak(_IMPORTS)
        small = [[peak(_TRACK, str(folder)) - empty for folder in (few, many)] for _ in range(RUNS)]
        above = peak(_TRACK, str(large)) - empty
    of_few, of_many = zip(*small, strict=True)
    ratio = statistics.median(of_many) / statistics.median(of_few)
    bound = wanted + 4 * 4 * LARGE[1] * LARGE[2] / 1e6
    print(
        f"empty torch {empty:.0f} MB, libraries {imports - empty:.0f} MB more; above an empty torch process:"
    )
    for number, runs in ((FEW, of_few), (MANY, of_many)):
        print(f"  {number} small checkpoints: " + ", ".join(f"{one:.0f}" for one in sorted(runs)) + " MB")
    print(f"  ratio of the medians {ratio:.3f} (at most {TARGET})")
    print(
        f"  large checkpoints {above:.0f} MB (at most {bound:.0f}: {wanted:.0f} of wanted tensors, four "
        "copies of the largest)"
    )
    return int(ratio > TARGET or above > bound)


if __name__ == "__main__":
    sys.exit(main())
