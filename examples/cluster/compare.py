"""One small sweep on plain processes, on a dask cluster and on a ray cluster: the tables are the same.

usage: python compare.py [FOLDER [dask|ray ...]]
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd

import joma

GRID = {"learning_rate": [1e-3, 1e-2], "seed": [1, 2, 3]}
SMALL = {
    "corpus": "python-reference",
    "vocabulary_size": 200,
    "steps": 400,
    "width": 32,
    "hidden": 32,
    "measure_every": 20,
    "windows": 10,
}
PROGRAMS = Path(sys.executable).parent


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the background, ended with all that it has started."""
    quiet = subprocess.DEVNULL
    # gRPC's fork handlers can end the server that ray forks for a client.
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    program = subprocess.Popen(
        [str(PROGRAMS / words[0]), *words[1:]],
        stdout=quiet,
        stderr=quiet,
        env=environment,
        start_new_session=True,
    )
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def run(folder: Path, executor: str) -> pd.DataFrame:
    """The sweep on this executor: all curves."""
    begun = time.monotonic()
    found = joma.sweep("fig8", GRID, out=folder, executor=executor, quiet=True, **SMALL)
    print(f"{executor}: {found} ({time.monotonic() - begun:.0f} s)")
    return found.table()


def on_dask(folder: Path) -> pd.DataFrame:
    """A scheduler and two workers, of which one is killed as soon as two cells are done."""
    address = f"127.0.0.1:{free_port()}"
    worker = ("worker", f"tcp://{address}", "--nthreads", "1", "--no-dashboard")
    with (
        started(
            "dask", "scheduler", "--host", "127.0.0.1", "--port", address.split(":")[1], "--no-dashboard"
        ),
        started("dask", *worker) as first,
        started("dask", *worker),
    ):

        def kill() -> None:
            while len(list(folder.glob("cells/[0-9a-f]*"))) < 2:
                time.sleep(0.02)
            os.killpg(first.pid, signal.SIGKILL)
            print("killed a dask worker")

        threading.Thread(target=kill, daemon=True).start()
        return run(folder, f"dask://{address}")


def on_ray(folder: Path) -> pd.DataFrame:
    """A head with one worker."""
    port, client = free_port(), free_port()
    words = [
        "start",
        "--head",
        "--block",
        "--num-cpus",
        "1",
        "--include-dashboard",
        "false",
        "--port",
        str(port),
    ]
    words += [
        "--node-ip-address",
        "127.0.0.1",
        "--ray-client-server-port",
        str(client),
        "--disable-usage-stats",
    ]
    with started("ray", *words):
        for _ in range(120):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", client)) == 0:
                    break
            time.sleep(0.5)
        return run(folder, f"ray://127.0.0.1:{client}")


def main() -> None:
    """Compare what is asked for (both) with plain processes."""
    places = {"dask": on_dask, "ray": on_ray}
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    expected = run(folder / "processes", "processes")
    for name in sys.argv[2:] or places:
        pd.testing.assert_frame_equal(places[name](folder / name), expected, check_exact=True)
        print(f"{name}: the same {len(expected):,} rows, bit for bit")


if __name__ == "__main__":
    main()
