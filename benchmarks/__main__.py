"""``make bench``: every benchmark of this folder, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    failed = []
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"== {path.stem}", flush=True)
        if subprocess.run([sys.executable, str(path)]).returncode:
            failed.append(path.stem)
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
