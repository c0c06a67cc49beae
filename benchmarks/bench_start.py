"""How long joma takes to begin: ``import joma`` and ``joma --help``, beside a Python that does nothing.

Seconds of the processor, the least of twenty of each, in turn, so that what else runs counts little. At most
1.5 and 3 times are allowed.
"""

from __future__ import annotations

import resource
import subprocess
import sys

NOTHING = ["-c", "pass"]
LIMITS = {"import joma": (["-c", "import joma"], 1.5), "joma --help": (["-m", "joma", "--help"], 3.0)}


def seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    calls = {"python -c pass": NOTHING, **{name: words for name, (words, _) in LIMITS.items()}}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(20):
        for name, words in calls.items():
            taken[name].append(seconds(words))
    nothing = min(taken["python -c pass"])
    print(f"python -c pass   {1e3 * nothing:5.1f} ms")
    late = False
    for name, (_, limit) in LIMITS.items():
        ratio = min(taken[name]) / nothing
        late |= ratio > limit
        print(f"{name:<16} {1e3 * min(taken[name]):5.1f} ms, {ratio:.2f} times (at most {limit})")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
