"""Stable ranks of all MLP matrices of SmolLM2-135M, and reading them, against what people do today.

Ours at 1e-6, ours certified at 1e-4, ``torch.linalg.svdvals`` in float32 and, where it is installed,
WeightWatcher, matrix by matrix in turn; reading the matrices and the whole probe of the weights against
``from_pretrained``, each in a process of its own with its peak memory, and the peak of probing the same
tensors in 100 files. One thread.

    python examples/prepare_smollm2.py smollm2
    python benchmarks/bench_stable_rank.py smollm2

The environment variable JOMA_SMOLLM2 stands for the folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from joma.checkpoints.checkpoint import Checkpoint, open_checkpoint
from joma.checkpoints.families.matrices import MLP_ROLES, find_matrices
from joma.measures.ranks.stable_rank import stable_rank, stable_rank_estimate

TARGET_SVDVALS, TARGET_WEIGHTWATCHER, TARGET_CERTIFIED, TARGET_LOADING = 12.0, 20.0, 2.0, 50.0
ROUNDS = 3
SHARDS = 100
READ = """
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.families.matrices import MLP_ROLES, find_matrices
from joma.checkpoints.formats.shard import Room
import joma.checkpoints.formats.readers  # imported when a file is opened, and imports are not counted
begin = time.perf_counter()
room = Room()
checkpoint = open_checkpoint(sys.argv[1])
shapes = {name: entry.shape for name, entry in checkpoint.entries.items()}
for name in {m.tensor for m in find_matrices(shapes, checkpoint.config) if m.role in MLP_ROLES}:
    checkpoint.read(name, room)
