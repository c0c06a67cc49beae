"""Random command lines and hostile files against the command line: no traceback, no hang, no defect.

And series with one hostile member, and hubs that lie about one (``attacks.py``): no wrong number, and no more
than 200 MB of memory above the honest series.

``python tests/fuzz.py [COMMAND_LINES] [FILES] [SEED] [ATTACKS]`` prints what went wrong, and ends with status
1 if anything did; so many ATTACKS are drawn of either kind. Every call runs in this process, with an alarm at
20 seconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import attacks

# Imported before the first alarm, which would stop their import half-way.
import joma.cli.jobs
import joma.cli.reports  # noqa: F401
from joma.cli.commands import COMMANDS
from joma.cli.main import main
from joma.experiments import catalog

LIMIT = 20
"""Seconds that a call may take."""
ROOM = 200
"""MB that an attack may take above the honest series."""
ODD = [
    *("", "-", "--", "=", "²", "9" * 5000, str(2**70), "-1", "nan", "inf", "1e999", "none", "null", "true"),
    *("[1", "1,1", ",", "a" * 3000, "~nosuchuser/x", "/dev/null", "/proc/self/mem", "..", ".", "\udcff"),
    *("'", '"', "{}", "%s", "{0}", "\x1b[31m", "meta", "cuda:99", "int4", "a\tb", "🙂"),
]
YAML = [
    *("", "[", "- 1", "a: *a", "a: &a [*a]", "points: {}", "points: [[1]]", "? [1]\n: 2", "points: 1e400"),
    *(
        "overwrite: true",
        "out: /tmp/x",
        "seed: " + "9" * 5000,
        "[" * 3000,
        "\x00",
        "points: 2001-99-99",
        "1: 2",
    ),
    *("preset: 3", "preset: [quick]", "points: !!python/object:os.system x", "<<: {points: 3}", "degrees: 3"),
]


class Hang(BaseException):
    """A call took longer than it may."""


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def call(words: list[str]) -> str:
    """What was wrong with how the command line took these words; empty if nothing."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO(), errors="backslashreplace")
    try:
        with alarm(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
    except Hang:
        return f"longer than {LIMIT} s"
    except BaseException:
        return traceback.format_exc(limit=-3)
    err.flush()
    said = err.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]
    if "defect of joma" in said or "Traceback" in said:
        return said
    if status == 2 and said.count("\n") != 1:
        return f"{said.count(chr(10))} lines: {said[:500]}"
    return "" if status in (0, 1, 2) else f"status {status}"


def command_line(chance: random.Random) -> list[str]:
    """Words that might be a command, most of them wrong; none that would run for long."""
    command = chance.choice([*COMMANDS, *COMMANDS, "rnu", ""])
    words = [command]
    if command in ("demo", "check"):
        return [*words, chance.choice([*ODD[4:12], "--json=3", "--ouut", "theorem22"])]
    if command == "run":
        words.append(chance.choice([*catalog.names(), *ODD]))
        # An experiment is only reached with a setting that it refuses.
        words += ["--seed", chance.choice(["x", "-1", str(2**70), "²"])]
    options = [
        "--text",
        "--tokens",
        "--layers",
        "--out",
        "--points",
        "--degrees",
        "--config",
        "--quiet",
        "--json",
    ]
    options += [
        "--weights",
        "--csv",
        "--rows",
        "--device",
        "--dtype",
        "--no-quiet",
        "--preset",
        "--overwrite=2",
        "-q",
    ]
    for _ in range(chance.randrange(5)):
        words.append(chance.choice(options))
        if chance.random() < 0.7:
            words.append(chance.choice(ODD))
    return words


