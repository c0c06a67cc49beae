"""Peak memory of ``joma track`` over 5 and over 50 checkpoints, above an empty torch process.

Each checkpoint has 53 MB of wanted tensors, the largest of 25 MB; each run is a process of its own. The 50
take 2.6 GB of disk, and some two minutes.

    python benchmarks/bench_track_memory.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

TARGET = 1.05
FEW, MANY = 5, 50
LAYERS, ROWS, COLUMNS = 2, 12_000, 512
_PEAK = "import resource, sys, torch\n{}\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
_TRACK = "import joma; joma.track(sys.argv[1], quiet=True)"
_IMPORTS = "import joma.instruments.track.run, joma.instruments.track.figure, joma.instruments.track.claims"


def write(folder: Path, step: int) -> int:
    """Bytes of the wanted tensors."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(step)
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=random)
        for layer in range(LAYERS)
        for name, shape in {
            "mlp.up_proj": (ROWS, COLUMNS),
            **{f"self_attn.{one}_proj": (COLUMNS, COLUMNS) for one in "qkvo"},
        }.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    return sum(tensor.nbytes for tensor in tensors.values())


def peak(body: str, *arguments: str) -> float:
    """MB."""
    call = [sys.executable, "-c", _PEAK.format(body), *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        few, many = Path(name, "few"), Path(name, "many")
        few.mkdir()
        for step in range(MANY):
            wanted = write(many / f"step{step}", step)
            if step < FEW:
                os.symlink(many / f"step{step}", few / f"step{step}")
        empty, imports = peak("torch.ones(3).sum()"), peak(_IMPORTS)
        peaks = [peak(_TRACK, str(folder)) for folder in (few, many)]
    ratio = (peaks[1] - empty) / (peaks[0] - empty)
    bound = (wanted + 4 * 4 * ROWS * COLUMNS) / 1e6
    print(
        f"empty torch {empty:.0f} MB, with what is imported {imports:.0f} MB; above an empty torch process "
        f"{peaks[0] - empty:.0f} MB for {FEW} checkpoints, {peaks[1] - empty:.0f} MB for {MANY}: ratio "
        f"{ratio:.3f} (at most {TARGET}); above the imports {peaks[1] - imports:.0f} MB, where one "
        f"checkpoint and four float32 copies of its largest matrix are {bound:.0f} MB"
    )
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
