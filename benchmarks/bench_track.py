"""``joma track`` on weights against the same measurements without a series, plus one reading of the bytes.

Processor time of 50 checkpoints (made here) in one process, one thread; the audit that ``joma track`` does
first is timed apart; and how many bytes travel from a hub on 127.0.0.1 for a sharded checkpoint, over the
bytes of the wanted tensors.

    python benchmarks/bench_track.py [CHECKPOINTS]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hub_server import serve
from joma.checkpoints.checkpoint import open_checkpoint
from joma.checkpoints.families.matrices import find_matrices
from joma.checkpoints.series.audit.audit import audit_series
from joma.checkpoints.series.sources.find import find_series
from joma.core.progress import Progress
from joma.core.threads import limit_threads
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.changes import matrix_spectrum, product_spectrum
from joma.instruments.track.measuring.measured import MeasuredSeries
from joma.instruments.track.measuring.parts import Parts
from joma.instruments.track.measuring.weights import ROLES, wanted_tensors
from joma.measures.ranks.stable_rank import stable_rank_estimate

TARGET_TIME, TARGET_BYTES = 1.1, 1.05
LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 2_000
MANY_LAYERS, MANY_WIDTH, MANY_WORDS = 30, 576, 26_200  # 538 MB


def write(folder: Path, step: int, layers: int, width: int, words: int, shards: int = 1) -> None:
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(step)
    shapes = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
    shapes |= {"mlp.up_proj": (4 * width, width), "mlp.down_proj": (width, 4 * width)}
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=random)
        for layer in range(layers)
        for name, shape in shapes.items()
    }
    tensors["model.embed_tokens.weight"] = torch.randn(words, width, generator=random)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": HEADS}))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    files = [f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
    where = {name: files[number * shards // len(tensors)] for number, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def processor(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def in_memory(folder: Path, count: int) -> float:
    """The same numbers of tensors that are held in memory: no files, no series, no tables."""
    held = []
    for step in range(count):
        checkpoint = open_checkpoint(folder / f"step{step}")
        shapes = {name: entry.shape for name, entry in checkpoint.entries.items()}
        matrices = [one for one in find_matrices(shapes, checkpoint.config) if one.role in ROLES]
        held.append({(one.layer, one.role): one.take(checkpoint.read(one.tensor)) for one in matrices})

    def measure() -> None:
        for number, now in enumerate(held):
            earlier = [held[number - 1], held[0]] if number else []
            for key, weight in now.items():
                stable_rank_estimate(weight)
                for other in earlier:
                    matrix_spectrum(weight - other[key])
            for layer in range(LAYERS):
                q, k = (now[layer, role].chunk(HEADS) for role in ("query", "key"))
                for head in range(HEADS):
                    product_spectrum(q[head], k[head])
                    for other in earlier:
                        other_q, other_k = (
                            other[layer, role].chunk(HEADS)[head] for role in ("query", "key")
                        )
                        product_spectrum(torch.cat([q[head], -other_q]), torch.cat([k[head], other_k]))

    return processor(measure)


def reading(folder: Path, count: int) -> float:
    def read() -> None:
        for step in range(count):
            checkpoint = open_checkpoint(folder / f"step{step}")
            for name in checkpoint.entries:
                checkpoint.read(name)

    return processor(read)


def along(folder: Path) -> float:
    """Measuring the members and nothing after it: bounces are judged on curves, not on checkpoints."""
    job = TrackSettings.of(model=str(folder), audit=False)
    return processor(lambda: MeasuredSeries(job, "A", job.series, Parts(Progress(quiet=True))).tables())


def audited(folder: Path) -> float:
    """The audit, as ``joma track`` does it before it measures."""
    found = find_series([str(folder)])
    return processor(lambda: audit_series(found, found.members))


def transferred(folder: Path) -> float:
    write(folder / "lab" / "large" / "step1", 1, MANY_LAYERS, MANY_WIDTH, MANY_WORDS, shards=4)
    with serve(folder) as hub, tempfile.TemporaryDirectory() as here:
        os.environ["HF_ENDPOINT"] = hub.endpoint
        series = find_series(["lab/large"])
        (member,) = series.members
        wanted = wanted_tensors(None)
        series.bring(member, wanted, Path(here))
        sent = sum(size for (_, file), size in hub.sent.items() if file.endswith(".safetensors"))
        return sent / series.to_fetch(member, wanted)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as name, limit_threads(1):
        folder = Path(name)
        for step in range(count):
            write(folder / "series" / f"step{step}", step, LAYERS, WIDTH, VOCABULARY)
        reading(folder / "series", 2)
        once, ours, apart, memory = (
            reading(folder / "series", count),
            along(folder / "series"),
            audited(folder / "series"),
            in_memory(folder / "series", count),
        )
        ratio = ours / (memory + once)
        print(
            f"{count} checkpoints: joma track {ours:.2f} s of processor time, without it {memory:.2f} s, "
            f"one reading {once:.2f} s: ratio {ratio:.3f} (at most {TARGET_TIME})"
        )
        print(f"the audit before it, timed apart: {apart:.2f} s, {apart / ours:.3f} of that")
        share = transferred(folder / "hub")
        print(
            f"sharded checkpoint on the hub: {share:.4f} of the wanted bytes travel (at most {TARGET_BYTES})"
        )
    return int(ratio > TARGET_TIME or share > TARGET_BYTES)


if __name__ == "__main__":
    sys.exit(main())