def hostile_file(chance: random.Random, folder: Path, number: int) -> list[str]:
    """Write a hostile file and return the words of a command that reads it."""
    kinds = ["yaml", "text", "weights", "series", "monitor", "settings", "claims", "table"]
    kind = chance.choice(kinds)
    path = folder / f"{number}"
    noise = chance.choice(
        [chance.randbytes(chance.randrange(300)), b"", b"{}", b"[" * 3000, b'{"a": ' * 2000]
    )
    if kind == "yaml":
        path.write_text(chance.choice(YAML))
        return ["run", "fig9", "--config", str(path), "--seed", "x"][: chance.choice([4, 6])]
    if kind == "text":
        path = path.with_suffix(chance.choice([".txt", ".npy", ".parquet", ".jsonl", ".json", ".csv"]))
        os.mkfifo(path) if chance.random() < 0.1 else path.write_bytes(noise)
        return ["probe", str(folder / "nomodel"), "--text", str(path)]
    path.mkdir()
    if kind == "monitor":
        for name in ("monitor.json", "messages.json", "state.json"):
            (path / name).write_bytes(
                chance.choice([noise, b"{}", b"[]", b'{"every": 1e999}', b'[{"a": 1}]'])
            )
        return ["monitor", str(path)]
    if kind in ("weights", "series"):
        inside = path / "checkpoint-1" if kind == "series" else path
        inside.mkdir(exist_ok=True)
        names = ["model.safetensors", "model.safetensors.index.json", "a.gguf", "config.json"]
        target = inside / chance.choice([*names, "adapter_config.json", "pytorch_model.bin"])
        way = chance.random()
        if way < 0.1:
            os.mkfifo(target)
        elif way < 0.2:
            target.symlink_to(target)
        elif way < 0.3:
            target.mkdir()
        else:
            header = chance.choice(
                [b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}', noise]
            )
            size = chance.choice([len(header), 2**62, 0])
            target.write_bytes(chance.choice([size.to_bytes(8, "little") + header, b"GGUF" + noise, noise]))
        if target.name in ("config.json", "adapter_config.json"):
            (inside / "adapter_model.safetensors").write_bytes(noise)
        out = ["--out", str(folder / f"out-{number}")]
        return ["track", str(path), *out] if kind == "series" else ["probe", str(path), "--weights", *out]
    files = {"settings": "settings.yaml", "claims": "claims.json", "table": "t.parquet"}
    good = {
        "settings.yaml": b"experiment: x\nsettings: {}\ntables: [t]\n",
        "claims.json": b"[]",
        "t.parquet": b"PAR1",
    }
    for name, content in good.items():
        (path / name).write_bytes(content)
    broken = path / files[kind]
    broken.unlink()
    if chance.random() < 0.15:
        os.mkfifo(broken)
    else:
        broken.write_bytes(chance.choice([noise, chance.choice(YAML).encode()]))
    return ["report", str(path)]


def fuzz(lines: int, files: int, seed: int) -> int:
    """The number of calls that went wrong; each is printed."""
    chance = random.Random(seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for number in range(lines + files):
            words = command_line(chance) if number < lines else hostile_file(chance, Path(name), number)
            said = call(words)
            if said:
                wrong += 1
                print(ascii([word[:80] for word in words]), said, sep="\n", flush=True)
    print(f"{lines} command lines, {files} hostile files: {wrong} went wrong")
    return wrong


def peak() -> float:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 10 if sys.platform == "linux" else 1 << 20
    )


def attack(attacker: Callable[[int, Path], tuple[str, str]], number: int) -> str:
    """What went wrong with an attack, in words; empty if nothing."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = f"{attacker.__name__} {number}"
        try:
            with alarm():
                named, said = attacker(number, Path(place) / "series")
        except Hang:
            said = f"longer than {LIMIT} s"
        except Exception:
            said = traceback.format_exc(limit=-3)
    return said and f"{named}: {said}"


def attacked(number: int, seed: int) -> int:
    """How many of so many hostile members, and false answers of a hub, went wrong; each is printed."""
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        attacks.honest(Path(place), (1, 2, 3))
        attacks.complaint(place)
    good = peak()
    for attacker in (attacks.hostile_member, attacks.false_answer):
        for one in range(seed * number, (seed + 1) * number):
            said = attack(attacker, one)
            if said:
                wrong += 1
                print(ascii(said), flush=True)
    taken = peak() - good
    print(
        f"{number} hostile members, {number} false answers: {wrong} went wrong, {taken:.0f} MB above the good"
    )
    return wrong + (taken > ROOM)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    *before, drawn = [*numbers, *(1000, 300, 0, 200)[len(numbers) :]]
    # The attacks first: what a process has ever held is what its memory is judged by.
    sys.exit(bool(attacked(drawn, before[2]) + fuzz(*before)))
