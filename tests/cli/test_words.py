"""What is typed, piped and pasted: texts of any source, a run's own settings, its recorded command."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

import joma.cli.main as cli
import toy
from joma.cli.commands import COMMANDS
from joma.cli.words import instruments
from joma.cli.words.options import JobCall
from joma.experiments import catalog
from joma.instruments.catalog import INSTRUMENTS
from joma.runs.directory import read_run, run_experiment

pytest.importorskip("transformers")
from probe_models import tiny_model

pytestmark = pytest.mark.usefixtures("no_pictures")

SECTIONS = ["--sections", "attention", "--length", "24", "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokens are bytes, in a folder of a name that a shell has to be told."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("models") / 'it\'s $HOME; a "model"'
    torch.manual_seed(0)
    config = tiny_model("llama").config
    config.vocab_size = 256
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes, *, terminal: bool = False) -> None:
    stream = io.TextIOWrapper(io.BytesIO(content))
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", stream)


TEXT = "Attention first becomes sparse, then dense again. " * 4


def test_a_text_comes_as_a_string_or_through_a_pipe(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import joma

    assert cli.main(["probe", str(model), "--string", TEXT, "-o", str(tmp_path / "a"), *SECTIONS]) == 0
    piped(monkeypatch, TEXT.encode())
    assert cli.main(["probe", str(model), "--text", "-", "-o", str(tmp_path / "b"), *SECTIONS]) == 0
    found = joma.probe(model, TEXT, sections=["attention"], length=24, device="cpu").tables["attention"]
    for name in "ab":
        run = read_run(tmp_path / name)
        pd.testing.assert_frame_equal(run.tables["attention"], found)
    # The piped text lies in the run's directory, so that its command gives the same tables.
    words = shlex.split(str(run.settings["command"]))[1:]
    assert cli.main([*words, "-o", str(tmp_path / "c"), "-q"]) == 0
    pd.testing.assert_frame_equal(read_run(tmp_path / "c").tables["attention"], found)
    # Another text in its place is another run.
    piped(monkeypatch, TEXT.upper().encode())
    assert cli.main(["probe", str(model), "--text", "-", "-o", str(tmp_path / "b"), *SECTIONS]) == 2


@pytest.mark.parametrize(
    ("content", "terminal", "message"),
    [
        (b"", False, "standard input is empty"),
        (b" \n\t", False, "standard input is empty"),
        (b"\xff\xfe", False, "standard input is not UTF-8 (byte 0)"),
        (b"words", True, "nothing is piped into it"),
    ],
)
def test_a_pipe_without_text(
    content: bytes,
    terminal: bool,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    piped(monkeypatch, content, terminal=terminal)
    assert cli.main(["probe", "model", "--text", "-"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_text_and_a_string_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "model", "--text", "a.txt", "--string", "words"]) == 2
    assert "a text and a string are both given" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["probe", "track", "neurons"])
def test_the_command_and_the_settings_of_a_run_say_what_it_was(command: str, tmp_path: Path) -> None:
    """Pasted into a shell, or given as --config, both are the job that was run."""
    odd = ["it's $HOME", "--text=-q", "--length", "12"]
    odd += ["two words", "a,b"] if command == "track" else []
    call = instruments.read(command, "", odd)
    assert isinstance(call, JobCall)
    assert call.job.flat()["text"] == "-q"
    words = shlex.split(call.job.command({}))
    assert words[:2] == ["joma", command]
    again = instruments.read(command, "", words[2:])
    assert again is not None
    assert again.job == call.job
    settings = tmp_path / "settings.yaml"
    described = {"experiment": command, "settings": json.loads(json.dumps(call.job.flat()))}
    settings.write_text(yaml.safe_dump(described))
    configured = instruments.read(command, "", ["--config", str(settings)])
    assert configured is not None
    assert configured.job == call.job
    changed = instruments.read(command, "", ["--config", str(settings), "--length", "13"])
    assert changed is not None
    assert changed.job.flat() == {**call.job.flat(), "length": 13}


def test_the_settings_of_a_run_are_a_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = catalog.find
    monkeypatch.setattr(catalog, "find", lambda name: toy.Toy if name == "toy" else real(name))
    run_experiment(toy.Toy(parts=3, sizes=(4, 5), limit=7), tmp_path / "a", preset="paper")
    settings = str(tmp_path / "a" / "settings.yaml")
    assert cli.main(["run", "toy", "--config", settings, "--out", str(tmp_path / "b")]) == 0
    first, second = (read_run(tmp_path / name) for name in "ab")
    assert second.settings["settings"] == first.settings["settings"]
    assert second.settings["preset"] == "paper"
    pd.testing.assert_frame_equal(first.tables["counts"], second.tables["counts"])
    capsys.readouterr()
    assert cli.main(["run", "fig9", "--config", settings]) == 2
    assert "is of a run of 'toy', not of 'fig9'" in capsys.readouterr().err
    (tmp_path / "c.yaml").write_text("overwrite: true\n")
    assert cli.main(["probe", "model", "--config", str(tmp_path / "c.yaml")]) == 2
    assert "it is an option, which is set on the command line only" in capsys.readouterr().err


def test_words_without_a_name_stand_anywhere() -> None:
    call = instruments.read("track", "", ["a", "--text", "t", "b", "--length", "12", "c"])
    assert call is not None
    assert call.job.flat()["model"] == "a"
    assert call.job.flat()["further"] == ("b", "c")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_for_the_eye(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options with hyphens, no markup, nothing of Python."""
    kinds = [[command, name] for name in catalog.names()] if command in ("run", "sweep") else [[command]]
    for words in kinds:
        assert cli.main([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        for mark in ("``", ":func:", ":class:", ":mod:", ":meth:", ":data:", "**"):
            assert mark not in shown, words
        options = [line.split()[0] for line in shown.splitlines() if line.strip().startswith("--")]
        assert options
        assert not [option for option in options if "_" in option]
        if command in ("run", *INSTRUMENTS):
            assert "It costs" in shown
            assert "unknown" not in shown


def test_suggestions_are_options_of_this_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["probe", "m", "--cofnig", "x"],
        ["list", "--parst"],
        ["run", "fig9", "--record-evry", "2"],
    ):
        assert cli.main(words) == 2
        error = capsys.readouterr().err
        suggested = error.partition("did you mean '")[2].partition("'")[0]
        cli.main([*words[: 2 if words[0] == "run" else 1], "--help"])
        assert suggested in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fig2", "fig3"])
def test_no_curve_of_fewer_points_than_two(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", name, "--steps", "30", "--record-every", "31", "--out", "/proc/no"]) == 2
    assert "record_every = 31 is above the number of steps, 30" in capsys.readouterr().err