"""
IMPORT = """
import pandas, joma.checkpoints.ranks
begin = time.perf_counter()
"""
GROWTH = """
import pandas
from joma.checkpoints.ranks import probe_weights
probe_weights(sys.argv[1], layers=[0])
open("/proc/self/clear_refs", "w").write("5")
before = int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
begin = time.perf_counter()
probe_weights(sys.argv[1])
"""
PROBE = """
import pandas
from joma.checkpoints.ranks import probe_weights
begin = time.perf_counter()
probe_weights(sys.argv[1])
"""
LOAD = """
from transformers import AutoModelForCausalLM
begin = time.perf_counter()
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="float32")
"""
ALONE = """
import sys, time, torch
torch.set_num_threads(1)
{body}
seconds = time.perf_counter() - begin
# Not ru_maxrss, which a child inherits from its parent.
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0])
print(seconds, (peak - globals().get("before", 0)) / 1024)
"""


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def lower_mlps(checkpoint: Checkpoint) -> list[torch.Tensor]:
    shapes = {name: entry.shape for name, entry in checkpoint.entries.items()}
    found = [m for m in find_matrices(shapes, checkpoint.config) if m.role in MLP_ROLES]
    return [m.take(checkpoint.read(m.tensor)) for m in found]


def weightwatcher() -> Callable[[torch.Tensor], object] | None:
    """``analyze`` of a model of one linear layer, which holds the matrix."""
    if importlib.util.find_spec("weightwatcher") is None:
        return None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import weightwatcher as ww
    logging.disable(logging.CRITICAL)

    def analyze(weight: torch.Tensor) -> object:
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = torch.nn.Parameter(weight)
        return ww.WeightWatcher(model=torch.nn.Sequential(layer)).analyze()

    return analyze


def compare_ranks(weights: list[torch.Tensor]) -> None:
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "joma, 1e-6": stable_rank,
        "joma, certified at 1e-4": lambda weight: stable_rank(weight, rtol=1e-4, certify=True),
        "torch.linalg.svdvals, float32": torch.linalg.svdvals,
    }
    theirs = weightwatcher()
    if theirs is not None:
        calls["WeightWatcher analyze"] = theirs
    for call in calls.values():
        call(weights[0])
    errors, outside = [], 0
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        spent = dict.fromkeys(calls, 0.0)
        for weight in weights:
            for name, call in calls.items():
                if name.startswith("WeightWatcher") and number:
                    continue
                spent[name] += timed(lambda call=call, weight=weight: call(weight))
        for name, seconds in spent.items():
            if seconds:
                times[name].append(seconds)
    for weight in weights:
        values = torch.linalg.svdvals(weight.double())
        truth = float((values / values[0]).square().sum())
        errors.append(abs(stable_rank(weight) / truth - 1))
        proven = stable_rank_estimate(weight, rtol=1e-4, certify=True)
        inside = proven.value - proven.error_bound <= truth <= proven.value * (1 + 1e-12)
        outside += not (proven.certified and inside)
    print(
        f"{len(weights)} matrices, the first {tuple(weights[0].shape)}; seconds for all, the best of {ROUNDS}"
    )
    best = {name: min(found) for name, found in times.items()}
    ours, certified = best["joma, 1e-6"], best["joma, certified at 1e-4"]
    svdvals = best["torch.linalg.svdvals, float32"]
    for name, seconds in best.items():
        print(f"  {name:32s}{seconds:9.3f} s   {seconds / ours:6.1f}x ours")
    print(f"  worst relative error at 1e-6: {max(errors):.1e}; certified bounds that miss: {outside}")
    _verdict("svdvals over ours", svdvals / ours, TARGET_SVDVALS)
    _verdict("svdvals over ours, certified", svdvals / certified, TARGET_CERTIFIED)
    if theirs is None:
        print("  WeightWatcher is not installed: not compared")
    else:
        _verdict("WeightWatcher over ours", best["WeightWatcher analyze"] / ours, TARGET_WEIGHTWATCHER)


def _verdict(what: str, ratio: float, target: float) -> None:
    print(f"  {what}: {ratio:.1f}x (target {target:g}x, {'met' if ratio >= target else 'MISSED'})")


def alone(body: str, folder: Path) -> tuple[float, float]:
    """Seconds and peak memory in MiB, imports not timed."""
    code = ALONE.format(body=body)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), float(memory)


def compare_loading(folder: Path) -> None:
    bodies = {"imports alone": IMPORT, "reading the matrices": READ, "probing them": PROBE}
    if importlib.util.find_spec("transformers") is not None:
        bodies["from_pretrained"] = LOAD
    times: dict[str, list[float]] = {name: [] for name in bodies}
    peaks: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, body in bodies.items():
            seconds, peaks[name] = alone(body, folder)
            times[name].append(seconds)
    print("weights only, imports not counted (median seconds; peak memory of the process)")
    for name, found in times.items():
        print(f"  {name:24s}{statistics.median(found):9.3f} s {peaks[name]:8.0f} MiB")
    if "from_pretrained" in times:
        for name in ("reading the matrices", "probing them"):
            ratio = np.median(np.array(times["from_pretrained"]) / np.array(times[name]))
            _verdict(f"from_pretrained over {name}", float(ratio), TARGET_LOADING)


def into_shards(folder: Path, place: Path) -> tuple[int, float]:
    """The checkpoint's tensors in 100 files under ``place``; their number, MiB of the largest matrix."""
    from safetensors.torch import save_file

    checkpoint = open_checkpoint(folder)
    names, places = list(checkpoint.entries), {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        own = names[number::SHARDS]
        save_file({name: checkpoint.read(name) for name in own}, place / file)
        places |= dict.fromkeys(own, file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    shutil.copy(folder / "config.json", place)
    largest = max(weight.nbytes for weight in lower_mlps(checkpoint)[:4])
    return len(set(places.values())), largest / 2**20


def memory_of_shards(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        files, largest = into_shards(folder, Path(place))
        seconds, growth = alone(GROWTH, Path(place))
    print(
        f"  probing the same matrices in {files} files: {seconds:.3f} s, memory grows by {growth:.1f} MiB at "
        f"its peak ({growth / largest:.1f} times the largest matrix of {largest:.1f} MiB)"
    )


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("JOMA_SMOLLM2", "smollm2"))
    if folder.exists():
        compare_ranks(lower_mlps(open_checkpoint(folder)))
        compare_loading(folder)
        memory_of_shards(folder)
        return
    print(f"{folder} is not there (examples/prepare_smollm2.py makes it): Gaussian matrices instead")
    generator = torch.Generator().manual_seed(0)
    compare_ranks([torch.randn(1536, 576, generator=generator) for _ in range(4)])


if __name__ == "__main__":
    main()
