"""What it takes to begin: the command's help and the import, beside a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")


def processor_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@pytest.mark.parametrize(
    ("words", "times"),
    [(["-c", "import joma"], 1.5), (["-m", "joma", "--help"], 3.0)],
    ids=["import joma", "joma --help"],
)
def test_beginning_takes_few_times_what_python_takes(words: list[str], times: float) -> None:
    """The least of many: another program on the machine makes each of them longer, and none shorter."""
    taken = [(processor_seconds(words), processor_seconds(["-c", "pass"])) for _ in range(15)]
    own, nothing = (min(each) for each in zip(*taken, strict=True))
    assert own <= times * nothing
