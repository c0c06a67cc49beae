"""Every command and every Python block of the docs, run as printed; README's in order: ``test_package.py``.

What a reader must replace (MODEL, FILE, ``text``, ``batch`` ...) is bound by one fixture; the name of a model
on the hub leads to a local one. Lines that take minutes stand behind the marker ``slow``; those that install
or build joma itself are what runs this test.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import joma
import toy
from command_line import called
from joma.cli.commands import COMMANDS
from joma.experiments.joma_paper.fig6 import Fig6
from joma.runs.directory import run_experiment
from joma.sweeps import SweepSettings
from readme_steps import steps

pytest.importorskip("transformers")
from probe_models import save_small_model

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "docs" / "experiments"
"""A page for each experiment with a line for each preset: their words are read, none is run here."""
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HUB_NAME = "HuggingFaceTB/SmolLM2-135M"
ELSEWHERE = ("make", "pip", "git", "python", "mkdocs")
"""What installs or builds; the Makefile runs it."""
README = [step.typed for step in steps((ROOT / "README.md").read_text("utf-8")) if step.kind == "sh"]
LONG = re.compile(r"^joma (demo|check$|run|sweep|neurons|track (?!.*dry-run))|--text")
HOURS = re.compile(r"--preset (paper|hours|cell|reduced)|FOLDER_OF_WIKITEXT|EleutherAI|--follow")
"""A paper's scale or half an hour of it, data that is not here, what ends when the reader does: the words are
read alone."""


def blocks(language: str, generated: bool = False) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        if page.is_relative_to(GENERATED) != generated:
            continue
        for kind, more, body in BLOCK.findall(page.read_text("utf-8")):
            if kind == language and "title=" not in more:  # files of an example, tested as such
                found.append((f"{page.name}-{len(found)}", body))
    return found


def commands(generated: bool = False) -> list[str]:
    lines = [line for _, body in blocks("sh", generated) for line in body.splitlines()]
    inline = [
        code
        for page in PAGES
        if page.is_relative_to(GENERATED) == generated
        for code in re.findall(r"`(joma [a-z]+ [^`\n]*)`", page.read_text("utf-8"))
        if not re.search(r"\.\.\.|COMMAND|NAME", code)
    ]
    plain = [line.partition(" #")[0].strip() for line in [*lines, *inline]]
    return list(dict.fromkeys(line for line in plain if line))


def joma_commands() -> list[str]:
    return [line for line in commands() if line.startswith("joma ")]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("hub") / "model", layers=2)


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many layers as the model has of which the pages name some."""
    return save_small_model(tmp_path_factory.mktemp("hub") / "deep", layers=30)


@pytest.fixture
def place(tmp_path: Path, model_folder: Path, deep_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which everything that a printed line names is found."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    text = " ".join(f"w{number}" for number in random.integers(1, 60, 21_000))
    for name in ("FILE", "my.txt"):
        (tmp_path / name).write_text(text)
    pd.DataFrame({"text": [text]}).to_parquet(tmp_path / "data.parquet")
    pd.DataFrame({"text": [text]}).to_parquet(tmp_path / "FILE.parquet")
    record(tmp_path / "CURVES.csv")
    for step in (100, 200):
        shutil.copytree(model_folder, tmp_path / "run" / f"checkpoint-{step}")
        (tmp_path / "weights").mkdir(exist_ok=True)
        torch.save(
            {"model.layers.0.mlp.up_proj.weight": torch.randn(8, 6)}, tmp_path / f"weights/step_{step}.pt"
        )
    for name in ("FOLDER_OR_MODEL", "SERIES"):
        (tmp_path / name).symlink_to(tmp_path / "run")
    for name in ("DIR", "live"):
        joma.Monitor(torch.nn.Linear(2, 2), folder=tmp_path / name).close()
    for name in (HUB_NAME, "MODEL", "FOLDER"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(model_folder)
    (tmp_path / "smollm2-folder").symlink_to(deep_folder)
    save_adapter(tmp_path / "ADAPTER")
    return tmp_path


def save_adapter(folder: Path) -> None:
    """As PEFT saves one; of rank 4, of which 2 directions are used."""
    folder.mkdir()
    stem = "base_model.model.model.layers.0.mlp.up_proj.lora"
    factors = {f"{stem}_A.weight": torch.randn(4, 8), f"{stem}_B.weight": torch.randn(8, 4)}
    factors[f"{stem}_B.weight"][:, 2:] = 0
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')


def record(path: Path) -> None:
    """Curves as the authors recorded theirs."""
    random = np.random.default_rng(1)
    at = dict.fromkeys(("layers", "lr", "seed", "minibatch"))
    rows = [
        {
            **dict(zip(at, (layers, rate, seed, 1000 * k), strict=True)),
            "validation_loss": 9.0 - 0.1 * k * rate**0.1,
            **{
                f"entropy_layer{n}": 2.0 + 0.02 * (k - 8) ** 2 * rate**0.1 + 0.01 * random.random()
                for n in range(layers)
            },
        }
        for layers in (1, 2)
        for rate in (1e-5, 1e-4, 1e-3, 1e-2)
        for seed in (1, 2, 3)
        for k in range(12)
    ]
    pd.DataFrame(rows).to_csv(path, index=False)


def run(line: str, place: Path) -> subprocess.CompletedProcess[str]:
    with open(place / "FILE") as piped:  # for those that read standard input
        return subprocess.run(
            [sys.executable, "-m", *shlex.split(line)],
            cwd=place,
            stdin=piped,
            capture_output=True,
            text=True,
            timeout=1800,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )


def test_pages_print_commands_of_every_kind() -> None:
    printed = {line.split()[1] for line in [*joma_commands(), *README] if line.startswith("joma ")}
    assert set(COMMANDS) <= printed, set(COMMANDS) - printed
    for line in [*commands(), *README]:
        assert line.split()[0] in ("joma", *ELSEWHERE), f"nothing tests {line!r}"


@pytest.mark.parametrize("line", [line for line in joma_commands() if not LONG.search(line)])
def test_a_printed_command_runs(line: str, place: Path) -> None:
    if " report" in line:
        for name in ("runs/toy", "A", "B"):
            run_experiment(toy.Toy(), place / name)
    done = called(shlex.split(line)[1:], (place / "FILE").read_text())
    assert done.returncode == 0, done.stderr
    assert "defect" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line for line in joma_commands() if LONG.search(line) and not HOURS.search(line)]
)
def test_a_long_printed_command_runs(line: str, place: Path) -> None:
    # The stand-in for the hub's model is small, but its text need not be read whole.
    tokens = 2048 if line.startswith("joma neurons") else 256
    short = f" --tokens {tokens}" if "--text" in line and "--tokens" not in line else ""
    done = run(line + short, place)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in [*joma_commands(), *commands(generated=True), *README]
        if re.match("joma (run|sweep)", line)
    ],
)
def test_a_printed_run_is_understood(line: str, place: Path) -> None:
    """The words of every printed run and sweep, those of hours too, as far as its settings."""
    from joma.cli.words import experiments, sweeps

    _, command, name, *words = shlex.split(line)
    read = {"run": experiments.read, "sweep": sweeps.read}[command]
    call = read(command, "", [name, *words])
    assert call is not None
    assert name == (call.job.experiment if isinstance(call.job, SweepSettings) else call.job.name())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_with_no_option_works_or_says_what_it_needs(command: str, place: Path) -> None:
    if command in ("demo", "check"):
        pytest.skip("minutes: among the long printed commands")
    done = called([command], (place / "FILE").read_text())
    if command in ("list", "run", "sweep"):
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "defect" not in done.stderr


