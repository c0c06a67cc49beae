"""SIGKILL at random moments of the commands, then the same command: its tables are those of a quiet run.

``python tests/kills.py [KILLS] [SEED]`` goes through run, probe, probe --weights, neurons, track, branch and
report in turn. Each is killed up to five times in one directory and then left to finish; the tables, the
claims and the list of files must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: F401

# Imported before the first fork, so that a kill falls into the work and not into the imports.
import joma.cli.jobs
import joma.cli.reports
import joma.cli.tracking
import joma.experiments.joma_paper.fig6.run
import joma.instruments.branch.run
import joma.instruments.neurons.run
import joma.instruments.probe.run
import joma.instruments.track.run  # noqa: F401
from joma.cli.main import main
from probe_models import tiny_model

FIG6 = (
    "--corpus my.txt --layers 1 --steps 40 --measure-every 5 --width 8 --hidden 8 --windows 4 --seeds 2 "
    "--vocabulary-size 50"
)
BRANCH = (
    "--corpus my.txt --tokenizer words --vocabulary-size 50 --at 4 --steps 6 --seeds 2 --width 8 --batch 2 "
    "--length 8 --interventions 'frozen: freeze queries-keys, held: hold-entropy'"
)
COMMANDS = {
    "run": f"run fig6 {FIG6} --out OUT",
    "run-fig9": "run fig9 --out OUT",
    "probe": "probe model --text my.txt --tokens 256 --out OUT",
    "weights": "probe model --weights --out OUT",
    "neurons": "neurons model --text my.txt --tokens 2048 --length 32 --out OUT",
    "track": "track series --out OUT",
    "branch": f"branch {BRANCH} --out OUT",
    "report": "report run --out OUT/page.html",
}
"""Words of each command; OUT is its directory."""
SAME_DIRECTORY = 5
"""Kills before a directory's run is left to finish."""


def write_inputs(place: Path) -> None:
    """A text, a model with its tokenizer, and a series of three checkpoints."""
    words = np.random.default_rng(0).integers(1, 60, 21_000)
    (place / "my.txt").write_text(" ".join(f"w{number}" for number in words))
    model = tiny_model("llama")
    torch.manual_seed(0)
    model.save_pretrained(place / "model")
    names = {"<unk>": 0, **{f"w{number}": number for number in range(1, 64)}}
    tokenizer = Tokenizer(WordLevel(names, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(place / "model")
    for step in (100, 200, 300):
        for name, weight in model.named_parameters():
            if "proj" in name:
                weight.data += 0.05 * torch.randn_like(weight)
        model.save_pretrained(place / "series" / f"checkpoint-{step}")


def start(words: str, out: Path, place: Path) -> int:
    """The command in a process and a process group of its own; the number of the process."""
    child = os.fork()
    if child:
        return child
    os.setpgrp()
    os.chdir(place)
    with open(place / "stderr", "w") as said, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(said.fileno(), 2)
        status = 70
        with contextlib.suppress(BaseException):
            status = main(shlex.split(words.replace("OUT", str(out))))
        os._exit(status)


def finish(words: str, out: Path, place: Path) -> float:
    """Run the command to its end; the seconds it took."""
    began = time.monotonic()
    _, status = os.waitpid(start(words, out, place), 0)
    assert status == 0, f"{words}: {(place / 'stderr').read_text()}"
    return time.monotonic() - began


def files_of(out: Path) -> dict[str, bytes]:
    """Everything in a directory, hidden or not, by its relative path."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def differences(killed: Path, quiet: Path) -> list[str]:
    """What a disturbed run's directory has otherwise than that of a quiet one."""
    had, wanted = files_of(killed), files_of(quiet)
    said = [f"left behind: {name}" for name in had.keys() - wanted.keys()]
    said += [f"lacking: {name}" for name in wanted.keys() - had.keys()]
    for name in had.keys() & wanted.keys():
        if name.endswith(".parquet"):
            try:
                pd.testing.assert_frame_equal(
                    pd.read_parquet(killed / name), pd.read_parquet(quiet / name), check_exact=True
                )
            except AssertionError as error:
                said.append(f"{name}: {error}")
        elif name.endswith("claims.json") and had[name] != wanted[name]:
            said.append(f"{name} differs")
    return said


def kill(kills: int, seed: int) -> int:
    """The number of directories that were not as after a quiet run; each is printed."""
    chance = random.Random(seed)
    wrong = struck = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_inputs(place)
        finish("run fig9 --out run", place / "unused", place)
        seconds: dict[str, float] = {}
        for command, words in COMMANDS.items():
            (place / "quiet" / command).mkdir(parents=True)
            seconds[command] = finish(words, place / "quiet" / command, place)
        turn = 0
        while struck < kills:
            command = list(COMMANDS)[turn % len(COMMANDS)]
            out = place / f"{command}-{turn}"
            out.mkdir()
            for _ in range(SAME_DIRECTORY):
                running = start(COMMANDS[command], out, place)
                time.sleep(chance.uniform(0.0, 0.8) * seconds[command])
                ended, _ = os.waitpid(running, os.WNOHANG)
                if not ended:
                    # Only the command itself is killed: its workers must notice, and write nothing.
                    os.kill(running, signal.SIGKILL)
                    os.waitpid(running, 0)
                    struck += 1
            finish(COMMANDS[command], out, place)
            if said := differences(out, place / "quiet" / command):
                wrong += 1
                print(f"{command}, directory {turn}:", *said, sep="\n  ", flush=True)
            turn += 1
    print(f"{struck} kills before the end, {turn} directories: {wrong} were not as undisturbed")
    return wrong


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(bool(kill(*[*numbers, *(200, 0)[len(numbers) :]])))
