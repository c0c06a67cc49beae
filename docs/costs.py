"""Measure what commands cost, and keep it in src/joma/experiments/costs.json, which ``joma list`` and every help show.

``python docs/costs.py NAME ...`` runs these experiments with the preset ``quick``, and, of the names
``probe``, ``neurons``, ``track`` and ``weights``, the command on a model of 135 million random weights. What
counts is the processor time of the whole command and of its processes, from its start, so that what else the
machine does matters little. How fast the machine is stands beside: processor seconds of a loop of 20 million
additions in plain Python.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from joma.experiments import catalog
from joma.experiments.costs import TOKENS

FILE = Path(__file__).parents[1] / "src" / "joma" / "experiments" / "costs.json"
LENGTH = 512


def loop() -> float:
    """Processor seconds of 20 million additions in plain Python; the quicker of two."""
    taken = []
    for _ in range(2):
        begin, total = time.process_time(), 0
        for number in range(20_000_000):
            total += number
        taken.append(time.process_time() - begin)
    return min(taken)


def processor(words: list[str]) -> float:
    """Processor seconds of a joma command, its processes included."""

    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    begin = children()
    subprocess.run([sys.executable, "-m", "joma", *words, "-q"], check=True, stdout=subprocess.DEVNULL)
    return children() - begin


def prepared(folder: Path) -> dict[str, list[str]]:
    """A model of SmolLM2-135M's size and a text of random tokens; name -> the words that measure it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from smollm2 import random_model

    model, text = folder / "checkpoint-1", folder / "ids.npy"
    random_model(positions=LENGTH).save_pretrained(model)
    np.save(text, np.random.default_rng(0).integers(0, 49152, TOKENS))
    given = ["--text", str(text), "--device", "cpu", "--length"]
    return {
        "probe": ["probe", str(model), *given, str(LENGTH)],
        "weights": ["probe", str(model), "--weights"],
        "track": ["track", str(model), *given, str(LENGTH)],
        "neurons": ["neurons", str(model), *given, "64"],
    }


def main(names: list[str]) -> None:
    """Measure and keep, one after the other."""
    known = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    instruments = {"probe", "weights", "track", "neurons"} & set(names)
    with tempfile.TemporaryDirectory() as temporary:
        commands = prepared(Path(temporary)) if instruments else {}
        for name in names:
            kind = "instruments" if name in commands else "experiments"
            words = commands.get(name) or ["run", catalog.find(name).name()]
            seconds = processor([*words, "--out", f"{temporary}/{name}"])
            known.setdefault(kind, {})[name] = round(seconds, 1)
            known.setdefault("machine", {})["loop"] = round(loop(), 2)
            print(f"{name}: {seconds:.1f} s", flush=True)
            ordered = {kind: dict(sorted(known[kind].items())) for kind in sorted(known)}
            FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