@pytest.mark.parametrize(("name", "body"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_a_printed_block_runs(name: str, body: str, place: Path, model_folder: Path) -> None:
    shutil.rmtree(place / "live")  # the block's own model writes it
    if "runs/fig6/" in body:
        run_experiment(Fig6.of(**SMALL_FIG6), place / "runs" / "fig6")
    # A training of 2,000 steps in the middle of a page is tried with fewer.
    # Worker processes may stand in another folder than this one.
    small = {**SMALL_FIG6, "corpus": str(place / "my.txt")}
    own = ("layers", "seeds") if "joma.sweep(" in body else ("layers",)  # a grid of seeds has its own
    body = body.replace(
        "steps=2000", ", ".join(f"{key}={value!r}" for key, value in small.items() if key not in own)
    )
    steps = np.arange(40)
    curve = 3.0 + np.cos(steps / 40 * 2 * np.pi)
    model = joma.load_model(model_folder)
    ids = torch.arange(3, 35).reshape(2, 16)
    names = {
        "text": (place / "FILE").read_text()[:3000],
        "model": model.model,
        "batch": {"input_ids": torch.arange(3, 35).reshape(2, 16)},
        "query": torch.randn(1, 2, 8, 4, requires_grad=True),
        "key": torch.randn(1, 2, 8, 4, requires_grad=True),
        "tracker": MagicMock(spec=["add_figure", "add_text"]),
        "weight": torch.randn(12, 8),
        "batches": [{"input_ids": ids, "labels": ids}],
        "optimizer": torch.optim.SGD(model.model.parameters(), lr=0.1),
        "step": 0,
        "loss": torch.tensor(1.0),
        "logits": torch.randn(3, 7),
        "steps": steps,
        "entropies": curve + 0.01 * np.random.default_rng(0).normal(size=40),
        "runs": curve + 0.01 * np.random.default_rng(1).normal(size=(5, 40)),
    }
    exec(compile(body, name, "exec"), names)
    plt.close("all")


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("name", "body"), blocks("pycon"), ids=[name for name, _ in blocks("pycon")])
def test_a_printed_session_prints_what_it_says(name: str, body: str, place: Path) -> None:
    told: list[str] = []
    session = doctest.DocTestParser().get_doctest(body, {}, name, name, 0)
    result = doctest.DocTestRunner().run(session, out=told.append)
    assert session.examples
    assert not result.failed, "".join(told)


SMALL_FIG6 = {
    "corpus": "my.txt",
    "layers": (1,),
    "steps": 60,
    "measure_every": 5,
    "width": 8,
    "hidden": 8,
    "seeds": 1,
    "windows": 4,
    "vocabulary_size": 50,
}
