"""The commands: what each is for, and where its words are read and its work is done."""

from __future__ import annotations

import importlib


class Command:
    """One command; its modules are found when it is called, so that help is fast (and no dataclass, whose
    import takes longer than all else that help needs).

    Args:
        summary: what it is for, in a line.
        words: the light module whose ``read`` understands the words, or shows help and returns None.
        work: the module whose ``do`` does what was read, and returns the exit status.
    """

    __slots__ = ("summary", "words", "work")

    def __init__(self, summary: str, words: str, work: str) -> None:
        self.summary, self.words, self.work = summary, words, work

    def __call__(self, name: str, words: list[str]) -> int:
        """Read the words and do what they say."""
        asked = importlib.import_module(f"joma.cli.words.{self.words}").read(name, self.summary, words)
        if asked is None:
            return 0
        status: int = importlib.import_module(f"joma.cli.{self.work}").do(asked)
        return status


COMMANDS = {
    "demo": Command(
        "the tour, in minutes: theory checked, a few experiments run, a report to look at", "options", "demo"
    ),
    "check": Command(
        "every theorem, lemma and erratum of the papers, verified numerically", "options", "checking"
    ),
    "list": Command(
        "the experiments, with the figure or table they reproduce and what they cost", "options", "listing"
    ),
    "run": Command(
        "one experiment: tables, figure, and the paper's claims against what was measured",
        "experiments",
        "jobs",
    ),
    "sweep": Command(
        "a grid of runs: parallel, resumable, on one machine or a cluster", "sweeps", "sweeping"
    ),
    "probe": Command("attention entropy, stable ranks, salience ... of a real model", "instruments", "jobs"),
    "track": Command(
        "the same along training checkpoints, with the dip and the bounce found and dated",
        "instruments",
        "tracking",
    ),
    "neurons": Command(
        "pattern superposition: one neuron that answers to unrelated contexts", "instruments", "jobs"
    ),
    "sparsity": Command(
        "what a real model's heads and neurons could leave out, token by token, at what loss",
        "instruments",
        "jobs",
    ),
    "monitor": Command("where a training run stands: its alarms and messages", "options", "monitoring"),
    "branch": Command(
        "one of joma's own decoders, continued from one state in several ways, against its twin",
        "branches",
        "jobs",
    ),
    "report": Command("results as one self-contained HTML page", "options", "reports"),
    "digest": Command(
        "what stands out in a run, a model or a series, or differs between two, in ten lines",
        "options",
        "digesting",
    ),
    "completion": Command("completion of commands and options in bash, zsh, fish", "options", "completing"),
}
