"""Checkpoints by the libraries that save them, two processes each, against the same weights in one file.

``python tests/formats.py [KIND ...]`` installs each library into an environment of its own below
``.venv-formats`` (PyTorch is that of this environment), lets it write, and compares bit for bit every tensor
and every number of ``joma.probe_weights``. With ``--keep FOLDER`` what was written is kept there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file

from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.ranks import probe_weights

TESTS = Path(__file__).parent
ENVIRONMENTS = TESTS.parent / ".venv-formats"
_FROM_SOURCE = ("--no-build-isolation", "--no-deps")
_DEEPSPEED = (
    "hjson",
    "ninja",
    "py-cpuinfo",
    "pydantic",
    "msgpack",
    "einops",
    "psutil",
    "setuptools",
    "wheel",
)
INSTALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torch": (),
    "deepspeed": (_DEEPSPEED, (*_FROM_SOURCE, "deepspeed==0.19.8")),
    "megatron": (("--no-deps", "megatron-core==0.16.1"), ("packaging", "einops")),
}
"""Library -> what pip installs, call by call; nothing: this environment has it."""
KINDS = {
    "torchtitan": "torch",
    "accelerate": "torch",
    "mesh": "torch",
    "fsdp1": "torch",
    "deepspeed_1": "deepspeed",
    "deepspeed_2": "deepspeed",
    "deepspeed_3": "deepspeed",
    "deepspeed_universal": "deepspeed",
    "deepspeed_universal_3": "deepspeed",
    "megatron": "megatron",
}
"""What ``format_writers.py`` writes -> the library that it needs."""


def python_of(library: str) -> str:
    """The interpreter of a library's environment, which is made where it is not there."""
    if not INSTALLS[library]:
        return sys.executable
    place = ENVIRONMENTS / library
    python = str(place / "bin" / "python")
    if (place / ".installed").is_file():
        return python
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    outer = Path(torch.__file__).parent.parent
    (next(place.glob("lib/python*/site-packages")) / "outer.pth").write_text(f"{outer}\n")
    building = os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    for packages in INSTALLS[library]:
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(pip, check=True, env=building)
    (place / ".installed").touch()
    return python


def differences(folder: Path) -> list[str]:
    """What joma reads of ``folder/saved`` otherwise than of ``folder/whole.safetensors``."""
    gathered, whole = open_checkpoint(folder / "saved"), load_file(folder / "whole.safetensors")
    found = [f"{name} is missing" for name in whole.keys() - gathered.entries.keys()]
    found += [f"{name} is too much" for name in gathered.entries.keys() - whole.keys()]
    for name, tensor in whole.items():
        if name in gathered.entries:
            read = gathered.read(name)
            same = read.dtype == tensor.dtype and read.shape == tensor.shape
            if not same or not torch.equal(read.view(torch.uint8), tensor.view(torch.uint8)):
                found.append(f"{name} differs")
    tables = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in (folder / "saved", folder / "whole.safetensors"):
            table = probe_weights(path, roles=("lower", "gate", "upper"))
            tables.append(table[table["metric"] != "omitted"].reset_index(drop=True))
    if tables[0].empty or not tables[0].equals(tables[1]):
        found.append("the table of probe_weights differs")
    return found


def main() -> int:
    """Write and compare; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--keep", type=Path, help="a folder for what was written")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for kind in options.kinds or KINDS:
            folder = (options.keep or Path(temporary)) / kind
            shutil.rmtree(folder, ignore_errors=True)
            begun = time.monotonic()
            command = [python_of(KINDS[kind]), str(TESTS / "format_writers.py"), kind, str(folder)]
            written = subprocess.run(command, capture_output=True, text=True, check=False)
            found = differences(folder) if written.returncode == 0 else [written.stderr[-2000:]]
            failed += bool(found)
            said = "; ".join(found) or "the same, bit for bit"
            print(f"{kind}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
