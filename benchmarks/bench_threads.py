"""Whether threads are chosen by the work: processor time beside one thread, alone and beside a busy program.

The ranks of 210 random matrices of SmolLM2's shapes (``joma.probe_weights(..., attention=True)``) with the
default number of threads, alone and beside a program that multiplies 300 x 300 matrices on two threads; and
short experiments with the one thread that a job takes, beside the same on all cores. All quick experiments
are asked how many threads they take; one that took more would be timed against one thread. About three
minutes on two idle cores.

    python benchmarks/bench_threads.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

import joma
from joma.core.progress import Progress
from joma.core.threads import limit_threads, usable_cores
from joma.experiments.base import Experiment
from joma.experiments.catalog import find, names

TARGET = 1.15
ROUNDS = 3
GAIN = 1.3
"""More processor time is worth this gain of the wall clock."""
EXPERIMENTS = ("snap_fig4", "fig4")
_BUSY = "import torch; torch.set_num_threads(2); a = torch.randn(300, 300)\nwhile True: a @ a"


class Smol(nn.Module):
    """Matrices of the names and shapes of SmolLM2-135M's 30 layers, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(self._layer() for _ in range(30))

    def _layer(self) -> nn.Module:
        layer, layer.self_attn, layer.mlp = nn.Module(), nn.Module(), nn.Module()
        for name, rows in (("q_proj", 576), ("k_proj", 192), ("v_proj", 192), ("o_proj", 576)):
            setattr(layer.self_attn, name, nn.Linear(576, rows, bias=False))
        for name, rows, columns in (
            ("gate_proj", 1536, 576),
            ("up_proj", 1536, 576),
            ("down_proj", 576, 1536),
        ):
            setattr(layer.mlp, name, nn.Linear(columns, rows, bias=False))
        return layer


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Processor time and wall clock."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """One program beside this one that multiplies matrices on two threads."""
    other = subprocess.Popen([sys.executable, "-c", _BUSY], env={**os.environ, "OMP_NUM_THREADS": "2"})
    try:
        time.sleep(5)
        yield
    finally:
        other.kill()
        other.wait()


def compare(
    name: str, default: Callable[[], object], other: Callable[[], object], other_name: str, *, target: float
) -> None:
    """Processor time and wall clock of two ways in turn, alone and beside the busy program."""
    default()
    other()
    for where, context in (("alone", contextlib.nullcontext()), ("beside a busy program", busy())):
        with context:
            times = [(seconds(default), seconds(other)) for _ in range(ROUNDS)]
        (own, wall), (others, other_wall) = (
            [statistics.median(pair[way][which] for pair in times) for which in (0, 1)] for way in (0, 1)
        )
        met = "met" if own / others <= target or other_wall / wall >= GAIN else "MISSED"
        print(
            f"{name}, {where}: {own:.2f} s of processor time ({wall:.2f} s), {other_name} {others:.2f} s "
            f"({other_wall:.2f} s): {own / others:.2f} (target {target:g}, {met})",
            flush=True,
        )


def run_of(job: Experiment, threads: int | None = None) -> Callable[[], object]:
    """A job's run on the threads that it takes, or on so many."""
    other = dataclasses.replace(job)
    if threads is not None:
        object.__setattr__(other, "threads", threads)
    return lambda: other.run(Progress(quiet=True))


def main() -> None:
    torch.set_num_threads(usable_cores())
    model = Smol()

    def ranks() -> object:
        return joma.probe_weights(model, roles=("lower", "gate", "upper"), attention=True)

    def on_one() -> object:
        with limit_threads(1):
            return ranks()

    compare("210 matrices", ranks, on_one, "on one thread", target=TARGET)
    jobs = {name: find(name).from_preset("quick") for name in names()}
    more = [name for name, job in jobs.items() if job.threads != 1]
    print(f"{len(jobs) - len(more)} of {len(jobs)} quick experiments take one thread, in a process per part")
    for name in more:
        compare(name, run_of(jobs[name]), run_of(jobs[name], 1), "on one thread", target=TARGET)
    for name in EXPERIMENTS:
        cores = usable_cores()
        compare(name, run_of(jobs[name]), run_of(jobs[name], cores), f"on {cores}", target=TARGET)


if __name__ == "__main__":
    main()
